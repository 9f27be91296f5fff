//! Rows of events into the columns of vectors.

use millstream_core::{Row, Type};
use millstream_layout::{Binding, Cell, Misfit, RowWriter, Shape, Trouble, write_row};

use crate::column_data::ColumnData;

struct Columns<'a>(&'a mut [ColumnData]);

impl RowWriter for Columns<'_> {
    #[inline]
    fn null(&mut self, column: usize) {
        self.0[column].push_null();
    }

    #[inline]
    fn cell(&mut self, column: usize, cell: Cell<'_>, from: &Type) -> Result<(), Misfit> {
        self.0[column].push_cell(cell, from);
        Ok(())
    }
}

/// Pushes one value into each column, or none at all if one has no place. See [`write_row`].
pub(crate) fn push_row(
    columns: &mut [ColumnData],
    shape: &Shape,
    binding: &Binding,
    key: &[usize],
    row: &Row,
) -> Result<(), Trouble> {
    let before = columns.first().map_or(0, ColumnData::rows);
    let pushed = write_row(&mut Columns(columns), shape, binding, key, row);
    if pushed.is_err() {
        columns.iter_mut().for_each(|column| column.truncate(before));
    }
    pushed
}
