//! Errors as the service words them, and the details of failed acks.

use std::collections::HashMap;

use prost::Message;
use tonic::{Code, Status};

/// INVALID_ARGUMENT.
pub(crate) fn invalid(message: impl Into<String>) -> Status {
    Status::invalid_argument(message)
}

/// NOT_FOUND of a resource.
pub(crate) fn not_found(name: &str) -> Status {
    Status::not_found(format!("Resource not found (resource={}).", super::names::id(name)))
}

/// ALREADY_EXISTS of a resource.
pub(crate) fn exists(name: &str) -> Status {
    Status::already_exists(format!(
        "Resource already exists in the project (resource={}).",
        super::names::id(name)
    ))
}

/// FAILED_PRECONDITION of a detached subscription.
pub(crate) fn detached(name: &str) -> Status {
    Status::failed_precondition(format!(
        "The subscription is detached (resource={}).",
        super::names::id(name)
    ))
}

/// The key of an ack id that will never work.
pub(crate) const INVALID_ACK_ID: &str = "PERMANENT_FAILURE_INVALID_ACK_ID";
/// The key of an ack id that may work later.
pub(crate) const UNORDERED_ACK_ID: &str = "TRANSIENT_FAILURE_UNORDERED_ACK_ID";

/// What a unary ack on an exactly-once subscription answers if some ids failed: which, and why.
pub(crate) fn failed_acks(failures: HashMap<String, String>) -> Status {
    let message = "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids \
                   have expired or the acknowledgement ids were malformed.";
    let info = ErrorInfo {
        reason: "EXACTLY_ONCE_ACKID_FAILURE".to_owned(),
        domain: "pubsub.googleapis.com".to_owned(),
        metadata: failures,
    };
    let any = prost_types::Any {
        type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(),
        value: info.encode_to_vec(),
    };
    let details =
        RpcStatus { code: Code::FailedPrecondition as i32, message: message.to_owned(), details: vec![any] };
    Status::with_details(Code::FailedPrecondition, message, details.encode_to_vec().into())
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}
