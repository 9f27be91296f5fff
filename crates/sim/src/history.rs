//! What the simulated database went through: tables, changes, and the rows that remain.
//!
//! The history is the truth that all checkers compare with. It is made before the pipeline starts, by
//! [`writer`](crate::writer), and never changes.

use std::collections::BTreeMap;

use millstream_core::{Op, Snapshot};

/// How a table identifies its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    /// By one integer.
    Integer,
    /// By an integer and a text.
    Pair,
    /// By one integer; events carry full before-images and never unchanged values.
    Full,
    /// Not at all.
    Keyless,
}

/// A table of the database.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) schema: &'static str,
    pub(crate) name: &'static str,
    pub(crate) identity: Identity,
}

/// The value of the column that may be stored out of line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Big {
    Null,
    Text(String),
    /// Not carried by the event.
    Unchanged,
}

/// A row but for its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cells {
    pub(crate) v: i64,
    pub(crate) big: Big,
}

/// One event: its index in [`History::changes`] is its identity for the checkers.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) table: usize,
    pub(crate) op: Op,
    /// `None` for keyless tables and truncates.
    pub(crate) id: Option<i64>,
    pub(crate) old_id: Option<i64>,
    pub(crate) new_id: Option<i64>,
    /// The position of the last commit before the transaction; `None` where the source does not tell.
    pub(crate) p: Option<u64>,
    pub(crate) lsn: u64,
    pub(crate) ts_us: i64,
    pub(crate) snapshot: Snapshot,
    /// `None` for deletes (but for full before-images) and truncates.
    pub(crate) cells: Option<Cells>,
}

impl Change {
    /// Whether the first sink refuses its row.
    pub(crate) fn is_poison(&self) -> bool {
        self.cells.as_ref().is_some_and(|cells| cells.v % 23 == 7)
    }
}

/// A record of the stream, before duplication and reordering.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// One change.
    Change(usize),
    /// Several rows of a keyless table in one record.
    Rows(Vec<usize>),
    /// What follows a delete.
    Tombstone,
    /// A transaction's BEGIN or END.
    Transaction(i64),
    Heartbeat(i64),
    /// Bytes that are no event.
    Malformed,
    /// A frame that cannot be read.
    BrokenFrame,
}

/// Rows by key.
pub(crate) type Rows = BTreeMap<i64, Cells>;

/// All that happened, and what remains.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) tables: Vec<Table>,
    pub(crate) changes: Vec<Change>,
    /// The records, in the source's order.
    pub(crate) stream: Vec<Item>,
    /// The rows at the end, by table; of keyless tables nothing.
    pub(crate) rows: Vec<Rows>,
    /// Whether transactions lock rows, so that LSNs order the changes of one key. Only then may a replay come without `p`.
    pub(crate) locks: bool,
}

impl History {
    /// One line about a change, for traces.
    pub(crate) fn describe(&self, change: usize) -> String {
        let c = &self.changes[change];
        let id = c.id.map_or_else(String::new, |id| format!(" id={id}"));
        let p = c.p.map_or_else(|| "-".to_owned(), |p| p.to_string());
        let big = match c.cells.as_ref().map(|cells| &cells.big) {
            None => "",
            Some(Big::Null) => " big=null",
            Some(Big::Unchanged) => " big=unchanged",
            Some(Big::Text(_)) => " big=text",
        };
        let moved = match (c.old_id, c.new_id) {
            (Some(old), _) => format!(" from id={old}"),
            (_, Some(new)) => format!(" to id={new}"),
            _ => String::new(),
        };
        let table = &self.tables[c.table];
        format!(
            "#{change} {} {}.{}{id}{moved} p={p} lsn={} ts={}{big}",
            c.op.code(),
            table.schema,
            table.name,
            c.lsn,
            c.ts_us
        )
    }
}
