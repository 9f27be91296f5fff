//! The decoder's contract: bytes in, events out, bad input as data.

use crate::dead::{Cause, Stage};
use crate::event::Event;
use crate::record::{Range, Record};

/// Turns records into events. Pure: same records in the same order give the same output; no record stops it, whatever
/// its bytes are.
///
/// Every call pushes at least one item, so that records can be balanced against their outcomes.
pub trait Decoder: Send {
    /// Decodes one record and appends what came out of it.
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>);

    /// What policies did to values since the last call, each (code, table, column) once, in a stable order.
    fn notices(&mut self) -> Vec<DecodeNotice> {
        Vec::new()
    }
}

/// Values that a policy replaced while decoding: counted, never silent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodeNotice {
    /// Stable snake_case code, e.g. `date_out_of_range`.
    pub code: &'static str,
    /// The table (`schema.table`).
    pub table: String,
    /// The column.
    pub column: String,
    /// How many values.
    pub count: u64,
}

/// What came out of a record.
#[derive(Debug)]
pub enum Decoded {
    /// A change of a row.
    Event(Box<Event>),
    /// Something that moves positions and watermarks but changes no row.
    Control(Control),
    /// Refused.
    Dead(Refusal),
    /// The record holds several, whose values lie there in its own. Each is a record from now on, with the others of its batch, and
    /// this one counts as [`ControlKind::Array`]. Pushed alone, and of no record that is a [part](Record::part) itself.
    Several(Vec<Range>),
}

/// Why a record was refused. The engine adds the record's bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// Parse or validate.
    pub stage: Stage,
    /// Why.
    pub cause: Cause,
    /// The table, where it was known.
    pub table: Option<String>,
}

/// A control record, with the source's time where it told one (ms since the epoch).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Which.
    pub kind: ControlKind,
    /// The source's time, for the watermark.
    pub ts_ms: Option<i64>,
}

/// The kinds of control records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ControlKind {
    /// A delete's tombstone, or the JSON text `null`.
    Tombstone,
    /// A heartbeat.
    Heartbeat,
    /// A transaction's BEGIN or END.
    Transaction,
    /// A schema-change event (DDL).
    SchemaChange,
    /// A logical message (op `m`).
    Message,
    /// An event of a table that the config leaves out, or of a signal table.
    Filtered,
    /// An empty line, or an empty array.
    Empty,
    /// An array, whose elements are records of their own.
    Array,
}

impl ControlKind {
    /// All kinds, in the order of [`ControlKind::index`].
    pub const ALL: [ControlKind; 8] = [
        ControlKind::Tombstone,
        ControlKind::Heartbeat,
        ControlKind::Transaction,
        ControlKind::SchemaChange,
        ControlKind::Message,
        ControlKind::Filtered,
        ControlKind::Empty,
        ControlKind::Array,
    ];

    /// Its name in summaries and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ControlKind::Tombstone => "tombstone",
            ControlKind::Heartbeat => "heartbeat",
            ControlKind::Transaction => "transaction",
            ControlKind::SchemaChange => "schema_change",
            ControlKind::Message => "message",
            ControlKind::Filtered => "filtered",
            ControlKind::Empty => "empty",
            ControlKind::Array => "array",
        }
    }

    /// Its place in [`ControlKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }
}
