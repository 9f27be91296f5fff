//! What every format does with a record before it looks inside.

use millstream_core::decoder::{Control, ControlKind, Refusal};
use millstream_core::event::Origin;
use millstream_core::{Body, Cause, PartitionId, Record, Stage};

use crate::envelope::Flaw;
use crate::options::Options;
use crate::scan::{Cursor, Fault, ScanError};

/// Rows are addressed by 32-bit offsets, so no record may be near that, whatever the options say.
const RECORD_BYTES_MAX: usize = 1 << 30;

/// Refused while reading.
pub(crate) fn unreadable(code: &'static str, text: impl Into<String>) -> Refusal {
    Refusal { stage: Stage::Parse, cause: Cause::new(code, text), table: None }
}

/// Refused because it is no event.
pub(crate) fn invalid(flaw: Flaw, table: Option<String>) -> Refusal {
    Refusal { stage: Stage::Validate, cause: Cause::new(flaw.code, flaw.text), table }
}

impl From<ScanError> for Refusal {
    fn from(ScanError { fault, at }: ScanError) -> Self {
        unreadable(fault.code(), format!("byte {at}: {}", fault.text()))
    }
}

/// A record that got past its frame.
pub(crate) enum Framed<'a> {
    /// Nothing to decode.
    Control(Control),
    /// A JSON object, or what claims to be one; where it was asked for, an array.
    Text(&'a str),
}

/// Checks size and UTF-8, and sorts out empty lines, tombstones and broken frames.
pub(crate) fn open<'a>(record: &Record<'a>, options: &Options) -> Result<Framed<'a>, Refusal> {
    open_as(record, options, b"{", "an object")
}

/// The same of values that begin with one of these bytes; `wanted` says what that is.
pub(crate) fn open_as<'a>(
    record: &Record<'a>,
    options: &Options,
    begins: &[u8],
    wanted: &str,
) -> Result<Framed<'a>, Refusal> {
    let bytes = match record.body() {
        Body::Tombstone => return Ok(Framed::Control(control(ControlKind::Tombstone))),
        Body::Broken(_, cause) => {
            return Err(Refusal { stage: Stage::Parse, cause: cause.clone(), table: None });
        }
        Body::Value(bytes) => bytes,
    };
    let limit = options.record_bytes_max.min(RECORD_BYTES_MAX);
    if bytes.len() > limit {
        let text = format!("the record has {} bytes; the limit is {limit}", bytes.len());
        return Err(unreadable("too_large", text));
    }
    let text = simdutf8::basic::from_utf8(bytes).map_err(|_| {
        let valid = simdutf8::compat::from_utf8(bytes).map_or_else(|e| e.valid_up_to(), str::len);
        unreadable("invalid_utf8", format!("byte {valid}: not UTF-8"))
    })?;
    let mut cur = Cursor::new(text, 0);
    cur.space();
    match cur.byte() {
        byte if begins.contains(&byte) => return Ok(Framed::Text(text)),
        0 if cur.at() == text.len() => return Ok(Framed::Control(control(ControlKind::Empty))),
        _ => {}
    }
    let null = cur.byte() == b'n';
    cur.skip()?;
    cur.end()?;
    if null {
        return Ok(Framed::Control(control(ControlKind::Tombstone)));
    }
    Err(invalid(Flaw::new("not_an_object", format!("the value is JSON, but not {wanted}")), None))
}

/// A control record without a time.
pub(crate) fn control(kind: ControlKind) -> Control {
    Control { kind, ts_ms: None }
}

/// A schema wrapper while it is walked.
#[derive(Debug, Default)]
pub(crate) struct Wrapper<'a> {
    schema: bool,
    payload: bool,
    /// Payload that came before its schema.
    early: Option<(&'a str, u32)>,
}

/// Whether the object at the cursor is a schema wrapper: its first member is `schema` or `payload`.
#[inline]
pub(crate) fn is_wrapped(cur: &Cursor<'_>) -> bool {
    let mut ahead = cur.clone();
    if ahead.eat(b"{\"before\"") {
        return false;
    }
    ahead = cur.clone();
    matches!(ahead.first_key(), Ok(Some(name)) if name.is("schema") || name.is("payload"))
}

impl<'a> Wrapper<'a> {
    /// Walks a wrapper: `schema` is called at its schema, `payload` at its payload, in this order whatever the text's.
    pub(crate) fn walk(
        cur: &mut Cursor<'a>,
        flaw: &mut Option<Flaw>,
        mut schema: impl FnMut(&mut Cursor<'a>) -> Result<(), ScanError>,
        mut payload: impl FnMut(&mut Cursor<'a>) -> Result<(), ScanError>,
    ) -> Result<(), ScanError> {
        let mut state = Wrapper::default();
        let mut key = cur.first_key()?;
        while let Some(name) = key {
            let (is_schema, is_payload) = (name.is("schema"), name.is("payload"));
            if (is_schema && state.schema) || (is_payload && state.payload) {
                Flaw::note(flaw, || Flaw::new("duplicate_field", "the wrapper has schema or payload twice"));
                cur.skip()?;
            } else if is_schema {
                state.schema = true;
                schema(cur)?;
            } else if is_payload {
                state.payload = true;
                if state.schema {
                    payload(cur)?;
                } else {
                    let depth = cur.depth();
                    state.early = Some((cur.raw()?, depth));
                }
            } else {
                cur.skip()?;
            }
            key = cur.next_key()?;
        }
        if let Some((text, depth)) = state.early {
            payload(&mut Cursor::new(text, depth))?;
        }
        if !state.payload {
            Flaw::note(flaw, || Flaw::new("missing_field", "payload is missing beside schema"));
        }
        Ok(())
    }
}

/// The identity of a partition, hashed once for each run of records from it.
#[derive(Debug, Default)]
pub(crate) struct PartitionHash(Option<(PartitionId, u64)>);

impl PartitionHash {
    /// Where a record came from.
    #[inline]
    pub(crate) fn origin(&mut self, record: &Record<'_>) -> Origin {
        let partition = record.partition();
        let hash = match &self.0 {
            Some((known, hash)) if std::sync::Arc::ptr_eq(&known.0, &partition.0) => *hash,
            _ => {
                let hash = partition.stable_hash();
                self.0 = Some((partition.clone(), hash));
                hash
            }
        };
        Origin { partition: hash, offset: record.offset(), index: record.part() }
    }
}

/// An unexpected end of a helper's scan over text that was scanned before.
pub(crate) fn rescanned(_: ScanError) -> Flaw {
    Flaw::new(Fault::Unexpected.code(), "a part of the record could not be read again")
}
