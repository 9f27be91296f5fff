//! The append layout: one row of `T_raw` for each distinct event.

use millstream_core::{Field, Type};

use crate::table::StoredTable;

/// The columns that Millstream adds to a `T_raw`, in order.
pub fn own_columns() -> Vec<Field> {
    let field = |name: &str, ty| Field { name: name.into(), ty };
    vec![
        field("__op", Type::Text),
        field("__source_ts_ms", Type::Int64),
        field("__ingested_at", Type::Timestamp),
        field("__source_table", Type::Text),
        field("__transaction_id", Type::Text),
        field("__lsn", Type::Int64),
        field("__order", Type::Text),
        field("__unchanged", Type::List(Box::new(Type::Text))),
        field("__old_key", Type::Text),
        field("__key_columns", Type::Text),
    ]
}

/// The column by which a history's rows are rolled back.
pub const MARK_COLUMN: &str = "__ingested_at";

/// All columns in the table's physical order.
pub fn physical_columns(table: &StoredTable) -> Vec<Field> {
    table.physical_columns(own_columns())
}
