//! A row's key, in a canonical form: equality of keys is equality of typed values, never of key text.
//!
//! MySQL writes `:01Z` in a snapshot and `:01.000Z` in the stream, and a decimal may come as `1.50` or `1.5`; both
//! pairs are one key. A key is a sequence of self-describing components:
//!
//! ```text
//! 0                                   NULL
//! 1 b                                 boolean
//! 2 zigzag-varint                     integer; also decimals and doubles with an integral value in i64's range
//! 3 varint-len utf8                   any other decimal or double: shortest plain decimal text
//! 4 varint-len utf8                   text, JSON
//! 5 varint-len bytes                  bytes
//! 6/7/8/9 zigzag-varint               date (days), time, datetime, timestamp (µs)
//! 10 varint-count components          list or struct
//! ```
//!
//! The form is injective, so keys can be decoded again (for a DELETE per live key after a truncate).

use std::fmt;

use crate::bytes::{put_bytes, put_signed, put_varint, take_bytes, take_signed, take_varint};
use crate::row::{Row, RowBuilder};
use crate::value::Value;

/// A canonical key: the bytes described in the module's docs. Ordering is that of the bytes and means nothing.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Box<[u8]>);

impl Key {
    /// The key with these values, in the key's order.
    pub fn from_values<'a>(values: impl IntoIterator<Item = Value<'a>>) -> Self {
        Self::from_values_in(&mut Vec::with_capacity(24), values)
    }

    /// The same, written in `scratch` first, so that the key is one allocation of its own size.
    pub fn from_values_in<'a>(scratch: &mut Vec<u8>, values: impl IntoIterator<Item = Value<'a>>) -> Self {
        scratch.clear();
        for value in values {
            put(scratch, value);
        }
        Self(scratch.as_slice().into())
    }

    /// The canonical bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A key from bytes that [`Key::as_bytes`] gave; `None` if they are not of that form.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let key = Self(bytes.into());
        key.values().map(|_| key)
    }

    /// Its values as the cells of a row, in the key's order. Non-integral numbers come back as [`Value::Digits`].
    pub fn values(&self) -> Option<Row> {
        let mut rest = &*self.0;
        let mut row = RowBuilder::new();
        while !rest.is_empty() {
            take(&mut rest, &mut row, 0)?;
        }
        Some(row.finish())
    }
}

/// Shows the size only: key values are customers' data and stay out of logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

fn put(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Null | Value::Unchanged => out.push(0),
        Value::Bool(v) => out.extend([1, u8::from(v)]),
        Value::Int(v) => put_int(out, 2, v),
        Value::Float(v) => {
            // i64::MAX rounds up to 2^63, which is no i64: the range leaves it out.
            if v.fract() == 0.0 && (i64::MIN as f64..i64::MAX as f64).contains(&v) {
                put_int(out, 2, v as i64);
            } else {
                put_text(out, 3, &v.to_string());
            }
        }
        Value::Decimal { unscaled, scale } => {
            let (mut unscaled, mut scale) = (unscaled, scale);
            while scale > 0 && unscaled % 10 == 0 {
                unscaled /= 10;
                scale -= 1;
            }
            if scale == 0 {
                put_int(out, 2, unscaled);
            } else {
                put_text(out, 3, &decimal_text(unscaled.into(), scale.into()));
            }
        }
        Value::Digits(v) => {
            let plain = normal_digits(v);
            match plain.parse::<i64>() {
                Ok(int) => put_int(out, 2, int),
                Err(_) => put_text(out, 3, &plain),
            }
        }
        Value::Text(v) | Value::Json(v) => put_text(out, 4, v),
        Value::Bytes(v) => {
            out.push(5);
            put_bytes(out, v);
        }
        Value::Date(v) => put_int(out, 6, v.into()),
        Value::Time(v) => put_int(out, 7, v),
        Value::DateTime(v) => put_int(out, 8, v),
        Value::Timestamp(v) => put_int(out, 9, v),
        Value::List(row) | Value::Struct(row) => {
            out.push(10);
            put_varint(out, row.len() as u64);
            for value in row.iter() {
                put(out, value);
            }
        }
    }
}

fn put_int(out: &mut Vec<u8>, tag: u8, v: i64) {
    out.push(tag);
    put_signed(out, v);
}

fn put_text(out: &mut Vec<u8>, tag: u8, v: &str) {
    out.push(tag);
    put_bytes(out, v.as_bytes());
}

fn take(bytes: &mut &[u8], row: &mut RowBuilder, depth: u32) -> Option<()> {
    let (&tag, rest) = bytes.split_first()?;
    *bytes = rest;
    match tag {
        0 => row.push(Value::Null),
        1 => {
            let (&b, rest) = bytes.split_first()?;
            *bytes = rest;
            row.push(Value::Bool(b != 0));
        }
        2 | 6..=9 => {
            let v = take_signed(bytes)?;
            row.push(match tag {
                2 => Value::Int(v),
                6 => Value::Date(i32::try_from(v).ok()?),
                7 => Value::Time(v),
                8 => Value::DateTime(v),
                _ => Value::Timestamp(v),
            });
        }
        3..=5 => {
            let head = take_bytes(bytes)?;
            row.push(match tag {
                3 => Value::Digits(std::str::from_utf8(head).ok()?),
                4 => Value::Text(std::str::from_utf8(head).ok()?),
                _ => Value::Bytes(head),
            });
        }
        10 if depth < 128 => {
            let count = take_varint(bytes)?;
            let mut nested = RowBuilder::new();
            for _ in 0..count {
                take(bytes, &mut nested, depth + 1)?;
            }
            row.push_list(nested.finish());
        }
        _ => return None,
    }
    Some(())
}

/// `unscaled × 10^-scale` as plain decimal text, with all `scale` digits after the point.
pub fn decimal_text(unscaled: i128, scale: usize) -> String {
    let digits = unscaled.unsigned_abs().to_string();
    let sign = if unscaled < 0 { "-" } else { "" };
    if scale == 0 {
        return format!("{sign}{digits}");
    }
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    format!("{sign}{whole}.{fraction}")
}

/// Plain decimal text without leading zeros, trailing fraction zeros, a bare point or a negative zero.
pub fn normal_digits(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let fraction = fraction.trim_end_matches('0');
    match (fraction, whole) {
        ("", "0") => "0".to_owned(),
        ("", _) => format!("{sign}{whole}"),
        _ => format!("{sign}{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_one_value_are_one_key() {
        let of = |v| Key::from_values([v]);
        assert_eq!(of(Value::Int(150)), of(Value::Decimal { unscaled: 15000, scale: 2 }));
        assert_eq!(of(Value::Digits("1.50")), of(Value::Decimal { unscaled: 15, scale: 1 }));
        assert_eq!(of(Value::Digits("-0.0")), of(Value::Int(0)));
        assert_eq!(of(Value::Float(3.0)), of(Value::Int(3)));
        assert_ne!(of(Value::Text("3")), of(Value::Int(3)));
    }

    proptest! {
        #[test]
        fn keys_round_trip(ints in prop::collection::vec(any::<i64>(), 0..4), text in ".*", bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let values = ints.iter().map(|&i| Value::Int(i)).chain([Value::Text(&text), Value::Bytes(&bytes), Value::Null]);
            let key = Key::from_values(values);
            let row = key.values().unwrap();
            prop_assert_eq!(Key::from_values(row.iter()), key.clone());
            prop_assert_eq!(Key::from_bytes(key.as_bytes()), Some(key));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Key::from_bytes(&bytes);
        }
    }
}
