//! What a running pipeline tells about itself.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use millstream_core::{Counters, Epoch};

use crate::latency::Latency;

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

/// A snapshot of the pipeline. `counters` are those of the last checkpoint; `records_in` and `events_in` run ahead of them.
#[derive(Debug, Clone)]
pub struct Status {
    /// Where it is in its life.
    pub phase: Phase,
    /// The last durable epoch.
    pub epoch: Epoch,
    /// Counters of the last durable checkpoint.
    pub counters: Counters,
    /// Records taken in since the start of this run, durable or not.
    pub records_in: u64,
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
    /// Restarts in this run.
    pub restarts: u32,
    /// The last failure in this run, as text; if the run failed, its first cause.
    pub failure: Option<String>,
    /// From publishing to visible rows, of records with a publish time, since the start of this run.
    pub latency: Latency,
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
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) records_in: AtomicU64,
    pub(crate) events_in: AtomicU64,
    /// How often the watermark moved without a record, as a partition came to its end.
    pub(crate) watermark_moves: AtomicU64,
    /// `i64::MIN` before the first source time.
    pub(crate) newest_ms: AtomicI64,
}

impl Gauges {
    pub(crate) fn new() -> Self {
        Self { newest_ms: AtomicI64::new(i64::MIN), ..Self::default() }
    }

    /// Grows with everything that a checkpoint has to take in.
    pub(crate) fn came_in(&self) -> u64 {
        self.records_in.load(Ordering::Relaxed) + self.watermark_moves.load(Ordering::Relaxed)
    }
}

impl Status {
    /// The status before anything happened.
    pub(crate) fn new() -> Self {
        Self {
            phase: Phase::Starting,
            epoch: Epoch(0),
            counters: Counters::default(),
            records_in: 0,
            events_in: 0,
            watermark_ms: None,
            newest_ms: None,
            checkpoints: 0,
            checkpoints_failed: 0,
            checkpoint_took: Duration::ZERO,
            restarts: 0,
            failure: None,
            latency: Latency::default(),
            cached_keys: 0,
            state_bytes: 0,
            notices: Vec::new(),
        }
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
