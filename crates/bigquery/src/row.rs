//! One event as an encoded row of a layout.

use millstream_core::{Event, Judged, Op};
use millstream_layout::{Binding, Keyed, StoredTable, Trouble, changelog, object, rows, staging, write_row};

use crate::cells::{Cells, Column};
use crate::config::DeleteMode;
use crate::encode::{Change, RowEncoder};
use crate::form::{Form, Objects};

/// What a row is written with.
pub(crate) struct Place<'a> {
    pub(crate) table: &'a StoredTable,
    pub(crate) form: &'a Form,
    pub(crate) binding: &'a Binding,
    /// The key that the event came under.
    pub(crate) keyed: &'a Keyed,
    /// `schema.table`.
    pub(crate) source_table: &'a str,
    pub(crate) ingested_at_us: i64,
}

impl Place<'_> {
    /// A row of `T_raw`.
    pub(crate) fn history(
        &self,
        row: &mut RowEncoder<'_>,
        event: &Event,
        order: &mut String,
    ) -> Result<(), Trouble> {
        if event.op != Op::Truncate {
            let mut cells = Cells { columns: &self.form.columns, row };
            write_row(&mut cells, &self.table.shape, self.binding, &self.keyed.columns, &event.row)?;
        }
        let own = Own(&self.form.own);
        own.text(row, 0, Some(event.op.code()));
        own.int(row, 1, event.facts.ts_ms);
        own.instant(row, 2, Some(self.ingested_at_us));
        own.text(row, 3, Some(self.source_table));
        own.text(row, 4, event.facts.transaction_id.as_deref());
        own.int(row, 5, event.facts.lsn);
        own.text(row, 6, Some(order_text(event, order)));
        if event.row.has_unchanged() {
            for name in rows::unchanged(&self.table.shape, self.binding, &event.row) {
                own.text(row, 7, Some(name));
            }
        }
        own.text(row, 8, event.old_key.as_ref().and_then(rows::key_text).as_deref());
        own.text(row, 9, self.keyed.told.as_deref());
        Ok(())
    }

    /// A plain row.
    pub(crate) fn plain(&self, row: &mut RowEncoder<'_>, event: &Event) -> Result<(), Trouble> {
        let mut cells = Cells { columns: &self.form.columns, row };
        write_row(&mut cells, &self.table.shape, self.binding, &[], &event.row)
    }

    /// A row of `T_changelog`; its objects fit their structs.
    pub(crate) fn changelog(
        &self,
        row: &mut RowEncoder<'_>,
        event: &Event,
        objects: &Objects,
        order: &mut String,
    ) -> Result<(), Trouble> {
        let own = Own(&self.form.own);
        let (before, after) = changelog::images(event);
        let us = event.facts.ts_us.or_else(|| event.facts.ts_ms.and_then(|ms| ms.checked_mul(1000)));
        own.instant(row, 0, us);
        own.instant(row, 1, Some(self.ingested_at_us));
        own.text(row, 2, Some(self.source_table));
        row.put_bool(own.number(3), event.op == Op::Delete);
        for (at, image) in [(4, before), (5, after)] {
            let Some(image) = image.filter(|_| !self.form.columns.is_empty()) else { continue };
            let mark = row.begin_message(own.number(at));
            let mut cells = Cells { columns: &self.form.columns, row };
            write_row(&mut cells, &self.table.shape, self.binding, &[], image)?;
            row.end_message(mark);
        }
        let source = object::source_object(event);
        own.object(row, 6, &objects.source, &self.form.objects[0], Some(&source));
        own.text(row, 7, Some(event.op.code()));
        own.int(row, 8, event.facts.processed_ts_ms.or(event.facts.ts_ms));
        let transaction = object::transaction_object(event);
        own.object(row, 9, &objects.transaction, &self.form.objects[1], transaction.as_ref());
        own.text(row, 10, Some(order_text(event, order)));
        if let Some(image) = after.filter(|image| image.has_unchanged()) {
            for name in rows::unchanged(&self.table.shape, self.binding, image) {
                own.text(row, 11, Some(name));
            }
        }
        Ok(())
    }

    /// A change of the row of a key in a replica.
    pub(crate) fn replica(
        &self,
        row: &mut RowEncoder<'_>,
        judged: &Judged,
        delete: DeleteMode,
        order: &mut String,
    ) -> Result<(), Trouble> {
        let event = &judged.event;
        let is_delete = event.op == Op::Delete;
        let values = if is_delete { &event.row } else { judged.current_row() };
        let mut cells = Cells { columns: &self.form.columns, row };
        write_row(&mut cells, &self.table.shape, self.binding, &self.keyed.columns, values)?;
        let own = Own(&self.form.own);
        own.instant(row, 0, event.facts.ts_us);
        row.put_bool(own.number(1), is_delete);
        own.int(row, 2, event.facts.lsn);
        own.text(row, 3, Some(order_text(event, order)));
        let removes = is_delete && delete == DeleteMode::Hard;
        row.put_change(if removes { Change::Delete } else { Change::Upsert });
        // An order has at most four sections of sixteen digits.
        let put = row.put_sequence_number(order);
        debug_assert!(put.is_ok());
        Ok(())
    }

    /// A change that is staged. `late`: it brings values of these columns, and nothing else.
    pub(crate) fn staging(
        &self,
        row: &mut RowEncoder<'_>,
        judged: &Judged,
        late: Option<&[&str]>,
        order: &mut String,
    ) -> Result<(), Trouble> {
        let event = &judged.event;
        let values = if event.op == Op::Delete { &event.row } else { judged.current_row() };
        if event.op != Op::Truncate {
            let mut cells = Cells { columns: &self.form.columns, row };
            write_row(&mut cells, &self.table.shape, self.binding, &self.keyed.columns, values)?;
        }
        let own = Own(&self.form.own);
        own.text(row, 0, Some(if late.is_some() { staging::PATCH } else { event.op.code() }));
        own.instant(row, 1, event.facts.ts_us);
        own.instant(row, 2, Some(self.ingested_at_us));
        own.int(row, 3, event.facts.lsn);
        own.text(row, 4, Some(order_text(event, order)));
        row.put_bool(own.number(5), late.is_none() && staging::is_whole(event));
        if values.has_unchanged() {
            for name in rows::unchanged(&self.table.shape, self.binding, values) {
                own.text(row, 6, Some(name));
            }
        }
        for name in late.into_iter().flatten() {
            own.text(row, 7, Some(name));
        }
        own.text(row, 8, self.keyed.told.as_deref());
        Ok(())
    }
}

fn order_text<'a>(event: &Event, text: &'a mut String) -> &'a str {
    text.clear();
    event.order.write_hex(text);
    text
}

/// Millstream's own columns, by their places.
struct Own<'a>(&'a [u32]);

impl Own<'_> {
    fn number(&self, place: usize) -> u32 {
        self.0[place]
    }

    fn text(&self, row: &mut RowEncoder<'_>, place: usize, value: Option<&str>) {
        if let Some(value) = value {
            row.put_text(self.0[place], value);
        }
    }

    fn int(&self, row: &mut RowEncoder<'_>, place: usize, value: Option<i64>) {
        if let Some(value) = value {
            row.put_int(self.0[place], value);
        }
    }

    /// An instant that BigQuery holds; decoders let no other pass.
    fn instant(&self, row: &mut RowEncoder<'_>, place: usize, value: Option<i64>) {
        if let Some(value) = value {
            let _ = row.put_timestamp(self.0[place], value);
        }
    }

    fn object(
        &self,
        row: &mut RowEncoder<'_>,
        place: usize,
        nested: &object::Nested,
        columns: &[Column],
        value: Option<&object::Object>,
    ) {
        let fitting = value.and_then(|o| Some((o, nested.binding(o)?)));
        let Some((value, binding)) = fitting.filter(|_| !columns.is_empty()) else { return };
        let mark = row.begin_message(self.0[place]);
        // What has no place by its kind is left out: the object is not the row's own data.
        let _ = write_row(&mut Cells { columns, row }, &nested.shape, binding, &[], &value.row);
        row.end_message(mark);
    }
}
