//! Literals, casts and calls of GoogleSQL that DuckDB writes otherwise.

use sqlparser::ast::{
    CastKind, DataType, Function, FunctionArgumentClause, FunctionArguments, Interval, NullTreatment, Value,
    ValueWithSpan,
};

use super::data_type;
use crate::failure::Failure;
use crate::row::canonical;
use crate::schema::{Mode, Type, literal};

/// A literal of BYTES.
pub(super) fn bytes(value: &Value) -> Result<Option<String>, Failure> {
    let text = match value {
        Value::SingleQuotedByteStringLiteral(text)
        | Value::DoubleQuotedByteStringLiteral(text)
        | Value::TripleSingleQuotedByteStringLiteral(text)
        | Value::TripleDoubleQuotedByteStringLiteral(text) => text,
        Value::Placeholder(name) => return Err(Failure::unsupported(format!("the parameter {name}"))),
        _ => return Ok(None),
    };
    let mut hex = String::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = byte == b'\\' && !rest.is_empty();
        if !escaped {
            hex += &format!("{byte:02X}");
            continue;
        }
        let kind = rest[0];
        rest = &rest[1..];
        let value = match kind {
            b'x' | b'X' if rest.len() >= 2 => {
                let digits = std::str::from_utf8(&rest[..2]).unwrap_or_default();
                rest = &rest[2..];
                u8::from_str_radix(digits, 16)
                    .map_err(|_| Failure::query(format!("Illegal escape sequence: \\x{digits}")))?
            }
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'0' => 0,
            other => other,
        };
        hex += &format!("{value:02X}");
    }
    Ok(Some(format!("unhex('{hex}')")))
}

/// A literal with its type before it, such as `DATE '2024-01-01'`.
pub(super) fn typed_literal(ty: &DataType, value: &ValueWithSpan) -> Result<String, Failure> {
    let text = value.value.clone().into_string().unwrap_or_default();
    Ok(match data_type::parsed(ty)?.ty {
        Type::Bignumeric => literal(&canonical(&text).map_err(Failure::query)?),
        ty => format!("CAST({} AS {})", literal(&text), ty.duckdb()),
    })
}

/// A cast.
pub(super) fn cast(kind: &CastKind, text: &str, ty: &DataType) -> Result<String, Failure> {
    let column = data_type::parsed(ty)?;
    let cast = if matches!(kind, CastKind::SafeCast | CastKind::TryCast) { "TRY_CAST" } else { "CAST" };
    Ok(match (&column.ty, column.mode) {
        (Type::Bytes, Mode::Nullable) => format!("encode({cast}({text} AS VARCHAR))"),
        (Type::Bignumeric, Mode::Nullable) => format!("{cast}({text} AS VARCHAR)"),
        _ => format!("{cast}({text} AS {})", column.duckdb()),
    })
}

/// An interval.
pub(super) fn span(interval: &Interval) -> Result<String, Failure> {
    let (Some(unit), None) = (&interval.leading_field, &interval.last_field) else {
        return Err(Failure::unsupported(interval));
    };
    Ok(format!("(INTERVAL '1 {unit}' * CAST({} AS BIGINT))", interval.value))
}

/// A part of a date or time.
pub(super) fn extract(field: &str, value: &str) -> Result<String, Failure> {
    let text = match field.to_ascii_uppercase().as_str() {
        "DATE" => format!("CAST({value} AS DATE)"),
        "TIME" => format!("CAST({value} AS TIME)"),
        "DAYOFWEEK" => format!("(extract(dow FROM {value}) + 1)"),
        "DAYOFYEAR" => format!("extract(doy FROM {value})"),
        "MICROSECOND" => format!("(extract(microsecond FROM {value}) % 1000000)"),
        "MILLISECOND" => format!("(extract(millisecond FROM {value}) % 1000)"),
        "ISOWEEK" => format!("extract(week FROM {value})"),
        known @ ("YEAR" | "QUARTER" | "MONTH" | "DAY" | "HOUR" | "MINUTE" | "SECOND" | "ISOYEAR") => {
            format!("CAST(floor(extract({known} FROM {value})) AS BIGINT)")
        }
        other => return Err(Failure::unsupported(format!("EXTRACT({other} FROM …)"))),
    };
    Ok(text)
}

/// ARRAY_AGG, which in DuckDB has neither IGNORE NULLS nor LIMIT.
pub(super) fn array_agg(function: &Function, texts: &[String]) -> Result<String, Failure> {
    let (FunctionArguments::List(list), [value]) = (&function.args, texts) else {
        return Err(Failure::unsupported(function));
    };
    let (mut order, mut limit, mut without_null) = (String::new(), String::new(), false);
    for clause in &list.clauses {
        match clause {
            FunctionArgumentClause::OrderBy(by) => {
                let by: Vec<_> = by.iter().map(ToString::to_string).collect();
                order = format!(" ORDER BY {}", by.join(", "));
            }
            FunctionArgumentClause::Limit(count) => limit = format!("[1:{count}]"),
            FunctionArgumentClause::IgnoreOrRespectNulls(treatment) => {
                without_null = *treatment == NullTreatment::IgnoreNulls;
            }
            other => return Err(Failure::unsupported(other)),
        }
    }
    let distinct = list.duplicate_treatment.as_ref().map_or_else(String::new, |d| format!("{d} "));
    let filter = if without_null { format!(" FILTER (WHERE {value} IS NOT NULL)") } else { String::new() };
    let over = function.over.as_ref().map_or_else(String::new, |over| format!(" OVER {over}"));
    Ok(format!("(array_agg({distinct}{value}{order}){filter}{over}){limit}"))
}
