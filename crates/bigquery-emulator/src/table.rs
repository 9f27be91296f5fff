//! A table: its resource, the schemas that it had, and rows that were accepted and are not yet in the database.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duckdb::arrow::array::RecordBatch;
use serde_json::{Map, Value, json};

use crate::row::Changes;
use crate::schema::{self, Schema, quoted};

/// A table's name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TableId {
    pub(crate) project: String,
    pub(crate) dataset: String,
    pub(crate) table: String,
}

impl std::fmt::Display for TableId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}.{}", self.project, self.dataset, self.table)
    }
}

impl TableId {
    /// As the Storage Write API names it.
    pub(crate) fn path(&self) -> String {
        format!("projects/{}/datasets/{}/tables/{}", self.project, self.dataset, self.table)
    }

    /// Reads `projects/P/datasets/D/tables/T`, and what may follow.
    pub(crate) fn from_path(path: &str) -> Option<(Self, &str)> {
        let mut parts = path.splitn(7, '/');
        let mut after = |word: &str| {
            (parts.next() == Some(word)).then(|| parts.next()).flatten().filter(|name| !name.is_empty())
        };
        let (project, dataset, table) = (after("projects")?, after("datasets")?, after("tables")?);
        let id = Self { project: project.to_owned(), dataset: dataset.to_owned(), table: table.to_owned() };
        Some((id, parts.next().unwrap_or_default()))
    }

    /// The schema that holds it in the database.
    pub(crate) fn schema(&self) -> String {
        physical(&format!("{}.{}", self.project, self.dataset))
    }

    /// Its name in the database.
    pub(crate) fn name(&self) -> String {
        physical(&self.table)
    }

    /// Both, quoted.
    pub(crate) fn quoted(&self) -> String {
        format!("{}.{}", quoted(&self.schema()), quoted(&self.name()))
    }

    /// As the REST API refers to it.
    pub(crate) fn reference(&self) -> Value {
        json!({"projectId": self.project, "datasetId": self.dataset, "tableId": self.table})
    }
}

/// A name that stays apart from others that differ only in case, which DuckDB would take for the same.
pub(crate) fn physical(name: &str) -> String {
    if !name.chars().any(char::is_uppercase) {
        return name.to_owned();
    }
    let cases: String = name.chars().map(|c| if c.is_uppercase() { '1' } else { '0' }).collect();
    format!("{name}~{cases}")
}

/// What a table is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Table,
    View(String),
    MaterializedView(String),
}

/// What was accepted and is not yet in the database.
#[derive(Debug, Clone)]
pub(crate) enum Pending {
    Rows(RecordBatch),
    /// With the time at which they came, in microseconds.
    Changes(i64, Changes),
    /// A statement that belongs to the same transaction: what the emulator keeps about streams.
    Mark(Mark),
}

/// A statement with its parameters.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    pub(crate) sql: &'static str,
    pub(crate) parameters: Vec<duckdb::types::Value>,
}

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) id: TableId,
    state: Mutex<TableState>,
}

/// What of it changes.
#[derive(Debug)]
pub(crate) struct TableState {
    pub(crate) kind: Kind,
    pub(crate) schema: Schema,
    /// Earlier schemas, and since when the present one is there, in microseconds.
    pub(crate) earlier: Vec<Schema>,
    pub(crate) changed: Vec<i64>,
    /// What its resource says beside schema and view.
    pub(crate) resource: Map<String, Value>,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) version: u64,
    pub(crate) pending: Vec<Pending>,
    pub(crate) pending_bytes: usize,
    pub(crate) dropped: bool,
    /// Whether rows came by native change data capture.
    pub(crate) upserted: bool,
    /// Until when changes are applied, in microseconds.
    pub(crate) watermark: Option<i64>,
}

impl Table {
    /// A new one.
    pub(crate) fn new(
        id: TableId,
        kind: Kind,
        schema: Schema,
        resource: Map<String, Value>,
        now: i64,
    ) -> Self {
        let state = TableState {
            kind,
            schema,
            earlier: Vec::new(),
            changed: Vec::new(),
            resource,
            created: now / 1000,
            modified: now / 1000,
            version: 1,
            pending: Vec::new(),
            pending_bytes: 0,
            dropped: false,
            upserted: false,
            watermark: None,
        };
        Self { id, state: Mutex::new(state) }
    }

    /// Its state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableState {
    /// Puts a new schema in place of the present one.
    pub(crate) fn evolve(&mut self, schema: Schema, now: i64) {
        if *schema != *self.schema {
            self.earlier.push(std::mem::replace(&mut self.schema, schema));
            self.changed.push(now);
        }
    }

    /// The schema that the Storage Write API knows at this moment, if it learns of changes this much later.
    pub(crate) fn write_schema(&mut self, now: i64, delay: i64) -> Schema {
        let known = self.changed.iter().take_while(|changed| **changed + delay <= now).count();
        self.changed.drain(..known);
        self.earlier.drain(..known);
        self.earlier.first().unwrap_or(&self.schema).clone()
    }

    /// The columns of its primary key.
    pub(crate) fn key_names(&self) -> Vec<String> {
        let key = self.resource.get("tableConstraints").and_then(|c| c.pointer("/primaryKey/columns"));
        let columns = key.and_then(Value::as_array).into_iter().flatten();
        columns.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Their places in a schema.
    pub(crate) fn keys(&self, columns: &Schema) -> Vec<usize> {
        let names = self.key_names();
        names.iter().filter_map(|name| schema::find(columns, name)).map(|(index, _)| index).collect()
    }

    /// Accepts something.
    pub(crate) fn push(&mut self, pending: Pending) {
        self.pending_bytes += match &pending {
            Pending::Rows(batch) => batch.get_array_memory_size(),
            Pending::Changes(_, changes) => changes.rows.get_array_memory_size(),
            Pending::Mark(_) => 0,
        };
        self.pending.push(pending);
    }
}

/// A table that others hold, too.
pub(crate) type Shared = Arc<Table>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_case_stay_apart() {
        assert_eq!(physical("orders"), "orders");
        let distinct: std::collections::HashSet<_> = ["orders", "Orders", "ORDERS", "orderS"]
            .iter()
            .map(|name| physical(name).to_lowercase())
            .collect();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn paths_are_read() {
        let (id, rest) = TableId::from_path("projects/p/datasets/d/tables/t/streams/s").unwrap();
        assert_eq!((id.to_string().as_str(), rest), ("p:d.t", "streams/s"));
        assert_eq!(TableId::from_path(&id.path()).unwrap(), (id, ""));
        assert!(TableId::from_path("projects/p/datasets//tables/t").is_none());
        assert!(TableId::from_path("projects/p").is_none());
    }
}
