//! Values, types and schemas as bytes, for kept values and for forwards.
//!
//! ```text
//! value   tag, payload     0 NULL · 1 false · 2 true · 3 integer · 4 double (8 bytes) · 5 decimal (signed, scale) · 6 digits
//!                          7 text · 8 bytes · 9 JSON · 10 date · 11 time · 12 datetime · 13 timestamp · 14 list · 15 struct
//!                          16 unchanged
//! type    tag, payload     0 null · 1 bool · 2 int64 · 3 decimal (precision, scale) · 4 numeric · 5 float64 · 6 text · 7 bytes
//!                          8 JSON · 9 date · 10 time · 11 datetime · 12 timestamp · 13 list · 14 struct
//! schema  db, schema, table, columns (name, type, flags: nullable 1, guessed 2), key indexes
//! ```

use std::sync::Arc;

use super::encoding::{
    put_bytes, put_signed, take_byte, take_bytes, take_len, take_signed, take_slice, take_text,
};
use crate::bytes::{put_varint, take_varint};
use crate::row::{Row, RowBuilder};
use crate::schema::{Column, RowSchema, TableName};
use crate::value::{Field, Type, Value};

/// How deep values and types may nest; the decoders stop at the same depth.
const DEPTH_MAX: u32 = 128;
const NULLABLE: u8 = 1;
const GUESSED: u8 = 2;

/// Appends a value.
pub(super) fn put_value(out: &mut Vec<u8>, value: Value<'_>) {
    match value {
        Value::Null => out.push(0),
        Value::Bool(v) => out.push(1 + u8::from(v)),
        Value::Int(v) => put_number(out, 3, v),
        Value::Float(v) => {
            out.push(4);
            out.extend_from_slice(&v.to_bits().to_be_bytes());
        }
        Value::Decimal { unscaled, scale } => {
            put_number(out, 5, unscaled);
            out.push(scale);
        }
        Value::Digits(v) => put_tagged(out, 6, v.as_bytes()),
        Value::Text(v) => put_tagged(out, 7, v.as_bytes()),
        Value::Bytes(v) => put_tagged(out, 8, v),
        Value::Json(v) => put_tagged(out, 9, v.as_bytes()),
        Value::Date(v) => put_number(out, 10, v.into()),
        Value::Time(v) => put_number(out, 11, v),
        Value::DateTime(v) => put_number(out, 12, v),
        Value::Timestamp(v) => put_number(out, 13, v),
        Value::List(row) => put_nested(out, 14, row),
        Value::Struct(row) => put_nested(out, 15, row),
        Value::Unchanged => out.push(16),
    }
}

fn put_number(out: &mut Vec<u8>, tag: u8, v: i64) {
    out.push(tag);
    put_signed(out, v);
}

fn put_tagged(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_bytes(out, bytes);
}

fn put_nested(out: &mut Vec<u8>, tag: u8, row: &Row) {
    out.push(tag);
    put_varint(out, row.len() as u64);
    for value in row.iter() {
        put_value(out, value);
    }
}

/// Takes a value and appends it to `row`; `None` if the bytes hold none.
pub(super) fn take_value(bytes: &mut &[u8], row: &mut RowBuilder) -> Option<()> {
    take_nested(bytes, row, 0)
}

fn take_nested(bytes: &mut &[u8], row: &mut RowBuilder, depth: u32) -> Option<()> {
    let value = match take_byte(bytes)? {
        0 => Value::Null,
        1 => Value::Bool(false),
        2 => Value::Bool(true),
        3 => Value::Int(take_signed(bytes)?),
        4 => {
            let bits = take_slice(bytes, 8)?.try_into().ok()?;
            Value::Float(f64::from_bits(u64::from_be_bytes(bits)))
        }
        5 => Value::Decimal { unscaled: take_signed(bytes)?, scale: take_byte(bytes)? },
        6 => Value::Digits(take_text(bytes)?),
        7 => Value::Text(take_text(bytes)?),
        8 => Value::Bytes(take_bytes(bytes)?),
        9 => Value::Json(take_text(bytes)?),
        10 => Value::Date(i32::try_from(take_signed(bytes)?).ok()?),
        11 => Value::Time(take_signed(bytes)?),
        12 => Value::DateTime(take_signed(bytes)?),
        13 => Value::Timestamp(take_signed(bytes)?),
        16 => Value::Unchanged,
        tag @ (14 | 15) if depth < DEPTH_MAX => {
            let mut nested = RowBuilder::new();
            for _ in 0..take_len(bytes)? {
                take_nested(bytes, &mut nested, depth + 1)?;
            }
            match tag {
                14 => row.push_list(nested.finish()),
                _ => row.push_struct(nested.finish()),
            }
            return Some(());
        }
        _ => return None,
    };
    row.push(value);
    Some(())
}

/// Appends a schema.
pub(super) fn put_schema(out: &mut Vec<u8>, schema: &RowSchema) {
    for part in [&schema.table.db, &schema.table.schema, &schema.table.table] {
        put_bytes(out, part.as_bytes());
    }
    put_varint(out, schema.columns.len() as u64);
    for column in &schema.columns {
        put_bytes(out, column.name.as_bytes());
        put_type(out, &column.ty);
        out.push(u8::from(column.nullable) * NULLABLE + u8::from(column.guessed) * GUESSED);
    }
    put_varint(out, schema.key.len() as u64);
    for &index in &schema.key {
        put_varint(out, index as u64);
    }
}

/// Takes a schema.
pub(super) fn take_schema(bytes: &mut &[u8]) -> Option<RowSchema> {
    let table = TableName::new(take_text(bytes)?, take_text(bytes)?, take_text(bytes)?);
    let mut columns = Vec::new();
    for _ in 0..take_len(bytes)? {
        let name = take_text(bytes)?.into();
        let ty = take_type(bytes, 0)?;
        let flags = take_byte(bytes)?;
        columns.push(Column { name, ty, nullable: flags & NULLABLE != 0, guessed: flags & GUESSED != 0 });
    }
    let mut key = Vec::new();
    for _ in 0..take_len(bytes)? {
        key.push(usize::try_from(take_varint(bytes)?).ok().filter(|&i| i < columns.len())?);
    }
    Some(RowSchema { table: Arc::new(table), columns, key })
}

fn put_type(out: &mut Vec<u8>, ty: &Type) {
    match ty {
        Type::Null => out.push(0),
        Type::Bool => out.push(1),
        Type::Int64 => out.push(2),
        Type::Decimal { precision, scale } => {
            out.push(3);
            out.extend_from_slice(&precision.to_be_bytes());
            out.extend_from_slice(&scale.to_be_bytes());
        }
        Type::Numeric => out.push(4),
        Type::Float64 => out.push(5),
        Type::Text => out.push(6),
        Type::Bytes => out.push(7),
        Type::Json => out.push(8),
        Type::Date => out.push(9),
        Type::Time => out.push(10),
        Type::DateTime => out.push(11),
        Type::Timestamp => out.push(12),
        Type::List(element) => {
            out.push(13);
            put_type(out, element);
        }
        Type::Struct(fields) => {
            out.push(14);
            put_varint(out, fields.len() as u64);
            for field in fields {
                put_bytes(out, field.name.as_bytes());
                put_type(out, &field.ty);
            }
        }
    }
}

fn take_type(bytes: &mut &[u8], depth: u32) -> Option<Type> {
    Some(match take_byte(bytes)? {
        0 => Type::Null,
        1 => Type::Bool,
        2 => Type::Int64,
        3 => {
            let mut half = || Some(u16::from_be_bytes(take_slice(bytes, 2)?.try_into().ok()?));
            Type::Decimal { precision: half()?, scale: half()? }
        }
        4 => Type::Numeric,
        5 => Type::Float64,
        6 => Type::Text,
        7 => Type::Bytes,
        8 => Type::Json,
        9 => Type::Date,
        10 => Type::Time,
        11 => Type::DateTime,
        12 => Type::Timestamp,
        13 if depth < DEPTH_MAX => Type::List(Box::new(take_type(bytes, depth + 1)?)),
        14 if depth < DEPTH_MAX => {
            let mut fields = Vec::new();
            for _ in 0..take_len(bytes)? {
                fields.push(Field { name: take_text(bytes)?.into(), ty: take_type(bytes, depth + 1)? });
            }
            Type::Struct(fields.into())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_kind_of_value_comes_back() {
        let mut b = RowBuilder::new();
        b.push(Value::Text("inner"));
        b.push(Value::Unchanged);
        let nested = b.finish();
        for value in [
            Value::Null,
            Value::Bool(true),
            Value::Int(-7),
            Value::Float(-0.5),
            Value::Decimal { unscaled: -150, scale: 2 },
            Value::Digits("123456789012345678901234567890.5"),
            Value::Text("grüße"),
            Value::Bytes(&[0, 255]),
            Value::Json("{\"a\":1.50}"),
            Value::Date(19782),
            Value::Time(86_400_000_000),
            Value::DateTime(-1),
            Value::Timestamp(1),
            Value::Unchanged,
        ] {
            b.push(value);
        }
        b.push_list(nested.clone());
        b.push_struct(nested);
        let row = b.finish();
        let mut out = Vec::new();
        row.iter().for_each(|v| put_value(&mut out, v));
        let mut bytes = &out[..];
        while !bytes.is_empty() {
            take_value(&mut bytes, &mut b).unwrap();
        }
        assert_eq!(b.finish(), row);
    }

    #[test]
    fn schemas_come_back() {
        let column = |name: &str, ty| Column { name: name.into(), ty, nullable: true, guessed: name == "a" };
        let schema = RowSchema {
            table: Arc::new(TableName::new("d", "", "t")),
            columns: vec![
                column("a", Type::Decimal { precision: 38, scale: 9 }),
                column(
                    "b",
                    Type::List(Box::new(Type::Struct([Field { name: "x".into(), ty: Type::Json }].into()))),
                ),
                column("c", Type::Timestamp),
            ],
            key: vec![2, 0],
        };
        let mut out = Vec::new();
        put_schema(&mut out, &schema);
        assert_eq!(take_schema(&mut &out[..]), Some(schema));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = take_value(&mut &bytes[..], &mut RowBuilder::new());
            let _ = take_schema(&mut &bytes[..]);
        }
    }
}
