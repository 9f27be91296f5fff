//! From a hinted type and the connector's modes to a codec: what an embedded schema would have said.

use millstream_core::Type;

use crate::codec::Codec;
use crate::codec::binary::BinaryForm;
use crate::codec::decimal::{DecimalCodec, DecimalForm, Target as DecimalTarget};
use crate::codec::temporal::{Target, Temporal, Unit};
use crate::connect_schema::{ColumnFact, Parameters, SCALE_MAX, semantic};
use crate::inference::Kind;
use crate::options::{BinaryMode, ColumnHint, DecimalMode, Modes, TimeMode, TimeUnit};

/// The codec of a hinted column.
pub(crate) fn codec(hint: &ColumnHint, modes: Modes) -> Codec {
    of(&hint.ty, hint, modes)
}

fn of(ty: &Type, hint: &ColumnHint, modes: Modes) -> Codec {
    if let Type::List(element) = ty {
        return Codec::List(Box::new(of(element, hint, modes)));
    }
    if let Some(codec) = hint.semantic.as_deref().and_then(|name| semantic(name, parameters(ty, hint))) {
        return match codec {
            Codec::Temporal(t) => retyped(Temporal { widens: false, ..t }, ty),
            other => other,
        };
    }
    match ty {
        Type::Null => Codec::Inferred(Kind::Null),
        Type::Bool => Codec::Bool,
        Type::Int64 => Codec::Int,
        Type::Float64 => Codec::Float,
        Type::Text => Codec::Text { lenient: true },
        Type::Json => Codec::Json,
        Type::Bytes => Codec::Bytes(binary(modes.binary)),
        Type::Decimal { precision, scale } => Codec::Decimal(DecimalCodec {
            form: match modes.decimal {
                DecimalMode::Precise => DecimalForm::Unscaled((*scale).into()),
                DecimalMode::String | DecimalMode::Double => DecimalForm::Text,
            },
            // Such a scale only serves to read the connector's form of PostgreSQL's negative scales.
            target: match scale {
                0..=SCALE_MAX => DecimalTarget::Decimal { precision: *precision, scale: *scale },
                _ => DecimalTarget::Numeric,
            },
        }),
        Type::Numeric => Codec::Decimal(DecimalCodec {
            form: match modes.decimal {
                DecimalMode::Precise => DecimalForm::UnknownScale,
                DecimalMode::String | DecimalMode::Double => DecimalForm::Text,
            },
            target: DecimalTarget::Numeric,
        }),
        Type::Date => Codec::Temporal(Temporal::new(Target::Date, Unit::Days)),
        Type::Time => Codec::Temporal(Temporal::new(Target::Time, time_unit(hint, modes.time))),
        Type::DateTime => Codec::Temporal(Temporal::new(Target::DateTime, timestamp_unit(hint, modes.time))),
        Type::Timestamp => {
            Codec::Temporal(Temporal::new(Target::Timestamp, timestamp_unit(hint, modes.time)))
        }
        Type::List(_) => Codec::Json,
        // Bytes within structs (geometries) are Connect bytes in every binary mode.
        Type::Struct(fields) => {
            let plain = Modes { binary: BinaryMode::Bytes, ..modes };
            let inner = ColumnHint::new(Type::Null);
            Codec::Struct(fields.iter().map(|f| (f.name.clone(), of(&f.ty, &inner, plain))).collect())
        }
    }
}

/// The semantic type tells the encoding, the hinted type the wish: a `MicroTimestamp` may be wanted as an instant, a
/// time as text.
fn retyped(temporal: Temporal, ty: &Type) -> Codec {
    match (temporal.target, ty) {
        (Target::DateTime, Type::Timestamp) => {
            Codec::Temporal(Temporal { target: Target::Timestamp, ..temporal })
        }
        (Target::Timestamp, Type::DateTime) => {
            Codec::Temporal(Temporal { target: Target::DateTime, ..temporal })
        }
        (Target::Time, Type::Text) => Codec::TimeText(temporal.unit),
        (_, Type::Text) => Codec::Text { lenient: true },
        (_, Type::Int64) => Codec::Int,
        _ => Codec::Temporal(temporal),
    }
}

fn parameters(ty: &Type, hint: &ColumnHint) -> Parameters {
    let (precision, scale) = match ty {
        Type::Decimal { precision, scale } => (Some(*precision), Some(i64::from(*scale))),
        _ => (None, None),
    };
    Parameters { scale, precision, bits: hint.bits }
}

/// How a mode writes bytes.
pub(crate) fn binary(mode: BinaryMode) -> BinaryForm {
    match mode {
        BinaryMode::Bytes | BinaryMode::Base64 => BinaryForm::Base64,
        BinaryMode::Base64UrlSafe => BinaryForm::UrlSafe,
        BinaryMode::Hex => BinaryForm::Hex,
    }
}

fn time_unit(hint: &ColumnHint, mode: TimeMode) -> Unit {
    match mode {
        _ if hint.unit.is_some() => timestamp_unit(hint, mode),
        TimeMode::AdaptiveTimeMicroseconds => Unit::Micros,
        other => timestamp_unit(hint, other),
    }
}

fn timestamp_unit(hint: &ColumnHint, mode: TimeMode) -> Unit {
    if let Some(unit) = hint.unit {
        return match unit {
            TimeUnit::Seconds => Unit::Seconds,
            TimeUnit::Millis => Unit::Millis,
            TimeUnit::Micros => Unit::Micros,
            TimeUnit::Nanos => Unit::Nanos,
        };
    }
    match (mode, hint.fraction) {
        (TimeMode::Connect, _) => Unit::Millis,
        (TimeMode::Microseconds, _) => Unit::Micros,
        (TimeMode::Nanoseconds, _) => Unit::Nanos,
        // ISO texts carry their unit; the type is not a guess.
        (TimeMode::IsoString, _) => Unit::Micros,
        (TimeMode::Adaptive | TimeMode::AdaptiveTimeMicroseconds, Some(0..=3)) => Unit::Millis,
        (TimeMode::Adaptive | TimeMode::AdaptiveTimeMicroseconds, Some(4..=6)) => Unit::Micros,
        (TimeMode::Adaptive | TimeMode::AdaptiveTimeMicroseconds, Some(_)) => Unit::Nanos,
        (TimeMode::Adaptive | TimeMode::AdaptiveTimeMicroseconds, None) => Unit::Guess,
    }
}

/// What an embedded schema says, made more precise by a hint where the schema only names a form that several source
/// types share: a bare `string` may be a decimal, hexadecimal bytes or a JSON text, a `double` a decimal.
pub(crate) fn refined(fact: &ColumnFact, hint: Option<&ColumnHint>, modes: Modes) -> Codec {
    let Some(hint) = hint else {
        return fact.codec.clone();
    };
    let codec = match (&fact.codec, &hint.ty) {
        (Codec::Temporal(Temporal { target: Target::Time, unit, .. }), Type::Text) => Codec::TimeText(*unit),
        (Codec::Temporal(t @ Temporal { target: Target::DateTime, .. }), Type::Timestamp) => {
            Codec::Temporal(Temporal { target: Target::Timestamp, ..*t })
        }
        _ if fact.semantic => return fact.codec.clone(),
        (Codec::Text { .. }, ty) if *ty != Type::Text => codec(hint, modes),
        (Codec::Float, Type::Decimal { .. } | Type::Numeric) => codec(hint, modes),
        (Codec::Int, Type::Bool | Type::Decimal { .. } | Type::Numeric) => codec(hint, modes),
        (Codec::List(element), Type::List(ty)) => {
            let element = ColumnFact { codec: (**element).clone(), ..fact.clone() };
            let hint = ColumnHint { ty: (**ty).clone(), ..hint.clone() };
            Codec::List(Box::new(refined(&element, Some(&hint), modes)))
        }
        _ => fact.codec.clone(),
    };
    // A hint that still has to guess knows less than the schema.
    if matches!(codec, Codec::Inferred(_)) { fact.codec.clone() } else { codec }
}
