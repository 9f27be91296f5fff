//! How much is known and not read yet, told to whoever watches while the source is busy.

use std::sync::atomic::{AtomicU64, Ordering};

use millstream_core::SourceFigures;

/// As of the last read.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    files: AtomicU64,
    bytes: AtomicU64,
}

impl Backlog {
    /// What is left in these files, each by its unread bytes.
    pub(super) fn set(&self, unread: impl Iterator<Item = u64>) {
        let (files, bytes) = unread.fold((0, 0u64), |(files, sum), n| (files + 1, sum.saturating_add(n)));
        self.files.store(files, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn figures(&self) -> SourceFigures {
        SourceFigures {
            unread_files: Some(self.files.load(Ordering::Relaxed)),
            unread_bytes: Some(self.bytes.load(Ordering::Relaxed)),
            ..SourceFigures::default()
        }
    }
}
