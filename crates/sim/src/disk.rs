//! What survives a crash: the store, the sinks' warehouses, the dead letters, and what the broker knows of acknowledgements.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::checkpoint::SinkMark;
use millstream_core::{Checkpoint, Counters, DeadLetter, Epoch, PartitionId, Position, Space};

use crate::history_sink::Histories;
use crate::replica_sink::Replicas;

/// All durable things.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) store: Vault,
    pub(crate) savepoints: BTreeMap<String, Vault>,
    /// A store is open.
    pub(crate) store_open: bool,
    /// An older checkpoint was put back: sinks may have to take back committed epochs, until the next checkpoint.
    pub(crate) restored: bool,
    pub(crate) histories: BTreeMap<String, Histories>,
    pub(crate) replicas: BTreeMap<String, Replicas>,
    pub(crate) letters: Vec<DeadLetter>,
    pub(crate) broker: Broker,
}

impl Disk {
    /// The last epoch that a sink committed; `None` where no sink is called so.
    pub(crate) fn committed(&self, sink: &str) -> Option<Epoch> {
        let history = self.histories.get(sink).map(|w| w.committed);
        history.or_else(|| self.replicas.get(sink).map(|w| w.committed))
    }
}

/// The store's contents.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vault {
    pub(crate) checkpoint: Option<Saved>,
    pub(crate) state: BTreeMap<(Space, Vec<u8>), Vec<u8>>,
}

/// A checkpoint without its state.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub(crate) epoch: Epoch,
    pub(crate) committed: Epoch,
    pub(crate) positions: BTreeMap<PartitionId, Position>,
    pub(crate) sinks: Vec<SinkMark>,
    pub(crate) ingested_at_us: i64,
    pub(crate) watermarks: BTreeMap<PartitionId, i64>,
    pub(crate) watermark_ms: Option<i64>,
    pub(crate) counters: Counters,
    pub(crate) forwards: Vec<Vec<u8>>,
}

impl Saved {
    /// What is kept of a checkpoint beside its state, after `before`: it names only the partitions that moved.
    pub(crate) fn of(c: &Checkpoint, before: Option<&Self>) -> Self {
        let (mut positions, mut watermarks) =
            before.map(|before| (before.positions.clone(), before.watermarks.clone())).unwrap_or_default();
        positions.extend(c.positions.iter().cloned());
        watermarks.extend(c.watermarks.iter().cloned());
        Self {
            epoch: c.epoch,
            committed: c.committed,
            positions,
            sinks: c.sinks.clone(),
            ingested_at_us: c.ingested_at_us,
            watermarks,
            watermark_ms: c.watermark_ms,
            counters: c.counters.clone(),
            forwards: c.forwards.clone(),
        }
    }

    /// The checkpoint as a store hands it out.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        let saved = self.clone();
        Checkpoint {
            epoch: saved.epoch,
            committed: saved.committed,
            positions: saved.positions.into_iter().collect(),
            sinks: saved.sinks,
            ingested_at_us: saved.ingested_at_us,
            watermarks: saved.watermarks.into_iter().collect(),
            watermark_ms: saved.watermark_ms,
            counters: saved.counters,
            forwards: saved.forwards,
            ..Checkpoint::default()
        }
    }
}

/// What a broker knows of one source: deliveries by partition that were not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Broker {
    /// Sessions so far; one for each time the source is opened.
    pub(crate) sessions: u64,
    /// By partition: the first delivery that was never handed out.
    pub(crate) fresh: Vec<usize>,
    /// By partition: handed out and not acknowledged.
    pub(crate) pending: Vec<BTreeSet<usize>>,
}
