//! One source table in one sink: its names, its columns, and the rows on their way into it.

mod columns;
mod held;
mod room;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use millstream_core::sink::SinkNotice;
use millstream_core::{Cause, Judged, Key, Op, Order, Patch, RecordBatch, Result, RowSchema, Value};
use millstream_layout::changelog::ObjectColumn;
use millstream_layout::object::{self, Nested};
use millstream_layout::{Binding, Change, Keyed, Shape, StoredKey, StoredTable, Trouble, plain, staging};

use held::Held;

use crate::config::{DeleteMode, Layout};
use crate::dialect;
use crate::form::{self, Form, Objects};
use crate::found::{self, Found};
use crate::lane::Settled;
use crate::note::TableNote;
use crate::outlet::Outlet;
use crate::pending::Pending;
use crate::resource::TableId;
use crate::row::Place;
use crate::session::Session;
use crate::truncate;

/// A row with more is refused: it has to fit into a request with all that goes around it.
pub(crate) const ROW_BYTES_MAX: usize = 8 << 20;

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Written,
    /// It, or in its stead an earlier one of its epoch that it takes the place of.
    Superseded,
    /// Its table cannot be a replica.
    LeftOut,
}

/// Why an event was not taken.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// Its row has no place.
    Row(Trouble),
    /// An object of a changelog needs another struct, which its shape already has.
    Object(ObjectColumn, Vec<Change>),
    /// It is refused for good.
    Refused(Cause),
}

/// A change of a table's columns, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SchemaChange {
    pub(crate) table: String,
    pub(crate) column: String,
    pub(crate) change: &'static str,
    pub(crate) from: Option<String>,
    pub(crate) to: String,
}

/// How rows of a schema go into the table.
struct Way {
    binding: Binding,
    /// The key that they come under.
    keyed: Keyed,
    /// A replica's primary key is another one.
    other_key: bool,
}

/// A table of a sink.
pub(crate) struct Target {
    pub(crate) id: TableId,
    pub(crate) pending: Pending,
    lane: Outlet,
    pub(crate) source_table: String,
    /// What people are to be told.
    pub(crate) notices: Vec<SinkNotice>,
    /// Changes that are not written down yet.
    pub(crate) changes: Vec<SchemaChange>,
    /// Rows that were taken and are refused.
    refused: Vec<(Arc<RecordBatch>, u32, Cause)>,
    /// Rows of a replica that wait for values.
    held: HashMap<Key, Held>,
    /// The order of a replica's last truncate, below which it takes nothing.
    truncated: Option<Order>,
    /// Rows were staged since somebody asked.
    staged: bool,
    found: Found,
    /// The columns of the replica that it is the staging of.
    seed: Shape,
    /// Its columns that stay REQUIRED.
    required: Vec<String>,
    objects: Option<Objects>,
    form: Form,
    /// How rows of a schema map to the table, and the key that they come under.
    bindings: Vec<Way>,
    order_text: String,
    lost_key_told: bool,
    other_key_told: bool,
}

impl Target {
    /// Finds the table of rows of `schema`, of which the first has `order`, or makes it. `None` for a replica of which only a truncate
    /// is known: it has nothing to lose, and no primary key to be made with. `seed`: the replica that it is the staging of.
    pub(crate) async fn open(
        session: &mut Session,
        schema: &Arc<RowSchema>,
        order: Order,
        seed: Option<&StoredTable>,
        notices: &mut Vec<SinkNotice>,
    ) -> Result<Option<Self>> {
        let Some(found) = found::find(session, schema, order, seed, notices).await? else { return Ok(None) };
        let mut target = Self::of(session, found)?;
        target.seed = seed.map(|replica| replica.shape.clone()).unwrap_or_default();
        target.required = form::required(session.config.layout, &target.found.stored, schema);
        let noted = target.found.actual.description.as_deref().and_then(TableNote::read);
        let Found { repeats, keeps_deleted, .. } = target.found;
        if noted.is_none_or(|noted| (noted.repeats, noted.keeps_deleted) != (repeats, keeps_deleted)) {
            // A table that somebody else made becomes the sink's; what it may hold from now on is told.
            target.describe(session).await?;
        }
        target.put_options(session).await?;
        target.put_columns(session).await?;
        if !target.required.is_empty() {
            target.renew(session)?;
        }
        target.put_view(session).await?;
        Ok(Some(target))
    }

    /// A table that was found.
    pub(crate) fn of(session: &Session, found: Found) -> Result<Self> {
        let layout = session.config.layout;
        let objects = (layout == Layout::Changelog).then(|| {
            let record = |name: &str| found.actual.fields.iter().find(|f| f.name == name);
            let [source, transaction] = ["source", "transaction"]
                .map(|name| record(name).map(crate::note::read_record).unwrap_or_default());
            let or = |shape: Shape, first: Shape| if shape.columns.is_empty() { first } else { shape };
            Objects {
                source: Nested::new(or(source, object::source_shape())),
                transaction: Nested::new(or(transaction, object::transaction_shape())),
            }
        });
        let form = Form::new(layout, &found.stored, objects.as_ref())?;
        let id = session.table(&found.stored.name);
        Ok(Self {
            lane: Outlet::new(session, &id, &form),
            source_table: found.stored.source.qualified(),
            id,
            pending: Pending::default(),
            notices: Vec::new(),
            changes: Vec::new(),
            refused: Vec::new(),
            held: HashMap::new(),
            truncated: found.truncated,
            staged: false,
            seed: Shape::default(),
            found,
            required: Vec::new(),
            objects,
            form,
            bindings: Vec::new(),
            order_text: String::new(),
            lost_key_told: false,
            other_key_told: false,
        })
    }

    /// The table as it is known.
    pub(crate) fn stored(&self) -> &StoredTable {
        &self.found.stored
    }

    /// Whether rows were staged since the last time that this was asked.
    pub(crate) fn take_staged(&mut self) -> bool {
        std::mem::take(&mut self.staged)
    }

    /// No row of the replica is marked as deleted any more.
    pub(crate) async fn removed_deleted(&mut self, session: &Session) -> Result<()> {
        self.found.keeps_deleted = false;
        self.describe(session).await
    }

    /// Forgets how schemas map to it.
    pub(crate) fn forget_bindings(&mut self) {
        self.bindings.clear();
    }

    /// Maps a schema, of which an event with `order` came, to the table. The changes are made in memory only; the caller follows with
    /// [`Target::evolve`], which forgets the binding.
    pub(crate) async fn bind(
        &mut self,
        session: &Session,
        schema: &Arc<RowSchema>,
        order: Order,
        notices: &mut Vec<SinkNotice>,
    ) -> Result<(usize, Vec<Change>)> {
        // BigQuery makes doubles of integers, rounding those beyond 2^53: such columns are never made doubles.
        let wide: HashSet<String> = self.found.stored.shape.asks_for_wide_ints(schema).into_iter().collect();
        let only_truncated = self.found.stored.shape.columns.is_empty();
        let seeded = found::seeded(&mut self.found.stored.shape, &self.seed, schema);
        let (binding, changes) =
            self.found.stored.shape.bind(schema, dialect::of(&session.config), session.rules(), &wide)?;
        let mut changes: Vec<_> = seeded.into_iter().chain(changes).collect();
        if let Layout::Staging { .. } = session.config.layout {
            changes.extend(found::keyed(session, &mut self.found.stored.shape, schema));
        }
        let is_plain = session.config.layout == Layout::Rows;
        if is_plain
            && let Some(error) = plain::contradiction(
                &self.found.stored.shape,
                &binding,
                &self.id.to_string(),
                &dialect::COLUMNS,
            )
        {
            return Err(error);
        }
        let is_keyless = schema.key.is_empty() && !schema.columns.is_empty() && !is_plain;
        let lost = is_keyless && !Keyed::now(&self.found.stored).columns.is_empty();
        if lost && !std::mem::replace(&mut self.lost_key_told, true) {
            let text = format!(
                "rows of {} come without a key now: no replica takes them, and a latest view takes them by the key before",
                self.found.stored.source
            );
            notices.push(notice("no_key", text));
        }
        let columns: Vec<String> = schema.key_names().map(str::to_owned).collect();
        let key = StoredKey { columns, order, first: only_truncated };
        if only_truncated && !schema.columns.is_empty() {
            // The key that the table has had all along: truncates tell none.
            self.found.stored.keys = vec![key.clone()];
            self.describe(session).await?;
        }
        if let Some(keyed) = Keyed::of(&self.found.stored, schema) {
            self.bindings.push(Way { binding, keyed, other_key: false });
            return Ok((self.bindings.len() - 1, changes));
        }
        if !changes.is_empty() {
            // The columns first: what is made anew for the new key reads them.
            let keyed = Keyed::now(&self.found.stored);
            self.bindings.push(Way { binding, keyed, other_key: false });
            return Ok((self.bindings.len() - 1, changes));
        }
        let text =
            format!("rows of {} come under the key ({})", self.found.stored.source, key.columns.join(", "));
        if let Layout::Replica { .. } = session.config.layout {
            if !std::mem::replace(&mut self.other_key_told, true) {
                notices.push(notice(
                    "key_changed",
                    format!("{text}, which is not the primary key of {}", self.id),
                ));
            }
            // Its primary key stays: rows of the other one are refused, each for itself.
            let keyed = Keyed::now(&self.found.stored);
            self.bindings.push(Way { binding, keyed, other_key: true });
            return Ok((self.bindings.len() - 1, Vec::new()));
        }
        notices.push(notice("key_changed", text));
        let place = self.found.stored.keys.partition_point(|k| k.order < order);
        self.found.stored.keys.insert(place, key);
        for Way { binding, keyed, .. } in &mut self.bindings {
            *keyed = Keyed::of(&self.found.stored, &binding.schema)
                .unwrap_or_else(|| Keyed::now(&self.found.stored));
        }
        self.describe(session).await?;
        self.put_view(session).await?;
        let keyed = Keyed::of(&self.found.stored, schema).unwrap_or_else(|| Keyed::now(&self.found.stored));
        self.bindings.push(Way { binding, keyed, other_key: false });
        Ok((self.bindings.len() - 1, Vec::new()))
    }

    /// Takes an event of a batch. `late`: the values that the event was made of.
    pub(crate) async fn push(
        &mut self,
        session: &Session,
        binding: usize,
        judged: &Judged,
        records: &Arc<RecordBatch>,
        late: Option<&Patch>,
    ) -> Result<Result<Taken, Obstacle>> {
        let event = &judged.event;
        if let Layout::Staging { .. } = session.config.layout
            && let Some(taken) = self.before_staging(session, binding, judged).await?
        {
            return Ok(taken);
        }
        if let Layout::Replica { .. } = session.config.layout {
            if self.truncated.is_some_and(|order| event.order < order) {
                return Ok(Ok(Taken::Superseded));
            }
            if event.op == Op::Truncate {
                return self.truncate(session, event.order).await.map(Ok);
            }
            if self.bindings[binding].other_key {
                return Ok(Err(Obstacle::Refused(self.other_key())));
            }
            if let Some(cause) = self.null_in_key(binding, judged) {
                return Ok(Err(Obstacle::Refused(cause)));
            }
            if let Some(key) = &event.key {
                self.held.remove(key);
            }
            if judged.current_row().has_unchanged() && event.op != Op::Delete {
                return Ok(self.hold(judged, records));
            }
        }
        if let Some(objects) = &mut self.objects {
            let (rules, source) = (session.rules(), object::source_object(event));
            let changes = objects.source.fit(&source, &dialect::MEMBERS, rules)?;
            if !changes.is_empty() {
                return Ok(Err(Obstacle::Object(ObjectColumn::Source, changes)));
            }
            if let Some(transaction) = object::transaction_object(event) {
                let changes = objects.transaction.fit(&transaction, &dialect::MEMBERS, rules)?;
                if !changes.is_empty() {
                    return Ok(Err(Obstacle::Object(ObjectColumn::Transaction, changes)));
                }
            }
        }
        let Way { binding, keyed, .. } = &self.bindings[binding];
        let place = Place {
            table: &self.found.stored,
            form: &self.form,
            binding,
            keyed,
            source_table: &self.source_table,
            ingested_at_us: session.mark.ingested_at_us,
        };
        let late = late
            .map(|patch| staging::late_columns(&self.found.stored.shape, binding, patch).collect::<Vec<_>>());
        let mut row = self.pending.begin();
        let order = &mut self.order_text;
        let written = match (session.config.layout, &self.objects) {
            (Layout::Replica { delete }, _) => place.replica(&mut row, judged, delete, order),
            (Layout::Changelog, Some(objects)) => place.changelog(&mut row, event, objects, order),
            (Layout::Staging { .. }, _) => place.staging(&mut row, judged, late.as_deref(), order),
            (Layout::Rows, _) => place.plain(&mut row, event),
            _ => place.history(&mut row, event, order),
        };
        if let Err(trouble) = written {
            return Ok(Err(Obstacle::Row(trouble)));
        }
        let bytes = row.byte_len();
        if bytes > ROW_BYTES_MAX {
            return Ok(Err(Obstacle::Refused(Cause::new(
                "too_large",
                format!("the row has {bytes} bytes, and BigQuery takes {ROW_BYTES_MAX} at most"),
            ))));
        }
        row.finish();
        let late: Vec<_> = late.into_iter().flatten().map(str::to_owned).collect();
        if late.is_empty() {
            self.pending.note(records, event.record);
        } else {
            self.pending.note_made();
        }
        let fresh = self.newly_unchanged(session, judged, &late);
        if !fresh.is_empty() {
            self.note_unchanged(session, &fresh).await?;
        }
        self.staged = true;
        if let (Layout::Staging { delete }, Some(key)) = (session.config.layout, &event.key) {
            let replaces = late.is_empty() && staging::replaces(judged, delete == DeleteMode::Soft);
            if !replaces {
                self.pending.keep(key);
            } else if self.pending.replace(key) {
                return Ok(Ok(Taken::Superseded));
            }
        }
        Ok(Ok(Taken::Written))
    }

    /// What becomes of an event without its being staged.
    async fn before_staging(
        &mut self,
        session: &Session,
        binding: usize,
        judged: &Judged,
    ) -> Result<Option<Result<Taken, Obstacle>>> {
        let event = &judged.event;
        let is_keyless = Keyed::now(&self.found.stored).columns.is_empty();
        if is_keyless {
            return Ok(Some(Ok(Taken::LeftOut)));
        }
        if self.truncated.is_some_and(|order| event.order < order) {
            return Ok(Some(Ok(Taken::Superseded)));
        }
        if event.op == Op::Truncate {
            self.truncated = Some(event.order);
            self.describe(session).await?;
            return Ok(None);
        }
        if !self.found.null_in_key && self.has_null_in_key(binding, judged) {
            self.found.null_in_key = true;
            self.describe(session).await?;
        }
        Ok(None)
    }

    /// Whether a part of the key that a row came under has no value.
    fn has_null_in_key(&self, binding: usize, judged: &Judged) -> bool {
        let row = if judged.event.op == Op::Delete { &judged.event.row } else { judged.current_row() };
        let Way { binding, keyed, .. } = &self.bindings[binding];
        let source = |at: &usize| binding.cells.get(*at)?.source;
        let is_null = |at: &usize| source(at).is_none_or(|source| row.get(source).is_null());
        keyed.parts.iter().any(|part| part.columns.iter().all(is_null))
    }

    /// A primary key holds no NULL: neither one that the row has, nor one that a value of another type leaves.
    fn null_in_key(&self, binding: usize, judged: &Judged) -> Option<Cause> {
        let row = if judged.event.op == Op::Delete { &judged.event.row } else { judged.current_row() };
        let cells = &self.bindings[binding].binding.cells;
        let columns = &self.found.stored.shape.columns;
        let is_null = |name: &&String| {
            let at = columns.iter().position(|c| c.name == **name);
            let source = at.and_then(|at| cells.get(at)?.source);
            source.is_none_or(|source| row.get(source).is_null())
        };
        let column = self.found.actual.primary_key.iter().find(is_null)?;
        Some(Cause::new(
            "null_in_key",
            format!(
                "{}: the row has no value of its type for {column}, which is of the primary key of {}",
                self.source_table, self.id
            ),
        ))
    }

    fn other_key(&self) -> Cause {
        Cause::new(
            "key_changed",
            format!(
                "the key of {} changed, and {} keeps the primary key that it was made with: drop it, or set `table_name`, take \
                 a new snapshot, and replay; or use `layout: append`, whose view follows",
                self.source_table, self.id
            ),
        )
    }

    /// Columns that came without their value, or with their value later, for the first time.
    fn newly_unchanged(&self, session: &Session, judged: &Judged, late: &[String]) -> Vec<usize> {
        let event = &judged.event;
        let row = match session.config.layout {
            Layout::Staging { .. } if event.op != Op::Delete => judged.current_row(),
            _ if self.found.stored.view.is_none() => return Vec::new(),
            _ => &event.row,
        };
        if !row.has_unchanged() && late.is_empty() {
            return Vec::new();
        }
        let is_unchanged =
            |source: &str| event.schema.column(source).is_some_and(|i| row.get(i) == Value::Unchanged);
        let is_fresh = |c: &millstream_layout::TargetColumn| {
            !c.unchanged && (is_unchanged(&c.source) || late.contains(&c.name))
        };
        let columns = self.found.stored.shape.columns.iter().enumerate();
        columns.filter(|(_, c)| is_fresh(c)).map(|(i, _)| i).collect()
    }

    /// The latest view must look these columns up.
    async fn note_unchanged(&mut self, session: &Session, columns: &[usize]) -> Result<()> {
        for &column in columns {
            self.found.stored.shape.columns[column].unchanged = true;
        }
        self.put_columns(session).await?;
        self.put_view(session).await
    }

    /// Deletes every row that is older than a truncate: each key that the table has, as there is no DML beside native upserts.
    async fn truncate(&mut self, session: &Session, order: Order) -> Result<Taken> {
        if self.found.actual.primary_key.is_empty() {
            return Ok(Taken::Superseded);
        }
        self.send(session).await?;
        self.lane.wait(session).await?;
        self.held.retain(|_, held| held.judged.event.order > order);
        self.truncated = Some(self.truncated.map_or(order, |before| before.max(order)));
        self.describe(session).await?;
        let job = truncate::list_keys(session, &self.id, &self.found).await?;
        let mut page = None;
        loop {
            let Self { pending, found, form, .. } = self;
            let of_page = (&job, page.as_deref());
            page = truncate::delete_page(pending, (found, form), of_page, order, session).await?;
            self.send(session).await?;
            if page.is_none() {
                break;
            }
        }
        Ok(Taken::Written)
    }

    /// Waits until all of an epoch's rows are written, or refused.
    pub(crate) async fn settle(&mut self, session: &Session) -> Result<Settled> {
        self.send(session).await?;
        let mut settled = self.lane.settle(session).await?;
        settled.refused.append(&mut self.refused);
        settled.refused.extend(self.give_up());
        Ok(settled)
    }

    /// Its last rows were written. Answers streams that take no more.
    pub(crate) fn retire(&mut self) -> Vec<Arc<str>> {
        self.lane.retire()
    }

    /// Whether an epoch has rows that are not settled.
    pub(crate) fn is_busy(&self) -> bool {
        !self.pending.is_empty() || self.lane.is_busy() || !self.held.is_empty() || !self.refused.is_empty()
    }

    /// Hands what waits to the connection; waits for room.
    pub(crate) async fn send(&mut self, session: &Session) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (rows, origins) = self.pending.take();
        self.lane.send(session, rows, origins).await
    }
}

pub(crate) fn notice(code: &'static str, text: String) -> SinkNotice {
    SinkNotice { code, text, count: 1 }
}
