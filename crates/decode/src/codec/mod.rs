//! Codecs: how one column's JSON value becomes a typed value.
//!
//! A codec is chosen once per column and shape (from the embedded schema, hints or inference) and then runs on every
//! row. It reads exactly one JSON value from the cursor and pushes exactly one cell, or fails without a meaning: the
//! caller rolls back the row.

pub(crate) mod bigint;
pub(crate) mod binary;
pub(crate) mod decimal;
pub(crate) mod inferred;
pub(crate) mod iso;
pub(crate) mod nested;
pub(crate) mod temporal;

use std::sync::Arc;

use millstream_core::{Field, RowBuilder, Type, Value};

use crate::inference::Kind;
use crate::options::{Options, UnknownFields};
use crate::placeholder::Placeholder;
use crate::scan::{Cursor, Number, ScanError, Str};
use binary::BinaryForm;
use decimal::DecimalCodec;
use temporal::{Temporal, Unit};

/// How a column's JSON value is read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Codec {
    /// No facts: by the JSON value itself, widening.
    Inferred(Kind),
    /// A boolean; 0/1 and `"true"`/`"false"` also count.
    Bool,
    /// An integer; also as text.
    Int,
    /// An unsigned 64-bit integer that the connector wrapped to a signed one.
    Unsigned,
    /// A double; NaN and infinities come as text.
    Float,
    /// Text; `lenient` also takes other JSON values as their text.
    Text { lenient: bool },
    /// JSON: a string that holds JSON text, or the JSON value itself.
    Json,
    /// JSON: the value itself, a string too.
    JsonValue,
    /// Bytes.
    Bytes(BinaryForm),
    /// A bit string of that many bits, base64 of its little-endian bytes; read as big-endian bytes.
    Bits(Option<u32>),
    /// An exact decimal.
    Decimal(DecimalCodec),
    /// A date, time, timestamp.
    Temporal(Temporal),
    /// A time of day as `[-]HHH:MM:SS[.ffffff]`, for MySQL's times beyond a day.
    TimeText(Unit),
    /// An array.
    List(Box<Codec>),
    /// An object of known fields.
    Struct(Box<[(Box<str>, Codec)]>),
}

/// What a value taught about its column that its facts did not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Learned {
    /// An inferred column is of this kind.
    Kind(Kind),
    /// A time column holds times outside a day.
    TimeText,
    /// A decimal column holds numbers beyond its declared precision or scale.
    Unbounded,
    /// A decimal column holds NaN or infinities, which are to be kept as text.
    DecimalText,
}

/// Why a row could not be read with a shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fail {
    /// Not JSON.
    Scan(ScanError),
    /// The row's columns are not the shape's.
    Shape,
    /// The column [`Ctx::column`] must widen first.
    Widen(Learned),
    /// The value of column [`Ctx::column`] is refused: code and what was expected.
    Bad(&'static str, &'static str),
}

impl From<ScanError> for Fail {
    fn from(e: ScanError) -> Self {
        Fail::Scan(e)
    }
}

/// A value's JSON form does not fit its column's type.
pub(crate) const WRONG_TYPE: &str = "wrong_type";
/// A value of the right form whose text does not say what it should.
pub(crate) const INVALID_VALUE: &str = "invalid_value";
/// A value that a policy turns into a dead letter.
pub(crate) const OUT_OF_RANGE: &str = "out_of_range";
/// NaN or an infinity that a policy turns into a dead letter.
pub(crate) const NOT_FINITE: &str = "not_finite";
/// A number or record whose plain form would be too large.
pub(crate) const TOO_LARGE: &str = "too_large";

/// Digits that numbers with exponents or scales may expand to within one record, so that a small record cannot ask for
/// gigabytes.
const EXPANSION_MAX: usize = 64 << 20;

/// What codecs share while reading one row.
#[derive(Debug)]
pub(crate) struct Ctx {
    pub(crate) options: Arc<Options>,
    pub(crate) placeholder: Placeholder,
    /// Whether placeholders stand for unchanged values in this row.
    pub(crate) detect: bool,
    /// The column being read.
    pub(crate) column: usize,
    /// (column, code) of values that a policy replaced in this row.
    pub(crate) notes: Vec<(usize, &'static str)>,
    /// What becomes of members of structs that their type does not have; `None`: they are passed over.
    pub(crate) unknown: Option<UnknownFields>,
    /// Bytes that expanded numbers took in this record.
    pub(crate) expanded: usize,
    pub(crate) text: String,
    pub(crate) bytes: Vec<u8>,
}

impl Ctx {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self {
            placeholder: Placeholder::new(&options.placeholder),
            options,
            detect: true,
            column: 0,
            notes: Vec::new(),
            unknown: None,
            expanded: 0,
            text: String::new(),
            bytes: Vec::new(),
        }
    }

    /// Counts a replaced value.
    #[cold]
    pub(crate) fn note(&mut self, code: &'static str) {
        self.notes.push((self.column, code));
    }

    /// Whether the record has claimed all that it may.
    pub(crate) fn exhausted(&self) -> bool {
        self.expanded > EXPANSION_MAX
    }

    /// Claims `len` bytes for an expanded number.
    pub(crate) fn expand(&mut self, len: usize) -> Result<(), Fail> {
        self.expanded = self.expanded.saturating_add(len);
        if self.exhausted() {
            return Err(Fail::Bad(TOO_LARGE, "numbers whose plain digits fit in 64 MiB a record"));
        }
        Ok(())
    }
}

impl Codec {
    /// Reads the value at the cursor (white space before it included) and pushes it.
    #[inline]
    pub(crate) fn decode(
        &self,
        cur: &mut Cursor<'_>,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<(), Fail> {
        cur.space();
        if cur.byte() == b'n' {
            cur.literal("null")?;
            out.push(Value::Null);
            return Ok(());
        }
        match self {
            Codec::Inferred(kind) => inferred::decode(*kind, cur, ctx, out),
            Codec::Text { lenient } => text(*lenient, cur, ctx, out),
            Codec::Int => int(cur, out),
            Codec::Bool => boolean(cur, out),
            Codec::Float => float(cur, out),
            Codec::Decimal(decimal) => decimal.decode(cur, ctx, out),
            Codec::Temporal(temporal) => temporal.decode(cur, ctx, out),
            Codec::TimeText(unit) => temporal::time_text(*unit, cur, out),
            Codec::Unsigned => unsigned(cur, out),
            Codec::Json => json(cur, ctx, out),
            Codec::JsonValue => {
                out.push(Value::Json(cur.raw()?));
                Ok(())
            }
            Codec::Bytes(form) => binary::bytes(*form, cur, ctx, out),
            Codec::Bits(bits) => binary::bits(*bits, cur, ctx, out),
            Codec::List(element) => nested::list(element, cur, ctx, out),
            Codec::Struct(fields) => nested::structure(fields, cur, ctx, out),
        }
    }

    /// The type of what it pushes.
    pub(crate) fn ty(&self) -> Type {
        match self {
            Codec::Inferred(kind) => kind.ty(),
            Codec::Bool => Type::Bool,
            Codec::Int => Type::Int64,
            Codec::Unsigned => Type::Decimal { precision: 20, scale: 0 },
            Codec::Float => Type::Float64,
            Codec::Text { .. } | Codec::TimeText(_) => Type::Text,
            Codec::Json | Codec::JsonValue => Type::Json,
            Codec::Bytes(_) | Codec::Bits(_) => Type::Bytes,
            Codec::Decimal(decimal) => decimal.target.ty(),
            Codec::Temporal(temporal) => temporal.target.ty(),
            Codec::List(element) => Type::List(Box::new(element.ty())),
            Codec::Struct(fields) => Type::Struct(
                fields.iter().map(|(name, codec)| Field { name: name.clone(), ty: codec.ty() }).collect(),
            ),
        }
    }

    /// The codec after what was learned, where that concerns it.
    #[must_use]
    pub(crate) fn widened(self, learned: Learned) -> Self {
        match (self, learned) {
            (Codec::Inferred(_), Learned::Kind(kind)) => Codec::Inferred(kind),
            (Codec::Temporal(t), Learned::TimeText) => Codec::TimeText(t.unit),
            (Codec::Decimal(decimal), Learned::Unbounded) => Codec::Decimal(decimal.unbounded()),
            (Codec::Decimal(decimal), Learned::DecimalText) => Codec::Decimal(decimal.as_text()),
            (Codec::List(element), learned) => Codec::List(Box::new(element.widened(learned))),
            (Codec::Struct(fields), learned) => Codec::Struct(
                fields.into_iter().map(|(name, codec)| (name, codec.widened(learned))).collect(),
            ),
            (codec, _) => codec,
        }
    }

    /// Whether the type depends on the values seen, or the encoding was guessed from them.
    pub(crate) fn guessed(&self) -> bool {
        match self {
            Codec::Inferred(_) => true,
            Codec::Temporal(temporal) => temporal.unit == Unit::Guess,
            Codec::Decimal(decimal) => decimal.guessed(),
            Codec::List(element) => element.guessed(),
            Codec::Struct(fields) => fields.iter().any(|(_, codec)| codec.guessed()),
            _ => false,
        }
    }
}

#[inline]
fn text(lenient: bool, cur: &mut Cursor<'_>, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
    if let Some(text) = cur.plain_string() {
        let unchanged = ctx.detect && ctx.placeholder.is_text(Str { raw: text, escaped: false });
        out.push(if unchanged { Value::Unchanged } else { Value::Text(text) });
        return Ok(());
    }
    if cur.byte() == b'"' {
        let string = cur.string()?;
        if ctx.detect && ctx.placeholder.is_text(string) {
            out.push(Value::Unchanged);
        } else if string.escaped {
            out.push_text_with(|heap| string.append_to(heap));
        } else {
            out.push(Value::Text(string.raw));
        }
        return Ok(());
    }
    if !lenient {
        return Err(Fail::Bad(WRONG_TYPE, "a text"));
    }
    let raw = cur.raw()?;
    if ctx.detect && ctx.placeholder.is_nested(raw) {
        out.push(Value::Unchanged);
    } else {
        out.push(Value::Text(raw));
    }
    Ok(())
}

#[inline]
fn int(cur: &mut Cursor<'_>, out: &mut RowBuilder) -> Result<(), Fail> {
    const WHAT: &str = "an integer of 64 bits";
    if let Some(v) = cur.plain_int() {
        out.push(Value::Int(v));
        return Ok(());
    }
    let value = match cur.byte() {
        b'-' | b'0'..=b'9' => match cur.number()? {
            Number::Int(v) => Some(v),
            Number::Text(text) => decimal::integral(text),
        },
        b'"' => decimal::integral(&cur.string()?.decode()),
        b't' => cur.literal("true").map(|()| Some(1))?,
        b'f' => cur.literal("false").map(|()| Some(0))?,
        _ => None,
    };
    out.push(Value::Int(value.ok_or(Fail::Bad(WRONG_TYPE, WHAT))?));
    Ok(())
}

fn unsigned(cur: &mut Cursor<'_>, out: &mut RowBuilder) -> Result<(), Fail> {
    match cur.byte() {
        b'-' | b'0'..=b'9' => match cur.number()? {
            Number::Int(v) if v >= 0 => out.push(Value::Decimal { unscaled: v, scale: 0 }),
            Number::Int(v) => out.push(Value::Digits(&(v as u64).to_string())),
            Number::Text(text) if text.parse::<u64>().is_ok() => out.push(Value::Digits(text)),
            Number::Text(_) => return Err(Fail::Bad(WRONG_TYPE, "an unsigned integer of 64 bits")),
        },
        _ => return Err(Fail::Bad(WRONG_TYPE, "an unsigned integer of 64 bits")),
    }
    Ok(())
}

fn boolean(cur: &mut Cursor<'_>, out: &mut RowBuilder) -> Result<(), Fail> {
    const WHAT: &str = "a boolean";
    let value = match cur.byte() {
        b't' => cur.literal("true").map(|()| true)?,
        b'f' => cur.literal("false").map(|()| false)?,
        b'-' | b'0'..=b'9' => match cur.number()? {
            Number::Int(v) => v != 0,
            Number::Text(_) => return Err(Fail::Bad(WRONG_TYPE, WHAT)),
        },
        b'"' => match &*cur.string()?.decode() {
            "true" | "t" | "1" => true,
            "false" | "f" | "0" => false,
            _ => return Err(Fail::Bad(WRONG_TYPE, WHAT)),
        },
        _ => return Err(Fail::Bad(WRONG_TYPE, WHAT)),
    };
    out.push(Value::Bool(value));
    Ok(())
}

fn float(cur: &mut Cursor<'_>, out: &mut RowBuilder) -> Result<(), Fail> {
    const WHAT: &str = "a number, \"NaN\", \"Infinity\" or \"-Infinity\"";
    let value = match cur.byte() {
        b'-' | b'0'..=b'9' => {
            let start = cur.at();
            cur.number()?;
            // Parsed from the text even where it is an integer literal: `-0` has a sign as a double.
            cur.since(start).parse().ok()
        }
        b'"' => match &*cur.string()?.decode() {
            "NaN" | "NAN" => Some(f64::NAN),
            "Infinity" | "POSITIVE_INFINITY" => Some(f64::INFINITY),
            "-Infinity" | "NEGATIVE_INFINITY" => Some(f64::NEG_INFINITY),
            text if decimal::is_number(text) => text.parse().ok(),
            _ => None,
        },
        _ => None,
    };
    out.push(Value::Float(value.ok_or(Fail::Bad(WRONG_TYPE, WHAT))?));
    Ok(())
}

fn json(cur: &mut Cursor<'_>, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
    if cur.byte() != b'"' {
        let raw = cur.raw()?;
        let unchanged = ctx.detect && ctx.placeholder.is_nested(raw);
        out.push(if unchanged { Value::Unchanged } else { Value::Json(raw) });
        return Ok(());
    }
    let depth = cur.depth();
    let string = cur.string()?;
    let text = string.decode();
    if ctx.detect && (ctx.placeholder.is_text(string) || ctx.placeholder.is_nested(&text)) {
        out.push(Value::Unchanged);
        return Ok(());
    }
    let mut inner = Cursor::new(&text, depth);
    inner.space();
    if inner.skip().and_then(|()| inner.end()).is_err() {
        return Err(Fail::Bad(INVALID_VALUE, "JSON text"));
    }
    out.push(Value::Json(&text));
    Ok(())
}
