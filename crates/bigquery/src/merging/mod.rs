//! A replica that is merged: changes are appended to a table beside it, its staging, and a `MERGE` applies them every interval, at the end
//! of a run, and after a recovery.
//!
//! What was staged up to the mark of a committed epoch is merged, never more: rows of an epoch without a checkpoint may come again and be
//! judged otherwise. A statement reads the rows between two marks, so that BigQuery reads only their partitions, and compares orders,
//! so that it may run again, over more rows than the last time, and changes nothing the second time. From where on rows are not merged
//! is in the commit token, which is written before they are: after a crash some are merged again.
//!
//! Rows are never changed once they are staged: partitions expire. Until then the deletes among them are remembered.

mod apply;
mod statement;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::sink::SinkNotice;
use millstream_core::{Error, Fut, Order, Result, RowSchema};
use millstream_layout::StoredTable;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::config::{BigqueryConfig, DeleteMode, Layout, Merge};
use crate::roster::Roster;
use crate::session::{Mark, Session};
use crate::target::Target;
use crate::token::Token;
use apply::Applier;

/// How often what fails is tried again before a run or a recovery ends without it.
const ATTEMPTS: u32 = 5;

/// What is staged of a table and not merged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Staged {
    /// The mark that these rows are behind.
    since: i64,
    /// The mark of the last of them.
    last: i64,
}

/// What the sink and the statements share.
#[derive(Default)]
struct State {
    /// By the staging table's name.
    staged: BTreeMap<String, Staged>,
    /// The mark of the last epoch that is committed.
    committed: i64,
    /// Why a table cannot be merged, until somebody has heard it.
    failure: Option<Error>,
    notices: Vec<SinkNotice>,
    /// Columns of replicas changed since somebody asked.
    has_evolved: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is a failure.
    failed: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Merges what a sink stages.
pub(crate) struct Merger {
    /// The config by which the sink writes to the staging.
    pub(crate) staging: BigqueryConfig,
    /// The replicas'.
    session: Session,
    shared: Arc<Shared>,
    applier: Arc<tokio::sync::Mutex<Applier>>,
    interval: Duration,
    /// Merges at every interval.
    timer: Option<JoinHandle<()>>,
    /// No checkpoint tells what was staged before this run.
    is_first: bool,
    /// Tables to which this run staged something.
    seen: HashSet<String>,
}

impl Merger {
    /// For a sink of this config; `None` if it does not merge.
    pub(crate) fn new(config: &BigqueryConfig) -> Result<Option<Self>> {
        let (Some(merge), Layout::Replica { delete }) = (&config.merge, config.layout) else {
            return Ok(None);
        };
        let Merge { dataset, interval, kept } = merge.clone();
        let staging = BigqueryConfig {
            layout: Layout::Staging { delete },
            partition_expiration: Some(kept),
            dataset,
            ..config.clone()
        };
        let shared = Arc::<Shared>::default();
        let applier = Applier::new(config, &staging, (delete == DeleteMode::Soft, kept), shared.clone())?;
        Ok(Some(Self {
            staging,
            session: Session::new(config.clone())?,
            shared,
            applier: Arc::new(tokio::sync::Mutex::new(applier)),
            interval,
            timer: None,
            is_first: false,
            seen: HashSet::new(),
        }))
    }

    /// Before a recovery; `goes_on`: from a checkpoint.
    pub(crate) async fn renew(&mut self, goes_on: bool) -> Result<()> {
        self.session.need_dataset().await?;
        self.session.renew();
        self.session.roster = Roster::open(&self.session, goes_on).await?;
        self.stop();
        *self.shared.lock() = State::default();
        self.seen.clear();
        self.is_first = true;
        let (applier, interval) = (self.applier.clone(), self.interval);
        self.timer = Some(tokio::spawn(async move {
            let mut backoff = Backoff::new();
            let mut wait = interval;
            loop {
                sleep(wait).await;
                let failed = applier.lock().await.merge_all().await.is_some();
                if !failed {
                    backoff.reset();
                }
                // The next interval may be an hour away.
                wait = if failed { backoff.wait().min(interval) } else { interval };
            }
        }));
        Ok(())
    }

    /// Merges what the last checkpoint knows to be staged. Rows behind its mark, of epochs that have no checkpoint, are left out for good.
    pub(crate) async fn recover(&mut self, last: &Token) -> Result<()> {
        let Some(staged) = &last.staged else { return Ok(()) };
        self.is_first = false;
        {
            let mut state = self.shared.lock();
            let last = last.mark.ingested_at_us;
            state.committed = last;
            state.staged =
                staged.iter().map(|(table, &since)| (table.clone(), Staged { since, last })).collect();
        }
        self.finish().await
    }

    /// The replica for rows of a schema, found or made in an epoch; `None` if there is none.
    pub(crate) async fn open(
        &mut self,
        mark: Mark,
        schema: &Arc<RowSchema>,
        order: Order,
        notices: &mut Vec<SinkNotice>,
    ) -> Result<Option<StoredTable>> {
        self.session.mark = mark;
        let target = Target::open(&mut self.session, schema, order, None, notices).await?;
        Ok(target.map(|target| target.stored().clone()))
    }

    /// Rows of an epoch are staged in these tables, by name; answers all that are not merged, for the token. `None`: the epoch has none.
    pub(crate) fn staged<'a>(
        &mut self,
        tables: impl Iterator<Item = &'a str>,
        mark: Mark,
    ) -> Option<BTreeMap<String, i64>> {
        let mut state = self.shared.lock();
        let last = mark.ingested_at_us;
        let mut any = false;
        for table in tables {
            any = true;
            let is_new = self.seen.insert(table.to_owned());
            // What an earlier run staged and no checkpoint tells of is merged as far as it is kept.
            let since = if is_new && self.is_first { 0 } else { last - 1 };
            state.staged.entry(table.to_owned()).or_insert(Staged { since, last }).last = last;
        }
        any.then(|| state.staged.iter().map(|(table, staged)| (table.clone(), staged.since)).collect())
    }

    /// An epoch is committed: it may be merged.
    pub(crate) fn committed(&self, mark: Mark) -> Result<()> {
        let mut state = self.shared.lock();
        state.committed = mark.ingested_at_us;
        state.failure.take().map_or(Ok(()), Err)
    }

    /// Why a table cannot be merged. A pipeline to which no rows come would not ask for it otherwise.
    pub(crate) fn failure(&self) -> Fut<'static, Error> {
        let shared = self.shared.clone();
        Box::pin(async move {
            loop {
                let failure = shared.lock().failure.take();
                if let Some(error) = failure {
                    return error;
                }
                shared.failed.notified().await;
            }
        })
    }

    /// Merges all that is committed, now.
    pub(crate) async fn finish(&self) -> Result<()> {
        self.applier.lock().await.merge_until_done(ATTEMPTS).await
    }

    /// Whether columns of replicas changed since the last time that this was asked.
    pub(crate) fn has_evolved(&self) -> bool {
        std::mem::take(&mut self.shared.lock().has_evolved)
    }

    /// What was changed since the last time.
    pub(crate) fn notices(&self) -> Vec<SinkNotice> {
        std::mem::take(&mut self.shared.lock().notices)
    }

    fn stop(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.abort();
        }
    }
}

impl Drop for Merger {
    fn drop(&mut self) {
        self.stop();
    }
}
