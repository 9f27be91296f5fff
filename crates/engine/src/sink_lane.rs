//! A sink's lane: merges the shards' outputs, aligned at barriers, and runs the sink's epochs.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use millstream_core::counters::SinkCounters;
use millstream_core::decoder::Refusal;
use millstream_core::sink::WriteReport;
use millstream_core::{CommitToken, DeadLetter, Output, OutputBatch, Sink, Stage};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver};

use crate::dispatch::letter;
use crate::flow::{Barrier, EpochStart, Permit, Report, Staged, ToSink, gone};

/// Coordinator → sink.
pub(crate) enum SinkOrder {
    /// Make this epoch visible.
    Commit {
        epoch: millstream_core::Epoch,
        /// `None` where the epoch had no rows for this sink.
        token: Option<CommitToken>,
    },
    /// The run ends, all its epochs being visible.
    Finish,
}

pub(crate) struct SinkLane {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) sink: Box<dyn Sink>,
    pub(crate) lanes: Vec<Receiver<ToSink>>,
    pub(crate) commits: UnboundedReceiver<SinkOrder>,
    pub(crate) reports: Sender<Report>,
    pub(crate) start: EpochStart,
}

impl SinkLane {
    pub(crate) async fn run(mut self) -> Staged {
        let mut counters = SinkCounters::default();
        let mut waiting = vec![false; self.lanes.len()];
        let mut epoch = self.start.epoch;
        let mut failure = self.sink.failure();
        self.sink.begin(epoch, self.start.ingested_at_us).await.map_err(|e| e.at(&self.name))?;
        loop {
            let message = tokio::select! {
                biased;
                Some(order) = self.commits.recv() => {
                    self.obey(order).await?;
                    continue;
                }
                error = &mut failure => return Err(error.at(&self.name).into()),
                message = next(&mut self.lanes, &waiting) => message,
            };
            match message {
                None => return Ok(()),
                Some((_, ToSink::Batch(batch, permit))) => {
                    let letters = self.write(&batch, &mut counters).await?;
                    self.tell(epoch, letters, permit).await?;
                }
                Some((shard, ToSink::Barrier(barrier))) => {
                    waiting[shard] = true;
                    if waiting.iter().all(|w| *w) {
                        waiting.fill(false);
                        self.prepare(barrier, std::mem::take(&mut counters)).await?;
                        epoch = barrier.next.epoch;
                    }
                }
            }
        }
    }

    async fn write(
        &mut self,
        batch: &Arc<OutputBatch>,
        counters: &mut SinkCounters,
    ) -> Staged<Vec<DeadLetter>> {
        let own;
        let (batch, others) = match self.for_others(batch) {
            0 => (&**batch, 0),
            others => {
                own = self.own_part(batch);
                (&own, others)
            }
        };
        let report = self.sink.write(batch).await.map_err(|e| e.at(&self.name))?;
        let WriteReport { written, superseded, filtered, duplicates, rejected } = report;
        counters.add(&SinkCounters {
            written,
            superseded,
            filtered,
            duplicates: duplicates + others,
            rejected: rejected.len() as u64,
            absent: 0,
        });
        let letters = rejected.into_iter().filter_map(|rejection| match &batch.outputs[rejection.output] {
            Output::Event(judged) => {
                let table = Some(judged.event.schema.table.qualified());
                let refusal = Refusal { stage: Stage::Write, cause: rejection.cause, table };
                let sink = Some(self.name.clone());
                Some(DeadLetter { sink, ..letter(&batch.records, judged.event.record, refusal) })
            }
            Output::Patch(_) => None,
        });
        Ok(letters.collect())
    }

    /// How many events of a batch come again for other sinks.
    fn for_others(&self, batch: &OutputBatch) -> u64 {
        if !batch.records.is_again() {
            return 0;
        }
        batch.outputs.iter().filter(|output| !self.is_own(batch, output)).count() as u64
    }

    /// Whether an output does not come again, or does so for this sink.
    fn is_own(&self, batch: &OutputBatch, output: &Output) -> bool {
        let Output::Event(judged) = output else { return true };
        let slot = batch.records.slots.get(judged.event.record as usize);
        slot.and_then(|slot| slot.again_for.as_deref()).is_none_or(|sink| sink == self.name)
    }

    fn own_part(&self, batch: &OutputBatch) -> OutputBatch {
        let outputs = batch.outputs.iter().filter(|output| self.is_own(batch, output)).cloned().collect();
        OutputBatch { outputs, records: batch.records.clone() }
    }

    async fn tell(
        &mut self,
        epoch: millstream_core::Epoch,
        letters: Vec<DeadLetter>,
        permit: Option<Permit>,
    ) -> Staged {
        for notice in self.sink.notices() {
            self.reports.send(Report::Notice(notice)).await.map_err(gone)?;
        }
        if !letters.is_empty() {
            let report = Report::Letters { epoch, letters, permit };
            self.reports.send(report).await.map_err(gone)?;
        }
        Ok(())
    }

    async fn prepare(&mut self, barrier: Barrier, mut counters: SinkCounters) -> Staged {
        let token = self.sink.prepare().await.map_err(|e| e.at(&self.name))?;
        let refused = self.sink.refused();
        counters.written = counters.written.saturating_sub(refused.len() as u64);
        counters.rejected += refused.len() as u64;
        let letters = refused.into_iter().map(|row| {
            let refusal = Refusal { stage: Stage::Write, cause: row.cause, table: Some(row.table) };
            DeadLetter { sink: Some(self.name.clone()), ..letter(&row.records, row.record, refusal) }
        });
        let letters = letters.collect();
        self.tell(barrier.epoch, letters, None).await?;
        let report = Report::Sink { index: self.index, epoch: barrier.epoch, token, counters };
        self.reports.send(report).await.map_err(gone)?;
        let EpochStart { epoch, ingested_at_us } = barrier.next;
        self.sink.begin(epoch, ingested_at_us).await.map_err(|e| e.at(&self.name))?;
        Ok(())
    }

    async fn obey(&mut self, order: SinkOrder) -> Staged {
        let done = match order {
            SinkOrder::Commit { epoch, token } => {
                if let Some(token) = &token {
                    self.sink.commit(token).await.map_err(|e| e.at(&self.name))?;
                }
                Report::Committed { epoch }
            }
            SinkOrder::Finish => {
                self.sink.finish().await.map_err(|e| e.at(&self.name))?;
                for notice in self.sink.notices() {
                    self.reports.send(Report::Notice(notice)).await.map_err(gone)?;
                }
                Report::Finished
            }
        };
        self.reports.send(done).await.map_err(gone)
    }
}

/// The next message of any shard that has not reached the barrier yet; `None` once all shards are gone.
async fn next(lanes: &mut [Receiver<ToSink>], waiting: &[bool]) -> Option<(usize, ToSink)> {
    poll_fn(|cx| {
        let mut open = false;
        for (shard, lane) in lanes.iter_mut().enumerate() {
            if waiting[shard] {
                open = true;
                continue;
            }
            match lane.poll_recv(cx) {
                Poll::Ready(Some(message)) => return Poll::Ready(Some((shard, message))),
                Poll::Ready(None) => {}
                Poll::Pending => open = true,
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    })
    .await
}
