//! The append layout: one row of `T_raw` for each distinct event.

use duckdb::Connection;
use duckdb::arrow::array::{ArrayRef, Int64Builder, StringBuilder, TimestampMicrosecondBuilder};
use duckdb::arrow::datatypes::Fields;
use millstream_core::{Event, Field, Op, Result, Type, Value};
use std::sync::Arc;

use crate::batch::{Batches, CHUNK_ROWS, Place};
use crate::builder::ColumnBuilder;
use crate::catalog::{Mark, StoredTable};
use crate::column_type::{arrow_fields, arrow_type};
use crate::keyed::Keyed;
use crate::rows::{self, Trouble};
use crate::shape::Binding;

/// Rows and bytes that wait in memory before they are appended.
const PENDING_ROWS_MAX: usize = 24 * CHUNK_ROWS;
const PENDING_BYTES_MAX: usize = 32 << 20;
/// A chunk ends early at this many bytes, so that large rows don't add up.
const CHUNK_BYTES_MAX: usize = 8 << 20;

/// The columns that Millstream adds to a `T_raw`, in order.
pub(crate) fn own_columns() -> Vec<Field> {
    let field = |name: &str, ty| Field { name: name.into(), ty };
    vec![
        field("__op", Type::Text),
        field("__source_ts_ms", Type::Int64),
        field("__ingested_at", Type::Timestamp),
        field("__source_table", Type::Text),
        field("__transaction_id", Type::Text),
        field("__lsn", Type::Int64),
        field("__order", Type::Text),
        field("__unchanged", Type::List(Box::new(Type::Text))),
        field("__old_key", Type::Text),
        field("__key_columns", Type::Text),
    ]
}

/// The column by which a history's rows are rolled back.
pub(crate) const MARK_COLUMN: &str = "__ingested_at";

/// All columns in the table's physical order.
pub(crate) fn physical_columns(table: &StoredTable) -> Vec<Field> {
    let column = |c: &crate::shape::TargetColumn| Field { name: c.name.as_str().into(), ty: c.ty.clone() };
    let (initial, later) = table.shape.columns.split_at(table.initial);
    initial.iter().map(column).chain(own_columns()).chain(later.iter().map(column)).collect()
}

/// The rows of one `T_raw` that are being built.
pub(crate) struct History {
    source_table: String,
    columns: Vec<ColumnBuilder>,
    own: OwnColumns,
    rows: usize,
    bytes: usize,
    batches: Batches,
    initial: usize,
}

struct OwnColumns {
    op: StringBuilder,
    source_ts_ms: Int64Builder,
    ingested_at: TimestampMicrosecondBuilder,
    source_table: StringBuilder,
    transaction_id: StringBuilder,
    lsn: Int64Builder,
    order: StringBuilder,
    unchanged: ColumnBuilder,
    old_key: StringBuilder,
    key_columns: StringBuilder,
    order_text: String,
}

impl History {
    pub(crate) fn new(table: &StoredTable) -> Self {
        let fields: Fields = {
            let columns = physical_columns(table);
            arrow_fields(columns.iter().map(|f| (&*f.name, &f.ty)))
        };
        Self {
            source_table: table.source.qualified(),
            columns: table.shape.columns.iter().map(|c| ColumnBuilder::new(&c.ty)).collect(),
            own: OwnColumns::new(),
            rows: 0,
            bytes: 0,
            batches: Batches::new(fields),
            initial: table.initial,
        }
    }

    /// Takes an event that came under the key `keyed`. Nothing of it is kept if it can't be written.
    pub(crate) fn push(
        &mut self,
        table: &StoredTable,
        keyed: &Keyed,
        binding: &Binding,
        event: &Event,
        mark: Mark,
    ) -> Result<(), Trouble> {
        rows::check(&table.shape, binding, &event.row)?;
        if event.op == Op::Truncate {
            self.columns.iter_mut().for_each(ColumnBuilder::push_null);
        } else {
            rows::push_row(&mut self.columns, &table.shape, binding, &keyed.columns, &event.row);
        }
        let unchanged = event.row.has_unchanged();
        let names = || rows::unchanged(&table.shape, binding, &event.row);
        if unchanged && names().next().is_some() {
            self.own.push_unchanged(names());
        } else {
            self.own.unchanged.push_null();
        }
        self.own.push(event, &self.source_table, keyed.told.as_deref(), mark);
        self.rows += 1;
        self.bytes += event.row.heap_len() + 16 * self.columns.len() + 128;
        Ok(())
    }

    /// Whether a chunk is full.
    pub(crate) fn chunk_is_full(&self) -> bool {
        self.rows >= CHUNK_ROWS || self.bytes >= CHUNK_BYTES_MAX
    }

    /// Bytes of rows that wait in memory.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes + self.batches.bytes()
    }

    /// Ends a chunk, and appends all chunks if enough have come together.
    pub(crate) fn end_chunk(&mut self, connection: &Connection, place: Place<'_>) -> Result<()> {
        self.finish_chunk()?;
        if self.batches.rows() >= PENDING_ROWS_MAX || self.batches.bytes() >= PENDING_BYTES_MAX {
            self.batches.append(connection, place)?;
        }
        Ok(())
    }

    /// Appends everything.
    pub(crate) fn flush(&mut self, connection: &Connection, place: Place<'_>) -> Result<()> {
        self.finish_chunk()?;
        self.batches.append(connection, place)
    }

    fn finish_chunk(&mut self) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        self.rows = 0;
        self.bytes = 0;
        let mut columns: Vec<ArrayRef> = self.columns.iter_mut().map(ColumnBuilder::finish).collect();
        let later = columns.split_off(self.initial);
        columns.extend(self.own.finish());
        columns.extend(later);
        self.batches.push(columns)
    }
}

impl OwnColumns {
    fn new() -> Self {
        Self {
            op: StringBuilder::with_capacity(0, 0),
            source_ts_ms: Int64Builder::with_capacity(0),
            ingested_at: TimestampMicrosecondBuilder::with_capacity(0)
                .with_data_type(arrow_type(&Type::Timestamp)),
            source_table: StringBuilder::with_capacity(0, 0),
            transaction_id: StringBuilder::with_capacity(0, 0),
            lsn: Int64Builder::with_capacity(0),
            order: StringBuilder::with_capacity(0, 0),
            unchanged: ColumnBuilder::new(&Type::List(Box::new(Type::Text))),
            old_key: StringBuilder::with_capacity(0, 0),
            key_columns: StringBuilder::with_capacity(0, 0),
            order_text: String::new(),
        }
    }

    fn push(&mut self, event: &Event, source_table: &str, key_columns: Option<&str>, mark: Mark) {
        self.op.append_value(event.op.code());
        self.source_ts_ms.append_option(event.facts.ts_ms);
        self.ingested_at.append_value(mark.ingested_at_us);
        self.source_table.append_value(source_table);
        self.transaction_id.append_option(event.facts.transaction_id.as_deref());
        self.lsn.append_option(event.facts.lsn);
        self.order_text.clear();
        event.order.write_hex(&mut self.order_text);
        self.order.append_value(&self.order_text);
        self.old_key.append_option(event.old_key.as_ref().and_then(rows::key_text));
        self.key_columns.append_option(key_columns);
    }

    fn push_unchanged<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        push_texts(&mut self.unchanged, names);
    }

    fn finish(&mut self) -> [ArrayRef; 10] {
        [
            Arc::new(self.op.finish()),
            Arc::new(self.source_ts_ms.finish()),
            Arc::new(self.ingested_at.finish()),
            Arc::new(self.source_table.finish()),
            Arc::new(self.transaction_id.finish()),
            Arc::new(self.lsn.finish()),
            Arc::new(self.order.finish()),
            self.unchanged.finish(),
            Arc::new(self.old_key.finish()),
            Arc::new(self.key_columns.finish()),
        ]
    }
}

/// Pushes a list of texts.
pub(crate) fn push_texts<'a>(builder: &mut ColumnBuilder, texts: impl Iterator<Item = &'a str>) {
    let mut row = millstream_core::RowBuilder::new();
    texts.for_each(|text| row.push(Value::Text(text)));
    let ty = Type::List(Box::new(Type::Text));
    builder.push(Value::List(&row.finish()), &ty, &ty);
}
