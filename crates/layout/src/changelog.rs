//! The changelog layout: one row of `T_changelog` for each distinct event, with the row before and after as structs.

use millstream_core::{Event, Field, Op, Row, Type};

use crate::shape::{Shape, TargetColumn};

/// The column by which a changelog's rows are rolled back.
pub const MARK_COLUMN: &str = "_metadata_read_timestamp";

/// The struct type of a shape; JSON, of which only NULL is written, while the shape has no columns.
pub fn struct_of(shape: &Shape) -> Type {
    if shape.columns.is_empty() {
        return Type::Json;
    }
    let field = |c: &TargetColumn| Field { name: c.name.as_str().into(), ty: c.ty.clone() };
    Type::Struct(shape.columns.iter().map(field).collect())
}

/// All columns, in the table's physical order.
pub fn physical_columns(row: &Shape, source: &Shape, transaction: &Shape) -> Vec<Field> {
    let field = |name: &str, ty| Field { name: name.into(), ty };
    vec![
        field("_metadata_timestamp", Type::Timestamp),
        field(MARK_COLUMN, Type::Timestamp),
        field("_metadata_source", Type::Text),
        field("_metadata_deleted", Type::Bool),
        field("before", struct_of(row)),
        field("after", struct_of(row)),
        field("source", struct_of(source)),
        field("op", Type::Text),
        field("ts_ms", Type::Int64),
        field("transaction", struct_of(transaction)),
        field("_metadata_order", Type::Text),
        field("_metadata_unchanged", Type::List(Box::new(Type::Text))),
    ]
}

/// Which object of a changelog's rows changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectColumn {
    /// `source`.
    Source,
    /// `transaction`.
    Transaction,
}

/// The row before and after: a delete's row is its image before.
pub fn images(event: &Event) -> (Option<&Row>, Option<&Row>) {
    match event.op {
        Op::Truncate => (None, None),
        Op::Delete => {
            (Some(event.before.as_deref().filter(|_| event.full_before).unwrap_or(&event.row)), None)
        }
        Op::Read | Op::Create | Op::Update => (event.before.as_deref(), Some(&event.row)),
    }
}
