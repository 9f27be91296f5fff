//! The source's contract.

use std::sync::Arc;

use crate::Fut;
use crate::error::Result;
use crate::position::{PartitionId, Position};
use crate::record::RecordBatch;

/// How much one [`Source::next`] may hand out.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// At most this many records.
    pub records: usize,
    /// Stop adding records once this many bytes are gathered; a single larger record still comes whole.
    pub bytes: usize,
}

/// What a source had to give.
#[derive(Debug)]
pub enum Next {
    /// Records of one partition.
    Batch(RecordBatch),
    /// Nothing now; ask again later. The source has already waited a little (about its poll interval) for records.
    Idle,
    /// Nothing now, and it cannot tell whether there is something: it is not connected, or records may still be leased to who had
    /// them before. It has waited like for `Idle`.
    Waiting,
    /// Nothing before something is released: the source has handed out all that it may have unacknowledged. The epoch ends
    /// early for it. The source has waited like for `Idle`.
    Held,
    /// Nothing any more: a bounded source is at its end.
    End,
}

/// Something to say about a source's input that is neither a record nor a failure: a file was truncated or replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Stable snake_case code.
    pub code: &'static str,
    /// What happened, where, what was done.
    pub text: String,
}

/// What only the source can know of itself, for those who watch it. `None`: it has no such figure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SourceFigures {
    /// Messages that the broker delivered and that are not acknowledged.
    pub outstanding_messages: Option<u64>,
    /// The same in bytes.
    pub outstanding_bytes: Option<u64>,
    /// How many messages may be outstanding; the broker sends no more then.
    pub outstanding_messages_max: Option<u64>,
    /// The same in bytes.
    pub outstanding_bytes_max: Option<u64>,
    /// How long the broker kept messages back on some connection because that much was outstanding there, ms in all.
    pub held_ms: Option<u64>,
    /// How long ago the oldest of them was delivered, ms; 0 if there is none.
    pub oldest_outstanding_ms: Option<u64>,
    /// Connections over which the broker delivers now.
    pub open_streams: Option<u64>,
    /// Files that are known to hold more than was read.
    pub unread_files: Option<u64>,
    /// What is known of them and not read; of compressed files nothing.
    pub unread_bytes: Option<u64>,
    /// Messages that the broker said it had delivered before. Pub/Sub says so where it has a dead-letter topic.
    pub redelivered: Option<u64>,
}

/// Tells a source's figures now; at most a few times a second, and within microseconds.
pub type TellFigures = Arc<dyn Fn() -> SourceFigures + Send + Sync>;

/// Delivers records of one or many partitions, merged into one stream.
///
/// Ordering: records of one partition come in its order; partitions interleave freely. Duplication: after a crash
/// records behind the last checkpoint's positions come again, and a source may redeliver any record at any time.
/// Loss: a source never skips a record that [`release`](Self::release) has not covered.
pub trait Source: Send {
    /// Starts delivery behind `positions`; partitions that are not named start at their beginning (or where the config
    /// says). Called once, before anything else.
    fn open<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>>;

    /// The next records of some partition. Dropping the future loses nothing: what it had gathered comes again.
    fn next(&mut self, budget: Budget) -> Fut<'_, Result<Next>>;

    /// Every record up to these positions is durable: acknowledge. Of partitions that are not named nothing new is.
    /// Idempotent; may never come (crash), or come for several checkpoints at once.
    fn release<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>>;

    /// The last call, after the last release, when the pipeline ends: waits until what was released is acknowledged, as far as
    /// that can be had within seconds. Never comes after a crash. `cancelled`: there was no last checkpoint, and what was
    /// handed out and not released may be given back at once.
    fn close(&mut self, cancelled: bool) -> Fut<'_, Result<()>> {
        let _ = cancelled;
        Box::pin(async { Ok(()) })
    }

    /// Partitions of which everything was delivered that is there now, since the last call and before what the last
    /// [`next`](Self::next) gave: they hold no watermark back until they give more.
    fn resting(&mut self) -> Vec<PartitionId> {
        Vec::new()
    }

    /// What happened to the input since the last call; each notice once.
    fn notices(&mut self) -> Vec<Notice> {
        Vec::new()
    }

    /// What tells how it stands, at any time and from any thread. Asked for once, after [`open`](Self::open).
    fn figures(&self) -> Option<TellFigures> {
        None
    }
}
