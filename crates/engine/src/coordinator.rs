//! The coordinator: starts barriers, gathers what they leave behind, writes the checkpoint, lets sinks commit.
//!
//! One epoch is committed at a time: the barrier of epoch n + 1 is started only after every sink has committed n, while
//! the records of n + 1 already flow. So a checkpoint never names an epoch whose forerunner is not visible.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::checkpoint::SinkMark;
use millstream_core::sink::SinkNotice;
use millstream_core::{
    Checkpoint, CommitToken, Counters, DeadLetter, DeadLetters, Epoch, Error, PartitionId, Position, Result,
    Store,
};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};
use tracing::{info, warn};

use crate::flow::{Aside, Barrier, Cut, EpochStart, IntakeOrder, Permit, Report, Staged, Stop, gone};
use crate::handle::Shared;
use crate::latency::Stamp;
use crate::patience::Patience;
use crate::settings::Settings;
use crate::shard::Pressure;
use crate::sink_lane::SinkOrder;
use crate::status::{CheckpointFacts, Phase};
use crate::world::World;

/// Asked of a running attempt.
#[derive(Debug)]
pub(crate) enum Request {
    Drain,
    Pause(bool),
    Savepoint(String, oneshot::Sender<Result<String>>),
}

/// The dead letters' mark among the sinks' in checkpoints; no sink can be called so.
pub(crate) const DEAD_LETTERS: &str = "#dead-letters";

pub(crate) struct Coordinator {
    pub(crate) world: Arc<dyn World>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Box<dyn Store>,
    pub(crate) dead_letters: Box<dyn DeadLetters>,
    pub(crate) reports: Receiver<Report>,
    pub(crate) requests: UnboundedReceiver<Request>,
    pub(crate) intake: UnboundedSender<IntakeOrder>,
    pub(crate) sinks: Vec<(String, UnboundedSender<SinkOrder>)>,
    pub(crate) shards: Vec<UnboundedSender<Aside>>,
    pub(crate) pressure: Arc<Pressure>,
    /// The epoch that flows.
    pub(crate) flowing: EpochStart,
    /// Durable positions that the source may not have been told of.
    pub(crate) unreleased: BTreeMap<PartitionId, Position>,
    pub(crate) marks: BTreeMap<String, SinkMark>,
    pub(crate) counters: Counters,
    /// Letters of the epoch that flows, by stage and cause code.
    pub(crate) letters: BTreeMap<(&'static str, &'static str), u64>,
    pub(crate) early_letters: Vec<(Vec<DeadLetter>, Option<Permit>)>,
    pub(crate) notices: BTreeMap<String, u64>,
    /// Shards' messages of the last checkpoint (sent again by recovery) are on their way: another one must follow.
    pub(crate) forwards_pending: bool,
    /// The source waits for a release.
    pub(crate) held: bool,
    /// What came in before the last barrier, see [`Gauges::came_in`](crate::status::Gauges::came_in).
    pub(crate) taken_in: u64,
    pub(crate) ending: bool,
    pub(crate) timer: Pin<Box<Sleep>>,
    pub(crate) patience: Patience,
}

/// What the stages reported of one epoch.
#[derive(Default)]
struct Gathered {
    cut: Option<Cut>,
    shards: usize,
    sinks: usize,
    checkpoint: Checkpoint,
    cached_keys: u64,
    seen: Seen,
}

/// What people are told of an epoch once it is visible.
#[derive(Default)]
struct Seen {
    records: u64,
    events: u64,
    stamps: Vec<Stamp>,
    watermark_ms: Option<i64>,
    letters: BTreeMap<(&'static str, &'static str), u64>,
}

impl Coordinator {
    /// Runs until the pipeline is drained or exhausted. Any `Err` ends the attempt.
    pub(crate) async fn run(mut self) -> Staged {
        let mut savepoints = Vec::new();
        loop {
            if !self.ending {
                self.wait_for_epoch_end(&mut savepoints).await?;
            }
            // The source may come to its end while the epoch is taken; what it gave after the barrier needs another one.
            let is_last = self.ending;
            let sent_forwards = self.epoch().await?;
            for (name, reply) in savepoints.drain(..) {
                let made = self.store.savepoint(&name).await;
                // Who asked may have left; the savepoint stays.
                let _ = reply.send(made);
            }
            if is_last && !sent_forwards {
                return self.finish_sinks().await;
            }
        }
    }

    /// Until the interval is over, or something asks for an earlier end.
    async fn wait_for_epoch_end(
        &mut self,
        savepoints: &mut Vec<(String, oneshot::Sender<Result<String>>)>,
    ) -> Staged {
        loop {
            tokio::select! {
                // A fixed order makes runs repeatable. Requests first: the timer may be due at once, epoch after epoch.
                biased;
                Some(request) = self.requests.recv() => match request {
                    Request::Drain => {
                        self.end();
                        return Ok(());
                    }
                    Request::Pause(pause) => self.pause(pause),
                    Request::Savepoint(name, reply) => {
                        savepoints.push((name, reply));
                        return Ok(());
                    }
                },
                () = &mut self.timer => {
                    if !self.is_quiet() {
                        return Ok(());
                    }
                    self.timer.as_mut().reset(Instant::now() + self.settings.checkpoint_interval);
                }
                () = self.pressure.exceeded.notified() => return Ok(()),
                // What it waits for may stand in this epoch, or in records that are not taken in yet.
                () = std::future::ready(()), if self.held && !self.is_quiet() => return Ok(()),
                report = self.reports.recv() => match report.ok_or(Stop::Neighbour)? {
                    Report::Exhausted => {
                        self.end();
                        return Ok(());
                    }
                    other => self.beside(other).await?,
                },
            }
        }
    }

    /// Whether a checkpoint now would equal the last one.
    fn is_quiet(&self) -> bool {
        self.shared.gauges.came_in() == self.taken_in && self.notices.is_empty() && !self.forwards_pending
    }

    /// No record is taken in any more; what is under way is finished.
    fn end(&mut self) {
        self.ending = true;
        self.shared.phase(Phase::Draining);
        // A failed intake reports its own error.
        let _ = self.intake.send(IntakeOrder::Stop);
    }

    fn pause(&mut self, pause: bool) {
        self.shared.phase(if pause { Phase::Paused } else { Phase::Running });
        let _ = self.intake.send(IntakeOrder::Pause(pause));
    }

    /// Takes one epoch from barrier to visible. Answers whether shards sent each other messages in it.
    async fn epoch(&mut self) -> Staged<bool> {
        let started = Instant::now();
        self.patience.begin();
        let barrier = self.next_barrier();
        // Before the barrier: what intake counts later may stand behind it, and asks for another checkpoint.
        self.taken_in = self.shared.gauges.came_in();
        self.intake.send(IntakeOrder::Barrier(barrier)).map_err(gone)?;
        let (mut checkpoint, mut seen) = self.gather(barrier).await?;
        if let Some(token) = self.dead_letters.prepare().await? {
            let mark = SinkMark { sink: DEAD_LETTERS.to_owned(), epoch: barrier.epoch, token };
            self.marks.insert(mark.sink.clone(), mark);
        }
        self.flowing = barrier.next;
        seen.letters = std::mem::take(&mut self.letters);
        for (letters, _permit) in std::mem::take(&mut self.early_letters) {
            self.write_letters(&letters).await?;
        }

        let sent_forwards = !checkpoint.forwards.is_empty() || self.forwards_pending;
        // What was sent in this epoch is received in the next.
        self.forwards_pending = !checkpoint.forwards.is_empty();
        checkpoint.sinks = self.marks.values().cloned().collect();
        checkpoint.counters = self.counters.clone();
        checkpoint.incarnation = self.settings.incarnation;
        self.unreleased.extend(checkpoint.positions.iter().cloned());
        let commit = self.store.commit(checkpoint);
        self.patience.wait(async { Ok(commit.await?) }).await?;
        for shard in &self.shards {
            shard.send(Aside::Committed).map_err(gone)?;
        }
        self.commit_sinks(barrier.epoch).await?;
        self.held = false;
        let positions = std::mem::take(&mut self.unreleased).into_iter().collect();
        self.intake.send(IntakeOrder::Release(positions)).map_err(gone)?;
        self.tell(barrier.epoch, seen, started.elapsed());
        // From the end of this one, so that a slow commit is not followed by another at once.
        let rest = self.settings.checkpoint_interval.saturating_sub(started.elapsed());
        self.timer.as_mut().reset(Instant::now() + rest);
        Ok(sent_forwards)
    }

    fn next_barrier(&self) -> Barrier {
        let now_us = i64::try_from(self.world.clock().now().as_micros()).unwrap_or(i64::MAX);
        let EpochStart { epoch, ingested_at_us } = self.flowing;
        let next = EpochStart { epoch: epoch.next(), ingested_at_us: now_us.max(ingested_at_us + 1) };
        Barrier { epoch, next }
    }

    /// Collects what every stage reports of the epoch and adds it to the running totals.
    async fn gather(&mut self, barrier: Barrier) -> Staged<(Checkpoint, Seen)> {
        let mut gathered = Gathered::default();
        gathered.checkpoint.epoch = barrier.epoch;
        gathered.checkpoint.committed = Epoch(barrier.epoch.0 - 1);
        gathered.checkpoint.ingested_at_us = self.flowing.ingested_at_us;
        while gathered.cut.is_none()
            || gathered.shards < self.shards.len()
            || gathered.sinks < self.sinks.len()
        {
            let report = self.report().await?;
            self.take_report(report, &mut gathered).await?;
        }
        let Cut { positions, watermarks, watermark_ms, counters, stamps, .. } =
            gathered.cut.expect("invariant: gathered above");
        let seen = Seen { records: counters.records, stamps, watermark_ms, ..gathered.seen };
        self.counters.add(&counters);
        self.counters.add(&Counters { notices: std::mem::take(&mut self.notices), ..Counters::default() });
        let mut checkpoint = gathered.checkpoint;
        checkpoint.positions = positions.into_iter().collect();
        checkpoint.watermarks = watermarks;
        checkpoint.watermark_ms = watermark_ms;
        self.shared.update(|status| status.cached_keys = gathered.cached_keys);
        Ok((checkpoint, seen))
    }

    async fn take_report(&mut self, report: Report, gathered: &mut Gathered) -> Staged {
        match report {
            Report::Cut(cut) => {
                debug_assert_eq!(cut.epoch, gathered.checkpoint.epoch);
                gathered.cut = Some(cut);
            }
            Report::Shard { barrier, cached_keys } => {
                gathered.shards += 1;
                gathered.cached_keys += cached_keys as u64;
                gathered.checkpoint.state.writes.extend(barrier.state.writes);
                gathered.checkpoint.forwards.extend(barrier.forwards);
                let of_shard = Counters { tables: barrier.counters, ..Counters::default() };
                gathered.seen.events += of_shard.events();
                self.counters.add(&of_shard);
            }
            Report::Sink { index, epoch, token, counters } => {
                gathered.sinks += 1;
                let sink = self.sinks[index].0.clone();
                let sinks = BTreeMap::from([(sink.clone(), counters)]);
                self.counters.add(&Counters { sinks, ..Counters::default() });
                if let Some(token) = token {
                    self.marks.insert(sink.clone(), SinkMark { sink, epoch, token });
                }
            }
            other => self.beside(other).await?,
        }
        Ok(())
    }

    /// Reports that belong to no barrier.
    async fn beside(&mut self, report: Report) -> Staged {
        match report {
            Report::Letters { epoch, letters, permit } if epoch > self.flowing.epoch => {
                // Of the next epoch: written once this one is prepared. The permit bounds how many can wait.
                self.early_letters.push((letters, permit));
            }
            Report::Letters { letters, .. } => self.write_letters(&letters).await?,
            Report::Notice(notice) => self.notice(&notice),
            Report::Held => self.held = true,
            Report::Exhausted => self.end(),
            Report::Committed { epoch } => {
                return Err(Error::fatal(format!(
                    "a sink committed epoch {} that nobody asked for",
                    epoch.0
                ))
                .into());
            }
            Report::Cut(_) | Report::Shard { .. } | Report::Sink { .. } | Report::Finished => {
                return Err(Error::fatal("a stage passed a barrier that nobody started").into());
            }
        }
        Ok(())
    }

    async fn write_letters(&mut self, letters: &[DeadLetter]) -> Staged {
        for letter in letters {
            *self.letters.entry((letter.stage.name(), letter.cause.code)).or_default() += 1;
        }
        Ok(self.dead_letters.write(letters).await?)
    }

    fn notice(&mut self, notice: &SinkNotice) {
        *self.notices.entry(notice.code.to_owned()).or_default() += notice.count;
        warn!(code = notice.code, count = notice.count, "{}", notice.text);
        self.shared.update(|status| status.notice(format!("{} (×{})", notice.text, notice.count)));
    }

    /// Orders every sink to commit and waits for all of them.
    async fn commit_sinks(&mut self, epoch: Epoch) -> Staged {
        for (name, orders) in &self.sinks {
            let token: Option<CommitToken> =
                self.marks.get(name).filter(|mark| mark.epoch == epoch).map(|mark| mark.token.clone());
            orders.send(SinkOrder::Commit { epoch, token }).map_err(gone)?;
        }
        let mut committed = 0;
        while committed < self.sinks.len() {
            match self.report().await? {
                Report::Committed { epoch: of } if of == epoch => committed += 1,
                other => self.beside(other).await?,
            }
        }
        Ok(())
    }

    /// Lets every sink do what it had put off. Bounded by the sinks themselves: nothing is lost if it takes long.
    async fn finish_sinks(&mut self) -> Staged {
        for (_, orders) in &self.sinks {
            orders.send(SinkOrder::Finish).map_err(gone)?;
        }
        let mut finished = 0;
        while finished < self.sinks.len() {
            match self.reports.recv().await.ok_or(Stop::Neighbour)? {
                Report::Finished => finished += 1,
                other => self.beside(other).await?,
            }
        }
        Ok(())
    }

    async fn report(&mut self) -> Staged<Report> {
        let reports = &mut self.reports;
        self.patience.wait(async { reports.recv().await.ok_or(Stop::Neighbour) }).await
    }

    fn tell(&self, epoch: Epoch, seen: Seen, took: Duration) {
        let residues = self.counters.residues();
        for residue in &residues {
            warn!("conservation: {residue}");
        }
        let delay = self.settings.watermark_delay_ms;
        let at_ms = i64::try_from(self.world.clock().now().as_millis()).unwrap_or(i64::MAX);
        let Seen { records, events, stamps, watermark_ms, letters } = seen;
        let state_bytes = self.store.disk_bytes();
        self.shared.update(|status| {
            status.counters = self.counters.clone();
            status.watermark_ms = watermark_ms.map(|ms| ms.saturating_sub(delay));
            status.checkpoint(CheckpointFacts { epoch, at_ms, took, records, events, state_bytes });
            status.latencies.visible(&stamps, at_ms);
            for (of, n) in letters {
                *status.letters.entry(of).or_default() += n;
            }
        });
        if self.ending {
            info!(epoch = epoch.0, "last checkpoint");
        }
    }
}
