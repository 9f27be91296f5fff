//! From a row of an event to a table's columns.

use std::borrow::Cow;
use std::fmt::Display;

use base64::Engine as _;
use millstream_core::key::normal_digits;
use millstream_core::{Cause, Key, Row, RowSchema, Type, Value};

use crate::cell::{self, Cell, Misfit, convert};
use crate::dialect::Dialect;
use crate::shape::{Binding, Shape};

/// Why a row can't be written as the table stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The value for a column does not convert.
    Misfit {
        /// The table's column.
        column: usize,
        /// Why.
        misfit: Misfit,
    },
    /// A source column has a value, but its type was not known so far.
    Untyped {
        /// The source column.
        source: usize,
    },
    /// A source column has a value, but its type changed and the policy refuses such rows.
    Refused {
        /// The source column.
        source: usize,
    },
    /// The table was changed to make room; the row finds it now.
    Mended,
}

impl Trouble {
    /// What is told of a row of `schema` that is refused for it, of a table of the source.
    pub fn cause(
        self,
        shape: &Shape,
        schema: &RowSchema,
        table: &dyn Display,
        dialect: &dyn Dialect,
    ) -> Cause {
        let named = |source: usize| &*schema.columns[source].name;
        match self {
            Trouble::Misfit { column, misfit } => {
                let column = &shape.columns[column];
                let (code, what) = match misfit {
                    Misfit::OutOfRange => ("value_out_of_range", "the value is outside of"),
                    Misfit::WrongType => ("type_mismatch", "the value is not of"),
                    Misfit::NullInList => ("null_in_array", "the array holds NULL, which is in no"),
                };
                let ty = dialect.sql_type(&column.ty);
                Cause::new(code, format!("column {} of {table}: {what} {ty}", column.source))
            }
            Trouble::Mended => {
                Cause::new("not_written", format!("table {table} changed while the row was written"))
            }
            Trouble::Untyped { source } => {
                let text = format!("column {} of {table} has a value of no known type", named(source));
                Cause::new("type_unknown", text)
            }
            Trouble::Refused { source } => {
                let text = format!(
                    "column {} of {table} changed its type, and `on_type_change` says `dead-letter`",
                    named(source)
                );
                Cause::new("type_changed", text)
            }
        }
    }
}

/// Takes the values of one row, from the left.
pub trait RowWriter {
    /// Column `column` has no value.
    fn null(&mut self, column: usize);

    /// The value of column `column`; `from` is the source's type, which the elements of lists and structs have.
    ///
    /// # Errors
    /// If the warehouse does not take such a value; nothing is written then.
    fn cell(&mut self, column: usize, cell: Cell<'_>, from: &Type) -> Result<(), Misfit>;
}

/// Writes one value into each of the shape's columns. After an error the row is half written. `key` holds the key's columns:
/// their unbounded numerics are written without trailing zeros, so that equal keys are equal texts.
#[inline]
pub fn write_row(
    out: &mut impl RowWriter,
    shape: &Shape,
    binding: &Binding,
    key: &[usize],
    row: &Row,
) -> Result<(), Trouble> {
    // Where values went that their own columns don't take; these columns come later.
    let mut spilled: Vec<(usize, usize)> = Vec::new();
    for (i, target) in shape.columns.iter().enumerate() {
        let bound = binding.cells.get(i).copied();
        let Some(source) = bound.and_then(|b| b.source) else {
            match spilled.iter().find(|(to, _)| *to == i) {
                Some(&(_, source)) => {
                    let from = &binding.schema.columns[source].ty;
                    convert(row.get(source), from, &target.ty)
                        .and_then(|cell| out.cell(i, cell, from))
                        .map_err(|misfit| Trouble::Misfit { column: i, misfit })?;
                }
                None => out.null(i),
            }
            continue;
        };
        let from = &binding.schema.columns[source].ty;
        let written = match convert(row.get(source), from, &target.ty) {
            Ok(Cell::Text(text)) if target.ty == Type::Numeric && key.contains(&i) => {
                out.cell(i, Cell::Text(Cow::Owned(normal_digits(&text))), from)
            }
            Ok(cell) => out.cell(i, cell, from),
            Err(misfit) => Err(misfit),
        };
        match written {
            Ok(()) => {}
            Err(misfit) => {
                let overflow = bound.and_then(|b| b.overflow);
                let overflow = overflow.filter(|_| convert(row.get(source), from, &Type::Text).is_ok());
                let to = overflow.ok_or(Trouble::Misfit { column: i, misfit })?;
                spilled.push((to, source));
                out.null(i);
            }
        }
    }
    left_out(binding, row)
}

/// Whether the row has a value that is bound to no column.
fn left_out(binding: &Binding, row: &Row) -> Result<(), Trouble> {
    // A value that was left out needs a place too, or nobody would look it up.
    if let Some(&source) = binding.untyped.iter().find(|&&source| !row.get(source).is_null()) {
        return Err(Trouble::Untyped { source });
    }
    let has_value = |&&source: &&usize| !matches!(row.get(source), Value::Null | Value::Unchanged);
    match binding.refused.iter().find(has_value) {
        Some(&source) => Err(Trouble::Refused { source }),
        None => Ok(()),
    }
}

/// Names of the table's columns whose value the row did not carry.
pub fn unchanged<'a>(shape: &'a Shape, binding: &'a Binding, row: &'a Row) -> impl Iterator<Item = &'a str> {
    let sources = (0..row.len()).filter(|&i| row.get(i) == Value::Unchanged);
    sources.flat_map(|i| {
        let source = binding.schema.columns.get(i).map(|c| &*c.name);
        shape.columns.iter().filter(move |c| Some(&*c.source) == source).map(|c| &*c.name)
    })
}

/// A key as a JSON array of texts, each of which casts to its column's type (bytes as base64).
pub fn key_text(key: &Key) -> Option<String> {
    let values = key.values()?;
    let mut out = String::from("[");
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        match value {
            Value::Null | Value::Unchanged => out.push_str("null"),
            Value::Bytes(v) => {
                cell::write_json_text(&mut out, &base64::engine::general_purpose::STANDARD.encode(v))
            }
            Value::List(_) | Value::Struct(_) => cell::write_json(&mut out, value, &Type::Null, 0).ok()?,
            scalar => cell::write_json_text(&mut out, &cell::plain_text(scalar).ok()?),
        }
    }
    out.push(']');
    Some(out)
}
