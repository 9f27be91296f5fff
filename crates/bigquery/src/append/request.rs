//! Requests to append, and what their answers mean.
//!
//! The requests are Google's on the wire, but not Google's types: rows are taken as the bytes in which they lie together, and a
//! schema as the bytes of its descriptor, of which `prost-types` would drop the columns' names.

use bytes::Bytes;
use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1 as pb;
use pb::append_rows_response::Response;

use crate::field::Field;
use crate::stream::read_schema;
use crate::write_error::WriteError;

/// `AppendRowsRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AppendRequest {
    #[prost(string, tag = "1")]
    pub(crate) write_stream: String,
    /// An `Int64Value`.
    #[prost(message, optional, tag = "2")]
    pub(crate) offset: Option<i64>,
    #[prost(message, optional, tag = "4")]
    pub(crate) data: Option<ProtoData>,
    #[prost(string, tag = "6")]
    pub(crate) trace_id: String,
}

/// `AppendRowsRequest.ProtoData`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoData {
    #[prost(message, optional, tag = "1")]
    pub(crate) writer_schema: Option<ProtoSchema>,
    /// A `ProtoRows` message.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) rows: Bytes,
}

/// `ProtoSchema`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProtoSchema {
    /// A `DescriptorProto` message.
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) descriptor: Bytes,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Its rows are in the stream.
    Written { updated: Option<Vec<Field>> },
    /// None of its rows was written, because of these.
    BadRows(Vec<(usize, String)>),
    /// None of its rows was written.
    Failed(WriteError),
}

impl Outcome {
    pub(crate) fn of(stream: &str, answer: pb::AppendRowsResponse) -> Self {
        if !answer.row_errors.is_empty() {
            let row = |e: pb::RowError| (usize::try_from(e.index).unwrap_or(usize::MAX), e.message);
            return Self::BadRows(answer.row_errors.into_iter().map(row).collect());
        }
        if let Some(Response::Error(status)) = answer.response {
            let details = &status.details;
            return Self::Failed(WriteError::of_answer(
                "append to",
                stream,
                status.code,
                &status.message,
                details,
            ));
        }
        Self::Written { updated: answer.updated_schema.as_ref().map(read_schema) }
    }
}
