//! Logical types and values: what a column is, independent of any warehouse.

/// The logical type of a column. Warehouses map it to their own (design: BigQuery and DuckDB tables of types).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// Only NULLs were seen so far and nothing else is known; the first real value decides.
    Null,
    /// Boolean.
    Bool,
    /// Signed 64-bit integer.
    Int64,
    /// Exact decimal with at most `precision` digits, `scale` of them after the point.
    Decimal {
        /// Digits in all; 1 or more.
        precision: u16,
        /// Digits after the point; at most `precision`.
        scale: u16,
    },
    /// Exact decimal of unbounded precision (PostgreSQL's bare `numeric`).
    Numeric,
    /// IEEE double; NaN and infinities are values.
    Float64,
    /// UTF-8 text.
    Text,
    /// Bytes.
    Bytes,
    /// JSON text, number text kept as written.
    Json,
    /// Days since 1970-01-01, proleptic Gregorian.
    Date,
    /// Time of day in microseconds, 0 ..= 86 400 000 000.
    Time,
    /// Date and time without zone, microseconds since 1970-01-01T00:00:00.
    DateTime,
    /// Instant, microseconds since 1970-01-01T00:00:00Z.
    Timestamp,
    /// Array of one element type.
    List(Box<Type>),
    /// Struct of named fields.
    Struct(Box<[Field]>),
}

/// A named field of a struct type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Field {
    /// The field's name, as the source spells it.
    pub name: Box<str>,
    /// Its type.
    pub ty: Type,
}

/// One value of a row, borrowed from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// SQL NULL.
    Null,
    /// The event did not carry the value (an unchanged out-of-line value); never written as a value.
    Unchanged,
    /// Boolean.
    Bool(bool),
    /// Integer.
    Int(i64),
    /// Double.
    Float(f64),
    /// Exact decimal: `unscaled × 10^-scale`.
    Decimal {
        /// The digits as an integer.
        unscaled: i64,
        /// Digits after the point.
        scale: u8,
    },
    /// Exact decimal too wide for [`Value::Decimal`], as plain text: optional `-`, digits, optional `.` and digits.
    Digits(&'a str),
    /// Text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// JSON text.
    Json(&'a str),
    /// Days since 1970-01-01.
    Date(i32),
    /// Microseconds since midnight.
    Time(i64),
    /// Microseconds since the epoch, without zone.
    DateTime(i64),
    /// Microseconds since the epoch, UTC.
    Timestamp(i64),
    /// Elements of a list, as the cells of a nested row.
    List(&'a crate::Row),
    /// Fields of a struct, as the cells of a nested row in the order of the type's fields.
    Struct(&'a crate::Row),
}

impl Value<'_> {
    /// Whether it is SQL NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The type that a value has by itself, for inference: NULL is [`Type::Null`], a decimal gets its own precision.
    pub fn inferred_type(&self) -> Type {
        match self {
            Value::Null | Value::Unchanged => Type::Null,
            Value::Bool(_) => Type::Bool,
            Value::Int(_) => Type::Int64,
            Value::Float(_) => Type::Float64,
            Value::Decimal { .. } | Value::Digits(_) => Type::Numeric,
            Value::Text(_) => Type::Text,
            Value::Bytes(_) => Type::Bytes,
            Value::Json(_) | Value::List(_) | Value::Struct(_) => Type::Json,
            Value::Date(_) => Type::Date,
            Value::Time(_) => Type::Time,
            Value::DateTime(_) => Type::DateTime,
            Value::Timestamp(_) => Type::Timestamp,
        }
    }
}
