//! A table's schema: columns as the REST API has them, and as DuckDB and Arrow hold them.

use std::fmt::Write as _;
use std::sync::Arc;

use duckdb::arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// How deep records may lie in each other.
const DEPTH_MAX: usize = 15;
/// Beginnings of names that columns may not have.
const FORBIDDEN: [&str; 9] = [
    "_TABLE_",
    "_FILE_",
    "_PARTITION",
    "_ROW_TIMESTAMP",
    "__ROOT__",
    "_COLIDENTIFIER",
    "_CHANGE_SEQUENCE_NUMBER",
    "_CHANGE_TYPE",
    "_CHANGE_TIMESTAMP",
];

/// The columns of a table or record.
pub(crate) type Schema = Arc<Vec<Column>>;

/// A type.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Type {
    Bool,
    Int64,
    Float64,
    String,
    Bytes,
    Date,
    Datetime,
    Time,
    Timestamp,
    Numeric,
    Bignumeric,
    Json,
    Geography,
    Interval,
    /// With the type of its bounds: DATE, DATETIME or TIMESTAMP.
    Range(Box<Type>),
    Record(Vec<Column>),
}

/// Whether a column may be absent, or is a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Nullable,
    Required,
    Repeated,
}

/// A column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) ty: Type,
    pub(crate) mode: Mode,
    /// What else its resource says: description, maxLength, precision, scale, defaultValueExpression, policyTags.
    pub(crate) rest: Map<String, Value>,
}

impl Type {
    /// The type of a name of the REST API or SQL; records and ranges need more than a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_uppercase().as_str() {
            "BOOL" | "BOOLEAN" => Self::Bool,
            "INT64" | "INTEGER" | "INT" | "SMALLINT" | "BIGINT" | "TINYINT" | "BYTEINT" => Self::Int64,
            "FLOAT64" | "FLOAT" => Self::Float64,
            "STRING" => Self::String,
            "BYTES" => Self::Bytes,
            "DATE" => Self::Date,
            "DATETIME" => Self::Datetime,
            "TIME" => Self::Time,
            "TIMESTAMP" => Self::Timestamp,
            "NUMERIC" | "DECIMAL" => Self::Numeric,
            "BIGNUMERIC" | "BIGDECIMAL" => Self::Bignumeric,
            "JSON" => Self::Json,
            "GEOGRAPHY" => Self::Geography,
            "INTERVAL" => Self::Interval,
            _ => return None,
        })
    }

    /// Its name in the REST API.
    pub(crate) fn rest_name(&self) -> &'static str {
        match self {
            Self::Bool => "BOOLEAN",
            Self::Int64 => "INTEGER",
            Self::Float64 => "FLOAT",
            Self::String => "STRING",
            Self::Bytes => "BYTES",
            Self::Date => "DATE",
            Self::Datetime => "DATETIME",
            Self::Time => "TIME",
            Self::Timestamp => "TIMESTAMP",
            Self::Numeric => "NUMERIC",
            Self::Bignumeric => "BIGNUMERIC",
            Self::Json => "JSON",
            Self::Geography => "GEOGRAPHY",
            Self::Interval => "INTERVAL",
            Self::Range(_) => "RANGE",
            Self::Record(_) => "RECORD",
        }
    }

    /// Its name in SQL.
    pub(crate) fn sql_name(&self) -> String {
        match self {
            Self::Bool => "BOOL".to_owned(),
            Self::Int64 => "INT64".to_owned(),
            Self::Float64 => "FLOAT64".to_owned(),
            Self::Range(bound) => format!("RANGE<{}>", bound.sql_name()),
            Self::Record(columns) => {
                let fields: Vec<_> = columns.iter().map(|c| format!("{} {}", c.name, c.sql_type())).collect();
                format!("STRUCT<{}>", fields.join(", "))
            }
            other => other.rest_name().to_owned(),
        }
    }

    /// Its name in DuckDB. Types that DuckDB lacks are text.
    pub(crate) fn duckdb(&self) -> String {
        match self {
            Self::Bool => "BOOLEAN".to_owned(),
            Self::Int64 => "BIGINT".to_owned(),
            Self::Float64 => "DOUBLE".to_owned(),
            Self::String | Self::Bignumeric | Self::Geography | Self::Interval | Self::Range(_) => {
                "VARCHAR".to_owned()
            }
            Self::Bytes => "BLOB".to_owned(),
            Self::Date => "DATE".to_owned(),
            Self::Datetime => "TIMESTAMP".to_owned(),
            Self::Time => "TIME".to_owned(),
            Self::Timestamp => "TIMESTAMPTZ".to_owned(),
            Self::Numeric => "DECIMAL(38,9)".to_owned(),
            Self::Json => "JSON".to_owned(),
            Self::Record(columns) => {
                let fields: Vec<_> =
                    columns.iter().map(|c| format!("{} {}", quoted(&c.name), c.duckdb())).collect();
                format!("STRUCT({})", fields.join(", "))
            }
        }
    }

    /// Its type in Arrow.
    pub(crate) fn arrow(&self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int64 => DataType::Int64,
            Self::Float64 => DataType::Float64,
            Self::Bytes => DataType::Binary,
            Self::Date => DataType::Date32,
            Self::Datetime => DataType::Timestamp(TimeUnit::Microsecond, None),
            Self::Time => DataType::Time64(TimeUnit::Microsecond),
            Self::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Numeric => DataType::Decimal128(38, 9),
            Self::String
            | Self::Bignumeric
            | Self::Json
            | Self::Geography
            | Self::Interval
            | Self::Range(_) => DataType::Utf8,
            Self::Record(columns) => DataType::Struct(fields(columns)),
        }
    }
}

/// Arrow's fields of columns.
pub(crate) fn fields(columns: &[Column]) -> Fields {
    columns.iter().map(|c| Field::new(&c.name, c.arrow(), true)).collect()
}

/// A name in double quotes.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text in single quotes.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Column {
    /// A column that may be absent.
    pub(crate) fn new(name: impl Into<String>, ty: Type, mode: Mode) -> Self {
        Self { name: name.into(), ty, mode, rest: Map::new() }
    }

    /// Its type in SQL.
    pub(crate) fn sql_type(&self) -> String {
        match self.mode {
            Mode::Repeated => format!("ARRAY<{}>", self.ty.sql_name()),
            _ => self.ty.sql_name(),
        }
    }

    /// Its type in DuckDB.
    pub(crate) fn duckdb(&self) -> String {
        match self.mode {
            Mode::Repeated => format!("{}[]", self.ty.duckdb()),
            _ => self.ty.duckdb(),
        }
    }

    /// Its type in Arrow.
    pub(crate) fn arrow(&self) -> DataType {
        match self.mode {
            Mode::Repeated => DataType::List(Arc::new(Field::new("item", self.ty.arrow(), true))),
            _ => self.ty.arrow(),
        }
    }

    /// Its columns, where it is a record.
    pub(crate) fn columns(&self) -> Option<&[Column]> {
        match &self.ty {
            Type::Record(columns) => Some(columns),
            _ => None,
        }
    }

    /// As the REST API shows it.
    pub(crate) fn to_json(&self) -> Value {
        let mode = match self.mode {
            Mode::Nullable => "NULLABLE",
            Mode::Required => "REQUIRED",
            Mode::Repeated => "REPEATED",
        };
        let mut json = json!({"name": self.name, "type": self.ty.rest_name(), "mode": mode});
        match &self.ty {
            Type::Record(columns) => json["fields"] = columns.iter().map(Self::to_json).collect(),
            Type::Range(bound) => json["rangeElementType"] = json!({"type": bound.rest_name()}),
            _ => {}
        }
        for (name, value) in &self.rest {
            json[name] = value.clone();
        }
        json
    }

    /// Reads one of the REST API.
    fn from_json(json: &Value, depth: usize) -> Result<Self, Failure> {
        let text = |name: &str| json.get(name).and_then(Value::as_str);
        let name = text("name").filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| Failure::invalid("Field name is missing"))?;
        check_name(name)?;
        let mode = match text("mode").unwrap_or("NULLABLE").to_ascii_uppercase().as_str() {
            "NULLABLE" | "" => Mode::Nullable,
            "REQUIRED" => Mode::Required,
            "REPEATED" => Mode::Repeated,
            other => return Err(Failure::invalid(format!("Invalid mode {other} of field {name}"))),
        };
        let kind = text("type").unwrap_or_default();
        let ty = match kind.to_ascii_uppercase().as_str() {
            "RECORD" | "STRUCT" => {
                let fields = json.get("fields").and_then(Value::as_array).filter(|f| !f.is_empty());
                let fields = fields.ok_or_else(|| {
                    Failure::invalid(format!("Field {name} is type RECORD but has no schema"))
                })?;
                Type::Record(read(fields, depth + 1)?)
            }
            "RANGE" => {
                let bound =
                    json.pointer("/rangeElementType/type").and_then(Value::as_str).and_then(Type::named);
                match bound {
                    Some(bound @ (Type::Date | Type::Datetime | Type::Timestamp)) => {
                        Type::Range(Box::new(bound))
                    }
                    _ => return Err(Failure::invalid(format!("Invalid rangeElementType of field {name}"))),
                }
            }
            other => Type::named(other).ok_or_else(|| {
                Failure::invalid(format!("Invalid value for type: {kind} is not a valid value"))
            })?,
        };
        let known = ["name", "type", "mode", "fields", "rangeElementType"];
        let rest = json.as_object().into_iter().flatten();
        let rest = rest.filter(|(k, v)| !known.contains(&k.as_str()) && !v.is_null());
        Ok(Self {
            name: name.to_owned(),
            ty,
            mode,
            rest: rest.map(|(k, v)| (k.clone(), v.clone())).collect(),
        })
    }
}

/// Refuses names that columns may not have.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    let upper = name.to_ascii_uppercase();
    let bad = |c: char| "!\"$()*,./;?@[\\]^{}~`".contains(c) || c.is_control();
    if name.is_empty() || name.chars().count() > 300 || name.contains(bad) {
        return Err(Failure::invalid(format!(
            "Invalid field name \"{name}\". Fields must contain the allowed characters, and be at most 300 characters long."
        )));
    }
    if let Some(prefix) = FORBIDDEN.iter().find(|prefix| upper.starts_with(**prefix)) {
        return Err(Failure::invalid(format!(
            "Invalid field name \"{name}\". Field names are not allowed to start with the prefix {prefix}"
        )));
    }
    Ok(())
}

fn read(fields: &[Value], depth: usize) -> Result<Vec<Column>, Failure> {
    if depth > DEPTH_MAX {
        return Err(Failure::invalid(format!("Fields are nested more than {DEPTH_MAX} levels deep")));
    }
    let columns =
        fields.iter().map(|field| Column::from_json(field, depth)).collect::<Result<Vec<_>, _>>()?;
    check_unique(&columns)?;
    Ok(columns)
}

/// Refuses two columns whose names differ only in case.
pub(crate) fn check_unique(columns: &[Column]) -> Result<(), Failure> {
    let mut seen = std::collections::HashSet::new();
    match columns.iter().find(|c| !seen.insert(c.name.to_lowercase())) {
        Some(twice) => Err(Failure::invalid(format!("Duplicate field name {} in the schema", twice.name))),
        None => Ok(()),
    }
}

/// Reads `{"fields": […]}`.
pub(crate) fn from_json(schema: &Value) -> Result<Vec<Column>, Failure> {
    match schema.get("fields") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(fields)) => read(fields, 0),
        Some(_) => Err(Failure::invalid("schema.fields is not a list")),
    }
}

/// `{"fields": […]}`.
pub(crate) fn to_json(columns: &[Column]) -> Value {
    json!({"fields": columns.iter().map(Column::to_json).collect::<Vec<_>>()})
}

/// The column of a name, in any case.
pub(crate) fn find<'a>(columns: &'a [Column], name: &str) -> Option<(usize, &'a Column)> {
    let fold = |name: &str| if name.is_ascii() { name.to_ascii_lowercase() } else { name.to_lowercase() };
    let wanted = fold(name);
    columns.iter().enumerate().find(|(_, c)| c.name.eq_ignore_ascii_case(name) || fold(&c.name) == wanted)
}

/// The column definitions of a CREATE TABLE in DuckDB.
pub(crate) fn definitions(columns: &[Column]) -> String {
    let mut text = String::new();
    for (i, column) in columns.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        let required = if column.mode == Mode::Required { " NOT NULL" } else { "" };
        let _ = write!(text, "{comma}{} {}{required}", quoted(&column.name), column.duckdb());
    }
    text
}
