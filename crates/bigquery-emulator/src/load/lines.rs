//! JSON lines, plain or gzipped.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use duckdb::arrow::array::{RecordBatch, RecordBatchOptions};
use duckdb::arrow::datatypes::Schema;
use serde_json::value::RawValue;

use crate::failure::Failure;
use crate::row::{self, Builder};
use crate::schema::{self, Column, Mode, Type};

/// The rows of a file, in these columns.
pub(super) fn read(file: &Bytes, columns: &[Column]) -> Result<RecordBatch, Failure> {
    let mut text = Vec::new();
    let bytes = if file.starts_with(&[0x1f, 0x8b]) {
        let unzipped = flate2::read::MultiGzDecoder::new(&file[..]).read_to_end(&mut text);
        unzipped.map_err(|e| Failure::invalid(format!("Error while reading data, error message: {e}")))?;
        &text[..]
    } else {
        &file[..]
    };
    let mut builders: Vec<_> = columns.iter().map(Builder::new).collect();
    let mut rows = 0;
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let put = std::str::from_utf8(line)
            .map_err(|e| e.to_string())
            .and_then(|line| put_record(line, columns, &mut builders));
        put.map_err(|e| {
            Failure::invalid(format!(
                "Error while reading data, error message: JSON table encountered too many errors, giving up. Row: {}; error: {e}",
                number + 1
            ))
        })?;
        rows += 1;
    }
    let arrays = builders.into_iter().zip(columns).map(|(builder, column)| builder.finish(column));
    let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let schema = Arc::new(Schema::new(schema::fields(columns)));
    Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
}

fn put_record(text: &str, columns: &[Column], builders: &mut [Builder]) -> Result<(), String> {
    let members: HashMap<String, &RawValue> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    if let Some(name) = members.keys().find(|name| schema::find(columns, name).is_none()) {
        return Err(format!("No such field: {name}."));
    }
    for (column, builder) in columns.iter().zip(builders) {
        let folded =
            || members.iter().find(|(name, _)| name.eq_ignore_ascii_case(&column.name)).map(|(_, v)| v);
        let value = members.get(&column.name).or_else(folded).map_or("null", |value| value.get());
        put(value, column, builder).map_err(|e| format!("field {}: {e}", column.name))?;
    }
    Ok(())
}

fn put(text: &str, column: &Column, builder: &mut Builder) -> Result<(), String> {
    if let Builder::List { elements, lengths } = builder {
        let values: Vec<&RawValue> = match text {
            "null" => Vec::new(),
            _ => serde_json::from_str(text).map_err(|_| "the value is no array".to_owned())?,
        };
        lengths.push(values.len());
        let element = Column { mode: Mode::Required, ..column.clone() };
        return values.iter().try_for_each(|value| put(value.get(), &element, elements));
    }
    // The JSON value null is a value of its own, but a load takes it for none.
    if text == "null" {
        if column.mode == Mode::Required {
            return Err("only optional fields can be set to NULL".to_owned());
        }
        builder.push_null();
        return Ok(());
    }
    if let (Builder::Record { columns: builders, valid }, Type::Record(columns)) = (&mut *builder, &column.ty)
    {
        put_record(text, columns, builders)?;
        valid.push(true);
        return Ok(());
    }
    if let (Builder::Text(texts), Type::Json) = (&mut *builder, &column.ty) {
        texts.append_value(text);
        return Ok(());
    }
    // Numbers may come in quotes, and texts may not come without.
    let unquoted: Option<String> = serde_json::from_str(text).ok();
    let plain = unquoted.as_deref().unwrap_or(text);
    let wrong = || format!("could not convert the value to {}", column.ty.sql_name());
    match (builder, &column.ty) {
        (Builder::Bool(b), _) => b.append_value(plain.parse().map_err(|_| wrong())?),
        (Builder::Int64(b), _) => b.append_value(plain.parse().map_err(|_| wrong())?),
        (Builder::Float64(b), _) => b.append_value(plain.parse().map_err(|_| wrong())?),
        (Builder::Numeric(b), _) => b.append_value(row::decimal(plain)?),
        (Builder::Text(b), Type::Bignumeric) => b.append_value(row::canonical(plain)?),
        (Builder::Text(b), _) => b.append_value(unquoted.ok_or_else(wrong)?),
        (Builder::Bytes(b), _) => {
            b.append_value(base64::engine::general_purpose::STANDARD.decode(plain).map_err(|_| wrong())?);
        }
        (Builder::Date(b), _) => b.append_value(row::date(plain)? as i32),
        (Builder::Time(b), _) => b.append_value(row::time(plain)?),
        (Builder::Micros(b), Type::Datetime) => b.append_value(row::datetime(plain)?),
        (Builder::Micros(b), _) => b.append_value(row::timestamp(plain)?),
        (Builder::Record { .. } | Builder::List { .. }, _) => return Err(wrong()),
    }
    Ok(())
}
