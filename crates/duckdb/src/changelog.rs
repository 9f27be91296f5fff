//! The changelog layout: one row of `T_changelog` for each distinct event, with the row before and after as structs.

use millstream_core::evolution::Rules;
use millstream_core::{Judged, Op, Result};
use millstream_layout::changelog::{self, ObjectColumn};
use millstream_layout::object::{self, Nested};
use millstream_layout::rows::Trouble;
use millstream_layout::shape::{Binding, Change, Shape};
use millstream_layout::table::StoredTable;

use crate::batch::{Batches, Place};
use crate::catalog::Mark;
use crate::column_data::ColumnData;
use crate::dialect::Duck;
use crate::nested;
use crate::rows;
use crate::session::Session;

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
        let fields = changelog::physical_columns(&table.shape, &source, &transaction);
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
        let (before, after) = changelog::images(&judged.event);
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
        let images = changelog::images(event);
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
        let object = object::source_object(event);
        let changes = self.source.fit(&object, &Duck, rules)?;
        if !changes.is_empty() {
            return Ok(Err(Obstacle::Object(ObjectColumn::Source, changes)));
        }
        nested::push(&self.source, source, Some(&object));
        let object = object::transaction_object(event);
        if let Some(object) = &object {
            let changes = self.transaction.fit(object, &Duck, rules)?;
            if !changes.is_empty() {
                return Ok(Err(Obstacle::Object(ObjectColumn::Transaction, changes)));
            }
        }
        nested::push(&self.transaction, transaction, object.as_ref());
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
            Some(row) => unchanged.push_texts(millstream_layout::rows::unchanged(&table.shape, binding, row)),
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
