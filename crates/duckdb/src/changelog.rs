//! The changelog layout: one row of `T_changelog` for each distinct event, with the row before and after as structs.

use std::sync::Arc;

use duckdb::Connection;
use duckdb::arrow::array::{
    ArrayRef, BooleanBuilder, Int64Builder, StringBuilder, TimestampMicrosecondBuilder,
};
use millstream_core::evolution::Rules;
use millstream_core::{Event, Field, Judged, Op, Result, Type};

use crate::batch::{Batches, CHUNK_ROWS, Place};
use crate::builder::ColumnBuilder;
use crate::catalog::{Mark, StoredTable};
use crate::column_type::{arrow_fields, arrow_type};
use crate::history::push_texts;
use crate::nested::{self, Nested};
use crate::rows::{self, Trouble};
use crate::shape::{Binding, Change, Shape};

const PENDING_ROWS_MAX: usize = 24 * CHUNK_ROWS;
const PENDING_BYTES_MAX: usize = 32 << 20;
const CHUNK_BYTES_MAX: usize = 8 << 20;

/// The column by which a changelog's rows are rolled back.
pub(crate) const MARK_COLUMN: &str = "_metadata_read_timestamp";

/// The struct type of a shape; JSON, of which only NULL is written, while the shape has no columns.
pub(crate) fn struct_of(shape: &Shape) -> Type {
    if shape.columns.is_empty() {
        return Type::Json;
    }
    let field = |c: &crate::shape::TargetColumn| Field { name: c.name.as_str().into(), ty: c.ty.clone() };
    Type::Struct(shape.columns.iter().map(field).collect())
}

/// All columns, in the table's physical order.
pub(crate) fn physical_columns(row: &Shape, source: &Shape, transaction: &Shape) -> Vec<Field> {
    let field = |name: &str, ty| Field { name: name.into(), ty };
    vec![
        field("_metadata_timestamp", Type::Timestamp),
        field(MARK_COLUMN, Type::Timestamp),
        field("_metadata_source", Type::Text),
        field("_metadata_deleted", Type::Bool),
        field("before", struct_of(row)),
        field("after", struct_of(row)),
        field("source", struct_of(source)),
        field("op", Type::Text),
        field("ts_ms", Type::Int64),
        field("transaction", struct_of(transaction)),
        field("_metadata_order", Type::Text),
        field("_metadata_unchanged", Type::List(Box::new(Type::Text))),
    ]
}

/// Which object of a changelog's rows changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectColumn {
    Source,
    Transaction,
}

/// Why an event was not taken.
pub(crate) enum Obstacle {
    /// Its row has no place.
    Row(Trouble),
    /// An object needs these changes, which its shape already holds; the table must follow.
    Object(ObjectColumn, Vec<Change>),
}

/// The rows of one `T_changelog` that are being built.
pub(crate) struct Changelog {
    pub(crate) source: Nested,
    pub(crate) transaction: Nested,
    source_table: String,
    columns: Columns,
    rows: usize,
    bytes: usize,
    batches: Batches,
}

struct Columns {
    timestamp: TimestampMicrosecondBuilder,
    read_timestamp: TimestampMicrosecondBuilder,
    source_table: StringBuilder,
    deleted: BooleanBuilder,
    before: ColumnBuilder,
    after: ColumnBuilder,
    source: ColumnBuilder,
    op: StringBuilder,
    ts_ms: Int64Builder,
    transaction: ColumnBuilder,
    order: StringBuilder,
    unchanged: ColumnBuilder,
}

impl Changelog {
    pub(crate) fn new(table: &StoredTable, source: Shape, transaction: Shape) -> Self {
        let fields = physical_columns(&table.shape, &source, &transaction);
        let instants =
            || TimestampMicrosecondBuilder::with_capacity(0).with_data_type(arrow_type(&Type::Timestamp));
        let columns = Columns {
            timestamp: instants(),
            read_timestamp: instants(),
            source_table: StringBuilder::with_capacity(0, 0),
            deleted: BooleanBuilder::with_capacity(0),
            before: ColumnBuilder::new(&struct_of(&table.shape)),
            after: ColumnBuilder::new(&struct_of(&table.shape)),
            source: ColumnBuilder::new(&struct_of(&source)),
            op: StringBuilder::with_capacity(0, 0),
            ts_ms: Int64Builder::with_capacity(0),
            transaction: ColumnBuilder::new(&struct_of(&transaction)),
            order: StringBuilder::with_capacity(0, 0),
            unchanged: ColumnBuilder::new(&Type::List(Box::new(Type::Text))),
        };
        Self {
            source_table: table.source.qualified(),
            source: Nested::new(source),
            transaction: Nested::new(transaction),
            columns,
            rows: 0,
            bytes: 0,
            batches: Batches::new(arrow_fields(fields.iter().map(|f| (&*f.name, &f.ty)))),
        }
    }

    /// Takes an event. Nothing of it is kept if it can't be written.
    pub(crate) fn push(
        &mut self,
        table: &StoredTable,
        binding: &Binding,
        judged: &Judged,
        mark: Mark,
        rules: Rules,
    ) -> Result<Result<(), Obstacle>> {
        let event = &judged.event;
        let (before, after) = images(event);
        for row in [before, after].into_iter().flatten() {
            if let Err(trouble) = rows::check(&table.shape, binding, row) {
                return Ok(Err(Obstacle::Row(trouble)));
            }
        }
        let source = nested::source_object(event);
        let changes = self.source.fit(&source, rules)?;
        if !changes.is_empty() {
            return Ok(Err(Obstacle::Object(ObjectColumn::Source, changes)));
        }
        let transaction = nested::transaction_object(event);
        if let Some(object) = &transaction {
            let changes = self.transaction.fit(object, rules)?;
            if !changes.is_empty() {
                return Ok(Err(Obstacle::Object(ObjectColumn::Transaction, changes)));
            }
        }
        let push = |builder: &mut ColumnBuilder, row: Option<&millstream_core::Row>| match (builder, row) {
            (ColumnBuilder::Struct(columns), Some(row)) => {
                rows::push_row(columns.fields_mut(), &table.shape, binding, &[], row);
            }
            (builder, _) => builder.push_null(),
        };
        push(&mut self.columns.before, before);
        push(&mut self.columns.after, after);
        self.source.push(&mut self.columns.source, Some(&source));
        self.transaction.push(&mut self.columns.transaction, transaction.as_ref());
        self.columns.push(event, &self.source_table, mark);
        match after.filter(|row| row.has_unchanged()) {
            Some(row) => push_texts(&mut self.columns.unchanged, rows::unchanged(&table.shape, binding, row)),
            None => self.columns.unchanged.push_null(),
        }
        self.rows += 1;
        self.bytes += before.map_or(0, |r| r.heap_len()) + after.map_or(0, |r| r.heap_len()) + 512;
        Ok(Ok(()))
    }

    /// Bytes of rows that wait in memory.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes + self.batches.bytes()
    }

    pub(crate) fn chunk_is_full(&self) -> bool {
        self.rows >= CHUNK_ROWS || self.bytes >= CHUNK_BYTES_MAX
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
        let columns = self.columns.finish();
        self.batches.push(columns)
    }
}

/// The row before and after: a delete's row is its image before.
fn images(event: &Event) -> (Option<&millstream_core::Row>, Option<&millstream_core::Row>) {
    match event.op {
        Op::Truncate => (None, None),
        Op::Delete => {
            (Some(event.before.as_deref().filter(|_| event.full_before).unwrap_or(&event.row)), None)
        }
        Op::Read | Op::Create | Op::Update => (event.before.as_deref(), Some(&event.row)),
    }
}

impl Columns {
    fn push(&mut self, event: &Event, source_table: &str, mark: Mark) {
        let us = event.facts.ts_us.or_else(|| event.facts.ts_ms.and_then(|ms| ms.checked_mul(1000)));
        self.timestamp.append_option(us);
        self.read_timestamp.append_value(mark.ingested_at_us);
        self.source_table.append_value(source_table);
        self.deleted.append_value(event.op == Op::Delete);
        self.op.append_value(event.op.code());
        self.ts_ms.append_option(event.facts.processed_ts_ms.or(event.facts.ts_ms));
        let mut order = String::with_capacity(67);
        event.order.write_hex(&mut order);
        self.order.append_value(&order);
    }

    fn finish(&mut self) -> Vec<ArrayRef> {
        vec![
            Arc::new(self.timestamp.finish()),
            Arc::new(self.read_timestamp.finish()),
            Arc::new(self.source_table.finish()),
            Arc::new(self.deleted.finish()),
            self.before.finish(),
            self.after.finish(),
            self.source.finish(),
            Arc::new(self.op.finish()),
            Arc::new(self.ts_ms.finish()),
            self.transaction.finish(),
            Arc::new(self.order.finish()),
            self.unchanged.finish(),
        ]
    }
}
