//! Encoded rows on their way to a table, and the records that they came from.

use std::sync::Arc;
use std::time::Instant;

use millstream_core::RecordBatch;

use crate::encode::{RowEncoder, RowWriter};
use crate::rows::Rows;

/// Rows of one table that wait to be sent.
#[derive(Default)]
pub(crate) struct Pending {
    writer: RowWriter,
    origins: Origins,
    /// When the first of them came.
    since: Option<Instant>,
}

/// Of a row that came from no record.
const MADE: u32 = u32::MAX;

/// For each row the record that it came from.
#[derive(Debug, Default, Clone)]
pub(crate) struct Origins {
    records: Vec<u32>,
    /// Batches, each with its first row.
    batches: Vec<(usize, Arc<RecordBatch>)>,
}

impl Origins {
    fn push(&mut self, batch: &Arc<RecordBatch>, record: u32) {
        if self.batches.last().is_none_or(|(_, last)| !Arc::ptr_eq(last, batch)) {
            self.batches.push((self.records.len(), batch.clone()));
        }
        self.records.push(record);
    }

    /// The record behind a row.
    pub(crate) fn of(&self, row: usize) -> Option<(Arc<RecordBatch>, u32)> {
        let record = *self.records.get(row).filter(|record| **record != MADE)?;
        let at = self.batches.partition_point(|(first, _)| *first <= row);
        Some((self.batches.get(at.checked_sub(1)?)?.1.clone(), record))
    }
}

impl Pending {
    /// Begins a row.
    pub(crate) fn begin(&mut self) -> RowEncoder<'_> {
        self.writer.begin()
    }

    /// The row that was just finished came from this record.
    pub(crate) fn note(&mut self, batch: &Arc<RecordBatch>, record: u32) {
        self.origins.push(batch, record);
        if self.since.is_none() {
            self.since = Some(Instant::now());
        }
    }

    /// The row that was just finished came from no record.
    pub(crate) fn note_made(&mut self) {
        self.origins.records.push(MADE);
    }

    /// Bytes that wait.
    pub(crate) fn byte_len(&self) -> usize {
        self.writer.byte_len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writer.is_empty()
    }

    /// Since when rows wait.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Hands out what waits.
    pub(crate) fn take(&mut self) -> (Rows, Origins) {
        self.since = None;
        (self.writer.take(), std::mem::take(&mut self.origins))
    }
}
