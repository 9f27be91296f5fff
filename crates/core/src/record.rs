//! What a source delivers.

use crate::dead::Cause;
use crate::position::{PartitionId, Position};
use crate::schema::TableName;

/// A byte range in a [`RecordBatch`]'s buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Range {
    /// First byte.
    pub start: u32,
    /// Number of bytes.
    pub len: u32,
}

/// One record's place in its batch.
#[derive(Debug, Clone, Default)]
pub struct Slot {
    /// The value; `None` where the source delivered none (a tombstone), or delivered the record in a broken frame
    /// (then `broken` says why and `value` holds the frame's bytes).
    pub value: Option<Range>,
    /// The key.
    pub key: Option<Range>,
    /// Headers or attributes, as (name, value) ranges.
    pub headers: Vec<(Range, Range)>,
    /// The topic or subscription, where the frame names one.
    pub topic: Option<Range>,
    /// Byte offset of the record in its file, or a number derived from the message id.
    pub offset: u64,
    /// Which part of a record that held several: 1 for the first; 0 for a record as it came.
    pub part: u32,
    /// The broker's id of the message.
    pub message_id: Option<Range>,
    /// When the broker took it, ms since the epoch.
    pub publish_ts_ms: Option<i64>,
    /// Which delivery of it this is, where the broker counts them: 1 for the first, approximately.
    pub delivery_attempt: Option<u32>,
    /// How often its processing failed before: 0 but for replayed dead letters.
    pub failures: u32,
    /// Why the frame around the record could not be read.
    pub broken: Option<Cause>,
    /// The sink that the record comes for again, as it refused its row: this sink takes the row although its event is no
    /// new one, and others leave it. In a batch all records come again or none.
    pub again_for: Option<Box<str>>,
    /// The table that is to be [swept](crate::event::Event::sweep). The record is no input, and no decoder sees it.
    pub sweep: Option<Box<TableName>>,
}

/// Records of one partition, in order, and the position after the last of them.
#[derive(Debug)]
pub struct RecordBatch {
    /// The partition.
    pub partition: PartitionId,
    /// The bytes that the slots point into.
    pub buffer: Vec<u8>,
    /// The records, in the partition's order.
    pub slots: Vec<Slot>,
    /// Where reading goes on after this batch.
    pub position: Position,
}

impl RecordBatch {
    /// The records, borrowed.
    pub fn records(&self) -> impl ExactSizeIterator<Item = Record<'_>> {
        self.slots.iter().map(|slot| Record { batch: self, slot })
    }

    /// The record of a slot; `None` behind the last one.
    pub fn record(&self, index: usize) -> Option<Record<'_>> {
        self.slots.get(index).map(|slot| Record { batch: self, slot })
    }

    /// Makes records of their own of parts of a record's value, behind the records that are there. All else they have from that record.
    pub fn split(&mut self, index: usize, parts: &[Range]) {
        if parts.is_empty() {
            return;
        }
        let whole = self.slots[index].clone();
        let start = whole.value.map_or(0, |value| value.start);
        let slot = |(part, range): (u32, &Range)| Slot {
            value: Some(Range { start: start + range.start, len: range.len }),
            part,
            ..whole.clone()
        };
        self.slots.extend((1..).zip(parts).map(slot));
    }

    /// Whether its records come [again](Slot::again_for) for sinks that refused their rows.
    pub fn is_again(&self) -> bool {
        self.slots.first().is_some_and(|slot| slot.again_for.is_some())
    }

    /// The bytes of a range.
    pub fn bytes(&self, range: Range) -> &[u8] {
        &self.buffer[range.start as usize..(range.start as usize + range.len as usize)]
    }
}

/// What a record carries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Body<'a> {
    /// A value.
    Value(&'a [u8]),
    /// No value: a tombstone.
    Tombstone,
    /// The frame around it could not be read; the frame's bytes and why.
    Broken(&'a [u8], &'a Cause),
}

/// A record: bytes, key bytes, headers, where and when from.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    batch: &'a RecordBatch,
    slot: &'a Slot,
}

/// A header or attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Name bytes.
    pub name: &'a [u8],
    /// Value bytes (for Debezium, a JSON text).
    pub value: &'a [u8],
}

impl<'a> Record<'a> {
    /// What it carries.
    pub fn body(&self) -> Body<'a> {
        let value = self.slot.value.map(|r| self.batch.bytes(r));
        match (&self.slot.broken, value) {
            (Some(cause), value) => Body::Broken(value.unwrap_or_default(), cause),
            (None, Some(value)) => Body::Value(value),
            (None, None) => Body::Tombstone,
        }
    }

    /// The key's bytes.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.slot.key.map(|r| self.batch.bytes(r))
    }

    /// The headers, in order.
    pub fn headers(&self) -> impl ExactSizeIterator<Item = Header<'a>> + use<'a> {
        let batch = self.batch;
        self.slot.headers.iter().map(move |&(n, v)| Header { name: batch.bytes(n), value: batch.bytes(v) })
    }

    /// The topic or subscription.
    pub fn topic(&self) -> Option<&'a [u8]> {
        self.slot.topic.map(|r| self.batch.bytes(r))
    }

    /// The partition.
    pub fn partition(&self) -> &'a PartitionId {
        &self.batch.partition
    }

    /// The table that it [sweeps](Slot::sweep).
    pub fn sweep(&self) -> Option<&'a TableName> {
        self.slot.sweep.as_deref()
    }

    /// Byte offset in the file, or a number derived from the message id.
    pub fn offset(&self) -> u64 {
        self.slot.offset
    }

    /// Which part of a record that held several it is: 1 for the first; 0 for a record as it came.
    pub fn part(&self) -> u32 {
        self.slot.part
    }

    /// The broker's id of the message.
    pub fn message_id(&self) -> Option<&'a [u8]> {
        self.slot.message_id.map(|r| self.batch.bytes(r))
    }

    /// Which delivery of it this is, where the broker counts them.
    pub fn delivery_attempt(&self) -> Option<u32> {
        self.slot.delivery_attempt
    }

    /// When the broker took it, ms since the epoch.
    pub fn publish_ts_ms(&self) -> Option<i64> {
        self.slot.publish_ts_ms
    }
}
