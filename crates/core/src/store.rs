//! The checkpoint store's contract.

use std::sync::Arc;

use crate::Fut;
use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// The kinds of keyed state. Entries of one space share an encoding; see [`crate::dedupe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// One entry a key: newest order, flags, recent event ids.
    Keys,
    /// Older event ids of busy keys, in segments.
    Ids,
    /// Known values of columns that may come unchanged.
    Values,
    /// One entry a table: its name and last truncate.
    Tables,
}

impl Space {
    /// All spaces.
    pub const ALL: [Space; 4] = [Space::Keys, Space::Ids, Space::Values, Space::Tables];

    /// Its name in the store.
    pub fn name(self) -> &'static str {
        match self {
            Space::Keys => "keys",
            Space::Ids => "ids",
            Space::Values => "values",
            Space::Tables => "tables",
        }
    }
}

/// Changed keyed state of one epoch: later writes of a key win; `None` removes it.
#[derive(Debug, Default)]
pub struct StateDelta {
    /// (space, key, value).
    pub writes: Vec<(Space, Vec<u8>, Option<Vec<u8>>)>,
}

/// Reads the state of the last committed checkpoint. Cheap to share; safe to use while a commit runs, when it answers
/// with the state before or after, never a mixture within one entry.
pub trait StateView: Send + Sync {
    /// The value of a key.
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Calls `visit` with every entry whose key starts with `prefix`, in key order, until it answers `false`.
    fn scan(&self, space: Space, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()>;
}

/// Durable checkpoints. One store belongs to one running pipeline; a second opener is refused.
pub trait Store: Send {
    /// The last committed checkpoint, without its state (which the [`view`](Self::view) reads). `None` before the first.
    fn latest(&mut self) -> Fut<'_, Result<Option<Checkpoint>>>;

    /// Writes positions, state, tokens and counters in one atomic, fsynced step: after it returns `Ok` they survive any
    /// crash; if it fails, or never returns, either all or nothing of them does.
    fn commit(&mut self, checkpoint: Checkpoint) -> Fut<'_, Result<()>>;

    /// Reads committed state.
    fn view(&self) -> Arc<dyn StateView>;

    /// Makes a named, portable copy of the last committed checkpoint and returns where it is. An existing name is an
    /// error.
    fn savepoint<'a>(&'a mut self, name: &'a str) -> Fut<'a, Result<String>>;

    /// Bytes that the store uses on disk.
    fn disk_bytes(&self) -> u64;
}
