//! Rows of results as the REST API shows them: `{"f": [{"v": …}]}`, with every scalar as text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use duckdb::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use duckdb::arrow::compute::cast;
use duckdb::arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float64Type, Int64Type, Time64MicrosecondType, TimeUnit,
    TimestampMicrosecondType,
};
use duckdb::arrow::util::display::array_value_to_string;
use serde_json::{Value, json};

use crate::row::{date_text, datetime_text, time_text};
use crate::schema::{Column, Type};

/// Rows from `start`, at most `most` of them.
pub(crate) fn rows(
    batches: &[RecordBatch],
    columns: &[Column],
    start: usize,
    most: usize,
    int64_timestamps: bool,
) -> Vec<Value> {
    let mut skip = start;
    let mut rows = Vec::new();
    for batch in batches {
        if rows.len() >= most {
            break;
        }
        if skip >= batch.num_rows() {
            skip -= batch.num_rows();
            continue;
        }
        let count = (batch.num_rows() - skip).min(most - rows.len());
        let part = batch.slice(skip, count);
        skip = 0;
        let arrays: Vec<_> = part.columns().iter().map(plain).collect();
        for row in 0..count {
            let cells = columns.iter().zip(&arrays);
            let cells: Vec<_> = cells
                .map(|(column, array)| json!({"v": cell(column, array, row, int64_timestamps)}))
                .collect();
            rows.push(json!({"f": cells}));
        }
    }
    rows
}

/// An array of a type that [`cell`] knows, where there are several for one purpose.
fn plain(array: &ArrayRef) -> ArrayRef {
    let wanted = match array.data_type() {
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32 => DataType::Int64,
        DataType::Float32 => DataType::Float64,
        DataType::Timestamp(unit, zone) if *unit != TimeUnit::Microsecond => {
            DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
        }
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        _ => return array.clone(),
    };
    cast(array, &wanted).unwrap_or_else(|_| array.clone())
}

fn cell(column: &Column, array: &ArrayRef, row: usize, int64: bool) -> Value {
    let repeated = column.mode == crate::schema::Mode::Repeated;
    if array.is_null(row) {
        // BigQuery has no NULL lists in results.
        return if repeated { json!([]) } else { Value::Null };
    }
    match array.data_type() {
        DataType::List(_) if repeated => {
            let elements = plain(&array.as_list::<i32>().value(row));
            let element = Column::new("", column.ty.clone(), crate::schema::Mode::Nullable);
            (0..elements.len()).map(|i| json!({"v": cell(&element, &elements, i, int64)})).collect()
        }
        DataType::Struct(_) => {
            let record = array.as_struct();
            let fields = column.columns().unwrap_or_default().iter().zip(record.columns());
            let cells: Vec<_> =
                fields.map(|(column, array)| json!({"v": cell(column, &plain(array), row, int64)})).collect();
            json!({"f": cells})
        }
        _ => json!(scalar(&column.ty, array, row, int64)),
    }
}

fn scalar(ty: &Type, array: &ArrayRef, row: usize, int64: bool) -> String {
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).to_string(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float64 => float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => array.as_string::<i32>().value(row).to_owned(),
        DataType::Binary => STANDARD.encode(array.as_binary::<i32>().value(row)),
        DataType::Decimal128(_, scale) => {
            decimal(array.as_primitive::<Decimal128Type>().value(row), (*scale).max(0) as usize)
        }
        DataType::Date32 => {
            date_text(array.as_primitive::<Date32Type>().value(row).into()).unwrap_or_default()
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            time_text(array.as_primitive::<Time64MicrosecondType>().value(row))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            let micros = array.as_primitive::<TimestampMicrosecondType>().value(row);
            match ty {
                Type::Timestamp if int64 => micros.to_string(),
                Type::Timestamp => seconds(micros),
                _ => datetime_text(micros).unwrap_or_default(),
            }
        }
        _ => array_value_to_string(array, row).unwrap_or_default(),
    }
}

fn float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity".to_owned() } else { "-Infinity".to_owned() }
    } else {
        format!("{value:?}")
    }
}

fn decimal(value: i128, scale: usize) -> String {
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let fraction = fraction.trim_end_matches('0');
    let sign = if value < 0 { "-" } else { "" };
    if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

/// Seconds since 1970 as the service writes them: `1.7E9`, with all digits.
fn seconds(micros: i64) -> String {
    let text = micros.unsigned_abs().to_string();
    let sign = if micros < 0 { "-" } else { "" };
    let exponent = text.len() as i64 - 7;
    let digits = text.trim_end_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    let (first, rest) = digits.split_at(1);
    let rest = if rest.is_empty() { "0" } else { rest };
    let exponent = if micros == 0 { 0 } else { exponent };
    if exponent == 0 { format!("{sign}{first}.{rest}") } else { format!("{sign}{first}.{rest}E{exponent}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_texts() {
        assert_eq!(decimal(-1_500_000_000, 9), "-1.5");
        assert_eq!(decimal(7, 0), "7");
        assert_eq!(decimal(-1, 9), "-0.000000001");
        assert_eq!(seconds(1_700_000_000_123_456), "1.700000000123456E9");
        for micros in [0, 1, -1, 1_500_000, 1_700_000_000_000_000, -62_135_596_800_000_000] {
            let read: f64 = seconds(micros).parse().unwrap();
            assert!((read - micros as f64 / 1e6).abs() < 1e-6, "{micros}: {read}");
        }
        assert_eq!(float(1.0), "1.0");
    }
}
