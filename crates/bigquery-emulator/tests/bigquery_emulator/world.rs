//! A server with clients for a test.

use bytes::Bytes;
use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1::append_rows_response::Response as Answer;
use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1::big_query_write_client::BigQueryWriteClient;
pub(crate) use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1::write_stream::Type as Kind;
pub(crate) use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1::*;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use millstream_bigquery_emulator::{Builder, Running, Server};
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

pub(crate) const TABLE: &str = "projects/p/datasets/d/tables/t";
pub(crate) const DEFAULT: &str = "projects/p/datasets/d/tables/t/streams/_default";

pub(crate) struct World {
    pub(crate) server: Running,
    pub(crate) write: BigQueryWriteClient<Channel>,
}

/// A request with the metadata that routes it.
pub(crate) fn routed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("x-goog-request-params", "write_stream=x".parse().unwrap());
    request
}

impl World {
    /// A server with a table of an INT64 key and a STRING.
    pub(crate) async fn new() -> Self {
        let world = Self::empty(Server::builder()).await;
        world.sql("CREATE TABLE d.t (id INT64 NOT NULL, name STRING)").await;
        world
    }

    /// A server with a dataset `d`.
    pub(crate) async fn empty(builder: Builder) -> Self {
        Self::of(builder.dataset("p", "d", "US").start().await.unwrap()).await
    }

    pub(crate) async fn of(server: Running) -> Self {
        let channel =
            Channel::from_shared(format!("http://{}", server.grpc())).unwrap().connect().await.unwrap();
        Self { write: BigQueryWriteClient::new(channel), server }
    }

    /// A REST call: its status and body.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let stream = tokio::net::TcpStream::connect(self.server.rest()).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let request = hyper::Request::builder()
            .method(method)
            .uri(format!("/bigquery/v2/projects/p{path}"))
            .header("host", "localhost")
            .body(Full::new(Bytes::from(text)))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Runs SQL: the rows' cells.
    pub(crate) async fn sql(&self, sql: &str) -> Vec<Vec<Value>> {
        let (status, body) = self.try_sql(sql).await;
        assert_eq!(status, 200, "{sql}: {body}");
        let rows = body["rows"].as_array().cloned().unwrap_or_default();
        let cells = |row: &Value| row["f"].as_array().unwrap().iter().map(|cell| cell["v"].clone()).collect();
        rows.iter().map(cells).collect()
    }

    pub(crate) async fn try_sql(&self, sql: &str) -> (u16, Value) {
        let options = json!({"useInt64Timestamp": true});
        self.call("POST", "/queries", json!({"query": sql, "useLegacySql": false, "formatOptions": options}))
            .await
    }

    /// The first column, as text.
    pub(crate) async fn list(&self, sql: &str) -> Vec<String> {
        let text = |row: Vec<Value>| row[0].as_str().unwrap_or("NULL").to_owned();
        self.sql(sql).await.into_iter().map(text).collect()
    }

    /// The ids of the table.
    pub(crate) async fn ids(&self) -> Vec<String> {
        self.list("SELECT id FROM d.t ORDER BY id").await
    }

    pub(crate) async fn create(&mut self, kind: Kind) -> String {
        let stream = WriteStream { r#type: kind as i32, ..WriteStream::default() };
        let request = CreateWriteStreamRequest { parent: TABLE.to_owned(), write_stream: Some(stream) };
        self.write.create_write_stream(routed(request)).await.unwrap().into_inner().name
    }

    pub(crate) async fn flush(&mut self, stream: &str, offset: i64) -> Result<i64, Status> {
        let request = FlushRowsRequest { write_stream: stream.to_owned(), offset: Some(offset) };
        Ok(self.write.flush_rows(routed(request)).await?.into_inner().offset)
    }

    pub(crate) async fn finalize(&mut self, stream: &str) -> Result<i64, Status> {
        let request = FinalizeWriteStreamRequest { name: stream.to_owned() };
        Ok(self.write.finalize_write_stream(routed(request)).await?.into_inner().row_count)
    }

    pub(crate) async fn commit(&mut self, streams: &[&String]) -> BatchCommitWriteStreamsResponse {
        let write_streams = streams.iter().map(|name| (*name).clone()).collect();
        let request = BatchCommitWriteStreamsRequest { parent: TABLE.to_owned(), write_streams };
        self.write.batch_commit_write_streams(routed(request)).await.unwrap().into_inner()
    }

    pub(crate) async fn connect(&mut self) -> Connection {
        let (requests, receiver) = mpsc::channel(64);
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let responses = self.write.append_rows(routed(stream)).await.unwrap().into_inner();
        Connection { requests, responses }
    }
}

/// A connection of AppendRows.
pub(crate) struct Connection {
    pub(crate) requests: mpsc::Sender<AppendRowsRequest>,
    responses: Streaming<AppendRowsResponse>,
}

impl Connection {
    pub(crate) async fn send(&mut self, request: AppendRowsRequest) -> Result<AppendRowsResponse, Status> {
        let _ = self.requests.send(request).await;
        self.next().await
    }

    pub(crate) async fn next(&mut self) -> Result<AppendRowsResponse, Status> {
        let ended = || Status::new(Code::Unknown, "the connection has ended");
        self.responses.message().await?.ok_or_else(ended)
    }
}

/// The offset of an answer, or the code and text of its error.
pub(crate) fn answer(response: &AppendRowsResponse) -> Result<Option<i64>, (Code, String)> {
    match response.response.as_ref().unwrap() {
        Answer::AppendResult(result) => Ok(result.offset),
        Answer::Error(status) => Err((Code::from(status.code), status.message.clone())),
    }
}

/// The `StorageError` of an answer.
pub(crate) fn storage_code(response: &AppendRowsResponse) -> Option<i32> {
    match response.response.as_ref().unwrap() {
        Answer::AppendResult(_) => None,
        Answer::Error(status) => {
            status.details.first().map(|any| StorageError::decode(&any.value[..]).unwrap().code)
        }
    }
}

/// A field of a descriptor.
pub(crate) fn field(name: &str, number: i32, kind: Type) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional as i32),
        r#type: Some(kind as i32),
        ..FieldDescriptorProto::default()
    }
}

/// A descriptor of these fields.
pub(crate) fn descriptor(fields: Vec<FieldDescriptorProto>) -> DescriptorProto {
    DescriptorProto { name: Some("Row".to_owned()), field: fields, ..DescriptorProto::default() }
}

/// Rows with an id and a name, as the table has them; with `_CHANGE_TYPE` and `_CHANGE_SEQUENCE_NUMBER`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Row {
    #[prost(int64, optional, tag = "1")]
    pub(crate) id: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) change: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) sequence: Option<String>,
}

pub(crate) fn row(id: i64) -> Row {
    Row { id: Some(id), name: Some(format!("n{id}")), ..Row::default() }
}

/// A descriptor of [`Row`] without changes.
pub(crate) fn plain() -> DescriptorProto {
    descriptor(vec![field("id", 1, Type::Int64), field("name", 2, Type::String)])
}

/// A request of rows.
pub(crate) fn request(stream: &str, offset: Option<i64>, rows: &[impl Message]) -> AppendRowsRequest {
    request_of(stream, offset, Some(plain()), rows)
}

/// A request of rows with this descriptor, or without.
pub(crate) fn request_of(
    stream: &str,
    offset: Option<i64>,
    descriptor: Option<DescriptorProto>,
    rows: &[impl Message],
) -> AppendRowsRequest {
    let rows = ProtoRows { serialized_rows: rows.iter().map(|row| row.encode_to_vec().into()).collect() };
    let schema = descriptor.map(|proto_descriptor| ProtoSchema { proto_descriptor: Some(proto_descriptor) });
    let data = append_rows_request::ProtoData { writer_schema: schema, rows: Some(rows) };
    AppendRowsRequest {
        write_stream: stream.to_owned(),
        offset,
        rows: Some(append_rows_request::Rows::ProtoRows(data)),
        ..AppendRowsRequest::default()
    }
}
