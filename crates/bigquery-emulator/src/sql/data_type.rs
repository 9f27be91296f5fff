//! Types of GoogleSQL in DuckDB's words, and DuckDB's types in BigQuery's.

use sqlparser::ast::{ArrayElemTypeDef, DataType, StructField};

use crate::failure::Failure;
use crate::schema::{Column, Mode, Type};

/// A type of GoogleSQL.
pub(crate) fn parsed(ty: &DataType) -> Result<Column, Failure> {
    let scalar = |ty| Ok(Column::new("", ty, Mode::Nullable));
    match ty {
        DataType::Array(ArrayElemTypeDef::AngleBracket(element)) => {
            let element = parsed(element)?;
            if element.mode == Mode::Repeated {
                return Err(Failure::query("Cannot construct array with element type ARRAY"));
            }
            Ok(Column { mode: Mode::Repeated, ..element })
        }
        DataType::Struct(fields, _) => {
            let columns = fields.iter().enumerate().map(|(i, field)| field_column(i, field));
            scalar(Type::Record(columns.collect::<Result<_, _>>()?))
        }
        other => {
            let text = other.to_string();
            let name = text.split(['(', ' ']).next().unwrap_or_default();
            let ty = Type::named(name).ok_or_else(|| Failure::query(format!("Type not found: {text}")))?;
            scalar(ty)
        }
    }
}

fn field_column(index: usize, field: &StructField) -> Result<Column, Failure> {
    let name = field.field_name.as_ref().map_or_else(|| format!("_field_{}", index + 1), |n| n.value.clone());
    Ok(Column { name, ..parsed(&field.field_type)? })
}

/// Reads a type as DuckDB's DESCRIBE shows it.
pub(crate) fn described(name: &str, text: &str) -> Column {
    let text = text.trim();
    if let Some(element) = text.strip_suffix("[]") {
        let element = described(name, element);
        // Lists of lists do not exist in BigQuery; only the outer one is told.
        return Column { mode: Mode::Repeated, ..element };
    }
    let ty = if let Some(inner) = text.strip_prefix("STRUCT(").and_then(|t| t.strip_suffix(')')) {
        Type::Record(fields(inner))
    } else if text.starts_with("DECIMAL(38,9)") || text.starts_with("DECIMAL") {
        Type::Numeric
    } else {
        match text {
            "BOOLEAN" => Type::Bool,
            "FLOAT" | "DOUBLE" => Type::Float64,
            "BLOB" | "BIT" => Type::Bytes,
            "DATE" => Type::Date,
            "TIME" | "TIME WITH TIME ZONE" => Type::Time,
            "TIMESTAMP" | "TIMESTAMP_S" | "TIMESTAMP_MS" | "TIMESTAMP_NS" => Type::Datetime,
            "TIMESTAMP WITH TIME ZONE" => Type::Timestamp,
            "JSON" => Type::Json,
            "INTERVAL" => Type::Interval,
            "TINYINT" | "SMALLINT" | "INTEGER" | "BIGINT" | "HUGEINT" | "UTINYINT" | "USMALLINT"
            | "UINTEGER" | "UBIGINT" | "UHUGEINT" => Type::Int64,
            // NULL without a type is an INT64 in BigQuery.
            "\"NULL\"" | "NULL" => Type::Int64,
            _ => Type::String,
        }
    };
    Column::new(name, ty, Mode::Nullable)
}

/// Gives a text the type of a column of this name that is kept as text, and so on within records.
pub(crate) fn refine(column: &mut Column, known: &[Column]) {
    let same = known.iter().filter(|k| k.name.eq_ignore_ascii_case(&column.name));
    for candidate in same {
        match (&mut column.ty, &candidate.ty) {
            (ty @ Type::String, Type::Bignumeric | Type::Geography | Type::Interval | Type::Range(_)) => {
                *ty = candidate.ty.clone()
            }
            (Type::Record(fields), Type::Record(of)) => fields.iter_mut().for_each(|field| refine(field, of)),
            _ => {}
        }
    }
}

/// The fields of a struct: `a BIGINT, "b c" STRUCT(x DATE)[]`.
fn fields(text: &str) -> Vec<Column> {
    let (mut depth, mut quoted, mut start) = (0, false, 0);
    let mut parts = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    let column = |part: &str| {
        let part = part.trim();
        if !part.starts_with('"') {
            // A field without a name is only a type.
            let (name, ty) = part.split_once(' ').unwrap_or(("_field", part));
            return described(name, ty);
        }
        let mut at = 1;
        while let Some(next) = part[at..].find('"') {
            at += next + 1;
            if !part[at..].starts_with('"') {
                break;
            }
            at += 1;
        }
        let name = part[1..at.saturating_sub(1).max(1)].replace("\"\"", "\"");
        described(&name, &part[at..])
    };
    parts.into_iter().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn described_types_are_read_back() {
        let column = described(
            "c",
            r#"STRUCT(a BIGINT, "b ""c, (" STRUCT(x DATE, "y" DECIMAL(38,9)[])[], t TIMESTAMP WITH TIME ZONE)"#,
        );
        assert_eq!(
            column.sql_type(),
            r#"STRUCT<a INT64, b "c, ( ARRAY<STRUCT<x DATE, y ARRAY<NUMERIC>>>, t TIMESTAMP>"#
        );
        assert_eq!(described("c", "VARCHAR[]").mode, Mode::Repeated);
        let mut column = described("C", "VARCHAR");
        refine(&mut column, &[Column::new("c", Type::Bignumeric, Mode::Nullable)]);
        assert_eq!(column.ty, Type::Bignumeric);
        for wrong in ["STRUCT(", "STRUCT(\")", "STRUCT()", "[]", ""] {
            let _ = described("c", wrong);
        }
    }
}
