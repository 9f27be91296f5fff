//! Write streams that an application made: committed, buffered, pending.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use duckdb::arrow::array::RecordBatch;
use tonic::{Code, Status};

use crate::api;
use crate::api::storage_error::StorageErrorCode;
use crate::status;
use crate::table::{Mark, Pending, Shared, TableState};

/// When a stream's rows become visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Committed,
    Buffered,
    Pending,
}

impl Kind {
    /// The API's number of it.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Committed => api::write_stream::Type::Committed as i32,
            Self::Pending => api::write_stream::Type::Pending as i32,
            Self::Buffered => api::write_stream::Type::Buffered as i32,
        }
    }

    /// The one of a number.
    pub(crate) fn of(number: i32) -> Option<Self> {
        [Self::Committed, Self::Buffered, Self::Pending].into_iter().find(|kind| kind.number() == number)
    }
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) table: Shared,
    /// In microseconds.
    pub(crate) created: i64,
    /// The connection that appends; a newer one takes over.
    owner: AtomicU64,
    state: Mutex<StreamState>,
}

/// What of it changes.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// The offset of the next row.
    pub(crate) next: i64,
    /// How many rows are visible.
    pub(crate) flushed: i64,
    pub(crate) finalized: bool,
    /// When it was committed, in microseconds.
    pub(crate) committed: Option<i64>,
    /// Rows that are not visible yet, with the offset of the first.
    pub(crate) held: VecDeque<(i64, RecordBatch)>,
}

impl Stream {
    /// A new one.
    pub(crate) fn new(name: String, kind: Kind, table: Shared, created: i64, state: StreamState) -> Self {
        Self { name, kind, table, created, owner: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// Its state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection begins to append.
    pub(crate) fn take_over(&self, connection: u64) {
        self.owner.store(connection, Ordering::Relaxed);
    }

    /// Whether the connection may append.
    pub(crate) fn is_owned_by(&self, connection: u64) -> bool {
        self.owner.load(Ordering::Relaxed) == connection
    }

    /// Whether rows may be appended here.
    pub(crate) fn check(&self, state: &StreamState, offset: Option<i64>) -> Result<(), Status> {
        if state.finalized {
            let message = format!("Stream has been finalized and cannot be appended. Entity: {}", self.name);
            return Err(status::storage(
                Code::InvalidArgument,
                StorageErrorCode::StreamFinalized,
                &self.name,
                message,
            ));
        }
        match offset {
            Some(offset) if offset < 0 => {
                Err(Status::invalid_argument(format!("The offset {offset} is negative")))
            }
            Some(offset) if offset < state.next => Err(status::storage(
                Code::AlreadyExists,
                StorageErrorCode::OffsetAlreadyExists,
                "",
                format!(
                    "The offset is within stream, expected offset {}, received {offset} Entity: {}",
                    state.next, self.name
                ),
            )),
            Some(offset) if offset > state.next => Err(status::storage(
                Code::OutOfRange,
                StorageErrorCode::OffsetOutOfRange,
                &self.name,
                format!(
                    "The offset is beyond stream, expected offset {}, received {offset} Entity: {}",
                    state.next, self.name
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Appends rows; answers the offset of the first. `raw` is how they came, where they have to be durable.
    pub(crate) fn append(
        &self,
        offset: Option<i64>,
        batch: RecordBatch,
        raw: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<i64, Status> {
        let mut state = self.lock();
        self.check(&state, offset)?;
        let (start, rows) = (state.next, batch.num_rows() as i64);
        let mut table = self.table.lock();
        if table.dropped {
            return Err(status::no_table(&self.table.id));
        }
        state.next += rows;
        match self.kind {
            Kind::Committed => {
                state.flushed = state.next;
                table.push(Pending::Rows(batch));
            }
            Kind::Buffered | Kind::Pending => {
                state.held.push_back((start, batch));
                if let Some((descriptor, rows)) = &raw {
                    table.push(Pending::Mark(self.staged(start, descriptor, rows)));
                }
            }
        }
        if raw.is_some() {
            table.push(Pending::Mark(self.mark(&state)));
        }
        Ok(start)
    }

    /// Makes the rows up to this offset visible, and it with them.
    pub(crate) fn flush(&self, offset: i64, durable: bool) -> Result<(), Status> {
        let mut state = self.lock();
        if self.kind != Kind::Buffered {
            let message = format!("FlushRows is only supported on BUFFERED streams. Entity: {}", self.name);
            return Err(status::storage(
                Code::InvalidArgument,
                StorageErrorCode::InvalidStreamType,
                &self.name,
                message,
            ));
        }
        if state.finalized {
            let message = format!("Stream is finalized and cannot be flushed. Entity: {}", self.name);
            return Err(status::storage(
                Code::InvalidArgument,
                StorageErrorCode::StreamFinalized,
                &self.name,
                message,
            ));
        }
        if offset < 0 {
            return Err(Status::invalid_argument(format!("The offset {offset} is negative")));
        }
        if offset >= state.next {
            return Err(status::storage(
                Code::OutOfRange,
                StorageErrorCode::OffsetOutOfRange,
                &self.name,
                format!(
                    "Offset {offset} is beyond the end of the stream, which is {}. Entity: {}",
                    state.next, self.name
                ),
            ));
        }
        self.show(&mut state, &mut self.table.lock(), offset + 1, durable)
    }

    /// Moves rows below this offset to the table.
    fn show(
        &self,
        state: &mut StreamState,
        table: &mut TableState,
        until: i64,
        durable: bool,
    ) -> Result<(), Status> {
        if until <= state.flushed {
            return Ok(());
        }
        if table.dropped {
            return Err(status::no_table(&self.table.id));
        }
        while let Some((start, batch)) = state.held.pop_front() {
            let rows = batch.num_rows() as i64;
            if start >= until {
                state.held.push_front((start, batch));
                break;
            }
            let visible = (until - start).min(rows);
            table.push(Pending::Rows(batch.slice(0, visible as usize)));
            if visible < rows {
                let rest = batch.slice(visible as usize, (rows - visible) as usize);
                state.held.push_front((start + visible, rest));
            }
        }
        state.flushed = until;
        if durable {
            table.push(Pending::Mark(self.mark(state)));
            table.push(Pending::Mark(self.unstaged(until)));
        }
        Ok(())
    }

    /// Ends it; answers how many rows it has.
    pub(crate) fn finalize(&self, durable: bool) -> i64 {
        let mut state = self.lock();
        state.finalized = true;
        if durable {
            self.table.lock().push(Pending::Mark(self.mark(&state)));
        }
        state.next
    }

    /// Makes the rows of a pending stream visible. The caller holds the states of it and of its table, so that several are seen at once.
    pub(crate) fn commit(
        &self,
        state: &mut StreamState,
        table: &mut TableState,
        now: i64,
        durable: bool,
    ) -> Result<(), Status> {
        state.committed = Some(now);
        let until = state.next;
        self.show(state, table, until, durable)?;
        if durable {
            table.push(Pending::Mark(self.mark(state)));
        }
        Ok(())
    }

    /// What the emulator keeps about it.
    pub(crate) fn mark(&self, state: &StreamState) -> Mark {
        use duckdb::types::Value;
        let text = |text: &str| Value::Text(text.to_owned());
        Mark {
            sql: "INSERT OR REPLACE INTO __emulator.streams VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            parameters: vec![
                text(&self.name),
                text(&self.table.id.project),
                text(&self.table.id.dataset),
                text(&self.table.id.table),
                Value::Int(self.kind.number()),
                Value::BigInt(self.created),
                Value::BigInt(state.next),
                Value::BigInt(state.flushed),
                Value::Boolean(state.finalized),
                state.committed.map_or(Value::Null, Value::BigInt),
            ],
        }
    }

    fn staged(&self, start: i64, descriptor: &[u8], rows: &[u8]) -> Mark {
        use duckdb::types::Value;
        Mark {
            sql: "INSERT INTO __emulator.appends VALUES (?, ?, ?, ?)",
            parameters: vec![
                Value::Text(self.name.clone()),
                Value::BigInt(start),
                Value::Blob(descriptor.to_vec()),
                Value::Blob(rows.to_vec()),
            ],
        }
    }

    /// Requests before the last that begins below this offset are no longer needed.
    fn unstaged(&self, until: i64) -> Mark {
        use duckdb::types::Value;
        let name = Value::Text(self.name.clone());
        Mark {
            sql: "DELETE FROM __emulator.appends WHERE stream = ? AND start < \
                  (SELECT max(start) FROM __emulator.appends WHERE stream = ? AND start <= ?)",
            parameters: vec![name.clone(), name, Value::BigInt(until)],
        }
    }
}
