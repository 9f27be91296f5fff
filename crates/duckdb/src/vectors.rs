//! Columns into DuckDB's vectors: with its one call in [`crate::handover`], the only unsafe code on the way of data.
//!
//! The safe bindings convert Arrow arrays value by value, check each text for UTF-8 anew and copy it, and their appender
//! copies all of it once more. Here numbers are written straight into the vectors, and long texts are not copied at all: a
//! vector's entries point into the columns. So the columns must outlive the query that reads the chunk;
//! [`crate::handover`] keeps them in the query's plan. DuckDB reads Arrow tables in the same way, and copies what it keeps.
//!
//! What has to hold, and why it does:
//! - A vector has the physical type of its column. Both are made from one [`millstream_core::Type`]: the vector by
//!   [`crate::column_type::logical_type`], the column by [`ColumnData::new`].
//! - A vector has room for [`CHUNK_ROWS`] rows, which [`fill`] checks; a list's elements are given room first.
//! - Pointers are valid while a vector is written: DuckDB hands out the chunk for the time of one call.
#![allow(unsafe_code)]

use std::ptr::{copy_nonoverlapping, write_bytes};

use duckdb::core::DataChunkHandle;
use duckdb::ffi;

use crate::batch::CHUNK_ROWS;
use crate::column_data::{ColumnData, Text, Texts, Values};

// A text's entry holds a pointer in its last eight bytes.
const _: () = assert!(size_of::<ffi::duckdb_string_t>() == 16 && size_of::<*const u8>() == 8);

/// Rows of a column that go into a vector.
#[derive(Clone, Copy)]
enum Rows<'a> {
    First(usize),
    These(&'a [u32]),
}

/// Writes the rows `kept` of the columns, or all `rows` of them, into a chunk of as many vectors of the same types.
///
/// # Safety
/// The chunk's types are [`crate::column_type::logical_type`] of those that the columns were made for. The columns live, unchanged, as
/// long as anything reads the chunk.
pub(crate) unsafe fn fill(
    output: &DataChunkHandle,
    columns: &[ColumnData],
    rows: usize,
    kept: Option<&[u32]>,
) {
    let room =
        output.num_columns() == columns.len() && unsafe { ffi::duckdb_vector_size() } >= CHUNK_ROWS as u64;
    assert!(room && rows <= CHUNK_ROWS, "invariant: a chunk has room for its rows");
    assert!(kept.is_none_or(|kept| kept.len() <= rows && kept.iter().all(|&row| (row as usize) < rows)));
    let what = kept.map_or(Rows::First(rows), Rows::These);
    for (i, column) in columns.iter().enumerate() {
        assert!(column.rows() == rows, "invariant: a chunk's columns are of one length");
        // SAFETY: `i` is below the number of columns.
        unsafe { write(ffi::duckdb_data_chunk_get_vector(output.get_ptr(), i as u64), column, what) };
    }
    output.set_len(what.len());
}

impl Rows<'_> {
    fn len(&self) -> usize {
        match self {
            Self::First(rows) => *rows,
            Self::These(rows) => rows.len(),
        }
    }
}

/// # Safety
/// `vector` is of the column's physical type and has room for the rows.
unsafe fn write(vector: ffi::duckdb_vector, column: &ColumnData, rows: Rows<'_>) {
    // SAFETY: what the caller says of the vector holds for its parts, too; the children of a struct have room for as many
    // rows, and those of a list for as many as were reserved.
    unsafe {
        write_nulls(vector, column, rows);
        match column.values() {
            Values::Bool(v) => write_fixed(vector, v, rows, |v| *v),
            Values::Int16(v) => write_fixed(vector, v, rows, |v| *v),
            Values::Int32(v) => write_fixed(vector, v, rows, |v| *v),
            Values::Int64(v) => write_fixed(vector, v, rows, |v| *v),
            Values::Int128(v) => write_fixed(vector, v, rows, |v| *v),
            Values::Float64(v) => write_fixed(vector, v, rows, |v| *v),
            Values::Text(texts) => write_fixed(vector, texts.entries(), rows, |text| entry(texts, text)),
            Values::List(lists) => {
                write_fixed(vector, &lists.entries, rows, |&(offset, length)| ffi::duckdb_list_entry {
                    offset,
                    length,
                });
                let elements = &lists.elements;
                let count = elements.rows() as u64;
                let reserved = ffi::duckdb_list_vector_reserve(vector, count) == ffi::DuckDBSuccess;
                let sized = reserved && ffi::duckdb_list_vector_set_size(vector, count) == ffi::DuckDBSuccess;
                assert!(sized, "DuckDB has no room for a list's elements");
                write(ffi::duckdb_list_vector_get_child(vector), elements, Rows::First(elements.rows()));
            }
            Values::Struct(structs) => {
                for (i, field) in structs.columns.iter().enumerate() {
                    write(ffi::duckdb_struct_vector_get_child(vector, i as u64), field, rows);
                }
            }
        }
    }
}

/// Writes a value of fixed size for each row, zeros where the values end early.
///
/// # Safety
/// `vector` holds values of type `U` and has room for the rows.
#[inline]
unsafe fn write_fixed<T, U: Copy>(
    vector: ffi::duckdb_vector,
    values: &[T],
    rows: Rows<'_>,
    value: impl Fn(&T) -> U,
) {
    // SAFETY: all writes stay below the number of rows. They are unaligned as nothing is known of DuckDB's allocations.
    // Zeros are a value of each type that vectors have.
    unsafe {
        let out = ffi::duckdb_vector_get_data(vector).cast::<U>();
        match rows {
            Rows::First(rows) => {
                let values = &values[..values.len().min(rows)];
                for (i, v) in values.iter().enumerate() {
                    out.add(i).write_unaligned(value(v));
                }
                write_bytes(out.add(values.len()).cast::<u8>(), 0, size_of::<U>() * (rows - values.len()));
            }
            Rows::These(rows) => {
                for (i, &row) in rows.iter().enumerate() {
                    match values.get(row as usize) {
                        Some(v) => out.add(i).write_unaligned(value(v)),
                        None => write_bytes(out.add(i).cast::<u8>(), 0, size_of::<U>()),
                    }
                }
            }
        }
    }
}

/// A text as DuckDB has it: short ones whole, long ones as their first bytes and where they are.
fn entry(texts: &Texts, text: &Text) -> ffi::duckdb_string_t {
    let byte = |i: usize| text.head[i].cast_signed();
    let value = if text.len as usize <= Text::INLINE_MAX {
        let inlined = std::array::from_fn(byte);
        ffi::duckdb_string_t__bindgen_ty_1 {
            inlined: ffi::duckdb_string_t__bindgen_ty_1__bindgen_ty_2 { length: text.len, inlined },
        }
    } else {
        let (prefix, ptr) = (std::array::from_fn(byte), texts.long(*text).as_ptr().cast_mut().cast());
        ffi::duckdb_string_t__bindgen_ty_1 {
            pointer: ffi::duckdb_string_t__bindgen_ty_1__bindgen_ty_1 { length: text.len, prefix, ptr },
        }
    };
    ffi::duckdb_string_t { value }
}

/// # Safety
/// `vector` has room for the rows.
unsafe fn write_nulls(vector: ffi::duckdb_vector, column: &ColumnData, rows: Rows<'_>) {
    let nulls = column.nulls();
    if nulls.is_empty() {
        return;
    }
    // SAFETY: a mask has a bit, in words of 64, for each row that the vector has room for.
    unsafe {
        ffi::duckdb_vector_ensure_validity_writable(vector);
        let mask = ffi::duckdb_vector_get_validity(vector);
        match rows {
            // A mask begins as all ones.
            Rows::First(_) => {
                let valid: Vec<u64> = nulls.iter().map(|word| !word).collect();
                copy_nonoverlapping(valid.as_ptr(), mask, valid.len());
            }
            Rows::These(rows) => {
                for (i, &row) in rows.iter().enumerate() {
                    let word = nulls.get(row as usize / 64).copied().unwrap_or(0);
                    if word >> (row % 64) & 1 == 1 {
                        *mask.add(i / 64) &= !(1 << (i % 64));
                    }
                }
            }
        }
    }
}
