//! The Kafka Connect schema that `schemas.enable=true` puts beside every payload, as facts about columns.
//!
//! Only names that change how a value is read matter here; the rest of Debezium's semantic types (UUID, XML, enums,
//! tsvector, …) are texts.

use serde_json::Value as Json;

use crate::codec::Codec;
use crate::codec::binary::BinaryForm;
use crate::codec::decimal::{DecimalCodec, DecimalForm, Target as DecimalTarget};
use crate::codec::temporal::{Target, Temporal, Unit};
use crate::plan::COLUMNS_MAX;

/// Deepest nesting of arrays and structs followed; deeper ones are read as JSON.
const DEPTH_MAX: u32 = 16;
/// Longer schemas are not read: ten thousand columns need a quarter of it.
const BYTES_MAX: usize = 16 << 20;
/// Structs of more fields are read as JSON.
const FIELDS_MAX: usize = 1_000;
/// Largest scale that a column's type has; beyond it lie only the artefacts of PostgreSQL's negative scales (2046).
pub(crate) const SCALE_MAX: u16 = 1_000;

/// What a schema says about one column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ColumnFact {
    pub(crate) name: Box<str>,
    pub(crate) codec: Codec,
    pub(crate) nullable: bool,
    /// Whether the schema named a semantic type, rather than only a JSON form that several source types share.
    pub(crate) semantic: bool,
}

/// What a value's schema says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Facts {
    /// Columns of `after` and `before` of an envelope.
    pub(crate) row: Vec<ColumnFact>,
    /// Fields of the value itself, for flattened events.
    pub(crate) fields: Vec<ColumnFact>,
}

impl Facts {
    /// Reads a schema; a text that is no struct schema, or a huge one, gives no facts.
    pub(crate) fn parse(text: &str) -> Self {
        if text.len() > BYTES_MAX {
            return Self::default();
        }
        let Ok(schema) = serde_json::from_str::<Json>(text) else {
            return Self::default();
        };
        let fields = fields_of(&schema);
        let row = fields
            .iter()
            .find(|field| matches!(field.get("field").and_then(Json::as_str), Some("after" | "before")))
            .map(fields_of)
            .unwrap_or_default();
        Self { row: columns(row), fields: columns(fields) }
    }

    /// The facts of the column called `name`.
    pub(crate) fn of<'f>(columns: &'f [ColumnFact], name: &str) -> Option<&'f ColumnFact> {
        columns.iter().find(|c| &*c.name == name)
    }
}

fn fields_of(schema: &Json) -> &[Json] {
    schema.get("fields").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn columns(fields: &[Json]) -> Vec<ColumnFact> {
    fields
        .iter()
        .take(COLUMNS_MAX)
        .filter_map(|field| {
            Some(ColumnFact {
                name: field.get("field")?.as_str()?.into(),
                codec: codec(field, 0),
                nullable: field.get("optional").and_then(Json::as_bool).unwrap_or(false),
                semantic: field.get("name").is_some_and(Json::is_string),
            })
        })
        .collect()
}

/// Parameters of a semantic type.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parameters {
    pub(crate) scale: Option<i64>,
    pub(crate) precision: Option<u16>,
    pub(crate) bits: Option<u32>,
}

fn codec(schema: &Json, depth: u32) -> Codec {
    let parameter = |name: &str| schema.get("parameters")?.get(name)?.as_str();
    let number = |name: &str| parameter(name)?.parse::<i64>().ok();
    let parameters = Parameters {
        scale: number("scale"),
        precision: number("connect.decimal.precision").and_then(|n| u16::try_from(n).ok()),
        bits: number("length").and_then(|n| u32::try_from(n).ok()),
    };
    let name = schema.get("name").and_then(Json::as_str).unwrap_or_default();
    if let Some(codec) = semantic(name, parameters) {
        return codec;
    }
    match schema.get("type").and_then(Json::as_str).unwrap_or_default() {
        "boolean" => Codec::Bool,
        "int64"
            if parameter("__debezium.source.column.type")
                .is_some_and(|ty| ty.to_ascii_uppercase().starts_with("BIGINT UNSIGNED")) =>
        {
            Codec::Unsigned
        }
        "int8" | "int16" | "int32" | "int64" => Codec::Int,
        "float" | "double" | "float32" | "float64" => Codec::Float,
        "bytes" => Codec::Bytes(BinaryForm::Base64),
        "array" if depth < DEPTH_MAX => {
            let items = schema.get("items").unwrap_or(&Json::Null);
            Codec::List(Box::new(codec(items, depth + 1)))
        }
        "struct" if depth < DEPTH_MAX && fields_of(schema).len() <= FIELDS_MAX => Codec::Struct(
            fields_of(schema)
                .iter()
                .filter_map(|field| Some((field.get("field")?.as_str()?.into(), codec(field, depth + 1))))
                .collect(),
        ),
        "string" => Codec::Text { lenient: false },
        _ => Codec::Json,
    }
}

/// The codec of a semantic type; `None` where its JSON form says everything.
pub(crate) fn semantic(name: &str, parameters: Parameters) -> Option<Codec> {
    let temporal = |target, unit| Some(Codec::Temporal(Temporal { target, unit, widens: true }));
    match name {
        "org.apache.kafka.connect.data.Decimal" => Some(decimal(parameters)),
        "io.debezium.data.VariableScaleDecimal" => {
            Some(Codec::Decimal(DecimalCodec { form: DecimalForm::Text, target: DecimalTarget::Numeric }))
        }
        "io.debezium.time.Date" | "org.apache.kafka.connect.data.Date" => temporal(Target::Date, Unit::Days),
        "io.debezium.time.IsoDate" => temporal(Target::Date, Unit::Days),
        "io.debezium.time.Time" | "org.apache.kafka.connect.data.Time" => {
            temporal(Target::Time, Unit::Millis)
        }
        "io.debezium.time.MicroTime" => temporal(Target::Time, Unit::Micros),
        "io.debezium.time.NanoTime" => temporal(Target::Time, Unit::Nanos),
        "io.debezium.time.IsoTime" => temporal(Target::Time, Unit::Micros),
        "io.debezium.time.Timestamp" | "org.apache.kafka.connect.data.Timestamp" => {
            temporal(Target::DateTime, Unit::Millis)
        }
        "io.debezium.time.MicroTimestamp" => temporal(Target::DateTime, Unit::Micros),
        "io.debezium.time.NanoTimestamp" => temporal(Target::DateTime, Unit::Nanos),
        "io.debezium.time.IsoTimestamp" => temporal(Target::DateTime, Unit::Micros),
        "io.debezium.time.ZonedTimestamp" => temporal(Target::Timestamp, Unit::Micros),
        "io.debezium.time.ZonedTime" | "io.debezium.time.Interval" => Some(Codec::Text { lenient: false }),
        "io.debezium.time.MicroDuration" | "io.debezium.time.NanoDuration" | "io.debezium.time.Year" => {
            Some(Codec::Int)
        }
        "io.debezium.data.Json" => Some(Codec::Json),
        "io.debezium.data.Bits" => Some(Codec::Bits(parameters.bits)),
        _ => None,
    }
}

/// A precision is missing for `money` (19 digits) and for unsigned bigints in precise mode (20 digits); wider numbers
/// widen the column when they come. A precision below the scale (`numeric(3,5)`) is raised to it; a scale that no
/// precision explains (PostgreSQL's negative scales) leaves the column unbounded.
fn decimal(parameters: Parameters) -> Codec {
    let scale = parameters.scale.unwrap_or(0);
    let target = match (parameters.precision, u16::try_from(scale)) {
        (Some(precision), Ok(s)) if s <= SCALE_MAX => {
            DecimalTarget::Decimal { precision: precision.max(s).max(1), scale: s }
        }
        (None, Ok(s)) if s <= SCALE_MAX => DecimalTarget::Decimal { precision: s.max(20), scale: s },
        _ => DecimalTarget::Numeric,
    };
    let scale = i32::try_from(scale).unwrap_or(i32::MAX);
    Codec::Decimal(DecimalCodec { form: DecimalForm::Unscaled(scale), target })
}
