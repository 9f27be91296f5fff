//! What is known of one key: its events in the histories, its rows in the replicas, keyed state, dead letters; and the
//! rule that decided each event.
//!
//! Limits: duplicates leave no trace but counts, which are kept by table. Of a key's events in one epoch the order of
//! arrival is not known, so the rule is told as if they had come in their order.

mod key;
mod letters;
mod rule;
mod warehouse;

use std::sync::Arc;

use millstream_core::dedupe::{KeyState, inspect, known_tables};
use millstream_core::{Counters, Error, Order, Result, StateView, TableName};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::dead_letters;
use crate::plan::Plan;

pub(crate) use rule::{Rule, swept};
use warehouse::Warehouse;

/// Everything that is known of one key.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Explanation {
    pub(crate) table: String,
    /// Column → value, as text.
    pub(crate) key: Map<String, Value>,
    /// What keyed state holds; absent where the key was never seen.
    pub(crate) state: Option<Value>,
    /// Order of the table's newest truncate, or sweep.
    pub(crate) truncated: Option<String>,
    pub(crate) histories: Vec<History>,
    pub(crate) replicas: Vec<Replica>,
    /// Counts of the whole table.
    pub(crate) table_counts: Option<Value>,
    pub(crate) dead_letters: Vec<Value>,
}

/// The events that a history holds, in their order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct History {
    pub(crate) sink: String,
    pub(crate) table: String,
    pub(crate) events: Vec<KeyEvent>,
}

/// An event in a history.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeyEvent {
    pub(crate) order: String,
    pub(crate) op: String,
    pub(crate) source_ts_ms: Option<i64>,
    pub(crate) ingested_at: String,
    pub(crate) unchanged: Vec<String>,
    pub(crate) row: Value,
    pub(crate) rule: Rule,
}

/// A replica's row, `None` if it holds none.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Replica {
    pub(crate) sink: String,
    pub(crate) table: String,
    pub(crate) row: Option<Value>,
}

/// Keyed state, and counts, as of the last checkpoint.
#[derive(Clone)]
pub(crate) struct Checkpointed {
    pub(crate) view: Arc<dyn StateView>,
    pub(crate) counters: Counters,
}

impl Explanation {
    /// Explains `key` (JSON, or the bare value of a key of one column) of `table`.
    pub(crate) fn of(plan: &Plan, table: &str, key: &str, checkpoint: Option<&Checkpointed>) -> Result<Self> {
        let warehouses: Vec<Warehouse> =
            plan.duckdb_sinks().map(|(name, duckdb)| Warehouse::open(name, duckdb)).collect::<Result<_>>()?;
        let known =
            warehouses.iter().find_map(|w| w.table(table)).ok_or_else(|| not_found(&warehouses, table))?;
        let parsed = key::parse(key, &known.key)?;
        let typed =
            warehouses.iter().find_map(|w| w.canonical_key(table, &parsed).transpose()).transpose()?;
        let (state, truncated) = match (checkpoint, &typed) {
            (Some(checkpoint), Some(typed)) => look_up(&*checkpoint.view, &known.source, typed)?,
            _ => (None, None),
        };
        let mut histories = Vec::new();
        let mut replicas = Vec::new();
        for warehouse in &warehouses {
            if let Some(mut history) = warehouse.history(table, &parsed)? {
                rule::decide(&mut history.events, truncated.as_ref());
                histories.push(history);
            }
            replicas.extend(warehouse.replica(table, &parsed)?);
        }
        let counts = checkpoint.and_then(|c| c.counters.tables.get(table));
        Ok(Self {
            table: table.to_owned(),
            state: state.map(|state| state_json(&state)),
            truncated: truncated.map(|order| order.to_string()),
            histories,
            replicas,
            table_counts: counts.map(|c| {
                serde_json::json!({
                    "events": c.events, "duplicates": c.duplicates, "late": c.late, "untold": c.untold, "adjusted": c.adjusted,
                })
            }),
            dead_letters: letters::naming(dead_letters::letters(&plan.dead_letters)?, table, &parsed)?,
            key: parsed.into_iter().map(|(column, value)| (column, Value::String(value))).collect(),
        })
    }
}

fn look_up(
    view: &dyn StateView,
    table: &TableName,
    key: &millstream_core::Key,
) -> Result<(Option<KeyState>, Option<Order>)> {
    let truncated =
        known_tables(view)?.into_iter().find(|(name, _)| name == table).and_then(|(_, order)| order);
    Ok((inspect(view, table, key)?, truncated))
}

fn not_found(warehouses: &[Warehouse], table: &str) -> Error {
    let names: Vec<String> = warehouses.iter().flat_map(Warehouse::names).collect();
    let near = crate::config::nearest(table, names.iter().map(String::as_str))
        .map(|n| format!("; did you mean `{n}`?"));
    if names.is_empty() {
        return Error::fatal("no sink holds any table yet: run the pipeline first");
    }
    Error::fatal(format!("no sink holds a table `{table}` with a key{}", near.unwrap_or_default()))
}

fn state_json(state: &KeyState) -> Value {
    let values: Vec<Value> = state
        .values
        .iter()
        .map(|v| serde_json::json!({ "column": v.column, "unchanged_in_newest": v.unchanged, "kept_bytes": v.bytes }))
        .collect();
    serde_json::json!({
        "newest": state.newest.to_string(), "deleted": state.deleted, "read": state.read, "adjusted": state.adjusted,
        "source_time_us": state.time_us, "known_ids": state.ids, "forgot_ids": state.forgot_ids, "values": values,
        "heirs": state.heirs,
    })
}
