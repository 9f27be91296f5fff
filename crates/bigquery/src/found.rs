//! The table of a source table: found, taken on, or made.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_core::sink::SinkNotice;
use millstream_core::{Error, Order, Result, RowSchema, Type};
use millstream_layout::names::table_candidates;
use millstream_layout::{
    Change, Shape, StoredKey, StoredTable, TargetColumn, history, object, replica, staging,
};

use crate::config::{DeleteMode, Layout};
use crate::dialect;
use crate::field::{Field, Mode};
use crate::form::{self, Objects};
use crate::names::{fold, table_name};
use crate::note::{self, TableNote};
use crate::resource::TableId;
use crate::roster::Roster;
use crate::session::Session;
use crate::table_resource::Table;
use crate::target::notice;

/// Names before those that are only numbered.
const NAMED_CANDIDATES: usize = 3;

/// A table, as Millstream and as the service knows it.
pub(crate) struct Found {
    pub(crate) stored: StoredTable,
    pub(crate) actual: Table,
    /// The order of its last truncate.
    pub(crate) truncated: Option<Order>,
    /// Whether it may hold a row twice.
    pub(crate) repeats: bool,
    /// Whether keys of staged rows have NULLs.
    pub(crate) null_in_key: bool,
    /// Whether rows of a replica that is merged may be marked as deleted.
    pub(crate) keeps_deleted: bool,
}

/// What a layout's table holds.
pub(crate) fn what(layout: Layout) -> &'static str {
    match layout {
        Layout::Append => "Full history",
        Layout::Changelog => "Full history, with the row before and after,",
        Layout::Envelope => "Every change as it came",
        Layout::Rows => "Rows",
        Layout::Replica { .. } => "Current rows",
        Layout::Staging { .. } => "Changes on their way into the current rows",
    }
}

/// What stands behind the name of the replica that a table is the staging of.
const STAGING_SUFFIX: &str = "__staging";

/// The replica whose staging is called so; behind the suffix may be a number.
pub(crate) fn staged_for(staging: &str) -> &str {
    staging.rfind(STAGING_SUFFIX).map_or(staging, |end| &staging[..end])
}

/// Whether a session's replicas are merged and keep rows that are deleted.
fn keeps_deleted(session: &Session) -> bool {
    session.config.merge.is_some() && session.config.layout == Layout::Replica { delete: DeleteMode::Soft }
}

/// A table that has to be there.
pub(crate) async fn table(session: &Session, id: &TableId) -> Result<Table> {
    session.rest.table(id).await?.ok_or_else(|| gone(id))
}

/// A table that was there is not.
pub(crate) fn gone(id: &TableId) -> Error {
    Error::fatal(format!(
        "{id} is gone, with rows of the pipeline: it was dropped or renamed. Rename it back, or copy it from before it was dropped (`bq cp`); \
         or delete the checkpoint directory and take a new snapshot with a raised `incarnation`"
    ))
}

/// The table for rows of `schema`, found or made, and written down.
pub(crate) async fn find(
    session: &mut Session,
    schema: &Arc<RowSchema>,
    order: Order,
    seed: Option<&StoredTable>,
    notices: &mut Vec<SinkNotice>,
) -> Result<Option<Found>> {
    let mut roster = session.roster.take();
    let found = find_or_make(session, (schema, order), seed, roster.as_ref(), notices).await;
    if let (Ok(Some(found)), Some(roster)) = (&found, &mut roster) {
        roster.note(session, &schema.table, &found.stored.name, order).await?;
    }
    session.roster = roster;
    found
}

async fn find_or_make(
    session: &mut Session,
    (schema, order): (&Arc<RowSchema>, Order),
    seed: Option<&StoredTable>,
    roster: Option<&Roster>,
    notices: &mut Vec<SinkNotice>,
) -> Result<Option<Found>> {
    let layout = session.config.layout;
    let mut free = None;
    // The one that it had before, wherever among the candidates that is: which names were taken then may be another thing now.
    for (at, base) in candidates(session, schema, seed).into_iter().enumerate() {
        let (name, view) = names_of(layout, &base);
        let names: Vec<_> = [Some(&name), view.as_ref()].into_iter().flatten().map(|n| fold(n)).collect();
        if names.iter().any(|name| session.taken.contains(name)) {
            continue;
        }
        let Some(actual) = session.rest.table(&session.table(&name)).await? else {
            free.get_or_insert((at, base));
            if at >= NAMED_CANDIDATES {
                break;
            }
            continue;
        };
        if let Some(found) = take_on(session, schema, order, (&name, view), actual)? {
            session.taken.extend(names);
            return Ok(Some(found));
        }
    }
    if matches!(layout, Layout::Replica { .. }) && schema.columns.is_empty() {
        return Ok(None);
    }
    if let Some((at, base)) = free {
        let (name, view) = names_of(layout, &base);
        session.taken.extend([Some(&name), view.as_ref()].into_iter().flatten().map(|n| fold(n)));
        if !session.config.create {
            return Err(missing(session, schema, &session.table(&name)));
        }
        if let Some(roster) = roster {
            roster.check(session, &schema.table, order).await?;
        }
        let Some(found) = create(session, schema, order, (&name, view), seed, notices).await? else {
            return Ok(None);
        };
        let source = schema.table.qualified();
        if at > 0 && seed.is_none() {
            let text =
                format!("table {source} is called {base}, because its own name is taken by another table");
            notices.push(notice("table_renamed", text));
        }
        if schema.key.is_empty() && !schema.columns.is_empty() {
            let missing = match layout {
                Layout::Staging { .. } | Layout::Envelope | Layout::Rows => return Ok(Some(found)),
                Layout::Append => "no latest view",
                Layout::Changelog => "no key in its rows",
                Layout::Replica { .. } => "no replica",
            };
            let text = format!("table {source} has no key, hence {missing}; set one in the config");
            notices.push(notice("no_key", text));
        }
        return Ok(Some(found));
    }
    Err(Error::fatal(format!("no free name for table {} in {}", schema.table, session.dataset)))
}

/// Base names, best first.
fn candidates(session: &Session, schema: &RowSchema, seed: Option<&StoredTable>) -> Vec<String> {
    if let Some(replica) = seed {
        let first = format!("{}{STAGING_SUFFIX}", replica.name);
        // A table of the source may be called so.
        let numbered = (2..100).map(|number| format!("{first}_{number}"));
        return std::iter::once(first.clone()).chain(numbered).collect();
    }
    let mut bases: Vec<String> = table_candidates(&schema.table, &session.config.table_name)
        .iter()
        .map(|name| table_name(name))
        .collect();
    let last = bases.last().cloned().unwrap_or_default();
    bases.extend((2..100).map(|number| format!("{last}_{number}")));
    bases
}

fn names_of(layout: Layout, base: &str) -> (String, Option<String>) {
    match layout {
        Layout::Append => (format!("{base}_raw"), Some(format!("{base}_latest"))),
        Layout::Changelog => (format!("{base}_changelog"), None),
        Layout::Replica { .. } | Layout::Staging { .. } | Layout::Envelope | Layout::Rows => {
            (base.to_owned(), None)
        }
    }
}

fn missing(session: &Session, schema: &RowSchema, id: &TableId) -> Error {
    let layout = session.config.layout;
    let ddl = new_stored(session, schema, Order::MIN, ("t", None), None).map(|stored| {
        let objects = new_objects(layout);
        let fields = form::fields(layout, &stored, objects.as_ref());
        fields.iter().map(Field::ddl).collect::<Vec<_>>().join(", ")
    });
    Error::fatal(format!(
        "there is no table {id}, and the config says `create: never`: make it with the columns ({})",
        ddl.unwrap_or_default()
    ))
}

fn new_objects(layout: Layout) -> Option<Objects> {
    (layout == Layout::Changelog).then(|| Objects {
        source: object::Nested::new(object::source_shape()),
        transaction: object::Nested::new(object::transaction_shape()),
    })
}

fn new_stored(
    session: &Session,
    schema: &RowSchema,
    order: Order,
    (name, view): (&str, Option<String>),
    seed: Option<&StoredTable>,
) -> Result<StoredTable> {
    let columns = schema.key_names().map(str::to_owned).collect();
    let mut stored = StoredTable {
        source: (*schema.table).clone(),
        layout: session.config.layout.name().to_owned(),
        name: name.to_owned(),
        view,
        keys: seed.map_or_else(|| vec![StoredKey { columns, order, first: true }], |seed| seed.keys.clone()),
        initial: 0,
        truncated: None,
        shape: Shape::default(),
    };
    if let Some(replica) = seed {
        seeded(&mut stored.shape, &replica.shape, schema);
    }
    stored.shape.bind(
        &Arc::new(schema.clone()),
        dialect::of(&session.config),
        session.rules(),
        &HashSet::new(),
    )?;
    if session.config.layout.is_current() {
        keyed(session, &mut stored.shape, schema);
    }
    stored.initial = stored.shape.columns.len();
    Ok(stored)
}

async fn create(
    session: &Session,
    schema: &RowSchema,
    order: Order,
    (name, view): (&str, Option<String>),
    seed: Option<&StoredTable>,
    notices: &mut Vec<SinkNotice>,
) -> Result<Option<Found>> {
    let layout = session.config.layout;
    let stored = new_stored(session, schema, order, (name, view), seed)?;
    let objects = new_objects(layout);
    let mut fields = form::fields(layout, &stored, objects.as_ref());
    let mut primary_key = Vec::new();
    if session.is_upserted() {
        if let Some(problem) = form::key_problem(&stored, &fields) {
            notices.push(notice(
                "no_replica",
                format!(
                    "{} cannot be a replica with native upserts and is left out: {problem}; use `layout: append` for it",
                    schema.table
                ),
            ));
            return Ok(None);
        }
        primary_key = form::key_names(&stored);
    }
    let required = form::required(layout, &stored, schema);
    for field in fields.iter_mut().filter(|f| primary_key.contains(&f.name) || required.contains(&f.name)) {
        if field.mode != Mode::Repeated {
            field.mode = Mode::Required;
        }
    }
    let table_note = TableNote {
        pipeline: session.config.pipeline.clone(),
        sink: session.config.name.clone(),
        source: stored.source.clone(),
        keys: stored.keys.clone(),
        truncated: None,
        repeats: session.config.history_repeats,
        merged: session.config.merge.is_some(),
        null_in_key: false,
        keeps_deleted: keeps_deleted(session),
    };
    let table = Table {
        clustering: form::clustering(&session.config, &stored, &fields),
        primary_key,
        partitioning: form::partitioning(&session.config, &stored),
        fields,
        labels: labels(session),
        description: Some(table_note.describe(None, what(layout))),
        max_staleness: session.max_staleness(),
        ..Table::default()
    };
    let id = session.table(name);
    let is_new = session.rest.create_table(&id, &table).await?;
    // What the service made of it, and its version.
    let actual = self::table(session, &id).await?;
    if !is_new {
        // Somebody was faster, perhaps another sink.
        let taken = take_on(session, schema, order, (name, stored.view), actual)?;
        let other =
            || Error::transient(format!("{id} was just made by another sink: another name is looked for"));
        return taken.map(Some).ok_or_else(other);
    }
    let repeats = session.config.history_repeats;
    let keeps_deleted = keeps_deleted(session);
    Ok(Some(Found { stored, actual, truncated: None, repeats, null_in_key: false, keeps_deleted }))
}

pub(crate) fn labels(session: &Session) -> std::collections::BTreeMap<String, String> {
    let mut labels = session.config.labels.clone();
    let fine = |c: char| if c.is_alphanumeric() || c == '_' || c == '-' { c } else { '-' };
    let value = |text: &str| text.to_lowercase().chars().map(fine).take(63).collect::<String>();
    labels.insert("millstream_pipeline".to_owned(), value(&session.config.pipeline));
    labels.insert("millstream_sink".to_owned(), value(&session.config.name));
    labels
}

/// A table that is there: ours, one that may become ours, or (`None`) another's.
fn take_on(
    session: &Session,
    schema: &RowSchema,
    order: Order,
    (name, view): (&str, Option<String>),
    actual: Table,
) -> Result<Option<Found>> {
    if actual.view.is_some() {
        return Ok(None);
    }
    let layout = session.config.layout;
    let note = actual.description.as_deref().and_then(TableNote::read);
    if let Some(note) = &note {
        let is_ours = note.pipeline == session.config.pipeline && note.sink == session.config.name;
        if !is_ours || note.source != *schema.table {
            return Ok(None);
        }
    }
    if matches!(layout, Layout::Replica { .. }) {
        one_way(session, &session.table(name), note.as_ref(), &actual)?;
    }
    let is_ours = note.is_some();
    let repeats = session.config.history_repeats || note.as_ref().is_some_and(|note| note.repeats);
    let truncated = note.as_ref().and_then(|note| note.truncated);
    let null_in_key = note.as_ref().is_some_and(|note| note.null_in_key);
    let keeps_deleted = keeps_deleted(session) || note.as_ref().is_some_and(|note| note.keeps_deleted);
    let keys = note.map_or_else(
        || vec![StoredKey { columns: schema.key_names().map(str::to_owned).collect(), order, first: true }],
        |note| note.keys,
    );
    let (mut shape, initial) = shape_of(layout, &actual);
    if layout != Layout::Changelog {
        shape.columns = shape.columns.into_iter().map(|column| of_schema(column, schema)).collect();
    }
    let stored = StoredTable {
        source: (*schema.table).clone(),
        layout: layout.name().to_owned(),
        name: name.to_owned(),
        view,
        keys,
        initial,
        truncated: None,
        shape,
    };
    if session.is_upserted() {
        let declared: Vec<_> = actual.primary_key.iter().map(|name| fold(name)).collect();
        let wanted: Vec<_> = schema.key_names().map(fold).collect();
        if !is_ours
            && !schema.key.is_empty()
            && declared != wanted
            && actual.primary_key != form::key_names(&stored)
        {
            return Err(Error::fatal(format!(
                "{} has the primary key ({}), and rows of {} have ({}): declare that one, or write to another table",
                session.table(name),
                actual.primary_key.join(", "),
                schema.table,
                schema.key_names().collect::<Vec<_>>().join(", ")
            )));
        }
    }
    let is_declared = |field: &Field| schema.columns.iter().any(|c| fold(&c.name) == fold(&field.name));
    if layout == Layout::Rows
        && let Some(field) = actual.fields.iter().find(|f| f.mode == Mode::Required && !is_declared(f))
    {
        return Err(Error::fatal(format!(
            "column {} of {} is REQUIRED, and the config does not declare it for {}: declare it, or make it NULLABLE",
            field.name,
            session.table(name),
            schema.table
        )));
    }
    let nullable = |name: &&String| {
        actual.fields.iter().any(|f| fold(&f.name) == fold(name) && f.mode != Mode::Required)
    };
    if let Some(column) = actual.primary_key.iter().find(nullable) {
        return Err(Error::fatal(format!(
            "{}: column {column} of its primary key may be NULL, so that rows without a value there would replace each other; make it REQUIRED",
            session.table(name)
        )));
    }
    Ok(Some(Found { stored, actual, truncated, repeats, null_in_key, keeps_deleted }))
}

/// The columns of the source's values in a table, and how many of them it was made with.
fn shape_of(layout: Layout, actual: &Table) -> (Shape, usize) {
    let own = match layout {
        Layout::Append => history::own_columns(),
        Layout::Replica { .. } => replica::own_columns(),
        Layout::Staging { .. } => staging::own_columns(),
        Layout::Envelope | Layout::Rows => Vec::new(),
        Layout::Changelog => {
            let image = actual.fields.iter().find(|f| f.name == "after");
            let shape = image.map(note::read_record).unwrap_or_default();
            let initial = shape.columns.len();
            return (shape, initial);
        }
    };
    let is_own = |field: &&Field| own.iter().any(|own| fold(&own.name) == fold(&field.name));
    let first_own = actual.fields.iter().position(|f| is_own(&f)).unwrap_or(actual.fields.len());
    let of_source = |fields: &[Field]| -> Vec<_> {
        fields.iter().filter(|f| !is_own(f)).filter_map(note::read).collect()
    };
    let mut columns = of_source(&actual.fields[..first_own]);
    let initial = columns.len();
    columns.extend(of_source(&actual.fields[first_own..]));
    (Shape { columns }, initial)
}

/// What is known of a table that Millstream described; `None` for others.
pub(crate) fn described(layout: Layout, name: &str, actual: &Table) -> Option<(StoredTable, TableNote)> {
    let note = actual.description.as_deref().and_then(TableNote::read)?;
    let (shape, initial) = shape_of(layout, actual);
    let stored = StoredTable {
        source: note.source.clone(),
        layout: layout.name().to_owned(),
        name: name.to_owned(),
        view: None,
        keys: note.keys.clone(),
        initial,
        truncated: None,
        shape,
    };
    Some((stored, note))
}

/// Gives a table of current rows a column for each part of the key, also where no row has a value for it yet: a primary key is declared
/// whole, and a row that is merged is known by all parts.
pub(crate) fn keyed(session: &Session, shape: &mut Shape, schema: &RowSchema) -> Vec<Change> {
    let is_missing = |name: &&str| shape.candidates(name).next().is_none();
    let missing: Vec<_> = schema.key_names().filter(is_missing).collect();
    let dialect = dialect::of(&session.config);
    missing.into_iter().filter_map(|name| shape.learn(dialect, name, Type::Text)).collect()
}

/// Gives a staging those columns of its replica that rows of a schema have and that it lacks: the replica's types, which somebody else may
/// have chosen, are those that values are converted to. Columns that no row has are left alone.
pub(crate) fn seeded(shape: &mut Shape, replica: &Shape, schema: &RowSchema) -> Vec<Change> {
    let mut changes = Vec::new();
    for source in schema.columns.iter().map(|c| &*c.name) {
        if shape.candidates(source).next().is_none() {
            for at in replica.candidates(source) {
                changes.push(Change::Add { column: shape.columns.len() });
                shape.columns.push(replica.columns[at].clone());
            }
        }
    }
    changes
}

/// A replica is written by native upserts or merged, for good: BigQuery takes no DML on a table that has changes of the former kind,
/// and does not bring both into one order.
fn one_way(session: &Session, id: &TableId, note: Option<&TableNote>, actual: &Table) -> Result<()> {
    let (is, wanted) = match (session.is_upserted(), note) {
        (true, Some(note)) if note.merged => ("merged (`delivery: merge`)", "`delivery: upsert`"),
        (false, Some(note)) if !note.merged => ("written by native upserts", "`delivery: merge`"),
        (false, None) if actual.max_staleness.is_some() => {
            ("made for native change data capture, as it has `max_staleness`", "`delivery: merge`")
        }
        _ => return Ok(()),
    };
    Err(Error::fatal(format!(
        "{id} is {is}, and the config says {wanted}: a table takes only one of the two, for good. Leave `delivery` as it was; or drop \
         the table, or name another dataset, and take a new snapshot with a raised `incarnation`"
    )))
}

/// A column that BigQuery takes for one of the schema's, whatever its case, is that one.
fn of_schema(mut column: TargetColumn, schema: &RowSchema) -> TargetColumn {
    let is_exact = schema.columns.iter().any(|c| c.name == column.source);
    let same = schema.columns.iter().find(|c| fold(&c.name) == fold(&column.name));
    if let Some(same) = same.filter(|_| !is_exact && *column.source == *column.name) {
        column.source = same.name.clone();
    }
    column
}
