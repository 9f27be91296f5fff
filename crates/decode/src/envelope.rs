//! The Debezium envelope: one pass over its members, strict about what decides and tolerant of what it does not know.

use std::borrow::Cow;
use std::collections::HashSet;

use millstream_core::decoder::ControlKind;

use crate::moment::control_ms;
use crate::scan::{Cursor, ScanError, Str};
use crate::source_block::{Source, int, text};

/// Why an envelope that is JSON is no event: a code and a text without values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) code: &'static str,
    pub(crate) text: String,
}

impl Flaw {
    #[cold]
    pub(crate) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Keeps the first flaw.
    #[cold]
    pub(crate) fn note(slot: &mut Option<Flaw>, flaw: impl FnOnce() -> Flaw) {
        if slot.is_none() {
            *slot = Some(flaw());
        }
    }
}

/// Unknown members that an envelope or source may have.
const UNKNOWN_MAX: usize = 10_000;

/// Names seen in one object: known ones by bit, unknown ones by text.
#[derive(Debug, Default)]
pub(crate) struct Members<'a> {
    bits: u32,
    few: Vec<Cow<'a, str>>,
    many: Option<HashSet<Cow<'a, str>>>,
}

impl<'a> Members<'a> {
    /// Takes in a known name.
    #[inline]
    pub(crate) fn known(&mut self, bit: u32, place: &str, name: &str, flaw: &mut Option<Flaw>) {
        if self.bits & 1 << bit != 0 {
            Flaw::note(flaw, || Flaw::new("duplicate_field", format!("{place} has the field {name} twice")));
        }
        self.bits |= 1 << bit;
    }

    /// Takes in an unknown name, which is not repeated in the text: it may be anything.
    #[cold]
    pub(crate) fn unknown(&mut self, name: Cow<'a, str>, place: &str, flaw: &mut Option<Flaw>) {
        if self.many.as_ref().is_some_and(|many| many.len() > UNKNOWN_MAX) {
            Flaw::note(flaw, || {
                Flaw::new("too_large", format!("{place} has more than 10 000 unknown fields"))
            });
            return;
        }
        let twice = if self.few.len() < 16 {
            let twice = self.few.contains(&name);
            self.few.push(name);
            twice
        } else {
            self.few.contains(&name) || !self.many.get_or_insert_default().insert(name)
        };
        if twice {
            Flaw::note(flaw, || Flaw::new("duplicate_field", format!("{place} has a field twice")));
        }
    }

    /// Whether exactly known names out of `bits` were seen, at least one.
    fn only(&self, bits: u32) -> bool {
        self.bits != 0 && self.bits & !bits == 0 && self.few.is_empty()
    }

    fn has(&self, bit: u32) -> bool {
        self.bits & 1 << bit != 0
    }
}

/// An object within an envelope, such as a row image.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Image<'a> {
    /// The object as written; `None` if null or absent.
    pub(crate) object: Option<&'a str>,
    /// Nesting around it.
    pub(crate) depth: u32,
}

/// An envelope's members.
#[derive(Debug, Default)]
pub(crate) struct Envelope<'a> {
    pub(crate) before: Image<'a>,
    pub(crate) after: Image<'a>,
    pub(crate) source: Option<Source<'a>>,
    pub(crate) source_json: &'a str,
    pub(crate) transaction: Option<&'a str>,
    pub(crate) op: Option<Str<'a>>,
    pub(crate) ts_ms: Option<i64>,
    pub(crate) ts_us: Option<i64>,
    /// What a logical message says.
    pub(crate) message: Image<'a>,
    pub(crate) flaw: Option<Flaw>,
    status: Option<Str<'a>>,
    seen: Members<'a>,
}

/// Faster ways to read parts of an envelope that look like those before it. One that cannot leaves the cursor where it was.
pub(crate) trait Shortcuts<'a> {
    /// Reads a row image and answers whether it did. `before` tells whether there was a before-image.
    fn image(&mut self, which: Which, before: bool, cur: &mut Cursor<'a>) -> bool;

    /// Reads a source block.
    fn source(&mut self, cur: &mut Cursor<'a>) -> Option<Source<'a>>;
}

/// None of them.
pub(crate) struct NoShortcuts;

impl<'a> Shortcuts<'a> for NoShortcuts {
    fn image(&mut self, _: Which, _: bool, _: &mut Cursor<'a>) -> bool {
        false
    }

    fn source(&mut self, _: &mut Cursor<'a>) -> Option<Source<'a>> {
        None
    }
}

/// Which image [`Envelope::read`] has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Before,
    After,
}

const BEFORE: u32 = 0;
const AFTER: u32 = 1;
const SOURCE: u32 = 2;
const TRANSACTION: u32 = 3;
const OP: u32 = 4;
const TS_MS: u32 = 5;
const TS_US: u32 = 6;
const TS_NS: u32 = 7;
const MESSAGE: u32 = 8;
const STATUS: u32 = 9;
const ID: u32 = 10;
const DDL: u32 = 11;
const DATABASE_NAME: u32 = 12;
const SCHEMA_NAME: u32 = 13;
const TABLE_CHANGES: u32 = 14;
const EVENT_COUNT: u32 = 15;
const DATA_COLLECTIONS: u32 = 16;

/// The members behind `before` in the order in which connectors write them.
const EXPECTED: [(&[u8], u32); 7] = [
    (b",\"after\":", AFTER),
    (b",\"source\":", SOURCE),
    (b",\"transaction\":", TRANSACTION),
    (b",\"op\":", OP),
    (b",\"ts_ms\":", TS_MS),
    (b",\"ts_us\":", TS_US),
    (b",\"ts_ns\":", TS_NS),
];

impl<'a> Envelope<'a> {
    /// Reads the object at the cursor.
    #[inline]
    pub(crate) fn read(cur: &mut Cursor<'a>, short: &mut impl Shortcuts<'a>) -> Result<Self, ScanError> {
        let mut envelope = Envelope::default();
        // Connectors write the members in this order and without white space; as long as they do, a comparison of each
        // token replaces scanning and telling apart its name.
        let start = cur.clone();
        if cur.eat(b"{\"before\":") {
            cur.enter()?;
            envelope.value(BEFORE, cur, short)?;
            for (token, bit) in EXPECTED {
                if !cur.eat(token) {
                    break;
                }
                envelope.seen.bits |= 1 << bit;
                envelope.value(bit, cur, short)?;
            }
            envelope.seen.bits |= 1 << BEFORE;
            let mut key = cur.next_key()?;
            while let Some(name) = key {
                envelope.member(name, cur, short)?;
                key = cur.next_key()?;
            }
            return Ok(envelope);
        }
        *cur = start;
        let mut key = cur.first_key()?;
        while let Some(name) = key {
            envelope.member(name, cur, short)?;
            key = cur.next_key()?;
        }
        Ok(envelope)
    }

    #[inline]
    fn member(
        &mut self,
        name: Str<'a>,
        cur: &mut Cursor<'a>,
        short: &mut impl Shortcuts<'a>,
    ) -> Result<(), ScanError> {
        let decoded = name.decode();
        let bit = match &*decoded {
            "before" => BEFORE,
            "after" => AFTER,
            "source" => SOURCE,
            "transaction" => TRANSACTION,
            "op" => OP,
            "ts_ms" => TS_MS,
            "ts_us" => TS_US,
            "ts_ns" => TS_NS,
            "message" => MESSAGE,
            "status" => STATUS,
            "id" => ID,
            "ddl" => DDL,
            "databaseName" => DATABASE_NAME,
            "schemaName" => SCHEMA_NAME,
            "tableChanges" => TABLE_CHANGES,
            "event_count" => EVENT_COUNT,
            "data_collections" => DATA_COLLECTIONS,
            _ => {
                self.seen.unknown(decoded, "the envelope", &mut self.flaw);
                return cur.skip();
            }
        };
        self.seen.known(bit, "the envelope", &decoded, &mut self.flaw);
        self.value(bit, cur, short)
    }

    #[inline]
    fn value(
        &mut self,
        bit: u32,
        cur: &mut Cursor<'a>,
        short: &mut impl Shortcuts<'a>,
    ) -> Result<(), ScanError> {
        cur.space();
        match bit {
            BEFORE => self.before = self.image(Which::Before, cur, short)?,
            AFTER => self.after = self.image(Which::After, cur, short)?,
            SOURCE => self.source(cur, short)?,
            TRANSACTION if cur.byte() == b'n' => cur.literal("null")?,
            TRANSACTION => self.transaction = Some(cur.raw()?),
            MESSAGE if cur.byte() == b'{' => {
                self.message = Image { depth: cur.depth(), object: Some(cur.raw()?) };
            }
            OP => self.op = text(cur, "op", &mut self.flaw)?,
            TS_MS => self.ts_ms = int(cur, "ts_ms", &mut self.flaw)?,
            TS_US => self.ts_us = int(cur, "ts_us", &mut self.flaw)?,
            STATUS => {
                self.status =
                    if cur.byte() == b'"' { Some(cur.string()?) } else { cur.skip().map(|()| None)? }
            }
            _ => cur.skip()?,
        }
        Ok(())
    }

    #[inline]
    fn image(
        &mut self,
        which: Which,
        cur: &mut Cursor<'a>,
        short: &mut impl Shortcuts<'a>,
    ) -> Result<Image<'a>, ScanError> {
        let depth = cur.depth();
        match cur.byte() {
            b'{' => {
                let start = cur.at();
                if !short.image(which, self.before.object.is_some(), cur) {
                    cur.skip()?;
                }
                Ok(Image { object: Some(cur.since(start)), depth })
            }
            b'n' => cur.literal("null").map(|()| Image::default()),
            _ => {
                let name = if which == Which::Before { "before" } else { "after" };
                Flaw::note(&mut self.flaw, || {
                    Flaw::new("wrong_type", format!("{name} must be an object or null"))
                });
                cur.skip().map(|()| Image::default())
            }
        }
    }

    #[inline]
    fn source(&mut self, cur: &mut Cursor<'a>, short: &mut impl Shortcuts<'a>) -> Result<(), ScanError> {
        let start = cur.at();
        if let Some(source) = short.source(cur) {
            self.source = Some(source);
            self.source_json = cur.since(start);
            return Ok(());
        }
        match cur.byte() {
            b'{' => self.source = Some(Source::read(cur, &mut self.flaw)?),
            b'n' => cur.literal("null")?,
            _ => {
                Flaw::note(&mut self.flaw, || Flaw::new("wrong_type", "source must be an object"));
                cur.skip()?;
            }
        }
        self.source_json = cur.since(start);
        Ok(())
    }

    /// What kind of control record it is, if it is one.
    pub(crate) fn control(&self) -> Option<ControlKind> {
        if let Some(op) = self.op {
            return op.is("m").then_some(ControlKind::Message);
        }
        let seen = &self.seen;
        if seen.only(1 << TS_MS | 1 << TS_US | 1 << TS_NS) {
            return Some(ControlKind::Heartbeat);
        }
        if seen.has(BEFORE) || seen.has(AFTER) {
            return None;
        }
        if self.status.is_some_and(|s| s.is("BEGIN") || s.is("END")) && seen.has(ID) && !seen.has(SOURCE) {
            return Some(ControlKind::Transaction);
        }
        let ddl = seen.has(DDL) || seen.has(TABLE_CHANGES);
        (seen.has(SOURCE) && seen.has(DATABASE_NAME) && ddl).then_some(ControlKind::SchemaChange)
    }

    /// The source's time of a control record.
    pub(crate) fn control_ts_ms(&self) -> Option<i64> {
        control_ms(self.source.as_ref().and_then(|s| s.ts_ms).or(self.ts_ms))
    }

    /// The transaction block's `id`, as text.
    pub(crate) fn transaction_id(&self) -> Option<String> {
        let mut cur = Cursor::new(self.transaction?, 0);
        let mut key = cur.first_key().ok()?;
        while let Some(name) = key {
            if name.is("id") && cur.byte() == b'"' {
                return Some(cur.string().ok()?.decode().into_owned());
            }
            cur.skip().ok()?;
            key = cur.next_key().ok()?;
        }
        None
    }
}
