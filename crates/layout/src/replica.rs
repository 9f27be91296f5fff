//! The replica layout: the current rows of a table.

use millstream_core::{Field, Type};

use crate::table::StoredTable;

/// The column that says how new a row is.
pub const ORDER_COLUMN: &str = "_metadata_order";

/// The columns that Millstream adds to a replica, in order.
pub fn own_columns() -> Vec<Field> {
    let field = |name: &str, ty| Field { name: name.into(), ty };
    vec![
        field("_metadata_timestamp", Type::Timestamp),
        field("_metadata_deleted", Type::Bool),
        field("_metadata_lsn", Type::Int64),
        field(ORDER_COLUMN, Type::Text),
    ]
}

/// All columns in the table's physical order.
pub fn physical_columns(table: &StoredTable) -> Vec<Field> {
    table.physical_columns(own_columns())
}
