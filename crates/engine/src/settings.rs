//! How a pipeline runs.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Incarnation;
use millstream_core::dedupe::GateConfig;

/// Fixed-delay restart strategy: so many attempts, then FAILED with the first cause.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    /// Restarts before the pipeline fails; 5 by default.
    pub attempts: u32,
    /// Wait before each; 30 s by default.
    pub delay: Duration,
    /// Attempts are forgotten after this long without a failure; 10 min by default.
    pub stable_after: Duration,
}

/// How a pipeline runs: everything but its connectors.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The pipeline's name, for logs and status.
    pub pipeline: String,
    /// Time between barriers; 1 s by default.
    pub checkpoint_interval: Duration,
    /// A checkpoint that takes longer fails the attempt; 10 min by default.
    pub checkpoint_timeout: Duration,
    /// An epoch also ends when shards hold this many bytes of uncommitted state.
    pub epoch_bytes_max: usize,
    /// Parallel decode workers.
    pub decoders: usize,
    /// Keyed shards; may change between runs.
    pub shards: usize,
    /// Bytes of records between intake and sinks.
    pub in_flight_bytes_max: usize,
    /// Bounded out-of-orderness of source times, ms; 30 000 by default.
    pub watermark_delay_ms: i64,
    /// Which life of the source's positions this is.
    pub incarnation: Incarnation,
    /// Dedupe.
    pub gate: Arc<GateConfig>,
    /// What to do about failures.
    pub restart: Restart,
    /// End, after a drain, when an unbounded source gave nothing for this long. Bounded sources always end.
    pub idle: Option<Duration>,
}
