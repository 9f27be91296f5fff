//! Objects of events as values of a struct column.
use millstream_layout::object::{Nested, Object};

use crate::column_data::ColumnData;
use crate::rows;

/// Pushes an object that fits, or NULL.
pub(crate) fn push(nested: &Nested, column: &mut ColumnData, object: Option<&Object>) {
    let fitting = object.and_then(|o| nested.binding(o).map(|binding| (o, binding)));
    let before = column.rows();
    let fields = fitting.and_then(|fitting| Some((column.begin_struct()?, fitting)));
    let pushed = fields.is_some_and(|(fields, (object, binding))| {
        rows::push_row(fields, &nested.shape, binding, &[], &object.row).is_ok()
    });
    if !pushed {
        // What fits is pushed; the rest has no place by its kind, like a struct in a column of JSON's NULLs.
        column.truncate(before);
        column.push_null();
    }
}
