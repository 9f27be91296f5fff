//! One source table in one sink: its names, its columns, and the rows on their way into it.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_core::evolution::{self, Rules};
use millstream_core::sink::SinkNotice;
use millstream_core::{Cause, Judged, Op, Order, Patch, Result, RowSchema, TableName, Type, Value};
use millstream_layout::cell::convert;
use millstream_layout::changelog::ObjectColumn;
use millstream_layout::keyed::{Keyed, StoredKey};
use millstream_layout::object;
use millstream_layout::plain;
use millstream_layout::rows::Trouble;
use millstream_layout::shape::{Binding, Change, Shape};
use millstream_layout::table::StoredTable;

use crate::batch::Place;
use crate::catalog::SchemaChange;
use crate::changelog::{Changelog, Obstacle};
use crate::column_type::sql_type;
use crate::config::Layout;
use crate::ddl;
use crate::dialect::Duck;
use crate::history::History;
use crate::ident::quote;
use crate::naming;
use crate::replica::{Replica, Taken};
use crate::session::Session;

/// A table of a sink.
pub(crate) struct Table {
    stored: StoredTable,
    /// How rows of a schema map to the table, and the key that they come under.
    bindings: Vec<(Binding, Keyed)>,
    writer: Writer,
    /// It was told that rows come without the key that the table has.
    lost_key_told: bool,
}

/// The rows on their way, by layout.
enum Writer {
    History(Box<History>),
    Changelog(Box<Changelog>),
    /// The rows under the key that the table has, and those that come late under the keys before.
    Replica {
        now: Box<Replica>,
        past: Vec<Replica>,
    },
}

impl Table {
    /// A table that the metadata know.
    pub(crate) fn load(session: &Session, stored: StoredTable) -> Result<Self> {
        let layout = session.config.layout;
        let writer = match layout {
            Layout::Append | Layout::Rows => Writer::History(Box::new(History::new(layout, &stored))),
            Layout::Changelog => {
                let [source, transaction] = OBJECTS.map(|object| ddl::object_key(&stored.name, object));
                let source = session.catalog.load_columns(&*session.connection()?, &source)?;
                let transaction = session.catalog.load_columns(&*session.connection()?, &transaction)?;
                Writer::Changelog(Box::new(Changelog::new(&stored, source, transaction)))
            }
            Layout::Replica { delete } => Writer::Replica {
                now: Box::new(Replica::new(&stored, delete)),
                past: Replica::of_past_keys(&stored, delete),
            },
        };
        Ok(Self { stored, bindings: Vec::new(), writer, lost_key_told: false })
    }

    /// Creates the table for rows of `schema`, of which the first has `order`, and writes it down.
    pub(crate) fn create(
        session: &Session,
        schema: &RowSchema,
        order: Order,
        notices: &mut Vec<SinkNotice>,
    ) -> Result<Self> {
        let layout = session.config.layout;
        let (base, first_choice) = naming::choose(session, &schema.table)?;
        let mut stored = StoredTable {
            source: (*schema.table).clone(),
            layout: layout.name().to_owned(),
            name: ddl::table_name(layout, &base),
            view: ddl::view_name(&session.config, &base),
            keys: vec![StoredKey { columns: key_names(schema), order, first: true }],
            initial: 0,
            truncated: None,
            shape: Shape::default(),
        };
        stored.shape.bind(&Arc::new(schema.clone()), &Duck, session.rules(), &HashSet::new())?;
        stored.initial = stored.shape.columns.len();
        let source = schema.table.qualified();
        session.run(&ddl::create(&session.config, &stored), || {
            format!("creating table {} for {source}", stored.name)
        })?;
        session.catalog.register(&*session.connection()?, &stored)?;
        session.take(&stored.name);
        stored.view.iter().for_each(|view| session.take(view));
        session.catalog.put_columns(&*session.connection()?, &stored.name, &stored.shape)?;
        let writer = match layout {
            Layout::Append | Layout::Rows => Writer::History(Box::new(History::new(layout, &stored))),
            Layout::Changelog => {
                let shapes = [object::source_shape(), object::transaction_shape()];
                for (object, shape) in OBJECTS.iter().zip(&shapes) {
                    let key = ddl::object_key(&stored.name, *object);
                    session.catalog.put_columns(&*session.connection()?, &key, shape)?;
                }
                let [source, transaction] = shapes;
                Writer::Changelog(Box::new(Changelog::new(&stored, source, transaction)))
            }
            Layout::Replica { delete } => {
                Writer::Replica { now: Box::new(Replica::of_new(&stored, delete)), past: Vec::new() }
            }
        };
        if base != first_choice {
            notices.push(notice(
                "table_renamed",
                format!("table {source} is called {base}, because {first_choice} is taken by another table"),
            ));
        }
        let table = Self { stored, bindings: Vec::new(), writer, lost_key_told: false };
        for position in 0..table.stored.shape.columns.len() {
            table.comment(session, position, notices)?;
        }
        table.recreate_view(session)?;
        if is_keyless(schema) {
            notices.extend(no_key(layout, schema));
        }
        Ok(table)
    }

    /// Whether it holds rows of this source table.
    pub(crate) fn is_of(&self, source: &TableName) -> bool {
        self.stored.source == *source
    }

    /// Forgets how schemas map to it.
    pub(crate) fn forget_bindings(&mut self) {
        self.bindings.clear();
    }

    /// Maps a schema, of which an event with `order` came. Changes are made in memory only: [`Table::evolve`] has to follow.
    pub(crate) fn bind(
        &mut self,
        session: &Session,
        schema: &Arc<RowSchema>,
        order: Order,
        notices: &mut Vec<SinkNotice>,
    ) -> Result<(usize, Vec<Change>)> {
        let mut wide = HashSet::new();
        for column in self.stored.shape.asks_for_wide_ints(schema) {
            self.flush(session)?;
            if ddl::has_wide_ints(session, &self.stored, &column)? {
                wide.insert(column);
            }
        }
        let only_truncated = self.stored.shape.columns.is_empty();
        let (binding, changes) = self.stored.shape.bind(schema, &Duck, session.rules(), &wide)?;
        if only_truncated && is_keyless(schema) {
            notices.extend(no_key(session.config.layout, schema));
        }
        let is_plain = session.config.layout == Layout::Rows;
        if is_plain
            && let Some(error) = plain::contradiction(&self.stored.shape, &binding, &self.stored.name, &Duck)
        {
            return Err(error);
        }
        let lost = is_keyless(schema) && !is_plain && !Keyed::now(&self.stored).columns.is_empty();
        // Each decoder has schemas of its own, and each of them comes here.
        if lost && !std::mem::replace(&mut self.lost_key_told, true) {
            let text = format!(
                "rows of {} come without a key now: no replica takes them, and a latest view takes them by the key before",
                self.stored.source
            );
            notices.push(notice("no_key", text));
        }
        if let Some(keyed) = Keyed::of(&self.stored, schema) {
            self.bindings.push((binding, keyed));
            return Ok((self.bindings.len() - 1, changes));
        }
        let key = StoredKey { columns: key_names(schema), order, first: only_truncated };
        let place = self.stored.keys.partition_point(|k| k.order < order);
        if place == self.stored.keys.len() || !changes.is_empty() {
            // The columns first: what is made anew for the new key reads them.
            self.evolve(session, &changes, notices)?;
        }
        let place = if only_truncated {
            // The key that the table has had all along: truncates tell none.
            self.stored.keys = vec![key];
            0
        } else {
            notices.push(self.key_changed(place, &key));
            self.stored.keys.insert(place, key);
            place
        };
        self.take_keys(session)?;
        let (binding, changes) = self.stored.shape.bind(schema, &Duck, session.rules(), &wide)?;
        self.bindings.push((binding, Keyed::new(&self.stored, place)));
        Ok((self.bindings.len() - 1, changes))
    }

    fn key_changed(&self, place: usize, key: &StoredKey) -> SinkNotice {
        let (source, columns) = (&self.stored.source, key.columns.join(", "));
        let text = if place == self.stored.keys.len() {
            format!("the key of {source} is now ({columns})")
        } else {
            format!("an event of {source} came late, under the key ({columns}) that the table had before")
        };
        notice("key_changed", text)
    }

    /// Follows a change of the stored keys. Nothing waits in the writer if the newest one changed.
    fn take_keys(&mut self, session: &Session) -> Result<()> {
        for (binding, keyed) in &mut self.bindings {
            *keyed = Keyed::of(&self.stored, &binding.schema).expect("invariant: no key is ever forgotten");
        }
        if let Writer::Replica { now, past } = &mut self.writer {
            past.iter_mut().try_for_each(|replica| replica.apply(session))?;
            now.learn_keys(&self.stored);
            now.renew_past(past);
        }
        session.catalog.update(&*session.connection()?, &self.stored)?;
        self.recreate_view(session)
    }

    /// Alters the table by changes that its shape already holds.
    pub(crate) fn evolve(
        &mut self,
        session: &Session,
        changes: &[Change],
        notices: &mut Vec<SinkNotice>,
    ) -> Result<()> {
        self.flush(session)?;
        self.bindings.clear();
        let physical = changes.iter().any(|change| !matches!(change, Change::Known { .. }));
        if let Writer::Replica { now, past } = &self.writer
            && physical
            && past.iter().chain([&**now]).any(|replica| replica.is_changed(session))
        {
            session.renew()?;
        }
        let structs = physical && session.config.layout == Layout::Changelog;
        if structs {
            // Once for all changes: each rewrites the table.
            let sql =
                ddl::alter_structs(&session.config, &self.stored, &["before", "after"], &self.stored.shape);
            session.run(&sql, || format!("altering table {}", self.stored.name))?;
        }
        for change in changes {
            self.alter(session, change, notices)?;
        }
        self.reshape(session.config.layout);
        if physical { self.recreate_view(session) } else { Ok(()) }
    }

    fn alter(&mut self, session: &Session, change: &Change, notices: &mut Vec<SinkNotice>) -> Result<()> {
        let (position, change_name, from) = match change {
            Change::Add { column } => (*column, "add", None),
            Change::Widen { column, from } => (*column, "widen", Some(from)),
            Change::Known { column } => {
                let column_now = &self.stored.shape.columns[*column];
                return session.catalog.put_column(
                    &*session.connection()?,
                    &self.stored.name,
                    *column,
                    column_now,
                );
            }
        };
        let column = &self.stored.shape.columns[position];
        let doing = || format!("altering column {} of table {}", column.name, self.stored.name);
        if session.config.layout != Layout::Changelog {
            session.run(&ddl::alter(&session.config, &self.stored, position, from), doing)?;
        }
        session.catalog.put_column(&*session.connection()?, &self.stored.name, position, column)?;
        let to = sql_type(&column.ty);
        let from = from.map(sql_type);
        let text = match &from {
            None => format!("table {}: column {} {to} was added", self.stored.name, quote(&column.name)),
            Some(from) => {
                format!("table {}: column {} went from {from} to {to}", self.stored.name, quote(&column.name))
            }
        };
        notices.push(notice(if from.is_none() { "column_added" } else { "column_widened" }, text));
        let logged =
            SchemaChange { table: &self.stored.name, column: &column.name, change: change_name, from, to };
        session.catalog.log_change(&*session.connection()?, session.mark, &logged)?;
        if matches!(change, Change::Add { .. }) { self.comment(session, position, notices) } else { Ok(()) }
    }

    /// Keeps the source's name of a column that had to be renamed.
    fn comment(&self, session: &Session, position: usize, notices: &mut Vec<SinkNotice>) -> Result<()> {
        let column = &self.stored.shape.columns[position];
        if *column.name == *column.source {
            return Ok(());
        }
        let text = format!(
            "table {}: the source's column {:?} is called {:?}",
            self.stored.name, column.source, column.name
        );
        notices.push(notice("column_renamed", text));
        match ddl::comment(&session.config, &self.stored, position) {
            Some(sql) => session.run(&sql, || format!("commenting on column {}", column.name)),
            None => Ok(()),
        }
    }

    fn recreate_view(&self, session: &Session) -> Result<()> {
        match ddl::view(&session.config, &self.stored) {
            Some(sql) => session.run(&sql, || format!("creating the view of {}", self.stored.name)),
            None => Ok(()),
        }
    }

    /// Takes an event. The first `Err` is a failure of DuckDB, the second says why the event has no place.
    pub(crate) fn push(
        &mut self,
        session: &Session,
        binding: usize,
        judged: &Judged,
        notices: &mut Vec<SinkNotice>,
    ) -> Result<Result<Taken, Trouble>> {
        let (binding, keyed) = &self.bindings[binding];
        match &mut self.writer {
            Writer::History(history) => {
                if let Err(trouble) = history.push(&self.stored, keyed, binding, &judged.event, session.mark)
                {
                    return Ok(Err(trouble));
                }
                if history.batches().chunk_is_full() {
                    history.end_chunk(session, place(session, &self.stored))?;
                }
                if judged.event.row.has_unchanged() {
                    let names: Vec<_> =
                        millstream_layout::rows::unchanged(&self.stored.shape, binding, &judged.event.row)
                            .collect();
                    self.note_unchanged(session, &names.into_iter().map(str::to_owned).collect::<Vec<_>>())?;
                }
            }
            Writer::Changelog(changelog) => {
                match changelog.push(&self.stored, binding, judged, session.mark, session.rules())? {
                    Ok(()) if changelog.batches().chunk_is_full() => {
                        changelog.end_chunk(session, place(session, &self.stored))?;
                    }
                    Ok(()) => {}
                    Err(Obstacle::Row(trouble)) => return Ok(Err(trouble)),
                    Err(Obstacle::Object(object, changes)) => {
                        self.evolve_object(session, object, &changes, notices)?;
                        // The caller asks again, with the binding that it has.
                        return Ok(Err(Trouble::Mended));
                    }
                }
            }
            Writer::Replica { now, past } => {
                let event = &judged.event;
                if now.is_truncated(&event.order) {
                    return Ok(Ok(Taken::Superseded));
                }
                if event.op == Op::Truncate {
                    past.iter_mut().try_for_each(|replica| replica.apply(session))?;
                }
                let replica = if keyed.past { &mut past[keyed.place] } else { &mut **now };
                let taken = replica.push(session, binding, event, judged.current_row())?;
                if replica.is_full() {
                    self.flush(session)?;
                }
                return Ok(taken);
            }
        }
        Ok(Ok(Taken::Written))
    }

    /// Remembers which columns ever came without their value: the latest view must look these up.
    fn note_unchanged(&mut self, session: &Session, names: &[String]) -> Result<()> {
        let fresh = |c: &millstream_layout::shape::TargetColumn| !c.unchanged && names.contains(&c.name);
        let fresh: Vec<_> =
            (0..self.stored.shape.columns.len()).filter(|&i| fresh(&self.stored.shape.columns[i])).collect();
        for &position in &fresh {
            self.stored.shape.columns[position].unchanged = true;
            let column = &self.stored.shape.columns[position];
            session.catalog.put_column(&*session.connection()?, &self.stored.name, position, column)?;
        }
        if fresh.is_empty() { Ok(()) } else { self.recreate_view(session) }
    }

    /// Takes late values for an earlier event; only replicas do.
    pub(crate) fn patch(&mut self, binding: usize, patch: &Patch) -> Result<(), Trouble> {
        let (binding, keyed) = &self.bindings[binding];
        match &mut self.writer {
            Writer::Replica { now, past } => {
                let replica = if keyed.past { &mut past[keyed.place] } else { &mut **now };
                replica.patch(binding, patch)
            }
            Writer::History(_) | Writer::Changelog(_) => Ok(()),
        }
    }

    /// Columns of the table, those in structs too, and about as many as the layout adds.
    pub(crate) fn columns(&self) -> usize {
        self.stored.shape.columns.len() * if matches!(self.writer, Writer::Changelog(_)) { 2 } else { 1 } + 12
    }

    /// Bytes of rows that wait in memory.
    pub(crate) fn pending_bytes(&self) -> usize {
        match &self.writer {
            Writer::History(history) => history.batches().pending_bytes(),
            Writer::Changelog(changelog) => changelog.batches().pending_bytes(),
            Writer::Replica { now, past } => past.iter().chain([&**now]).map(Replica::pending_bytes).sum(),
        }
    }

    /// Appends and applies everything that waits.
    pub(crate) fn flush(&mut self, session: &Session) -> Result<()> {
        let place = place(session, &self.stored);
        match &mut self.writer {
            Writer::History(history) => history.flush(session, place),
            Writer::Changelog(changelog) => changelog.flush(session, place),
            Writer::Replica { now, past } => {
                // What came under an older key is older: a delete under the table's key finds its row.
                past.iter_mut().try_for_each(|replica| replica.apply(session))?;
                now.apply(session)?;
                self.stored.truncated = now.truncated();
                Ok(())
            }
        }
    }

    /// Makes the writer anew after the columns or the key changed; nothing waits in it then.
    fn reshape(&mut self, layout: Layout) {
        match &mut self.writer {
            Writer::History(history) => **history = History::new(layout, &self.stored),
            Writer::Changelog(changelog) => {
                let shapes = (changelog.source.shape.clone(), changelog.transaction.shape.clone());
                **changelog = Changelog::new(&self.stored, shapes.0, shapes.1);
            }
            Writer::Replica { now, past } => {
                now.reshape(&self.stored);
                now.renew_past(past);
            }
        }
    }

    /// Alters an object column of a changelog by changes that its shape already holds.
    fn evolve_object(
        &mut self,
        session: &Session,
        object: ObjectColumn,
        changes: &[Change],
        notices: &mut Vec<SinkNotice>,
    ) -> Result<()> {
        self.flush(session)?;
        let Writer::Changelog(changelog) = &mut self.writer else { return Ok(()) };
        let shape = match object {
            ObjectColumn::Source => &changelog.source.shape,
            ObjectColumn::Transaction => &changelog.transaction.shape,
        };
        let column = ddl::object_name(object);
        session.run(&ddl::alter_structs(&session.config, &self.stored, &[column], shape), || {
            format!("altering column {column} of table {}", self.stored.name)
        })?;
        session.catalog.put_columns(
            &*session.connection()?,
            &ddl::object_key(&self.stored.name, object),
            shape,
        )?;
        for change in changes {
            let (Change::Add { column: field }
            | Change::Widen { column: field, .. }
            | Change::Known { column: field }) = change;
            let field = &shape.columns[*field];
            let name = format!("{column}.{}", field.name);
            let (to, from) = (
                sql_type(&field.ty),
                if let Change::Widen { from, .. } = change { Some(sql_type(from)) } else { None },
            );
            let change = if from.is_some() { "widen" } else { "add" };
            notices.push(notice("column_added", format!("table {}: {name} is now {to}", self.stored.name)));
            let logged = SchemaChange { table: &self.stored.name, column: &name, change, from, to };
            session.catalog.log_change(&*session.connection()?, session.mark, &logged)?;
        }
        self.reshape(session.config.layout);
        Ok(())
    }

    /// Whether the value that did not convert may go to a text column beside.
    pub(crate) fn may_spill(&self, binding: usize, column: usize, judged: &Judged) -> bool {
        let (binding, _) = &self.bindings[binding];
        let bound = binding.cells[column];
        let Some(source) = bound.source else { return false };
        let from = &binding.schema.columns[source].ty;
        !bound.same && convert(judged.event.row.get(source), from, &Type::Text).is_ok()
    }

    /// Adds a text column beside one whose values don't all convert.
    pub(crate) fn spill(&mut self, column: usize) -> Change {
        self.stored.shape.add_text_beside(column)
    }

    /// Adds a column for a source column of which only NULLs were seen, by the type of its first value.
    pub(crate) fn learn(&mut self, way: usize, at: usize, judged: &Judged, rules: Rules) -> Option<Change> {
        let row = if judged.event.op == Op::Delete { &judged.event.row } else { judged.current_row() };
        // Values that are left out are large ones, which come as texts where nothing tells their type.
        let ty = match row.get(at) {
            Value::Unchanged => Type::Text,
            value => evolution::storable(&value.inferred_type(), rules.decimals),
        };
        let name = self.bindings[way].0.schema.columns[at].name.clone();
        self.stored.shape.learn(&Duck, &name, ty)
    }

    /// Why a row is refused.
    pub(crate) fn cause(&self, binding: usize, trouble: Trouble) -> Cause {
        trouble.cause(&self.stored.shape, &self.bindings[binding].0.schema, &self.stored.source, &Duck)
    }
}

const OBJECTS: [ObjectColumn; 2] = [ObjectColumn::Source, ObjectColumn::Transaction];

fn place<'a>(session: &'a Session, stored: &'a StoredTable) -> Place<'a> {
    Place { catalog: None, dataset: &session.config.dataset, table: &stored.name }
}

/// Whether rows of a schema have no key. A truncate's schema, which has no columns at all, says nothing of that.
fn is_keyless(schema: &RowSchema) -> bool {
    schema.key.is_empty() && !schema.columns.is_empty()
}

fn no_key(layout: Layout, schema: &RowSchema) -> Option<SinkNotice> {
    let missing = match layout {
        Layout::Append => "no latest view",
        Layout::Changelog => "no key in its rows",
        Layout::Rows => return None,
        Layout::Replica { .. } => "no replica",
    };
    let source = schema.table.qualified();
    Some(notice("no_key", format!("table {source} has no key, hence {missing}; set one in the config")))
}

fn key_names(schema: &RowSchema) -> Vec<String> {
    schema.key_names().map(str::to_owned).collect()
}

fn notice(code: &'static str, text: String) -> SinkNotice {
    SinkNotice { code, text, count: 1 }
}
