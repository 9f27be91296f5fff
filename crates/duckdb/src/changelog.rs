//! The changelog layout: one row of `T_changelog` for each distinct event, with the row before and after as structs.

use millstream_core::evolution::Rules;
use millstream_core::{Event, Field, Judged, Op, Result, Type};

use crate::batch::{Batches, Place};
use crate::catalog::{Mark, StoredTable};
use crate::column_data::ColumnData;
use crate::nested::{self, Nested};
use crate::rows::{self, Trouble};
use crate::session::Session;
use crate::shape::{Binding, Change, Shape};

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
    order_text: String,
    batches: Batches,
}

/// The columns of [`physical_columns`].
type Columns = [ColumnData; 12];

impl Changelog {
    pub(crate) fn new(table: &StoredTable, source: Shape, transaction: Shape) -> Self {
        let fields = physical_columns(&table.shape, &source, &transaction);
        Self {
            source_table: table.source.qualified(),
            source: Nested::new(source),
            transaction: Nested::new(transaction),
            columns: std::array::from_fn(|i| ColumnData::new(&fields[i].ty)),
            order_text: String::new(),
            batches: Batches::new(fields),
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
        let pushed = self.push_whole(table, binding, judged, mark, rules);
        if !matches!(pushed, Ok(Ok(()))) {
            self.columns.iter_mut().for_each(|column| column.truncate(self.batches.rows()));
            return pushed;
        }
        let (before, after) = images(&judged.event);
        self.batches.count(before.map_or(0, |r| r.heap_len()) + after.map_or(0, |r| r.heap_len()) + 512);
        pushed
    }

    /// The same, but may leave a part of it behind.
    fn push_whole(
        &mut self,
        table: &StoredTable,
        binding: &Binding,
        judged: &Judged,
        mark: Mark,
        rules: Rules,
    ) -> Result<Result<(), Obstacle>> {
        let event = &judged.event;
        let [
            timestamp,
            read_timestamp,
            source_table,
            deleted,
            before,
            after,
            source,
            op,
            ts_ms,
            transaction,
            order,
            unchanged,
        ] = &mut self.columns;
        let images = images(event);
        for (column, row) in [(before, images.0), (after, images.1)] {
            let fields = row.and_then(|row| Some((column.begin_struct()?, row)));
            let Some((fields, row)) = fields else {
                column.push_null();
                continue;
            };
            if let Err(trouble) = rows::push_row(fields, &table.shape, binding, &[], row) {
                return Ok(Err(Obstacle::Row(trouble)));
            }
        }
        let object = nested::source_object(event);
        let changes = self.source.fit(&object, rules)?;
        if !changes.is_empty() {
            return Ok(Err(Obstacle::Object(ObjectColumn::Source, changes)));
        }
        self.source.push(source, Some(&object));
        let object = nested::transaction_object(event);
        if let Some(object) = &object {
            let changes = self.transaction.fit(object, rules)?;
            if !changes.is_empty() {
                return Ok(Err(Obstacle::Object(ObjectColumn::Transaction, changes)));
            }
        }
        self.transaction.push(transaction, object.as_ref());
        let us = event.facts.ts_us.or_else(|| event.facts.ts_ms.and_then(|ms| ms.checked_mul(1000)));
        timestamp.push_int_option(us);
        read_timestamp.push_int(mark.ingested_at_us);
        source_table.push_bytes(self.source_table.as_bytes());
        deleted.push_bool(event.op == Op::Delete);
        op.push_bytes(event.op.code().as_bytes());
        ts_ms.push_int_option(event.facts.processed_ts_ms.or(event.facts.ts_ms));
        self.order_text.clear();
        event.order.write_hex(&mut self.order_text);
        order.push_bytes(self.order_text.as_bytes());
        match images.1.filter(|row| row.has_unchanged()) {
            Some(row) => unchanged.push_texts(rows::unchanged(&table.shape, binding, row)),
            None => unchanged.push_null(),
        }
        Ok(Ok(()))
    }

    /// Its rows, behind those being built.
    pub(crate) fn batches(&self) -> &Batches {
        &self.batches
    }

    /// Ends a chunk, and begins to insert all chunks if enough have come together.
    pub(crate) fn end_chunk(&mut self, session: &Session, place: Place<'_>) -> Result<()> {
        self.batches.end_chunk(self.columns.iter_mut(), session, place)
    }

    /// Inserts everything.
    pub(crate) fn flush(&mut self, session: &Session, place: Place<'_>) -> Result<()> {
        self.batches.flush(self.columns.iter_mut(), session, place)
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
