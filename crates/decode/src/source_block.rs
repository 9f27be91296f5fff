//! The `source` block of an envelope: where, when and at which position a change happened.

use millstream_core::{EventId, Incarnation, Order, Snapshot};

use crate::codec::bigint::digits;
use crate::envelope::{Flaw, Members};
use crate::scan::{Cursor, Number, ScanError, Str};

/// What `source.connector` says, as far as it decides how positions are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Connector {
    #[default]
    Postgres,
    /// MySQL or MariaDB.
    Mysql,
    /// One whose positions are not understood.
    Other,
}

/// The members of a source block that matter, as written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Source<'a> {
    pub(crate) connector: Option<Str<'a>>,
    /// Connector and table, where a [`Template`] told them.
    pub(crate) known: Option<(Connector, usize)>,
    pub(crate) db: Option<Str<'a>>,
    pub(crate) schema: Option<Str<'a>>,
    pub(crate) table: Option<Str<'a>>,
    pub(crate) ts_ms: Option<i64>,
    pub(crate) ts_us: Option<i64>,
    pub(crate) lsn: Option<i64>,
    pub(crate) sequence: Sequence<'a>,
    pub(crate) tx_id: Option<TxId<'a>>,
    pub(crate) snapshot: Snapshot,
    pub(crate) file: Option<Str<'a>>,
    pub(crate) pos: Option<i64>,
    pub(crate) row: Option<i64>,
    pub(crate) gtid: Option<Str<'a>>,
}

/// `source.sequence`: (last commit's LSN, LSN).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Sequence<'a> {
    /// Null or absent.
    #[default]
    Absent,
    /// Read while scanned.
    Read(Option<u64>, Option<u64>),
    /// A text in some other spelling.
    Text(Str<'a>),
}

impl<'a> Sequence<'a> {
    /// Reads the member at the cursor.
    #[inline]
    fn scan(cur: &mut Cursor<'a>, flaw: &mut Option<Flaw>) -> Result<Self, ScanError> {
        let mut ahead = cur.clone();
        if let Some((commit, lsn)) = Self::usual(&mut ahead) {
            *cur = ahead;
            return Ok(Sequence::Read(commit, lsn));
        }
        Ok(text(cur, "source.sequence", flaw)?.map_or(Sequence::Absent, Sequence::Text))
    }

    /// `"[\"24023189\",\"24023237\"]"` or `"[null,\"24023237\"]"`, quotes escaped as everybody does.
    #[inline]
    fn usual(cur: &mut Cursor<'a>) -> Option<(Option<u64>, Option<u64>)> {
        if !cur.eat(b"\"[") {
            return None;
        }
        let first = if cur.eat(b"null,") {
            None
        } else {
            if !cur.eat(b"\\\"") {
                return None;
            }
            let n = cur.unsigned()?;
            if !cur.eat(b"\\\",") {
                return None;
            }
            Some(n)
        };
        if !cur.eat(b"\\\"") {
            return None;
        }
        let second = cur.unsigned()?;
        cur.eat(b"\\\"]\"").then_some((first, Some(second)))
    }

    /// Its LSNs; `None` if it is something else.
    fn lsns(self) -> Option<(Option<u64>, Option<u64>)> {
        let text = match self {
            Sequence::Absent => return Some((None, None)),
            Sequence::Read(commit, lsn) => return Some((commit, lsn)),
            Sequence::Text(text) => text.decode(),
        };
        let items: Vec<Option<String>> = serde_json::from_str(&text).ok()?;
        let number = |at: usize| match items.get(at) {
            None | Some(None) => Some(None),
            Some(Some(n)) => n.parse().ok().map(Some),
        };
        Some((number(0)?, number(1)?))
    }
}

/// A transaction id as written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TxId<'a> {
    Int(i64),
    Text(Str<'a>),
}

impl<'a> Source<'a> {
    /// Reads the object at the cursor. A flaw is noted and reading goes on, so that broken JSON is found first.
    #[inline]
    pub(crate) fn read(cur: &mut Cursor<'a>, flaw: &mut Option<Flaw>) -> Result<Self, ScanError> {
        let mut source = Source::default();
        let mut seen = Members::default();
        let mut key = cur.first_key()?;
        while let Some(name) = key {
            source.member(name, cur, &mut seen, flaw)?;
            key = cur.next_key()?;
        }
        Ok(source)
    }

    #[inline]
    fn member(
        &mut self,
        name: Str<'a>,
        cur: &mut Cursor<'a>,
        seen: &mut Members<'a>,
        flaw: &mut Option<Flaw>,
    ) -> Result<(), ScanError> {
        let decoded = name.decode();
        let Some(bit) = bit_of(&decoded) else {
            seen.unknown(decoded, "source", flaw);
            return cur.skip();
        };
        seen.known(bit, "source", &decoded, flaw);
        self.value(bit, cur, flaw)
    }

    #[inline]
    fn value(&mut self, bit: u32, cur: &mut Cursor<'a>, flaw: &mut Option<Flaw>) -> Result<(), ScanError> {
        match bit {
            1 => self.connector = text(cur, "source.connector", flaw)?,
            3 => self.ts_ms = int(cur, "source.ts_ms", flaw)?,
            4 => self.snapshot = snapshot(cur, flaw)?,
            5 => self.db = text(cur, "source.db", flaw)?,
            6 => self.sequence = Sequence::scan(cur, flaw)?,
            7 => self.ts_us = int(cur, "source.ts_us", flaw)?,
            9 => self.schema = text(cur, "source.schema", flaw)?,
            10 => self.table = text(cur, "source.table", flaw)?,
            11 => {
                self.tx_id = match cur.byte() {
                    b'"' => Some(TxId::Text(cur.string()?)),
                    _ => int(cur, "source.txId", flaw)?.map(TxId::Int),
                }
            }
            12 => self.lsn = int(cur, "source.lsn", flaw)?,
            14 => self.file = text(cur, "source.file", flaw)?,
            15 => self.pos = int(cur, "source.pos", flaw)?,
            16 => self.row = int(cur, "source.row", flaw)?,
            17 => self.gtid = text(cur, "source.gtid", flaw)?,
            _ => cur.skip()?,
        }
        Ok(())
    }

    /// Which connector wrote it; told by its positions where it does not say.
    pub(crate) fn connector(&self) -> Connector {
        if let Some((connector, _)) = self.known {
            return connector;
        }
        match self.connector.map(|c| c.raw) {
            Some("postgresql") => Connector::Postgres,
            Some("mysql" | "mariadb") => Connector::Mysql,
            Some(_) => Connector::Other,
            None if self.file.is_some() => Connector::Mysql,
            None => Connector::Postgres,
        }
    }

    /// The change's place in its source.
    pub(crate) fn place(&self, incarnation: Incarnation, read: bool) -> Result<Place, Flaw> {
        match self.connector() {
            Connector::Postgres => self.postgres(incarnation, read),
            Connector::Mysql => self.mysql(incarnation, read),
            Connector::Other => Err(Flaw::new(
                "unsupported_connector",
                "source.connector is none of postgresql, mysql, mariadb: its positions are not understood",
            )),
        }
    }

    fn postgres(&self, incarnation: Incarnation, read: bool) -> Result<Place, Flaw> {
        let sequence = self.sequence.lsns().ok_or_else(|| {
            Flaw::new("wrong_type", "source.sequence must be a list of two LSNs as text, or null")
        })?;
        let lsn = match self.lsn {
            Some(lsn) => {
                u64::try_from(lsn).map_err(|_| Flaw::new("wrong_type", "source.lsn must not be negative"))?
            }
            None => sequence.1.ok_or_else(|| {
                Flaw::new("missing_field", "source.lsn is missing, and source.sequence has no LSN instead")
            })?,
        };
        let p = sequence.0;
        let order = if read { Order::postgres_read } else { Order::postgres };
        Ok(Place {
            order: order(incarnation, p.unwrap_or(lsn), lsn),
            id: EventId::postgres(incarnation, lsn, read),
            p_known: p.is_some(),
            lsn: i64::try_from(lsn).ok(),
        })
    }

    fn mysql(&self, incarnation: Incarnation, read: bool) -> Result<Place, Flaw> {
        let missing = |name: &str| Flaw::new("missing_field", format!("source.{name} is missing"));
        let number = |value: Option<i64>, name: &str| {
            u64::try_from(value.ok_or_else(|| missing(name))?)
                .map_err(|_| Flaw::new("wrong_type", format!("source.{name} must not be negative")))
        };
        let file = match self.file.map(Str::decode).as_deref() {
            // Incremental snapshots read between binlog events; a change that is known is never older than they are.
            None | Some("") if self.snapshot == Snapshot::Incremental => 0,
            None | Some("") => return Err(missing("file")),
            Some(name) => name.rsplit('.').next().and_then(|n| n.parse::<u32>().ok()).ok_or_else(|| {
                Flaw::new("wrong_type", "source.file must end in a dot and the binlog file's number")
            })?,
        };
        let pos = match self.pos {
            None if self.snapshot == Snapshot::Incremental => 0,
            pos => number(pos, "pos")?,
        };
        let row = u32::try_from(number(Some(self.row.unwrap_or(0)), "row")?)
            .map_err(|_| Flaw::new("wrong_type", "source.row must be below 2^32"))?;
        Ok(Place {
            order: Order::mysql(incarnation, file.into(), pos, row.into()),
            id: EventId::mysql(incarnation, file, pos, row, read),
            p_known: true,
            lsn: i64::try_from(pos).ok(),
        })
    }

    /// `txId` or GTID as text; `transaction` is the id of the envelope's transaction block.
    pub(crate) fn transaction_id(&self, transaction: Option<&str>) -> Option<Box<str>> {
        if let Some(gtid) = self.gtid {
            return Some(gtid.decode().into());
        }
        match self.tx_id {
            Some(TxId::Int(id)) => Some(decimal(id)),
            Some(TxId::Text(text)) => Some(text.decode().into()),
            None => {
                let id = transaction?;
                // PostgreSQL's block has `txId:lsn`, of which only the first part joins; a GTID has a colon of its own.
                let end = if self.connector() == Connector::Mysql { None } else { id.find(':') };
                Some(id[..end.unwrap_or(id.len())].into())
            }
        }
    }
}

/// The source block of one table, as pieces of text that never change around values that do.
///
/// Comparing a piece replaces scanning a handful of members. A block that matches is JSON with the same members as the
/// one that it was learned from, which was read member by member.
#[derive(Debug)]
pub(crate) struct Template {
    /// A piece up to a value, and the member that it belongs to.
    pieces: Box<[(Box<[u8]>, u32)]>,
    tail: Box<[u8]>,
    connector: Connector,
    table: usize,
}

/// Members that are the same in all blocks of a table: version, connector, name, db, schema, table.
const CONSTANT: u32 = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 9 | 1 << 10;
/// Stands for members whose values are only passed.
const PASSED: u32 = 31;

impl Template {
    /// Learns from a block that was read without a flaw.
    pub(crate) fn learn(text: &str, connector: Connector, table: usize) -> Option<Self> {
        let mut cur = Cursor::new(text, 0);
        let mut pieces = Vec::new();
        let mut start = 0;
        let mut key = cur.first_key().ok()?;
        while let Some(name) = key {
            let bit = bit_of(&name.decode()).unwrap_or(PASSED);
            let value = cur.at();
            cur.skip().ok()?;
            if bit == PASSED || CONSTANT & 1 << bit == 0 {
                pieces.push((text.as_bytes().get(start..value)?.into(), bit));
                start = cur.at();
            }
            key = cur.next_key().ok()?;
        }
        let tail = text.as_bytes().get(start..)?.into();
        Some(Self { pieces: pieces.into(), tail, connector, table })
    }

    /// Reads the block at the cursor if it matches.
    #[inline]
    pub(crate) fn read<'a>(&self, cur: &mut Cursor<'a>) -> Option<Source<'a>> {
        let mut at = cur.clone();
        at.enter().ok()?;
        let mut source = Source { known: Some((self.connector, self.table)), ..Source::default() };
        let mut flaw = None;
        for (piece, bit) in &self.pieces {
            if !at.eat(piece) {
                return None;
            }
            source.value(*bit, &mut at, &mut flaw).ok()?;
        }
        if flaw.is_some() || !at.eat(&self.tail) {
            return None;
        }
        at.leave();
        *cur = at;
        Some(source)
    }
}

/// The number of a known member.
fn bit_of(name: &str) -> Option<u32> {
    Some(match name {
        "version" => 0,
        "connector" => 1,
        "name" => 2,
        "ts_ms" => 3,
        "snapshot" => 4,
        "db" => 5,
        "sequence" => 6,
        "ts_us" => 7,
        "ts_ns" => 8,
        "schema" => 9,
        "table" => 10,
        "txId" => 11,
        "lsn" => 12,
        "xmin" => 13,
        "file" => 14,
        "pos" => 15,
        "row" => 16,
        "gtid" => 17,
        "server_id" => 18,
        "thread" => 19,
        "query" => 20,
        "origin" => 21,
        "origin_lsn" => 22,
        _ => return None,
    })
}

/// An integer's text.
pub(crate) fn decimal(n: i64) -> Box<str> {
    digits(n.unsigned_abs(), n < 0, &mut [0; 21]).into()
}

/// A change's order and identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) order: Order,
    pub(crate) id: EventId,
    pub(crate) p_known: bool,
    pub(crate) lsn: Option<i64>,
}

/// A nullable text member.
#[inline]
pub(crate) fn text<'a>(
    cur: &mut Cursor<'a>,
    name: &'static str,
    flaw: &mut Option<Flaw>,
) -> Result<Option<Str<'a>>, ScanError> {
    match cur.byte() {
        b'"' => cur.string().map(Some),
        b'n' => cur.literal("null").map(|()| None),
        _ => {
            Flaw::note(flaw, || Flaw::new("wrong_type", format!("{name} must be a text")));
            cur.skip().map(|()| None)
        }
    }
}

/// A nullable integer member.
#[inline]
pub(crate) fn int(
    cur: &mut Cursor<'_>,
    name: &'static str,
    flaw: &mut Option<Flaw>,
) -> Result<Option<i64>, ScanError> {
    if let Some(n) = cur.plain_int() {
        return Ok(Some(n));
    }
    if matches!(cur.byte(), b'-' | b'0'..=b'9') {
        if let Number::Int(n) = cur.number()? {
            return Ok(Some(n));
        }
    } else if cur.byte() == b'n' {
        return cur.literal("null").map(|()| None);
    } else {
        cur.skip()?;
    }
    Flaw::note(flaw, || Flaw::new("wrong_type", format!("{name} must be an integer of 64 bits")));
    Ok(None)
}

fn snapshot(cur: &mut Cursor<'_>, flaw: &mut Option<Flaw>) -> Result<Snapshot, ScanError> {
    // Early connector versions wrote a JSON boolean.
    if matches!(cur.byte(), b't' | b'f') {
        return Ok(if cur.raw()? == "true" { Snapshot::Yes } else { Snapshot::No });
    }
    Ok(text(cur, "source.snapshot", flaw)?.map_or(Snapshot::No, |s| snapshot_named(s.raw)))
}

/// `false`, `incremental`, or any of the words for a full snapshot (`true`, `first`, `last`, …).
pub(crate) fn snapshot_named(name: &str) -> Snapshot {
    match name {
        "false" | "" => Snapshot::No,
        "incremental" => Snapshot::Incremental,
        _ => Snapshot::Yes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_in_every_spelling() {
        let of = |raw: &str| {
            let text = format!("\"{raw}\"");
            let mut flaw = None;
            Sequence::scan(&mut Cursor::new(&text, 0), &mut flaw).unwrap().lsns()
        };
        assert_eq!(of(r#"[\"24\",\"25\"]"#), Some((Some(24), Some(25))));
        assert_eq!(of(r#"[null,\"25\"]"#), Some((None, Some(25))));
        assert_eq!(of(r#"[null, \u002225\u0022]"#), Some((None, Some(25))));
        assert_eq!(of(r#"[]"#), Some((None, None)));
        assert_eq!(of(r#"[\"x\",\"25\"]"#), None);
        assert_eq!(of("25"), None);
    }

    #[test]
    fn numbers_as_text() {
        for n in [0, 7, -7, i64::MAX, i64::MIN] {
            assert_eq!(*decimal(n), n.to_string());
        }
    }
}
