//! The replica layout: the current state of a table.
//!
//! Changes are staged: of each key only the last one stays. A stage is applied by deleting the keys that it holds from
//! the table and inserting its rows, which for a table without an index is far cheaper than `MERGE`.
//!
//! The table never goes back: a truncate's order is remembered, and while orders come that the table may have seen
//! before (after a crash the same changes come again), staged rows are first compared with the table's.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_core::{Error, Event, Field, Key, Op, Order, Patch, Result, Row, RowBuilder, Type};
use millstream_layout::keyed::{Keyed, Part};
use millstream_layout::replica::own_columns;
use millstream_layout::rows::Trouble;
use millstream_layout::shape::{Binding, TargetColumn};
use millstream_layout::table::StoredTable;

use crate::batch::{self, CHUNK_ROWS, Chunk, Place};
use crate::column_data::ColumnData;
use crate::config::DeleteMode;
use crate::error::Explain;
use crate::ident::qualify;
use crate::replica_sql::ApplySql;
use crate::rows;
use crate::session::Session;

/// Rows and bytes that a stage holds before it is applied in the middle of an epoch.
const STAGED_ROWS_MAX: usize = 64 * CHUNK_ROWS;
const STAGED_BYTES_MAX: usize = 64 << 20;

/// Columns of the stage: the table's columns in the shape's order, then Millstream's, then what only the stage knows.
fn stage_columns(table: &StoredTable) -> Vec<Field> {
    let column = |c: &TargetColumn| Field { name: c.name.as_str().into(), ty: c.ty.clone() };
    let texts = Type::List(Box::new(Type::Text));
    let stage = [("__stage_partial", Type::Bool), ("__stage_unchanged", texts)];
    let stage = stage.into_iter().map(|(name, ty)| Field { name: name.into(), ty });
    table.shape.columns.iter().map(column).chain(own_columns()).chain(stage).collect()
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Written,
    Superseded,
}

/// What is known of the orders that the table held when this process opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// Not asked yet.
    Unknown,
    /// Nothing in it has a larger order; `None` if it was empty.
    UpTo(Option<Order>),
}

/// What the stage knows of a row besides its columns.
struct Staged {
    order: Order,
    timestamp_us: Option<i64>,
    lsn: Option<i64>,
    deleted: bool,
    /// A delete that carries its key only: the table's values stay.
    partial: bool,
    /// A later change of the same key took its place.
    dead: bool,
    /// Columns that keep the table's value.
    unchanged: Option<Box<[String]>>,
}

/// The rows of one replica that are staged.
pub(crate) struct Replica {
    /// The table as it is in DuckDB: its shape in memory may be ahead while a change is made.
    table: StoredTable,
    /// The key by which its rows are known.
    key: Keyed,
    delete: DeleteMode,
    columns: Vec<ColumnData>,
    chunks: Vec<Vec<ColumnData>>,
    staged: Vec<Staged>,
    index: HashMap<Key, usize, foldhash::fast::RandomState>,
    in_chunk: usize,
    bytes: usize,
    null_in_key: bool,
    fields: Arc<[Field]>,
    doubt: Doubt,
    truncated: Option<Order>,
    /// Truncates of this epoch that are not applied yet.
    truncates: Vec<Staged>,
    /// The transaction in which rows of the table were last changed.
    changed_in: Option<u64>,
    patches: Vec<StagedPatch>,
    /// The columns of the key, where there is a choice, in which the staged rows have their values.
    staged_form: Vec<usize>,
}

struct StagedPatch {
    columns: Vec<usize>,
    binding: Binding,
    row: Row,
    key: Key,
    order: Order,
}

impl Replica {
    /// The stage of a table that was just created, so that nothing in it can be newer.
    pub(crate) fn of_new(table: &StoredTable, delete: DeleteMode) -> Self {
        Self { doubt: Doubt::UpTo(None), ..Self::new(table, delete) }
    }

    /// The stage of a table.
    pub(crate) fn new(table: &StoredTable, delete: DeleteMode) -> Self {
        Self::of_key(table, Keyed::now(table), delete)
    }

    /// The stages of what comes late under keys that the table had before.
    pub(crate) fn of_past_keys(table: &StoredTable, delete: DeleteMode) -> Vec<Self> {
        Keyed::past(table).map(|key| Self::of_key(table, key, delete)).collect()
    }

    /// Makes those stages anew, nothing being staged in them.
    pub(crate) fn renew_past(&mut self, past: &mut Vec<Self>) {
        self.changed_in = past.iter().map(|replica| replica.changed_in).fold(self.changed_in, Option::max);
        *past = Self::of_past_keys(&self.table, self.delete);
    }

    fn of_key(table: &StoredTable, key: Keyed, delete: DeleteMode) -> Self {
        Self {
            table: table.clone(),
            key,
            delete,
            columns: table.shape.columns.iter().map(|c| ColumnData::new(&c.ty)).collect(),
            chunks: Vec::new(),
            staged: Vec::new(),
            index: HashMap::default(),
            in_chunk: 0,
            bytes: 0,
            null_in_key: false,
            fields: stage_columns(table).into(),
            doubt: Doubt::Unknown,
            truncated: table.truncated.as_deref().and_then(Order::parse_hex),
            truncates: Vec::new(),
            changed_in: None,
            patches: Vec::new(),
            staged_form: Vec::new(),
        }
    }

    /// Makes the stage anew after the table's columns changed; nothing is staged then.
    pub(crate) fn reshape(&mut self, table: &StoredTable) {
        *self = Self {
            doubt: self.doubt,
            truncated: self.truncated,
            changed_in: self.changed_in,
            ..Self::new(table, self.delete)
        };
    }

    /// Takes notice of the table's keys after they changed. Nothing is staged if the newest one did.
    pub(crate) fn learn_keys(&mut self, table: &StoredTable) {
        self.table.keys.clone_from(&table.keys);
        self.key = Keyed::now(table);
    }

    /// Whether rows of the table were changed in the open transaction. DuckDB does not commit a transaction that alters a
    /// table after deleting rows of it.
    pub(crate) fn is_changed(&self, session: &Session) -> bool {
        self.changed_in == Some(session.transaction.get())
    }

    /// Text of the order below which the table takes nothing.
    pub(crate) fn truncated(&self) -> Option<String> {
        self.truncated.map(|order| order.to_string())
    }

    /// Whether a truncate came that is newer.
    pub(crate) fn is_truncated(&self, order: &Order) -> bool {
        self.truncated.iter().chain(self.truncates.iter().map(|t| &t.order)).any(|t| order < t)
    }

    /// Bytes of rows that are staged.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is time to apply what is staged, in the middle of an epoch.
    pub(crate) fn is_full(&self) -> bool {
        self.staged.len() >= STAGED_ROWS_MAX || self.bytes >= STAGED_BYTES_MAX
    }

    /// Takes an event that is newest. Nothing of it is kept if it can't be written.
    pub(crate) fn push(
        &mut self,
        session: &Session,
        binding: &Binding,
        event: &Event,
        current: &Row,
    ) -> Result<Result<Taken, Trouble>> {
        if event.op == Op::Truncate {
            self.truncates.push(Staged::of(event));
            return Ok(Ok(Taken::Written));
        }
        let Some(key) = &event.key else { return Ok(Ok(Taken::Superseded)) };
        let row = if event.op == Op::Delete { &event.row } else { current };
        let form = self.form(binding);
        if form != self.staged_form {
            // The stage knows a row by its typed key, which another type makes another: only the table knows both.
            self.apply(session)?;
            self.staged_form = form;
        }
        let unchanged = row.has_unchanged();
        if unchanged && self.index.contains_key(key) {
            // The values that the row leaves as they are may be staged: put them into the table first.
            self.apply(session)?;
        }
        let mut staged = Staged::of(event);
        let keeps_values = event.op == Op::Delete && !event.full_before;
        if let Some(&earlier) = self.index.get(key).filter(|_| keeps_values) {
            // The last known values stay, under the delete's order.
            let earlier = &mut self.staged[earlier];
            let kept = (earlier.partial, earlier.unchanged.take());
            *earlier = Staged { partial: kept.0, unchanged: kept.1, ..staged };
            return Ok(Ok(Taken::Written));
        }
        let key_columns = &self.key.columns;
        if let Err(trouble) = rows::push_row(&mut self.columns, &self.table.shape, binding, key_columns, row)
        {
            return Ok(Err(trouble));
        }
        if unchanged {
            staged.unchanged = Some(
                millstream_layout::rows::unchanged(&self.table.shape, binding, row)
                    .map(str::to_owned)
                    .collect(),
            );
        }
        self.null_in_key |= binding.schema.key.iter().any(|&i| row.get(i).is_null());
        if let Some(earlier) = self.index.insert(key.clone(), self.staged.len()) {
            self.staged[earlier].dead = true;
        }
        self.staged.push(staged);
        self.bytes += row.heap_len() + 16 * self.columns.len() + 128;
        self.in_chunk += 1;
        if self.in_chunk >= CHUNK_ROWS {
            self.end_chunk();
        }
        Ok(Ok(Taken::Written))
    }

    /// Takes late values for a row that must still have the patch's order.
    pub(crate) fn patch(&mut self, binding: &Binding, patch: &Patch) -> Result<(), Trouble> {
        let Some(values) = patch.key.values() else { return Ok(()) };
        let mut builder = RowBuilder::new();
        builder.resize(binding.schema.columns.len());
        for (i, &column) in binding.schema.key.iter().enumerate() {
            builder.set(column, values.get(i));
        }
        for (i, &column) in patch.columns.iter().enumerate() {
            builder.set(column, patch.values.get(i));
        }
        let row = builder.finish();
        // Whether it has a place is seen by pushing it; it is written on its own.
        rows::push_row(&mut self.columns, &self.table.shape, binding, &self.key.columns, &row)?;
        self.columns.iter_mut().for_each(|column| column.truncate(self.in_chunk));
        self.bytes += row.heap_len() + 256;
        let columns = (0..self.table.shape.columns.len())
            .filter(|&i| binding.cells[i].source.is_some_and(|source| patch.columns.contains(&source)))
            .collect();
        self.null_in_key |= (0..values.len()).any(|i| values.get(i).is_null());
        let (key, order) = (patch.key.clone(), patch.order);
        self.patches.push(StagedPatch { columns, binding: binding.clone(), row, key, order });
        Ok(())
    }

    /// Which of the columns of each part of the key rows of a schema have a value in.
    fn form(&self, binding: &Binding) -> Vec<usize> {
        let several = self.key.parts.iter().filter(|part| part.is_several());
        let bound = |&&i: &&usize| binding.cells.get(i).is_some_and(|cell| cell.source.is_some());
        several.flat_map(|part| part.columns.iter().filter(bound).copied()).collect()
    }

    fn end_chunk(&mut self) {
        if self.in_chunk > 0 {
            self.in_chunk = 0;
            self.chunks.push(self.columns.iter_mut().map(ColumnData::take).collect());
        }
    }

    /// Applies what is staged to the table.
    pub(crate) fn apply(&mut self, session: &Session) -> Result<()> {
        if self.staged.is_empty() && self.truncates.is_empty() && self.patches.is_empty() {
            return Ok(());
        }
        self.changed_in = Some(session.transaction.get());
        let null_in_key = std::mem::take(&mut self.null_in_key);
        let sql = ApplySql::new(&session.config.dataset, &self.table, &self.key, null_in_key);
        self.apply_truncates(session, &sql)?;
        self.apply_rows(session, &sql)?;
        self.apply_patches(session, &sql)
    }

    /// Takes truncates in their order, so that each row goes by the first one above it.
    fn apply_truncates(&mut self, session: &Session, sql: &ApplySql) -> Result<()> {
        let mut truncates = std::mem::take(&mut self.truncates);
        truncates.sort_by_key(|t| t.order);
        for truncate in truncates {
            for staged in self.staged.iter_mut().filter(|s| s.order < truncate.order) {
                match self.delete {
                    DeleteMode::Hard => staged.dead = true,
                    DeleteMode::Soft if staged.deleted => {}
                    DeleteMode::Soft => {
                        staged.deleted = true;
                        staged.order = truncate.order;
                        staged.timestamp_us = truncate.timestamp_us;
                        staged.lsn = truncate.lsn;
                    }
                }
            }
            let statement = sql.truncate(self.delete, &truncate.order, truncate.timestamp_us, truncate.lsn);
            session.run(&statement, || format!("truncating {}", self.table.name))?;
            if self.truncated < Some(truncate.order) {
                self.truncated = Some(truncate.order);
                self.table.truncated = self.truncated();
                session.catalog.update(&*session.connection()?, &self.table)?;
            }
        }
        Ok(())
    }

    fn apply_rows(&mut self, session: &Session, sql: &ApplySql) -> Result<()> {
        self.end_chunk();
        let doubtful = self.is_doubtful(session)?;
        let live = || self.staged.iter().filter(|s| !s.dead);
        let has_partial = live().any(|s| s.partial);
        let has_deleted = live().any(|s| s.deleted);
        let mut unchanged: Vec<&str> =
            live().flat_map(|s| s.unchanged.iter().flatten()).map(|n| &**n).collect();
        unchanged.sort_unstable();
        unchanged.dedup();
        if live().next().is_some() {
            let mut statements = String::new();
            if doubtful {
                statements += &sql.drop_stale();
            }
            if !unchanged.is_empty() {
                statements += &sql.keep_unchanged(&unchanged);
            }
            if has_partial && self.delete == DeleteMode::Soft {
                statements += &sql.mark_deleted();
            }
            statements += &sql.replace(self.delete, has_deleted);
            statements += &sql.drop_stage();
            self.fill_stage(session)?;
            session.run(&statements, || format!("applying changes to {}", self.table.name))?;
        }
        self.staged.clear();
        self.chunks.clear();
        self.index.clear();
        self.bytes = 0;
        Ok(())
    }

    /// Whether the table may hold something newer than what is staged: whether any staged order is one that the table
    /// may have seen in an earlier run.
    fn is_doubtful(&mut self, session: &Session) -> Result<bool> {
        if self.table.keys.len() > 1 || self.key.parts.iter().any(Part::is_several) {
            // A row can be staged under two keys, or under one of two types.
            return Ok(true);
        }
        if self.doubt == Doubt::Unknown {
            let name = qualify(&session.config.dataset, &self.table.name);
            let newest: Option<String> = session
                .connection()?
                .query_row(&format!("SELECT max(_metadata_order) FROM {name}"), [], |row| row.get(0))
                .explain(|| format!("reading the newest order of {}", self.table.name))?;
            self.doubt = Doubt::UpTo(newest.as_deref().and_then(Order::parse_hex));
        }
        let Doubt::UpTo(Some(newest)) = self.doubt else { return Ok(false) };
        Ok(self.staged.iter().any(|s| !s.dead && s.order <= newest))
    }

    fn create_stage(&mut self, session: &Session) -> Result<()> {
        let statement = ApplySql::create_stage(&self.table.name, &stage_columns(&self.table));
        session.run(&statement, || format!("creating the stage of {}", self.table.name))
    }

    fn fill_stage(&mut self, session: &Session) -> Result<()> {
        self.create_stage(session)?;
        let mut staged = &self.staged[..];
        let chunk = |columns: Vec<ColumnData>| {
            let rows = columns.first().map_or(staged.len(), ColumnData::rows);
            let (mine, rest) = staged.split_at(rows);
            staged = rest;
            live(columns, mine)
        };
        let chunks = self.chunks.drain(..).map(chunk).collect();
        let name = ApplySql::stage_name(&self.table.name);
        let place = Place { catalog: Some("temp"), dataset: "main", table: &name };
        batch::insert(&*session.connection()?, place, &self.fields, chunks).map(drop)
    }

    fn apply_patches(&mut self, session: &Session, sql: &ApplySql) -> Result<()> {
        let mut patches = std::mem::take(&mut self.patches).into_iter().peekable();
        let place_name = ApplySql::stage_name(&self.table.name);
        while let Some(first) = patches.next() {
            self.create_stage(session)?;
            let columns = first.columns.clone();
            let mut keys = vec![first.key.clone()];
            let mut group = vec![first];
            // One statement may set the same columns of different rows.
            while let Some(next) =
                patches.next_if(|p| p.columns == columns && !keys.contains(&p.key) && keys.len() < CHUNK_ROWS)
            {
                keys.push(next.key.clone());
                group.push(next);
            }
            let mut staged = Vec::new();
            for patch in &group {
                let key = &self.key.columns;
                rows::push_row(&mut self.columns, &self.table.shape, &patch.binding, key, &patch.row)
                    .map_err(|_| {
                        Error::fatal(format!("invariant: a late value of {} has a place", self.table.name))
                    })?;
                staged.push(Staged::at(patch.order));
            }
            let chunk = live(self.columns.iter_mut().map(ColumnData::take).collect(), &staged);
            let place = Place { catalog: Some("temp"), dataset: "main", table: &place_name };
            batch::insert(&*session.connection()?, place, &self.fields, vec![chunk])?;
            let statements = sql.set_columns(&columns) + &sql.drop_stage();
            session.run(&statements, || format!("filling late values into {}", self.table.name))?;
        }
        Ok(())
    }
}

impl Staged {
    fn of(event: &Event) -> Self {
        let deleted = event.op == Op::Delete;
        Self {
            timestamp_us: event.facts.ts_us.or_else(|| event.facts.ts_ms.and_then(|ms| ms.checked_mul(1000))),
            lsn: event.facts.lsn,
            deleted,
            partial: deleted && !event.full_before,
            ..Self::at(event.order)
        }
    }

    fn at(order: Order) -> Self {
        let (timestamp_us, lsn, unchanged) = (None, None, None);
        Self { order, timestamp_us, lsn, deleted: false, partial: false, dead: false, unchanged }
    }
}

/// The rows that no later change replaced, with the columns that the stage adds to the table's.
fn live(mut columns: Vec<ColumnData>, staged: &[Staged]) -> Chunk {
    columns.extend(own_values(staged));
    let kept = staged.iter().any(|s| s.dead).then(|| {
        let live = |(i, s): (usize, &Staged)| (!s.dead).then_some(i as u32);
        staged.iter().enumerate().filter_map(live).collect()
    });
    Chunk { columns, kept }
}

fn own_values(staged: &[Staged]) -> [ColumnData; 6] {
    let types = [Type::Timestamp, Type::Bool, Type::Int64, Type::Text, Type::Bool];
    let [mut timestamp, mut deleted, mut lsn, mut order, mut partial] = types.map(|ty| ColumnData::new(&ty));
    let mut unchanged = ColumnData::new(&Type::List(Box::new(Type::Text)));
    let mut text = String::new();
    for row in staged {
        timestamp.push_int_option(row.timestamp_us);
        deleted.push_bool(row.deleted);
        lsn.push_int_option(row.lsn);
        text.clear();
        row.order.write_hex(&mut text);
        order.push_bytes(text.as_bytes());
        partial.push_bool(row.partial);
        match &row.unchanged {
            Some(names) => unchanged.push_texts(names.iter().map(|n| &**n)),
            None => unchanged.push_null(),
        }
    }
    [timestamp, deleted, lsn, order, partial, unchanged]
}
