//! Which table an event belongs to and what its columns are.

use std::fmt;
use std::sync::Arc;

use crate::value::Type;

/// A table's identity: what the source calls it, never the topic (topics of distinct tables collide).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// `source.db`.
    pub db: Box<str>,
    /// `source.schema`; empty where the database has none (MySQL).
    pub schema: Box<str>,
    /// `source.table`.
    pub table: Box<str>,
}

impl TableName {
    /// A name from its parts.
    pub fn new(db: &str, schema: &str, table: &str) -> Self {
        Self { db: db.into(), schema: schema.into(), table: table.into() }
    }

    /// The name that config and `__source_table` use: `schema.table`, or `db.table` where there is no schema.
    pub fn qualified(&self) -> String {
        let owner = if self.schema.is_empty() { &self.db } else { &self.schema };
        if owner.is_empty() { self.table.to_string() } else { format!("{owner}.{}", self.table) }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified())
    }
}

/// A column as one event's schema gives it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Column {
    /// The name, exactly as the source spells it.
    pub name: Box<str>,
    /// Its type.
    pub ty: Type,
    /// Whether NULL is allowed by the source; warehouses keep all columns nullable.
    pub nullable: bool,
    /// Whether the type was inferred from values; `check` reports these.
    pub guessed: bool,
}

/// The shape of the rows of one table at one time: columns in the source's order, and which of them are the key.
///
/// A decoder shares one `Arc` among all events of a shape, so comparing pointers tells "same shape" cheaply; equal
/// shapes may still come as different `Arc`s (from different decode workers).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowSchema {
    /// The table.
    pub table: Arc<TableName>,
    /// Columns in source order; names are unique.
    pub columns: Vec<Column>,
    /// Indexes into `columns` of the key, in the key's own order; empty for keyless tables.
    pub key: Vec<usize>,
}

impl RowSchema {
    /// The index of the column called `name`.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|c| &*c.name == name)
    }

    /// Names of the key columns, in the key's order.
    pub fn key_names(&self) -> impl Iterator<Item = &str> {
        self.key.iter().map(|&i| &*self.columns[i].name)
    }
}
