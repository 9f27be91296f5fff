//! BigQuery's JSON schema files as hints about columns.

use millstream_core::{Error, Field, Result, Type};
use serde::Deserialize;

use crate::options::{ColumnHint, TimeUnit};

/// Deepest nesting of RECORDs, BigQuery's own limit.
const DEPTH_MAX: usize = 15;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    precision: Option<Number>,
    #[serde(default)]
    scale: Option<Number>,
    #[serde(default)]
    fields: Vec<Entry>,
    #[serde(default)]
    semantic: Option<String>,
    #[serde(default)]
    bits: Option<Number>,
    #[serde(default)]
    unit: Option<String>,
}

/// What a NUMERIC or BIGNUMERIC without a precision stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BareNumeric {
    /// A number of the source, of any size.
    OfSource,
    /// BigQuery's own: 38 digits with 9 after the point, 76 with 38.
    OfWarehouse,
}

/// The REST API writes 64-bit numbers as texts, people write numbers.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(u32),
    Text(String),
}

impl Number {
    fn get(&self, column: &str) -> Result<u32> {
        match self {
            Number::Plain(n) => Ok(*n),
            Number::Text(text) => text
                .parse()
                .map_err(|_| Error::fatal(format!("column {column}: {text:?} is not a whole number"))),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum File {
    Fields(Vec<Entry>),
    Object { fields: Vec<Entry> },
    Table { schema: Inner },
}

#[derive(Debug, Deserialize)]
struct Inner {
    fields: Vec<Entry>,
}

/// Reads a BigQuery JSON schema file: an array of `{name, type, mode, precision, scale, fields, description}`, or an
/// object that holds one under `fields` or `schema.fields` (what `bq show` prints). Columns come in the file's order.
///
/// Beyond BigQuery's own, each entry may have `semantic` (a Debezium semantic type such as
/// `io.debezium.time.MicroTimestamp`, where the type alone leaves the encoding open), `bits` (length of a bit string),
/// `precision` on TIME, DATETIME and TIMESTAMP (fractional digits), and `unit` on these (`s`, `ms`, `us` or `ns`: what
/// numbers count). A type may have its precision with it: `NUMERIC(12,2)`.
///
/// # Errors
/// Not JSON, not of this form, an unknown type or mode, or a column named twice; says which column.
pub fn parse_schema_file(json: &str, bare: BareNumeric) -> Result<Vec<(String, ColumnHint)>> {
    // Named first for its line and column: an untagged enum's own error has neither.
    serde_json::from_str::<serde::de::IgnoredAny>(json)
        .map_err(|e| Error::fatal("not JSON").with_source(e))?;
    let file: File = serde_json::from_str(json).map_err(|_| {
        Error::fatal(
            "not a BigQuery schema: expected an array of objects with `name` and `type`, \
             or an object with such `fields`",
        )
    })?;
    let entries = match file {
        File::Fields(fields) | File::Object { fields } | File::Table { schema: Inner { fields } } => fields,
    };
    let mut hints: Vec<(String, ColumnHint)> = Vec::with_capacity(entries.len());
    for entry in &entries {
        if hints.iter().any(|(name, _)| *name == entry.name) {
            return Err(Error::fatal(format!("column {} is there twice", entry.name)));
        }
        hints.push((entry.name.clone(), hint(entry, bare)?));
    }
    Ok(hints)
}

fn hint(entry: &Entry, bare: BareNumeric) -> Result<ColumnHint> {
    let ty = ty(entry, 0, bare)?;
    let temporal = matches!(entry.ty.to_ascii_uppercase().as_str(), "TIME" | "DATETIME" | "TIMESTAMP");
    let fraction = match &entry.precision {
        Some(n) if temporal => Some(u8::try_from(n.get(&entry.name)?).unwrap_or(u8::MAX)),
        _ => None,
    };
    Ok(ColumnHint {
        ty,
        semantic: entry.semantic.clone(),
        fraction,
        unit: entry.unit.as_deref().map(|unit| time_unit(entry, unit, temporal)).transpose()?,
        bits: entry.bits.as_ref().map(|n| n.get(&entry.name)).transpose()?,
        nullable: entry.mode.as_deref().is_none_or(|mode| !mode.eq_ignore_ascii_case("REQUIRED")),
    })
}

fn time_unit(entry: &Entry, unit: &str, temporal: bool) -> Result<TimeUnit> {
    match unit {
        _ if !temporal => {
            Err(Error::fatal(format!("column {}: `unit` is for TIME, DATETIME and TIMESTAMP", entry.name)))
        }
        "s" => Ok(TimeUnit::Seconds),
        "ms" => Ok(TimeUnit::Millis),
        "us" => Ok(TimeUnit::Micros),
        "ns" => Ok(TimeUnit::Nanos),
        other => {
            Err(Error::fatal(format!("column {}: unknown unit {other}; use s, ms, us or ns", entry.name)))
        }
    }
}

fn ty(entry: &Entry, depth: usize, bare: BareNumeric) -> Result<Type> {
    let name = &entry.name;
    if depth > 0 && entry.unit.is_some() {
        return Err(Error::fatal(format!(
            "member {name}: only columns have a `unit`; within a RECORD times are texts"
        )));
    }
    let upper = entry.ty.to_ascii_uppercase();
    let (base, digits) = match upper.strip_suffix(')').and_then(|ty| ty.split_once('(')) {
        Some((base, digits)) => (base.trim_end(), Some(digits)),
        None => (&*upper, None),
    };
    let is_decimal = matches!(base, "NUMERIC" | "BIGNUMERIC" | "DECIMAL" | "BIGDECIMAL");
    let plain = match if is_decimal { base } else { &*upper } {
        "STRING" | "GEOGRAPHY" | "INTERVAL" | "RANGE" => Type::Text,
        "BYTES" => Type::Bytes,
        "INTEGER" | "INT64" | "INT" | "SMALLINT" | "BIGINT" | "TINYINT" | "BYTEINT" => Type::Int64,
        "FLOAT" | "FLOAT64" => Type::Float64,
        "NUMERIC" | "DECIMAL" => decimal(entry, digits, bare, (38, 9))?,
        "BIGNUMERIC" | "BIGDECIMAL" => decimal(entry, digits, bare, (76, 38))?,
        "BOOLEAN" | "BOOL" => Type::Bool,
        "TIMESTAMP" => Type::Timestamp,
        "DATE" => Type::Date,
        "TIME" => Type::Time,
        "DATETIME" => Type::DateTime,
        "JSON" => Type::Json,
        "RECORD" | "STRUCT" if depth < DEPTH_MAX => {
            let fields = entry
                .fields
                .iter()
                .map(|field| Ok(Field { name: field.name.as_str().into(), ty: ty(field, depth + 1, bare)? }));
            Type::Struct(fields.collect::<Result<_>>()?)
        }
        "RECORD" | "STRUCT" => {
            return Err(Error::fatal(format!("column {name}: nested deeper than {DEPTH_MAX}")));
        }
        other => {
            return Err(Error::fatal(format!(
                "column {name}: unknown type {other}; use BigQuery's names, e.g. STRING, INT64, NUMERIC"
            )));
        }
    };
    match entry.mode.as_deref().map(str::to_ascii_uppercase).as_deref() {
        None | Some("NULLABLE" | "REQUIRED" | "") => Ok(plain),
        Some("REPEATED") => Ok(Type::List(Box::new(plain))),
        Some(other) => Err(Error::fatal(format!(
            "column {name}: unknown mode {other}; use NULLABLE, REQUIRED or REPEATED"
        ))),
    }
}

fn decimal(
    entry: &Entry,
    digits: Option<&str>,
    bare: BareNumeric,
    (precision_max, scale_max): (u16, u16),
) -> Result<Type> {
    let get = |n: &Option<Number>| n.as_ref().map(|n| n.get(&entry.name)).transpose();
    let (precision, scale) = match digits {
        None => (get(&entry.precision)?, get(&entry.scale)?),
        Some(digits) => {
            let text = |text: &str| Number::Text(text.trim().to_owned()).get(&entry.name);
            let (precision, scale) = digits.split_once(',').unwrap_or((digits, "0"));
            (Some(text(precision)?), Some(text(scale)?))
        }
    };
    let Some(precision) = precision else {
        return match scale {
            None if bare == BareNumeric::OfWarehouse => {
                Ok(Type::Decimal { precision: precision_max, scale: scale_max })
            }
            None => Ok(Type::Numeric),
            Some(_) => Err(Error::fatal(format!("column {}: a scale needs a precision as well", entry.name))),
        };
    };
    let scale = scale.unwrap_or(0);
    match (u16::try_from(precision), u16::try_from(scale)) {
        (Ok(precision @ 1..), Ok(scale)) if scale <= precision => Ok(Type::Decimal { precision, scale }),
        _ => Err(Error::fatal(format!(
            "column {}: precision {precision} and scale {scale} do not fit together",
            entry.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_file_becomes_hints() {
        let hints = parse_schema_file(
            r#"[{"name":"id","type":"INTEGER","mode":"REQUIRED"},
                {"name":"amount","type":"NUMERIC","precision":"12","scale":"2","description":"in euros"},
                {"name":"at","type":"DATETIME","semantic":"io.debezium.time.MicroTimestamp"},
                {"name":"tags","type":"STRING","mode":"REPEATED"},
                {"name":"place","type":"RECORD","fields":[{"name":"x","type":"FLOAT64"}]}]"#,
            BareNumeric::OfSource,
        )
        .unwrap();
        let names: Vec<_> = hints.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["id", "amount", "at", "tags", "place"]);
        assert!(!hints[0].1.nullable);
        assert_eq!(hints[1].1.ty, Type::Decimal { precision: 12, scale: 2 });
        assert_eq!(hints[2].1.semantic.as_deref(), Some("io.debezium.time.MicroTimestamp"));
        assert_eq!(hints[3].1.ty, Type::List(Box::new(Type::Text)));
        let place = Type::Struct([Field { name: "x".into(), ty: Type::Float64 }].into());
        assert_eq!(hints[4].1.ty, place);
        assert_eq!(
            parse_schema_file(r#"{"schema":{"fields":[{"name":"a","type":"BOOL"}]}}"#, BareNumeric::OfSource)
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn numbers_without_precision_are_the_sources_or_the_warehouses() {
        let of = |ty: &str, bare| {
            let json = format!(r#"[{{"name":"a","type":"{ty}"}}]"#);
            parse_schema_file(&json, bare).unwrap().remove(0).1.ty
        };
        let decimal = |precision, scale| Type::Decimal { precision, scale };
        assert_eq!(of("NUMERIC", BareNumeric::OfSource), Type::Numeric);
        assert_eq!(of("NUMERIC", BareNumeric::OfWarehouse), decimal(38, 9));
        assert_eq!(of("BigDecimal", BareNumeric::OfWarehouse), decimal(76, 38));
        for bare in [BareNumeric::OfSource, BareNumeric::OfWarehouse] {
            assert_eq!(of("NUMERIC(12, 2)", bare), decimal(12, 2));
            assert_eq!(of("numeric(5)", bare), decimal(5, 0));
        }
    }

    #[test]
    fn errors_name_the_column() {
        for (json, needle) in [
            ("[", "not JSON"),
            (r#"[{"name":"a"}]"#, "not a BigQuery schema"),
            (r#"[{"name":"a","type":"TEXT"}]"#, "column a: unknown type TEXT"),
            (r#"[{"name":"a","type":"BOOL","mode":"X"}]"#, "column a: unknown mode X"),
            (r#"[{"name":"a","type":"NUMERIC","precision":2,"scale":3}]"#, "column a: precision 2"),
            (r#"[{"name":"a","type":"BOOL"},{"name":"a","type":"BOOL"}]"#, "column a is there twice"),
            (r#"[{"name":"a","type":"NUMERIC(2,3)"}]"#, "column a: precision 2"),
            (r#"[{"name":"a","type":"NUMERIC(x)"}]"#, "column a: \"X\" is not a whole number"),
            (r#"[{"name":"a","type":"STRING(3)"}]"#, "column a: unknown type STRING(3)"),
            (r#"[{"name":"a","type":"BOOL","unit":"s"}]"#, "column a: `unit` is for"),
            (r#"[{"name":"a","type":"TIME","unit":"m"}]"#, "column a: unknown unit m"),
            (
                r#"[{"name":"r","type":"RECORD","fields":[{"name":"a","type":"TIME","unit":"s"}]}]"#,
                "member a: only columns",
            ),
        ] {
            let error = parse_schema_file(json, BareNumeric::OfSource).unwrap_err().to_string();
            assert!(error.contains(needle), "{error}");
        }
    }
}
