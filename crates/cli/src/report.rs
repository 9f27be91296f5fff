//! The summary of a run, for people and as JSON.

use std::fmt::Write as _;

use millstream_core::Counters;
use millstream_core::decoder::ControlKind;
use millstream_engine::Summary;
use millstream_server::status_json;
use serde_json::{Value, json};

use crate::output::{Table, bytes, count, plural};

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
        status.phase.name(),
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
