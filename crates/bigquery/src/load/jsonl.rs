//! Encoded rows as JSON lines, gzipped: the format of tables with a JSON column, which BigQuery does not load from Parquet.

use std::fmt::Write as _;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use millstream_layout::civil::date_text;
use serde::de::IgnoredAny;
use serde_json::Value as Json;

use super::wire::{self, Malformed, Raw};
use crate::civil::{self, DAY_US};
use crate::column_type::ColumnType;
use crate::field::{Field, Mode};
use crate::rows::Rows;

/// A file of JSON lines that is being written.
pub(super) struct JsonFile {
    fields: Vec<Field>,
    gzip: GzEncoder<Vec<u8>>,
    line: String,
}

/// Why a row is no line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadLine {
    /// Nobody encodes such rows.
    Malformed,
    /// A JSON column's text is none, or has a number that no double holds.
    NoJson,
}

impl From<Malformed> for BadLine {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl JsonFile {
    /// A file of these columns.
    pub(super) fn new(fields: &[Field]) -> Self {
        let gzip = GzEncoder::new(Vec::new(), Compression::fast());
        Self { fields: fields.to_vec(), gzip, line: String::new() }
    }

    /// Adds rows; those that are no JSON are left out and named by their places.
    pub(super) fn add(&mut self, rows: &Rows) -> std::io::Result<Vec<usize>> {
        let mut refused = Vec::new();
        for index in 0..rows.len() {
            self.line.clear();
            match put_record(&self.fields, rows.row(index), &mut self.line) {
                Ok(()) => {
                    self.line.push('\n');
                    self.gzip.write_all(self.line.as_bytes())?;
                }
                Err(BadLine::NoJson) => refused.push(index),
                Err(BadLine::Malformed) => return Err(std::io::Error::other("an encoded row is no message")),
            }
        }
        Ok(refused)
    }

    /// Writes the end of the file; nothing may be added any more.
    pub(super) fn finish(&mut self) -> std::io::Result<()> {
        self.gzip.try_finish()
    }

    /// Takes the bytes that were written since the last call.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.gzip.get_mut())
    }
}

fn put_record(fields: &[Field], message: &[u8], out: &mut String) -> Result<(), BadLine> {
    out.push('{');
    // Elements of an array stand behind each other.
    let mut open: Option<usize> = None;
    let mut is_first = true;
    for found in wire::fields(message) {
        let (number, raw) = found?;
        let at = number.wrapping_sub(1);
        let field = fields.get(at).ok_or(BadLine::Malformed)?;
        if open == Some(at) {
            out.push(',');
        } else {
            if open.take().is_some() {
                out.push(']');
            }
            if !std::mem::take(&mut is_first) {
                out.push(',');
            }
            put_text(&field.name, out);
            out.push(':');
            if field.mode == Mode::Repeated {
                out.push('[');
                open = Some(at);
            }
        }
        put_value(field, raw, out)?;
    }
    if open.is_some() {
        out.push(']');
    }
    out.push('}');
    Ok(())
}

fn put_value(field: &Field, raw: Raw<'_>, out: &mut String) -> Result<(), BadLine> {
    match (raw, &field.ty) {
        (Raw::Bytes(message), ColumnType::Record) => return put_record(&field.fields, message, out),
        (Raw::Bytes(bytes), ColumnType::Numeric) => drop(write!(out, "\"{}\"", decimal(bytes, 9))),
        (Raw::Bytes(bytes), ColumnType::BigNumeric) => drop(write!(out, "\"{}\"", decimal(bytes, 38))),
        (Raw::Bytes(bytes), ColumnType::Bytes) => {
            out.push('"');
            STANDARD.encode_string(bytes, out);
            out.push('"');
        }
        (Raw::Bytes(bytes), ColumnType::Json) => put_json(bytes, out)?,
        (Raw::Bytes(bytes), _) => put_text(std::str::from_utf8(bytes).map_err(|_| BadLine::Malformed)?, out),
        (Raw::Bits(bits), ColumnType::Bool) => out.push_str(if bits == 0 { "false" } else { "true" }),
        (Raw::Bits(bits), ColumnType::Float64) => match f64::from_bits(bits) {
            // Texts that a load takes for a FLOAT64.
            v if v.is_nan() => out.push_str("\"NaN\""),
            v if v.is_infinite() => out.push_str(if v > 0.0 { "\"Infinity\"" } else { "\"-Infinity\"" }),
            v => drop(write!(out, "{v:?}")),
        },
        (Raw::Bits(bits), ty) => {
            let v = bits.cast_signed();
            out.push('"');
            match ty {
                // In quotes, since numbers beyond 2^53 are read as doubles.
                ColumnType::Int64 => drop(write!(out, "{v}")),
                ColumnType::Date => out.push_str(&date_text(v)),
                ColumnType::Time => put_time(civil::time_micros(v), out),
                ColumnType::DateTime => put_instant(civil::date_time_micros(v), out),
                ColumnType::Timestamp => {
                    put_instant(v, out);
                    out.push('Z');
                }
                _ => return Err(BadLine::Malformed),
            }
            out.push('"');
        }
    }
    Ok(())
}

/// The text as it is, so that no digit of a number is lost; a line break can only stand between its words.
fn put_json(bytes: &[u8], out: &mut String) -> Result<(), BadLine> {
    let text = std::str::from_utf8(bytes).map_err(|_| BadLine::NoJson)?;
    if may_be_huge(text) {
        let value: Json = serde_json::from_str(text).map_err(|_| BadLine::NoJson)?;
        if !is_finite(&value) {
            return Err(BadLine::NoJson);
        }
    } else {
        serde_json::from_str::<IgnoredAny>(text).map_err(|_| BadLine::NoJson)?;
    }
    out.extend(text.chars().map(|c| if matches!(c, '\n' | '\r') { ' ' } else { c }));
    Ok(())
}

/// Whether a number in the text may be beyond a double: it has an exponent, or very many digits.
fn may_be_huge(text: &str) -> bool {
    const DIGITS: usize = 300;
    let bytes = text.as_bytes();
    let has_exponent =
        bytes.windows(2).any(|pair| pair[0].is_ascii_digit() && matches!(pair[1], b'e' | b'E'));
    has_exponent || bytes.split(|b| !b.is_ascii_digit()).any(|digits| digits.len() > DIGITS)
}

fn is_finite(value: &Json) -> bool {
    match value {
        Json::Number(number) => number.as_f64().is_some_and(f64::is_finite),
        Json::Array(values) => values.iter().all(is_finite),
        Json::Object(members) => members.values().all(is_finite),
        Json::Null | Json::Bool(_) | Json::String(_) => true,
    }
}

fn put_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => drop(write!(out, "\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

fn put_time(us: i64, out: &mut String) {
    let (seconds, fraction) = (us / 1_000_000, us % 1_000_000);
    let _ = write!(out, "{:02}:{:02}:{:02}.{fraction:06}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

fn put_instant(us: i64, out: &mut String) {
    out.push_str(&date_text(us.div_euclid(DAY_US)));
    out.push('T');
    put_time(us.rem_euclid(DAY_US), out);
}

/// A little-endian two's complement number with so many digits after the point, without zeros at its end.
fn decimal(bytes: &[u8], scale: usize) -> String {
    let is_negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut magnitude = bytes.to_vec();
    if is_negative {
        let mut carry = true;
        for byte in &mut magnitude {
            let (sum, over) = (!*byte).overflowing_add(carry.into());
            (*byte, carry) = (sum, over);
        }
        if carry {
            magnitude.push(1);
        }
    }
    let mut digits = Vec::new();
    while magnitude.iter().any(|byte| *byte != 0) || digits.len() <= scale {
        let mut rest = 0u16;
        for byte in magnitude.iter_mut().rev() {
            let value = rest << 8 | u16::from(*byte);
            (*byte, rest) = ((value / 10) as u8, value % 10);
        }
        digits.push(b'0' + rest as u8);
    }
    digits.reverse();
    let text = String::from_utf8_lossy(&digits);
    let (whole, fraction) = text.split_at(text.len() - scale);
    let fraction = fraction.trim_end_matches('0');
    let sign = if is_negative { "-" } else { "" };
    if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::encode::RowWriter;

    #[test]
    fn every_type_is_written_as_loads_read_it() {
        let mut fields: Vec<_> =
            ColumnType::scalars().enumerate().map(|(i, ty)| Field::new(format!("c{i}"), ty)).collect();
        fields.push(Field::new("list", ColumnType::Int64).with_mode(Mode::Repeated));
        let inner = vec![Field::new("a", ColumnType::String)];
        fields.push(Field { fields: inner, ..Field::new("s", ColumnType::Record).with_mode(Mode::Repeated) });
        let mut writer = RowWriter::new();
        let mut row = writer.begin();
        row.put_bool(1, true);
        row.put_int(2, i64::MIN);
        row.put_float(3, f64::NEG_INFINITY);
        row.put_numeric(4, -5, 1).unwrap();
        row.put_big_numeric_digits(5, "-38.00000000000000000000000000000000000001").unwrap();
        row.put_text(6, "a\"\\\n\u{1}ü");
        row.put_bytes(7, &[0, 255]);
        row.put_text(8, "{\"a\":\n12345678901234567890.10}");
        row.put_date(9, -719_162).unwrap();
        row.put_time(10, DAY_US - 1).unwrap();
        row.put_date_time(11, -1).unwrap();
        row.put_timestamp(12, 1_500_000).unwrap();
        row.put_int(13, 1);
        row.put_int(13, 2);
        for text in ["x", "y"] {
            let mark = row.begin_message(14);
            row.put_text(1, text);
            row.end_message(mark);
        }
        row.finish();
        let mut row = writer.begin();
        row.put_text(8, "{broken");
        row.finish();
        writer.begin().finish();
        let mut file = JsonFile::new(&fields);
        assert_eq!(file.add(&writer.take()).unwrap(), [1]);
        file.finish().unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&file.take()[..]).read_to_string(&mut text).unwrap();
        let expected = concat!(
            r#"{"c0":true,"c1":"-9223372036854775808","c2":"-Infinity","c3":"-0.5","#,
            r#""c4":"-38.00000000000000000000000000000000000001","c5":"a\"\\\u000a\u0001ü","c6":"AP8=","#,
            r#""c7":{"a": 12345678901234567890.10},"c8":"0001-01-01","c9":"23:59:59.999999","#,
            r#""c10":"1969-12-31T23:59:59.999999","c11":"1970-01-01T00:00:01.500000Z","#,
            r#""list":["1","2"],"s":[{"a":"x"},{"a":"y"}]}"#,
            "\n{}\n"
        );
        assert_eq!(text, expected);
    }

    /// One such number in a row could fail the load of a whole file, again and again, where a stream refuses the row alone.
    #[test]
    fn a_number_that_no_double_holds_refuses_its_row_only() {
        let zeros = "0".repeat(310);
        let huge = format!("[1{zeros}]");
        let small = format!("[0.{zeros}1e300]");
        for (text, fits) in [
            ("1e999", false),
            (r#"{"a":[-1E400]}"#, false),
            (&*huge, false),
            ("1e308", true),
            (r#""1e999""#, true),
            (&*small, true),
            (r#"{"3e":1}"#, true),
        ] {
            let mut out = String::new();
            assert_eq!(put_json(text.as_bytes(), &mut out).is_ok(), fits, "{text}");
            assert_eq!(out, if fits { text } else { "" });
        }
    }

    #[test]
    fn decimals_are_exact() {
        assert_eq!(decimal(&[], 9), "0");
        assert_eq!(decimal(&[0x80], 0), "-128");
        assert_eq!(decimal(&[1], 38), "0.00000000000000000000000000000000000001");
        let max: Vec<u8> = std::iter::repeat_n(0xff, 31).chain([0x7f]).collect();
        let text = "578960446186580977117854925043439539266.34992332820282019728792003956564819967";
        assert_eq!(decimal(&max, 38), text);
    }
}
