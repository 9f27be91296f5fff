//! The Storage Write service.

use std::sync::Arc;

use tonic::{Request, Response, Status, Streaming};

use crate::api::big_query_write_server::BigQueryWrite;
use crate::api::storage_error::StorageErrorCode;
use crate::api::{
    BatchCommitWriteStreamsRequest, BatchCommitWriteStreamsResponse, CreateWriteStreamRequest,
    FinalizeWriteStreamRequest, FinalizeWriteStreamResponse, FlushRowsRequest, FlushRowsResponse,
    GetWriteStreamRequest, StorageError, TableFieldSchema, TableSchema, WriteStream, WriteStreamView,
    table_field_schema, write_stream,
};
use crate::append::{self, Responses};
use crate::failure::Failure;
use crate::schema::{Column, Mode, Type};
use crate::status;
use crate::stream::{Kind, Stream, StreamState};
use crate::table::{self, Pending, Shared, TableId};
use crate::warehouse::Warehouse;
use crate::wire::AppendRowsRequest;

/// The service.
#[derive(Debug, Clone)]
pub(crate) struct WriteService(pub(crate) Arc<Warehouse>);

/// A table that takes rows.
pub(crate) fn table(warehouse: &Warehouse, id: &TableId) -> Result<Shared, Status> {
    let table = warehouse.table(id).map_err(|_| status::no_table(id))?;
    if table.lock().kind != table::Kind::Table {
        return Err(Status::invalid_argument(format!("Cannot write to {id}, which is no table but a view")));
    }
    Ok(table)
}

/// A stream that an application made.
pub(crate) fn stream(warehouse: &Warehouse, name: &str) -> Result<Arc<Stream>, Status> {
    warehouse.streams().get(name).cloned().ok_or_else(|| status::no_stream(name))
}

/// A schema in the API's form.
pub(crate) fn schema(columns: &[Column]) -> TableSchema {
    TableSchema { fields: columns.iter().map(field).collect() }
}

fn field(column: &Column) -> TableFieldSchema {
    use table_field_schema::{FieldElementType, Type as Number};
    let number = |ty: &Type| match ty {
        Type::Bool => Number::Bool,
        Type::Int64 => Number::Int64,
        Type::Float64 => Number::Double,
        Type::String => Number::String,
        Type::Bytes => Number::Bytes,
        Type::Date => Number::Date,
        Type::Datetime => Number::Datetime,
        Type::Time => Number::Time,
        Type::Timestamp => Number::Timestamp,
        Type::Numeric => Number::Numeric,
        Type::Bignumeric => Number::Bignumeric,
        Type::Json => Number::Json,
        Type::Geography => Number::Geography,
        Type::Interval => Number::Interval,
        Type::Range(_) => Number::Range,
        Type::Record(_) => Number::Struct,
    } as i32;
    let mode = match column.mode {
        Mode::Nullable => table_field_schema::Mode::Nullable,
        Mode::Required => table_field_schema::Mode::Required,
        Mode::Repeated => table_field_schema::Mode::Repeated,
    };
    let element = match &column.ty {
        Type::Range(bound) => Some(FieldElementType { r#type: number(bound) }),
        _ => None,
    };
    TableFieldSchema {
        name: column.name.clone(),
        r#type: number(&column.ty),
        mode: mode as i32,
        fields: column.columns().unwrap_or_default().iter().map(field).collect(),
        description: column.rest.get("description").and_then(|d| d.as_str()).unwrap_or_default().to_owned(),
        range_element_type: element,
        ..TableFieldSchema::default()
    }
}

fn timestamp(micros: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: (micros.rem_euclid(1_000_000) * 1000) as i32,
    }
}

impl WriteService {
    fn routed<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let given = request.metadata().get("x-goog-request-params").and_then(|value| value.to_str().ok());
        if self.0.settings.require_routing && given.is_none_or(str::is_empty) {
            return Err(Status::invalid_argument(
                "The request metadata has no x-goog-request-params, which routes it; send for example \
                 write_stream=projects/p/datasets/d/tables/t/streams/_default",
            ));
        }
        Ok(())
    }

    /// Does something that may wait for the database, and then loses the answer or not.
    async fn work<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Warehouse) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let warehouse = self.0.clone();
        let done = tokio::task::spawn_blocking(move || run(&warehouse)).await;
        let answer = done.map_err(|e| Status::internal(e.to_string()))??;
        self.0.dice().answer(Response::new(answer))
    }

    /// A call on a stream begins.
    fn begin(&self, method: &'static str, name: &str) -> Result<(), Status> {
        let dice = self.0.dice();
        let table = name.split("/streams/").next().unwrap_or_default();
        dice.grpc(method, &[name, table])?;
        if dice.happens(dice.faults.expired) {
            self.0.streams().remove(name);
        }
        Ok(())
    }
}

fn internal(failure: Failure) -> Status {
    Status::internal(failure.message)
}

fn describe(warehouse: &Warehouse, stream: &Stream, full: bool) -> WriteStream {
    let state = stream.lock();
    let id = &stream.table.id;
    WriteStream {
        name: stream.name.clone(),
        r#type: stream.kind.number(),
        create_time: Some(timestamp(stream.created)),
        commit_time: state.committed.map(timestamp),
        table_schema: full.then(|| schema(&known(warehouse, &stream.table))),
        write_mode: write_stream::WriteMode::Insert as i32,
        location: location(warehouse, id),
    }
}

fn known(warehouse: &Warehouse, table: &Shared) -> crate::schema::Schema {
    let delay = crate::clock::micros(warehouse.settings.schema_delay);
    table.lock().write_schema(warehouse.clock.micros(), delay)
}

fn location(warehouse: &Warehouse, id: &TableId) -> String {
    warehouse.location(&id.project, &id.dataset).unwrap_or_default().to_ascii_lowercase()
}

fn create(warehouse: &Warehouse, request: &CreateWriteStreamRequest) -> Result<WriteStream, Status> {
    let (id, _) = TableId::from_path(&request.parent)
        .filter(|(_, rest)| rest.is_empty())
        .ok_or_else(|| Status::invalid_argument(format!("Invalid table name: {}", request.parent)))?;
    let kind = request.write_stream.as_ref().map_or(0, |stream| stream.r#type);
    let kind =
        Kind::of(kind).ok_or_else(|| Status::invalid_argument("The stream's type must be specified"))?;
    let table = table(warehouse, &id)?;
    let name = format!("{}/streams/Cic{:x}", id.path(), warehouse.serial());
    let stream =
        Stream::new(name.clone(), kind, table.clone(), warehouse.clock.micros(), StreamState::default());
    let stream = Arc::new(stream);
    if warehouse.engine.durable {
        let mark = stream.mark(&stream.lock());
        table.lock().push(Pending::Mark(mark));
        warehouse.settle(&table).map_err(internal)?;
    }
    warehouse.streams().insert(name, stream.clone());
    Ok(describe(warehouse, &stream, true))
}

fn get(warehouse: &Warehouse, request: &GetWriteStreamRequest) -> Result<WriteStream, Status> {
    let full = request.view == WriteStreamView::Full as i32;
    match TableId::from_path(&request.name) {
        Some((id, "streams/_default")) => {
            let table = table(warehouse, &id)?;
            let created = table.lock().created * 1000;
            let name = request.name.clone();
            let stream = Stream::new(name, Kind::Committed, table, created, StreamState::default());
            Ok(describe(warehouse, &stream, full))
        }
        _ => Ok(describe(warehouse, &*stream(warehouse, &request.name)?, full)),
    }
}

fn finalize(warehouse: &Warehouse, name: &str) -> Result<FinalizeWriteStreamResponse, Status> {
    if name.ends_with("/_default") {
        return Err(Status::invalid_argument("The default stream cannot be finalized"));
    }
    let stream = stream(warehouse, name)?;
    let row_count = stream.finalize(warehouse.engine.durable);
    warehouse.settle(&stream.table).map_err(internal)?;
    Ok(FinalizeWriteStreamResponse { row_count })
}

fn flush(warehouse: &Warehouse, request: &FlushRowsRequest) -> Result<FlushRowsResponse, Status> {
    if request.write_stream.ends_with("/_default") {
        return Err(Status::invalid_argument("FlushRows is not supported on the default stream"));
    }
    let stream = stream(warehouse, &request.write_stream)?;
    let offset = request.offset.ok_or_else(|| Status::invalid_argument("The offset must be specified"))?;
    stream.flush(offset, warehouse.engine.durable)?;
    warehouse.settle(&stream.table).map_err(internal)?;
    Ok(FlushRowsResponse { offset })
}

fn commit(
    warehouse: &Warehouse,
    request: &BatchCommitWriteStreamsRequest,
) -> Result<BatchCommitWriteStreamsResponse, Status> {
    let (id, _) = TableId::from_path(&request.parent)
        .ok_or_else(|| Status::invalid_argument(format!("Invalid table name: {}", request.parent)))?;
    let table = table(warehouse, &id)?;
    let mut names: Vec<_> = request.write_streams.iter().collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Err(Status::invalid_argument("No streams are given"));
    }
    let mut errors = Vec::new();
    let mut error = |code: StorageErrorCode, name: &str, message: &str| {
        let error_message = format!("{message} Entity: {name}");
        errors.push(StorageError { code: code as i32, entity: name.to_owned(), error_message });
    };
    let mut streams = Vec::new();
    for name in names {
        match stream(warehouse, name) {
            Ok(stream) if stream.table.id != id => {
                return Err(Status::invalid_argument(format!("Stream {name} is not of table {}", id.path())));
            }
            Ok(stream) => streams.push(stream),
            Err(_) => error(StorageErrorCode::StreamNotFound, name, "Stream not found."),
        }
    }
    // All are locked, in the order of their names, until all are checked and committed.
    let mut states: Vec<_> = streams.iter().map(|stream| stream.lock()).collect();
    for (stream, state) in streams.iter().zip(&states) {
        let name = &stream.name;
        if stream.kind != Kind::Pending {
            error(StorageErrorCode::InvalidStreamType, name, "Only PENDING streams can be committed.");
        } else if state.committed.is_some() {
            error(StorageErrorCode::StreamAlreadyCommitted, name, "Stream is already committed.");
        } else if !state.finalized {
            error(StorageErrorCode::InvalidStreamState, name, "Stream is not finalized.");
        }
    }
    if !errors.is_empty() {
        return Ok(BatchCommitWriteStreamsResponse { commit_time: None, stream_errors: errors });
    }
    let now = warehouse.clock.micros();
    {
        let mut held = table.lock();
        for (stream, state) in streams.iter().zip(&mut states) {
            stream.commit(state, &mut held, now, warehouse.engine.durable)?;
        }
    }
    drop(states);
    warehouse.settle(&table).map_err(internal)?;
    Ok(BatchCommitWriteStreamsResponse { commit_time: Some(timestamp(now)), stream_errors: Vec::new() })
}

#[tonic::async_trait]
impl BigQueryWrite for WriteService {
    type AppendRowsStream = Responses;

    async fn create_write_stream(
        &self,
        request: Request<CreateWriteStreamRequest>,
    ) -> Result<Response<WriteStream>, Status> {
        self.routed(&request)?;
        let request = request.into_inner();
        self.0.dice().grpc("CreateWriteStream", &[&request.parent])?;
        self.work(move |warehouse| create(warehouse, &request)).await
    }

    async fn append_rows(
        &self,
        request: Request<Streaming<AppendRowsRequest>>,
    ) -> Result<Response<Responses>, Status> {
        self.routed(&request)?;
        Ok(Response::new(append::serve(self.0.clone(), request.into_inner())))
    }

    async fn get_write_stream(
        &self,
        request: Request<GetWriteStreamRequest>,
    ) -> Result<Response<WriteStream>, Status> {
        self.routed(&request)?;
        let request = request.into_inner();
        self.begin("GetWriteStream", &request.name)?;
        self.work(move |warehouse| get(warehouse, &request)).await
    }

    async fn finalize_write_stream(
        &self,
        request: Request<FinalizeWriteStreamRequest>,
    ) -> Result<Response<FinalizeWriteStreamResponse>, Status> {
        self.routed(&request)?;
        let request = request.into_inner();
        self.begin("FinalizeWriteStream", &request.name)?;
        self.work(move |warehouse| finalize(warehouse, &request.name)).await
    }

    async fn batch_commit_write_streams(
        &self,
        request: Request<BatchCommitWriteStreamsRequest>,
    ) -> Result<Response<BatchCommitWriteStreamsResponse>, Status> {
        self.routed(&request)?;
        let request = request.into_inner();
        self.0.dice().grpc("BatchCommitWriteStreams", &[&request.parent])?;
        self.work(move |warehouse| commit(warehouse, &request)).await
    }

    async fn flush_rows(
        &self,
        request: Request<FlushRowsRequest>,
    ) -> Result<Response<FlushRowsResponse>, Status> {
        self.routed(&request)?;
        let request = request.into_inner();
        self.begin("FlushRows", &request.write_stream)?;
        self.work(move |warehouse| flush(warehouse, &request)).await
    }
}
