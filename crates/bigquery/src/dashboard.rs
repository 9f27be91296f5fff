//! Views of a sink's tables that the config declares, for dashboards: made with the tables, and anew when columns change.

use std::time::Duration;

use millstream_core::sink::SinkNotice;
use millstream_core::{Error, Kind, Result};

use crate::config::BigqueryConfig;
use crate::job::{JobId, Query};
use crate::names::fold;
use crate::note::TableNote;
use crate::resource::{DatasetId, TableId};
use crate::session::Session;
use crate::target::notice;
use crate::transfer::ScheduledQuery;

const DDL_PATIENCE: Duration = Duration::from_secs(300);

/// How a query's result is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewKind {
    /// Not at all.
    View,
    /// By BigQuery, which keeps it up to date.
    Materialized,
    /// As a table that is written anew at times: `every 24 hours`, `every monday 09:00`.
    Scheduled {
        /// When, in the words of the Data Transfer Service.
        schedule: String,
    },
}

/// A query with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DashboardView {
    /// What it is called in the sink's dataset.
    pub name: String,
    /// How its result is kept.
    pub kind: ViewKind,
    /// The query; `{project}` and `{dataset}` stand for the sink's.
    pub sql: String,
}

impl DashboardView {
    /// Its query, with the names of a sink filled in.
    pub fn sql(&self, config: &BigqueryConfig) -> String {
        let sql = self.sql.replace("{project}", &config.project).replace("{dataset}", &config.dataset);
        sql.trim().trim_end_matches(';').to_owned()
    }
}

/// The views of a sink.
pub(crate) struct Dashboard {
    config: BigqueryConfig,
    /// Which are to be looked at.
    due: Vec<bool>,
}

impl Dashboard {
    pub(crate) fn new(config: &BigqueryConfig) -> Self {
        Self { due: vec![true; config.views.len()], config: config.clone() }
    }

    /// Tables or columns are new: each view is looked at again.
    pub(crate) fn renew(&mut self) {
        self.due.fill(true);
    }

    /// Makes what is due. What cannot be made, such as a view of a table that is not there yet, is told, stops nothing, and is tried again
    /// with the next table or column.
    pub(crate) async fn put(&mut self, session: &Session, notices: &mut Vec<SinkNotice>) {
        for (view, due) in self.config.views.iter().zip(&mut self.due) {
            if !std::mem::take(due) {
                continue;
            }
            let Err(error) = put(session, &self.config, view).await else { continue };
            *due = error.kind() == Kind::Transient;
            let what = if *due { "will be tried again" } else { "is not as it should be" };
            notices.push(notice("view_not_made", format!("{} {what}: {error}", view.name)));
        }
    }
}

async fn put(session: &Session, config: &BigqueryConfig, view: &DashboardView) -> Result<()> {
    let dataset = DatasetId::new(&config.project, &config.dataset);
    let id = dataset.table(&view.name);
    let sql = view.sql(config);
    let there = session.rest.table(&id).await?;
    let description = there.as_ref().and_then(|there| there.description.as_deref());
    let is_view = there.as_ref().is_some_and(|there| there.view.is_some());
    // A latest view of the pipeline is in the way too; and a scheduled query may write a table, but none of the pipeline's.
    let is_taken = session.table(&view.name) == id && session.taken.contains(&fold(&view.name));
    let is_ours = is_taken || description.and_then(TableNote::read).is_some();
    let is_table = there.is_some() && !is_view && !matches!(view.kind, ViewKind::Scheduled { .. });
    if is_ours || is_table {
        let what = if is_view { "view of the pipeline" } else { "table" };
        let text = format!("{id} is a {what}, and a view is to have this name: rename one of them");
        return Err(Error::fatal(text));
    }
    one_query(session, config, &id, &sql).await?;
    if let ViewKind::Scheduled { schedule } = &view.kind {
        let found = session.rest.dataset(&dataset).await?;
        let location = found.and_then(|dataset| dataset.location).unwrap_or_else(|| "us".to_owned());
        let query = ScheduledQuery {
            display_name: &format!("millstream {} {} {}", config.pipeline, config.name, view.name),
            dataset: &config.dataset,
            table: &view.name,
            sql: &sql,
            schedule,
        };
        return session.rest.put_scheduled_query(&config.project, &location, &query).await;
    }
    let what = if view.kind == ViewKind::Materialized { "MATERIALIZED VIEW" } else { "VIEW" };
    match there {
        // A view with `*` takes up new columns when it is made anew; a materialized one would be computed again for nothing.
        Some(there) if there.view.as_deref() == Some(&*sql) && view.kind == ViewKind::Materialized => {
            return Ok(());
        }
        None if !config.create => {
            let text = format!("there is no view {id}, and the config says `create: never`: make it");
            return Err(Error::fatal(text));
        }
        _ => {}
    }
    run(session, config, &id, &format!("CREATE OR REPLACE {what} {} AS\n{sql}", id.sql())).await
}

/// Refuses SQL that is anything but one query: behind `CREATE VIEW … AS` other statements would run as a script.
async fn one_query(session: &Session, config: &BigqueryConfig, id: &TableId, sql: &str) -> Result<()> {
    let job = JobId::random(&config.project, config.location.clone());
    let query = Query { dry_run: true, ..Query::new(sql) };
    let seen = session.rest.start_query(&job, &query).await?;
    seen.failed(&format!("looking at the SQL of {id}"), true)?;
    match seen.statement.as_deref() {
        Some("SELECT") => Ok(()),
        other => Err(Error::fatal(format!(
            "the SQL of {id} is not one query ({}): a view is a single SELECT, without statements before or behind it",
            other.unwrap_or("of no known kind")
        ))),
    }
}

async fn run(session: &Session, config: &BigqueryConfig, id: &TableId, ddl: &str) -> Result<()> {
    let job = JobId::random(&config.project, config.location.clone());
    session
        .rest
        .run_query(&job, &Query::new(ddl), &format!("making the view {id}"), DDL_PATIENCE)
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layout;

    #[test]
    fn names_are_filled_in_and_a_semicolon_goes() {
        let config = BigqueryConfig::new("b", "acme", "cdc", Layout::Append);
        let sql = "SELECT * FROM `{project}.{dataset}.t_latest`;\n".to_owned();
        let view = DashboardView { name: "v".to_owned(), kind: ViewKind::View, sql };
        assert_eq!(view.sql(&config), "SELECT * FROM `acme.cdc.t_latest`");
    }
}
