//! The sink: routes events to tables, evolves these, and makes an epoch's rows durable before its checkpoint.
//!
//! Exactly once: rows of an epoch go to buffered streams, where nobody sees them, with offsets; `prepare` waits until all are
//! acknowledged, the token names each stream's last offset, and `commit` flushes up to it. What a crash leaves behind the last token's
//! offsets is never flushed: after a recovery each table has a new stream.
//!
//! At least once, and native upserts: rows go to the default stream and are visible at once; `prepare` waits for their
//! acknowledgements, and there is nothing to commit.
//!
//! A replica that is merged is written in either of the first two ways to a table beside it, its staging; see [`crate::merging`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use millstream_core::evolution::ChangePolicy;
use millstream_core::sink::{Refused, Rejection, SinkNotice, WriteReport};
use millstream_core::{
    Cause, CommitToken, Epoch, Error, Fut, Judged, Op, Order, Output, OutputBatch, Patch, RecordBatch,
    Result, RowSchema, Sink, TableName, TellSinkFigures,
};
use millstream_layout::{Change, Trouble, staging};

use crate::changes::ChangeLog;
use crate::config::{BigqueryConfig, Delivery, Layout};
use crate::dashboard::Dashboard;
use crate::envelope::Envelope;
use crate::epochs::{Epochs, Stage};
use crate::lane::Settled;
use crate::load::{self, Loads};
use crate::merging::Merger;
use crate::recovery;
use crate::retired::Retired;
use crate::roster::Roster;
use crate::session::{Mark, Session};
use crate::target::{Obstacle, Taken, Target, notice};
use crate::token::{self, Token};

/// Bytes of a table's rows that are sent together.
const SEND_BYTES: usize = 1 << 20;
/// The same where they become a part of a file.
const FILE_PART_BYTES: usize = 16 << 20;
/// How long rows wait for more where they are seen at once.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Bytes of rows that wait, of all tables together.
const PENDING_BYTES_MAX: usize = 32 << 20;
/// Tables that are waited for, and streams that are flushed, at a time.
const TOGETHER: usize = 32;
/// Schemas are few; more than this means that a decoder makes a new one for each batch.
const ROUTES_MAX: usize = 8192;

/// A BigQuery sink of one layout.
pub struct BigquerySink {
    session: Session,
    targets: Vec<Target>,
    /// Targets by their source table.
    by_table: HashMap<Arc<TableName>, usize>,
    /// Tables that cannot be replicas.
    left_out: HashSet<Arc<TableName>>,
    /// Where rows of a schema go, by the schema's address; the `Arc` keeps the address from being used again.
    routes: HashMap<usize, Route>,
    changes: ChangeLog,
    /// Merges what is staged, where that is how a replica is written; the session is the staging's then.
    merger: Option<Merger>,
    /// The one table of the envelope layout.
    envelope: Option<Envelope>,
    dashboard: Dashboard,
    epochs: Epochs,
    /// With `delivery: load`.
    loads: Option<Loads>,
    retired: Retired,
    /// The epoch has rows.
    has_rows: bool,
    refused: Vec<Refused>,
    notices: Vec<SinkNotice>,
}

struct Route {
    _schema: Arc<RowSchema>,
    target: usize,
    binding: usize,
}

impl BigquerySink {
    /// A sink that has not asked BigQuery anything yet. Must be called on a tokio runtime, which its connections live on.
    ///
    /// # Errors
    /// If an endpoint is no URL, or no credentials can be found or read.
    pub fn new(config: BigqueryConfig) -> Result<Self> {
        let merger = Merger::new(&config)?;
        let dashboard = Dashboard::new(&config);
        let config = merger.as_ref().map_or(config, |merger| merger.staging.clone());
        let loads = match &config.delivery {
            Delivery::Load(options) => Some(Loads::new(options.triggering_frequency)),
            Delivery::ExactlyOnce | Delivery::AtLeastOnce => None,
        };
        let session = Session::new(config)?;
        Ok(Self {
            envelope: Self::envelope(&session)?,
            session,
            merger,
            dashboard,
            loads,
            changes: ChangeLog::new(),
            epochs: Epochs::new(),
            retired: Retired::default(),
            targets: Vec::new(),
            by_table: HashMap::new(),
            left_out: HashSet::new(),
            routes: HashMap::new(),
            has_rows: false,
            refused: Vec::new(),
            notices: Vec::new(),
        })
    }

    fn envelope(session: &Session) -> Result<Option<Envelope>> {
        (session.config.layout == Layout::Envelope).then(|| Envelope::new(session)).transpose()
    }

    async fn write_batch(&mut self, batch: &OutputBatch) -> Result<WriteReport> {
        let mut report = WriteReport::default();
        for (index, output) in batch.outputs.iter().enumerate() {
            match output {
                Output::Event(judged) => {
                    self.write_event(index, judged, &batch.records, &mut report).await?;
                }
                Output::Patch(patch) => match self.session.config.layout {
                    Layout::Replica { .. } => self.write_patch(patch).await?,
                    Layout::Staging { .. } => self.stage_patch(patch, &batch.records).await?,
                    Layout::Append | Layout::Changelog | Layout::Envelope | Layout::Rows => {}
                },
            }
        }
        self.has_rows |= report.written > 0;
        self.relieve().await?;
        Ok(report)
    }

    /// Sends rows of tables that have enough of them, and of the largest ones when all together have too much.
    async fn relieve(&mut self) -> Result<()> {
        // What a replica takes cannot be taken back after a crash, and an event that comes again may be judged otherwise beside others:
        // its rows wait for the epoch's end.
        // Of what is staged only the newest of each key is sent, too.
        let waits = self.session.config.layout.is_current();
        let at_once = !waits && self.session.config.delivery == Delivery::AtLeastOnce;
        // Parts of a file are read one by one, and many small ones slowly.
        let send_bytes = if self.loads.is_some() { FILE_PART_BYTES } else { SEND_BYTES };
        if let Some(envelope) = &mut self.envelope {
            let is_due = at_once && envelope.pending.since().is_some_and(|since| since.elapsed() >= WAIT_MAX);
            if envelope.pending.byte_len() >= SEND_BYTES || is_due {
                envelope.send(&self.session).await?;
            }
        }
        let mut waiting = 0;
        for target in &mut self.targets {
            let is_due = at_once && target.pending.since().is_some_and(|since| since.elapsed() >= WAIT_MAX);
            if (target.pending.byte_len() >= send_bytes && !waits) || is_due {
                target.send(&self.session).await?;
            }
            waiting += target.pending.byte_len();
        }
        while waiting > PENDING_BYTES_MAX {
            let largest = self.targets.iter_mut().max_by_key(|target| target.pending.byte_len());
            let Some(largest) = largest.filter(|target| !target.pending.is_empty()) else { break };
            waiting -= largest.pending.byte_len();
            largest.send(&self.session).await?;
        }
        Ok(())
    }

    /// Late values for a row that an upsert, which writes whole rows, has been waiting for.
    async fn write_patch(&mut self, patch: &Patch) -> Result<()> {
        let Some((target, _)) = self.route(&patch.schema, patch.order).await? else { return Ok(()) };
        let Some(held) = self.targets[target].fill(patch) else { return Ok(()) };
        if let Err(cause) = self.place(&held.judged, &held.records, None).await? {
            let (records, record, table) =
                (held.records, held.judged.event.record, self.targets[target].source_table.clone());
            self.refused.push(Refused { records, record, table, cause });
        }
        Ok(())
    }

    /// Stages late values beside the row that lacks them.
    async fn stage_patch(&mut self, patch: &Patch, records: &Arc<RecordBatch>) -> Result<()> {
        let Some(judged) = staging::late_change(patch) else { return Ok(()) };
        if let Err(cause) = self.place(&judged, records, Some(patch)).await? {
            // The record of these values was written when it came; they are known only to have been for another row, too.
            self.notices.push(notice("late_value_refused", cause.text));
        }
        Ok(())
    }

    async fn write_event(
        &mut self,
        index: usize,
        judged: &Judged,
        records: &Arc<RecordBatch>,
        report: &mut WriteReport,
    ) -> Result<()> {
        if let Some(envelope) = self.envelope.as_mut().filter(|_| judged.distinct) {
            match envelope.push(&self.session, &judged.event, records).await? {
                Ok(()) => report.written += 1,
                Err(cause) => report.rejected.push(Rejection { output: index, cause }),
            }
            return Ok(());
        }
        match self.session.config.layout {
            Layout::Append | Layout::Changelog | Layout::Envelope | Layout::Rows if !judged.distinct => {
                report.duplicates += 1
            }
            // A sweep: plain rows have no current state.
            Layout::Rows if judged.event.op == Op::Truncate => report.filtered += 1,
            layout
                if layout.is_current() && judged.event.key.is_none() && judged.event.op != Op::Truncate =>
            {
                report.filtered += 1;
            }
            layout if layout.is_current() && !judged.newest && judged.distinct => report.superseded += 1,
            layout if layout.is_current() && !judged.newest => report.duplicates += 1,
            _ => match self.place(judged, records, None).await? {
                Ok(Taken::Written) => report.written += 1,
                Ok(Taken::Superseded) => report.superseded += 1,
                Ok(Taken::LeftOut) => report.filtered += 1,
                Err(cause) => report.rejected.push(Rejection { output: index, cause }),
            },
        }
        Ok(())
    }

    /// Puts an event into its table, evolving that if need be.
    async fn place(
        &mut self,
        judged: &Judged,
        records: &Arc<RecordBatch>,
        late: Option<&Patch>,
    ) -> Result<Result<Taken, Cause>> {
        // Each round makes room for one column or object, so that there can't be many more rounds than columns.
        for _ in 0..2 * judged.event.schema.columns.len() + 4 {
            let Some((target, binding)) = self.route(&judged.event.schema, judged.event.order).await? else {
                return Ok(Ok(Taken::LeftOut));
            };
            let pushed = self.targets[target].push(&self.session, binding, judged, records, late).await?;
            let trouble = match pushed {
                Ok(taken) => return Ok(Ok(taken)),
                Err(Obstacle::Refused(cause)) => return Ok(Err(cause)),
                Err(Obstacle::Object(object, changes)) => {
                    self.targets[target].evolve_object(&self.session, object, &changes).await?;
                    continue;
                }
                Err(Obstacle::Row(trouble)) => trouble,
            };
            if let Some(cause) = self.mend(target, binding, judged, trouble).await? {
                return Ok(Err(cause));
            }
        }
        Err(Error::fatal(format!(
            "invariant: table {} has a column for every value",
            judged.event.schema.table
        )))
    }

    /// Makes room for a value that has no place, or says why the row is refused.
    async fn mend(
        &mut self,
        target: usize,
        binding: usize,
        judged: &Judged,
        trouble: Trouble,
    ) -> Result<Option<Cause>> {
        let rules = self.session.rules();
        let table = &mut self.targets[target];
        let cause = table.cause(&self.session, binding, trouble);
        let change = match trouble {
            Trouble::Refused { .. } | Trouble::Mended => return Ok(Some(cause)),
            Trouble::Untyped { source } => table.learn(&self.session, binding, source, judged),
            Trouble::Misfit { column, .. } => match rules.policy {
                _ if !table.may_spill(&self.session, binding, column, judged) => return Ok(Some(cause)),
                ChangePolicy::NewColumn => Some(table.spill(column)),
                ChangePolicy::DeadLetter => return Ok(Some(cause)),
                ChangePolicy::Stop => {
                    return Err(Error::fatal(format!(
                        "{}; the config says `stop`: set `on_type_change: new-column` or `dead-letter`, or mend the table",
                        cause.text
                    )));
                }
            },
        };
        let Some(change) = change else { return Ok(Some(cause)) };
        self.evolve(target, &[change]).await?;
        Ok(None)
    }

    async fn evolve(&mut self, target: usize, changes: &[Change]) -> Result<()> {
        self.routes.retain(|_, route| route.target != target);
        self.dashboard.renew();
        self.targets[target].evolve(&self.session, changes, &mut self.notices).await
    }

    /// The target and binding for rows of `schema`, made if they are missing; `None` for a truncate of a replica that is not there.
    /// `order` is one row's.
    async fn route(&mut self, schema: &Arc<RowSchema>, order: Order) -> Result<Option<(usize, usize)>> {
        let address = Arc::as_ptr(schema) as usize;
        if let Some(route) = self.routes.get(&address) {
            return Ok(Some((route.target, route.binding)));
        }
        if self.routes.len() >= ROUTES_MAX {
            self.routes.clear();
            self.targets.iter_mut().for_each(Target::forget_bindings);
        }
        let target = match self.by_table.get(&schema.table) {
            Some(&target) => target,
            None if self.left_out.contains(&schema.table) => return Ok(None),
            None => {
                let Some(target) = self.open(schema, order).await? else {
                    if !schema.columns.is_empty() {
                        self.left_out.insert(schema.table.clone());
                    }
                    return Ok(None);
                };
                self.targets.push(target);
                self.by_table.insert(schema.table.clone(), self.targets.len() - 1);
                self.targets.len() - 1
            }
        };
        // Each change of columns forgets the bindings, and asking again finds none left to make.
        for _ in 0..4 {
            let table = &mut self.targets[target];
            let (binding, changes) = table.bind(&self.session, schema, order, &mut self.notices).await?;
            if changes.is_empty() {
                if binding == 0 {
                    // The table began its bindings anew: routes to others are void.
                    self.routes.retain(|_, route| route.target != target);
                }
                self.routes.insert(address, Route { _schema: schema.clone(), target, binding });
                return Ok(Some((target, binding)));
            }
            self.evolve(target, &changes).await?;
        }
        Err(Error::fatal(format!("invariant: the columns of {} settle", schema.table)))
    }

    /// The table for rows of a schema; where it is merged, its staging.
    async fn open(&mut self, schema: &Arc<RowSchema>, order: Order) -> Result<Option<Target>> {
        self.dashboard.renew();
        let mut seed = None;
        if let Some(merger) = &mut self.merger {
            seed = merger.open(self.session.mark, schema, order, &mut self.notices).await?;
            if seed.is_none() {
                return Ok(None);
            }
        }
        Target::open(&mut self.session, schema, order, seed.as_ref(), &mut self.notices).await
    }

    async fn prepare_epoch(&mut self) -> Result<Option<CommitToken>> {
        let had_rows = std::mem::take(&mut self.has_rows);
        let mut work = Vec::new();
        for target in self.targets.iter_mut().filter(|target| target.is_busy()) {
            work.push(settle(target, &self.session));
        }
        let mut settled: Vec<_> = stream::iter(work).buffer_unordered(TOGETHER).try_collect().await?;
        let (mut flushes, mut files) = (Vec::new(), Vec::new());
        if let Some(envelope) = &mut self.envelope {
            settled.push((envelope.name().to_owned(), envelope.settle(&self.session).await?));
        }
        for (table, settled) in settled {
            flushes.extend(settled.flushes);
            files.extend(settled.files);
            self.retired.put(self.session.mark.epoch, settled.retired);
            self.refused.extend(settled.refused.into_iter().map(|(records, record, cause)| Refused {
                records,
                record,
                table: table.clone(),
                cause,
            }));
        }
        let changes: Vec<_> =
            self.targets.iter_mut().flat_map(|target| std::mem::take(&mut target.changes)).collect();
        if self.merger.as_ref().is_some_and(Merger::has_evolved) {
            // A replica gets its columns with what is merged, an epoch or many after its staging.
            self.dashboard.renew();
        }
        self.dashboard.put(&self.session, &mut self.notices).await;
        let mark = self.session.mark;
        let staged = match &mut self.merger {
            None => {
                self.changes.write(&self.session, changes, &mut self.notices).await;
                None
            }
            // What changed of the replica is written down once it did.
            Some(merger) => {
                let busy = self.targets.iter_mut().filter_map(|t| t.take_staged().then_some(&*t.id.table));
                match merger.staged(busy, mark) {
                    None => return Ok(None),
                    staged => staged,
                }
            }
        };
        if let Some(loads) = &mut self.loads {
            return loads.prepare(mark, files);
        }
        // Without streams to flush a token tells a start that there were rows.
        if flushes.is_empty() && staged.is_none() && !had_rows {
            return Ok(None);
        }
        flushes.sort_by(|a, b| a.stream.cmp(&b.stream));
        Ok(Some(token::encode(&Token { mark, flushes, staged })))
    }

    async fn commit_token(&mut self, token: &CommitToken) -> Result<()> {
        if let Some(loads) = &mut self.loads {
            self.epochs.write(&self.session, Stage::Files, load::mark(token)?).await?;
            return loads.commit();
        }
        let Token { mark, flushes, .. } = token::decode(token)?;
        let is_flushed = !flushes.is_empty();
        recovery::show(&self.session.storage, flushes).await?;
        match &self.merger {
            Some(merger) => merger.committed(mark)?,
            None if is_flushed => self.epochs.write(&self.session, Stage::Visible, mark).await?,
            None => {}
        }
        self.retired.finalize(&self.session.storage, mark.epoch);
        Ok(())
    }

    /// No more rows go to any stream.
    fn retire(&mut self) {
        let lanes = self.targets.iter_mut().flat_map(Target::retire);
        let streams = lanes.chain(self.envelope.iter_mut().flat_map(Envelope::retire)).collect();
        self.retired.put(0, streams);
    }

    async fn recover_to(&mut self, last: Option<&CommitToken>) -> Result<()> {
        let location = self.session.need_dataset().await?;
        if let Some(merger) = &mut self.merger {
            merger.renew(last.is_some()).await?;
        }
        // Streams of before may hold rows that no checkpoint names: these are never seen.
        self.retire();
        self.targets.clear();
        self.envelope = Self::envelope(&self.session)?;
        self.by_table.clear();
        self.routes.clear();
        self.session.renew();
        self.session.roster = Roster::open(&self.session, last.is_some()).await?;
        if self.loads.is_some() || last.is_some_and(token::names_files) {
            return self.recover_files(location, last).await;
        }
        let last = last.map(token::decode).transpose()?;
        let is_history = !self.session.config.layout.is_current();
        let mut visible = None;
        if is_history && self.session.config.delivery == Delivery::ExactlyOnce {
            self.epochs.check(&self.session, last.as_ref().map(|last| last.mark)).await?;
            visible = self.epochs.visible(&self.session).await?;
        }
        if let Some(last) = last {
            recovery::finish(&self.session, &last, visible).await?;
            self.retired.put(0, last.flushes.iter().map(|flush| flush.stream.as_str().into()).collect());
            if let Some(merger) = &mut self.merger {
                merger.recover(&last).await?;
            }
        }
        Ok(())
    }

    /// The same with files, or after them.
    async fn recover_files(&mut self, location: Option<String>, last: Option<&CommitToken>) -> Result<()> {
        let (mut mark, mut of_files, mut of_streams) = (None, None, None);
        match last {
            Some(last) if token::names_files(last) => {
                mark = Some(load::mark(last)?);
                of_files = Some(last);
            }
            Some(last) => {
                let token = token::decode(last)?;
                mark = Some(token.mark);
                of_streams = Some(token);
            }
            None => {}
        }
        self.epochs.check(&self.session, mark).await?;
        let visible = self.epochs.visible(&self.session).await?;
        let Some(loads) = &mut self.loads else {
            // A drained run has loaded what its last token names.
            let is_loaded =
                mark.is_none_or(|mark| visible.is_some_and(|visible| visible >= mark.ingested_at_us));
            return if is_loaded { Ok(()) } else { Err(recovery::not_loaded()) };
        };
        if let Some(token) = of_streams {
            recovery::finish(&self.session, &token, visible).await?;
            self.retired.put(0, token.flushes.into_iter().map(|flush| flush.stream.into()).collect());
        }
        let courier = Session::new(self.session.config.clone())?;
        loads.recover(courier, location, of_files, visible).await
    }

    fn named(&self) -> String {
        format!("sink {}", self.session.config.name)
    }
}

/// Waits for a table's rows of the epoch.
async fn settle(target: &mut Target, session: &Session) -> Result<(String, Settled)> {
    Ok((target.source_table.clone(), target.settle(session).await?))
}

impl Sink for BigquerySink {
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            let recovered = self.recover_to(last).await;
            recovered.map_err(|e| e.at(self.named()))?;
            self.retired.finalize(&self.session.storage, u64::MAX);
            Ok(())
        })
    }

    fn begin(&mut self, epoch: Epoch, ingested_at_us: i64) -> Fut<'_, Result<()>> {
        self.session.mark = Mark { epoch: epoch.0, ingested_at_us };
        Box::pin(std::future::ready(Ok(())))
    }

    fn write<'a>(&'a mut self, batch: &'a OutputBatch) -> Fut<'a, Result<WriteReport>> {
        Box::pin(async move {
            let written = self.write_batch(batch).await;
            written.map_err(|e| e.at(self.named()))
        })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async move {
            let prepared = self.prepare_epoch().await;
            prepared.map_err(|e| e.at(self.named()))
        })
    }

    fn commit<'a>(&'a mut self, token: &'a CommitToken) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            let committed = self.commit_token(token).await;
            committed.map_err(|e| e.at(self.named()))
        })
    }

    fn finish(&mut self) -> Fut<'_, Result<()>> {
        Box::pin(async move {
            if let Some(loads) = &mut self.loads {
                loads.finish(&self.session).await.map_err(|e| e.at(self.named()))?;
            }
            if let Some(merger) = &self.merger {
                merger.finish().await.map_err(|e| e.at(self.named()))?;
                // The replica's columns came with what was merged.
                self.dashboard.renew();
                self.dashboard.put(&self.session, &mut self.notices).await;
            }
            self.retire();
            self.retired.finalize(&self.session.storage, u64::MAX);
            self.retired.finish().await;
            Ok(())
        })
    }

    fn refused(&mut self) -> Vec<Refused> {
        std::mem::take(&mut self.refused)
    }

    fn failure(&self) -> Fut<'static, Error> {
        let failure = match (&self.loads, &self.merger) {
            (Some(loads), _) => loads.failure(),
            (None, Some(merger)) => merger.failure(),
            (None, None) => return Box::pin(std::future::pending()),
        };
        let name = self.named();
        Box::pin(async move { failure.await.at(name) })
    }

    fn figures(&self) -> Option<TellSinkFigures> {
        self.loads.as_ref().map(Loads::figures)
    }

    fn notices(&mut self) -> Vec<SinkNotice> {
        for target in &mut self.targets {
            self.notices.append(&mut target.notices);
        }
        if let Some(merger) = &self.merger {
            self.notices.append(&mut merger.notices());
        }
        std::mem::take(&mut self.notices)
    }
}
