//! BigQuery's JSON schema files as hints about columns.

use millstream_core::{Error, Field, Result, Type};
use serde::Deserialize;

use crate::options::ColumnHint;

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
            Number::Text(text) => text.parse().map_err(|_| {
                Error::fatal(format!("schema file, column {column}: {text:?} is not a whole number"))
            }),
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
/// and `precision` on TIME, DATETIME and TIMESTAMP (fractional digits).
///
/// # Errors
/// Not JSON, not of this form, an unknown type or mode, or a column named twice; says which column.
pub fn parse_schema_file(json: &str) -> Result<Vec<(String, ColumnHint)>> {
    // Named first for its line and column: an untagged enum's own error has neither.
    serde_json::from_str::<serde::de::IgnoredAny>(json)
        .map_err(|e| Error::fatal("schema file is not JSON").with_source(e))?;
    let file: File = serde_json::from_str(json).map_err(|_| {
        Error::fatal(
            "schema file is not a BigQuery schema: expected an array of objects with `name` and `type`, \
             or an object with such `fields`",
        )
    })?;
    let entries = match file {
        File::Fields(fields) | File::Object { fields } | File::Table { schema: Inner { fields } } => fields,
    };
    let mut hints: Vec<(String, ColumnHint)> = Vec::with_capacity(entries.len());
    for entry in &entries {
        if hints.iter().any(|(name, _)| *name == entry.name) {
            return Err(Error::fatal(format!("schema file: column {} is there twice", entry.name)));
        }
        hints.push((entry.name.clone(), hint(entry)?));
    }
    Ok(hints)
}

fn hint(entry: &Entry) -> Result<ColumnHint> {
    let ty = ty(entry, 0)?;
    let temporal = matches!(entry.ty.to_ascii_uppercase().as_str(), "TIME" | "DATETIME" | "TIMESTAMP");
    let fraction = match &entry.precision {
        Some(n) if temporal => Some(u8::try_from(n.get(&entry.name)?).unwrap_or(u8::MAX)),
        _ => None,
    };
    Ok(ColumnHint {
        ty,
        semantic: entry.semantic.clone(),
        fraction,
        bits: entry.bits.as_ref().map(|n| n.get(&entry.name)).transpose()?,
        nullable: entry.mode.as_deref().is_none_or(|mode| !mode.eq_ignore_ascii_case("REQUIRED")),
    })
}

fn ty(entry: &Entry, depth: usize) -> Result<Type> {
    let name = &entry.name;
    let plain = match entry.ty.to_ascii_uppercase().as_str() {
        "STRING" | "GEOGRAPHY" | "INTERVAL" | "RANGE" => Type::Text,
        "BYTES" => Type::Bytes,
        "INTEGER" | "INT64" | "INT" | "SMALLINT" | "BIGINT" | "TINYINT" | "BYTEINT" => Type::Int64,
        "FLOAT" | "FLOAT64" => Type::Float64,
        "NUMERIC" | "BIGNUMERIC" | "DECIMAL" | "BIGDECIMAL" => decimal(entry)?,
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
                .map(|field| Ok(Field { name: field.name.as_str().into(), ty: ty(field, depth + 1)? }));
            Type::Struct(fields.collect::<Result<_>>()?)
        }
        "RECORD" | "STRUCT" => {
            return Err(Error::fatal(format!("schema file, column {name}: nested deeper than {DEPTH_MAX}")));
        }
        other => {
            return Err(Error::fatal(format!(
                "schema file, column {name}: unknown type {other}; use BigQuery's names, e.g. STRING, INT64, NUMERIC"
            )));
        }
    };
    match entry.mode.as_deref().map(str::to_ascii_uppercase).as_deref() {
        None | Some("NULLABLE" | "REQUIRED" | "") => Ok(plain),
        Some("REPEATED") => Ok(Type::List(Box::new(plain))),
        Some(other) => Err(Error::fatal(format!(
            "schema file, column {name}: unknown mode {other}; use NULLABLE, REQUIRED or REPEATED"
        ))),
    }
}

fn decimal(entry: &Entry) -> Result<Type> {
    let get = |n: &Option<Number>| n.as_ref().map(|n| n.get(&entry.name)).transpose();
    let (precision, scale) = (get(&entry.precision)?, get(&entry.scale)?);
    let Some(precision) = precision else {
        return match scale {
            None => Ok(Type::Numeric),
            Some(_) => Err(Error::fatal(format!(
                "schema file, column {}: a scale needs a precision as well",
                entry.name
            ))),
        };
    };
    let scale = scale.unwrap_or(0);
    match (u16::try_from(precision), u16::try_from(scale)) {
        (Ok(precision @ 1..), Ok(scale)) if scale <= precision => Ok(Type::Decimal { precision, scale }),
        _ => Err(Error::fatal(format!(
            "schema file, column {}: precision {precision} and scale {scale} do not fit together",
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
            parse_schema_file(r#"{"schema":{"fields":[{"name":"a","type":"BOOL"}]}}"#).unwrap().len(),
            1
        );
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
        ] {
            let error = parse_schema_file(json).unwrap_err().to_string();
            assert!(error.contains(needle), "{error}");
        }
    }
}
