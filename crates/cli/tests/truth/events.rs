//! The events of a file as this test reads them: by itself, simply, and independent of Millstream's decoders.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value as Json;

/// What identifies an event among those of its table and key, as text.
pub(crate) type Id = String;

/// An event of a row, or a truncate.
#[derive(Debug, Clone)]
pub(crate) struct RawEvent {
    /// `schema.table`, or `db.table`.
    pub(crate) table: String,
    /// The record's key, without its schema.
    pub(crate) key: Json,
    pub(crate) op: char,
    pub(crate) id: Id,
    /// `after`, or a flattened event's fields; `before` for a delete.
    pub(crate) row: Json,
}

/// Reads a line. `None` for what is no event of a row: tombstones, heartbeats, transactions, messages, schema changes.
pub(crate) fn read(line: &str, flat: bool, mysql: bool) -> Option<RawEvent> {
    let record: Json = serde_json::from_str(line).unwrap();
    let key = record["key"].as_str().map(unwrapped).unwrap_or(Json::Null);
    let value = unwrapped(record["value"].as_str()?);
    if flat {
        return read_flat(&record, key, value);
    }
    let op = value["op"].as_str()?.chars().next()?;
    let source = &value["source"];
    if op == 'm' {
        return None;
    }
    let schema = source["schema"].as_str().or(source["db"].as_str())?;
    let read = if op == 'r' { "read" } else { "change" };
    let id = if mysql {
        format!("{}:{}:{} {read}", source["file"].as_str()?, source["pos"], source["row"])
    } else {
        let sequence: Json = serde_json::from_str(source["sequence"].as_str()?).unwrap();
        let lsn = source["lsn"].as_u64().or_else(|| sequence[1].as_str()?.parse().ok())?;
        format!("{lsn} {read}")
    };
    let row = if op == 'd' { value["before"].clone() } else { value["after"].clone() };
    Some(RawEvent { table: format!("{schema}.{}", source["table"].as_str()?), key, op, id, row })
}

fn read_flat(record: &Json, key: Json, value: Json) -> Option<RawEvent> {
    let header = |name: &str| {
        let headers = record["headers"].as_array()?;
        let text = headers.iter().find(|h| h["key"] == name)?["value"].as_str()?;
        Some(unwrapped(text))
    };
    let fact = |name: &str| value.get(name).cloned().or_else(|| header(name));
    let topic = record["topic"].as_str()?;
    let op = fact("__op")?.as_str()?.chars().next()?;
    let lsn = fact("__lsn")?.as_u64()?;
    let read = if op == 'r' { "read" } else { "change" };
    Some(RawEvent {
        table: topic.split_once('.')?.1.to_owned(),
        key,
        op,
        id: format!("{lsn} {read}"),
        row: value,
    })
}

/// A JSON text without the schema around it.
fn unwrapped(text: &str) -> Json {
    let mut value: Json = serde_json::from_str(text).unwrap_or(Json::Null);
    if value.get("payload").is_some() && value.get("schema").is_some_and(|s| s.get("type").is_some()) {
        return value["payload"].take();
    }
    value
}

/// The values of `columns` in `row`, joined by `|`: how keys are named in lists of residuals.
pub(crate) fn key_text(row: &Json, columns: &[String]) -> String {
    let text = |column: &String| match &row[column] {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    columns.iter().map(text).collect::<Vec<_>>().join("|")
}

/// All events of some lines.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) all: Vec<RawEvent>,
}

impl Events {
    /// Reads lines.
    pub(crate) fn read(lines: &[String], flat: bool, mysql: bool) -> Self {
        Self { all: lines.iter().filter_map(|line| read(line, flat, mysql)).collect() }
    }

    /// The last event of each key of a table, in order of emission, by [`key_text`].
    pub(crate) fn last_by_key(&self, table: &str, key: &[String]) -> HashMap<String, &RawEvent> {
        let events = self.all.iter().filter(|e| e.table == table && e.key.is_object());
        events.map(|e| (key_text(&e.key, key), e)).collect()
    }

    /// How many distinct events with each id a table has, which is how many keys the id stands for.
    pub(crate) fn distinct(&self) -> BTreeMap<(String, Id), usize> {
        let mut keys: BTreeMap<(String, Id), BTreeSet<String>> = BTreeMap::new();
        for event in &self.all {
            let key = format!("{} {}", if event.op == 't' { "t" } else { "row" }, event.key);
            keys.entry((event.table.clone(), event.id.clone())).or_default().insert(key);
        }
        keys.into_iter().map(|(id, keys)| (id, keys.len())).collect()
    }
}
