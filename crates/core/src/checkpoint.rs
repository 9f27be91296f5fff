//! The one durable write that ends an epoch.

use crate::counters::Counters;
use crate::order::Incarnation;
use crate::position::{PartitionId, Position};
use crate::store::StateDelta;

/// The unit of commit: everything between two barriers. The first is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The next epoch.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// What a sink needs to finish, or take back, an epoch: opaque bytes of that sink, at most a few KiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitToken(pub Vec<u8>);

/// A sink's last token and the last epoch that the sink is known to have committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkMark {
    /// The sink's name in the config, e.g. `duckdb`.
    pub sink: String,
    /// The epoch that `token` belongs to.
    pub epoch: Epoch,
    /// Its token.
    pub token: CommitToken,
}

/// Everything that an epoch leaves behind, written in one atomic step.
#[derive(Debug, Default)]
pub struct Checkpoint {
    /// The epoch that it ends.
    pub epoch: Epoch,
    /// The last epoch that every sink had committed when this was written; `epoch - 1` unless nothing was written since.
    pub committed: Epoch,
    /// The config's incarnation, which never goes down.
    pub incarnation: Incarnation,
    /// Where partitions go on. Written: those that moved in the epoch, since there may be thousands; read back: all.
    pub positions: Vec<(PartitionId, Position)>,
    /// The last token of each sink that ever gave one.
    pub sinks: Vec<SinkMark>,
    /// `__ingested_at` of the epoch, µs; the next one must be larger.
    pub ingested_at_us: i64,
    /// Highest source time seen per partition, ms, for watermarks. Written: those that rose in the epoch; read back: all.
    pub watermarks: Vec<(PartitionId, i64)>,
    /// The source time, ms, that the pipeline's watermark has come to, without its delay.
    pub watermark_ms: Option<i64>,
    /// Conservation counters since the pipeline's first start.
    pub counters: Counters,
    /// Messages between shards that were sent in this epoch; sent again on recovery (they are idempotent). Encoded by
    /// [`crate::dedupe`].
    pub forwards: Vec<Vec<u8>>,
    /// Changed keyed state. Empty when read back: the store's view holds it.
    pub state: StateDelta,
}
