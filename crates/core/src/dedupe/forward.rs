//! Messages from one key's shard to another's, for large values that a key change left behind.
//!
//! A key change is a delete of the old key and a create of the new one, and the create does not carry the unchanged large
//! values: they are in the old key's state. So the new key's shard sends a *borrow* to the old key's, which remembers the new
//! key as an heir and answers with *fills*: at once with the values that it has, and later with those that arrive late.
//! A fill that reaches a key with heirs of its own is passed on, so that chains of key changes resolve.
//!
//! Forwards are idempotent and may overtake each other. They are part of the checkpoint of the epoch in which they were sent,
//! and are sent again on recovery.
//!
//! ```text
//! format 1 byte   1
//! kind   1 byte   0 borrow, 1 fill
//! schema          of the new key's rows
//! to              the receiving key
//! borrow: heir's key, its create's stamp, columns      fill: (column, path, value) …
//! ```

use std::sync::Arc;

use super::cells::{put_schema, take_schema, take_value};
use super::encoding::{
    FORMAT, damaged, put_bytes, take_byte, take_bytes, take_len, take_text, unknown_format,
};
use super::route::{shard_of_address, table_hash};
use super::stamp::Stamp;
use crate::bytes::put_varint;
use crate::error::Result;
use crate::key::Key;
use crate::row::RowBuilder;
use crate::schema::RowSchema;

/// How many key changes a value's path remembers; older steps are forgotten.
pub(super) const PATH_MAX: usize = 8;

/// A value on its way, or kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kept {
    /// Since when the key has the value: the stamp of the event that set it; or, if it was inherited, that of the create that
    /// took the key over, then the same at the key before, and so on. Paths compare left to right, so that values of one key
    /// sort by what the key had last.
    pub(super) path: Vec<Stamp>,
    /// The value, see `cells`.
    pub(super) bytes: Box<[u8]>,
}

impl Kept {
    /// The value as an heir has it since `create`.
    pub(super) fn inherited(&self, create: Stamp) -> Self {
        let path = std::iter::once(create).chain(self.path.iter().copied()).take(PATH_MAX).collect();
        Self { path, bytes: self.bytes.clone() }
    }

    /// Whether the key had it before `moment`.
    pub(super) fn is_before(&self, moment: &Stamp) -> bool {
        self.path[0].is_before(moment)
    }

    /// Whether the key had it later than `other`.
    pub(super) fn is_later_than(&self, other: &Kept) -> bool {
        for (mine, its) in self.path.iter().zip(&other.path) {
            if mine.is_before(its) || its.is_before(mine) {
                return its.is_before(mine);
            }
        }
        self.path.len() > other.path.len()
    }

    /// Appends path and value.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.path.len() as u8);
        for stamp in &self.path {
            stamp.encode(out);
        }
        put_bytes(out, &self.bytes);
    }

    /// Takes what [`encode`](Self::encode) wrote.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let steps = usize::from(take_byte(bytes)?);
        if !(1..=PATH_MAX).contains(&steps) {
            return None;
        }
        let path = (0..steps).map(|_| Stamp::decode(bytes)).collect::<Option<Vec<_>>>()?;
        let value = take_bytes(bytes)?;
        let mut rest = value;
        take_value(&mut rest, &mut RowBuilder::new())?;
        rest.is_empty().then(|| Self { path, bytes: value.into() })
    }
}

/// A request for the values that a key change left behind.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Borrow {
    /// The new key.
    pub(super) heir: Key,
    /// When it was created.
    pub(super) create: Stamp,
    /// The columns it came without. May be empty: then the old key only learns that it need keep nothing.
    pub(super) columns: Vec<Box<str>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Body {
    /// From the new key to the old.
    Borrow(Borrow),
    /// From the old key to the new.
    Fill(Vec<(Box<str>, Kept)>),
}

/// A message between the shards of two keys of one table. Opaque to the engine, which delivers it to
/// [`Gate::receive`](super::Gate::receive) of the shard it names.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward {
    /// Table, and columns of the heir's rows.
    pub(super) schema: Arc<RowSchema>,
    /// The receiving key.
    pub(super) to: Key,
    pub(super) body: Body,
}

impl Forward {
    /// The shard, below `shards`, that must receive it.
    pub fn shard(&self, shards: usize) -> usize {
        shard_of_address(table_hash(&self.schema.table), self.to.as_bytes(), shards)
    }

    /// Its bytes, as [`Barrier::forwards`](super::Barrier::forwards) holds them.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT, u8::from(matches!(self.body, Body::Fill(_)))];
        put_schema(&mut out, &self.schema);
        put_bytes(&mut out, self.to.as_bytes());
        match &self.body {
            Body::Borrow(borrow) => {
                put_bytes(&mut out, borrow.heir.as_bytes());
                borrow.create.encode(&mut out);
                put_varint(&mut out, borrow.columns.len() as u64);
                for name in &borrow.columns {
                    put_bytes(&mut out, name.as_bytes());
                }
            }
            Body::Fill(values) => {
                put_varint(&mut out, values.len() as u64);
                for (name, kept) in values {
                    put_bytes(&mut out, name.as_bytes());
                    kept.encode(&mut out);
                }
            }
        }
        out
    }

    /// From its bytes.
    ///
    /// # Errors
    /// Fatal if the format is unknown or the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        match take_byte(&mut rest) {
            Some(FORMAT) => Self::take(&mut rest)
                .filter(|_| rest.is_empty())
                .ok_or_else(|| damaged("forward between shards")),
            other => Err(unknown_format("a forward between shards", other)),
        }
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let kind = take_byte(bytes)?;
        let schema = Arc::new(take_schema(bytes)?);
        let to = Key::from_bytes(take_bytes(bytes)?)?;
        let body = match kind {
            0 => {
                let heir = Key::from_bytes(take_bytes(bytes)?)?;
                let create = Stamp::decode(bytes)?;
                let columns =
                    (0..take_len(bytes)?).map(|_| Some(take_text(bytes)?.into())).collect::<Option<_>>()?;
                Body::Borrow(Borrow { heir, create, columns })
            }
            1 => {
                let mut values = Vec::new();
                for _ in 0..take_len(bytes)? {
                    values.push((take_text(bytes)?.into(), Kept::decode(bytes)?));
                }
                Body::Fill(values)
            }
            _ => return None,
        };
        Some(Self { schema, to, body })
    }
}
