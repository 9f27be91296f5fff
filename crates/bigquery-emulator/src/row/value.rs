//! One value of a protobuf message into a column.

use super::builder::Builder;
use super::plan::Proto;
use super::{bignumeric, civil};
use crate::schema::Type;

/// A field's value as it lies in the message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wire<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// A scalar.
#[derive(Debug, Clone, Copy)]
enum Scalar<'a> {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Moment { seconds: i64, nanos: i32 },
    Duration { seconds: i64, nanos: i32 },
}

/// Reads a varint, and where it ends.
#[inline]
pub(crate) fn varint(bytes: &[u8], at: &mut usize) -> Result<u64, String> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let byte = *bytes.get(*at).ok_or("the message ends in a number")?;
        *at += 1;
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number has more than ten bytes".to_owned())
}

/// Reads a field: its number and value. Groups are passed over.
#[inline]
pub(crate) fn field<'a>(bytes: &'a [u8], at: &mut usize) -> Result<(u32, Wire<'a>), String> {
    let key = varint(bytes, at)?;
    let number =
        u32::try_from(key >> 3).ok().filter(|n| *n != 0).ok_or("a field has an impossible number")?;
    let mut take = |n: u64| {
        let end = usize::try_from(n).ok().and_then(|n| at.checked_add(n)).filter(|end| *end <= bytes.len());
        let end = end.ok_or_else(|| format!("the message ends within field {number}"))?;
        let taken = &bytes[*at..end];
        *at = end;
        Ok::<_, String>(taken)
    };
    let value = match key & 7 {
        0 => Wire::Varint(varint(bytes, at)?),
        1 => Wire::Fixed64(u64::from_le_bytes(take(8)?.try_into().map_err(|_| "eight bytes")?)),
        2 => {
            let length = varint(bytes, at)?;
            let end =
                usize::try_from(length).ok().and_then(|n| at.checked_add(n)).filter(|e| *e <= bytes.len());
            let end = end.ok_or_else(|| format!("the message ends within field {number}"))?;
            let taken = &bytes[*at..end];
            *at = end;
            Wire::Bytes(taken)
        }
        5 => Wire::Fixed32(u32::from_le_bytes(take(4)?.try_into().map_err(|_| "four bytes")?)),
        other => return Err(format!("field {number} has the unknown wire type {other}")),
    };
    Ok((number, value))
}

/// The elements of a packed list, one by one.
pub(crate) fn unpack<'a>(
    proto: &Proto,
    bytes: &'a [u8],
    mut each: impl FnMut(Wire<'a>),
) -> Result<(), String> {
    let mut at = 0;
    while at < bytes.len() {
        let fixed = |n: usize| bytes.get(at..at + n).ok_or("a packed list ends within a value");
        match proto {
            Proto::Double | Proto::Fixed64 | Proto::Sfixed64 => {
                each(Wire::Fixed64(u64::from_le_bytes(fixed(8)?.try_into().map_err(|_| "eight bytes")?)));
                at += 8;
            }
            Proto::Float | Proto::Fixed32 | Proto::Sfixed32 => {
                each(Wire::Fixed32(u32::from_le_bytes(fixed(4)?.try_into().map_err(|_| "four bytes")?)));
                at += 4;
            }
            _ => each(Wire::Varint(varint(bytes, &mut at)?)),
        }
    }
    Ok(())
}

/// Whether a list of these may be packed.
pub(crate) fn packable(proto: &Proto) -> bool {
    !matches!(
        proto,
        Proto::Text | Proto::Bytes | Proto::Message(_) | Proto::Wrapper(_) | Proto::Moment | Proto::Duration
    )
}

/// The text of a string field.
pub(crate) fn text<'a>(wire: Wire<'a>) -> Result<&'a str, String> {
    match wire {
        Wire::Bytes(bytes) => std::str::from_utf8(bytes).map_err(|_| "the text is not UTF-8".to_owned()),
        _ => Err("the value is not of the type that the descriptor says".to_owned()),
    }
}

fn scalar<'a>(proto: &'a Proto, wire: Wire<'a>) -> Result<Scalar<'a>, String> {
    let zigzag = |v: u64| ((v >> 1) as i64) ^ -((v & 1) as i64);
    Ok(match (proto, wire) {
        (Proto::Double, Wire::Fixed64(v)) => Scalar::Float(f64::from_bits(v)),
        (Proto::Float, Wire::Fixed32(v)) => Scalar::Float(f32::from_bits(v).into()),
        (Proto::Int64, Wire::Varint(v)) => Scalar::Int(v.cast_signed()),
        (Proto::Int32, Wire::Varint(v)) => Scalar::Int((v as i32).into()),
        (Proto::Uint64, Wire::Varint(v)) | (Proto::Fixed64, Wire::Fixed64(v)) => Scalar::Uint(v),
        (Proto::Uint32, Wire::Varint(v)) => Scalar::Int((v as u32).into()),
        (Proto::Sint32 | Proto::Sint64, Wire::Varint(v)) => Scalar::Int(zigzag(v)),
        (Proto::Fixed32, Wire::Fixed32(v)) => Scalar::Int(v.into()),
        (Proto::Sfixed64, Wire::Fixed64(v)) => Scalar::Int(v.cast_signed()),
        (Proto::Sfixed32, Wire::Fixed32(v)) => Scalar::Int(v.cast_signed().into()),
        (Proto::Bool, Wire::Varint(v)) => Scalar::Bool(v != 0),
        (Proto::Text, wire) => Scalar::Text(text(wire)?),
        (Proto::Bytes, Wire::Bytes(v)) => Scalar::Bytes(v),
        (Proto::Enum(_), Wire::Varint(v)) => Scalar::Int((v as i32).into()),
        (Proto::Wrapper(inner), Wire::Bytes(bytes)) => return wrapped(inner, bytes),
        (Proto::Moment, Wire::Bytes(bytes)) => {
            let (seconds, nanos) = seconds(bytes)?;
            Scalar::Moment { seconds, nanos }
        }
        (Proto::Duration, Wire::Bytes(bytes)) => {
            let (seconds, nanos) = seconds(bytes)?;
            Scalar::Duration { seconds, nanos }
        }
        _ => return Err("the value is not of the type that the descriptor says".to_owned()),
    })
}

fn wrapped<'a>(inner: &'a Proto, bytes: &'a [u8]) -> Result<Scalar<'a>, String> {
    let mut value = match inner {
        Proto::Double | Proto::Float => Scalar::Float(0.0),
        Proto::Uint64 => Scalar::Uint(0),
        Proto::Bool => Scalar::Bool(false),
        Proto::Text => Scalar::Text(""),
        Proto::Bytes => Scalar::Bytes(&[]),
        _ => Scalar::Int(0),
    };
    let mut at = 0;
    while at < bytes.len() {
        let (number, wire) = field(bytes, &mut at)?;
        if number == 1 {
            value = scalar(inner, wire)?;
        }
    }
    Ok(value)
}

fn seconds(bytes: &[u8]) -> Result<(i64, i32), String> {
    let (mut seconds, mut nanos, mut at) = (0, 0, 0);
    while at < bytes.len() {
        match field(bytes, &mut at)? {
            (1, Wire::Varint(v)) => seconds = v.cast_signed(),
            (2, Wire::Varint(v)) => nanos = v as i32,
            _ => {}
        }
    }
    Ok((seconds, nanos))
}

/// Adds a value to a column; an error says what is wrong with it, without naming it.
#[inline]
pub(crate) fn push(builder: &mut Builder, ty: &Type, proto: &Proto, wire: Wire<'_>) -> Result<(), String> {
    let value = scalar(proto, wire)?;
    match (builder, ty) {
        (Builder::Int64(b), _) => match value {
            Scalar::Int(v) => b.append_value(v),
            _ => return Err(misfit(ty)),
        },
        (Builder::Bool(b), _) => match value {
            Scalar::Bool(v) => b.append_value(v),
            Scalar::Int(v) => b.append_value(v != 0),
            Scalar::Uint(v) => b.append_value(v != 0),
            _ => return Err(misfit(ty)),
        },
        (Builder::Float64(b), _) => match value {
            Scalar::Float(v) => b.append_value(v),
            _ => return Err(misfit(ty)),
        },
        (Builder::Text(b), Type::String) => match (value, proto) {
            (Scalar::Text(v), _) => b.append_value(v),
            (Scalar::Int(v), Proto::Enum(names)) => {
                let name = i32::try_from(v).ok().and_then(|v| names.get(&v));
                b.append_value(name.ok_or_else(|| format!("the enum has no value {v}"))?);
            }
            _ => return Err(misfit(ty)),
        },
        (Builder::Text(b), _) => b.append_value(special_text(ty, value)?),
        (Builder::Bytes(b), _) => match value {
            Scalar::Bytes(v) => b.append_value(v),
            Scalar::Text(v) => b.append_value(v.as_bytes()),
            _ => return Err(misfit(ty)),
        },
        (Builder::Date(b), _) => b.append_value(date(value)? as i32),
        (Builder::Time(b), _) => b.append_value(match value {
            Scalar::Int(v) => civil::packed_time(v)?,
            Scalar::Text(v) => civil::time(v)?,
            _ => return Err(misfit(ty)),
        }),
        (Builder::Micros(b), ty) => b.append_value(micros(ty, value)?),
        (Builder::Numeric(b), _) => b.append_value(numeric(value)?),
        (Builder::Record { .. } | Builder::List { .. }, ty) => return Err(misfit(ty)),
    }
    Ok(())
}

fn misfit(ty: &Type) -> String {
    format!("the value does not fit {}", ty.sql_name())
}

/// The text of a bound of a range.
pub(crate) fn bound(ty: &Type, proto: &Proto, wire: Wire<'_>) -> Result<String, String> {
    let value = scalar(proto, wire)?;
    let text = match ty {
        Type::Date => civil::date_text(date(value)?),
        Type::Datetime => civil::datetime_text(micros(ty, value)?),
        // As the service shows ranges of them: in microseconds.
        _ => Some(micros(ty, value)?.to_string()),
    };
    text.ok_or_else(|| misfit(ty))
}

fn date(value: Scalar<'_>) -> Result<i64, String> {
    match value {
        Scalar::Int(v) if civil::DAYS.contains(&v) => Ok(v),
        Scalar::Int(v) => Err(format!("Date value out of range: {v}")),
        Scalar::Text(v) => civil::date(v),
        _ => Err(misfit(&Type::Date)),
    }
}

fn micros(ty: &Type, value: Scalar<'_>) -> Result<i64, String> {
    match (ty, value) {
        (Type::Datetime, Scalar::Int(v)) => civil::packed_datetime(v),
        (Type::Datetime, Scalar::Text(v)) => civil::datetime(v),
        (Type::Timestamp, Scalar::Int(v)) if civil::MICROS.contains(&v) => Ok(v),
        (Type::Timestamp, Scalar::Int(v)) => Err(format!("Timestamp value out of range: {v}")),
        (Type::Timestamp, Scalar::Text(v)) => civil::timestamp(v),
        (Type::Timestamp, Scalar::Moment { seconds, nanos }) => seconds
            .checked_mul(1_000_000)
            .and_then(|micros| micros.checked_add(i64::from(nanos) / 1000))
            .filter(|micros| civil::MICROS.contains(micros))
            .ok_or_else(|| format!("Timestamp value out of range: {seconds} s")),
        _ => Err(misfit(ty)),
    }
}

fn numeric(value: Scalar<'_>) -> Result<i128, String> {
    const ONE: i128 = 1_000_000_000;
    let range = |v: i128| {
        if v.unsigned_abs() < 10u128.pow(38) { Ok(v) } else { Err("NUMERIC value out of range".to_owned()) }
    };
    let whole =
        |v: i128| v.checked_mul(ONE).ok_or_else(|| "NUMERIC value out of range".to_owned()).and_then(range);
    match value {
        Scalar::Int(v) => whole(v.into()),
        Scalar::Uint(v) => whole(v.into()),
        Scalar::Float(v) => decimal(&float_text(v)?),
        Scalar::Text(v) => decimal(v),
        Scalar::Bytes(bytes) if bytes.is_empty() || bytes.len() > 16 => {
            Err(format!("NUMERIC takes 1 to 16 bytes, not {}", bytes.len()))
        }
        Scalar::Bytes(bytes) => {
            let fill = if bytes[bytes.len() - 1] & 0x80 != 0 { 0xff } else { 0 };
            let mut all = [fill; 16];
            all[..bytes.len()].copy_from_slice(bytes);
            range(i128::from_le_bytes(all))
        }
        _ => Err(misfit(&Type::Numeric)),
    }
}

/// The unscaled NUMERIC of a decimal text.
pub(crate) fn decimal(text: &str) -> Result<i128, String> {
    let (negative, digits) = bignumeric::digits(text, 9)?;
    if digits.len() > 38 {
        return Err(format!("NUMERIC value out of range: {text}"));
    }
    let value: i128 =
        if digits.is_empty() { 0 } else { digits.parse().map_err(|_| misfit(&Type::Numeric))? };
    Ok(if negative { -value } else { value })
}

fn float_text(v: f64) -> Result<String, String> {
    if v.is_finite() { Ok(v.to_string()) } else { Err(format!("{v} is no number")) }
}

/// Types that are kept as text, but for STRING.
fn special_text<'a>(ty: &Type, value: Scalar<'a>) -> Result<std::borrow::Cow<'a, str>, String> {
    Ok(match (ty, value) {
        (Type::Json, Scalar::Text(v)) => {
            serde_json::from_str::<serde::de::IgnoredAny>(v).map_err(|e| format!("Invalid JSON: {e}"))?;
            v.into()
        }
        (Type::Geography | Type::Interval, Scalar::Text(v)) if !v.trim().is_empty() => v.into(),
        (Type::Interval, Scalar::Duration { seconds, nanos }) => {
            let micros = seconds.unsigned_abs().saturating_mul(1_000_000);
            let micros = micros.saturating_add(u64::from(nanos.unsigned_abs() / 1000));
            let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
            let (whole, fraction) = (micros / 1_000_000, micros % 1_000_000);
            let fraction = if fraction == 0 { String::new() } else { format!(".{fraction:06}") };
            format!("0-0 0 {sign}{}:{}:{}{fraction}", whole / 3600, whole / 60 % 60, whole % 60).into()
        }
        (Type::Bignumeric, Scalar::Bytes(bytes)) => bignumeric::from_bytes(bytes)?.into(),
        (Type::Bignumeric, Scalar::Text(v)) => bignumeric::canonical(v)?.into(),
        (Type::Bignumeric, Scalar::Int(v)) => v.to_string().into(),
        (Type::Bignumeric, Scalar::Uint(v)) => v.to_string().into(),
        (Type::Bignumeric, Scalar::Float(v)) => bignumeric::canonical(&float_text(v)?)?.into(),
        _ => return Err(misfit(ty)),
    })
}
