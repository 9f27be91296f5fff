//! From a row of an event to the builders of a table's columns.
//!
//! In two passes: [`check`] looks whether every value has a place, and nothing is pushed before it says so; then
//! [`push_row`] cannot fail half-way.

use base64::Engine as _;
use millstream_core::key::normal_digits;
use millstream_core::{Key, Row, Type, Value};

use crate::builder::ColumnBuilder;
use crate::cell::{self, Cell, Misfit, convert};
use crate::shape::{Binding, Shape};

/// Why a row can't be written as the table stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The value for table column `column` does not convert.
    Misfit { column: usize, misfit: Misfit },
    /// Source column `source` has a value, but its type was not known so far.
    Untyped { source: usize },
    /// Source column `source` has a value, but its type changed and the policy refuses such rows.
    Refused { source: usize },
    /// The table was changed to make room; the row finds it now.
    Mended,
}

/// Whether every value of the row has a place.
pub(crate) fn check(shape: &Shape, binding: &Binding, row: &Row) -> Result<(), Trouble> {
    for (i, (bound, column)) in binding.cells.iter().zip(&shape.columns).enumerate() {
        let Some(source) = bound.source else { continue };
        let from = &binding.schema.columns[source].ty;
        if let Err(misfit) = convert(row.get(source), from, &column.ty) {
            let spills = bound.overflow.is_some_and(|_| convert(row.get(source), from, &Type::Text).is_ok());
            if !spills {
                return Err(Trouble::Misfit { column: i, misfit });
            }
        }
    }
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

/// Pushes one value into each builder. `key` holds the key's columns: their unbounded numerics are written without
/// trailing zeros, so that equal keys are equal texts.
pub(crate) fn push_row(
    builders: &mut [ColumnBuilder],
    shape: &Shape,
    binding: &Binding,
    key: &[usize],
    row: &Row,
) {
    let mut spilled: Vec<(usize, usize)> = Vec::new();
    for (i, (builder, column)) in builders.iter_mut().zip(&shape.columns).enumerate() {
        let bound = binding.cells.get(i).copied();
        let Some(source) = bound.and_then(|b| b.source) else {
            match spilled.iter().find(|(to, _)| *to == i) {
                Some(&(_, source)) => {
                    builder.push(row.get(source), &binding.schema.columns[source].ty, &column.ty)
                }
                None => builder.push_null(),
            }
            continue;
        };
        let from = &binding.schema.columns[source].ty;
        match convert(row.get(source), from, &column.ty) {
            Ok(Cell::Text(text)) if column.ty == Type::Numeric && key.contains(&i) => {
                builder.push_cell(Cell::Text(normal_digits(&text).into()), from);
            }
            Ok(cell) => builder.push_cell(cell, from),
            Err(_) => {
                builder.push_null();
                spilled.extend(bound.and_then(|b| b.overflow).map(|to| (to, source)));
            }
        }
    }
}

/// Names of the table's columns whose value the row did not carry.
pub(crate) fn unchanged<'a>(
    shape: &'a Shape,
    binding: &'a Binding,
    row: &'a Row,
) -> impl Iterator<Item = &'a str> {
    let sources = (0..row.len()).filter(|&i| row.get(i) == Value::Unchanged);
    sources.flat_map(|i| {
        let source = binding.schema.columns.get(i).map(|c| &*c.name);
        shape.columns.iter().filter(move |c| Some(&*c.source) == source).map(|c| &*c.name)
    })
}

/// A key as a JSON array of texts, each of which casts to its column's type (bytes as base64).
pub(crate) fn key_text(key: &Key) -> Option<String> {
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
