//! One value for one column: converted exactly, or not at all.

use std::borrow::Cow;

use base64::Engine as _;
use millstream_core::key::{decimal_text, normal_digits};
use millstream_core::{Row, Type, Value};

use crate::civil;

/// A value in the form in which a column's builder takes it.
#[derive(Debug, PartialEq)]
pub enum Cell<'a> {
    /// No value.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A double.
    Float(f64),
    /// Unscaled, at the column's scale. A column of more than 38 digits takes the digits as [`Cell::Text`].
    Decimal(i128),
    /// A text: also JSON, and digits of unbounded numerics.
    Text(Cow<'a, str>),
    /// Bytes.
    Bytes(&'a [u8]),
    /// Days since 1970-01-01.
    Date(i32),
    /// A time of day, a date and time, or an instant, in microseconds.
    Micros(i64),
    /// A list's elements, each of which converts.
    List(&'a Row),
    /// A struct's fields, in the source's order; each converts to the field of its name.
    Struct(&'a Row),
}

/// Why a value is not for a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// Right kind, but the column can't hold it exactly.
    OutOfRange,
    /// Another kind.
    WrongType,
    /// A list with a NULL in it, where lists hold none.
    NullInList,
}

const JSON_DEPTH_MAX: u32 = 256;

/// Digits that a decimal has as a number; wider ones are texts of digits.
const UNSCALED_DIGITS_MAX: u16 = 38;

/// Converts `value`, of type `from`, for a column of type `to`. [`Value::Unchanged`] is no value and reads as NULL.
#[inline]
pub fn convert<'a>(value: Value<'a>, from: &Type, to: &Type) -> Result<Cell<'a>, Misfit> {
    match (value, to) {
        (Value::Null | Value::Unchanged, _) => Ok(Cell::Null),
        (Value::Text(v), Type::Text) => Ok(Cell::Text(Cow::Borrowed(v))),
        (Value::Int(v), Type::Int64) => Ok(Cell::Int(v)),
        (Value::Timestamp(v), Type::Timestamp) | (Value::DateTime(v), Type::DateTime) => instant(v),
        (Value::Float(v), Type::Float64) => Ok(Cell::Float(v)),
        (Value::Bool(v), Type::Bool) => Ok(Cell::Bool(v)),
        (Value::Decimal { unscaled, scale }, Type::Decimal { precision, scale: to_scale })
            if *precision <= UNSCALED_DIGITS_MAX =>
        {
            decimal(unscaled.into(), scale.into(), *precision, *to_scale)
        }
        (Value::Bytes(v), Type::Bytes) => Ok(Cell::Bytes(v)),
        (Value::Json(v), Type::Json | Type::Text) => Ok(Cell::Text(Cow::Borrowed(v))),
        (Value::Digits(v), Type::Numeric | Type::Text) => Ok(Cell::Text(Cow::Borrowed(v))),
        (Value::Date(v), Type::Date) if v.unsigned_abs() < i32::MAX.unsigned_abs() => Ok(Cell::Date(v)),
        (Value::Time(v), Type::Time) if (0..=86_400_000_000).contains(&v) => Ok(Cell::Micros(v)),
        (Value::Date(_), Type::Date) | (Value::Time(_), Type::Time) => Err(Misfit::OutOfRange),
        (Value::List(row), Type::List(element)) => list(row, from, element),
        (Value::Struct(row), Type::Struct(_)) => structure(row, from, to),
        _ => convert_other(value, from, to),
    }
}

/// DuckDB keeps the ends of the range for infinities.
fn instant<'a>(us: i64) -> Result<Cell<'a>, Misfit> {
    if us.unsigned_abs() < i64::MAX.unsigned_abs() { Ok(Cell::Micros(us)) } else { Err(Misfit::OutOfRange) }
}

fn convert_other<'a>(value: Value<'a>, from: &Type, to: &Type) -> Result<Cell<'a>, Misfit> {
    match (value, to) {
        (Value::Int(_) | Value::Decimal { .. } | Value::Digits(_), Type::Decimal { precision, scale })
            if *precision > UNSCALED_DIGITS_MAX =>
        {
            wide_decimal(&plain_text(value)?, *precision, *scale)
        }
        (Value::Int(v), Type::Decimal { precision, scale }) => decimal(v.into(), 0, *precision, *scale),
        (Value::Digits(v), Type::Decimal { precision, scale }) => digits(v, *precision, *scale),
        (Value::Int(v), Type::Float64) => {
            // Exact only if it comes back; 2^63 as a double is above every i64.
            let double = v as f64;
            let exact = double < 9.2e18 && double as i64 == v;
            if exact { Ok(Cell::Float(double)) } else { Err(Misfit::OutOfRange) }
        }
        (Value::Float(v), Type::Int64) if v.fract() == 0.0 && v.abs() < 9.0e15 => Ok(Cell::Int(v as i64)),
        (Value::Decimal { unscaled, scale: 0 }, Type::Int64) => Ok(Cell::Int(unscaled)),
        (Value::Int(_) | Value::Decimal { .. }, Type::Numeric) => Ok(Cell::Text(plain_text(value)?)),
        (Value::Text(v), Type::Json) => Ok(Cell::Text(json_of_text(v))),
        (Value::Text(v), _) => parse(v, to),
        (_, Type::Json) => {
            let mut out = String::new();
            write_json(&mut out, value, from, 0)?;
            Ok(Cell::Text(Cow::Owned(out)))
        }
        (Value::List(_) | Value::Struct(_), Type::Text) => {
            let mut out = String::new();
            write_json(&mut out, value, from, 0)?;
            Ok(Cell::Text(Cow::Owned(out)))
        }
        (_, Type::Text) => Ok(Cell::Text(plain_text(value)?)),
        _ => Err(Misfit::WrongType),
    }
}

/// A text that comes for a JSON column is that JSON if it reads as an object or array (a bare envelope carries JSON
/// columns as text), else a JSON string.
fn json_of_text(text: &str) -> Cow<'_, str> {
    let composite = text.trim_start().starts_with(['{', '[']);
    if composite && serde_json::from_str::<Box<serde_json::value::RawValue>>(text).is_ok() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 2);
    write_json_text(&mut out, text);
    Cow::Owned(out)
}

/// Reads a text whose type was guessed for a column whose type is known.
fn parse<'a>(text: &'a str, to: &Type) -> Result<Cell<'a>, Misfit> {
    let cell = match to {
        Type::Bool => text.parse().ok().map(Cell::Bool),
        Type::Int64 => text.parse().ok().map(Cell::Int),
        Type::Date => civil::parse_date(text).map(Cell::Date),
        Type::Time => civil::parse_time(text).map(Cell::Micros),
        Type::DateTime => civil::parse_date_time(text).map(Cell::Micros),
        Type::Timestamp => civil::parse_timestamp(text).map(Cell::Micros),
        Type::Decimal { precision, scale } if is_plain_decimal(text) && *precision > UNSCALED_DIGITS_MAX => {
            return wide_decimal(text, *precision, *scale);
        }
        Type::Decimal { precision, scale } if is_plain_decimal(text) => {
            return digits(text, *precision, *scale);
        }
        Type::Numeric if is_plain_decimal(text) => Some(Cell::Text(Cow::Borrowed(text))),
        _ => None,
    };
    cell.ok_or(Misfit::WrongType)
}

fn is_plain_decimal(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    digits.bytes().any(|b| b.is_ascii_digit())
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && digits.bytes().filter(|&b| b == b'.').count() <= 1
}

fn decimal<'a>(unscaled: i128, scale: u16, precision: u16, to_scale: u16) -> Result<Cell<'a>, Misfit> {
    let value = if scale <= to_scale {
        10i128.checked_pow(u32::from(to_scale - scale)).and_then(|factor| unscaled.checked_mul(factor))
    } else {
        let divisor = 10i128.checked_pow(u32::from(scale - to_scale));
        divisor.filter(|d| unscaled % d == 0).map(|d| unscaled / d)
    };
    let bound = 10u128.checked_pow(precision.into()).unwrap_or(u128::MAX);
    value.filter(|v| v.unsigned_abs() < bound).map(Cell::Decimal).ok_or(Misfit::OutOfRange)
}

fn digits<'a>(text: &str, precision: u16, to_scale: u16) -> Result<Cell<'a>, Misfit> {
    let plain = normal_digits(text);
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let scale = u16::try_from(fraction.len()).map_err(|_| Misfit::OutOfRange)?;
    let unscaled = format!("{whole}{fraction}").parse().map_err(|_| Misfit::OutOfRange)?;
    decimal(unscaled, scale, precision, to_scale)
}

/// A number of too many digits for an integer of 128 bits: its plain digits.
fn wide_decimal<'a>(text: &str, precision: u16, scale: u16) -> Result<Cell<'a>, Misfit> {
    if !is_plain_decimal(text) {
        return Err(Misfit::OutOfRange);
    }
    let plain = normal_digits(text);
    let digits = plain.trim_start_matches('-');
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.trim_start_matches('0').len();
    let fits = whole <= usize::from(precision.saturating_sub(scale)) && fraction.len() <= usize::from(scale);
    if fits { Ok(Cell::Text(Cow::Owned(plain))) } else { Err(Misfit::OutOfRange) }
}

fn list<'a>(row: &'a Row, from: &Type, element: &Type) -> Result<Cell<'a>, Misfit> {
    let Type::List(from_element) = from else { return Err(Misfit::WrongType) };
    for value in row.iter() {
        convert(value, from_element, element)?;
    }
    Ok(Cell::List(row))
}

fn structure<'a>(row: &'a Row, from: &Type, to: &Type) -> Result<Cell<'a>, Misfit> {
    let (Type::Struct(from_fields), Type::Struct(fields)) = (from, to) else { return Err(Misfit::WrongType) };
    for (i, field) in from_fields.iter().enumerate() {
        let value = row.get(i);
        match fields.iter().find(|f| f.name == field.name) {
            Some(target) => drop(convert(value, &field.ty, &target.ty)?),
            None if value.is_null() => {}
            None => return Err(Misfit::WrongType),
        }
    }
    Ok(Cell::Struct(row))
}

/// A scalar as text, exactly: what a text column holds of it.
pub fn plain_text(value: Value<'_>) -> Result<Cow<'_, str>, Misfit> {
    Ok(Cow::Owned(match value {
        Value::Text(v) | Value::Json(v) | Value::Digits(v) => return Ok(Cow::Borrowed(v)),
        Value::Bool(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Float(v) => float_text(v),
        Value::Decimal { unscaled, scale } => decimal_text(unscaled.into(), scale.into()),
        Value::Date(v) => civil::date_text(v.into()),
        Value::Time(v) => civil::time_text(v),
        Value::DateTime(v) => civil::date_time_text(v),
        Value::Timestamp(v) => format!("{}Z", civil::date_time_text(v)),
        Value::Null | Value::Unchanged | Value::Bytes(_) | Value::List(_) | Value::Struct(_) => {
            return Err(Misfit::WrongType);
        }
    }))
}

/// The shortest text that reads back as the same double.
fn float_text(v: f64) -> String {
    if v.is_nan() {
        "NaN".to_owned()
    } else if v.is_infinite() {
        if v > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else if v != 0.0 && !(1e-5..1e17).contains(&v.abs()) {
        format!("{v:e}")
    } else {
        v.to_string()
    }
}

/// Appends a value as JSON. Doubles without a JSON form and bytes (as base64) become strings.
pub fn write_json(out: &mut String, value: Value<'_>, ty: &Type, depth: u32) -> Result<(), Misfit> {
    if depth > JSON_DEPTH_MAX {
        return Err(Misfit::OutOfRange);
    }
    match value {
        Value::Null | Value::Unchanged => out.push_str("null"),
        Value::Json(v) | Value::Digits(v) => out.push_str(v),
        Value::Bool(_) | Value::Int(_) | Value::Decimal { .. } => out.push_str(&plain_text(value)?),
        Value::Float(v) if v.is_finite() => out.push_str(&float_text(v)),
        Value::Bytes(v) => write_json_text(out, &base64::engine::general_purpose::STANDARD.encode(v)),
        Value::List(row) => {
            let element = if let Type::List(element) = ty { element } else { &Type::Null };
            write_sequence(out, '[', ']', row, |out, i| write_json(out, row.get(i), element, depth + 1))?;
        }
        Value::Struct(row) => {
            let Type::Struct(fields) = ty else { return Err(Misfit::WrongType) };
            write_sequence(out, '{', '}', row, |out, i| {
                let field = fields.get(i).ok_or(Misfit::WrongType)?;
                write_json_text(out, &field.name);
                out.push(':');
                write_json(out, row.get(i), &field.ty, depth + 1)
            })?;
        }
        _ => write_json_text(out, &plain_text(value)?),
    }
    Ok(())
}

fn write_sequence(
    out: &mut String,
    open: char,
    close: char,
    row: &Row,
    mut each: impl FnMut(&mut String, usize) -> Result<(), Misfit>,
) -> Result<(), Misfit> {
    out.push(open);
    for i in 0..row.len() {
        if i > 0 {
            out.push(',');
        }
        each(out, i)?;
    }
    out.push(close);
    Ok(())
}

/// Appends a JSON string.
pub fn write_json_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::{Field, RowBuilder};

    const DEC: Type = Type::Decimal { precision: 5, scale: 2 };

    fn of(value: Value<'_>, to: &Type) -> Result<String, Misfit> {
        convert(value, &value.inferred_type(), to).map(|cell| format!("{cell:?}"))
    }

    #[test]
    fn decimals_are_exact_or_refused() {
        let decimal = |unscaled, scale| of(Value::Decimal { unscaled, scale }, &DEC);
        assert_eq!(decimal(15, 1).unwrap(), "Decimal(150)");
        assert_eq!(decimal(1500, 3).unwrap(), "Decimal(150)");
        assert_eq!(decimal(1501, 3), Err(Misfit::OutOfRange));
        assert_eq!(decimal(100_000, 2), Err(Misfit::OutOfRange));
        assert_eq!(of(Value::Digits("-999.99"), &DEC).unwrap(), "Decimal(-99999)");
        assert_eq!(of(Value::Digits("1e5"), &DEC), Err(Misfit::OutOfRange));
        assert_eq!(of(Value::Int(999), &DEC).unwrap(), "Decimal(99900)");
        let wide = Type::Decimal { precision: 38, scale: 0 };
        assert_eq!(
            of(Value::Digits(&"9".repeat(38)), &wide).unwrap(),
            format!("Decimal({})", "9".repeat(38))
        );
        assert_eq!(of(Value::Digits(&"9".repeat(39)), &wide), Err(Misfit::OutOfRange));
    }

    #[test]
    fn wide_decimals_are_digits() {
        let wide = Type::Decimal { precision: 76, scale: 38 };
        assert_eq!(of(Value::Decimal { unscaled: -150, scale: 2 }, &wide).unwrap(), "Text(\"-1.5\")");
        assert_eq!(of(Value::Int(7), &wide).unwrap(), "Text(\"7\")");
        assert_eq!(of(Value::Text("007.10"), &wide).unwrap(), "Text(\"7.1\")");
        let long = format!("{}.{}", "9".repeat(38), "1".repeat(38));
        assert_eq!(of(Value::Digits(&long), &wide).unwrap(), format!("Text({long:?})"));
        assert_eq!(of(Value::Digits(&format!("9{long}")), &wide), Err(Misfit::OutOfRange));
        assert_eq!(of(Value::Digits(&format!("{long}1")), &wide), Err(Misfit::OutOfRange));
        assert_eq!(of(Value::Digits("1e5"), &wide), Err(Misfit::OutOfRange));
    }

    #[test]
    fn integers_become_doubles_only_where_exact() {
        assert_eq!(of(Value::Int(1 << 53), &Type::Float64).unwrap(), "Float(9007199254740992.0)");
        assert_eq!(of(Value::Int((1 << 53) + 1), &Type::Float64), Err(Misfit::OutOfRange));
        assert_eq!(of(Value::Int(i64::MAX), &Type::Float64), Err(Misfit::OutOfRange));
    }

    #[test]
    fn infinities_of_duckdb_are_not_made_by_accident() {
        assert_eq!(of(Value::Timestamp(i64::MAX), &Type::Timestamp), Err(Misfit::OutOfRange));
        assert_eq!(of(Value::Timestamp(i64::MIN), &Type::Timestamp), Err(Misfit::OutOfRange));
        assert_eq!(of(Value::Date(-i32::MAX), &Type::Date), Err(Misfit::OutOfRange));
        assert_eq!(of(Value::Time(86_400_000_001), &Type::Time), Err(Misfit::OutOfRange));
        assert!(of(Value::Date(-719_528), &Type::Date).is_ok());
    }

    #[test]
    fn text_columns_take_every_scalar() {
        let text = |value| of(value, &Type::Text).unwrap();
        assert_eq!(text(Value::Timestamp(0)), "Text(\"1970-01-01T00:00:00Z\")");
        assert_eq!(text(Value::Float(1e300)), "Text(\"1e300\")");
        assert_eq!(text(Value::Bool(true)), "Text(\"true\")");
        assert_eq!(of(Value::Bytes(&[1]), &Type::Text), Err(Misfit::WrongType));
    }

    #[test]
    fn json_columns_keep_json_and_wrap_text() {
        let json = |value| of(value, &Type::Json).unwrap();
        assert_eq!(json(Value::Text("{\"a\":1.50}")), "Text(\"{\\\"a\\\":1.50}\")");
        assert_eq!(json(Value::Text("[1")), "Text(\"\\\"[1\\\"\")");
        assert_eq!(json(Value::Float(f64::NAN)), "Text(\"\\\"NaN\\\"\")");
        let mut row = RowBuilder::new();
        row.push(Value::Int(1));
        row.push(Value::Text("\u{1}\"x"));
        let row = row.finish();
        let field = |name: &str, ty| Field { name: name.into(), ty };
        let ty = Type::Struct(Box::new([field("a", Type::Int64), field("b", Type::Text)]));
        let Cell::Text(text) = convert(Value::Struct(&row), &ty, &Type::Json).unwrap() else {
            panic!("no text")
        };
        assert_eq!(text, r#"{"a":1,"b":"\u0001\"x"}"#);
    }
}
