//! Logical types as DuckDB's.

use duckdb::core::{LogicalTypeHandle, LogicalTypeId};
use millstream_core::Type;

use crate::ident::quote;

/// The DuckDB type of a storable type.
pub(crate) fn sql_type(ty: &Type) -> String {
    match ty {
        Type::Bool => "BOOLEAN".to_owned(),
        Type::Int64 => "BIGINT".to_owned(),
        Type::Decimal { precision, scale } => format!("DECIMAL({precision},{scale})"),
        Type::Float64 => "DOUBLE".to_owned(),
        Type::Null | Type::Numeric | Type::Text => "VARCHAR".to_owned(),
        Type::Bytes => "BLOB".to_owned(),
        Type::Json => "JSON".to_owned(),
        Type::Date => "DATE".to_owned(),
        Type::Time => "TIME".to_owned(),
        Type::DateTime => "TIMESTAMP".to_owned(),
        Type::Timestamp => "TIMESTAMPTZ".to_owned(),
        Type::List(element) => format!("{}[]", sql_type(element)),
        Type::Struct(fields) => struct_type(fields.iter().map(|f| (&*f.name, &f.ty))),
    }
}

/// `STRUCT("a" BIGINT, …)`.
pub(crate) fn struct_type<'a>(fields: impl Iterator<Item = (&'a str, &'a Type)>) -> String {
    let fields: Vec<_> = fields.map(|(name, ty)| format!("{} {}", quote(name), sql_type(ty))).collect();
    format!("STRUCT({})", fields.join(", "))
}

/// The type of vectors that hold values of a storable type. It is the table's, so that nothing is cast on the way.
pub(crate) fn logical_type(ty: &Type) -> LogicalTypeHandle {
    let id = match ty {
        Type::Bool => LogicalTypeId::Boolean,
        Type::Int64 => LogicalTypeId::Bigint,
        Type::Float64 => LogicalTypeId::Double,
        Type::Null | Type::Numeric | Type::Text | Type::Json => LogicalTypeId::Varchar,
        Type::Bytes => LogicalTypeId::Blob,
        Type::Date => LogicalTypeId::Date,
        Type::Time => LogicalTypeId::Time,
        Type::DateTime => LogicalTypeId::Timestamp,
        Type::Timestamp => LogicalTypeId::TimestampTZ,
        Type::Decimal { precision, scale } => {
            return LogicalTypeHandle::decimal(*precision as u8, *scale as u8);
        }
        Type::List(element) => return LogicalTypeHandle::list(&logical_type(element)),
        Type::Struct(fields) => {
            let fields: Vec<_> = fields.iter().map(|f| (&*f.name, logical_type(&f.ty))).collect();
            return LogicalTypeHandle::struct_type(&fields);
        }
    };
    let mut handle = LogicalTypeHandle::from(id);
    if *ty == Type::Json {
        // DuckDB's JSON type is this; a cast would parse each value.
        handle.set_alias("JSON");
    }
    handle
}
