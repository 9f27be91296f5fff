//! What a running pipeline tells about itself.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_core::{Counters, Epoch, SinkFigures, SourceFigures, TellFigures, TellSinkFigures};

use crate::histogram::Histogram;
use crate::latency::Latencies;

/// Where the pipeline is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Recovering from the last checkpoint.
    Starting,
    /// Events flow.
    Running,
    /// Intake is paused.
    Paused,
    /// Finishing what is in flight, then ending.
    Draining,
    /// Waiting to start again after a failure.
    Restarting,
    /// Ended well: drained, exhausted, or cancelled.
    Finished,
    /// Ended after the last restart attempt, or a fatal error.
    Failed,
}

impl Phase {
    /// All phases.
    pub const ALL: [Phase; 7] = [
        Phase::Starting,
        Phase::Running,
        Phase::Paused,
        Phase::Draining,
        Phase::Restarting,
        Phase::Finished,
        Phase::Failed,
    ];

    /// Its name in status and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Running => "running",
            Phase::Paused => "paused",
            Phase::Draining => "draining",
            Phase::Restarting => "restarting",
            Phase::Finished => "finished",
            Phase::Failed => "failed",
        }
    }
}

/// A checkpoint that became durable in this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointFacts {
    /// Its epoch.
    pub epoch: Epoch,
    /// When every sink had committed it, ms since 1970.
    pub at_ms: i64,
    /// From barrier to there.
    pub took: Duration,
    /// Records of its epoch.
    pub records: u64,
    /// Events of its epoch.
    pub events: u64,
    /// Bytes of the store on disk after it.
    pub state_bytes: u64,
}

/// A snapshot of the pipeline. `counters` are those of the last checkpoint; `records_in` and `events_in` run ahead of them.
#[derive(Debug, Clone)]
pub struct Status {
    /// Where it is in its life.
    pub phase: Phase,
    /// Whether the last checkpoint was loaded: before that `epoch` and `counters` are not known.
    pub recovered: bool,
    /// The last durable epoch.
    pub epoch: Epoch,
    /// Counters of the last durable checkpoint.
    pub counters: Counters,
    /// Records taken in since the start of this run, durable or not.
    pub records_in: u64,
    /// Bytes of these records.
    pub bytes_in: u64,
    /// Events judged since the start of this run, durable or not.
    pub events_in: u64,
    /// The pipeline's watermark, ms since the epoch.
    pub watermark_ms: Option<i64>,
    /// Highest source time seen, ms since the epoch.
    pub newest_ms: Option<i64>,
    /// Checkpoints that became durable in this run.
    pub checkpoints: u64,
    /// Checkpoints that failed in this run.
    pub checkpoints_failed: u64,
    /// How long the last checkpoint took from barrier to durable.
    pub checkpoint_took: Duration,
    /// How long the checkpoints of this run took.
    pub checkpoint_times: Histogram,
    /// The last checkpoints of this run, oldest first, at most 100.
    pub recent: VecDeque<CheckpointFacts>,
    /// How long events of this run took to become visible.
    pub latencies: Latencies,
    /// How long intake had to wait in this run since what is behind it had no room.
    pub held_back: Duration,
    /// Dead letters of this run's checkpoints, by stage and cause code.
    pub letters: BTreeMap<(&'static str, &'static str), u64>,
    /// What the source tells of itself.
    pub source: SourceFigures,
    /// What those of the sinks that have figures tell of themselves, by their names.
    pub sinks: BTreeMap<String, SinkFigures>,
    /// Restarts in this run.
    pub restarts: u32,
    /// The last failure in this run, as text; if the run failed, its first cause.
    pub failure: Option<String>,
    /// Keys held in memory by all shards.
    pub cached_keys: u64,
    /// Bytes of the store on disk at the last checkpoint.
    pub state_bytes: u64,
    /// Recent notices of source, decoder and sinks, oldest first, at most 100.
    pub notices: Vec<String>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Summary {
    /// The status at the end.
    pub status: Status,
    /// From start to end.
    pub took: Duration,
    /// What does not balance; empty is right.
    pub residues: Vec<String>,
}

/// Counts that move between checkpoints.
#[derive(Default)]
pub(crate) struct Gauges {
    pub(crate) records_in: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) events_in: AtomicU64,
    /// Microseconds that intake had to wait for room.
    pub(crate) held_back_us: AtomicU64,
    /// Microseconds for which intake was paused.
    paused_us: AtomicU64,
    source: Mutex<Option<TellFigures>>,
    sinks: Mutex<BTreeMap<String, TellSinkFigures>>,
    /// How often the watermark moved without a record, as a partition came to its end.
    pub(crate) watermark_moves: AtomicU64,
    /// `i64::MIN` before the first source time.
    pub(crate) newest_ms: AtomicI64,
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gauges").finish_non_exhaustive()
    }
}

impl Gauges {
    pub(crate) fn new() -> Self {
        Self { newest_ms: AtomicI64::new(i64::MIN), ..Self::default() }
    }

    /// Intake waited for room.
    pub(crate) fn held_back(&self, waited: Duration) {
        self.held_back_us.fetch_add(micros(waited), Ordering::Relaxed);
    }

    /// Intake was paused for so long.
    pub(crate) fn paused(&self, span: Duration) {
        self.paused_us.fetch_add(micros(span), Ordering::Relaxed);
    }

    /// For how long intake was paused in all, in pauses that are over.
    pub(crate) fn paused_for(&self) -> Duration {
        Duration::from_micros(self.paused_us.load(Ordering::Relaxed))
    }

    /// Who tells of the source; `None` while there is none.
    pub(crate) fn watch(&self, source: Option<TellFigures>) {
        *self.source.lock().unwrap_or_else(PoisonError::into_inner) = source;
    }

    /// Who tells of a sink.
    pub(crate) fn watch_sink(&self, name: &str, figures: Option<TellSinkFigures>) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        match figures {
            Some(figures) => drop(sinks.insert(name.to_owned(), figures)),
            None => drop(sinks.remove(name)),
        }
    }

    /// Fills in what moves between checkpoints.
    pub(crate) fn fill(&self, status: &mut Status) {
        status.records_in = self.records_in.load(Ordering::Relaxed);
        status.bytes_in = self.bytes_in.load(Ordering::Relaxed);
        status.events_in = self.events_in.load(Ordering::Relaxed);
        status.newest_ms = Some(self.newest_ms.load(Ordering::Relaxed)).filter(|ms| *ms > i64::MIN);
        status.held_back = Duration::from_micros(self.held_back_us.load(Ordering::Relaxed));
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).clone();
        status.source = source.map_or_else(SourceFigures::default, |tell| tell());
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        status.sinks = sinks.iter().map(|(name, tell)| (name.clone(), tell())).collect();
    }

    /// Grows with everything that a checkpoint has to take in.
    pub(crate) fn came_in(&self) -> u64 {
        self.records_in.load(Ordering::Relaxed) + self.watermark_moves.load(Ordering::Relaxed)
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Status {
    /// The status before anything happened.
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Starting,
            recovered: false,
            epoch: Epoch(0),
            counters: Counters::default(),
            records_in: 0,
            bytes_in: 0,
            events_in: 0,
            watermark_ms: None,
            newest_ms: None,
            checkpoints: 0,
            checkpoints_failed: 0,
            checkpoint_took: Duration::ZERO,
            checkpoint_times: Histogram::default(),
            recent: VecDeque::new(),
            latencies: Latencies::default(),
            held_back: Duration::ZERO,
            letters: BTreeMap::new(),
            source: SourceFigures::default(),
            sinks: BTreeMap::new(),
            restarts: 0,
            failure: None,
            cached_keys: 0,
            state_bytes: 0,
            notices: Vec::new(),
        }
    }

    /// Keeps a checkpoint's facts, within a bound.
    pub(crate) fn checkpoint(&mut self, facts: CheckpointFacts) {
        const KEPT: usize = 100;
        self.checkpoints += 1;
        self.checkpoint_took = facts.took;
        self.checkpoint_times.add(facts.took, 1);
        self.state_bytes = facts.state_bytes;
        self.epoch = facts.epoch;
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(facts);
    }

    /// Keeps a notice for people, within a bound.
    pub(crate) fn notice(&mut self, text: String) {
        const KEPT: usize = 100;
        if self.notices.len() == KEPT {
            self.notices.remove(0);
        }
        self.notices.push(text);
    }
}
