//! Errors of the Storage Write API, with the details that clients look at.

use prost::Message;
use tonic::{Code, Status};

use crate::api::StorageError;
use crate::api::storage_error::StorageErrorCode;
use crate::table::TableId;
use crate::wire::RpcStatus;

/// A status with a `StorageError`.
pub(crate) fn storage(code: Code, kind: StorageErrorCode, entity: &str, message: String) -> Status {
    let error = StorageError { code: kind as i32, entity: entity.to_owned(), error_message: message.clone() };
    let any = prost_types::Any {
        type_url: "type.googleapis.com/google.cloud.bigquery.storage.v1.StorageError".to_owned(),
        value: error.encode_to_vec(),
    };
    let details = RpcStatus { code: code as i32, message: message.clone(), details: vec![any] };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// The status as it lies in a response.
pub(crate) fn rpc(status: &Status) -> RpcStatus {
    RpcStatus::decode(status.details()).ok().filter(|details| details.code != 0).unwrap_or_else(|| {
        RpcStatus { code: status.code() as i32, message: status.message().to_owned(), details: Vec::new() }
    })
}

/// NOT_FOUND of a table.
pub(crate) fn no_table(id: &TableId) -> Status {
    let path = id.path();
    let message = format!("Requested entity was not found. Table not found: {id}. Entity: {path}");
    storage(Code::NotFound, StorageErrorCode::TableNotFound, &path, message)
}

/// NOT_FOUND of a stream.
pub(crate) fn no_stream(name: &str) -> Status {
    let message = format!("Requested entity was not found. Stream not found. Entity: {name}");
    storage(Code::NotFound, StorageErrorCode::StreamNotFound, name, message)
}
