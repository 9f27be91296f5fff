//! How events become tables, whatever the warehouse: names, columns and their evolution, keys, exact conversions, the
//! columns of each layout, and the SQL of the latest view.
//!
//! Pure: no I/O and no clock. A sink brings its [`Dialect`], executes the [`Change`]s and writes the [`Cell`]s.

pub mod cell;
pub mod changelog;
pub mod civil;
pub mod dialect;
pub mod history;
pub mod keyed;
pub mod latest;
pub mod names;
pub mod object;
pub mod plain;
pub mod replica;
pub mod rows;
pub mod shape;
pub mod staging;
pub mod table;
pub mod type_text;

pub use cell::{Cell, Misfit, convert};
pub use dialect::Dialect;
pub use keyed::{Keyed, Part, StoredKey};
pub use rows::{RowWriter, Trouble, write_row};
pub use shape::{Binding, Bound, Change, Shape, TargetColumn};
pub use table::StoredTable;
