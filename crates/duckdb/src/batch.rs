//! Rows on their way into a table, in chunks of DuckDB's vector size.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use duckdb::Connection;
use millstream_core::{Field, Result};

use crate::column_data::ColumnData;
use crate::error::Explain;
use crate::handover::Offered;
use crate::ident::{qualify, quote};
use crate::session::Session;

/// Rows in a chunk: DuckDB's vector size.
pub(crate) const CHUNK_ROWS: usize = 2048;

/// Some rows of a table.
pub(crate) struct Chunk {
    /// All of one length.
    pub(crate) columns: Vec<ColumnData>,
    /// The rows to write, in order; `None` for all.
    pub(crate) kept: Option<Vec<u32>>,
}

impl Chunk {
    /// Rows in it.
    pub(crate) fn all_rows(&self) -> usize {
        self.columns.first().map_or(0, ColumnData::rows)
    }

    /// Bytes of memory that its values take.
    pub(crate) fn bytes(&self) -> usize {
        self.columns.iter().map(ColumnData::bytes).sum()
    }

    /// Rows to write.
    pub(crate) fn rows(&self) -> usize {
        self.kept.as_ref().map_or(self.all_rows(), Vec::len)
    }
}

/// The rows of one table on their way to being inserted: a chunk that is being built in the caller's columns, and
/// finished ones.
pub(crate) struct Batches {
    fields: Arc<[Field]>,
    /// Rows of the chunk that is being built, and about their bytes.
    rows: usize,
    bytes: usize,
    waiting: Vec<Chunk>,
    waiting_rows: usize,
    waiting_bytes: usize,
    /// Chunks that were inserted, for their memory: new memory has to be zeroed by the kernel first, which cost more than
    /// filling it.
    spare: Vec<Chunk>,
    spare_bytes: usize,
    /// Bytes of chunks that are being inserted, and how they come back.
    away_bytes: usize,
    back: (Sender<Inserted>, Receiver<Inserted>),
}

/// Chunks whose rows are in their table.
pub(crate) struct Inserted {
    pub(crate) chunks: Vec<Chunk>,
    /// What they took when they were handed over.
    pub(crate) bytes: usize,
}

/// Rows that wait in memory before they are inserted. A few chunks stay in the processor's cache, and pay for planning a
/// statement.
const ROWS_MAX: usize = 4 * CHUNK_ROWS;

/// Bytes that do the same, and that are kept for the next rows.
const BYTES_MAX: usize = 32 << 20;

/// A chunk ends early at this many bytes, so that large rows don't add up.
const CHUNK_BYTES_MAX: usize = 8 << 20;

impl Batches {
    /// None yet, of a table of these columns.
    pub(crate) fn new(fields: Vec<Field>) -> Self {
        Self {
            fields: fields.into(),
            rows: 0,
            bytes: 0,
            waiting: Vec::new(),
            waiting_rows: 0,
            waiting_bytes: 0,
            spare: Vec::new(),
            spare_bytes: 0,
            away_bytes: 0,
            back: channel(),
        }
    }

    /// Rows of the chunk that is being built.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Counts a row that was pushed to the columns, and about its bytes.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.rows += 1;
        self.bytes += bytes;
    }

    /// Whether the chunk that is being built should end.
    pub(crate) fn chunk_is_full(&self) -> bool {
        self.rows >= CHUNK_ROWS || self.bytes >= CHUNK_BYTES_MAX
    }

    /// Bytes of memory that it keeps.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes + self.waiting_bytes + self.spare_bytes + self.away_bytes
    }

    /// Ends the chunk, of which the columns hold the rows and are empty then, and begins to insert if enough have come together.
    pub(crate) fn end_chunk<'a>(
        &mut self,
        columns: impl Iterator<Item = &'a mut ColumnData>,
        session: &Session,
        place: Place<'_>,
    ) -> Result<()> {
        self.push(columns);
        if self.waiting_rows < ROWS_MAX && self.waiting_bytes < BYTES_MAX {
            return Ok(());
        }
        self.insert(session, place)
    }

    /// The same, begins to insert whatever waits, and keeps no memory for the next rows.
    pub(crate) fn flush<'a>(
        &mut self,
        columns: impl Iterator<Item = &'a mut ColumnData>,
        session: &Session,
        place: Place<'_>,
    ) -> Result<()> {
        self.push(columns);
        let begun = self.insert(session, place);
        self.spare = Vec::new();
        self.spare_bytes = 0;
        // What is away is for nobody then. Most of thousands of tables have nothing away.
        if std::mem::take(&mut self.away_bytes) > 0 {
            self.back = channel();
        }
        begun
    }

    fn push<'a>(&mut self, columns: impl Iterator<Item = &'a mut ColumnData>) {
        if self.rows == 0 {
            return;
        }
        self.rows = 0;
        self.bytes = 0;
        self.reclaim();
        let spare = self.spare.pop();
        self.spare_bytes -= spare.as_ref().map_or(0, Chunk::bytes);
        let mut spare = spare.into_iter().flat_map(|chunk| chunk.columns);
        let columns: Vec<_> = columns.map(|column| column.take_for(spare.next())).collect();
        let chunk = Chunk { columns, kept: None };
        self.waiting_rows += chunk.rows();
        self.waiting_bytes += chunk.bytes();
        self.waiting.push(chunk);
    }

    /// Takes back chunks that were inserted meanwhile. Large rows are not worth keeping memory for.
    fn reclaim(&mut self) {
        while let Ok(Inserted { chunks, bytes }) = self.back.1.try_recv() {
            self.away_bytes -= bytes;
            if self.spare_bytes + bytes < BYTES_MAX {
                self.spare_bytes += chunks.iter().map(Chunk::bytes).sum::<usize>();
                self.spare.extend(chunks);
            }
        }
    }

    fn insert(&mut self, session: &Session, place: Place<'_>) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.waiting_rows = 0;
        self.away_bytes += std::mem::take(&mut self.waiting_bytes);
        let chunks = std::mem::take(&mut self.waiting);
        session.inserter.insert(place, &self.fields, chunks, &self.back.0)
    }
}

/// A table's full name.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// `temp`, or `None` for the database itself.
    pub(crate) catalog: Option<&'a str>,
    pub(crate) dataset: &'a str,
    pub(crate) table: &'a str,
}

/// Inserts chunks into a table whose columns these are, in order, and gives them back.
pub(crate) fn insert(
    connection: &Connection,
    place: Place<'_>,
    fields: &Arc<[Field]>,
    chunks: Vec<Chunk>,
) -> Result<Vec<Chunk>> {
    let catalog = place.catalog.map_or(String::new(), |catalog| quote(catalog) + ".");
    let table = catalog + &qualify(place.dataset, place.table);
    let offered = Offered::new(fields.clone(), chunks);
    connection
        .execute_batch(&format!("INSERT INTO {table} FROM {}", offered.sql()))
        .explain(|| format!("inserting into {}.{}", place.dataset, place.table))?;
    Ok(offered.take_back())
}
