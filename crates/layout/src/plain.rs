//! The rows layout: plain messages as rows with the columns that are declared, which never change by themselves.
//!
//! A warehouse that shows rows before their checkpoint keeps, in a table of its own making, a mark beside them by which it takes
//! them back, and shows what was declared as a view.

use millstream_core::{Error, Field, Type};

use crate::dialect::Dialect;
use crate::shape::{Binding, Shape};
use crate::table::StoredTable;

/// The column by which rows are taken back.
pub const MARK_COLUMN: &str = "__ingested_at";

/// The columns that stand beside the declared ones where rows may have to be taken back.
pub fn own_columns() -> Vec<Field> {
    vec![Field { name: MARK_COLUMN.into(), ty: Type::Timestamp }]
}

/// The rows of a table, whose name is SQL, with the declared columns and nothing else.
pub fn view(dialect: &dyn Dialect, table: &StoredTable, name: &str) -> String {
    let columns: Vec<_> = table.shape.columns.iter().map(|column| dialect.quote(&column.name)).collect();
    format!("SELECT {}\nFROM {name}", columns.join(", "))
}

/// Why rows of a schema cannot be in a table for good: a column is declared to be what the table's column neither is nor can become.
/// For a binding of which what does not fit is refused.
pub fn contradiction(shape: &Shape, binding: &Binding, name: &str, dialect: &dyn Dialect) -> Option<Error> {
    let column = &binding.schema.columns[*binding.refused.first()?];
    let there = shape.candidates(&column.name).next().map(|at| dialect.sql_type(&shape.columns[at].ty));
    Some(Error::fatal(format!(
        "column {} of {name} is {}, and {} is declared for {}: declare what the column is, alter it, or write to another table",
        column.name,
        there.unwrap_or_default(),
        dialect.sql_type(&column.ty),
        binding.schema.table
    )))
}
