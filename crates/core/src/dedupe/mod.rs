//! Dedupe: which events are new, which are newest, and what unchanged large values are.
//!
//! One [`Gate`] judges the events of one shard, in the order in which they arrive, which may be any. It does no I/O and knows no
//! time but the one that barriers bring; committed state comes through a [`StateView`](crate::StateView), changed state goes
//! out at barriers and stays in memory until it is committed. All of its answers are functions of the committed state and of
//! what arrived since, so a gate that is rebuilt from a checkpoint judges redelivered events as the lost one did.
//!
//! What is kept, and how it is written, is described where it is done: `entry` (one key), `ids` and `run` (event ids), `large`
//! (values that may come unchanged), `tables`, and `route` (the keys of all these). Every entry begins with a format byte.
//! Why some orders are adjusted is in `adjust`; what travels between shards in `forward`.
//!
//! Bounds. Keys in memory: `cache_bytes`, and whatever changed since the last commit ([`Gate::dirty_bytes`]). Ids a key: see
//! `ids`. Heirs a key: 4. Tables and schemas: as many as the source has.

mod adjust;
mod again;
mod cache;
mod cells;
mod encoding;
mod entry;
mod forward;
mod gate;
mod ids;
mod inspect;
mod large;
mod overlay;
mod resolve;
mod route;
mod run;
mod shape;
mod stamp;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

pub use forward::Forward;
pub use gate::Gate;
pub use inspect::{KeyState, KnownValue, inspect, known_tables};
pub use route::shard_of;

use crate::counters::TableCounters;
use crate::store::StateDelta;

/// How duplicates are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// By event id: late events are kept if they were not seen.
    #[default]
    Exact,
    /// By order: what is not newer than its key's newest is a duplicate. Keeps one order a key; for replicas only.
    Latest,
    /// Not at all: every event is distinct and newest, no state is kept, unchanged values stay so.
    Off,
}

/// What the gates of a pipeline do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateConfig {
    /// How duplicates are found.
    pub mode: Mode,
    /// Ids of one key that are remembered, however old.
    pub ids_kept_min: usize,
    /// How long ids are remembered, however many, ms.
    pub ids_kept_ms: i64,
    /// How long the origins of keyless events are remembered, ms.
    pub keyless_kept_ms: i64,
    /// PostgreSQL's `toast_tuple_target`, bytes: values of smaller tuples are never stored out of line.
    pub toast_tuple_target: usize,
    /// Memory for state that could be read again, bytes, of each gate.
    pub cache_bytes: usize,
    /// Tables (`schema.table`) with REPLICA IDENTITY FULL, which never send unchanged values.
    pub full_identity: HashSet<String>,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Exact,
            ids_kept_min: 256,
            ids_kept_ms: 600_000,
            keyless_kept_ms: 3_600_000,
            toast_tuple_target: 2032,
            cache_bytes: 64 << 20,
            full_identity: HashSet::new(),
        }
    }
}

/// What a gate hands out at the end of an epoch.
#[derive(Debug)]
pub struct Barrier {
    /// Changed state.
    pub state: StateDelta,
    /// Counts of the epoch by table (`schema.table`).
    pub counters: BTreeMap<String, TableCounters>,
    /// Forwards sent in the epoch, encoded: sent again on recovery.
    pub forwards: Vec<Vec<u8>>,
}
