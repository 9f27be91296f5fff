//! The sink's contract.

use std::sync::Arc;

use crate::Fut;
use crate::checkpoint::{CommitToken, Epoch};
use crate::dead::Cause;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::key::Key;
use crate::order::Order;
use crate::record::RecordBatch;
use crate::row::Row;
use crate::schema::RowSchema;

/// An event with what dedupe said of it. Two gates, never one: histories take what is `distinct`, replicas what is
/// `newest`.
#[derive(Debug, Clone)]
pub struct Judged {
    /// The event; its `order` may have been adjusted (see dedupe).
    pub event: Box<Event>,
    /// No event with this id was seen before: the history takes it.
    pub distinct: bool,
    /// Newer than everything its key holds and than its table's last truncate: the replica applies it. Never set for
    /// events without a key, except truncates.
    pub newest: bool,
    /// Its source time was behind its partition's watermark.
    pub late: bool,
    /// The row with values that state knew in place of [`Value::Unchanged`](crate::Value::Unchanged) cells, where there
    /// were any; replicas write this one, histories write `event.row`.
    pub filled: Option<Row>,
}

impl Judged {
    /// The row that current-state layouts write.
    pub fn current_row(&self) -> &Row {
        self.filled.as_ref().unwrap_or(&self.event.row)
    }
}

/// Values of an older event for columns that the key's newest row did not carry: replicas set these columns and leave
/// the others; histories ignore it.
#[derive(Debug, Clone)]
pub struct Patch {
    /// Table and columns.
    pub schema: Arc<RowSchema>,
    /// The row to patch; absent from the replica if it was deleted since.
    pub key: Key,
    /// The order of the newest row, which must still be the replica's.
    pub order: Order,
    /// Columns to set, and a row of their values in the same order.
    pub columns: Vec<usize>,
    /// The values of `columns`.
    pub values: Row,
}

/// One item for sinks.
#[derive(Debug, Clone)]
pub enum Output {
    /// An event and its verdict.
    Event(Judged),
    /// Late values for an earlier event.
    Patch(Patch),
}

/// Outputs of one shard, in the order in which they must be applied, with the records they came from.
#[derive(Debug)]
pub struct OutputBatch {
    /// What to write.
    pub outputs: Vec<Output>,
    /// The records that the events' `record` indexes point into.
    pub records: Arc<RecordBatch>,
}

/// An event that the sink will not take. The engine makes a dead letter of its record.
#[derive(Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Index into [`OutputBatch::outputs`].
    pub output: usize,
    /// Why.
    pub cause: Cause,
}

/// A row that [`Sink::write`] had taken and the warehouse refused afterwards.
#[derive(Debug)]
pub struct Refused {
    /// The records that [`Refused::record`] points into.
    pub records: Arc<RecordBatch>,
    /// Which record it came from.
    pub record: u32,
    /// The table (`schema.table`).
    pub table: String,
    /// Why.
    pub cause: Cause,
}

/// What became of a batch's events in this sink: events = written + superseded + filtered + duplicates + rejected.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WriteReport {
    /// Rows written.
    pub written: u64,
    /// Events that the key's newer state made needless (replicas).
    pub superseded: u64,
    /// Events that this sink leaves out by its nature: a keyless event in a replica, a sweep where records are published as they came.
    pub filtered: u64,
    /// Events that were not distinct, or that came again for another sink.
    pub duplicates: u64,
    /// Refused events.
    pub rejected: Vec<Rejection>,
}

/// Something that a sink changed and people want to know: a column added, a table renamed by a collision, a value turned
/// NULL by policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkNotice {
    /// Stable snake_case code.
    pub code: &'static str,
    /// What happened, where.
    pub text: String,
    /// How many times, for counted conversions.
    pub count: u64,
}

/// What only the sink can know of itself, for those who watch it. `None`: it has no such figure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SinkFigures {
    /// Files that were written and are not in their tables.
    pub waiting_files: Option<u64>,
    /// Their bytes.
    pub waiting_bytes: Option<u64>,
    /// Load jobs that succeeded in this run.
    pub load_jobs: Option<u64>,
    /// Rows that they wrote.
    pub loaded_rows: Option<u64>,
    /// Bytes of the files that they read.
    pub loaded_bytes: Option<u64>,
}

/// Tells a sink's figures now; at most a few times a second, and within microseconds.
pub type TellSinkFigures = Arc<dyn Fn() -> SinkFigures + Send + Sync>;

/// Makes events visible in a warehouse, once.
///
/// The calls of one epoch: [`begin`](Self::begin), [`write`](Self::write) many times, [`prepare`](Self::prepare); then,
/// after the checkpoint that holds the token is durable, [`commit`](Self::commit), which may overlap with the next
/// epoch's writes. Epoch n + 1 is prepared only after n was committed.
///
/// Crash behaviour. Before the checkpoint: everything since the last token is abandoned, and its records come again.
/// After the checkpoint, before `commit`: [`recover`](Self::recover) gets the token and finishes the commit. A sink
/// either stages rows invisibly in `prepare` and shows them in `commit`, or shows them in `prepare` and takes them back
/// in `recover` if no checkpoint names them; then rows may be visible one epoch early.
pub trait Sink: Send {
    /// Brings the warehouse to the state of `last` (the token of the last checkpoint; `None` before the first): finishes
    /// its commit if need be and removes everything written after it. Called once, before `begin`. Idempotent.
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>>;

    /// An epoch begins. `ingested_at_us` (µs since 1970) is the `__ingested_at` of its rows; it strictly increases from
    /// epoch to epoch, across restarts too.
    fn begin(&mut self, epoch: Epoch, ingested_at_us: i64) -> Fut<'_, Result<()>>;

    /// Takes a batch. A refused event is reported, not an error.
    fn write<'a>(&'a mut self, batch: &'a OutputBatch) -> Fut<'a, Result<WriteReport>>;

    /// Makes the epoch's rows durable. `None` if the epoch had none; the last token stays in force then.
    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>>;

    /// Makes the token's rows visible. Idempotent.
    fn commit<'a>(&'a mut self, token: &'a CommitToken) -> Fut<'a, Result<()>>;

    /// The run ends well, and its last epoch is committed: what the sink does now and then is done once more, so that readers see all
    /// that was committed. Not called where a run is cancelled or fails; what is left undone, also by a crash in it, is the next
    /// [`recover`](Self::recover)'s to do.
    fn finish(&mut self) -> Fut<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Rows that the warehouse refused after [`write`](Self::write) had counted them as written; asked once
    /// [`prepare`](Self::prepare) is through, of which they are part. Each of them once.
    fn refused(&mut self) -> Vec<Refused> {
        Vec::new()
    }

    /// Resolves with an error if work fails for good that the sink does beside the flow, such as loads of files: the attempt ends then, also
    /// while no row comes and no epoch ends. Asked once, after [`recover`](Self::recover); never resolves where there is no such work.
    fn failure(&self) -> Fut<'static, Error> {
        Box::pin(std::future::pending())
    }

    /// Who tells its figures, while it runs; `None` if it has none.
    fn figures(&self) -> Option<TellSinkFigures> {
        None
    }

    /// What it changed since the last call; each notice once.
    fn notices(&mut self) -> Vec<SinkNotice> {
        Vec::new()
    }
}
