//! Appending rows: to one stream with offsets, each row once; or to the default streams of any number of tables, each at least once.
//!
//! An [`Appender`] has one connection, opened when there is something to send and closed when there was nothing for a while. Requests
//! follow each other without waiting for answers. A connection that is lost is opened again, and what is not acknowledged is sent again.
//!
//! - With offsets, a request that was written before is recognised by its offset. That there are rows at an offset which this appender
//!   did not send is an error: somebody else writes to the stream.
//! - Rows that the service refuses are reported; the others of their request are sent again without them. Offsets close up.
//! - An error that no retry mends ends an appender of a stream: everything from the failed request on is answered by it. Among default
//!   streams it ends the batch only.
//! - What callers hand over is bounded by its bytes; [`append`](Appender::append) waits for room.

mod part;
mod request;
mod worker;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::descriptor::Descriptor;
use crate::field::Field;
use crate::rows::Rows;
use crate::stream::Storage;
use crate::write_error::{WriteError, WriteErrorKind};
use worker::Worker;

/// Bytes of rows in a request. The service takes 10 MB with everything around them.
pub const REQUEST_BYTES_MAX: usize = 9_000_000;
/// Batches and questions that wait for the worker; bytes are bounded by themselves.
const QUEUE: usize = 256;

/// Bounds of an appender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendOptions {
    /// Bytes of rows that are taken and not yet acknowledged.
    pub bytes_max: usize,
    /// Bytes of rows in one request, at most [`REQUEST_BYTES_MAX`].
    pub request_bytes_max: usize,
    /// Requests that are sent and not yet answered.
    pub requests_max: usize,
    /// How long it goes on without any success before it gives up.
    pub patience: Duration,
    /// How long an answer may take before the connection counts as lost.
    pub answer_timeout: Duration,
    /// How long a connection is kept that nothing is sent on.
    pub idle: Duration,
    /// What the service's own logs show of where requests come from.
    pub trace_id: String,
}

impl Default for AppendOptions {
    fn default() -> Self {
        Self {
            bytes_max: 64 << 20,
            request_bytes_max: REQUEST_BYTES_MAX,
            requests_max: 64,
            patience: Duration::from_secs(120),
            answer_timeout: Duration::from_secs(60),
            idle: Duration::from_secs(120),
            trace_id: "millstream".to_owned(),
        }
    }
}

/// Rows for a stream.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The stream's full name.
    pub stream: Arc<str>,
    /// What the rows look like.
    pub descriptor: Descriptor,
    /// The rows.
    pub rows: Rows,
}

/// A row that the service refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowError {
    /// The number of its batch: the first that an appender takes is 0.
    pub batch: u64,
    /// Its place in the batch.
    pub index: usize,
    /// What is wrong with it. May quote its values.
    pub message: String,
}

/// A table whose columns have changed since the rows' descriptor was made.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdatedSchema {
    /// The stream that told.
    pub stream: Arc<str>,
    /// The table's columns.
    pub fields: Vec<Field>,
}

/// What became of rows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Acked {
    /// The offset of the last row that is in the stream; `None` for default streams, or if no row is.
    pub last_offset: Option<i64>,
    /// The rows that are not.
    pub row_errors: Vec<RowError>,
    /// The newest columns that the service told of, by stream.
    pub updated_schemas: Vec<UpdatedSchema>,
}

impl Acked {
    fn update(&mut self, stream: &Arc<str>, fields: Vec<Field>) {
        self.updated_schemas.retain(|known| known.stream != *stream);
        self.updated_schemas.push(UpdatedSchema { stream: stream.clone(), fields });
    }

    fn merge(&mut self, other: &Acked) {
        self.last_offset = self.last_offset.max(other.last_offset);
        self.row_errors.extend_from_slice(&other.row_errors);
        for UpdatedSchema { stream, fields } in &other.updated_schemas {
            self.update(stream, fields.clone());
        }
    }
}

/// What becomes of one batch. Whoever does not care drops it; the batch is written all the same.
#[must_use = "what became of the batch is known by it, or by a flush"]
pub struct Handle {
    number: u64,
    answer: oneshot::Receiver<Result<Acked, WriteError>>,
}

impl Handle {
    /// The batch's number, as in [`RowError::batch`].
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Future for Handle {
    type Output = Result<Acked, WriteError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(cx).map(|answer| answer.unwrap_or_else(|_| Err(ended())))
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({})", self.number)
    }
}

/// The worker is gone, with its runtime or by a panic.
fn ended() -> WriteError {
    WriteError::new(WriteErrorKind::Transient, "cannot append: the appender has ended")
}

pub(crate) enum Command {
    Append {
        number: u64,
        batch: Batch,
        room: OwnedSemaphorePermit,
        answer: oneshot::Sender<Result<Acked, WriteError>>,
    },
    Flush {
        answer: oneshot::Sender<Result<Acked, WriteError>>,
    },
}

/// Sends rows on one connection. Dropped, it sends nothing more, and what becomes of what was sent is unknown.
pub struct Appender {
    /// With the number of the next batch; locked while a batch is handed over, so that numbers are in the order of sending.
    commands: Mutex<(mpsc::Sender<Command>, u64)>,
    room: Arc<Semaphore>,
    room_max: usize,
    worker: JoinHandle<()>,
}

impl Drop for Appender {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

impl Appender {
    /// Appends to one stream that a client has made, whose next row gets `next_offset`. Such a stream takes one connection at a time.
    /// Needs a tokio runtime.
    pub fn to_stream(storage: Storage, stream: Arc<str>, next_offset: i64, options: AppendOptions) -> Self {
        Self::spawn(storage, Some((stream, next_offset)), options)
    }

    /// Appends to the default streams of tables, which have no offsets. Needs a tokio runtime.
    pub fn to_default_streams(storage: Storage, options: AppendOptions) -> Self {
        Self::spawn(storage, None, options)
    }

    fn spawn(storage: Storage, stream: Option<(Arc<str>, i64)>, mut options: AppendOptions) -> Self {
        options.request_bytes_max = options.request_bytes_max.clamp(1, REQUEST_BYTES_MAX);
        options.requests_max = options.requests_max.max(1);
        // Permits are counted in 32 bits.
        let room_max = options.bytes_max.clamp(1, 1 << 30);
        let (sender, receiver) = mpsc::channel(QUEUE);
        let worker = tokio::spawn(Worker::new(storage, stream, options, receiver).run());
        let room = Arc::new(Semaphore::new(room_max));
        Self { commands: Mutex::new((sender, 0)), room, room_max, worker }
    }

    /// Hands rows over, once there is room for them. A batch that is larger than all room waits until there is nothing else.
    ///
    /// # Errors
    /// If the appender has ended.
    pub async fn append(&self, batch: Batch) -> Result<Handle, WriteError> {
        let mut commands = self.commands.lock().await;
        let bytes = batch.rows.byte_len().min(self.room_max) as u32;
        let room = self.room.clone().acquire_many_owned(bytes).await.map_err(|_| ended())?;
        let (answer, receiver) = oneshot::channel();
        let number = commands.1;
        commands.0.send(Command::Append { number, batch, room, answer }).await.map_err(|_| ended())?;
        commands.1 += 1;
        Ok(Handle { number, answer: receiver })
    }

    /// Waits until everything that was handed over is answered, and tells what became of what was answered since the last flush.
    ///
    /// # Errors
    /// The first error of any batch since then. Rows of other batches may be written.
    pub async fn flush(&self) -> Result<Acked, WriteError> {
        let (answer, receiver) = oneshot::channel();
        self.commands.lock().await.0.send(Command::Flush { answer }).await.map_err(|_| ended())?;
        receiver.await.unwrap_or_else(|_| Err(ended()))
    }
}
