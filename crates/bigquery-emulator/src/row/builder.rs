//! Columns under construction.

use std::sync::Arc;

use duckdb::arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Float64Builder, Int64Builder,
    ListArray, StringBuilder, StructArray, Time64MicrosecondBuilder, TimestampMicrosecondBuilder,
};
use duckdb::arrow::buffer::{NullBuffer, OffsetBuffer};
use duckdb::arrow::datatypes::{DataType, Field};
use duckdb::arrow::error::ArrowError;

use crate::schema::{self, Column, Mode, Type};

/// A column of one type.
#[derive(Debug)]
pub(crate) enum Builder {
    Bool(BooleanBuilder),
    Int64(Int64Builder),
    Float64(Float64Builder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    /// A DATETIME's, or with a zone a TIMESTAMP's.
    Micros(TimestampMicrosecondBuilder),
    Numeric(Decimal128Builder),
    Record {
        columns: Vec<Builder>,
        valid: Vec<bool>,
    },
    List {
        elements: Box<Builder>,
        lengths: Vec<usize>,
    },
}

impl Builder {
    /// One for a column.
    pub(crate) fn new(column: &Column) -> Self {
        match column.mode {
            Mode::Repeated => Self::List { elements: Box::new(Self::of(&column.ty)), lengths: Vec::new() },
            _ => Self::of(&column.ty),
        }
    }

    fn of(ty: &Type) -> Self {
        match ty {
            Type::Bool => Self::Bool(BooleanBuilder::new()),
            Type::Int64 => Self::Int64(Int64Builder::new()),
            Type::Float64 => Self::Float64(Float64Builder::new()),
            Type::Bytes => Self::Bytes(BinaryBuilder::new()),
            Type::Date => Self::Date(Date32Builder::new()),
            Type::Time => Self::Time(Time64MicrosecondBuilder::new()),
            Type::Datetime => Self::Micros(TimestampMicrosecondBuilder::new()),
            Type::Timestamp => Self::Micros(TimestampMicrosecondBuilder::new().with_timezone("UTC")),
            Type::Numeric => {
                Self::Numeric(Decimal128Builder::new().with_data_type(DataType::Decimal128(38, 9)))
            }
            Type::String
            | Type::Bignumeric
            | Type::Json
            | Type::Geography
            | Type::Interval
            | Type::Range(_) => Self::Text(StringBuilder::new()),
            Type::Record(columns) => {
                Self::Record { columns: columns.iter().map(Self::new).collect(), valid: Vec::new() }
            }
        }
    }

    /// Adds NULL, or for a list an empty one.
    pub(crate) fn push_null(&mut self) {
        match self {
            Self::Bool(b) => b.append_null(),
            Self::Int64(b) => b.append_null(),
            Self::Float64(b) => b.append_null(),
            Self::Text(b) => b.append_null(),
            Self::Bytes(b) => b.append_null(),
            Self::Date(b) => b.append_null(),
            Self::Time(b) => b.append_null(),
            Self::Micros(b) => b.append_null(),
            Self::Numeric(b) => b.append_null(),
            Self::Record { columns, valid } => {
                valid.push(false);
                for column in columns {
                    column.push_null();
                }
            }
            Self::List { lengths, .. } => lengths.push(0),
        }
    }

    /// The finished column.
    pub(crate) fn finish(self, column: &Column) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::List { elements, lengths } => {
                let elements = elements.finish_of(&column.ty)?;
                let field = Arc::new(Field::new("item", elements.data_type().clone(), true));
                Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), elements, None)?)
            }
            other => other.finish_of(&column.ty)?,
        })
    }

    fn finish_of(self, ty: &Type) -> Result<ArrayRef, ArrowError> {
        Ok(match (self, ty) {
            (Self::Bool(mut b), _) => Arc::new(b.finish()),
            (Self::Int64(mut b), _) => Arc::new(b.finish()),
            (Self::Float64(mut b), _) => Arc::new(b.finish()),
            (Self::Text(mut b), _) => Arc::new(b.finish()),
            (Self::Bytes(mut b), _) => Arc::new(b.finish()),
            (Self::Date(mut b), _) => Arc::new(b.finish()),
            (Self::Time(mut b), _) => Arc::new(b.finish()),
            (Self::Micros(mut b), _) => Arc::new(b.finish()),
            (Self::Numeric(mut b), _) => Arc::new(b.finish()),
            (Self::Record { columns, valid }, Type::Record(types)) => {
                let arrays = columns.into_iter().zip(types).map(|(b, c)| b.finish(c));
                let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
                let rows = valid.len();
                let nulls = NullBuffer::from(valid);
                Arc::new(StructArray::try_new_with_length(schema::fields(types), arrays, Some(nulls), rows)?)
            }
            (Self::Record { .. } | Self::List { .. }, _) => {
                return Err(ArrowError::SchemaError("a record's columns are missing".to_owned()));
            }
        })
    }
}
