//! Rows on their way into a table, in chunks of DuckDB's vector size.
//!
//! Chunks are that small because the appender converts a batch vector by vector and, for lists, converts all elements of
//! the batch each time.

use duckdb::Connection;
use duckdb::arrow::array::{ArrayRef, RecordBatch};
use duckdb::arrow::datatypes::{Fields, Schema, SchemaRef};
use millstream_core::{Error, Result};

use crate::error::Explain;

/// Rows in a chunk: DuckDB's vector size.
pub(crate) const CHUNK_ROWS: usize = 2048;

/// Finished chunks that wait to be appended.
pub(crate) struct Batches {
    schema: SchemaRef,
    chunks: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Batches {
    pub(crate) fn new(fields: Fields) -> Self {
        Self { schema: SchemaRef::new(Schema::new(fields)), chunks: Vec::new(), rows: 0, bytes: 0 }
    }

    /// Adds a chunk.
    pub(crate) fn push(&mut self, columns: Vec<ArrayRef>) -> Result<()> {
        let chunk = RecordBatch::try_new(self.schema.clone(), columns).map_err(|e| {
            Error::fatal("invariant: the builders of a table make its columns").with_source(e)
        })?;
        self.rows += chunk.num_rows();
        self.bytes += chunk.get_array_memory_size();
        self.chunks.push(chunk);
        Ok(())
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the chunks out.
    pub(crate) fn take(&mut self) -> Vec<RecordBatch> {
        self.rows = 0;
        self.bytes = 0;
        std::mem::take(&mut self.chunks)
    }

    /// Appends the chunks to a table in the connection's transaction.
    pub(crate) fn append(&mut self, connection: &Connection, place: Place<'_>) -> Result<()> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        append(connection, place, self.take())
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

/// Appends chunks to a table.
pub(crate) fn append(connection: &Connection, place: Place<'_>, chunks: Vec<RecordBatch>) -> Result<()> {
    let doing = || format!("appending to {}.{}", place.dataset, place.table);
    let mut appender = match place.catalog {
        Some(catalog) => connection.appender_to_catalog_and_db(place.table, catalog, place.dataset),
        None => connection.appender_to_db(place.table, place.dataset),
    }
    .explain(doing)?;
    for chunk in chunks {
        appender.append_record_batch(chunk).explain(doing)?;
    }
    appender.flush().explain(doing)
}
