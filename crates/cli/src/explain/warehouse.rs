//! What a DuckDB sink holds of a key, by SQL on its file and its metadata tables.

use millstream_core::{Error, Key, Result, RowBuilder, TableName, Value};
use millstream_duckdb::{Answer, query};
use serde_json::Value as Json;

use super::{History, KeyEvent, Replica, Rule};
use crate::config::Layout;
use crate::plan::DuckdbPlan;
use crate::sql::{literal, qualify, quote};

/// A sink's tables.
pub(super) struct Warehouse<'a> {
    sink: &'a str,
    plan: &'a DuckdbPlan,
    tables: Vec<KnownTable>,
}

/// A source table that a sink holds.
pub(super) struct KnownTable {
    pub(super) source: TableName,
    /// Names of the key's source columns.
    pub(super) key: Vec<String>,
    /// The table's name in the dataset.
    name: String,
    /// All columns, in the table's order.
    columns: Vec<KnownColumn>,
}

struct KnownColumn {
    /// What the source calls it.
    source: String,
    /// What the warehouse calls it.
    name: String,
    /// Its logical type's name.
    ty: String,
}

impl<'a> Warehouse<'a> {
    /// Reads which tables the sink holds; none, if its file is not there yet.
    pub(super) fn open(sink: &'a str, plan: &'a DuckdbPlan) -> Result<Self> {
        let mut warehouse = Self { sink, plan, tables: Vec::new() };
        if !plan.path.exists() {
            return Ok(warehouse);
        }
        let metadata = format!(
            "SELECT count(*) FROM duckdb_tables() WHERE schema_name = {} AND table_name = '_millstream_tables'",
            literal(&plan.dataset)
        );
        if text(&warehouse.ask(&metadata)?, 0, 0) == "0" {
            return Ok(warehouse);
        }
        let tables = warehouse.ask(&format!(
            "SELECT db, \"schema\", \"table\", name, key FROM {} WHERE sink = {} ORDER BY name",
            qualify(&plan.dataset, "_millstream_tables"),
            literal(sink)
        ))?;
        let columns = warehouse.ask(&format!(
            "SELECT name, source, \"column\", type FROM {} WHERE sink = {} ORDER BY name, position",
            qualify(&plan.dataset, "_millstream_columns"),
            literal(sink)
        ))?;
        for row in 0..tables.rows.len() {
            let name = text(&tables, row, 3).to_owned();
            let own =
                (0..columns.rows.len()).filter(|&c| text(&columns, c, 0) == name).map(|c| KnownColumn {
                    source: text(&columns, c, 1).to_owned(),
                    name: text(&columns, c, 2).to_owned(),
                    ty: text(&columns, c, 3).to_owned(),
                });
            warehouse.tables.push(KnownTable {
                source: TableName::new(text(&tables, row, 0), text(&tables, row, 1), text(&tables, row, 2)),
                key: serde_json::from_str(text(&tables, row, 4)).unwrap_or_default(),
                columns: own.collect(),
                name,
            });
        }
        Ok(warehouse)
    }

    /// Names (`schema.table`) of its tables that have a key.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.tables.iter().filter(|t| !t.key.is_empty()).map(|t| t.source.qualified())
    }

    /// The table that the source calls `qualified`, if it has a key.
    pub(super) fn table(&self, qualified: &str) -> Option<&KnownTable> {
        self.tables.iter().find(|t| t.source.qualified() == qualified && !t.key.is_empty())
    }

    /// The key's canonical form, by the types that the warehouse knows.
    pub(super) fn canonical_key(&self, qualified: &str, key: &[(String, String)]) -> Result<Option<Key>> {
        let Some(table) = self.table(qualified) else { return Ok(None) };
        let mut expressions = Vec::new();
        for (column, value) in key {
            let Some(known) = table.columns.iter().find(|c| c.source == *column) else { return Ok(None) };
            let value = literal(value);
            expressions.push(match &*known.ty {
                "date" => format!("date_diff('day', DATE '1970-01-01', CAST({value} AS DATE))::VARCHAR"),
                "datetime" => format!("epoch_us(CAST({value} AS TIMESTAMP))::VARCHAR"),
                "timestamp" => format!("epoch_us(CAST({value} AS TIMESTAMPTZ))::VARCHAR"),
                "time" => format!("epoch_us(CAST({value} AS TIME))::VARCHAR"),
                _ => value,
            });
        }
        let answer = self.ask(&format!("SELECT {}", expressions.join(", ")))?;
        let mut values = RowBuilder::new();
        for (index, (column, _)) in key.iter().enumerate() {
            let ty = table.columns.iter().find(|c| c.source == *column).map_or("", |c| &*c.ty);
            let text = text(&answer, 0, index);
            let value = match ty {
                "bool" => text.parse().ok().map(Value::Bool),
                "int64" => text.parse().ok().map(Value::Int),
                "date" => text.parse().ok().map(Value::Date),
                "datetime" => text.parse().ok().map(Value::DateTime),
                "timestamp" => text.parse().ok().map(Value::Timestamp),
                "time" => text.parse().ok().map(Value::Time),
                "float64" => text.parse().ok().map(Value::Float),
                "numeric" => is_number(text).then_some(Value::Digits(text)),
                ty if ty.starts_with("decimal") => is_number(text).then_some(Value::Digits(text)),
                "bytes" => return Ok(None),
                _ => Some(Value::Text(text)),
            };
            values.push(
                value.ok_or_else(|| {
                    Error::fatal(format!("the value of `{column}` is not of its type, {ty}"))
                })?,
            );
        }
        Ok(Some(Key::from_values(values.finish().iter())))
    }

    /// The events of a key, if the sink is a history that knows the table. Their rules are still to be decided.
    pub(super) fn history(&self, qualified: &str, key: &[(String, String)]) -> Result<Option<History>> {
        let Some(table) = self.table(qualified) else { return Ok(None) };
        let from = qualify(&self.plan.dataset, &table.name);
        let sql = match self.plan.layout {
            Layout::Replica => return Ok(None),
            Layout::Append => format!(
                "SELECT __order, __op, __source_ts_ms, strftime(__ingested_at, '%Y-%m-%dT%H:%M:%S.%fZ'), \
                 to_json(__unchanged), {} FROM {from} WHERE {} ORDER BY __order, __ingested_at",
                row_json(&table.columns),
                condition(table, key, None)
            ),
            Layout::Changelog => format!(
                "SELECT _metadata_order, op, ts_ms, strftime(_metadata_read_timestamp, '%Y-%m-%dT%H:%M:%S.%fZ'), \
                 NULL, to_json(coalesce(\"after\", \"before\")) FROM {from} WHERE {} OR {} \
                 ORDER BY _metadata_order, _metadata_read_timestamp",
                condition(table, key, Some("after")),
                condition(table, key, Some("before"))
            ),
        };
        let answer = self.ask(&sql)?;
        let events = (0..answer.rows.len()).map(|row| KeyEvent {
            order: text(&answer, row, 0).to_owned(),
            op: text(&answer, row, 1).to_owned(),
            source_ts_ms: text(&answer, row, 2).parse().ok(),
            ingested_at: text(&answer, row, 3).to_owned(),
            unchanged: serde_json::from_str(text(&answer, row, 4)).unwrap_or_default(),
            row: serde_json::from_str(text(&answer, row, 5)).unwrap_or(Json::Null),
            rule: Rule::Newest,
        });
        Ok(Some(History { sink: self.sink.to_owned(), table: table.name.clone(), events: events.collect() }))
    }

    /// The replica's row of a key, if the sink is a replica that knows the table.
    pub(super) fn replica(&self, qualified: &str, key: &[(String, String)]) -> Result<Option<Replica>> {
        let Some(table) = self.table(qualified).filter(|_| self.plan.layout == Layout::Replica) else {
            return Ok(None);
        };
        let from = qualify(&self.plan.dataset, &table.name);
        let sql = format!("SELECT to_json(r) FROM {from} AS r WHERE {}", condition(table, key, None));
        let answer = self.ask(&sql)?;
        let row = (!answer.rows.is_empty())
            .then(|| serde_json::from_str(text(&answer, 0, 0)).unwrap_or(Json::Null));
        Ok(Some(Replica { sink: self.sink.to_owned(), table: table.name.clone(), row }))
    }

    fn ask(&self, sql: &str) -> Result<Answer> {
        query(&self.plan.path, sql, true).map_err(|e| e.at(format!("sink {}", self.sink)))
    }
}

fn text(answer: &Answer, row: usize, column: usize) -> &str {
    answer.rows.get(row).and_then(|row| row.get(column)).and_then(Option::as_deref).unwrap_or_default()
}

fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && digits.matches('.').count() <= 1
}

/// The source's columns as one JSON object.
fn row_json(columns: &[KnownColumn]) -> String {
    let members: Vec<String> =
        columns.iter().map(|c| format!("{} := {}", quote(&c.source), quote(&c.name))).collect();
    format!("to_json(struct_pack({}))", members.join(", "))
}

/// Whether a row has this key.
fn condition(table: &KnownTable, key: &[(String, String)], prefix: Option<&str>) -> String {
    let prefix = prefix.map(|p| format!("{}.", quote(p))).unwrap_or_default();
    let parts: Vec<String> = key
        .iter()
        .map(|(column, value)| {
            let name = table.columns.iter().find(|c| c.source == *column).map_or(&**column, |c| &*c.name);
            format!("{prefix}{} = {}", quote(name), literal(value))
        })
        .collect();
    format!("({})", parts.join(" AND "))
}
