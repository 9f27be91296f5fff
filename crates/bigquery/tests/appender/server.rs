//! A server of AppendRows that keeps what it is sent, as Google documents it, and fails when it is told to.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1 as pb;
use googleapis_tonic_google_cloud_bigquery_storage_v1::google::rpc;
use millstream_bigquery::Connection;
use pb::append_rows_request::Rows as PbRows;
use pb::append_rows_response::{AppendResult, Response as PbResponse};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The connection ends before the request is looked at.
    LostBefore,
    /// The connection ends before the answer.
    LostAfter,
    /// The answer is an error, and nothing is written.
    Error(Code),
    /// The connection ends with an error.
    Refused(Code),
    /// There is never an answer, but to the next connection's.
    Silence,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) streams: HashMap<String, Vec<Vec<u8>>>,
    pub(crate) faults: VecDeque<Fault>,
    pub(crate) connections: usize,
    /// Connections at a time: now, and the most there were.
    pub(crate) together: (usize, usize),
    pub(crate) requests: usize,
    /// Sent with the next success.
    pub(crate) updated: Option<pb::TableSchema>,
}

#[derive(Clone, Default)]
pub(crate) struct Server(pub(crate) Arc<Mutex<State>>);

impl Server {
    /// Serves on a port of its own until the runtime ends.
    pub(crate) async fn start(&self) -> Connection {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let served =
            tonic::transport::Server::builder().add_service(self.clone()).serve_with_incoming(incoming);
        tokio::spawn(served);
        Connection { grpc: Some(address.to_string()), ..Connection::default() }
    }

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl NamedService for Server {
    const NAME: &'static str = "google.cloud.bigquery.storage.v1.BigQueryWrite";
}

impl Service<http::Request<Body>> for Server {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = Append(self.clone());
        Box::pin(async move {
            let codec = ProstCodec::<pb::AppendRowsResponse, pb::AppendRowsRequest>::default();
            Ok(Grpc::new(codec).streaming(service, request).await)
        })
    }
}

struct Append(Server);

/// A connection, until it is dropped.
struct Counted(Server);

impl Counted {
    fn new(server: Server) -> Self {
        let mut state = server.state();
        state.connections += 1;
        state.together.0 += 1;
        state.together.1 = state.together.1.max(state.together.0);
        drop(state);
        Self(server)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.state().together.0 -= 1;
    }
}

impl StreamingService<pb::AppendRowsRequest> for Append {
    type Response = pb::AppendRowsResponse;
    type ResponseStream = BoxStream<'static, Result<pb::AppendRowsResponse, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<pb::AppendRowsRequest>>) -> Self::Future {
        let server = self.0.clone();
        let counted = Counted::new(server.clone());
        let routing = request.metadata().get("x-goog-request-params").map(|v| v.to_str().unwrap().to_owned());
        assert!(routing.is_some_and(|r| r.starts_with("write_stream=projects%2F")), "requests are routed");
        let requests = request.into_inner();
        let mut schemas = HashMap::new();
        let mut is_over = false;
        let answers = requests.filter_map(move |request| {
            let _counted = &counted;
            let answer = match request {
                _ if is_over => None,
                Ok(request) => answer(&mut server.state(), &mut schemas, request),
                Err(_) => None,
            };
            is_over |= matches!(answer, Some(Err(_)));
            std::future::ready(answer)
        });
        Box::pin(async move { Ok(Response::new(answers.boxed())) })
    }
}

/// Rows of less than 2 bytes are bad; the schema has to come before rows.
fn answer(
    state: &mut State,
    schemas: &mut HashMap<String, ()>,
    request: pb::AppendRowsRequest,
) -> Option<Result<pb::AppendRowsResponse, Status>> {
    state.requests += 1;
    let fault = state.faults.pop_front().unwrap_or(Fault::None);
    match fault {
        Fault::LostBefore => return Some(Err(Status::unavailable("lost"))),
        Fault::Refused(code) => return Some(Err(Status::new(code, "refused"))),
        Fault::Silence => return None,
        _ => {}
    }
    let stream = request.write_stream.clone();
    let Some(PbRows::ProtoRows(data)) = request.rows else {
        return Some(Err(Status::invalid_argument("no rows")));
    };
    if data.writer_schema.is_some() {
        schemas.insert(stream.clone(), ());
    }
    if !schemas.contains_key(&stream) {
        return Some(Err(Status::invalid_argument("no schema")));
    }
    let rows = data.rows.unwrap_or_default().serialized_rows;
    let written = state.streams.entry(stream.clone()).or_default();
    let end = written.len() as i64;
    let response = match (fault, request.offset) {
        (Fault::Error(code), _) => error(code, "told so"),
        (_, Some(offset)) if offset < end => {
            error(Code::AlreadyExists, &format!("expected offset {end}, received {offset}"))
        }
        (_, Some(offset)) if offset > end => {
            error(Code::OutOfRange, &format!("expected offset {end}, received {offset}"))
        }
        _ => {
            let bad: Vec<_> = rows.iter().enumerate().filter(|(_, row)| row.len() < 2).collect();
            if bad.is_empty() {
                written.extend(rows.iter().map(|row| row.to_vec()));
                let result = AppendResult { offset: request.offset };
                let updated_schema = state.updated.take();
                pb::AppendRowsResponse {
                    response: Some(PbResponse::AppendResult(result)),
                    updated_schema,
                    ..Default::default()
                }
            } else {
                let row_errors = bad.iter().map(|(index, _)| pb::RowError {
                    index: *index as i64,
                    message: "bad".to_owned(),
                    ..pb::RowError::default()
                });
                pb::AppendRowsResponse {
                    row_errors: row_errors.collect(),
                    ..error(Code::InvalidArgument, "bad rows")
                }
            }
        }
    };
    if fault == Fault::LostAfter { Some(Err(Status::unavailable("lost"))) } else { Some(Ok(response)) }
}

fn error(code: Code, message: &str) -> pb::AppendRowsResponse {
    let status = rpc::Status { code: code as i32, message: message.to_owned(), details: Vec::new() };
    pb::AppendRowsResponse { response: Some(PbResponse::Error(status)), ..pb::AppendRowsResponse::default() }
}
