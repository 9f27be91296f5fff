//! The Storage Write API but for appending: streams made, looked up, flushed, finalized, committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1 as pb;
use millstream_core::{Error, Result};
use pb::big_query_write_client::BigQueryWriteClient;
use pb::storage_error::StorageErrorCode;
use pb::write_stream::Type;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tonic::metadata::{KeyAndValueRef, MetadataMap, MetadataValue};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status};

use crate::backoff::Backoff;
use crate::column_type::ColumnType;
use crate::connection::{Auth, Connection};
use crate::field::{Field, Mode};
use crate::resource::TableId;
use crate::write_error::{WriteError, WriteErrorKind};

const SERVICE: &str = "https://bigquerystorage.googleapis.com";
/// For the answer to a call that answers once; creating many streams at a time is slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a call is tried.
const PATIENCE: Duration = Duration::from_secs(60);
/// An answer may name each bad row of a request.
pub(crate) const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Connections that append, at most. In its smaller regions the service takes a thousand of a project, from all of its clients.
const LINES_MAX: usize = 500;

/// A way to the Storage Write API. Cheap to clone; connects when it is first used, and again when a connection was lost.
#[derive(Debug, Clone)]
pub struct Storage {
    channels: Arc<[Channel]>,
    turn: Arc<AtomicUsize>,
    stream_turn: Arc<AtomicUsize>,
    /// One for each connection that appends, of all appenders.
    lines: Arc<Semaphore>,
    auth: Auth,
    endpoint: Arc<str>,
}

/// When rows of a stream become visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// At once.
    Committed,
    /// When they are flushed.
    Buffered,
    /// When the stream is committed.
    Pending,
}

/// A stream of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct WriteStream {
    /// `projects/…/datasets/…/tables/…/streams/…`.
    pub name: String,
    /// When its rows become visible; `None` for a kind that is not known here.
    pub kind: Option<StreamKind>,
    /// The table's columns as the stream's server knows them.
    pub fields: Vec<Field>,
    /// Where the data lies.
    pub location: String,
}

impl Storage {
    /// A client with `connections` connections, which live on the current tokio runtime. Nothing is sent yet.
    ///
    /// # Errors
    /// If the endpoint is no URL, no credentials can be found or read, or there is no runtime.
    pub fn new(connection: &Connection, connections: usize) -> Result<Self> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::fatal("a BigQuery client needs a tokio runtime: please report this as a bug"));
        }
        let endpoint = Connection::url(connection.grpc.as_deref().unwrap_or(SERVICE))?;
        let auth = Auth::new(connection, &endpoint)?;
        let mut builder = Endpoint::from_shared(endpoint.clone())
            .map_err(|e| {
                Error::fatal(format!("`{endpoint}` is no URL of a BigQuery endpoint")).with_source(e)
            })?
            .connect_timeout(Duration::from_secs(10))
            .http2_keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        if endpoint.starts_with("https://") {
            builder = builder.tls_config(ClientTlsConfig::new().with_native_roots()).map_err(|e| {
                Error::fatal("cannot set up TLS with the system's root certificates").with_source(e)
            })?;
        }
        let channels = (0..connections.max(1)).map(|_| builder.connect_lazy()).collect();
        Ok(Self {
            channels,
            turn: Arc::default(),
            stream_turn: Arc::default(),
            lines: Arc::new(Semaphore::new(LINES_MAX)),
            auth,
            endpoint: endpoint.into(),
        })
    }

    /// Where it connects to.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// For a connection that stays, so that no channel has more of them than others.
    pub(crate) fn stream_channel(&self) -> Channel {
        let turn = self.stream_turn.fetch_add(1, Ordering::Relaxed);
        self.channels[turn % self.channels.len()].clone()
    }

    /// Leave to append on a connection, for as long as it is kept.
    pub(crate) async fn line(&self) -> Result<OwnedSemaphorePermit, Status> {
        let closed = |_| Status::internal("invariant: connections are never forbidden");
        self.lines.clone().acquire_owned().await.map_err(closed)
    }

    /// Whether another connection would have to wait: then those that nothing is sent on are closed.
    pub(crate) fn lines_are_wanted(&self) -> bool {
        self.lines.available_permits() == 0
    }

    pub(crate) fn channel(&self) -> Channel {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.channels[turn % self.channels.len()].clone()
    }

    /// A request with who asks and the resource that the service routes by.
    pub(crate) async fn request<T>(
        &self,
        message: T,
        key: &str,
        resource: &str,
    ) -> Result<Request<T>, Status> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        let headers = self.auth.headers().await.map_err(|e| {
            if e.is_transient { Status::unavailable(e.text) } else { Status::unauthenticated(e.text) }
        })?;
        for pair in MetadataMap::from_headers(headers).iter() {
            if let KeyAndValueRef::Ascii(key, value) = pair {
                metadata.insert(key, value.clone());
            }
        }
        let routing = format!("{key}={}", crate::rest::segment(resource));
        if let Ok(value) = MetadataValue::try_from(routing) {
            metadata.insert("x-goog-request-params", value);
        }
        Ok(request)
    }

    /// Calls until there is an answer, an error that stays, or no more patience.
    async fn call<T: Clone, R>(
        &self,
        what: &str,
        (key, resource): (&str, &str),
        message: T,
        call: impl AsyncFn(&mut BigQueryWriteClient<Channel>, Request<T>) -> Result<Response<R>, Status>,
    ) -> Result<R, WriteError> {
        let mut backoff = Backoff::new();
        let began = Instant::now();
        loop {
            let answer = match self.request(message.clone(), key, resource).await {
                Ok(mut request) => {
                    request.set_timeout(ANSWER_TIMEOUT);
                    let client = BigQueryWriteClient::new(self.channel());
                    call(&mut client.max_decoding_message_size(RESPONSE_BYTES_MAX), request).await
                }
                Err(status) => Err(status),
            };
            let error = match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => WriteError::of_status(what, resource, &status),
            };
            let wait = backoff.wait();
            if !error.is_transient() || began.elapsed() + wait > PATIENCE {
                return Err(error);
            }
            tracing::debug!("{error}; trying again");
            sleep(wait).await;
        }
    }

    /// Makes a stream. If an answer is lost another one is made; streams that nobody uses go away by themselves.
    ///
    /// # Errors
    /// If it cannot be made.
    pub async fn create_stream(&self, table: &TableId, kind: StreamKind) -> Result<WriteStream, WriteError> {
        let parent = table.path();
        let kind = match kind {
            StreamKind::Committed => Type::Committed,
            StreamKind::Buffered => Type::Buffered,
            StreamKind::Pending => Type::Pending,
        };
        let stream = pb::WriteStream { r#type: kind.into(), ..pb::WriteStream::default() };
        let message = pb::CreateWriteStreamRequest { parent: parent.clone(), write_stream: Some(stream) };
        let made = self
            .call("create a stream of", ("parent", &parent), message, async |c, r| {
                c.create_write_stream(r).await
            })
            .await?;
        Ok(read_stream(made))
    }

    /// A stream, with the table's columns; `None` if there is none of this name. The table's default stream has a name, too.
    ///
    /// # Errors
    /// If it cannot be looked up.
    pub async fn stream(&self, name: &str) -> Result<Option<WriteStream>, WriteError> {
        let view = pb::WriteStreamView::Full.into();
        let message = pb::GetWriteStreamRequest { name: name.to_owned(), view };
        let found = self
            .call("look up the stream", ("name", name), message, async |c, r| c.get_write_stream(r).await)
            .await;
        match found {
            Ok(stream) => Ok(Some(read_stream(stream))),
            Err(error) if error.kind() == WriteErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the rows of a buffered stream visible up to `offset`, and with it. What is visible already stays so: a repeated call changes
    /// nothing. Returns the offset up to which rows are visible.
    ///
    /// # Errors
    /// If there is no such stream or no row at the offset, which may mean that rows were lost.
    pub async fn flush_rows(&self, stream: &str, offset: i64) -> Result<i64, WriteError> {
        let message = pb::FlushRowsRequest { write_stream: stream.to_owned(), offset: Some(offset) };
        let flushed = self
            .call("flush the stream", ("write_stream", stream), message, async |c, r| c.flush_rows(r).await)
            .await;
        match flushed {
            Ok(answer) => Ok(answer.offset),
            // Flushed that far before.
            Err(error) if error.kind() == WriteErrorKind::AlreadyExists => Ok(offset),
            Err(error) => Err(error),
        }
    }

    /// Ends a stream: it takes no more rows. Returns how many it has. May be repeated.
    ///
    /// # Errors
    /// If there is no such stream.
    pub async fn finalize(&self, stream: &str) -> Result<i64, WriteError> {
        let message = pb::FinalizeWriteStreamRequest { name: stream.to_owned() };
        let answer = self
            .call("finalize the stream", ("name", stream), message, async |c, r| {
                c.finalize_write_stream(r).await
            })
            .await?;
        Ok(answer.row_count)
    }

    /// Makes the rows of finalized pending streams of one table visible, all at one time or none. May be repeated.
    ///
    /// # Errors
    /// If any of them cannot be committed; none is then.
    pub async fn commit(&self, table: &TableId, streams: &[String]) -> Result<(), WriteError> {
        let parent = table.path();
        let message =
            pb::BatchCommitWriteStreamsRequest { parent: parent.clone(), write_streams: streams.to_vec() };
        let answer = self
            .call("commit streams of", ("parent", &parent), message, async |c, r| {
                c.batch_commit_write_streams(r).await
            })
            .await;
        let answer = match answer {
            Err(error) if error.kind() == WriteErrorKind::AlreadyCommitted => return Ok(()),
            answer => answer?,
        };
        let errors = &answer.stream_errors;
        // All were committed by a call whose answer was lost.
        let again = !streams.is_empty()
            && errors.len() == streams.len()
            && errors.iter().all(|e| e.code() == StorageErrorCode::StreamAlreadyCommitted);
        let Some(first) = errors.first().filter(|_| !again) else { return Ok(()) };
        let kind = match first.code() {
            StorageErrorCode::TableNotFound | StorageErrorCode::StreamNotFound => WriteErrorKind::NotFound,
            StorageErrorCode::StreamAlreadyCommitted => WriteErrorKind::AlreadyCommitted,
            StorageErrorCode::KmsServiceError => WriteErrorKind::Transient,
            _ => WriteErrorKind::Precondition,
        };
        let name = first.code().as_str_name();
        let text =
            format!("cannot commit streams of {parent}: {name} for {}; none was committed", first.entity);
        Err(WriteError::new(kind, text))
    }
}

fn read_stream(stream: pb::WriteStream) -> WriteStream {
    let kind = match stream.r#type() {
        Type::Committed => Some(StreamKind::Committed),
        Type::Buffered => Some(StreamKind::Buffered),
        Type::Pending => Some(StreamKind::Pending),
        Type::Unspecified => None,
    };
    let fields = stream.table_schema.as_ref().map(read_schema).unwrap_or_default();
    WriteStream { name: stream.name, kind, fields, location: stream.location }
}

/// The columns as the write API tells them.
pub(crate) fn read_schema(schema: &pb::TableSchema) -> Vec<Field> {
    schema.fields.iter().map(read_field).collect()
}

fn read_field(field: &pb::TableFieldSchema) -> Field {
    use pb::table_field_schema::{Mode as PbMode, Type as PbType};
    let ty = match field.r#type() {
        PbType::Double => ColumnType::Float64,
        other => ColumnType::from_name(other.as_str_name()),
    };
    let mode = match field.mode() {
        PbMode::Required => Mode::Required,
        PbMode::Repeated => Mode::Repeated,
        PbMode::Nullable | PbMode::Unspecified => Mode::Nullable,
    };
    let description = (!field.description.is_empty()).then(|| field.description.clone());
    let fields = field.fields.iter().map(read_field).collect();
    Field { mode, fields, description, ..Field::new(&field.name, ty) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_of_the_write_api_is_read() {
        use pb::table_field_schema::{Mode as PbMode, Type as PbType};
        let field = |name: &str, ty: PbType, mode: PbMode| pb::TableFieldSchema {
            name: name.to_owned(),
            r#type: ty.into(),
            mode: mode.into(),
            ..pb::TableFieldSchema::default()
        };
        let nested = field("x", PbType::Bignumeric, PbMode::Required);
        let record =
            pb::TableFieldSchema { fields: vec![nested], ..field("r", PbType::Struct, PbMode::Repeated) };
        let schema =
            pb::TableSchema { fields: vec![record, field("d", PbType::Double, PbMode::Unspecified)] };
        let fields = read_schema(&schema);
        assert_eq!(fields[0].sql_type(), "ARRAY<STRUCT<`x` BIGNUMERIC NOT NULL>>");
        assert_eq!(fields[1].ddl(), "`d` FLOAT64");
    }
}
