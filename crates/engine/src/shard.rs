//! A shard: the keyed stage for its part of the keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_core::dedupe::{Forward, Gate};
use millstream_core::{Output, OutputBatch, PartitionId, Position, RecordBatch};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender};

use crate::flow::{Aside, Barrier, Permit, Report, ShardBatch, Staged, ToShard, ToSink, gone};
use crate::status::Gauges;
use crate::world::World;

/// Uncommitted state of all shards, in bytes, and whom to wake when it is too much for one epoch.
pub(crate) struct Pressure {
    bytes: Vec<AtomicUsize>,
    max: usize,
    pub(crate) exceeded: Notify,
}

impl Pressure {
    pub(crate) fn new(shards: usize, max: usize) -> Self {
        Self { bytes: (0..shards).map(|_| AtomicUsize::new(0)).collect(), max, exceeded: Notify::new() }
    }

    fn tell(&self, shard: usize, bytes: usize) {
        self.bytes[shard].store(bytes, Ordering::Relaxed);
        if self.bytes.iter().map(|b| b.load(Ordering::Relaxed)).sum::<usize>() > self.max {
            self.exceeded.notify_one();
        }
    }
}

pub(crate) struct Shard {
    pub(crate) index: usize,
    pub(crate) gate: Gate,
    pub(crate) events: Receiver<ToShard>,
    pub(crate) asides: UnboundedReceiver<Aside>,
    pub(crate) peers: Vec<UnboundedSender<Aside>>,
    pub(crate) sinks: Vec<Sender<ToSink>>,
    pub(crate) reports: Sender<Report>,
    pub(crate) pressure: Arc<Pressure>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) world: Arc<dyn World>,
}

impl Shard {
    pub(crate) async fn run(mut self) -> Staged {
        loop {
            // Asides first: `Committed` must be seen before the barrier that it allowed.
            tokio::select! {
                biased;
                Some(aside) = self.asides.recv() => match aside {
                    Aside::Committed => self.gate.committed(),
                    Aside::Forward(forward) => self.forward(forward).await?,
                },
                event = self.events.recv() => match event {
                    None => return Ok(()),
                    Some(ToShard::Batch(batch)) => self.batch(batch).await?,
                    Some(ToShard::Barrier(barrier)) => self.barrier(barrier).await?,
                },
            }
        }
    }

    async fn batch(&mut self, batch: ShardBatch) -> Staged {
        let mut outputs = Vec::with_capacity(batch.events.len() + 8);
        let mut sends = Vec::new();
        for event in batch.events {
            let late = matches!((event.facts.ts_ms, batch.watermark_ms), (Some(ts), Some(w)) if ts < w);
            self.gate.judge(event, late, &mut outputs, &mut sends)?;
        }
        // Not what came in: a truncate comes to every shard and is one event, its own shard's.
        let count = outputs.iter().filter(|output| matches!(output, Output::Event(_))).count();
        self.gauges.events_in.fetch_add(count as u64, Ordering::Relaxed);
        self.pressure.tell(self.index, self.gate.dirty_bytes());
        self.send(sends)?;
        self.give(OutputBatch { outputs, records: batch.records }, Some(batch.permit)).await
    }

    async fn forward(&mut self, forward: Forward) -> Staged {
        let mut outputs = Vec::new();
        let mut sends = Vec::new();
        self.gate.receive(forward, &mut outputs, &mut sends)?;
        self.send(sends)?;
        self.give(OutputBatch { outputs, records: no_records() }, None).await
    }

    async fn barrier(&mut self, barrier: Barrier) -> Staged {
        let now_ms = i64::try_from(self.world.clock().now().as_millis()).unwrap_or(i64::MAX);
        let state = self.gate.barrier(now_ms);
        self.pressure.tell(self.index, self.gate.dirty_bytes());
        let report = Report::Shard { barrier: state, cached_keys: self.gate.cached_keys() };
        self.reports.send(report).await.map_err(gone)?;
        for sink in &self.sinks {
            sink.send(ToSink::Barrier(barrier)).await.map_err(gone)?;
        }
        Ok(())
    }

    /// Forwards have no bound of their own: there are at most a few for each change of a key.
    fn send(&self, sends: Vec<Forward>) -> Staged {
        for forward in sends {
            let shard = forward.shard(self.peers.len());
            self.peers[shard].send(Aside::Forward(forward)).map_err(gone)?;
        }
        Ok(())
    }

    async fn give(&self, batch: OutputBatch, permit: Option<Permit>) -> Staged {
        if batch.outputs.is_empty() {
            return Ok(());
        }
        let batch = Arc::new(batch);
        for sink in &self.sinks {
            sink.send(ToSink::Batch(batch.clone(), permit.clone())).await.map_err(gone)?;
        }
        Ok(())
    }
}

/// Patches come from no record of their own.
fn no_records() -> Arc<RecordBatch> {
    Arc::new(RecordBatch {
        partition: PartitionId::new(""),
        buffer: Vec::new(),
        slots: Vec::new(),
        position: Position::default(),
    })
}
