//! Status and summary, for people and as JSON.

use std::fmt::Write as _;

use millstream_core::Counters;
use millstream_core::decoder::ControlKind;
use millstream_engine::{Latency, Phase, Status, Summary};
use serde_json::{Map, Value, json};

use crate::output::{Table, bytes, count, plural};

/// A phase's name.
pub(crate) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Running => "running",
        Phase::Paused => "paused",
        Phase::Draining => "draining",
        Phase::Restarting => "restarting",
        Phase::Finished => "finished",
        Phase::Failed => "failed",
    }
}

/// Counters as JSON.
pub(crate) fn counters_json(counters: &Counters) -> Value {
    let control: Map<String, Value> = ControlKind::ALL
        .iter()
        .filter(|kind| counters.control[kind.index()] > 0)
        .map(|kind| (kind.name().to_owned(), json!(counters.control[kind.index()])))
        .collect();
    let tables: Map<String, Value> = counters
        .tables
        .iter()
        .map(|(name, t)| {
            let value = json!({
                "events": t.events, "duplicates": t.duplicates, "distinct": t.distinct, "newest": t.newest, "late": t.late,
                "untold": t.untold, "adjusted": t.adjusted, "unresolved": t.unresolved,
            });
            (name.clone(), value)
        })
        .collect();
    let sinks: Map<String, Value> = counters
        .sinks
        .iter()
        .map(|(name, s)| {
            let value = json!({
                "written": s.written, "superseded": s.superseded, "filtered": s.filtered, "duplicates": s.duplicates,
                "rejected": s.rejected, "absent": s.absent,
            });
            (name.clone(), value)
        })
        .collect();
    json!({
        "records": counters.records, "bytes": counters.bytes, "decoded": counters.decoded, "control": control,
        "dead": counters.dead, "events": counters.events(), "tables": tables, "sinks": sinks, "notices": counters.notices,
        "residues": counters.residues(),
    })
}

/// A status as JSON.
pub(crate) fn status_json(pipeline: &str, status: &Status) -> Value {
    json!({
        "pipeline": pipeline,
        "phase": phase_name(status.phase),
        "epoch": status.epoch.0,
        "records_in": status.records_in,
        "events_in": status.events_in,
        "watermark_ms": status.watermark_ms,
        "newest_ms": status.newest_ms,
        "checkpoints": status.checkpoints,
        "checkpoints_failed": status.checkpoints_failed,
        "checkpoint_took_ms": status.checkpoint_took.as_millis() as u64,
        "restarts": status.restarts,
        "failure": status.failure,
        "latency": latency_json(&status.latency),
        "cached_keys": status.cached_keys,
        "state_bytes": status.state_bytes,
        "notices": status.notices,
        "counters": counters_json(&status.counters),
    })
}

/// From published to visible, ms; null for sources without publish times.
fn latency_json(latency: &Latency) -> Value {
    let ms = |share| latency.quantile(share).map(|took| took.as_millis() as u64);
    match latency.count() {
        0 => Value::Null,
        records => {
            json!({ "records": records, "p50_ms": ms(0.5), "p95_ms": ms(0.95), "p99_ms": ms(0.99), "max_ms": ms(1.0) })
        }
    }
}

/// A summary as JSON.
pub(crate) fn summary_json(pipeline: &str, summary: &Summary) -> Value {
    let mut value = status_json(pipeline, &summary.status);
    value["took_ms"] = json!(summary.took.as_millis() as u64);
    value["residues"] = json!(summary.residues);
    value
}

/// What came of a run, for people.
pub(crate) fn summary_text(pipeline: &str, summary: &Summary) -> String {
    let status = &summary.status;
    let seconds = summary.took.as_secs_f64();
    let mut out = String::new();
    let rate = if seconds > 0.0 { status.events_in as f64 / seconds } else { 0.0 };
    // Writing into a String does not fail, here and below.
    let _ = writeln!(
        out,
        "{pipeline}: {} in {seconds:.1} s: {} and {} in this run ({} events/s), {}, state {}",
        phase_name(status.phase),
        plural(status.records_in, "record"),
        plural(status.events_in, "event"),
        count(rate as u64),
        plural(status.checkpoints, "checkpoint"),
        bytes(status.state_bytes),
    );
    out.push('\n');
    out.push_str(&balance_text(&status.counters));
    for residue in &summary.residues {
        let _ = writeln!(out, "does not balance: {residue}");
    }
    if summary.residues.is_empty() {
        out.push_str("every record and event is accounted for\n");
    }
    out
}

/// The balance of records, tables and sinks since the pipeline's first start.
pub(crate) fn balance_text(counters: &Counters) -> String {
    let mut out = String::new();
    let control: u64 = counters.control.iter().sum();
    let dead: u64 = counters.dead.values().sum();
    let _ = writeln!(
        out,
        "{} since the first start = {} decoded + {} control + {} dead",
        plural(counters.records, "record"),
        count(counters.decoded),
        count(control),
        count(dead)
    );
    let kinds: Vec<String> = ControlKind::ALL
        .iter()
        .filter(|kind| counters.control[kind.index()] > 0)
        .map(|kind| format!("{} {}", count(counters.control[kind.index()]), kind.name()))
        .collect();
    list(&mut out, "control", &kinds);
    list(&mut out, "dead", &coded(&counters.dead));
    list(&mut out, "notices", &coded(&counters.notices));
    out.push('\n');
    tables_text(counters, &mut out);
    sinks_text(counters, &mut out);
    out
}

fn coded(counts: &std::collections::BTreeMap<String, u64>) -> Vec<String> {
    counts.iter().map(|(code, n)| format!("{} {code}", count(*n))).collect()
}

fn list(out: &mut String, name: &str, items: &[String]) {
    if !items.is_empty() {
        let _ = writeln!(out, "  {name}: {}", items.join(", "));
    }
}

fn tables_text(counters: &Counters, out: &mut String) {
    let mut table = Table::new([
        "table",
        "events",
        "duplicates",
        "distinct",
        "newest",
        "late",
        "untold",
        "adjusted",
        "unresolved",
    ]);
    for (name, t) in &counters.tables {
        let counts =
            [t.events, t.duplicates, t.distinct, t.newest, t.late, t.untold, t.adjusted, t.unresolved];
        table.row([name.clone()].into_iter().chain(counts.map(count)));
    }
    if !table.is_empty() {
        out.push_str(&table.render(0));
        out.push('\n');
    }
}

fn sinks_text(counters: &Counters, out: &mut String) {
    let mut table = Table::new([
        "sink",
        "events",
        "written",
        "superseded",
        "filtered",
        "duplicates",
        "rejected",
        "absent",
    ]);
    for (name, s) in &counters.sinks {
        let counts = [s.total(), s.written, s.superseded, s.filtered, s.duplicates, s.rejected, s.absent];
        table.row([name.clone()].into_iter().chain(counts.map(count)));
    }
    if !table.is_empty() {
        out.push_str(&table.render(0));
        out.push('\n');
    }
}
