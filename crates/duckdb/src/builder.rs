//! Builders of one column's values, in Arrow form.

use std::sync::Arc;

use duckdb::arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Float64Builder, Int64Builder,
    ListArray, StringBuilder, StructArray, Time64MicrosecondBuilder, TimestampMicrosecondBuilder,
};
use duckdb::arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use duckdb::arrow::datatypes::Field as ArrowField;
use millstream_core::{Field, Row, Type, Value};

use crate::cell::{Cell, convert};
use crate::column_type::{arrow_fields, arrow_type};

/// Collects the values of one column. Rows are checked with [`convert`] before any of their values is pushed, so a push
/// cannot fail: a value that does not convert becomes NULL, which no checked row meets.
pub(crate) enum ColumnBuilder {
    Bool(BooleanBuilder),
    Int(Int64Builder),
    Float(Float64Builder),
    Decimal(Decimal128Builder),
    Text(StringBuilder),
    Bytes(BinaryBuilder),
    Date(Date32Builder),
    Time(Time64MicrosecondBuilder),
    Instant(TimestampMicrosecondBuilder),
    List(Box<ListColumn>),
    Struct(Box<StructColumn>),
}

pub(crate) struct ListColumn {
    ty: Type,
    element: ColumnBuilder,
    offsets: Vec<i32>,
    valid: Vec<bool>,
}

pub(crate) struct StructColumn {
    fields: Box<[Field]>,
    columns: Vec<ColumnBuilder>,
    valid: Vec<bool>,
}

impl ColumnBuilder {
    /// An empty builder for a storable type. It takes no memory before its first value: there may be thousands of tables.
    pub(crate) fn new(ty: &Type) -> Self {
        match ty {
            Type::Bool => Self::Bool(BooleanBuilder::with_capacity(0)),
            Type::Int64 => Self::Int(Int64Builder::with_capacity(0)),
            Type::Float64 => Self::Float(Float64Builder::with_capacity(0)),
            Type::Decimal { .. } => {
                Self::Decimal(Decimal128Builder::with_capacity(0).with_data_type(arrow_type(ty)))
            }
            Type::Null | Type::Numeric | Type::Text | Type::Json => {
                Self::Text(StringBuilder::with_capacity(0, 0))
            }
            Type::Bytes => Self::Bytes(BinaryBuilder::with_capacity(0, 0)),
            Type::Date => Self::Date(Date32Builder::with_capacity(0)),
            Type::Time => Self::Time(Time64MicrosecondBuilder::with_capacity(0)),
            Type::DateTime | Type::Timestamp => {
                Self::Instant(TimestampMicrosecondBuilder::with_capacity(0).with_data_type(arrow_type(ty)))
            }
            Type::List(element) => Self::List(Box::new(ListColumn {
                ty: (**element).clone(),
                element: Self::new(element),
                offsets: vec![0],
                valid: Vec::new(),
            })),
            Type::Struct(fields) => Self::Struct(Box::new(StructColumn {
                fields: fields.clone(),
                columns: fields.iter().map(|f| Self::new(&f.ty)).collect(),
                valid: Vec::new(),
            })),
        }
    }

    /// Appends NULL.
    pub(crate) fn push_null(&mut self) {
        match self {
            Self::Bool(b) => b.append_null(),
            Self::Int(b) => b.append_null(),
            Self::Float(b) => b.append_null(),
            Self::Decimal(b) => b.append_null(),
            Self::Text(b) => b.append_null(),
            Self::Bytes(b) => b.append_null(),
            Self::Date(b) => b.append_null(),
            Self::Time(b) => b.append_null(),
            Self::Instant(b) => b.append_null(),
            Self::List(list) => list.end(false),
            Self::Struct(object) => object.push_null(),
        }
    }

    /// Appends a value of type `from` to a column of type `to`.
    #[inline]
    pub(crate) fn push(&mut self, value: Value<'_>, from: &Type, to: &Type) {
        match convert(value, from, to) {
            Ok(cell) => self.push_cell(cell, from),
            Err(_) => self.push_null(),
        }
    }

    #[inline]
    pub(crate) fn push_cell(&mut self, cell: Cell<'_>, from: &Type) {
        match (self, cell) {
            (Self::Text(b), Cell::Text(v)) => b.append_value(v),
            (Self::Int(b), Cell::Int(v)) => b.append_value(v),
            (Self::Instant(b), Cell::Micros(v)) => b.append_value(v),
            (Self::Decimal(b), Cell::Decimal(v)) => b.append_value(v),
            (Self::Float(b), Cell::Float(v)) => b.append_value(v),
            (Self::Bool(b), Cell::Bool(v)) => b.append_value(v),
            (Self::Bytes(b), Cell::Bytes(v)) => b.append_value(v),
            (Self::Date(b), Cell::Date(v)) => b.append_value(v),
            (Self::Time(b), Cell::Micros(v)) => b.append_value(v),
            (Self::List(list), Cell::List(row)) => list.push(row, from),
            (Self::Struct(object), Cell::Struct(row)) => object.push(row, from),
            (builder, _) => builder.push_null(),
        }
    }

    /// Hands out the column and empties the builder.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Bool(b) => Arc::new(b.finish()),
            Self::Int(b) => Arc::new(b.finish()),
            Self::Float(b) => Arc::new(b.finish()),
            Self::Decimal(b) => Arc::new(b.finish()),
            Self::Text(b) => Arc::new(b.finish()),
            Self::Bytes(b) => Arc::new(b.finish()),
            Self::Date(b) => Arc::new(b.finish()),
            Self::Time(b) => Arc::new(b.finish()),
            Self::Instant(b) => Arc::new(b.finish()),
            Self::List(list) => list.finish(),
            Self::Struct(object) => object.finish(),
        }
    }
}

impl ListColumn {
    fn push(&mut self, row: &Row, from: &Type) {
        let unknown = Type::Null;
        let from_element = if let Type::List(element) = from { element } else { &unknown };
        for value in row.iter() {
            self.element.push(value, from_element, &self.ty);
        }
        let len = self.offsets[self.offsets.len() - 1] + row.len() as i32;
        self.offsets.push(len);
        self.valid.push(true);
    }

    fn end(&mut self, valid: bool) {
        self.offsets.push(self.offsets[self.offsets.len() - 1]);
        self.valid.push(valid);
    }

    fn finish(&mut self) -> ArrayRef {
        let field = Arc::new(ArrowField::new("item", arrow_type(&self.ty), true));
        let offsets = std::mem::replace(&mut self.offsets, vec![0]);
        let valid = std::mem::take(&mut self.valid);
        Arc::new(ListArray::new(
            field,
            OffsetBuffer::new(ScalarBuffer::from(offsets)),
            self.element.finish(),
            Some(NullBuffer::from(valid)),
        ))
    }
}

impl StructColumn {
    /// Begins a struct whose fields the caller pushes itself, in the order of the fields.
    pub(crate) fn fields_mut(&mut self) -> &mut [ColumnBuilder] {
        self.valid.push(true);
        &mut self.columns
    }

    fn push(&mut self, row: &Row, from: &Type) {
        let Type::Struct(from_fields) = from else { return self.push_null() };
        for (i, field) in self.fields.iter().enumerate() {
            // Shapes mostly agree, so the field is looked for at its own place first.
            let source = match from_fields.get(i) {
                Some(f) if f.name == field.name => Some(i),
                _ => from_fields.iter().position(|f| f.name == field.name),
            };
            match source {
                Some(s) => self.columns[i].push(row.get(s), &from_fields[s].ty, &field.ty),
                None => self.columns[i].push_null(),
            }
        }
        self.valid.push(true);
    }

    pub(crate) fn push_null(&mut self) {
        self.columns.iter_mut().for_each(ColumnBuilder::push_null);
        self.valid.push(false);
    }

    fn finish(&mut self) -> ArrayRef {
        let fields = arrow_fields(self.fields.iter().map(|f| (&*f.name, &f.ty)));
        let columns = self.columns.iter_mut().map(ColumnBuilder::finish).collect();
        let valid = std::mem::take(&mut self.valid);
        Arc::new(StructArray::new(fields, columns, Some(NullBuffer::from(valid))))
    }
}
