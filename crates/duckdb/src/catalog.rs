//! The sink's own tables in a dataset, which make names, columns and epochs survive restarts:
//!
//! - `_millstream_tables`: which source table of which sink is which table here. Only tables in it are ever altered,
//!   emptied or rolled back.
//! - `_millstream_columns`: which source column is which column, and its logical type.
//! - `_millstream_epochs`: the last epoch of each sink, written in that epoch's transaction.
//! - `_schema_changes`: every column added or altered, for people.

use std::collections::{HashMap, HashSet};

use duckdb::{Connection, OptionalExt, params};
use millstream_core::{Error, Result, TableName};
use millstream_layout::keyed::StoredKey;
use millstream_layout::names::fold;
use millstream_layout::shape::{Shape, TargetColumn};
use millstream_layout::table::StoredTable;
use millstream_layout::type_text::{decode, encode};

use crate::config::DuckConfig;
use crate::error::Explain;
use crate::ident::{literal, qualify};

/// One sink's view of a dataset's metadata.
#[derive(Debug, Clone)]
pub(crate) struct Catalog {
    pub(crate) dataset: String,
    pub(crate) sink: String,
    pub(crate) pipeline: String,
}

/// The last epoch that a sink committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) epoch: u64,
    pub(crate) ingested_at_us: i64,
}

/// A row of `_schema_changes`.
pub(crate) struct SchemaChange<'a> {
    pub(crate) table: &'a str,
    pub(crate) column: &'a str,
    pub(crate) change: &'static str,
    pub(crate) from: Option<String>,
    pub(crate) to: String,
}

impl Catalog {
    pub(crate) fn of(config: &DuckConfig) -> Self {
        Self { dataset: config.dataset.clone(), sink: config.name.clone(), pipeline: config.pipeline.clone() }
    }

    fn table(&self, name: &str) -> String {
        qualify(&self.dataset, name)
    }

    /// Creates the metadata tables if they are missing.
    pub(crate) fn create(&self, connection: &Connection) -> Result<()> {
        let (tables, columns) = (self.table("_millstream_tables"), self.table("_millstream_columns"));
        let (epochs, changes) = (self.table("_millstream_epochs"), self.table("_schema_changes"));
        connection
            .execute_batch(&format!(
                "CREATE TABLE IF NOT EXISTS {tables} (sink VARCHAR, layout VARCHAR, db VARCHAR, \"schema\" VARCHAR, \
                 \"table\" VARCHAR, name VARCHAR, view VARCHAR, keys VARCHAR, initial BIGINT, truncated VARCHAR);
                 CREATE TABLE IF NOT EXISTS {columns} (sink VARCHAR, name VARCHAR, position BIGINT, source VARCHAR, \
                 \"column\" VARCHAR, type VARCHAR, guessed BOOLEAN, unchanged BOOLEAN);
                 CREATE TABLE IF NOT EXISTS {epochs} (sink VARCHAR, epoch BIGINT, ingested_at_us BIGINT, pipeline VARCHAR);
                 CREATE TABLE IF NOT EXISTS {changes} (\"at\" TIMESTAMPTZ, sink VARCHAR, \"table\" VARCHAR, \
                 \"column\" VARCHAR, change VARCHAR, \"from\" VARCHAR, \"to\" VARCHAR, epoch BIGINT);"
            ))
            .explain(|| format!("creating the metadata tables in {}", self.dataset))
    }

    /// Whether the dataset has metadata tables.
    pub(crate) fn exists(&self, connection: &Connection) -> Result<bool> {
        let sql = "SELECT count(*) > 0 FROM duckdb_tables() WHERE schema_name = ? AND table_name = '_millstream_tables'";
        connection
            .query_row(sql, [&self.dataset], |row| row.get(0))
            .explain(|| format!("looking for the metadata tables in {}", self.dataset))
    }

    /// Refuses to go on without a table that was written before.
    pub(crate) fn check(&self, connection: &Connection) -> Result<()> {
        let sql = format!(
            "SELECT name FROM {} WHERE sink = ? AND NOT EXISTS (SELECT 1 FROM duckdb_tables() AS t WHERE t.database_name = current_database() \
             AND t.schema_name = ? AND t.table_name = name) ORDER BY name LIMIT 1",
            self.table("_millstream_tables")
        );
        let doing = || format!("looking for the tables of sink {} in {}", self.sink, self.dataset);
        let mut statement = connection.prepare(&sql).explain(doing)?;
        let mut rows = statement.query([&self.sink, &self.dataset]).explain(doing)?;
        let Some(row) = rows.next().explain(doing)? else { return Ok(()) };
        let name: String = row.get(0).explain(doing)?;
        Err(Error::fatal(format!(
            "{} is gone: the pipeline wrote to it, and it was dropped or renamed. Made anew it would hold new rows only. Rename it back, or \
             take a copy of the file from before; or delete its rows in _millstream_tables and _millstream_columns, and its view, to have it \
             made anew all the same",
            self.table(&name)
        )))
    }

    /// All tables of this sink.
    pub(crate) fn load(&self, connection: &Connection) -> Result<Vec<StoredTable>> {
        let doing = || format!("reading the metadata of sink {} in {}", self.sink, self.dataset);
        let sql = format!(
            "SELECT db, \"schema\", \"table\", layout, name, view, keys, initial, truncated FROM {} WHERE sink = ? ORDER BY name",
            self.table("_millstream_tables")
        );
        let mut statement = connection.prepare(&sql).explain(doing)?;
        let rows = statement
            .query_map([&self.sink], |row| {
                let text = |i| row.get::<_, String>(i);
                Ok((
                    StoredTable {
                        source: TableName::new(&text(0)?, &text(1)?, &text(2)?),
                        layout: text(3)?,
                        name: text(4)?,
                        view: row.get(5)?,
                        keys: Vec::new(),
                        initial: row.get::<_, i64>(7)? as usize,
                        truncated: row.get(8)?,
                        shape: Shape::default(),
                    },
                    text(6)?,
                ))
            })
            .and_then(Iterator::collect::<duckdb::Result<Vec<_>>>)
            .explain(doing)?;
        let mut shapes = self.load_shapes(connection, "")?;
        let mut tables = Vec::new();
        for (mut table, keys) in rows {
            let keys: Vec<_> =
                serde_json::from_str(&keys).map_err(|e| self.damaged(&table.name).with_source(e))?;
            let keys = keys.iter().map(StoredKey::decode).collect::<Option<Vec<_>>>();
            table.keys = keys.filter(|keys| !keys.is_empty()).ok_or_else(|| self.damaged(&table.name))?;
            table.shape = shapes.remove(&table.name).unwrap_or_default();
            tables.push(table);
        }
        Ok(tables)
    }

    fn damaged(&self, table: &str) -> Error {
        Error::fatal(format!(
            "the metadata of table {table} in schema {} are not readable; they were changed by hand or by a newer version",
            self.dataset
        ))
    }

    /// The columns written down under a table's name.
    pub(crate) fn load_columns(&self, connection: &Connection, table: &str) -> Result<Shape> {
        let mut shapes = self.load_shapes(connection, &format!("AND name = {}", literal(table)))?;
        Ok(shapes.remove(table).unwrap_or_default())
    }

    /// The columns by the name under which they are written down; `which` is a further condition.
    fn load_shapes(&self, connection: &Connection, which: &str) -> Result<HashMap<String, Shape>> {
        let doing = || format!("reading the columns of sink {} in {}", self.sink, self.dataset);
        let sql = format!(
            "SELECT name, source, \"column\", type, guessed, unchanged FROM {} WHERE sink = ? {which} ORDER BY name, position",
            self.table("_millstream_columns")
        );
        let mut statement = connection.prepare(&sql).explain(doing)?;
        let mut rows = statement.query([&self.sink]).explain(doing)?;
        let mut shapes: HashMap<String, Shape> = HashMap::new();
        while let Some(row) = rows.next().explain(doing)? {
            let text = |i| row.get::<_, String>(i).explain(doing);
            let flag = |i| row.get::<_, bool>(i).explain(doing);
            let table = text(0)?;
            let ty = decode(&text(3)?).ok_or_else(|| self.damaged(&table))?;
            let (guessed, unchanged) = (flag(4)?, flag(5)?);
            let column = TargetColumn { source: text(1)?.into(), name: text(2)?, ty, guessed, unchanged };
            shapes.entry(table).or_default().columns.push(column);
        }
        Ok(shapes)
    }

    /// Case-folded names that are taken in the dataset: by registered tables of all sinks, and by tables and views that
    /// Millstream did not make. To list them costs more the more there are.
    pub(crate) fn taken(&self, connection: &Connection) -> Result<HashSet<String>> {
        let doing = || format!("listing the tables of {}", self.dataset);
        let sql = format!(
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = ?1 AND database_name = current_database() \
             UNION ALL SELECT view_name FROM duckdb_views() WHERE schema_name = ?1 AND database_name = current_database() \
             UNION ALL SELECT name FROM {0} UNION ALL SELECT view FROM {0} WHERE view IS NOT NULL",
            self.table("_millstream_tables")
        );
        let mut statement = connection.prepare(&sql).explain(doing)?;
        let names = statement
            .query_map([&self.dataset], |row| row.get::<_, String>(0))
            .and_then(Iterator::collect::<duckdb::Result<Vec<_>>>)
            .explain(doing)?;
        Ok(names.iter().map(|name| fold(name)).collect())
    }

    /// Writes a new table down.
    pub(crate) fn register(&self, connection: &Connection, table: &StoredTable) -> Result<()> {
        connection
            .execute(
                &format!(
                    "INSERT INTO {} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    self.table("_millstream_tables")
                ),
                params![
                    self.sink,
                    table.layout,
                    &*table.source.db,
                    &*table.source.schema,
                    &*table.source.table,
                    table.name,
                    table.view,
                    keys_json(&table.keys),
                    table.initial as i64,
                    table.truncated
                ],
            )
            .map(drop)
            .explain(|| format!("registering table {}", table.name))
    }

    /// Updates the keys and truncate order of a table.
    pub(crate) fn update(&self, connection: &Connection, table: &StoredTable) -> Result<()> {
        connection
            .execute(
                &format!(
                    "UPDATE {} SET keys = ?, truncated = ? WHERE sink = ? AND name = ?",
                    self.table("_millstream_tables")
                ),
                params![keys_json(&table.keys), table.truncated, self.sink, table.name],
            )
            .map(drop)
            .explain(|| format!("updating the metadata of table {}", table.name))
    }

    /// Writes a column down, in place of what was known of it.
    pub(crate) fn put_column(
        &self,
        connection: &Connection,
        table: &str,
        position: usize,
        column: &TargetColumn,
    ) -> Result<()> {
        let columns = self.table("_millstream_columns");
        let doing = || format!("registering column {} of {table}", column.name);
        connection
            .execute(
                &format!("DELETE FROM {columns} WHERE sink = ? AND name = ? AND position = ?"),
                params![self.sink, table, position as i64],
            )
            .explain(doing)?;
        connection
            .execute(
                &format!("INSERT INTO {columns} VALUES (?, ?, ?, ?, ?, ?, ?, ?)"),
                params![
                    self.sink,
                    table,
                    position as i64,
                    &*column.source,
                    column.name,
                    encode(&column.ty),
                    column.guessed,
                    column.unchanged
                ],
            )
            .map(drop)
            .explain(doing)
    }

    /// Writes all columns of a shape down, in place of what was known of them.
    pub(crate) fn put_columns(&self, connection: &Connection, table: &str, shape: &Shape) -> Result<()> {
        let columns = self.table("_millstream_columns");
        let (sink, name) = (literal(&self.sink), literal(table));
        let mut sql = format!("DELETE FROM {columns} WHERE sink = {sink} AND name = {name};");
        for (i, column) in shape.columns.iter().enumerate() {
            let (source, column_name) = (literal(&column.source), literal(&column.name));
            let (ty, guessed, unchanged) = (literal(&encode(&column.ty)), column.guessed, column.unchanged);
            sql += if i == 0 { "INSERT INTO " } else { ", " };
            if i == 0 {
                sql += &format!("{columns} VALUES ");
            }
            sql += &format!("({sink}, {name}, {i}, {source}, {column_name}, {ty}, {guessed}, {unchanged})");
        }
        connection.execute_batch(&sql).explain(|| format!("registering the columns of {table}"))
    }

    /// Writes a schema change down.
    pub(crate) fn log_change(
        &self,
        connection: &Connection,
        mark: Mark,
        change: &SchemaChange<'_>,
    ) -> Result<()> {
        connection
            .execute(
                &format!(
                    "INSERT INTO {} VALUES (make_timestamp(?), ?, ?, ?, ?, ?, ?, ?)",
                    self.table("_schema_changes")
                ),
                params![
                    mark.ingested_at_us,
                    self.sink,
                    change.table,
                    change.column,
                    change.change,
                    change.from,
                    change.to,
                    mark.epoch as i64
                ],
            )
            .map(drop)
            .explain(|| "logging a schema change".to_owned())
    }

    /// The last epoch of this sink in the file.
    pub(crate) fn mark(&self, connection: &Connection) -> Result<Option<Mark>> {
        let sql = format!(
            "SELECT epoch, ingested_at_us FROM {} WHERE sink = ? ORDER BY ingested_at_us DESC LIMIT 1",
            self.table("_millstream_epochs")
        );
        let mark = connection
            .query_row(&sql, [&self.sink], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))
            .optional()
            .explain(|| format!("reading the last epoch of sink {}", self.sink))?;
        Ok(mark.map(|(epoch, ingested_at_us)| Mark { epoch: epoch as u64, ingested_at_us }))
    }

    /// The pipeline that wrote this sink's last epoch.
    pub(crate) fn pipeline(&self, connection: &Connection) -> Result<Option<String>> {
        let sql = format!("SELECT pipeline FROM {} WHERE sink = ?", self.table("_millstream_epochs"));
        (connection.query_row(&sql, [&self.sink], |row| row.get(0)).optional())
            .explain(|| format!("reading whose sink {} is", self.sink))
    }

    /// Sets the last epoch of this sink.
    pub(crate) fn set_mark(&self, connection: &Connection, mark: Option<Mark>) -> Result<()> {
        let epochs = self.table("_millstream_epochs");
        let sink = literal(&self.sink);
        let mut sql = format!("DELETE FROM {epochs} WHERE sink = {sink};");
        if let Some(mark) = mark {
            sql += &format!(
                "INSERT INTO {epochs} VALUES ({sink}, {}, {}, {});",
                mark.epoch,
                mark.ingested_at_us,
                literal(&self.pipeline)
            );
        }
        connection.execute_batch(&sql).explain(|| format!("writing the epoch of sink {}", self.sink))
    }
}

fn keys_json(keys: &[StoredKey]) -> String {
    serde_json::Value::Array(keys.iter().map(StoredKey::encode).collect()).to_string()
}
