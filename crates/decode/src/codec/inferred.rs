//! Columns without type facts: the value decides, and the column widens.

use millstream_core::{RowBuilder, Value};

use super::{Ctx, Fail, Learned, decimal};
use crate::inference::{Kind, exact_double, exact_integer_double};
use crate::scan::{Cursor, Number, Str};

const NUMERIC: decimal::DecimalCodec =
    decimal::DecimalCodec { form: decimal::DecimalForm::Text, target: decimal::Target::Numeric };

fn widen<T>(kind: Kind, with: Kind) -> Result<T, Fail> {
    Err(Fail::Widen(Learned::Kind(kind.join(with))))
}

#[inline]
pub(crate) fn decode(
    kind: Kind,
    cur: &mut Cursor<'_>,
    ctx: &mut Ctx,
    out: &mut RowBuilder,
) -> Result<(), Fail> {
    match cur.byte() {
        b'"' => string(kind, cur, ctx, out),
        b'-' | b'0'..=b'9' => number(kind, cur, ctx, out),
        b'{' | b'[' => {
            let raw = cur.raw()?;
            if ctx.detect && ctx.placeholder.is_nested(raw) {
                out.push(Value::Unchanged);
                return Ok(());
            }
            match kind {
                Kind::Json => out.push(Value::Json(raw)),
                Kind::Text => out.push(Value::Text(raw)),
                _ => return widen(kind, Kind::Json),
            }
            Ok(())
        }
        _ => {
            let raw = cur.raw()?;
            match kind {
                Kind::Bool => out.push(Value::Bool(raw == "true")),
                Kind::Text => out.push(Value::Text(raw)),
                Kind::Json => out.push(Value::Json(raw)),
                _ => return widen(kind, Kind::Bool),
            }
            Ok(())
        }
    }
}

#[inline]
fn string(kind: Kind, cur: &mut Cursor<'_>, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
    // Most values are plain texts in text columns.
    if kind == Kind::Text
        && let Some(text) = cur.plain_string()
    {
        let unchanged = ctx.detect && ctx.placeholder.is_any_text(Str { raw: text, escaped: false });
        out.push(if unchanged { Value::Unchanged } else { Value::Text(text) });
        return Ok(());
    }
    let start = cur.at();
    let string = cur.string()?;
    if ctx.detect && ctx.placeholder.is_any_text(string) {
        out.push(Value::Unchanged);
        return Ok(());
    }
    match kind {
        Kind::Text if string.escaped => out.push_text_with(|heap| string.append_to(heap)),
        Kind::Text => out.push(Value::Text(string.raw)),
        Kind::Json => out.push(Value::Json(cur.since(start))),
        _ => return widen(kind, Kind::Text),
    }
    Ok(())
}

#[inline]
fn number(kind: Kind, cur: &mut Cursor<'_>, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
    if kind == Kind::Int64
        && let Some(v) = cur.plain_int()
    {
        out.push(Value::Int(v));
        return Ok(());
    }
    let start = cur.at();
    let number = cur.number()?;
    match (kind, number) {
        (Kind::Int64, Number::Int(v)) => out.push(Value::Int(v)),
        (Kind::Float64, Number::Text(text)) => match exact_double(text) {
            Some(v) => out.push(Value::Float(v)),
            None => return widen(kind, Kind::Numeric),
        },
        (Kind::Float64, Number::Int(v)) => match exact_integer_double(v) {
            Some(v) => out.push(Value::Float(v)),
            None => return widen(kind, Kind::Numeric),
        },
        (Kind::Numeric, Number::Int(unscaled)) => out.push(Value::Decimal { unscaled, scale: 0 }),
        (Kind::Numeric, Number::Text(text)) => {
            // Numbers too long to be written out keep their text instead.
            return match NUMERIC.push_text(text, ctx, out) {
                Err(Fail::Bad(..)) if !ctx.exhausted() => widen(kind, Kind::Text),
                other => other,
            };
        }
        (Kind::Text, _) => out.push(Value::Text(cur.since(start))),
        (Kind::Json, _) => out.push(Value::Json(cur.since(start))),
        (_, Number::Int(_)) => return widen(kind, Kind::Int64),
        (_, Number::Text(text)) => {
            let with = if exact_double(text).is_some() { Kind::Float64 } else { Kind::Numeric };
            return widen(kind, with);
        }
    }
    Ok(())
}
