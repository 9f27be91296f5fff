//! Making, changing and dropping datasets and tables, for the REST API and for SQL alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use duckdb::Connection;
use serde_json::{Map, Value};

use crate::engine::OWN;
use crate::evolution;
use crate::failure::{Failure, Reason};
use crate::schema::{self, Column, Type, definitions, quoted};
use crate::table::{Kind, Shared, Table, TableId, physical};
use crate::upsert;
use crate::warehouse::{Dataset, Warehouse};

/// Where a dataset is if nobody says.
pub(crate) const LOCATION: &str = "US";

fn check_id(kind: &str, id: &str, also: &[char]) -> Result<(), Failure> {
    let fine = |c: char| c.is_alphanumeric() || c == '_' || also.contains(&c);
    if id.is_empty() || id.len() > 1024 || !id.chars().all(fine) {
        return Err(Failure::invalid(format!("Invalid {kind} ID \"{id}\"")));
    }
    Ok(())
}

/// Makes a dataset.
pub(crate) fn create_dataset(
    warehouse: &Warehouse,
    connection: &Connection,
    project: &str,
    name: &str,
    location: Option<&str>,
    resource: Map<String, Value>,
) -> Result<(), Failure> {
    check_id("dataset", name, &[])?;
    let id = (project.to_owned(), name.to_owned());
    if warehouse.datasets().contains_key(&id) {
        return Err(Failure::duplicate(format!("Already Exists: Dataset {project}:{name}")));
    }
    let schema = physical(&format!("{project}.{name}"));
    connection.execute_batch(&format!("CREATE SCHEMA IF NOT EXISTS {}", quoted(&schema)))?;
    let now = warehouse.clock.millis();
    let location = location.filter(|l| !l.is_empty()).unwrap_or(LOCATION).to_owned();
    let dataset =
        Dataset { location, resource, created: now, modified: now, version: 1, tables: BTreeMap::new() };
    save_dataset(warehouse, connection, &id, &dataset)?;
    warehouse.datasets().insert(id, dataset);
    Ok(())
}

/// Keeps what a dataset's resource says.
pub(crate) fn save_dataset(
    warehouse: &Warehouse,
    connection: &Connection,
    id: &(String, String),
    dataset: &Dataset,
) -> Result<(), Failure> {
    if warehouse.engine.durable {
        let resource = Value::Object(dataset.resource.clone()).to_string();
        connection.execute(
            &format!("INSERT OR REPLACE INTO {OWN}.datasets VALUES (?, ?, ?, ?, ?, ?)"),
            duckdb::params![id.0, id.1, dataset.location, resource, dataset.created, dataset.modified],
        )?;
    }
    Ok(())
}

/// Drops a dataset, and its tables if that is wanted.
pub(crate) fn drop_dataset(
    warehouse: &Warehouse,
    connection: &Connection,
    project: &str,
    name: &str,
    contents: bool,
) -> Result<(), Failure> {
    let id = (project.to_owned(), name.to_owned());
    let tables: Vec<_> = {
        let datasets = warehouse.datasets();
        let missing = || Failure::not_found(format!("Not found: Dataset {project}:{name}"));
        datasets.get(&id).ok_or_else(missing)?.tables.values().cloned().collect()
    };
    if !tables.is_empty() && !contents {
        let message = format!("Dataset {project}:{name} is still in use");
        return Err(Failure::new(Reason::ResourceInUse, message));
    }
    for table in tables {
        drop_table(warehouse, connection, &table)?;
    }
    let schema = quoted(&physical(&format!("{project}.{name}")));
    connection.execute_batch(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE"))?;
    if warehouse.engine.durable {
        let sql = format!("DELETE FROM {OWN}.datasets WHERE project = ? AND id = ?");
        connection.execute(&sql, duckdb::params![project, name])?;
    }
    warehouse.datasets().remove(&id);
    Ok(())
}

/// Refuses what a table's resource may not say of its columns.
fn check_resource(columns: &[Column], resource: &Map<String, Value>, kind: &Kind) -> Result<(), Failure> {
    schema::check_unique(columns)?;
    let names = |pointer: &str| {
        let (first, rest) = pointer.split_once('/').unwrap_or((pointer, ""));
        let list = resource.get(first).and_then(|value| value.pointer(&format!("/{rest}")));
        list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    };
    let top = |name: &str| {
        let found = schema::find(columns, name).map(|(_, column)| column);
        found.ok_or_else(|| {
            Failure::invalid(format!("Unrecognized name: {name}; it is no column of the table"))
        })
    };
    if *kind != Kind::Table {
        return Ok(());
    }
    let mut keys = 0;
    for name in names("tableConstraints/primaryKey/columns") {
        let column = top(name)?;
        keys += 1;
        let unfit = matches!(
            column.ty,
            Type::Record(_) | Type::Json | Type::Geography | Type::Interval | Type::Float64 | Type::Range(_)
        );
        if unfit || column.mode == schema::Mode::Repeated {
            let ty = column.sql_type();
            return Err(Failure::invalid(format!("Primary key column {name} has the unsupported type {ty}")));
        }
    }
    if keys > 16 {
        return Err(Failure::invalid("A primary key has at most 16 columns"));
    }
    let mut clustering = 0;
    for name in names("clustering/fields") {
        let column = top(name)?;
        clustering += 1;
        let unfit = matches!(
            column.ty,
            Type::Record(_) | Type::Json | Type::Float64 | Type::Bytes | Type::Interval | Type::Time
        );
        if unfit || column.mode == schema::Mode::Repeated {
            let ty = column.sql_type();
            return Err(Failure::invalid(format!(
                "Clustering is not supported on column {name} of type {ty}"
            )));
        }
    }
    if clustering > 4 {
        return Err(Failure::invalid("A table has at most 4 clustering columns"));
    }
    if let Some(name) = resource.get("timePartitioning").and_then(|p| p.get("field")).and_then(Value::as_str)
    {
        let column = top(name)?;
        if !matches!(column.ty, Type::Date | Type::Datetime | Type::Timestamp)
            || column.mode == schema::Mode::Repeated
        {
            return Err(Failure::invalid(format!(
                "The field specified for partitioning can only be DATE, DATETIME or TIMESTAMP, and {name} is {}",
                column.sql_type()
            )));
        }
    }
    Ok(())
}

/// Makes a table or a view.
pub(crate) fn create_table(
    warehouse: &Warehouse,
    connection: &Connection,
    id: &TableId,
    kind: Kind,
    columns: Vec<Column>,
    resource: Map<String, Value>,
) -> Result<Shared, Failure> {
    check_id("table", &id.table, &['-', ' '])?;
    {
        let datasets = warehouse.datasets();
        let dataset = datasets.get(&(id.project.clone(), id.dataset.clone()));
        let dataset = dataset
            .ok_or_else(|| Failure::not_found(format!("Not found: Dataset {}:{}", id.project, id.dataset)))?;
        if dataset.tables.contains_key(&id.table) {
            return Err(Failure::duplicate(format!("Already Exists: Table {id}")));
        }
    }
    check_resource(&columns, &resource, &kind)?;
    if kind == Kind::Table {
        make(connection, id, &columns)?;
    }
    let now = warehouse.clock.micros();
    let table = Arc::new(Table::new(id.clone(), kind, Arc::new(columns), resource, now));
    save_table(warehouse, connection, &table)?;
    let mut datasets = warehouse.datasets();
    if let Some(dataset) = datasets.get_mut(&(id.project.clone(), id.dataset.clone())) {
        dataset.tables.insert(id.table.clone(), table.clone());
    }
    Ok(table)
}

fn make(connection: &Connection, id: &TableId, columns: &[Column]) -> Result<(), Failure> {
    // DuckDB has no tables without columns; BigQuery has, until they are given a schema.
    let definitions =
        if columns.is_empty() { format!("{} BOOLEAN", quoted(EMPTY)) } else { definitions(columns) };
    Ok(connection.execute_batch(&format!("CREATE OR REPLACE TABLE {} ({definitions})", id.quoted()))?)
}

/// The column of a table that has none.
pub(crate) const EMPTY: &str = "__empty";

/// Keeps what a table's resource says.
pub(crate) fn save_table(
    warehouse: &Warehouse,
    connection: &Connection,
    table: &Table,
) -> Result<(), Failure> {
    if !warehouse.engine.durable {
        return Ok(());
    }
    let state = table.lock();
    let (kind, query) = match &state.kind {
        Kind::Table => (0, ""),
        Kind::View(query) => (1, query.as_str()),
        Kind::MaterializedView(query) => (2, query.as_str()),
    };
    let columns = schema::to_json(&state.schema).to_string();
    let resource = Value::Object(state.resource.clone()).to_string();
    let TableId { project, dataset, table } = &table.id;
    connection.execute(
        &format!("INSERT OR REPLACE INTO {OWN}.tables VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"),
        duckdb::params![
            project,
            dataset,
            table,
            kind,
            query,
            columns,
            resource,
            state.created,
            state.modified
        ],
    )?;
    Ok(())
}

/// Changes a table's columns and what else its resource says.
pub(crate) fn change_table(
    warehouse: &Warehouse,
    connection: &Connection,
    table: &Shared,
    columns: Vec<Column>,
    resource: Map<String, Value>,
) -> Result<(), Failure> {
    // What was accepted under the present columns goes in before they change.
    warehouse.land(connection, table)?;
    let (kind, present) = {
        let state = table.lock();
        (state.kind.clone(), state.schema.clone())
    };
    check_resource(&columns, &resource, &kind)?;
    if kind == Kind::Table && *present != columns {
        if present.is_empty() {
            make(connection, &table.id, &columns)?;
        } else {
            evolution::alter(connection, &table.id, &present, &columns)?;
        }
    }
    let now = warehouse.clock.micros();
    {
        let mut state = table.lock();
        state.evolve(Arc::new(columns), now);
        state.resource = resource;
        state.modified = now / 1000;
        state.version += 1;
    }
    save_table(warehouse, connection, table)
}

/// Drops a table.
pub(crate) fn drop_table(
    warehouse: &Warehouse,
    connection: &Connection,
    table: &Shared,
) -> Result<(), Failure> {
    let id = &table.id;
    let kind = {
        let mut state = table.lock();
        state.dropped = true;
        state.pending.clear();
        state.kind.clone()
    };
    if kind == Kind::Table {
        connection.execute_batch(&format!("DROP TABLE IF EXISTS {}", id.quoted()))?;
        upsert::forget(connection, id)?;
    }
    if warehouse.engine.durable {
        let TableId { project, dataset, table } = id;
        for (sql, columns) in [
            ("tables", "project = ? AND dataset = ? AND id = ?"),
            ("streams", "project = ? AND dataset = ? AND id = ?"),
        ] {
            let sql = format!("DELETE FROM {OWN}.{sql} WHERE {columns}");
            connection.execute(&sql, duckdb::params![project, dataset, table])?;
        }
        let sql = format!("DELETE FROM {OWN}.appends WHERE starts_with(stream, ?)");
        connection.execute(&sql, duckdb::params![format!("{}/", id.path())])?;
    }
    warehouse.drop_streams(id);
    if let Some(dataset) = warehouse.datasets().get_mut(&(id.project.clone(), id.dataset.clone())) {
        dataset.tables.remove(&id.table);
    }
    Ok(())
}
