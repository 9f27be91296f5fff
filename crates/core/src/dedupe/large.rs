//! What state keeps of a key's large values.
//!
//! PostgreSQL sends an update without the values that are stored out of line and did not change. State fills them in: for every
//! row that may hold such values (see `shape`) it keeps those that may, from the first event on.
//!
//! A key without a record has a newest row that is complete and small, or deleted. A record's column is either *present* in the
//! newest row (then its value is kept, if it can move), or *unchanged* (then the value is that of the newest older event
//! that carried it, if one was seen). Older events that arrive late offer their values; an unchanged column takes the latest,
//! and the replica gets a patch.
//!
//! `since` is when the row last began, was read or ended: a value from before belongs to a row that is gone. When a key change
//! ends the row, its values go on a shelf for the heir, until it asks; the key may be used again meanwhile. An heir that asked
//! stays known for a while, because values of the old row may still arrive late.
//!
//! ```text
//! format  1 byte    1
//! since   stamp
//! columns count, each: name, flags (unchanged 1, has value 2, asked 4), path and value
//! shelves count, each: heir's key, end stamp, since stamp, known since (ms), columns as above
//! heirs   count, each: key, create stamp, known since (ms), schema, columns (name, served)
//! ```

use std::sync::Arc;

use super::cells::{put_schema, take_schema};
use super::encoding::{
    FORMAT, damaged, put_bytes, put_signed, take_byte, take_bytes, take_len, take_signed, take_text,
    unknown_format,
};
use super::forward::{Body, Forward, Kept};
use super::overlay::Stored;
use super::stamp::Stamp;
use crate::bytes::put_varint;
use crate::error::Result;
use crate::key::Key;
use crate::schema::RowSchema;
use crate::store::Space;

/// Heirs, and shelves, of one key that are remembered; the oldest goes first.
const HEIRS_MAX: usize = 4;
const UNCHANGED: u8 = 1;
const HAS_VALUE: u8 = 2;
const ASKED: u8 = 4;
/// `since_ms` of what came before the first barrier of a run.
pub(super) const TIME_UNKNOWN: i64 = 0;

/// A column of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    /// The column's name: columns move between schemas.
    pub(super) name: Box<str>,
    /// Whether the newest row came without it.
    pub(super) unchanged: bool,
    /// Whether it was asked for at an old key, where it is counted if nobody has it.
    pub(super) asked: bool,
    /// The last value, if one was seen.
    pub(super) value: Option<Kept>,
}

/// The values of a row that a key change took away.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Shelf {
    /// The row's new key.
    pub(super) heir: Key,
    /// When it left.
    pub(super) end: Stamp,
    since: Stamp,
    /// Wall time at the barrier before, ms; or [`TIME_UNKNOWN`].
    pub(super) since_ms: i64,
    /// What the row had.
    pub(super) columns: Vec<Known>,
}

/// A key that took this one's row over, and asked for its values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Heir {
    /// The new key.
    pub(super) key: Key,
    /// When it was created.
    pub(super) create: Stamp,
    /// Wall time at the barrier before, ms; or [`TIME_UNKNOWN`].
    pub(super) since_ms: i64,
    /// The new key's schema.
    pub(super) schema: Arc<RowSchema>,
    /// The columns that it needs, and whether it got a value or another key is to give it.
    pub(super) columns: Vec<(Box<str>, bool)>,
}

/// A key's record, see the module's docs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Large {
    since: Stamp,
    /// Columns with a value, or without one in the newest row.
    pub(super) columns: Vec<Known>,
    /// Rows that left.
    pub(super) shelves: Vec<Shelf>,
    /// Keys that took rows over.
    pub(super) heirs: Vec<Heir>,
}

impl Default for Large {
    fn default() -> Self {
        Self { since: Stamp::MIN, columns: Vec::new(), shelves: Vec::new(), heirs: Vec::new() }
    }
}

impl Large {
    /// Whether it says no more than its absence would.
    pub(super) fn is_void(&self) -> bool {
        self.columns.is_empty() && self.shelves.is_empty() && self.heirs.is_empty()
    }

    /// A column.
    pub(super) fn column(&self, name: &str) -> Option<&Known> {
        self.columns.iter().find(|c| &*c.name == name)
    }

    /// The row began, was complete, or ended, at `moment`: values from before are not those of rows after it.
    pub(super) fn begin(&mut self, moment: Stamp) {
        raise(&mut self.since, &mut self.columns, moment);
        for shelf in self.shelves.iter_mut().filter(|shelf| moment.is_before(&shelf.end)) {
            raise(&mut shelf.since, &mut shelf.columns, moment);
        }
    }

    /// The row left for another key: its values go on a shelf.
    pub(super) fn shelve(&mut self, heir: Key, end: Stamp, since_ms: i64) {
        let since = if self.since.is_before(&end) { self.since } else { Stamp::MIN };
        let had = |c: &&Known| c.value.as_ref().is_none_or(|kept| kept.is_before(&end));
        let columns = self.columns.iter().filter(had).map(|c| Known { unchanged: false, ..c.clone() });
        let columns = columns.filter(|c| c.value.is_some() || c.asked).collect();
        self.shelves.push(Shelf { heir, end, since, since_ms, columns });
        if self.shelves.len() > HEIRS_MAX {
            self.shelves.remove(0);
        }
    }

    /// Takes in a value that came late; whether the newest row lacks it.
    pub(super) fn offer(&mut self, name: &str, kept: Kept) -> bool {
        for shelf in self.shelves.iter_mut() {
            if !kept.is_before(&shelf.end) || kept.is_before(&shelf.since) {
                continue;
            }
            match shelf.columns.iter_mut().find(|c| &*c.name == name) {
                Some(column) if column.value.as_ref().is_some_and(|known| !kept.is_later_than(known)) => {}
                Some(column) => column.value = Some(kept.clone()),
                None => shelf.columns.push(Known {
                    name: name.into(),
                    unchanged: false,
                    asked: false,
                    value: Some(kept.clone()),
                }),
            }
        }
        if kept.is_before(&self.since) {
            return false;
        }
        match self.columns.iter_mut().find(|c| &*c.name == name) {
            Some(column) if column.unchanged => {
                let better = column.value.as_ref().is_none_or(|known| kept.is_later_than(known));
                if better {
                    column.value = Some(kept);
                }
                better
            }
            _ => false,
        }
    }

    /// A late event shows that the column was too small to move at `moment`: a value from before is not that of rows after.
    pub(super) fn retire(&mut self, name: &str, moment: &Stamp) {
        let shelves = self.shelves.iter_mut().filter(|shelf| moment.is_before(&shelf.end));
        let columns = shelves.flat_map(|shelf| &mut shelf.columns).chain(&mut self.columns);
        for column in columns.filter(|c| &*c.name == name) {
            column.value.take_if(|kept| kept.is_before(moment));
        }
    }

    /// Messages for heirs that can use some of `values`.
    pub(super) fn feed(&mut self, values: &[(Box<str>, Kept)]) -> Vec<Forward> {
        let mut forwards = Vec::new();
        for heir in &mut self.heirs {
            let mut fill = Vec::new();
            for (name, kept) in values {
                let wanted = heir.columns.iter_mut().find(|(wanted, _)| wanted == name);
                if let (Some((_, served)), true) = (wanted, kept.is_before(&heir.create)) {
                    *served = true;
                    fill.push((name.clone(), kept.inherited(heir.create)));
                }
            }
            if !fill.is_empty() {
                let (schema, to) = (Arc::clone(&heir.schema), heir.key.clone());
                forwards.push(Forward { schema, to, body: Body::Fill(fill) });
            }
        }
        forwards
    }

    /// Remembers an heir, unless it is known; whether it is new.
    pub(super) fn add_heir(&mut self, heir: Heir) -> bool {
        if self.heirs.iter().any(|known| known.key == heir.key && known.create == heir.create) {
            return false;
        }
        self.heirs.push(heir);
        if self.heirs.len() > HEIRS_MAX {
            self.heirs.remove(0);
        }
        true
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let since = Stamp::decode(bytes)?;
        let columns = take_columns(bytes)?;
        let mut shelves = Vec::new();
        for _ in 0..take_len(bytes)? {
            let heir = Key::from_bytes(take_bytes(bytes)?)?;
            let (end, since) = (Stamp::decode(bytes)?, Stamp::decode(bytes)?);
            let since_ms = take_signed(bytes)?;
            shelves.push(Shelf { heir, end, since, since_ms, columns: take_columns(bytes)? });
        }
        let mut heirs = Vec::new();
        for _ in 0..take_len(bytes)? {
            heirs.push(Heir::take(bytes)?);
        }
        Some(Self { since, columns, shelves, heirs })
    }
}

fn raise(since: &mut Stamp, columns: &mut Vec<Known>, moment: Stamp) {
    if since.is_before(&moment) {
        *since = moment;
    }
    for column in columns.iter_mut() {
        column.value.take_if(|kept| kept.is_before(&moment));
    }
    columns.retain(|c| c.unchanged || c.asked || c.value.is_some());
}

fn put_columns(out: &mut Vec<u8>, columns: &[Known]) {
    put_varint(out, columns.len() as u64);
    for column in columns {
        put_bytes(out, column.name.as_bytes());
        let has_value = if column.value.is_some() { HAS_VALUE } else { 0 };
        let asked = if column.asked { ASKED } else { 0 };
        out.push(has_value | asked | if column.unchanged { UNCHANGED } else { 0 });
        if let Some(kept) = &column.value {
            kept.encode(out);
        }
    }
}

fn take_columns(bytes: &mut &[u8]) -> Option<Vec<Known>> {
    let mut columns = Vec::new();
    for _ in 0..take_len(bytes)? {
        let name = take_text(bytes)?.into();
        let flags = take_byte(bytes)?;
        let value = if flags & HAS_VALUE != 0 { Some(Kept::decode(bytes)?) } else { None };
        let (unchanged, asked) = (flags & UNCHANGED != 0, flags & ASKED != 0);
        columns.push(Known { name, unchanged, asked, value });
    }
    Some(columns)
}

impl Heir {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.key.as_bytes());
        self.create.encode(out);
        put_signed(out, self.since_ms);
        put_schema(out, &self.schema);
        put_varint(out, self.columns.len() as u64);
        for (name, served) in &self.columns {
            put_bytes(out, name.as_bytes());
            out.push(u8::from(*served));
        }
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let key = Key::from_bytes(take_bytes(bytes)?)?;
        let create = Stamp::decode(bytes)?;
        let since_ms = take_signed(bytes)?;
        let schema = Arc::new(take_schema(bytes)?);
        let mut columns = Vec::new();
        for _ in 0..take_len(bytes)? {
            columns.push((take_text(bytes)?.into(), take_byte(bytes)? == 1));
        }
        Some(Self { key, create, since_ms, schema, columns })
    }
}

impl Stored for Large {
    const SPACE: Space = Space::Values;

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.footprint());
        out.push(FORMAT);
        self.since.encode(&mut out);
        put_columns(&mut out, &self.columns);
        put_varint(&mut out, self.shelves.len() as u64);
        for shelf in &self.shelves {
            put_bytes(&mut out, shelf.heir.as_bytes());
            shelf.end.encode(&mut out);
            shelf.since.encode(&mut out);
            put_signed(&mut out, shelf.since_ms);
            put_columns(&mut out, &shelf.columns);
        }
        put_varint(&mut out, self.heirs.len() as u64);
        for heir in &self.heirs {
            heir.put(&mut out);
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        match take_byte(&mut rest) {
            Some(FORMAT) => Self::take(&mut rest)
                .filter(|_| rest.is_empty())
                .ok_or_else(|| damaged("record of large values")),
            other => Err(unknown_format("a record of large values", other)),
        }
    }

    fn footprint(&self) -> usize {
        let column = |c: &Known| {
            let kept = |k: &Kept| k.bytes.len() + k.path.capacity() * size_of::<Stamp>();
            size_of::<Known>() + c.name.len() + c.value.as_ref().map_or(0, kept)
        };
        let heir = |h: &Heir| size_of::<Heir>() + h.schema.columns.len() * 64 + h.columns.len() * 40;
        let shelved = self.shelves.iter().flat_map(|s| &s.columns);
        size_of::<Self>()
            + self.columns.iter().chain(shelved).map(column).sum::<usize>()
            + self.shelves.len() * size_of::<Shelf>()
            + self.heirs.iter().map(heir).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Large::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            let _ = Large::decode(&bytes);
        }
    }
}
