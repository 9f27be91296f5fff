//! Accepted rows into the database, in large portions.

use std::sync::Arc;

use duckdb::Connection;
use duckdb::arrow::array::{
    Array, ArrayRef, AsArray, ListArray, RecordBatch, RecordBatchOptions, StructArray, new_null_array,
};
use duckdb::arrow::compute::cast;
use duckdb::arrow::datatypes::{DataType, Field, Schema as ArrowSchema};
use duckdb::arrow::error::ArrowError;

use crate::engine::{self, Engine};
use crate::failure::Failure;
use crate::schema::{self, Column, Mode, Schema};
use crate::table::{Pending, Table};
use crate::upsert;

/// Puts what a table has accepted into the database. Changes that came after `changes_until` (microseconds) stay.
pub(crate) fn land(
    engine: &Engine,
    connection: &Connection,
    table: &Table,
    changes_until: i64,
    now: i64,
) -> Result<(), Failure> {
    let (taken, schema, keys) = {
        let mut state = table.lock();
        if state.pending.is_empty() {
            return Ok(());
        }
        let waits = |p: &Pending| matches!(p, Pending::Changes(at, _) if *at > changes_until);
        let (stay, taken): (Vec<_>, Vec<_>) = state.pending.drain(..).partition(waits);
        state.pending_bytes = 0;
        for pending in stay {
            state.push(pending);
        }
        if state.dropped {
            return Ok(());
        }
        (taken, state.schema.clone(), state.key_names())
    };
    if taken.is_empty() {
        return Ok(());
    }
    let run = || run(connection, table, &schema, &keys, &taken, now);
    let plain = taken.len() == 1 && matches!(taken[0], Pending::Rows(_));
    let landed = if plain && !engine.durable { run() } else { engine::atomically(connection, run) };
    if landed.is_err() {
        let mut state = table.lock();
        let later = std::mem::take(&mut state.pending);
        for pending in taken.into_iter().chain(later) {
            state.push(pending);
        }
    }
    landed
}

fn run(
    connection: &Connection,
    table: &Table,
    schema: &Schema,
    keys: &[String],
    taken: &[Pending],
    now: i64,
) -> Result<(), Failure> {
    let mut rest = taken;
    while let Some(first) = rest.first() {
        let same =
            rest.iter().take_while(|p| std::mem::discriminant(*p) == std::mem::discriminant(first)).count();
        let (portion, later) = rest.split_at(same);
        rest = later;
        match first {
            Pending::Rows(_) => {
                let batches = portion.iter().filter_map(|p| match p {
                    Pending::Rows(batch) => Some(align_batch(batch, schema)),
                    _ => None,
                });
                let batches = batches.collect::<Result<Vec<_>, _>>()?;
                engine::append(connection, &table.id.schema(), &table.id.name(), batches)?;
            }
            Pending::Changes(..) => {
                let changes = portion.iter().filter_map(|p| match p {
                    Pending::Changes(_, changes) => Some(changes),
                    _ => None,
                });
                upsert::apply(connection, &table.id, schema, keys, changes, now)?;
            }
            Pending::Mark(_) => {
                for pending in portion {
                    if let Pending::Mark(mark) = pending {
                        connection.execute(mark.sql, duckdb::params_from_iter(mark.parameters.iter()))?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// A batch of an earlier schema as one of this schema: columns that it lacks are NULL, others may have grown wider.
pub(crate) fn align_batch(batch: &RecordBatch, columns: &[Column]) -> Result<RecordBatch, ArrowError> {
    let fields = schema::fields(columns);
    if *batch.schema_ref().fields() == fields {
        return Ok(batch.clone());
    }
    let given = batch.schema();
    let arrays = columns.iter().map(|column| {
        let found = given.fields().iter().position(|f| f.name().eq_ignore_ascii_case(&column.name));
        align(found.map(|index| batch.column(index)), column, batch.num_rows())
    });
    let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(ArrowSchema::new(fields)), arrays, &options)
}

fn align(array: Option<&ArrayRef>, column: &Column, rows: usize) -> Result<ArrayRef, ArrowError> {
    let wanted = column.arrow();
    let Some(array) = array else { return Ok(new_null_array(&wanted, rows)) };
    if *array.data_type() == wanted {
        return Ok(array.clone());
    }
    match (array.data_type(), column.columns()) {
        (DataType::List(_), Some(_)) => {
            let list = array.as_list::<i32>();
            let element = Column { mode: Mode::Nullable, ..column.clone() };
            let values = align(Some(list.values()), &element, list.values().len())?;
            let field = Arc::new(Field::new("item", values.data_type().clone(), true));
            Ok(Arc::new(ListArray::try_new(field, list.offsets().clone(), values, list.nulls().cloned())?))
        }
        (DataType::Struct(given), Some(columns)) => {
            let record = array.as_struct();
            let arrays = columns.iter().map(|column| {
                let found = given.iter().position(|f| f.name().eq_ignore_ascii_case(&column.name));
                align(found.map(|index| record.column(index)), column, record.len())
            });
            let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
            let nulls = record.nulls().cloned();
            Ok(Arc::new(StructArray::try_new_with_length(
                schema::fields(columns),
                arrays,
                nulls,
                record.len(),
            )?))
        }
        _ => cast(array, &wanted),
    }
}
