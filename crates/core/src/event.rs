//! A decoded change of one row.

use std::sync::Arc;

use crate::key::Key;
use crate::order::{EventId, Incarnation, Order};
use crate::row::Row;
use crate::schema::{RowSchema, TableName};

/// What happened to the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Read by a snapshot (`r`).
    Read,
    /// Created (`c`).
    Create,
    /// Updated (`u`).
    Update,
    /// Deleted (`d`).
    Delete,
    /// The whole table was emptied (`t`); the event has no key and no row.
    Truncate,
}

impl Op {
    /// Debezium's one-letter code.
    pub fn code(self) -> &'static str {
        match self {
            Op::Read => "r",
            Op::Create => "c",
            Op::Update => "u",
            Op::Delete => "d",
            Op::Truncate => "t",
        }
    }
}

/// Debezium's `source.snapshot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Snapshot {
    /// Not part of a snapshot (`false`, null or absent).
    #[default]
    No,
    /// Part of an initial or ad-hoc blocking snapshot (`true`, `first`, `last`, …).
    Yes,
    /// Read by an incremental snapshot.
    Incremental,
}

/// What the source says about an event besides its row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Facts {
    /// `source.ts_ms`: when the change was committed, ms since 1970-01-01T00:00:00Z. `None` if the source told none.
    pub ts_ms: Option<i64>,
    /// `source.ts_us`, or `ts_ms × 1000`.
    pub ts_us: Option<i64>,
    /// PostgreSQL's `source.lsn`; MySQL's `source.pos`.
    pub lsn: Option<i64>,
    /// PostgreSQL's `txId`, MySQL's GTID, or the transaction block's id up to the colon; as text.
    pub transaction_id: Option<Box<str>>,
    /// Snapshot or stream.
    pub snapshot: Snapshot,
    /// When the connector handled the event (envelope `ts_ms`), ms.
    pub processed_ts_ms: Option<i64>,
    /// The same in µs (envelope `ts_us`), or `processed_ts_ms × 1000`: the order of emission within one connector run.
    pub processed_ts_us: Option<i64>,
    /// The `source` object's JSON text; kept only where a layout asks for it (see the decoder's options).
    pub source_json: Option<Box<str>>,
    /// The `transaction` object's JSON text; kept like `source_json`.
    pub transaction_json: Option<Box<str>>,
}

/// A decoded change of one row of one table.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The table and the columns of `row` and `before`.
    pub schema: Arc<RowSchema>,
    /// What happened.
    pub op: Op,
    /// The row's key; `None` for keyless tables and truncates.
    pub key: Option<Key>,
    /// The key that the row had before a key change (header `__debezium.oldkey` on the create).
    pub old_key: Option<Key>,
    /// The key that the row has after a key change (header `__debezium.newkey` on the delete).
    pub new_key: Option<Key>,
    /// Its order among the events of its key.
    pub order: Order,
    /// Whether the order's `p` came with the event. `false` where `source.sequence[0]` was null and the event's own LSN
    /// stands in for it (initial snapshot reads, the first transaction after a connector's start); such an order may
    /// have to be adjusted. Always `true` for sources whose order has no `p`.
    pub p_known: bool,
    /// Its identity within table and key.
    pub id: EventId,
    /// The row after the change. For a delete: the key columns, and the others only where the before-image is known to
    /// be full. Empty for a truncate.
    pub row: Row,
    /// The row before the change, where the event carried one.
    pub before: Option<Box<Row>>,
    /// Whether `before` is known to be a full image (REPLICA IDENTITY FULL, MySQL); then large values need no memory.
    pub full_before: bool,
    /// What the source says besides.
    pub facts: Facts,
    /// Which record it came from: `partition` index and offset, the identity of keyless events.
    pub origin: Origin,
    /// Index of the record within its batch, so that a sink's refusal finds the original bytes.
    pub record: u32,
}

impl Event {
    /// A sweep: what the table holds of earlier incarnations is gone, as with a truncate at the start of `incarnation`. All sweeps
    /// of a table in one incarnation are the same event, so that a second one is a duplicate.
    pub fn sweep(table: TableName, incarnation: Incarnation) -> Self {
        Self {
            schema: Arc::new(RowSchema { table: Arc::new(table), columns: Vec::new(), key: Vec::new() }),
            op: Op::Truncate,
            key: None,
            old_key: None,
            new_key: None,
            order: Order::start(incarnation),
            p_known: true,
            id: EventId::start(incarnation),
            row: Row::default(),
            before: None,
            full_before: false,
            // It is no doing of the source, which has no time for it.
            facts: Facts::default(),
            origin: Origin::default(),
            record: 0,
        }
    }

    /// Bytes that it keeps in memory, for flow control.
    pub fn footprint(&self) -> usize {
        size_of::<Self>()
            + self.row.footprint()
            + self.before.as_ref().map_or(0, |b| b.footprint())
            + self.facts.source_json.as_ref().map_or(0, |s| s.len())
    }
}

/// Where a record came from: names one delivery position of a source, stable across restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Origin {
    /// A stable 64-bit identity of the partition (a hash of the file's identity or the subscription's name).
    pub partition: u64,
    /// Byte offset in the file, or a number derived from the message id.
    pub offset: u64,
    /// Index of the event, or of the part that it came from, within its record (0 unless one record holds many rows).
    pub index: u32,
}
