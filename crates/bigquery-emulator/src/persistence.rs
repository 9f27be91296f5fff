//! What the emulator keeps beside the rows, in tables of its own in the same database, so that one transaction covers both.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use duckdb::Connection;
use prost::Message;
use serde_json::{Map, Value};

use crate::engine::{KEYS, OWN};
use crate::failure::{Failure, Reason};
use crate::job::Job;
use crate::row::{self, Batch, Plan};
use crate::schema::{self, literal};
use crate::stream::{Kind as StreamKind, Stream, StreamState};
use crate::table::{self, Table, TableId};
use crate::upsert;
use crate::warehouse::{Dataset, Warehouse};
use crate::wire::{Descriptor, ProtoRows};

/// The layout of these tables; a database with another one is refused.
const FORMAT: i64 = 1;

fn corrupt(what: impl std::fmt::Display) -> Failure {
    Failure::new(Reason::InternalError, format!("the emulator's data cannot be read: {what}"))
}

fn object(text: &str) -> Result<Map<String, Value>, Failure> {
    serde_json::from_str(text).map_err(corrupt)
}

/// Makes the tables where they are missing, and reads what is in them.
pub(crate) fn load(warehouse: &Warehouse) -> Result<(), Failure> {
    let connection = warehouse.engine.lock();
    connection.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {OWN}.format (version BIGINT PRIMARY KEY);
         CREATE TABLE IF NOT EXISTS {OWN}.datasets (project VARCHAR, id VARCHAR, location VARCHAR, resource VARCHAR,
           created BIGINT, modified BIGINT, PRIMARY KEY (project, id));
         CREATE TABLE IF NOT EXISTS {OWN}.tables (project VARCHAR, dataset VARCHAR, id VARCHAR, kind INTEGER, query VARCHAR,
           columns VARCHAR, resource VARCHAR, created BIGINT, modified BIGINT, PRIMARY KEY (project, dataset, id));
         CREATE TABLE IF NOT EXISTS {OWN}.streams (stream VARCHAR PRIMARY KEY, project VARCHAR, dataset VARCHAR, id VARCHAR,
           kind INTEGER, created BIGINT, next BIGINT, flushed BIGINT, finalized BOOLEAN, committed BIGINT);
         CREATE TABLE IF NOT EXISTS {OWN}.appends (stream VARCHAR, start BIGINT, descriptor BLOB, rows BLOB);
         CREATE TABLE IF NOT EXISTS {OWN}.jobs (project VARCHAR, location VARCHAR, id VARCHAR, resource VARCHAR,
           PRIMARY KEY (project, location, id));
         INSERT OR IGNORE INTO {OWN}.format SELECT {FORMAT} WHERE NOT EXISTS (FROM {OWN}.format);"
    ))?;
    let version: i64 =
        connection.query_row(&format!("SELECT version FROM {OWN}.format"), [], |row| row.get(0))?;
    if version != FORMAT {
        return Err(corrupt(format!("its format is {version}, and {FORMAT} is known")));
    }
    datasets(warehouse, &connection)?;
    tables(warehouse, &connection)?;
    streams(warehouse, &connection)?;
    jobs(warehouse, &connection)
}

fn datasets(warehouse: &Warehouse, connection: &Connection) -> Result<(), Failure> {
    let mut statement = connection
        .prepare(&format!("SELECT project, id, location, resource, created, modified FROM {OWN}.datasets"))?;
    let rows = statement.query_map([], |row| {
        let id = (row.get::<_, String>(0)?, row.get::<_, String>(1)?);
        Ok((id, row.get::<_, String>(2)?, row.get::<_, String>(3)?, row.get(4)?, row.get(5)?))
    })?;
    for row in rows {
        let (id, location, resource, created, modified) = row?;
        let resource = object(&resource)?;
        let dataset = Dataset { location, resource, created, modified, version: 1, tables: BTreeMap::new() };
        warehouse.datasets().insert(id, dataset);
    }
    Ok(())
}

fn tables(warehouse: &Warehouse, connection: &Connection) -> Result<(), Failure> {
    let sql = format!(
        "SELECT project, dataset, id, kind, query, columns, resource, created, modified FROM {OWN}.tables"
    );
    let mut statement = connection.prepare(&sql)?;
    let rows = statement.query_map([], |row| {
        let id = TableId { project: row.get(0)?, dataset: row.get(1)?, table: row.get(2)? };
        let texts: (String, String, String) = (row.get(4)?, row.get(5)?, row.get(6)?);
        Ok((id, row.get::<_, i32>(3)?, texts, row.get::<_, i64>(7)?, row.get::<_, i64>(8)?))
    })?;
    for row in rows {
        let (id, kind, (query, columns, resource), created, modified) = row?;
        let kind = match kind {
            0 => table::Kind::Table,
            1 => table::Kind::View(query),
            _ => table::Kind::MaterializedView(query),
        };
        let columns: Value = serde_json::from_str(&columns).map_err(corrupt)?;
        let columns = Arc::new(schema::from_json(&columns)?);
        let loaded = Arc::new(Table::new(id.clone(), kind, columns, object(&resource)?, created * 1000));
        {
            let known = literal(&upsert::keys_table(&id));
            let sql = format!(
                "SELECT count(*) FROM information_schema.tables WHERE table_schema = '{KEYS}' AND table_name = {known}"
            );
            let mut state = loaded.lock();
            state.modified = modified;
            state.upserted = connection.query_row(&sql, [], |row| row.get::<_, i64>(0))? > 0;
        }
        if let Some(dataset) = warehouse.datasets().get_mut(&(id.project.clone(), id.dataset.clone())) {
            dataset.tables.insert(id.table.clone(), loaded);
        }
    }
    Ok(())
}

fn streams(warehouse: &Warehouse, connection: &Connection) -> Result<(), Failure> {
    let sql = format!(
        "SELECT stream, project, dataset, id, kind, created, next, flushed, finalized, committed FROM {OWN}.streams"
    );
    let mut statement = connection.prepare(&sql)?;
    let rows = statement.query_map([], |row| {
        let id = TableId { project: row.get(1)?, dataset: row.get(2)?, table: row.get(3)? };
        let state = StreamState {
            next: row.get(6)?,
            flushed: row.get(7)?,
            finalized: row.get(8)?,
            committed: row.get(9)?,
            ..StreamState::default()
        };
        Ok((row.get::<_, String>(0)?, id, row.get::<_, i32>(4)?, row.get::<_, i64>(5)?, state))
    })?;
    for row in rows {
        let (name, id, kind, created, mut state) = row?;
        let (Some(kind), Ok(table)) = (StreamKind::of(kind), warehouse.table(&id)) else { continue };
        if kind != StreamKind::Committed {
            hold(connection, &name, &table, &mut state)?;
        }
        let stream = Stream::new(name.clone(), kind, table, created, state);
        warehouse.streams().insert(name, Arc::new(stream));
    }
    Ok(())
}

/// Reads the rows of a stream that are not visible yet.
fn hold(connection: &Connection, name: &str, table: &Table, state: &mut StreamState) -> Result<(), Failure> {
    let schema = table.lock().schema.clone();
    let sql = format!("SELECT start, descriptor, rows FROM {OWN}.appends WHERE stream = ? ORDER BY start");
    let mut statement = connection.prepare(&sql)?;
    let rows = statement.query_map([name], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?, row.get::<_, Vec<u8>>(2)?))
    })?;
    for row in rows {
        let (start, descriptor, rows) = row?;
        let descriptor = Descriptor::decode(&descriptor[..]).map_err(corrupt)?;
        let rows = ProtoRows::decode(Bytes::from(rows)).map_err(corrupt)?.serialized_rows;
        let plan = Plan::new(&descriptor, &schema).map_err(|m| corrupt(format!("{m:?}")))?;
        let batch = row::read(&plan, &schema, &[], &rows).map_err(|bad| corrupt(format!("{bad:?}")))?;
        let Batch::Rows(batch) = batch else { continue };
        let visible = (state.flushed - start).max(0) as usize;
        if visible < batch.num_rows() {
            let rest = batch.slice(visible, batch.num_rows() - visible);
            state.held.push_back((start + visible as i64, rest));
        }
    }
    Ok(())
}

fn jobs(warehouse: &Warehouse, connection: &Connection) -> Result<(), Failure> {
    let mut statement =
        connection.prepare(&format!("SELECT project, location, id, resource FROM {OWN}.jobs"))?;
    let rows = statement.query_map([], |row| {
        let id: (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((id, row.get::<_, String>(3)?))
    })?;
    for row in rows {
        let (id, resource) = row?;
        let resource: Value = serde_json::from_str(&resource).map_err(corrupt)?;
        let failed = resource.pointer("/status/errorResult/message").and_then(Value::as_str);
        let failure = failed.map(Failure::query);
        warehouse.jobs().add(Arc::new(Job::new(id, resource, None, failure)))?;
    }
    Ok(())
}
