//! The metrics: which there are, and how a status fills them.
//!
//! Counters of `millstream_*` that are kept in checkpoints go on through restarts of the process; those that say "in this run" begin
//! at zero. Every label is one of few: tables, sinks, kinds and codes, never a value of a row.

use millstream_core::counters::{SinkCounters, TableCounters};
use millstream_core::decoder::ControlKind;
use millstream_core::{Counters, SinkFigures};
use millstream_engine::{Phase, Status};

use crate::exposition::{Exposition, Samples};
pub use crate::exposition::{Family, Kind};
use crate::pipeline::lag;
use crate::process::Process;

/// What fills a family.
type Fill = fn(&Facts<'_>, &mut Samples<'_>);

/// What samples are made of.
struct Facts<'a> {
    status: &'a Status,
    /// `None` before the last checkpoint was loaded: zeros would look like a reset, and then like a leap.
    counters: Option<&'a Counters>,
    process: Process,
}

macro_rules! families {
    ($($kind:ident $name:ident [$($label:literal),*] $help:literal = $fill:expr;)*) => {
        const FILLED: &[(Family, Fill)] = &[$((
            Family { name: stringify!($name), kind: Kind::$kind, labels: &[$($label),*], help: $help },
            $fill,
        )),*];
    };
}

families! {
    Gauge millstream_up [] "1 while events flow or intake is paused."
        = |f, s| s.sample(&[], u8::from(is_up(f.status.phase)));
    Gauge millstream_phase ["phase"] "1 for the phase that the pipeline is in, 0 for the others."
        = |f, s| Phase::ALL.iter().for_each(|p| s.sample(&[p.name()], u8::from(*p == f.status.phase)));
    Gauge millstream_build_info ["version"] "1; the version that runs."
        = |_, s| s.sample(&[env!("CARGO_PKG_VERSION")], 1);
    Counter millstream_restarts_total [] "Restarts after failures in this run."
        = |f, s| s.sample(&[], f.status.restarts);

    Counter millstream_intake_records_total [] "Records taken in in this run, durable or not."
        = |f, s| s.sample(&[], f.status.records_in);
    Counter millstream_intake_bytes_total [] "Bytes of the records taken in in this run, keys and headers included."
        = |f, s| s.sample(&[], f.status.bytes_in);
    Counter millstream_intake_events_total [] "Events judged in this run, durable or not."
        = |f, s| s.sample(&[], f.status.events_in);
    Counter millstream_backpressure_seconds_total [] "How long intake waited for room in this run."
        = |f, s| s.sample(&[], f.status.held_back.as_secs_f64());

    Counter millstream_records_total [] "Records of all checkpoints."
        = |f, s| f.counters.iter().for_each(|c| s.sample(&[], c.records));
    Counter millstream_record_value_bytes_total [] "Bytes of these records' values."
        = |f, s| f.counters.iter().for_each(|c| s.sample(&[], c.bytes));
    Counter millstream_decoded_records_total [] "Records that gave events."
        = |f, s| f.counters.iter().for_each(|c| s.sample(&[], c.decoded));
    Counter millstream_control_records_total ["kind"] "Records that change no row, by kind."
        = |f, s| f.counters.iter().for_each(|c| controls(c, s));
    Counter millstream_dead_records_total ["cause"] "Records that could not be parsed or validated, by cause."
        = |f, s| f.counters.iter().flat_map(|c| &c.dead).for_each(|(cause, n)| s.sample(&[cause], n));
    Counter millstream_dead_letters_total ["stage", "cause"] "Dead letters of this run's checkpoints, by stage and cause."
        = |f, s| f.status.letters.iter().for_each(|((stage, cause), n)| s.sample(&[stage, cause], n));
    Counter millstream_notices_total ["code"] "Notices of source, decoder and sinks, by code."
        = |f, s| f.counters.iter().flat_map(|c| &c.notices).for_each(|(code, n)| s.sample(&[code], n));
    Gauge millstream_conservation_residues [] "Balances that do not come out even; anything but 0 is a bug."
        = |f, s| f.counters.iter().for_each(|c| s.sample(&[], c.residues().len()));

    Counter millstream_events_total ["table"] "Events."
        = |f, s| tables(f, s, |t| t.events);
    Counter millstream_duplicate_events_total ["table"] "Events that were seen before."
        = |f, s| tables(f, s, |t| t.duplicates);
    Counter millstream_distinct_events_total ["table"] "Events that were not seen before."
        = |f, s| tables(f, s, |t| t.distinct);
    Counter millstream_newest_events_total ["table"] "Events newer than everything their key held."
        = |f, s| tables(f, s, |t| t.newest);
    Counter millstream_late_events_total ["table"] "Events behind their partition's watermark."
        = |f, s| tables(f, s, |t| t.late);
    Counter millstream_untold_events_total ["table"] "Events too old to tell whether they were seen before; kept."
        = |f, s| tables(f, s, |t| t.untold);
    Counter millstream_adjusted_events_total ["table"] "Events whose order was adjusted."
        = |f, s| tables(f, s, |t| t.adjusted);
    Counter millstream_unresolved_values_total ["table"] "Unchanged large values that state did not know."
        = |f, s| tables(f, s, |t| t.unresolved);

    Counter millstream_sink_written_rows_total ["sink"] "Rows written."
        = |f, s| sinks(f, s, |k| k.written);
    Counter millstream_sink_superseded_events_total ["sink"] "Events that a newer state of their key made needless."
        = |f, s| sinks(f, s, |k| k.superseded);
    Counter millstream_sink_filtered_events_total ["sink"] "Events that the sink leaves out by its nature."
        = |f, s| sinks(f, s, |k| k.filtered);
    Counter millstream_sink_duplicate_events_total ["sink"] "Events that were seen before."
        = |f, s| sinks(f, s, |k| k.duplicates);
    Counter millstream_sink_rejected_events_total ["sink"] "Events that the sink refused; each is a dead letter."
        = |f, s| sinks(f, s, |k| k.rejected);
    Counter millstream_sink_absent_events_total ["sink"] "Events that passed before the sink was added."
        = |f, s| sinks(f, s, |k| k.absent);

    Gauge millstream_sink_waiting_files ["sink"] "Files that were written and are not in their tables."
        = |f, s| figures(f, s, |k| k.waiting_files);
    Gauge millstream_sink_waiting_bytes ["sink"] "Their bytes."
        = |f, s| figures(f, s, |k| k.waiting_bytes);
    Counter millstream_sink_load_jobs_total ["sink"] "Load jobs that succeeded in this run."
        = |f, s| figures(f, s, |k| k.load_jobs);
    Counter millstream_sink_loaded_rows_total ["sink"] "Rows that load jobs of this run wrote."
        = |f, s| figures(f, s, |k| k.loaded_rows);
    Counter millstream_sink_loaded_bytes_total ["sink"] "Bytes of the files that load jobs of this run read."
        = |f, s| figures(f, s, |k| k.loaded_bytes);

    Gauge millstream_epoch [] "The last durable epoch."
        = |f, s| s.sample(&[], f.status.epoch.0);
    Counter millstream_checkpoints_total [] "Checkpoints that became durable in this run."
        = |f, s| s.sample(&[], f.status.checkpoints);
    Counter millstream_checkpoint_failures_total [] "Timeouts that checkpoints of this run outlasted."
        = |f, s| s.sample(&[], f.status.checkpoints_failed);
    Histogram millstream_checkpoint_duration_seconds [] "From barrier to visible, of this run's checkpoints."
        = |f, s| s.histogram(&[], &f.status.checkpoint_times);
    Gauge millstream_last_checkpoint_duration_seconds [] "The same of the last one."
        = |f, s| if f.status.checkpoints > 0 { s.sample(&[], f.status.checkpoint_took.as_secs_f64()) };
    Gauge millstream_last_checkpoint_timestamp_seconds [] "When the last checkpoint of this run was visible."
        = |f, s| f.status.recent.back().iter().for_each(|c| s.sample(&[], seconds(c.at_ms)));
    Gauge millstream_state_bytes [] "Bytes of the checkpoint store on disk."
        = |f, s| s.sample(&[], f.status.state_bytes);
    Gauge millstream_cached_keys [] "Keys that shards hold in memory."
        = |f, s| s.sample(&[], f.status.cached_keys);

    Gauge millstream_watermark_timestamp_seconds [] "The source's time up to which events are believed complete."
        = |f, s| f.status.watermark_ms.iter().for_each(|ms| s.sample(&[], seconds(*ms)));
    Gauge millstream_newest_event_timestamp_seconds [] "The highest source's time that was seen in this run."
        = |f, s| f.status.newest_ms.iter().for_each(|ms| s.sample(&[], seconds(*ms)));
    Gauge millstream_lag_seconds [] "How far the watermark is behind the clock; grows while a source is silent."
        = |f, s| lag(f.status).iter().for_each(|lag| s.sample(&[], lag.as_secs_f64()));
    Histogram millstream_latency_seconds ["stage"] "How long events of this run took, by way; a sample, weighted."
        = latencies;

    Gauge millstream_source_outstanding_messages [] "Messages that the broker delivered and that are not acknowledged."
        = |f, s| f.status.source.outstanding_messages.iter().for_each(|n| s.sample(&[], n));
    Gauge millstream_source_outstanding_bytes [] "The same in bytes."
        = |f, s| f.status.source.outstanding_bytes.iter().for_each(|n| s.sample(&[], n));
    Gauge millstream_source_outstanding_messages_max [] "How many may be outstanding; the broker sends no more then."
        = |f, s| f.status.source.outstanding_messages_max.iter().for_each(|n| s.sample(&[], n));
    Gauge millstream_source_outstanding_bytes_max [] "The same in bytes."
        = |f, s| f.status.source.outstanding_bytes_max.iter().for_each(|n| s.sample(&[], n));
    Counter millstream_source_held_seconds_total [] "How long the broker held messages back because a stream had all that it may have outstanding."
        = |f, s| f.status.source.held_ms.iter().for_each(|ms| s.sample(&[], *ms as f64 / 1000.0));
    Gauge millstream_source_oldest_outstanding_seconds [] "How long ago the oldest of them was delivered."
        = |f, s| f.status.source.oldest_outstanding_ms.iter().for_each(|ms| s.sample(&[], *ms as f64 / 1000.0));
    Gauge millstream_source_open_streams [] "Connections over which the broker delivers."
        = |f, s| f.status.source.open_streams.iter().for_each(|n| s.sample(&[], n));
    Counter millstream_source_redelivered_messages_total [] "Messages that the broker says it delivered before."
        = |f, s| f.status.source.redelivered.iter().for_each(|n| s.sample(&[], n));
    Gauge millstream_source_unread_files [] "Files that are known to hold more than was read."
        = |f, s| f.status.source.unread_files.iter().for_each(|n| s.sample(&[], n));
    Gauge millstream_source_unread_bytes [] "What is known of them and not read; of compressed files nothing."
        = |f, s| f.status.source.unread_bytes.iter().for_each(|n| s.sample(&[], n));

    Counter process_cpu_seconds_total [] "CPU time of the process."
        = |f, s| f.process.cpu_seconds.iter().for_each(|n| s.sample(&[], n));
    Gauge process_resident_memory_bytes [] "Memory of the process."
        = |f, s| f.process.resident_bytes.iter().for_each(|n| s.sample(&[], n));
    Gauge process_threads [] "Threads of the process."
        = |f, s| f.process.threads.iter().for_each(|n| s.sample(&[], n));
    Gauge process_open_fds [] "Open files, sockets included."
        = |f, s| f.process.open_fds.iter().for_each(|n| s.sample(&[], n));
    Gauge process_max_fds [] "How many may be open."
        = |f, s| f.process.max_fds.iter().for_each(|n| s.sample(&[], n));
    Gauge process_start_time_seconds [] "When the process started."
        = |f, s| f.process.started_seconds.iter().for_each(|n| s.sample(&[], n));
}

/// All families, in the order in which they are told.
pub fn all() -> impl Iterator<Item = &'static Family> {
    FILLED.iter().map(|(family, _)| family)
}

/// Whether the pipeline does what it should: events flow, or intake is paused because someone asked.
pub(crate) fn is_up(phase: Phase) -> bool {
    matches!(phase, Phase::Running | Phase::Paused)
}

/// The text that Prometheus reads.
pub(crate) fn expose(pipeline: &str, status: &Status) -> String {
    let counters = status.recovered.then_some(&status.counters);
    let facts = Facts { status, counters, process: Process::now() };
    let mut out = Exposition::new(pipeline);
    for (family, fill) in FILLED {
        fill(&facts, &mut out.begin(family, family.name.starts_with("process_")));
    }
    out.finish()
}

fn controls(counters: &Counters, samples: &mut Samples<'_>) {
    ControlKind::ALL.iter().for_each(|kind| samples.sample(&[kind.name()], counters.control[kind.index()]));
}

fn tables(facts: &Facts<'_>, samples: &mut Samples<'_>, of: fn(&TableCounters) -> u64) {
    facts.counters.iter().flat_map(|c| &c.tables).for_each(|(table, t)| samples.sample(&[table], of(t)));
}

/// What sinks tell of themselves.
fn figures(f: &Facts<'_>, s: &mut Samples<'_>, of: fn(&SinkFigures) -> Option<u64>) {
    for (sink, figures) in &f.status.sinks {
        if let Some(n) = of(figures) {
            s.sample(&[sink], n);
        }
    }
}

fn sinks(facts: &Facts<'_>, samples: &mut Samples<'_>, of: fn(&SinkCounters) -> u64) {
    facts.counters.iter().flat_map(|c| &c.sinks).for_each(|(sink, k)| samples.sample(&[sink], of(k)));
}

fn latencies(facts: &Facts<'_>, samples: &mut Samples<'_>) {
    let of = &facts.status.latencies;
    let ways = [
        ("source_to_warehouse", &of.source_to_warehouse),
        ("source_to_broker", &of.source_to_broker),
        ("broker_to_warehouse", &of.broker_to_warehouse),
    ];
    ways.iter().filter(|(_, way)| way.count() > 0).for_each(|(name, way)| samples.histogram(&[name], way));
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}
