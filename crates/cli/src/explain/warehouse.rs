//! What a DuckDB sink holds of a key, by SQL on its file and its metadata tables.

use millstream_core::{Error, Key, Result, RowBuilder, Type, Value};
use millstream_duckdb::{Answer, ListedColumn, ListedTable, literal, qualify, query, quote, tables};
use serde_json::Value as Json;

use super::{History, KeyEvent, Replica, Rule};
use crate::config::Layout;
use crate::plan::DuckdbPlan;
use crate::registry;

/// A sink's tables.
pub(super) struct Warehouse<'a> {
    sink: &'a str,
    plan: &'a DuckdbPlan,
    tables: Vec<ListedTable>,
}

impl<'a> Warehouse<'a> {
    /// Reads which tables the sink holds; none, if its file is not there yet.
    pub(super) fn open(sink: &'a str, plan: &'a DuckdbPlan) -> Result<Self> {
        let tables = tables(&registry::duckdb_config(sink, plan))?;
        Ok(Self { sink, plan, tables })
    }

    /// Names (`schema.table`) of its tables that have a key.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.tables.iter().filter(|t| !t.key.is_empty()).map(|t| t.source.qualified())
    }

    /// The table that the source calls `qualified`, if it has a key.
    pub(super) fn table(&self, qualified: &str) -> Option<&ListedTable> {
        self.tables.iter().find(|t| t.source.qualified() == qualified && !t.key.is_empty())
    }

    /// The key's canonical form, by the types that the warehouse knows.
    pub(super) fn canonical_key(&self, qualified: &str, key: &[(String, String)]) -> Result<Option<Key>> {
        let Some(table) = self.table(qualified) else { return Ok(None) };
        let mut expressions = Vec::new();
        for (column, value) in key {
            let Some(known) = table.columns.iter().rfind(|c| c.source == *column) else { return Ok(None) };
            let value = literal(value);
            expressions.push(match known.ty {
                Type::Date => format!("date_diff('day', DATE '1970-01-01', CAST({value} AS DATE))::VARCHAR"),
                Type::DateTime => format!("epoch_us(CAST({value} AS TIMESTAMP))::VARCHAR"),
                Type::Timestamp => format!("epoch_us(CAST({value} AS TIMESTAMPTZ))::VARCHAR"),
                Type::Time => format!("epoch_us(CAST({value} AS TIME))::VARCHAR"),
                _ => value,
            });
        }
        let answer = self.ask(&format!("SELECT {}", expressions.join(", ")))?;
        let mut values = RowBuilder::new();
        for (index, (column, _)) in key.iter().enumerate() {
            let ty = table.columns.iter().rfind(|c| c.source == *column).map_or(&Type::Text, |c| &c.ty);
            let text = text(&answer, 0, index);
            let value = match ty {
                Type::Bool => text.parse().ok().map(Value::Bool),
                Type::Int64 => text.parse().ok().map(Value::Int),
                Type::Date => text.parse().ok().map(Value::Date),
                Type::DateTime => text.parse().ok().map(Value::DateTime),
                Type::Timestamp => text.parse().ok().map(Value::Timestamp),
                Type::Time => text.parse().ok().map(Value::Time),
                Type::Float64 => text.parse().ok().map(Value::Float),
                Type::Numeric | Type::Decimal { .. } => is_number(text).then_some(Value::Digits(text)),
                Type::Bytes => return Ok(None),
                _ => Some(Value::Text(text)),
            };
            values.push(value.ok_or_else(|| {
                Error::fatal(format!("the value of `{column}` is not of its type, {ty:?}"))
            })?);
        }
        Ok(Some(Key::from_values(values.finish().iter())))
    }

    /// The events of a key, if the sink is a history that knows the table. Their rules are still to be decided.
    pub(super) fn history(&self, qualified: &str, key: &[(String, String)]) -> Result<Option<History>> {
        let Some(table) = self.table(qualified) else { return Ok(None) };
        let from = qualify(&self.plan.dataset, &table.name);
        let sql = match self.plan.layout {
            // Plain rows tell nothing of their events.
            Layout::Replica | Layout::Rows => return Ok(None),
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

/// The source's columns as one JSON object; where a column's type changed, those that it became by their own names.
fn row_json(columns: &[ListedColumn]) -> String {
    let several = |c: &&ListedColumn| columns.iter().filter(|other| other.source == c.source).count() > 1;
    let name = |c: &ListedColumn| if several(&c) { quote(&c.name) } else { quote(&c.source) };
    let members: Vec<String> = columns.iter().map(|c| format!("{} := {}", name(c), quote(&c.name))).collect();
    format!("to_json(struct_pack({}))", members.join(", "))
}

/// Whether a row has this key. Of a column whose type changed the text counts, as in the latest view.
fn condition(table: &ListedTable, key: &[(String, String)], prefix: Option<&str>) -> String {
    let prefix = prefix.map(|p| format!("{}.", quote(p))).unwrap_or_default();
    let part = |(column, value): &(String, String)| {
        let value = literal(value);
        let names = table.columns.iter().filter(|c| c.source == *column);
        let names: Vec<String> = names.map(|c| format!("{prefix}{}", quote(&c.name))).collect();
        match &names[..] {
            [] => format!("{prefix}{} = {value}", quote(column)),
            [name] => format!("{name} = {value}"),
            several => {
                let texts: Vec<_> = several.iter().map(|name| format!("CAST({name} AS VARCHAR)")).collect();
                format!("COALESCE({}) = {value}", texts.join(", "))
            }
        }
    };
    format!("({})", key.iter().map(part).collect::<Vec<_>>().join(" AND "))
}
