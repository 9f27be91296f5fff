//! Runs the statements: brings a replica's columns in line with its staging's, and merges.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use millstream_core::bytes::fnv1a;
use millstream_core::sink::SinkNotice;
use millstream_core::{Error, Kind, Order, Result};
use millstream_layout::{Change, StoredTable, replica};
use tokio::time::{Instant, sleep};

use super::statement::{Statement, Truncate, Window};
use super::{Shared, Staged};
use crate::backoff::Backoff;
use crate::changes::ChangeLog;
use crate::config::BigqueryConfig;
use crate::field::Field;
use crate::found::{self, Found};
use crate::job::{JobId, Query};
use crate::names::fold;
use crate::note::{self, TableNote};
use crate::resource::TableId;
use crate::session::Session;
use crate::target::{SchemaChange, Target};

/// Statements that run at a time.
const TOGETHER: usize = 8;
/// For one statement: BigQuery lets a query run for six hours.
const STATEMENT_PATIENCE: Duration = Duration::from_secs(6 * 3600);
/// A table that cannot be merged for so long, and so often, ends the run.
const FAILING_MAX: Duration = Duration::from_secs(600);
const FAILURES_MAX: u32 = 3;

/// Since when, and how often, a table was not merged.
struct Failing {
    since: Instant,
    times: u32,
}

/// Runs the statements of a sink's replicas.
pub(super) struct Applier {
    session: Session,
    staging: Session,
    keeps_deleted: bool,
    kept: Duration,
    changes: ChangeLog,
    failing: HashMap<String, Failing>,
    shared: Arc<Shared>,
}

/// What a statement did beside merging.
#[derive(Default)]
struct Merged {
    changes: Vec<SchemaChange>,
    notices: Vec<SinkNotice>,
}

impl Applier {
    pub(super) fn new(
        config: &BigqueryConfig,
        staging: &BigqueryConfig,
        (keeps_deleted, kept): (bool, Duration),
        shared: Arc<Shared>,
    ) -> Result<Self> {
        Ok(Self {
            session: Session::new(config.clone())?,
            staging: Session::new(staging.clone())?,
            keeps_deleted,
            kept,
            changes: ChangeLog::new(),
            failing: HashMap::new(),
            shared,
        })
    }

    /// Merges everything that is committed, trying again what fails.
    pub(super) async fn merge_until_done(&mut self, attempts: u32) -> Result<()> {
        let mut backoff = Backoff::new();
        for attempt in 1.. {
            let Some(error) = self.merge_all().await else { return Ok(()) };
            if attempt >= attempts {
                return Err(error);
            }
            sleep(backoff.wait()).await;
        }
        Ok(())
    }

    /// Merges once what is committed; answers why a table was not merged. One that fails again and again is told to the sink.
    pub(super) async fn merge_all(&mut self) -> Option<Error> {
        let (due, to) = {
            let state = self.shared.lock();
            let due: BTreeMap<String, Staged> = state
                .staged
                .iter()
                .filter(|(_, staged)| staged.since < state.committed)
                .map(|(table, staged)| (table.clone(), *staged))
                .collect();
            (due, state.committed)
        };
        let mut work = Vec::new();
        for (table, staged) in due {
            work.push(self.merge(table, staged, to));
        }
        let done: Vec<_> = stream::iter(work).buffer_unordered(TOGETHER).collect().await;
        let (mut changes, mut first) = (Vec::new(), None);
        for (table, merged) in done {
            match merged {
                Ok(merged) => {
                    self.failing.remove(&table);
                    changes.extend(merged.changes);
                    let mut state = self.shared.lock();
                    state.has_evolved |= !changes.is_empty();
                    state.notices.extend(merged.notices);
                    let is_done = state.staged.get(&table).is_some_and(|staged| staged.last <= to);
                    if is_done {
                        state.staged.remove(&table);
                    } else if let Some(staged) = state.staged.get_mut(&table) {
                        staged.since = to;
                    }
                }
                Err(error) => {
                    self.failed(&table, &error);
                    first.get_or_insert(error);
                }
            }
        }
        let mut notices = Vec::new();
        self.changes.write(&self.session, changes, &mut notices).await;
        self.shared.lock().notices.extend(notices);
        first
    }

    fn failed(&mut self, table: &str, error: &Error) {
        let failing = self
            .failing
            .entry(table.to_owned())
            .or_insert_with(|| Failing { since: Instant::now(), times: 0 });
        failing.times += 1;
        let is_over = failing.times >= FAILURES_MAX
            && (error.kind() == Kind::Fatal || failing.since.elapsed() > FAILING_MAX);
        tracing::warn!("what is staged in {table} was not merged and will be tried again: {error}");
        if is_over {
            let text = error.to_string();
            let told = if error.kind() == Kind::Fatal { Error::fatal(text) } else { Error::transient(text) };
            self.shared.lock().failure = Some(told);
            self.shared.failed.notify_one();
        }
    }

    async fn merge(&self, name: String, staged: Staged, to: i64) -> (String, Result<Merged>) {
        let merged = self.try_merge(&name, staged.since, to).await;
        (name, merged)
    }

    async fn try_merge(&self, name: &str, since: i64, to: i64) -> Result<Merged> {
        let replica = self.session.table(found::staged_for(name));
        let what = format!("merging into {replica}");
        // Before anything else: after a drained run its tables may be dropped, for a new snapshot.
        let Some(job) = self.job(&replica, (since, to), &what).await? else { return Ok(Merged::default()) };
        let staging = self.staging.table(name);
        let Some(actual) = self.staging.rest.table(&staging).await? else {
            return Err(found::gone(&staging));
        };
        let Some((stored, note)) = found::described(self.staging.config.layout, name, &actual) else {
            return Err(Error::fatal(format!(
                "the description of {staging} was changed: it holds what Millstream knows of the table, so give it back its last line"
            )));
        };
        let merged = self.bring_up(&replica, &stored).await?;
        let window = Window { since, to, kept_since: to.saturating_sub(self.kept.as_micros() as i64) };
        let truncate = match note.truncated {
            Some(_) => self.truncate(&staging, window).await?,
            None => None,
        };
        let statement = Statement {
            replica: &replica,
            staging: &staging,
            table: &stored,
            keeps_deleted: self.keeps_deleted,
            null_in_key: note.null_in_key,
            window,
            truncate,
        };
        let query = Query::new(statement.sql());
        self.session.rest.run_query(&job, &query, &what, STATEMENT_PATIENCE).await?;
        Ok(merged)
    }

    /// Gives the replica the columns that its staging has.
    async fn bring_up(&self, id: &TableId, staging: &StoredTable) -> Result<Merged> {
        let actual = found::table(&self.session, id).await?;
        let layout = self.session.config.layout;
        let stored =
            StoredTable { name: id.table.clone(), layout: layout.name().to_owned(), ..staging.clone() };
        let named = |name: &str| actual.fields.iter().find(|f: &&Field| fold(&f.name) == fold(name));
        let mut changes = Vec::new();
        for (column, target) in stored.shape.columns.iter().enumerate() {
            match named(&target.name).and_then(note::read) {
                None => changes.push(Change::Add { column }),
                Some(there) if there.ty != target.ty => {
                    changes.push(Change::Widen { column, from: there.ty })
                }
                Some(_) => {}
            }
        }
        let noted = actual.description.as_deref().and_then(TableNote::read);
        let (repeats, keeps_deleted) =
            noted.map_or((false, false), |noted| (noted.repeats, noted.keeps_deleted));
        let found = Found { stored, actual, truncated: None, repeats, null_in_key: false, keeps_deleted };
        let mut target = Target::of(&self.session, found)?;
        let mut merged = Merged::default();
        target.evolve(&self.session, &changes, &mut merged.notices).await?;
        merged.changes.append(&mut target.changes);
        if keeps_deleted && !self.keeps_deleted {
            merged.notices.extend(self.remove_deleted(id).await?);
            target.removed_deleted(&self.session).await?;
        }
        Ok(merged)
    }

    /// Removes the rows that an earlier run marked as deleted. It may run again: there is nothing to remove then.
    async fn remove_deleted(&self, id: &TableId) -> Result<Option<SinkNotice>> {
        let deleted = &replica::own_columns()[1].name;
        let sql = format!("DELETE FROM {} WHERE {deleted}", id.sql());
        let job = JobId::random(&self.session.config.project, self.session.config.location.clone());
        let what = format!("removing rows of {id} that are marked as deleted");
        let job = self.session.rest.run_query(&job, &Query::new(sql), &what, STATEMENT_PATIENCE).await?;
        let text =
            format!("rows of {id} that an earlier run with `delete: soft` kept as deleted were removed");
        let count = job.rows.unwrap_or_default();
        Ok((count > 0).then_some(SinkNotice { code: "deleted_rows_removed", text, count }))
    }

    /// The last truncate among the rows of a window.
    async fn truncate(&self, staging: &TableId, window: Window) -> Result<Option<Truncate>> {
        let sql = window.last_truncate(staging);
        let job = JobId::random(&self.session.config.project, self.session.config.location.clone());
        let what = format!("looking for a truncate in {staging}");
        let job = self.session.rest.run_query(&job, &Query::new(sql), &what, STATEMENT_PATIENCE).await?;
        let page = self.session.rest.results(&job.id, None, 1).await?;
        let Some(row) = page.rows.first() else { return Ok(None) };
        let text = |at: usize| row.get(at).and_then(|value| value.as_text());
        let number = |at: usize| text(at).and_then(|text| text.parse().ok());
        let order = text(0).and_then(Order::parse_hex);
        Ok(order.map(|order| Truncate { order, timestamp_us: number(1), lsn: number(2) }))
    }

    /// The job for a window's statement, whose id no other one has; `None` if it ran already: its answer was lost, or the token is from
    /// before it.
    async fn job(&self, replica: &TableId, (since, to): (i64, i64), what: &str) -> Result<Option<JobId>> {
        let config = &self.session.config;
        let whose = format!("{}\n{}\n{replica}", config.pipeline, config.name);
        let rest = &self.session.rest;
        let mut attempt = 0_u32;
        loop {
            let id = format!("millstream-merge-{:016x}-{since}-{to}-{attempt}", fnv1a(whose.as_bytes()));
            let id = JobId::new(&config.project, config.location.clone(), &id);
            let Some(before) = rest.job(&id).await? else { return Ok(Some(id)) };
            // One that failed keeps its id.
            if rest.ended(before, STATEMENT_PATIENCE).await?.failed(what, true).is_ok() {
                return Ok(None);
            }
            attempt += 1;
        }
    }
}
