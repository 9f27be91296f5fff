//! What a connection of AppendRows remembers, and what a request on it does. Limits: rows as protobuf, not as Arrow; no
//! default values.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use tonic::{Code, Status};

use crate::api::{RowError, row_error};
use crate::append::extra_fields;
use crate::clock;
use crate::row::{self, Batch, Mismatch, Plan};
use crate::schema::Schema;
use crate::status;
use crate::stream::Stream;
use crate::table::{Pending, Shared, TableId};
use crate::warehouse::Warehouse;
use crate::wire::{AppendResult, AppendRowsRequest, AppendRowsResponse, Descriptor, Response};
use crate::write;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    id: u64,
    current: String,
    /// Whether the destination has ever changed, after which each request has to name it.
    multiplexed: bool,
    destinations: HashMap<String, Destination>,
}

/// Where rows go.
#[derive(Debug)]
struct Destination {
    table: Shared,
    /// None for the default stream.
    stream: Option<Arc<Stream>>,
    descriptor: Descriptor,
    raw: Bytes,
    plan: Arc<Plan>,
    /// The schema of the plan, which is also the last that the client was told of.
    schema: Schema,
    /// Whether changes or plain rows came; both must not.
    changes: Option<bool>,
}

impl Connection {
    /// A new one.
    pub(crate) fn new(id: u64) -> Self {
        Self { id, current: String::new(), multiplexed: false, destinations: HashMap::new() }
    }

    /// Where a request goes that names this stream, or none.
    pub(crate) fn destination<'a>(&'a self, named: &'a str) -> &'a str {
        if named.is_empty() { &self.current } else { named }
    }

    /// Does a request. An error ends the connection; one that does not is in the response.
    pub(crate) fn append(
        &mut self,
        warehouse: &Warehouse,
        request: AppendRowsRequest,
    ) -> Result<AppendRowsResponse, Status> {
        let size = request.encoded_len();
        let most = warehouse.settings.request_bytes;
        if size > most {
            return Err(Status::invalid_argument(format!(
                "AppendRows request too large: {size} limit {most}"
            )));
        }
        self.route(&request)?;
        if request.arrow_rows.is_some() {
            return Err(Status::unimplemented("The emulator takes rows as protobuf only, not as Arrow"));
        }
        let interpretations = request.missing_value_interpretations.values();
        if interpretations.clone().any(|i| !(1..=2).contains(i))
            || !(0..=2).contains(&request.default_missing_value_interpretation)
        {
            return Err(Status::invalid_argument("Invalid missing value interpretation"));
        }
        let data = request.proto_rows.ok_or_else(|| Status::invalid_argument("Rows must be specified."))?;
        let name = self.current.clone();
        let mut response = AppendRowsResponse { write_stream: name.clone(), ..Default::default() };
        if let Some(raw) = data.writer_schema.and_then(|schema| schema.proto_descriptor) {
            match self.open(warehouse, &name, raw) {
                Ok(()) => {}
                Err(status) if status.code() == Code::InvalidArgument => {
                    response.response = Some(Response::Error(status::rpc(&status)));
                    return Ok(response);
                }
                Err(status) => return Err(status),
            }
        }
        let Some(destination) = self.destinations.get_mut(&name) else {
            return Err(Status::invalid_argument(format!(
                "Writer schema must be provided in the first request. Entity: {name}"
            )));
        };
        let rows = data.rows.map(|rows| rows.serialized_rows).unwrap_or_default();
        if rows.is_empty() {
            return Err(Status::invalid_argument("Rows must be specified."));
        }
        match destination.append(self.id, warehouse, request.offset, rows, &mut response) {
            Ok(offset) => {
                let offset = destination.stream.as_ref().and(Some(offset));
                response.response = Some(Response::AppendResult(AppendResult { offset }));
            }
            Err(status) if ends(status.code()) => return Err(status),
            Err(status) => response.response = Some(Response::Error(status::rpc(&status))),
        }
        Ok(response)
    }

    /// Where a request goes, if it may go there.
    fn route(&mut self, request: &AppendRowsRequest) -> Result<(), Status> {
        let named = &request.write_stream;
        if named.is_empty() {
            return match (self.current.is_empty(), self.multiplexed) {
                (true, _) => {
                    Err(Status::invalid_argument("write_stream must be specified in the first request"))
                }
                (_, true) => Err(Status::invalid_argument(
                    "write_stream must be specified in every request of a connection with several destinations",
                )),
                _ => Ok(()),
            };
        }
        if *named == self.current {
            return Ok(());
        }
        if !self.current.is_empty() {
            if !self.current.ends_with("/_default") || !named.ends_with("/_default") {
                return Err(Status::invalid_argument(format!(
                    "A connection can only switch between default streams. Current: {}, requested: {named}",
                    self.current
                )));
            }
            self.multiplexed = true;
        }
        self.current.clone_from(named);
        Ok(())
    }

    /// Takes a descriptor for a destination.
    fn open(&mut self, warehouse: &Warehouse, name: &str, raw: Bytes) -> Result<(), Status> {
        if self.destinations.get(name).is_some_and(|known| known.raw == raw) {
            return Ok(());
        }
        let (id, rest) = TableId::from_path(name)
            .filter(|(_, rest)| rest.starts_with("streams/"))
            .ok_or_else(|| Status::invalid_argument(format!("Invalid stream name: {name}")))?;
        let descriptor = Descriptor::decode(&raw[..])
            .map_err(|e| Status::invalid_argument(format!("Invalid proto descriptor: {e}")))?;
        let (table, stream) = if rest == "streams/_default" {
            (write::table(warehouse, &id)?, None)
        } else {
            let stream = write::stream(warehouse, name)?;
            (stream.table.clone(), Some(stream))
        };
        let schema = known_schema(warehouse, &table);
        let plan = Arc::new(plan(&descriptor, &schema, &table.id, stream.is_some())?);
        if let Some(stream) = stream.as_ref().filter(|_| !self.destinations.contains_key(name)) {
            stream.take_over(self.id);
        }
        let changes = self.destinations.get(name).and_then(|known| known.changes);
        let destination = Destination { table, stream, descriptor, raw, plan, schema, changes };
        self.destinations.insert(name.to_owned(), destination);
        Ok(())
    }
}

/// Whether a status of an append ends the connection.
fn ends(code: Code) -> bool {
    matches!(code, Code::NotFound | Code::Aborted | Code::Internal | Code::Unimplemented)
}

/// The schema that the Storage Write API knows.
fn known_schema(warehouse: &Warehouse, table: &Shared) -> Schema {
    let delay = clock::micros(warehouse.settings.schema_delay);
    table.lock().write_schema(warehouse.clock.micros(), delay)
}

fn plan(descriptor: &Descriptor, schema: &Schema, table: &TableId, owned: bool) -> Result<Plan, Status> {
    let plan = Plan::new(descriptor, schema).map_err(|mismatch| match mismatch {
        Mismatch::Extra(message) => {
            extra_fields(&table.path(), format!("{message} Entity: {}", table.path()))
        }
        Mismatch::Invalid(message) => Status::invalid_argument(format!("{message} Entity: {}", table.path())),
    })?;
    if owned && (plan.change_type.is_some() || plan.sequence.is_some()) {
        return Err(Status::invalid_argument("_CHANGE_TYPE is only supported on the default stream"));
    }
    Ok(plan)
}

impl Destination {
    fn append(
        &mut self,
        connection: u64,
        warehouse: &Warehouse,
        offset: Option<i64>,
        rows: Vec<Bytes>,
        response: &mut AppendRowsResponse,
    ) -> Result<i64, Status> {
        let schema = known_schema(warehouse, &self.table);
        if !Arc::ptr_eq(&schema, &self.schema) {
            self.plan = Arc::new(plan(&self.descriptor, &schema, &self.table.id, self.stream.is_some())?);
            self.schema = schema;
            response.updated_schema = Some(write::schema(&self.schema));
        }
        match &self.stream {
            None if offset.is_some() => {
                return Err(Status::invalid_argument("Offsets cannot be used with the default stream"));
            }
            None => {}
            Some(stream) => {
                if !warehouse.streams().contains_key(&stream.name) {
                    return Err(status::no_stream(&stream.name));
                }
                if !stream.is_owned_by(connection) {
                    return Err(Status::aborted("Another connection has begun to append to the stream"));
                }
                // Told before the rows are looked at, as it is cheap.
                stream.check(&stream.lock(), offset)?;
            }
        }
        let keys = self.table.lock().keys(&self.schema);
        let batch = row::read(&self.plan, &self.schema, &keys, &rows).map_err(|bad| {
            let errors = bad.iter().map(|row| RowError {
                index: row.index as i64,
                code: row_error::RowErrorCode::FieldsError as i32,
                message: row.message.clone(),
            });
            response.row_errors = errors.collect();
            Status::invalid_argument(format!(
                "Errors found while processing rows. Please refer to the row_errors field for details. The list may not be \
                 complete because of the size limitations. Entity: {}",
                self.table.id.path()
            ))
        })?;
        let are_changes = matches!(batch, Batch::Changes(_));
        if *self.changes.get_or_insert(are_changes) != are_changes {
            return Err(Status::invalid_argument(
                "The given value is not a valid CHANGE_TYPE: a connection must not mix changes with plain rows",
            ));
        }
        let durable = warehouse.engine.durable;
        let start = match (&self.stream, batch) {
            (Some(stream), Batch::Rows(batch)) => {
                let raw = durable.then(|| {
                    let rows = crate::wire::ProtoRows { serialized_rows: rows }.encode_to_vec();
                    (self.raw.to_vec(), rows)
                });
                stream.append(offset, batch, raw)?
            }
            (Some(_), Batch::Changes(_)) => {
                return Err(Status::invalid_argument("_CHANGE_TYPE is only supported on the default stream"));
            }
            (None, batch) => {
                let mut state = self.table.lock();
                if state.dropped {
                    return Err(status::no_table(&self.table.id));
                }
                match batch {
                    Batch::Rows(batch) => state.push(Pending::Rows(batch)),
                    Batch::Changes(_) if keys.is_empty() => {
                        return Err(Status::invalid_argument(format!(
                            "_CHANGE_TYPE requires that the table has a primary key. Entity: {}",
                            self.table.id.path()
                        )));
                    }
                    Batch::Changes(changes) => {
                        state.upserted = true;
                        state.push(Pending::Changes(warehouse.clock.micros(), changes));
                    }
                }
                0
            }
        };
        warehouse.settle(&self.table).map_err(|failure| Status::internal(failure.message))?;
        Ok(start)
    }
}
