//! Cells of a row under the field numbers of a table's columns.

use millstream_core::{Type, Value};
use millstream_layout::{Cell, Misfit, RowWriter, convert};

use crate::column_type::ColumnType;
use crate::dialect::field_of;
use crate::encode::RowEncoder;
use crate::unfit::Unfit;

/// A column that cells are written into.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    /// Its field number.
    number: u32,
    /// The type to which values are converted.
    ty: Type,
    kind: Kind,
}

/// How a cell is put.
#[derive(Debug, Clone)]
enum Kind {
    /// As the cell itself says.
    Plain,
    Time,
    DateTime,
    Timestamp,
    Numeric {
        scale: u16,
    },
    BigNumeric {
        scale: u16,
    },
    /// The elements', which have the list's number.
    List(Box<Column>),
    /// The fields', each with the source's name of it.
    Struct(Vec<(Box<str>, Column)>),
}

impl Column {
    /// The column with this field number, for values of a storable type.
    pub(crate) fn new(number: u32, ty: &Type) -> Self {
        let kind = match ty {
            Type::Time => Kind::Time,
            Type::DateTime => Kind::DateTime,
            Type::Timestamp => Kind::Timestamp,
            Type::Decimal { scale, .. } => match field_of("c", ty).ty {
                ColumnType::Numeric => Kind::Numeric { scale: *scale },
                _ => Kind::BigNumeric { scale: *scale },
            },
            Type::List(element) => Kind::List(Box::new(Column::new(number, element))),
            Type::Struct(fields) => {
                let numbered = (1u32..).zip(fields.iter());
                Kind::Struct(numbered.map(|(n, f)| (f.name.clone(), Column::new(n, &f.ty))).collect())
            }
            _ => Kind::Plain,
        };
        Self { number, ty: ty.clone(), kind }
    }

    /// Puts a converted value.
    #[inline]
    pub(crate) fn put(&self, row: &mut RowEncoder<'_>, cell: Cell<'_>, from: &Type) -> Result<(), Misfit> {
        let number = self.number;
        match (cell, &self.kind) {
            (Cell::Null, _) => {}
            (Cell::Text(v), Kind::BigNumeric { .. }) => {
                row.put_big_numeric_digits(number, &v).map_err(beyond)?;
            }
            (Cell::Text(v), _) => row.put_text(number, &v),
            (Cell::Int(v), _) => row.put_int(number, v),
            (Cell::Micros(v), Kind::Timestamp) => row.put_timestamp(number, v).map_err(beyond)?,
            (Cell::Micros(v), Kind::DateTime) => row.put_date_time(number, v).map_err(beyond)?,
            (Cell::Micros(v), _) => row.put_time(number, v).map_err(beyond)?,
            (Cell::Decimal(v), Kind::BigNumeric { scale }) => {
                row.put_big_numeric(number, v, *scale).map_err(beyond)?;
            }
            (Cell::Decimal(v), Kind::Numeric { scale }) => {
                row.put_numeric(number, v, *scale).map_err(beyond)?;
            }
            (Cell::Bool(v), _) => row.put_bool(number, v),
            (Cell::Float(v), _) => row.put_float(number, v),
            (Cell::Bytes(v), _) => row.put_bytes(number, v),
            (Cell::Date(v), _) => row.put_date(number, v).map_err(beyond)?,
            (Cell::List(values), Kind::List(element)) => {
                let Type::List(from) = from else { return Err(Misfit::WrongType) };
                if values.iter().any(|v| v.is_null() || v == Value::Unchanged) {
                    return Err(Misfit::NullInList);
                }
                for value in values.iter() {
                    element.put(row, convert(value, from, &element.ty)?, from)?;
                }
            }
            (Cell::Struct(values), Kind::Struct(fields)) => {
                let Type::Struct(from) = from else { return Err(Misfit::WrongType) };
                let mark = row.begin_message(number);
                for (i, field) in from.iter().enumerate() {
                    if let Some((_, column)) = fields.iter().find(|(name, _)| *name == field.name) {
                        column.put(row, convert(values.get(i), &field.ty, &column.ty)?, &field.ty)?;
                    }
                }
                row.end_message(mark);
            }
            (Cell::Decimal(_) | Cell::List(_) | Cell::Struct(_), _) => return Err(Misfit::WrongType),
        }
        Ok(())
    }
}

fn beyond(_: Unfit) -> Misfit {
    Misfit::OutOfRange
}

/// Writes a row's cells into an encoded row.
pub(crate) struct Cells<'c, 'r, 'w> {
    pub(crate) columns: &'c [Column],
    pub(crate) row: &'r mut RowEncoder<'w>,
}

impl RowWriter for Cells<'_, '_, '_> {
    /// NULL is a field that is left out.
    #[inline]
    fn null(&mut self, _: usize) {}

    #[inline]
    fn cell(&mut self, column: usize, cell: Cell<'_>, from: &Type) -> Result<(), Misfit> {
        let before = self.row.byte_len();
        let put = self.columns[column].put(self.row, cell, from);
        if put.is_err() {
            // Of a list or struct some may have been put.
            self.row.truncate(before);
        }
        put
    }
}
