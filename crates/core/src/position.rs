//! Where a source stands: partitions and positions in them.

use std::fmt;
use std::sync::Arc;

use crate::bytes::fnv1a;

/// Names one independently positioned part of a source: a file's identity, a subscription. Stable across restarts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId(pub Arc<str>);

impl PartitionId {
    /// A partition called `name`.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// A stable 64-bit hash of the name (FNV-1a), the `partition` of [`crate::event::Origin`].
    pub fn stable_hash(&self) -> u64 {
        fnv1a(self.0.as_bytes())
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A position in a partition: opaque bytes of the source that made it, kept in checkpoints. Reading from it gives the
/// records after those that were read before it was taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Position(pub Vec<u8>);
