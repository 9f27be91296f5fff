//! Encoded rows on their way to a table, and the records that they came from.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use millstream_core::{Key, RecordBatch};

use crate::encode::{RowEncoder, RowWriter};
use crate::rows::Rows;

/// Rows of one table that wait to be sent.
#[derive(Default)]
pub(crate) struct Pending {
    writer: RowWriter,
    origins: Origins,
    /// When the first of them came.
    since: Option<Instant>,
    /// The last row of each key, where a later change takes its place.
    last: HashMap<Key, usize>,
    /// Rows whose place a later one has taken.
    replaced: HashSet<usize>,
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

    fn retain(&self, is_kept: impl Fn(usize) -> bool) -> Self {
        let mut kept = Self::default();
        for row in (0..self.records.len()).filter(|&row| is_kept(row)) {
            match self.of(row) {
                Some((batch, record)) => kept.push(&batch, record),
                None => kept.records.push(MADE),
            }
        }
        kept
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

    /// The row that was just finished is the newest of this key. Answers whether it takes the place of one that is not sent yet.
    pub(crate) fn replace(&mut self, key: &Key) -> bool {
        let at = self.origins.records.len() - 1;
        self.last.insert(key.clone(), at).is_some_and(|before| self.replaced.insert(before))
    }

    /// The row that was just finished is needed beside the one before it of this key.
    pub(crate) fn keep(&mut self, key: &Key) {
        self.last.remove(key);
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
        self.last.clear();
        let (rows, origins) = (self.writer.take(), std::mem::take(&mut self.origins));
        let replaced = std::mem::take(&mut self.replaced);
        if replaced.is_empty() {
            return (rows, origins);
        }
        let is_kept = |row: usize| !replaced.contains(&row);
        (rows.retain(is_kept), origins.retain(is_kept))
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::{PartitionId, Position, Value};

    use super::*;

    #[test]
    fn only_the_last_row_of_a_key_is_handed_out_with_its_origin() {
        let batches = ["a", "b"].map(|name| {
            Arc::new(RecordBatch {
                partition: PartitionId::new(name),
                buffer: Vec::new(),
                slots: Vec::new(),
                position: Position(Vec::new()),
            })
        });
        let [a, b] = [1, 2].map(|id| Key::from_values([Value::Int(id)]));
        let mut pending = Pending::default();
        let mut push = |batch: usize, record: u32, key: &Key, replaces: bool| {
            let mut row = pending.begin();
            row.put_int(1, i64::from(record));
            row.finish();
            pending.note(&batches[batch], record);
            if replaces {
                return pending.replace(key);
            }
            pending.keep(key);
            false
        };
        assert!(!push(0, 10, &a, true));
        assert!(!push(0, 11, &b, true));
        assert!(push(1, 12, &a, true));
        assert!(!push(1, 13, &b, false), "it leaves values of the row before it");
        assert!(!push(1, 14, &b, true), "what stands beside others is not taken out");
        let (rows, origins) = pending.take();
        assert_eq!(rows.len(), 4);
        let records: Vec<_> = (0..4).map(|row| origins.of(row).unwrap()).collect();
        assert_eq!(records.iter().map(|(_, r)| *r).collect::<Vec<_>>(), [11, 12, 13, 14]);
        assert!(Arc::ptr_eq(&records[0].0, &batches[0]) && Arc::ptr_eq(&records[1].0, &batches[1]));
        assert!(pending.is_empty() && pending.take().0.is_empty());
    }
}
