//! Which values of a row PostgreSQL may have stored out of line.
//!
//! PostgreSQL moves values out of a tuple only while it is larger than `toast_tuple_target`, and only values larger than a
//! pointer to them. So a row whose tuple cannot be that large holds no such value, and none of its values need memory. The
//! sizes here are upper bounds: taking a small row for a large one costs memory, the reverse would lose values.

use std::sync::Arc;

use crate::row::Row;
use crate::schema::RowSchema;
use crate::value::{Type, Value};

/// Tuple header, aligned.
const HEADER: usize = 24;
/// The longest value of a fixed type, aligned.
const FIXED: usize = 16;
/// Length word of a variable value, and alignment.
const VARIABLE: usize = 8;
/// PostgreSQL's `MAXALIGN(TOAST_POINTER_SIZE)`: smaller values are never moved.
const POINTER: usize = 24;
/// Header of an array.
const ARRAY: usize = 40;
/// Binary JSON against its text: `1,` becomes an entry of 4 bytes and a numeric of 8.
const JSON_FACTOR: usize = 6;

/// Facts about a schema, found once.
#[derive(Debug)]
pub(super) struct Shape {
    /// The schema.
    pub(super) schema: Arc<RowSchema>,
    /// Index of its table in the gate.
    pub(super) table: u32,
    /// Whether it has a column whose values can be stored out of line.
    pub(super) has_movable: bool,
    heap_factor: usize,
}

impl Shape {
    /// The facts about `schema`.
    pub(super) fn new(schema: Arc<RowSchema>, table: u32) -> Self {
        let has_movable = schema.columns.iter().any(|column| is_movable(&column.ty));
        let has_json = schema.columns.iter().any(|column| matches!(column.ty, Type::Json | Type::Null));
        Self { schema, table, has_movable, heap_factor: if has_json { JSON_FACTOR } else { 1 } }
    }

    /// Whether the row's tuple is smaller than `bytes` for sure. Most rows are told without looking at their values.
    pub(super) fn is_below(&self, row: &Row, bytes: usize) -> bool {
        let cells = HEADER + row.len() / 8 + row.len() * (FIXED + VARIABLE);
        row.is_flat() && cells + row.heap_len() * self.heap_factor < bytes || tuple_bytes_max(row) < bytes
    }
}

/// The most bytes that the row's tuple can have.
fn tuple_bytes_max(row: &Row) -> usize {
    HEADER + row.len() / 8 + row.iter().map(bytes_max).sum::<usize>()
}

/// Whether a value of this type and size can be stored out of line.
pub(super) fn can_move(ty: &Type, value: Value<'_>) -> bool {
    is_movable(ty) && !matches!(value, Value::Null | Value::Unchanged) && bytes_max(value) > POINTER
}

fn is_movable(ty: &Type) -> bool {
    match ty {
        Type::Text
        | Type::Json
        | Type::Bytes
        | Type::List(_)
        | Type::Struct(_)
        | Type::Numeric
        | Type::Null => true,
        Type::Decimal { precision, .. } => *precision > 18,
        _ => false,
    }
}

fn bytes_max(value: Value<'_>) -> usize {
    match value {
        Value::Text(v) | Value::Digits(v) => v.len() + VARIABLE,
        Value::Bytes(v) => v.len() + VARIABLE,
        Value::Json(v) => v.len() * JSON_FACTOR + FIXED,
        Value::List(row) | Value::Struct(row) => {
            ARRAY + row.len() / 8 + row.iter().map(bytes_max).sum::<usize>()
        }
        _ => FIXED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::RowBuilder;

    #[test]
    fn small_rows_are_told_from_large_ones() {
        let mut b = RowBuilder::new();
        b.push(Value::Int(1));
        b.push(Value::Text(&"x".repeat(1900)));
        assert!(tuple_bytes_max(&b.finish()) < 2032);
        b.push(Value::Int(1));
        b.push(Value::Text(&"x".repeat(2000)));
        assert!(tuple_bytes_max(&b.finish()) >= 2032);
        assert!(!can_move(&Type::Text, Value::Text("sixteen letters.")));
        assert!(can_move(&Type::Text, Value::Text("seventeen letters")));
        assert!(!can_move(&Type::Int64, Value::Int(1)));
    }
}
