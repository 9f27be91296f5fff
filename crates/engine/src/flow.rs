//! What the stages say to each other, and the bound on what is under way.
//!
//! A barrier takes the same way as the records, so that every stage sees one clean cut. Between intake and dispatch
//! work is handed round robin to the decode workers and collected in the same turn, which keeps the source's order
//! without locks or sequence numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_core::counters::SinkCounters;
use millstream_core::decoder::{ControlKind, Refusal};
use millstream_core::dedupe::{Barrier as GateBarrier, Forward};
use millstream_core::sink::SinkNotice;
use millstream_core::{
    CommitToken, Counters, DeadLetter, Epoch, Error, Event, OutputBatch, PartitionId, Position, RecordBatch,
};
use tokio::sync::OwnedSemaphorePermit;

use crate::latency::Stamp;

/// An epoch's number and the `__ingested_at` of its rows, µs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpochStart {
    pub(crate) epoch: Epoch,
    pub(crate) ingested_at_us: i64,
}

/// Ends `epoch`; `next` begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Barrier {
    pub(crate) epoch: Epoch,
    pub(crate) next: EpochStart,
}

/// A share of the in-flight budget, given back when the last part of its batch is done with.
pub(crate) type Permit = Arc<OwnedSemaphorePermit>;

/// Intake → decode worker.
pub(crate) enum Work {
    Batch(RecordBatch, Permit),
    /// Partitions that were read to their end.
    Rest(Vec<PartitionId>),
    Barrier(Barrier),
}

/// Decode worker → dispatch.
pub(crate) enum Worked {
    Batch(DecodedBatch),
    Rest(Vec<PartitionId>),
    Barrier(Barrier),
}

/// A decoded batch, its events already split by shard.
pub(crate) struct DecodedBatch {
    pub(crate) records: Arc<RecordBatch>,
    pub(crate) permit: Permit,
    pub(crate) events: Vec<Vec<Box<Event>>>,
    pub(crate) refusals: Vec<(u32, Refusal)>,
    pub(crate) control: [u64; ControlKind::ALL.len()],
    pub(crate) decoded: u64,
    pub(crate) bytes: u64,
    pub(crate) highest_ms: Option<i64>,
    pub(crate) stamps: Vec<Stamp>,
    pub(crate) notices: Vec<SinkNotice>,
}

/// Dispatch → shard.
pub(crate) enum ToShard {
    Batch(ShardBatch),
    Barrier(Barrier),
}

/// One shard's events of a batch.
pub(crate) struct ShardBatch {
    pub(crate) events: Vec<Box<Event>>,
    pub(crate) records: Arc<RecordBatch>,
    pub(crate) permit: Permit,
    /// The partition's watermark before this batch.
    pub(crate) watermark_ms: Option<i64>,
}

/// Beside the events' way, to a shard.
pub(crate) enum Aside {
    /// A message from another shard (or itself), and the epoch in which that one sent it.
    Forward { forward: Forward, sent_in: Epoch },
    /// The last barrier's state is durable.
    Committed,
}

/// Shard → sink.
#[derive(Clone)]
pub(crate) enum ToSink {
    /// Late values that came by a forward hold no share of the budget.
    Batch(Arc<OutputBatch>, Option<Permit>),
    Barrier(Barrier),
}

/// Any stage → coordinator.
pub(crate) enum Report {
    /// Dispatch passed a barrier: what was read up to it.
    Cut(Cut),
    /// A shard passed a barrier.
    Shard { barrier: GateBarrier, cached_keys: usize },
    /// A sink prepared an epoch.
    Sink { index: usize, epoch: Epoch, token: Option<CommitToken>, counters: SinkCounters },
    /// A sink made a token visible.
    Committed { epoch: Epoch },
    /// A sink has nothing left to do.
    Finished,
    /// Dead letters of an epoch; the permit bounds how many can wait.
    Letters { epoch: Epoch, letters: Vec<DeadLetter>, permit: Option<Permit> },
    /// The source gives nothing more until something is released.
    Held,
    /// The source is at its end, or idle for as long as the settings allow.
    Exhausted,
    /// Something to count and show.
    Notice(SinkNotice),
}

/// What dispatch saw of an epoch.
pub(crate) struct Cut {
    pub(crate) epoch: Epoch,
    pub(crate) positions: BTreeMap<PartitionId, Position>,
    pub(crate) watermarks: Vec<(PartitionId, i64)>,
    pub(crate) watermark_ms: Option<i64>,
    pub(crate) counters: Counters,
    pub(crate) stamps: Vec<Stamp>,
}

/// Coordinator → intake.
pub(crate) enum IntakeOrder {
    Barrier(Barrier),
    Release(Vec<(PartitionId, Position)>),
    Pause(bool),
    /// Take nothing in any more; barriers go on.
    Stop,
    /// Let the source go; see [`Source::close`](millstream_core::Source::close).
    Close {
        cancelled: bool,
    },
}

/// Why a stage ended before the pipeline did.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It failed: the cause to show.
    Failed(Error),
    /// The stage at the other end of a channel is gone, and has the cause.
    Neighbour,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

/// What a stage's work gives.
pub(crate) type Staged<T = ()> = Result<T, Stop>;

/// A channel's other end is gone.
pub(crate) fn gone<E>(_: E) -> Stop {
    Stop::Neighbour
}
