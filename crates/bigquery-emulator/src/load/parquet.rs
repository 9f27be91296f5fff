//! Parquet files as the service reads them. What it takes a column for is what Google's client for Python relies on when it uploads data
//! frames.

use std::sync::Arc;

use bytes::Bytes;
use duckdb::arrow::array::{
    Array, ArrayRef, AsArray, ListArray, RecordBatch, RecordBatchOptions, StringArray, StructArray,
};
use duckdb::arrow::compute::cast;
use duckdb::arrow::datatypes::{DataType, Decimal128Type, Decimal256Type, Field, Fields, Schema, TimeUnit};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::misfit;
use crate::failure::Failure;
use crate::row::canonical;
use crate::schema::{self, Column, Mode, Type};

/// The rows of a file, in columns of these types.
pub(super) fn read(
    file: &Bytes,
    columns: &[Column],
    lists: bool,
    flexible_names: bool,
) -> Result<Vec<RecordBatch>, Failure> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(unreadable)?;
    for field in reader.schema().fields() {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !flexible_names && !field.name().chars().all(plain) {
            return Err(Failure::invalid(format!(
                "Invalid field name \"{}\". Fields must contain only letters, numbers, and underscores",
                field.name()
            )));
        }
        if schema::find(columns, field.name()).is_none() {
            return Err(Failure::invalid(format!("Cannot add fields (field: {})", field.name())));
        }
    }
    let mut batches = Vec::new();
    for batch in reader.build().map_err(unreadable)? {
        let batch = batch?;
        let given = batch.schema();
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (field, array) in given.fields().iter().zip(batch.columns()) {
            let Some((_, column)) = schema::find(columns, field.name()) else { continue };
            let array = converted(array, column, lists)?;
            fields.push(Field::new(&column.name, array.data_type().clone(), true));
            arrays.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        batches.push(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)?);
    }
    Ok(batches)
}

/// The columns that a file has by itself.
pub(super) fn columns(file: &Bytes, lists: bool) -> Result<Vec<Column>, Failure> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(unreadable)?;
    reader.schema().fields().iter().map(|field| inferred(field, lists)).collect()
}

fn unreadable(error: parquet::errors::ParquetError) -> Failure {
    Failure::invalid(format!("Error while reading data, error message: Failed to read Parquet file: {error}"))
}

fn inferred(field: &Field, lists: bool) -> Result<Column, Failure> {
    let (mode, ty) = match field.data_type() {
        DataType::List(element) if lists => (Mode::Repeated, element.data_type()),
        ty if field.is_nullable() => (Mode::Nullable, ty),
        ty => (Mode::Required, ty),
    };
    let ty = match ty {
        DataType::Boolean => Type::Bool,
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Type::Int64,
        DataType::Float32 | DataType::Float64 => Type::Float64,
        DataType::Utf8 => Type::String,
        DataType::Binary => Type::Bytes,
        DataType::Date32 => Type::Date,
        DataType::Time32(_) | DataType::Time64(_) => Type::Time,
        DataType::Timestamp(_, None) => Type::Datetime,
        DataType::Timestamp(_, Some(_)) => Type::Timestamp,
        DataType::Decimal128(precision, scale) if (0..=9).contains(scale) && *precision <= 38 => {
            Type::Numeric
        }
        DataType::Decimal128(..) | DataType::Decimal256(..) => Type::Bignumeric,
        DataType::Struct(fields) => {
            Type::Record(fields.iter().map(|field| inferred(field, lists)).collect::<Result<_, _>>()?)
        }
        other => {
            return Err(Failure::invalid(format!("Unsupported Parquet type {other} of {}", field.name())));
        }
    };
    Ok(Column::new(field.name(), ty, mode))
}

fn converted(array: &ArrayRef, column: &Column, lists: bool) -> Result<ArrayRef, Failure> {
    let name = &column.name;
    if column.mode == Mode::Repeated {
        let Some(list) = array.as_list_opt::<i32>().filter(|_| lists) else {
            return Err(misfit(name, array.data_type(), &column.ty));
        };
        let element = Column { mode: Mode::Required, ..column.clone() };
        let values = converted(list.values(), &element, lists)?;
        let field = Arc::new(Field::new("item", values.data_type().clone(), true));
        // There is no NULL for an array: what is none is an empty one.
        return Ok(Arc::new(ListArray::try_new(field, list.offsets().clone(), values, None)?));
    }
    if column.mode == Mode::Required && array.null_count() > 0 {
        return Err(Failure::invalid(format!("Required column '{name}' has a NULL")));
    }
    let wanted = column.ty.arrow();
    let out = match (&column.ty, array.data_type()) {
        (Type::Json, _) => return Err(Failure::invalid("Unsupported field type: JSON")),
        (Type::Record(columns), DataType::Struct(_)) => record(array.as_struct(), columns, lists)?,
        (Type::Bignumeric, DataType::Decimal256(..)) => {
            let decimals = array.as_primitive::<Decimal256Type>();
            texts(decimals.len(), |i| decimals.is_valid(i).then(|| decimals.value_as_string(i)))?
        }
        (Type::Bignumeric, DataType::Decimal128(..)) => {
            let decimals = array.as_primitive::<Decimal128Type>();
            texts(decimals.len(), |i| decimals.is_valid(i).then(|| decimals.value_as_string(i)))?
        }
        (Type::Numeric, DataType::Decimal128(_, scale)) if (0..=9).contains(scale) => cast(array, &wanted)?,
        (Type::Int64, DataType::Int8 | DataType::Int16 | DataType::Int32)
        | (Type::Float64, DataType::Float32)
        | (Type::Time, DataType::Time32(TimeUnit::Millisecond))
        | (Type::Datetime, DataType::Timestamp(TimeUnit::Millisecond, None))
        | (Type::Timestamp, DataType::Timestamp(TimeUnit::Microsecond | TimeUnit::Millisecond, Some(_))) => {
            cast(array, &wanted)?
        }
        (_, found) if *found == wanted => array.clone(),
        (ty, found) => return Err(misfit(name, found, ty)),
    };
    Ok(out)
}

fn record(array: &StructArray, columns: &[Column], lists: bool) -> Result<ArrayRef, Failure> {
    let (mut fields, mut arrays) = (Vec::new(), Vec::new());
    for (field, array) in array.fields().iter().zip(array.columns()) {
        let Some((_, column)) = schema::find(columns, field.name()) else {
            return Err(Failure::invalid(format!("Cannot add fields (field: {})", field.name())));
        };
        let array = converted(array, column, lists)?;
        fields.push(Field::new(&column.name, array.data_type().clone(), true));
        arrays.push(array);
    }
    let nulls = array.nulls().cloned();
    Ok(Arc::new(StructArray::try_new_with_length(Fields::from(fields), arrays, nulls, array.len())?))
}

fn texts(len: usize, text: impl Fn(usize) -> Option<String>) -> Result<ArrayRef, Failure> {
    let canonical = |i| text(i).map(|text| canonical(&text)).transpose().map_err(Failure::invalid);
    let texts = (0..len).map(canonical).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(StringArray::from(texts)))
}
