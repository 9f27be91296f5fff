//! A shard: the keyed stage for its part of the keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_core::dedupe::{Forward, Gate};
use millstream_core::{Epoch, Output, OutputBatch, PartitionId, Position, RecordBatch};
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
    /// The epoch that flows here: barriers come to the shards one after the other.
    pub(crate) epoch: Epoch,
    /// Messages of shards that are an epoch ahead.
    pub(crate) early: Vec<Forward>,
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
                    // The checkpoint must not hold what an event behind its barrier did: that event comes again after a crash,
                    // maybe later than others, and would find its question answered.
                    Aside::Forward { forward, sent_in } if sent_in > self.epoch => self.early.push(forward),
                    Aside::Forward { forward, .. } => self.forward(forward).await?,
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
        let again = batch.records.is_again();
        for event in batch.events {
            let late = matches!((event.facts.ts_ms, batch.watermark_ms), (Some(ts), Some(w)) if ts < w);
            if again {
                self.gate.judge_again(event, late, &mut outputs)?;
            } else {
                self.gate.judge(event, late, &mut outputs, &mut sends)?;
            }
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
        self.epoch = barrier.next.epoch;
        for forward in std::mem::take(&mut self.early) {
            self.forward(forward).await?;
        }
        Ok(())
    }

    /// Forwards have no bound of their own: there are at most a few for each change of a key.
    fn send(&self, sends: Vec<Forward>) -> Staged {
        for forward in sends {
            let shard = forward.shard(self.peers.len());
            let sent = Aside::Forward { forward, sent_in: self.epoch };
            self.peers[shard].send(sent).map_err(gone)?;
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

#[cfg(test)]
mod tests {
    use millstream_core::dedupe::GateConfig;
    use millstream_core::event::Facts;
    use millstream_core::{
        Column, DeadLetters, Decoder, Event, EventId, Incarnation, Key, Op, Order, Result, RowBuilder,
        RowSchema, Sink, Source, Space, StateView, Store, TableName, Type, Value,
    };
    use tokio::sync::mpsc;

    use super::*;
    use crate::flow::EpochStart;
    use crate::world::{Clock, SystemClock};

    /// Nothing but a clock is asked for.
    struct Clocked;

    impl World for Clocked {
        fn source(&self) -> Result<Box<dyn Source>> {
            unreachable!()
        }
        fn decoder(&self) -> Result<Box<dyn Decoder>> {
            unreachable!()
        }
        fn sinks(&self) -> Result<Vec<(String, Box<dyn Sink>)>> {
            unreachable!()
        }
        fn store(&self) -> Result<Box<dyn Store>> {
            unreachable!()
        }
        fn dead_letters(&self) -> Result<Box<dyn DeadLetters>> {
            unreachable!()
        }
        fn clock(&self) -> &dyn Clock {
            &SystemClock
        }
    }

    struct Empty;

    impl StateView for Empty {
        fn get(&self, _: Space, _: &[u8]) -> Result<Option<Vec<u8>>> {
            Ok(None)
        }
        fn scan(&self, _: Space, _: &[u8], _: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
            Ok(())
        }
    }

    fn gate() -> Gate {
        Gate::new(Arc::new(GateConfig::default()), 0, 1, Arc::new(Empty)).unwrap()
    }

    /// What the create of a key change asks of the old key.
    fn question() -> Forward {
        let column = |name: &str, ty| Column { name: name.into(), ty, nullable: true, guessed: false };
        let columns = [column("id", Type::Int64), column("big", Type::Text)].into();
        let table = Arc::new(TableName::new("shop", "public", "orders"));
        let mut row = RowBuilder::new();
        row.push(Value::Int(2));
        row.push(Value::Unchanged);
        let event = Event {
            schema: Arc::new(RowSchema { table, columns, key: vec![0] }),
            op: Op::Create,
            key: Some(Key::from_values([Value::Int(2)])),
            old_key: Some(Key::from_values([Value::Int(1)])),
            new_key: None,
            order: Order::postgres(Incarnation(0), 5, 10),
            p_known: true,
            id: EventId::postgres(Incarnation(0), 10, false),
            row: row.finish(),
            before: None,
            full_before: false,
            facts: Facts::default(),
            origin: Default::default(),
            record: 0,
        };
        let mut sends = Vec::new();
        gate().judge(Box::new(event), false, &mut Vec::new(), &mut sends).unwrap();
        sends.remove(0)
    }

    /// A shard that had passed a barrier asked one that had not for a large value, and the checkpoint then held the question
    /// and that it was answered, but neither the event that asked nor the answer's receiver. After a crash the event came
    /// again, behind others that had replaced the value by then; as the question counted as answered, the value stayed
    /// missing without being counted.
    #[tokio::test]
    async fn a_message_from_behind_a_barrier_waits_for_it() {
        let (events, to_shard) = mpsc::channel(4);
        let (asides, from_peers) = mpsc::unbounded_channel();
        let (reports, mut reported) = mpsc::channel(4);
        let shard = Shard {
            index: 0,
            epoch: Epoch(1),
            early: Vec::new(),
            gate: gate(),
            events: to_shard,
            asides: from_peers,
            peers: vec![asides.clone()],
            sinks: Vec::new(),
            reports,
            pressure: Arc::new(Pressure::new(1, 1 << 20)),
            gauges: Arc::default(),
            world: Arc::new(Clocked),
        };
        let shard = tokio::spawn(shard.run());
        asides.send(Aside::Forward { forward: question(), sent_in: Epoch(2) }).unwrap();
        let mut rows = Vec::new();
        for epoch in 1..=2 {
            let next = EpochStart { epoch: Epoch(epoch + 1), ingested_at_us: 0 };
            events.send(ToShard::Barrier(Barrier { epoch: Epoch(epoch), next })).await.unwrap();
            let Some(Report::Shard { barrier, .. }) = reported.recv().await else {
                panic!("no barrier passed")
            };
            rows.push(barrier.state.writes.iter().filter(|(space, ..)| *space == Space::Values).count());
            asides.send(Aside::Committed).unwrap();
        }
        assert_eq!(rows, [0, 1]);
        drop(events);
        assert!(shard.await.unwrap().is_ok());
    }
}
