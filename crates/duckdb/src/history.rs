//! The append layout: one row of `T_raw` for each distinct event; and the rows layout, whose rows have less beside their values.

use millstream_core::{Event, Op, Result, Type};
use millstream_layout::history;
use millstream_layout::keyed::Keyed;
use millstream_layout::plain;
use millstream_layout::rows::Trouble;
use millstream_layout::shape::Binding;
use millstream_layout::table::StoredTable;

use crate::batch::{Batches, Place};
use crate::catalog::Mark;
use crate::column_data::ColumnData;
use crate::config::Layout;
use crate::rows;
use crate::session::Session;

/// The rows of one `T_raw` or `T_rows` that are being built.
pub(crate) struct History {
    columns: Vec<ColumnData>,
    own: Own,
    batches: Batches,
    initial: usize,
}

/// What stands beside the values.
enum Own {
    /// What is told of an event.
    Event(Box<EventColumns>),
    /// The mark alone.
    Mark([ColumnData; 1]),
}

/// The columns of [`history::own_columns`].
struct EventColumns {
    source_table: String,
    columns: [ColumnData; 10],
    order_text: String,
}

impl History {
    pub(crate) fn new(layout: Layout, table: &StoredTable) -> Self {
        let (own, fields) = match layout {
            Layout::Rows => (Own::Mark([ColumnData::new(&Type::Timestamp)]), plain::own_columns()),
            _ => (Own::Event(Box::new(EventColumns::new(table))), history::own_columns()),
        };
        Self {
            columns: table.shape.columns.iter().map(|c| ColumnData::new(&c.ty)).collect(),
            own,
            batches: Batches::new(table.physical_columns(fields)),
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
        if event.op == Op::Truncate {
            self.columns.iter_mut().for_each(ColumnData::push_null);
        } else {
            rows::push_row(&mut self.columns, &table.shape, binding, &keyed.columns, &event.row)?;
        }
        let unchanged = event
            .row
            .has_unchanged()
            .then(|| millstream_layout::rows::unchanged(&table.shape, binding, &event.row));
        match &mut self.own {
            Own::Event(own) => own.push(event, unchanged, keyed.told.as_deref(), mark),
            Own::Mark([mark_column]) => mark_column.push_int(mark.ingested_at_us),
        }
        self.batches.count(event.row.heap_len() + 16 * self.columns.len() + 128);
        Ok(())
    }

    /// Its rows, behind those being built.
    pub(crate) fn batches(&self) -> &Batches {
        &self.batches
    }

    /// Ends a chunk, and begins to insert all chunks if enough have come together.
    pub(crate) fn end_chunk(&mut self, session: &Session, place: Place<'_>) -> Result<()> {
        let (columns, batches) = self.physical();
        batches.end_chunk(columns, session, place)
    }

    /// Inserts everything.
    pub(crate) fn flush(&mut self, session: &Session, place: Place<'_>) -> Result<()> {
        let (columns, batches) = self.physical();
        batches.flush(columns, session, place)
    }

    /// The columns in the table's physical order.
    fn physical(&mut self) -> (impl Iterator<Item = &mut ColumnData>, &mut Batches) {
        let (initial, later) = self.columns.split_at_mut(self.initial);
        let own: &mut [ColumnData] = match &mut self.own {
            Own::Event(own) => &mut own.columns,
            Own::Mark(columns) => columns,
        };
        (initial.iter_mut().chain(own).chain(later), &mut self.batches)
    }
}

impl EventColumns {
    fn new(table: &StoredTable) -> Self {
        let fields = history::own_columns();
        Self {
            source_table: table.source.qualified(),
            columns: std::array::from_fn(|i| ColumnData::new(&fields[i].ty)),
            order_text: String::new(),
        }
    }

    fn push<'a>(
        &mut self,
        event: &Event,
        unchanged_names: Option<impl Iterator<Item = &'a str>>,
        key_columns: Option<&str>,
        mark: Mark,
    ) {
        let [op, source_ts_ms, ingested_at, table, transaction_id, lsn, order, unchanged, old_key, told_key] =
            &mut self.columns;
        op.push_bytes(event.op.code().as_bytes());
        source_ts_ms.push_int_option(event.facts.ts_ms);
        ingested_at.push_int(mark.ingested_at_us);
        table.push_bytes(self.source_table.as_bytes());
        transaction_id.push_text_option(event.facts.transaction_id.as_deref());
        lsn.push_int_option(event.facts.lsn);
        self.order_text.clear();
        event.order.write_hex(&mut self.order_text);
        order.push_bytes(self.order_text.as_bytes());
        let mut names = unchanged_names.into_iter().flatten().peekable();
        if names.peek().is_some() {
            unchanged.push_texts(names)
        } else {
            unchanged.push_null()
        }
        old_key
            .push_text_option(event.old_key.as_ref().and_then(millstream_layout::rows::key_text).as_deref());
        told_key.push_text_option(key_columns);
    }
}
