//! Status as JSON, for the HTTP API and the control socket.

use millstream_core::counters::{SinkCounters, TableCounters};
use millstream_core::decoder::ControlKind;
use millstream_core::{Counters, SourceFigures};
use millstream_engine::{Histogram, Latencies, Status};
use serde_json::{Map, Value, json};

/// A status as JSON.
pub fn status_json(pipeline: &str, status: &Status) -> Value {
    json!({
        "pipeline": pipeline,
        "phase": status.phase.name(),
        "epoch": status.epoch.0,
        "records_in": status.records_in,
        "bytes_in": status.bytes_in,
        "events_in": status.events_in,
        "watermark_ms": status.watermark_ms,
        "newest_ms": status.newest_ms,
        "checkpoints": status.checkpoints,
        "checkpoints_failed": status.checkpoints_failed,
        "checkpoint_took_ms": status.checkpoint_took.as_millis() as u64,
        "restarts": status.restarts,
        "failure": status.failure,
        "cached_keys": status.cached_keys,
        "state_bytes": status.state_bytes,
        "notices": status.notices,
        "counters": counters_json(&status.counters),
    })
}

/// Counters as JSON.
pub fn counters_json(counters: &Counters) -> Value {
    let control: Map<String, Value> = ControlKind::ALL
        .iter()
        .filter(|kind| counters.control[kind.index()] > 0)
        .map(|kind| (kind.name().to_owned(), json!(counters.control[kind.index()])))
        .collect();
    let tables: Map<String, Value> =
        counters.tables.iter().map(|(name, t)| (name.clone(), table_json(t))).collect();
    let sinks: Map<String, Value> =
        counters.sinks.iter().map(|(name, s)| (name.clone(), sink_json(s))).collect();
    json!({
        "records": counters.records, "bytes": counters.bytes, "decoded": counters.decoded, "control": control,
        "dead": counters.dead, "events": counters.events(), "tables": tables, "sinks": sinks, "notices": counters.notices,
        "residues": counters.residues(),
    })
}

fn table_json(t: &TableCounters) -> Value {
    json!({
        "events": t.events, "duplicates": t.duplicates, "distinct": t.distinct, "newest": t.newest, "late": t.late,
        "untold": t.untold, "adjusted": t.adjusted, "unresolved": t.unresolved,
    })
}

fn sink_json(s: &SinkCounters) -> Value {
    json!({
        "written": s.written, "superseded": s.superseded, "filtered": s.filtered, "duplicates": s.duplicates,
        "rejected": s.rejected, "absent": s.absent,
    })
}

/// The tables of the last checkpoint, each with its name, and what the sinks made of all of them.
pub(crate) fn tables_json(pipeline: &str, status: &Status) -> Value {
    let tables: Vec<Value> = status
        .counters
        .tables
        .iter()
        .map(|(name, counts)| {
            let mut table = table_json(counts);
            table["table"] = json!(name);
            table
        })
        .collect();
    let sinks: Map<String, Value> =
        status.counters.sinks.iter().map(|(name, s)| (name.clone(), sink_json(s))).collect();
    json!({ "pipeline": pipeline, "epoch": status.epoch.0, "tables": tables, "sinks": sinks })
}

/// The last checkpoints of this run, the newest first.
pub(crate) fn checkpoints_json(pipeline: &str, status: &Status) -> Value {
    let recent: Vec<Value> = status
        .recent
        .iter()
        .rev()
        .map(|c| {
            json!({
                "epoch": c.epoch.0, "at_ms": c.at_ms, "took_ms": c.took.as_millis() as u64, "records": c.records,
                "events": c.events, "state_bytes": c.state_bytes,
            })
        })
        .collect();
    json!({
        "pipeline": pipeline, "epoch": status.epoch.0, "taken": status.checkpoints, "failed": status.checkpoints_failed,
        "checkpoints": recent,
    })
}

/// Percentiles of each way; a way on which nothing was measured is `null`.
pub(crate) fn latencies_json(latencies: &Latencies) -> Value {
    let way = |of: &Histogram| {
        let seconds = |share: f64| of.quantile(share).map(|span| span.as_secs_f64());
        match of.count() {
            0 => Value::Null,
            events => {
                json!({ "events": events, "p50": seconds(0.5), "p95": seconds(0.95), "p99": seconds(0.99) })
            }
        }
    };
    json!({
        "source_to_warehouse": way(&latencies.source_to_warehouse),
        "source_to_broker": way(&latencies.source_to_broker),
        "broker_to_warehouse": way(&latencies.broker_to_warehouse),
    })
}

/// What the source tells of itself; only what it has.
pub(crate) fn source_json(source: &SourceFigures) -> Value {
    let figures = [
        ("outstanding_messages", source.outstanding_messages),
        ("outstanding_bytes", source.outstanding_bytes),
        ("outstanding_messages_max", source.outstanding_messages_max),
        ("outstanding_bytes_max", source.outstanding_bytes_max),
        ("held_ms", source.held_ms),
        ("oldest_outstanding_ms", source.oldest_outstanding_ms),
        ("open_streams", source.open_streams),
        ("redelivered", source.redelivered),
        ("unread_files", source.unread_files),
        ("unread_bytes", source.unread_bytes),
    ];
    let told = figures.into_iter().filter_map(|(name, n)| Some((name.to_owned(), json!(n?))));
    Value::Object(told.collect())
}
