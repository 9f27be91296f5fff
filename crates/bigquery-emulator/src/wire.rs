//! The messages of AppendRows, and what is needed of descriptors. Google's generated ones would drop the extension that
//! gives a field's column name, as prost keeps no unknown fields.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};

use crate::api;

/// `google.cloud.bigquery.storage.v1.AppendRowsRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AppendRowsRequest {
    #[prost(string, tag = "1")]
    pub(crate) write_stream: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) offset: Option<i64>,
    #[prost(message, optional, tag = "4")]
    pub(crate) proto_rows: Option<ProtoData>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(crate) arrow_rows: Option<Bytes>,
    #[prost(string, tag = "6")]
    pub(crate) trace_id: String,
    #[prost(map = "string, int32", tag = "7")]
    pub(crate) missing_value_interpretations: HashMap<String, i32>,
    #[prost(int32, tag = "8")]
    pub(crate) default_missing_value_interpretation: i32,
}

/// Rows, and their schema where it is new.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProtoData {
    #[prost(message, optional, tag = "1")]
    pub(crate) writer_schema: Option<ProtoSchema>,
    #[prost(message, optional, tag = "2")]
    pub(crate) rows: Option<ProtoRows>,
}

/// A schema: the bytes of a `DescriptorProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProtoSchema {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub(crate) proto_descriptor: Option<Bytes>,
}

/// Rows.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProtoRows {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(crate) serialized_rows: Vec<Bytes>,
}

/// `google.cloud.bigquery.storage.v1.AppendRowsResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AppendRowsResponse {
    #[prost(oneof = "Response", tags = "1, 2")]
    pub(crate) response: Option<Response>,
    #[prost(message, optional, tag = "3")]
    pub(crate) updated_schema: Option<api::TableSchema>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) row_errors: Vec<api::RowError>,
    #[prost(string, tag = "5")]
    pub(crate) write_stream: String,
}

/// What became of a request.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Response {
    #[prost(message, tag = "1")]
    AppendResult(AppendResult),
    #[prost(message, tag = "2")]
    Error(RpcStatus),
}

/// It was appended.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AppendResult {
    #[prost(message, optional, tag = "1")]
    pub(crate) offset: Option<i64>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<prost_types::Any>,
}

/// `google.protobuf.DescriptorProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) field: Vec<FieldDescriptor>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) nested_type: Vec<Descriptor>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) enum_type: Vec<EnumDescriptor>,
}

/// `google.protobuf.FieldDescriptorProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldDescriptor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "3")]
    pub(crate) number: i32,
    #[prost(int32, tag = "4")]
    pub(crate) label: i32,
    #[prost(int32, tag = "5")]
    pub(crate) kind: i32,
    #[prost(string, tag = "6")]
    pub(crate) type_name: String,
    #[prost(message, optional, tag = "8")]
    pub(crate) options: Option<FieldOptions>,
}

/// `google.protobuf.FieldOptions` with the Storage Write API's extension.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldOptions {
    #[prost(string, optional, tag = "454943157")]
    pub(crate) column_name: Option<String>,
}

/// `google.protobuf.EnumDescriptorProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnumDescriptor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) value: Vec<EnumValue>,
}

/// `google.protobuf.EnumValueDescriptorProto`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnumValue {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) number: i32,
}
