//! A table's columns as they change: in BigQuery, in what is noted there, and in its view.

use std::time::Duration;

use millstream_core::sink::SinkNotice;
use millstream_core::{Error, Result, Type};
use millstream_layout::changelog::ObjectColumn;
use millstream_layout::{Change, Dialect as _};

use super::{SchemaChange, Target, notice};
use crate::config::Layout;
use crate::dialect;
use crate::field::{Field, Mode};
use crate::form::{self, Form};
use crate::found;
use crate::job::{JobId, Query};
use crate::merge::{merged, misfits};
use crate::names::fold;
use crate::note::TableNote;
use crate::resource::TableId;
use crate::session::Session;
use crate::sql::quote;
use crate::table_resource::{self as resource, Partitioning, TablePatch};
use crate::view;

/// For a statement that alters a table.
const ALTER_PATIENCE: Duration = Duration::from_secs(300);

impl Target {
    /// Alters the table by changes that its shape already holds.
    pub(crate) async fn evolve(
        &mut self,
        session: &Session,
        changes: &[Change],
        notices: &mut Vec<SinkNotice>,
    ) -> Result<()> {
        self.send(session).await?;
        self.bindings.clear();
        for change in changes {
            if let Change::Widen { column, from } = change {
                self.widen(session, *column, from).await?;
            }
        }
        self.put_columns(session).await?;
        for change in changes {
            self.tell(change, notices);
        }
        self.renew(session)?;
        self.put_view(session).await
    }

    /// Alters a struct of a changelog.
    pub(crate) async fn evolve_object(
        &mut self,
        session: &Session,
        object: ObjectColumn,
        changes: &[Change],
    ) -> Result<()> {
        self.send(session).await?;
        self.put_columns(session).await?;
        let Some(objects) = &self.objects else { return Ok(()) };
        let (name, shape) = match object {
            ObjectColumn::Source => ("source", &objects.source.shape),
            ObjectColumn::Transaction => ("transaction", &objects.transaction.shape),
        };
        for change in changes {
            let (Change::Add { column } | Change::Widen { column, .. } | Change::Known { column }) = change;
            let field = &shape.columns[*column];
            self.changes.push(SchemaChange {
                table: self.found.stored.name.clone(),
                column: format!("{name}.{}", field.name),
                change: "add",
                from: None,
                to: dialect::COLUMNS.sql_type(&field.ty),
            });
        }
        self.renew(session)
    }

    /// Rows are written by the columns as they are now.
    pub(super) fn renew(&mut self, session: &Session) -> Result<()> {
        self.form = Form::new(session.config.layout, &self.found.stored, self.objects.as_ref())?;
        let actual = &self.found.actual.fields;
        let stays = |name: &String| {
            self.required.contains(name) && actual.iter().any(|f| f.name == *name && f.mode == Mode::Required)
        };
        for field in self.form.fields.iter_mut().filter(|field| stays(&field.name)) {
            field.mode = Mode::Required;
        }
        self.lane.renew(&self.form);
        Ok(())
    }

    async fn widen(&mut self, session: &Session, position: usize, from: &Type) -> Result<()> {
        let column = &self.found.stored.shape.columns[position];
        let (before, after) = (dialect::COLUMNS.sql_type(from), dialect::COLUMNS.sql_type(&column.ty));
        let nested = session.config.layout == Layout::Changelog;
        if before == after || nested || matches!(column.ty, Type::Struct(_) | Type::List(_)) {
            // The same to BigQuery, or more members, which come with the columns.
            return Ok(());
        }
        let name = quote(&column.name);
        // Nothing of the old type may be on its way.
        self.lane.wait(session).await?;
        let sql = format!("ALTER TABLE {} ALTER COLUMN {name} SET DATA TYPE {after}", self.id.sql());
        let job = JobId::random(&session.config.project, session.config.location.clone());
        let what = format!("altering column {name} of {}", self.id);
        session.rest.run_query(&job, &Query::new(sql), &what, ALTER_PATIENCE).await?;
        self.lane.altered();
        if let Some(field) = self.found.actual.fields.iter_mut().find(|f| fold(&f.name) == fold(&column.name))
        {
            field.ty = dialect::field_of(&column.name, &column.ty).ty;
        }
        Ok(())
    }

    /// Adds the columns that are missing, and what is noted of columns.
    pub(super) async fn put_columns(&mut self, session: &Session) -> Result<()> {
        let wanted = form::fields(session.config.layout, &self.found.stored, self.objects.as_ref());
        let keys =
            if session.is_upserted() { self.found.actual.primary_key.clone() } else { self.required.clone() };
        for _ in 0..8 {
            let fields = merged(&self.found.actual.fields, &wanted, &keys);
            if let Some((there, wanted)) = misfits(&self.found.actual.fields, &wanted).first() {
                return Err(other_type(&self.id, there, wanted));
            }
            if fields == self.found.actual.fields {
                return Ok(());
            }
            let patch = TablePatch {
                fields: Some(fields),
                etag: self.found.actual.etag.clone(),
                ..TablePatch::default()
            };
            match session.rest.patch_table(&self.id, &patch).await {
                Ok(actual) => {
                    self.found.actual = actual;
                    return Ok(());
                }
                Err(error) if error.kind() == millstream_core::Kind::Transient => {
                    // Somebody else changed it: what they did stays.
                    self.found.actual = found::table(session, &self.id).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::transient(format!("{} is changed by others again and again", self.id)))
    }

    /// What the config says of a table that is there: how old a replica's rows may be, how long a history's are kept, its labels. Labels that
    /// the config does not name are somebody else's.
    pub(super) async fn put_options(&mut self, session: &Session) -> Result<()> {
        let mut patch = TablePatch::default();
        let staleness = session.max_staleness();
        if let Some(wanted) = staleness
            && self.found.actual.max_staleness.unwrap_or_default() != wanted
        {
            patch.max_staleness = staleness;
        }
        if let (Some(kept), Some(partitioning)) =
            (session.config.partition_expiration, &self.found.actual.partitioning)
            && partitioning.expiration != Some(kept)
        {
            patch.partitioning = Some(Partitioning { expiration: Some(kept), ..partitioning.clone() });
        }
        let mut labels = self.found.actual.labels.clone();
        labels.extend(found::labels(session));
        if labels != self.found.actual.labels {
            patch.labels = labels;
        }
        if patch != TablePatch::default() && session.config.create {
            self.found.actual = session.rest.patch_table(&self.id, &patch).await?;
        }
        Ok(())
    }

    /// Writes down what is known of the table.
    pub(super) async fn describe(&mut self, session: &Session) -> Result<()> {
        let note = TableNote {
            pipeline: session.config.pipeline.clone(),
            sink: session.config.name.clone(),
            source: self.found.stored.source.clone(),
            keys: self.found.stored.keys.clone(),
            truncated: self.truncated,
            repeats: self.found.repeats,
            merged: session.config.merge.is_some(),
            null_in_key: self.found.null_in_key,
            keeps_deleted: self.found.keeps_deleted,
        };
        let what = found::what(session.config.layout);
        let patch = TablePatch {
            description: Some(note.describe(self.found.actual.description.as_deref(), what)),
            ..TablePatch::default()
        };
        self.found.actual = session.rest.patch_table(&self.id, &patch).await?;
        Ok(())
    }

    fn tell(&mut self, change: &Change, notices: &mut Vec<SinkNotice>) {
        let (position, change, from) = match change {
            Change::Add { column } => (*column, "add", None),
            Change::Widen { column, from } => (*column, "widen", Some(dialect::COLUMNS.sql_type(from))),
            Change::Known { .. } => return,
        };
        let table = &self.found.stored;
        let column = &table.shape.columns[position];
        let to = dialect::COLUMNS.sql_type(&column.ty);
        if from.as_ref() == Some(&to) {
            // More digits, for which the column has room.
            return;
        }
        notices.push(match &from {
            None => {
                notice("column_added", format!("table {}: column {} {to} was added", table.name, column.name))
            }
            Some(from) => notice(
                "column_widened",
                format!("table {}: column {} went from {from} to {to}", table.name, column.name),
            ),
        });
        if *column.name != *column.source {
            let text = format!(
                "table {}: the source's column {:?} is called {:?}",
                table.name, column.source, column.name
            );
            notices.push(notice("column_renamed", text));
        }
        let (table, column) = (table.name.clone(), column.name.clone());
        self.changes.push(SchemaChange { table, column, change, from, to });
    }

    /// Makes or changes the latest view. What BigQuery does not take as a view stops nothing: the history is whole.
    pub(super) async fn put_view(&mut self, session: &Session) -> Result<()> {
        match self.try_view(session).await {
            Err(error) if error.kind() == millstream_core::Kind::Fatal => {
                let source = &self.found.stored.source;
                self.notices.push(notice(
                    "view_not_made",
                    format!("the latest view of {source} is not as it should be: {error}"),
                ));
                Ok(())
            }
            other => other,
        }
    }

    async fn try_view(&self, session: &Session) -> Result<()> {
        let stored = &self.found.stored;
        let Some(name) = &stored.view else { return Ok(()) };
        let Some(sql) = view::latest(&self.id, stored, self.found.repeats) else { return Ok(()) };
        let id = session.table(name);
        match session.rest.table(&id).await? {
            Some(there) if there.view.as_deref() == Some(&*sql) => Ok(()),
            Some(there) if there.view.is_some() => {
                let patch = TablePatch { view: Some(sql), ..TablePatch::default() };
                session.rest.patch_table(&id, &patch).await.map(drop)
            }
            Some(_) => Err(Error::fatal(format!(
                "{id} is a table, and the latest view of {} has this name: rename it, or set `table_name`",
                stored.source
            ))),
            None if !session.config.create => Err(Error::fatal(format!(
                "there is no view {id}, and the config says `create: never`: make it with the SQL that `millstream views` prints"
            ))),
            None => {
                let description = Some(format!("Current rows of {}", stored.source));
                let view = resource::Table { view: Some(sql), description, ..resource::Table::default() };
                session.rest.create_table(&id, &view).await.map(drop)
            }
        }
    }
}

fn other_type(id: &TableId, there: &Field, wanted: &Field) -> Error {
    Error::fatal(format!(
        "{id}: column {} is {}, and {} is written to it: drop or rename the column, or write to another table",
        there.name,
        there.sql_type(),
        wanted.sql_type()
    ))
}
