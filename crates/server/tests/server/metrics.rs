//! What Prometheus reads.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use millstream_core::counters::SinkCounters;
use millstream_core::{Checkpoint, Counters, Epoch, TableCounters};
use millstream_engine::{Clock, SystemClock};
use millstream_server::families;

use crate::client::get;
use crate::text_format::read;
use crate::world::{Spring, run, wait};

/// Says everything that can be said: odd names, every kind of record.
async fn full() -> String {
    let running = run(Spring::default(), None).await;
    let now_ms = SystemClock.now().as_millis();
    let line = |table: &str, lsn: u32| format!("{table}|1|{lsn}|{}|{}", now_ms - 3000, now_ms - 1000);
    let odd = "odd \"name\"\\\nof {a}=table, #1";
    let lines = [line("orders", 1), line("orders", 1), line(odd, 2), line("refused", 3)];
    running.spring.pour(&lines);
    running.spring.pour(&["heartbeat".to_owned(), "?".to_owned()]);
    wait("a checkpoint", || running.handle.status().counters.records == 6);
    let answer = get(running.address, "/metrics");
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.to_lowercase().contains("content-type: text/plain; version=0.0.4"),
        "{}",
        answer.head
    );
    answer.body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_figure_is_there_and_right() {
    let text = full().await;
    let families = read(&text);
    let number = |name: &str, labels: &[(&str, &str)]| {
        let family = name.trim_end_matches("_count").trim_end_matches("_bucket");
        let family = families.get(name).or(families.get(family)).unwrap_or_else(|| panic!("no {name}"));
        let found = family.samples.iter().find(|(of, has, _)| {
            of == name && labels.iter().all(|(label, value)| has.get(*label).is_some_and(|v| v == value))
        });
        found.unwrap_or_else(|| panic!("no {name} {labels:?}:\n{text}")).2
    };
    assert_eq!(number("millstream_up", &[("pipeline", "spring")]), 1.0);
    assert_eq!(number("millstream_phase", &[("phase", "running")]), 1.0);
    assert_eq!(number("millstream_phase", &[("phase", "paused")]), 0.0);
    assert_eq!(number("millstream_records_total", &[]), 6.0);
    assert_eq!(number("millstream_intake_records_total", &[]), 6.0);
    assert_eq!(number("millstream_control_records_total", &[("kind", "heartbeat")]), 1.0);
    assert_eq!(number("millstream_dead_records_total", &[("cause", "invalid_line")]), 1.0);
    assert_eq!(
        number("millstream_dead_letters_total", &[("stage", "parse"), ("cause", "invalid_line")]),
        1.0
    );
    // One of each sink.
    assert_eq!(
        number("millstream_dead_letters_total", &[("stage", "write"), ("cause", "no_such_column")]),
        2.0
    );
    assert_eq!(
        number("millstream_events_total", &[("table", "public.odd \"name\"\\\nof {a}=table, #1")]),
        1.0
    );
    assert_eq!(number("millstream_duplicate_events_total", &[("table", "public.orders")]), 1.0);
    assert_eq!(number("millstream_sink_written_rows_total", &[("sink", "history")]), 2.0);
    assert_eq!(number("millstream_sink_rejected_events_total", &[("sink", "replica")]), 1.0);
    assert_eq!(number("millstream_conservation_residues", &[]), 0.0);
    assert_eq!(number("millstream_state_bytes", &[]), 4096.0);
    assert_eq!(number("millstream_source_oldest_outstanding_seconds", &[]), 1.5);
    assert!(number("millstream_checkpoint_duration_seconds_count", &[]) >= 1.0);
    let way =
        |le: &str| number("millstream_latency_seconds_bucket", &[("stage", "source_to_broker"), ("le", le)]);
    assert_eq!((way("1"), way("2.5"), way("+Inf")), (0.0, 4.0, 4.0));
    assert!((4.0..120.0).contains(&number("millstream_lag_seconds", &[])));
    #[cfg(target_os = "linux")]
    assert!(number("process_resident_memory_bytes", &[]) > 1e6);
}

/// A counter that shows zero before the last checkpoint was loaded looks reset, and then as if everything since the first start had
/// come at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counters_of_checkpoints_are_not_told_before_they_are_known() {
    let spring = Spring::default();
    spring.held.store(true, Ordering::SeqCst);
    let tables = [(
        "public.orders".to_owned(),
        TableCounters { events: 900, distinct: 900, ..TableCounters::default() },
    )];
    let sink = |name: &str| (name.to_owned(), SinkCounters { written: 900, ..SinkCounters::default() });
    let counters = Counters {
        records: 900,
        decoded: 900,
        tables: tables.into(),
        sinks: [sink("history"), sink("replica")].into(),
        ..Counters::default()
    };
    *spring.last.lock().unwrap() = Some(Checkpoint { epoch: Epoch(41), counters, ..Checkpoint::default() });
    let running = run(spring, None).await;
    let records = || {
        let families = read(&get(running.address, "/metrics").body);
        families["millstream_records_total"].samples.first().map(|(_, _, n)| *n)
    };
    assert_eq!(records(), None);
    running.spring.held.store(false, Ordering::SeqCst);
    wait("the checkpoint", || running.handle.status().recovered);
    assert_eq!(records(), Some(900.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn promtool_has_no_complaints() {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = match command.spawn() {
        Ok(promtool) => promtool,
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "promtool (Debian: prometheus) is needed here: {e}");
            eprintln!("left out: promtool is not installed");
            return;
        }
    };
    promtool.stdin.take().unwrap().write_all(full().await.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.is_empty(), "{said}");
}

const BEGIN: &str =
    "<!-- metrics: made from crates/server/src/families.rs, see crates/server/tests/server/metrics.rs -->\n";
const END: &str = "<!-- /metrics -->\n";

/// Set `UPDATE_DOCS` to write them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_docs_know_every_metric() {
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for family in families::all() {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (family.name, family.kind.name(), family.help);
        table.push_str(&format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", ")));
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let docs = std::fs::read_to_string(file).unwrap();
    let (before, rest) = docs.split_once(BEGIN).expect("there is a place for the table");
    let (kept, after) = rest.split_once(END).expect("the table has an end");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert!(kept == table, "run `make docs`");
    }

    // What is told is what the docs say, and says it in the same words.
    let told = read(&full().await);
    let known: BTreeSet<&str> = families::all().map(|family| family.name).collect();
    assert_eq!(told.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
    for family in families::all() {
        let read = &told[family.name];
        assert_eq!((read.kind.as_str(), read.help.as_str()), (family.kind.name(), family.help));
        for (_, labels, _) in &read.samples {
            let own: BTreeSet<&str> =
                labels.keys().map(String::as_str).filter(|l| !["pipeline", "le"].contains(l)).collect();
            assert_eq!(own, family.labels.iter().copied().collect::<BTreeSet<_>>(), "{}", family.name);
            assert_eq!(
                labels.contains_key("pipeline"),
                family.name.starts_with("millstream_"),
                "{}",
                family.name
            );
        }
    }
}
