//! What state keeps of a key's large values.
//!
//! PostgreSQL sends an update without the values that are stored out of line and did not change. State fills them in: for every
//! row that may hold such values (see `shape`) it keeps those that may, from the first event on.
//!
//! A key without a record has a newest row that is complete and small, or deleted. A record's column is either *present* in the
//! newest row (then its value is kept, if it can move), or *unchanged* (then the value is that of the newest older event
//! that carried it, if one was seen). Older events that arrive late offer their values; an unchanged column takes the one with
//! the highest path, and the replica gets a patch.
//!
//! `since` is the order of the last create, read or delete of the key: a value from before it belongs to a row that is gone.
//! After the delete of a key change the record is *parting*: its values stay for the heir, until it asked. An heir stays
//! known for a while after, because values of the old key may still arrive late.
//!
//! ```text
//! format  1 byte    1
//! flags   1 byte    parting 1
//! since   order
//! columns count, each: name, flags (unchanged 1, has value 2, asked 4), path and value
//! heirs   count, each: key, order, limit, known since (ms), schema, columns (name, served)
//! ```

use std::sync::Arc;

use super::cells::{put_schema, take_schema};
use super::encoding::{
    FORMAT, damaged, put_bytes, put_order, put_signed, take_byte, take_bytes, take_len, take_order,
    take_signed, take_text, unknown_format,
};
use super::forward::{Body, Forward, Kept};
use super::overlay::Stored;
use crate::error::Result;
use crate::key::{Key, put_varint};
use crate::order::Order;
use crate::schema::RowSchema;
use crate::store::Space;

/// Heirs of one key that are remembered; the oldest goes first.
const HEIRS_MAX: usize = 4;
const PARTING: u8 = 1;
const UNCHANGED: u8 = 1;
const HAS_VALUE: u8 = 2;
const ASKED: u8 = 4;
/// `since_ms` of an heir that came before the first barrier of a run.
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

/// A key that took this one's row over.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Heir {
    /// The new key.
    pub(super) key: Key,
    /// Order of its create.
    pub(super) order: Order,
    /// The same among this key's events, which may have been adjusted against a read.
    pub(super) limit: Order,
    /// Wall time at the barrier before it was known, ms; or [`TIME_UNKNOWN`].
    pub(super) since_ms: i64,
    /// The new key's schema.
    pub(super) schema: Arc<RowSchema>,
    /// The columns that it needs, and whether it got a value or another key is to give it.
    pub(super) columns: Vec<(Box<str>, bool)>,
}

/// A key's record, see the module's docs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Large {
    /// Order of the last create, read or delete.
    pub(super) since: Order,
    /// Whether the newest event is the delete of a key change whose heir has not asked yet.
    pub(super) parting: bool,
    /// Columns with a value, or without one in the newest row.
    pub(super) columns: Vec<Known>,
    /// Keys that took the row over.
    pub(super) heirs: Vec<Heir>,
}

impl Default for Large {
    fn default() -> Self {
        Self { since: Order::MIN, parting: false, columns: Vec::new(), heirs: Vec::new() }
    }
}

impl Large {
    /// Whether it says no more than its absence would.
    pub(super) fn is_void(&self) -> bool {
        !self.parting && self.columns.is_empty() && self.heirs.is_empty()
    }

    /// A column.
    pub(super) fn column(&self, name: &str) -> Option<&Known> {
        self.columns.iter().find(|c| &*c.name == name)
    }

    /// The row began, or was complete, or ended, at `order`: values from before are not those of rows after it.
    pub(super) fn begin(&mut self, order: Order) {
        self.since = self.since.max(order);
        for column in &mut self.columns {
            column.value.take_if(|kept| kept.path[0] < order);
        }
        let parting = self.parting;
        self.columns.retain(|c| c.unchanged || c.value.is_some() || parting && c.asked);
    }

    /// Takes in a value that came late; whether the newest row lacks it.
    pub(super) fn offer(&mut self, name: &str, kept: Kept) -> bool {
        if kept.path[0] < self.since {
            return false;
        }
        match self.columns.iter_mut().find(|c| &*c.name == name) {
            Some(column) if column.unchanged || self.parting => {
                let better = column.value.as_ref().is_none_or(|known| kept.path > known.path);
                if better {
                    column.value = Some(kept);
                }
                better && column.unchanged
            }
            None if self.parting => {
                self.columns.push(Known {
                    name: name.into(),
                    unchanged: false,
                    asked: false,
                    value: Some(kept),
                });
                false
            }
            _ => false,
        }
    }

    /// A late event shows that the column was too small to move at `order`: a value from before is not the newest row's.
    pub(super) fn retire(&mut self, name: &str, order: Order) {
        if let Some(column) = self.columns.iter_mut().find(|c| &*c.name == name) {
            column.value.take_if(|kept| kept.path[0] < order);
        }
    }

    /// Messages for heirs that can use some of `values`.
    pub(super) fn feed(&mut self, values: &[(Box<str>, Kept)]) -> Vec<Forward> {
        let mut forwards = Vec::new();
        for heir in &mut self.heirs {
            let mut fill = Vec::new();
            for (name, kept) in values {
                let wanted = heir.columns.iter_mut().find(|(wanted, _)| wanted == name);
                if let (Some((_, served)), true) = (wanted, kept.path[0] < heir.limit) {
                    *served = true;
                    fill.push((name.clone(), kept.inherited(heir.order)));
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
        if self.heirs.iter().any(|known| known.key == heir.key && known.order == heir.order) {
            return false;
        }
        self.heirs.push(heir);
        if self.heirs.len() > HEIRS_MAX {
            let oldest = (0..self.heirs.len()).min_by_key(|&i| self.heirs[i].limit);
            oldest.map(|i| self.heirs.remove(i));
        }
        true
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let parting = match take_byte(bytes)? {
            0 => false,
            PARTING => true,
            _ => return None,
        };
        let since = take_order(bytes)?;
        let mut columns = Vec::new();
        for _ in 0..take_len(bytes)? {
            let name = take_text(bytes)?.into();
            let flags = take_byte(bytes)?;
            let value = if flags & HAS_VALUE != 0 { Some(Kept::decode(bytes)?) } else { None };
            let (unchanged, asked) = (flags & UNCHANGED != 0, flags & ASKED != 0);
            columns.push(Known { name, unchanged, asked, value });
        }
        let mut heirs = Vec::new();
        for _ in 0..take_len(bytes)? {
            heirs.push(Heir::take(bytes)?);
        }
        Some(Self { since, parting, columns, heirs })
    }
}

impl Heir {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.key.as_bytes());
        put_order(out, &self.order);
        put_order(out, &self.limit);
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
        let (order, limit) = (take_order(bytes)?, take_order(bytes)?);
        let since_ms = take_signed(bytes)?;
        let schema = Arc::new(take_schema(bytes)?);
        let mut columns = Vec::new();
        for _ in 0..take_len(bytes)? {
            columns.push((take_text(bytes)?.into(), take_byte(bytes)? == 1));
        }
        Some(Self { key, order, limit, since_ms, schema, columns })
    }
}

impl Stored for Large {
    const SPACE: Space = Space::Values;

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.footprint());
        out.extend([FORMAT, if self.parting { PARTING } else { 0 }]);
        put_order(&mut out, &self.since);
        put_varint(&mut out, self.columns.len() as u64);
        for column in &self.columns {
            put_bytes(&mut out, column.name.as_bytes());
            let has_value = if column.value.is_some() { HAS_VALUE } else { 0 };
            let asked = if column.asked { ASKED } else { 0 };
            out.push(has_value | asked | if column.unchanged { UNCHANGED } else { 0 });
            if let Some(kept) = &column.value {
                kept.encode(&mut out);
            }
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
            let kept = |k: &Kept| k.bytes.len() + k.path.capacity() * size_of::<Order>();
            size_of::<Known>() + c.name.len() + c.value.as_ref().map_or(0, kept)
        };
        let heir = |h: &Heir| size_of::<Heir>() + h.schema.columns.len() * 64 + h.columns.len() * 40;
        size_of::<Self>()
            + self.columns.iter().map(column).sum::<usize>()
            + self.heirs.iter().map(heir).sum::<usize>()
    }
}
