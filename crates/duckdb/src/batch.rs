//! Rows on their way into a table, in chunks of DuckDB's vector size.

use std::sync::Arc;

use duckdb::Connection;
use millstream_core::{Field, Result};

use crate::column_data::ColumnData;
use crate::error::Explain;
use crate::handover::Offered;
use crate::ident::{qualify, quote};

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

    fn bytes(&self) -> usize {
        self.columns.iter().map(ColumnData::bytes).sum()
    }

    /// Rows to write.
    pub(crate) fn rows(&self) -> usize {
        self.kept.as_ref().map_or(self.all_rows(), Vec::len)
    }
}

/// Finished chunks that wait to be inserted.
pub(crate) struct Batches {
    fields: Arc<[Field]>,
    chunks: Vec<Chunk>,
    /// Chunks that were inserted, for their memory: new memory has to be zeroed by the kernel first, which cost more than
    /// filling it.
    spare: Vec<Chunk>,
    rows: usize,
    /// Bytes of the chunks and of the spare ones.
    bytes: usize,
}

/// Rows and bytes that wait in memory before they are inserted. A few chunks stay in the processor's cache, and pay for
/// planning a statement.
const ROWS_MAX: usize = 4 * CHUNK_ROWS;
const BYTES_MAX: usize = 32 << 20;

impl Batches {
    /// None yet, of a table of these columns.
    pub(crate) fn new(fields: Vec<Field>) -> Self {
        Self { fields: fields.into(), chunks: Vec::new(), spare: Vec::new(), rows: 0, bytes: 0 }
    }

    /// Adds a chunk of what the columns hold, which are empty then.
    pub(crate) fn push<'a>(&mut self, columns: impl Iterator<Item = &'a mut ColumnData>) {
        let mut spare = self.spare.pop().into_iter().flat_map(|chunk| chunk.columns);
        let columns: Vec<_> = columns.map(|column| column.take_for(spare.next())).collect();
        let chunk = Chunk { columns, kept: None };
        self.rows += chunk.rows();
        self.bytes += chunk.bytes();
        self.chunks.push(chunk);
    }

    /// Bytes of memory that it keeps.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Inserts the chunks into a table in the connection's transaction, if enough have come together.
    pub(crate) fn relieve(&mut self, connection: &Connection, place: Place<'_>) -> Result<()> {
        if self.rows < ROWS_MAX && self.bytes < BYTES_MAX {
            return Ok(());
        }
        self.insert(connection, place)
    }

    /// Inserts the chunks, and gives back all memory.
    pub(crate) fn flush(&mut self, connection: &Connection, place: Place<'_>) -> Result<()> {
        let inserted = self.insert(connection, place);
        self.spare = Vec::new();
        self.bytes = 0;
        inserted
    }

    fn insert(&mut self, connection: &Connection, place: Place<'_>) -> Result<()> {
        self.rows = 0;
        if !self.chunks.is_empty() {
            let chunks = std::mem::take(&mut self.chunks);
            self.spare = insert(connection, place, &self.fields, chunks)?;
        }
        // Large rows are not worth keeping memory for.
        if self.bytes >= BYTES_MAX {
            self.spare = Vec::new();
        }
        self.bytes = self.spare.iter().map(Chunk::bytes).sum();
        Ok(())
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
