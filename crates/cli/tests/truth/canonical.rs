//! One text for equal typed values, whether they come from a final row of the source database or from a table that
//! Millstream wrote. The declared SQL type says how a final row's text is to be read.

use serde_json::Value as Json;

use crate::cell::Cell;
use crate::civil::{self, Interval};
use crate::number;

/// What of a declared type matters for comparing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Number,
    Real,
    Double,
    Bool,
    Text,
    Bytes,
    /// A bit string of fixed length.
    Bits(usize),
    /// A bit string of any length.
    BitsVarying,
    Date,
    Time,
    TimeWithZone,
    DateTime,
    Instant,
    Interval,
    Json,
    Point,
    /// Well-known binary.
    Geometry,
    /// Single precision floats in text.
    Vector,
}

impl Kind {
    /// The kind of a declared type that is no array.
    pub(crate) fn of(ty: &str, mysql: bool) -> Self {
        let base = ty.split('(').next().unwrap_or(ty).trim();
        let length = || ty.split(['(', ')']).nth(1).and_then(|n| n.parse().ok()).unwrap_or(1);
        match base.split(' ').next().unwrap_or(base) {
            "boolean" if mysql => Kind::Number,
            "boolean" => Kind::Bool,
            "smallint" | "integer" | "bigint" | "int" | "tinyint" | "mediumint" | "oid" | "numeric"
            | "decimal" | "money" | "year" => Kind::Number,
            "real" | "float" => Kind::Real,
            "double" => Kind::Double,
            "bytea" | "binary" | "varbinary" | "blob" | "tinyblob" => Kind::Bytes,
            "bit" if length() == 1 => Kind::Bool,
            "bit" => Kind::Bits(length()),
            "varbit" => Kind::BitsVarying,
            "date" => Kind::Date,
            "time" => Kind::Time,
            "timetz" => Kind::TimeWithZone,
            "timestamp" if mysql => Kind::Instant,
            "timestamp" | "datetime" => Kind::DateTime,
            "timestamptz" => Kind::Instant,
            "interval" => Kind::Interval,
            "json" | "jsonb" | "hstore" => Kind::Json,
            "point" if !mysql => Kind::Point,
            "point" | "geometry" => Kind::Geometry,
            "vector" => Kind::Vector,
            _ => Kind::Text,
        }
    }
}

/// The canonical text of a final row's value.
pub(crate) fn expected(ty: &str, mysql: bool, value: &Json) -> String {
    if value.is_null() {
        return "NULL".to_owned();
    }
    if let Some(element) = ty.strip_suffix("[]") {
        let Json::Array(items) = value else { return format!("?{value}") };
        return list(items.iter().map(|item| expected(element, mysql, item)));
    }
    let text = match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    let kind = Kind::of(ty, mysql);
    read_text(kind, ty, &text, value).unwrap_or_else(|| format!("{kind:?} {text}"))
}

fn read_text(kind: Kind, ty: &str, text: &str, value: &Json) -> Option<String> {
    Some(match kind {
        Kind::Number if ty == "money" => number_text(&text.replace(['$', ','], "")),
        Kind::Number => number_text(text),
        Kind::Real => real(text.parse().ok()?),
        Kind::Double => double(text.parse().ok()?),
        Kind::Bool => format!("bool {}", matches!(text, "1" | "true")),
        Kind::Text => format!("text {text}"),
        Kind::Bytes => format!("bytes {}", text.trim_start_matches("\\x").to_lowercase()),
        // MySQL's own text leaves leading zeros out.
        Kind::Bits(length) if is_bits(text) => format!("bits {text:0>length$}"),
        Kind::BitsVarying if is_bits(text) => format!("bits {text}"),
        Kind::Date => format!("date {}", civil::date(text)?),
        Kind::Time => format!("time {}", civil::time(text)?),
        Kind::TimeWithZone => {
            civil::time_with_zone(text).map(|(us, offset)| format!("timetz {us} {offset}"))?
        }
        Kind::DateTime => format!("datetime {}", civil::timestamp(text)?),
        Kind::Instant => format!("instant {}", civil::instant(text)?),
        Kind::Interval => interval(Interval::postgres(text)?),
        Kind::Json => format!("json {}", json(value)),
        Kind::Point => {
            let (x, y) = text.trim_matches(['(', ')']).split_once(',')?;
            format!("point {},{}", number::of_double(x.parse().ok()?), number::of_double(y.parse().ok()?))
        }
        Kind::Geometry => format!("wkb {}", text.to_lowercase()),
        Kind::Vector => {
            let items = text
                .trim_matches(['[', ']'])
                .split(',')
                .map(|item| item.parse().map_or_else(|_| "?".to_owned(), real));
            list(items)
        }
        Kind::Bits(_) | Kind::BitsVarying => return None,
    })
}

/// The canonical text of a written value, where `ty` is the declared type of its column.
pub(crate) fn got(ty: &str, mysql: bool, value: &Cell) -> String {
    if let Some(element) = ty.strip_suffix("[]") {
        match value {
            Cell::List(items) => return list(items.iter().map(|item| got(element, mysql, item))),
            // Arrays of JSON are one JSON value.
            Cell::Json(text) if Kind::of(element, mysql) == Kind::Json => {
                let items: Vec<Json> = serde_json::from_str(text).unwrap_or_default();
                return list(items.iter().map(|item| expected(element, mysql, item)));
            }
            _ => {}
        }
    }
    match (Kind::of(ty, mysql), value) {
        (_, Cell::Null) => "NULL".to_owned(),
        (Kind::Number, Cell::Number(text) | Cell::Text(text)) => number_text(text),
        (Kind::Number, Cell::Double(v)) => format!("number {}", number::of_double(*v)),
        (Kind::Real, Cell::Double(v)) => real(*v as f32),
        (Kind::Double, Cell::Double(v)) => double(*v),
        (_, Cell::Bool(v)) => format!("bool {v}"),
        (Kind::Text, Cell::Text(v)) => format!("text {v}"),
        // Types that the connector does not know come as the bytes of their text.
        (Kind::Text, Cell::Bytes(v)) => format!("text {}", String::from_utf8_lossy(v)),
        (Kind::Bytes, Cell::Bytes(v)) => format!("bytes {}", hex(v)),
        (Kind::Bits(length), Cell::Bytes(v)) if v.len() == length.div_ceil(8) => {
            let all: String = v.iter().map(|b| format!("{b:08b}")).collect();
            format!("bits {}", &all[all.len() - length..])
        }
        (Kind::BitsVarying, Cell::Bytes(v)) => {
            let all: String = v.iter().map(|b| format!("{b:08b}")).collect();
            format!("bits …{}", all.trim_start_matches('0'))
        }
        (Kind::Date, Cell::Date(v)) => format!("date {v}"),
        (Kind::Time, Cell::Time(v)) => format!("time {v}"),
        (Kind::Time, Cell::Text(v)) => {
            civil::time(v).map_or_else(|| format!("text {v}"), |us| format!("time {us}"))
        }
        (Kind::TimeWithZone, Cell::Text(v)) => civil::time_with_zone(v)
            .map_or_else(|| format!("text {v}"), |(us, offset)| format!("timetz {us} {offset}")),
        (Kind::DateTime, Cell::DateTime(v)) => format!("datetime {v}"),
        (Kind::Instant, Cell::Timestamp(v)) => format!("instant {v}"),
        (Kind::Interval, Cell::Text(v)) => Interval::iso(v).map_or_else(|| format!("text {v}"), interval),
        (Kind::Interval, Cell::Number(v)) => v.parse().map_or_else(
            |_| format!("number {v}"),
            |micros| interval(Interval { micros, ..Interval::default() }),
        ),
        (Kind::Json, Cell::Json(v)) => {
            serde_json::from_str(v).map_or_else(|_| format!("text {v}"), |v| format!("json {}", json(&v)))
        }
        (Kind::Point, Cell::Struct(fields)) => point(fields),
        (Kind::Geometry, Cell::Struct(fields)) => match field(fields, "wkb") {
            Some(Cell::Bytes(wkb)) => format!("wkb {}", hex(wkb)),
            _ => format!("{fields:?}"),
        },
        (Kind::Vector, Cell::List(items)) => list(items.iter().map(|item| match item {
            Cell::Double(v) => real(*v as f32),
            other => format!("{other:?}"),
        })),
        (_, other) => format!("{other:?}"),
    }
}

fn is_bits(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0' | b'1'))
}

fn point(fields: &[(String, Cell)]) -> String {
    let (Some(Cell::Double(x)), Some(Cell::Double(y)), Some(Cell::Bytes(wkb))) =
        (field(fields, "x"), field(fields, "y"), field(fields, "wkb"))
    else {
        return format!("{fields:?}");
    };
    // A point's well-known binary: little-endian mark, type 1, x, y.
    let mut own = vec![1, 1, 0, 0, 0];
    own.extend(x.to_le_bytes());
    own.extend(y.to_le_bytes());
    let suffix = if *wkb == own { "" } else { " but another wkb" };
    format!("point {},{}{suffix}", number::of_double(*x), number::of_double(*y))
}

fn field<'a>(fields: &'a [(String, Cell)], name: &str) -> Option<&'a Cell> {
    fields.iter().find(|(n, _)| n == name).map(|(_, cell)| cell)
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(" | "))
}

fn number_text(text: &str) -> String {
    match text {
        "NaN" | "Infinity" | "-Infinity" => format!("number {text}"),
        _ => number::normal(text).map_or_else(|| format!("text {text}"), |n| format!("number {n}")),
    }
}

fn real(v: f32) -> String {
    format!("real {}", if v == 0.0 { "0".to_owned() } else { v.to_string() })
}

fn double(v: f64) -> String {
    format!("double {}", number::of_double(v))
}

/// By PostgreSQL's equality a day is 24 hours, but a month is kept apart.
fn interval(v: Interval) -> String {
    format!("interval {} months {} µs", v.months, Interval { months: 0, ..v }.total_us(0))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// JSON with sorted keys and no blanks; numbers keep their text.
fn json(value: &Json) -> String {
    match value {
        Json::Array(items) => format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(",")),
        Json::Object(fields) => {
            let mut fields: Vec<String> =
                fields.iter().map(|(k, v)| format!("{}:{}", Json::from(k.as_str()), json(v))).collect();
            fields.sort();
            format!("{{{}}}", fields.join(","))
        }
        scalar => scalar.to_string(),
    }
}

#[test]
fn equal_values_have_one_text() {
    let json = |text: &str| serde_json::from_str::<Json>(text).unwrap();
    let cases = [
        ("numeric(12,2)", "1.50", Cell::Number("1.500".into())),
        ("money", "\"-$1,234.50\"", Cell::Number("-1234.50".into())),
        ("bytea", "\"\\\\x00FF\"", Cell::Bytes(vec![0, 255])),
        ("bit(4)", "\"0101\"", Cell::Bytes(vec![5])),
        ("timestamptz", "\"2024-02-29T13:14:15+02:00\"", Cell::Timestamp(1_709_205_255_000_000)),
        ("jsonb", "{\"b\": 1.0, \"a\": [null]}", Cell::Json("{\"a\":[null],\"b\":1.0}".into())),
        ("real", "3.4028235e+38", Cell::Double(3.402_823_5e38)),
        ("date[]", "[\"1970-01-02\",null]", Cell::List(vec![Cell::Date(1), Cell::Null])),
        ("interval", "\"1 day 01:00:00\"", Cell::Number("90000000000".into())),
    ];
    for (ty, value, cell) in cases {
        assert_eq!(expected(ty, false, &json(value)), got(ty, false, &cell));
    }
    assert_ne!(expected("jsonb", false, &json("1.0")), got("jsonb", false, &Cell::Json("1".into())));
    assert_ne!(
        expected("numeric", false, &json("0.1000000000000000055")),
        got("numeric", false, &Cell::Double(0.1))
    );
    assert_ne!(
        expected("timestamp", false, &json("\"1970-01-01T00:00:00\"")),
        got("timestamp", false, &Cell::Timestamp(0))
    );
    assert_ne!(expected("text", false, &json("\"NULL\"")), got("text", false, &Cell::Null));
}
