//! The simulated source, in two kinds: a log, which goes on from a position, and a queue, which delivers again whatever was
//! not acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::record::{Range, Slot};
use millstream_core::{Budget, Cause, Fut, Next, PartitionId, Position, RecordBatch, Result, Source};
use tokio::time::{Instant, sleep_until};

use crate::delivery::{Delivery, Partition};
use crate::fault::{Call, Edge};
use crate::random::Random;
use crate::stage::Stage;

/// After this long a queue delivers a record again whose acknowledgement was lost.
const ACK_DEADLINE: Duration = Duration::from_millis(200);
/// A pipeline on a queue ends when nothing came for this long; longer than the deadline.
pub(crate) const QUEUE_IDLE: Duration = Duration::from_millis(600);

/// An idle queue is asked again after this long.
const POLL: Duration = Duration::from_millis(50);

/// How the source remembers what was processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceKind {
    /// By the positions that it is opened with.
    Log,
    /// By acknowledgements.
    Queue,
}

/// What a position says: the session that made it (0 in a log), and how many deliveries of it lie behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Progress {
    session: u64,
    behind: u64,
}

impl Progress {
    /// From a position; zero where it is none of ours.
    pub(crate) fn of(position: &Position) -> Self {
        let number = |at: usize| {
            position.0.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_be_bytes)
        };
        Self { session: number(0), behind: number(8) }
    }

    fn position(self) -> Position {
        let mut bytes = self.session.to_be_bytes().to_vec();
        bytes.extend(self.behind.to_be_bytes());
        Position(bytes)
    }
}

/// One session with a partition.
#[derive(Debug, Default)]
struct Lane {
    /// Delivered again before anything fresh.
    again: VecDeque<usize>,
    /// Log: the next delivery.
    next: usize,
    /// Queue: what this session handed out, in order.
    handed: Vec<usize>,
    /// Queue: how many of these were acknowledged or lost.
    released: usize,
    /// Everything was delivered, and the engine was told so.
    resting: bool,
    /// Queue: to be delivered again at that time.
    lost: VecDeque<(Instant, usize)>,
}

/// An opened source.
pub(crate) struct SimSource {
    stage: Arc<Stage>,
    partitions: Arc<Vec<Partition>>,
    kind: SourceKind,
    session: u64,
    lanes: Vec<Lane>,
    resting: Vec<PartitionId>,
    random: Random,
    pace_ms: u64,
    /// When the next records come. Outlasts the calls that wait for it: the engine drops them as it likes.
    due: Option<Instant>,
}

impl SimSource {
    pub(crate) fn new(
        stage: Arc<Stage>,
        partitions: Arc<Vec<Partition>>,
        kind: SourceKind,
        pace_ms: u64,
    ) -> Self {
        let random = stage.lock().random.fork();
        let lanes = partitions.iter().map(|_| Lane::default()).collect();
        Self { stage, partitions, kind, session: 0, lanes, resting: Vec::new(), random, pace_ms, due: None }
    }

    /// A log goes on from the positions, and sometimes delivers a few records before them again.
    fn open_log(&mut self, positions: &BTreeMap<PartitionId, Position>) {
        for (lane, partition) in self.lanes.iter_mut().zip(&*self.partitions) {
            lane.next = positions.get(&partition.id).map_or(0, |at| Progress::of(at).behind as usize);
            if self.random.chance(50) {
                let from = lane.next.saturating_sub(self.random.index(20));
                let good = |at: &usize| !partition.deliveries[*at].is_bad;
                lane.again = (from..lane.next).filter(good).filter(|_| self.random.chance(70)).collect();
            }
        }
    }

    /// A queue delivers everything that is pending again, in no order.
    fn open_queue(&mut self) {
        let mut state = self.stage.lock();
        let broker = &mut state.disk.broker;
        broker.sessions += 1;
        broker.fresh.resize(self.partitions.len(), 0);
        broker.pending.resize_with(self.partitions.len(), Default::default);
        self.session = broker.sessions;
        for (lane, pending) in self.lanes.iter_mut().zip(&broker.pending) {
            let mut moved: Vec<_> =
                pending.iter().map(|at| (*at as u64 + self.random.below(50), *at)).collect();
            moved.sort_unstable();
            lane.again = moved.into_iter().map(|(_, at)| at).collect();
        }
    }

    /// What a partition has to give now.
    fn ready(&mut self, partition: usize) -> bool {
        let deliveries = self.partitions[partition].deliveries.len();
        let lane = &mut self.lanes[partition];
        while lane.lost.front().is_some_and(|(at, _)| *at <= Instant::now()) {
            lane.again.extend(lane.lost.pop_front().map(|(_, at)| at));
        }
        let fresh = match self.kind {
            SourceKind::Log => lane.next < deliveries,
            SourceKind::Queue => self.stage.lock().disk.broker.fresh[partition] < deliveries,
        };
        fresh || !lane.again.is_empty()
    }

    fn take(&mut self, partition: usize) -> usize {
        let mut state = self.stage.lock();
        let lane = &mut self.lanes[partition];
        let again = lane.again.pop_front();
        match self.kind {
            SourceKind::Log => again.unwrap_or_else(|| {
                lane.next += 1;
                lane.next - 1
            }),
            SourceKind::Queue => {
                let broker = &mut state.disk.broker;
                let at = again.unwrap_or_else(|| {
                    broker.fresh[partition] += 1;
                    broker.fresh[partition] - 1
                });
                broker.pending[partition].insert(at);
                lane.handed.push(at);
                at
            }
        }
    }

    fn batch(&mut self, partition: usize, budget: Budget) -> RecordBatch {
        let most = (1 + self.random.index(8)).min(budget.records);
        let mut batch = RecordBatch {
            partition: self.partitions[partition].id.clone(),
            buffer: Vec::new(),
            slots: Vec::new(),
            position: Position::default(),
        };
        while batch.slots.len() < most && self.ready(partition) {
            let at = self.take(partition);
            let slot = put(&mut batch.buffer, &self.partitions[partition].deliveries[at]);
            batch.slots.push(slot);
        }
        let behind = match self.kind {
            SourceKind::Log => self.lanes[partition].next,
            SourceKind::Queue => self.lanes[partition].handed.len(),
        };
        batch.position = Progress { session: self.session, behind: behind as u64 }.position();
        self.stage.lock().note(|| format!("source: {} records of {}", batch.slots.len(), batch.partition));
        batch
    }

    /// Acknowledges; some acknowledgements get lost.
    fn acknowledge(&mut self, partition: usize, progress: Progress) {
        if progress.session != self.session {
            return;
        }
        let lane = &mut self.lanes[partition];
        let mut state = self.stage.lock();
        let pending = &mut state.disk.broker.pending[partition];
        let up_to = (progress.behind as usize).min(lane.handed.len());
        let from = lane.released.min(up_to);
        lane.released = up_to.max(lane.released);
        for &at in &lane.handed[from..up_to] {
            let is_bad = self.partitions[partition].deliveries[at].is_bad;
            if is_bad || self.random.chance(90) {
                pending.remove(&at);
            } else {
                lane.lost.push_back((Instant::now() + ACK_DEADLINE, at));
            }
        }
    }
}

fn put(buffer: &mut Vec<u8>, delivery: &Delivery) -> Slot {
    let value = delivery.value.as_ref().map(|value| {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(value);
        Range { start, len: value.len() as u32 }
    });
    let broken = delivery.broken_frame.then(|| Cause::new("broken_frame", "made so"));
    Slot { value, offset: delivery.offset, broken, ..Slot::default() }
}

impl Source for SimSource {
    fn open<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.stage.step(Call::SourceOpen, Edge::Before, "source").await?;
            match self.kind {
                SourceKind::Log => self.open_log(&positions.iter().cloned().collect()),
                SourceKind::Queue => self.open_queue(),
            }
            self.stage.step(Call::SourceOpen, Edge::After, "source").await
        })
    }

    fn next(&mut self, budget: Budget) -> Fut<'_, Result<Next>> {
        Box::pin(async move {
            self.stage.step(Call::SourceNext, Edge::Before, "source").await?;
            let wait = Duration::from_millis(self.random.below(self.pace_ms + 1));
            sleep_until(*self.due.get_or_insert_with(|| Instant::now() + wait)).await;
            self.due = None;
            let ready: Vec<_> = (0..self.lanes.len()).filter(|&p| self.ready(p)).collect();
            for (p, lane) in self.lanes.iter_mut().enumerate() {
                let rests = !ready.contains(&p);
                if rests && !std::mem::replace(&mut lane.resting, rests) {
                    self.resting.push(self.partitions[p].id.clone());
                }
            }
            if ready.is_empty() {
                self.due = Some(Instant::now() + POLL);
                return Ok(if self.kind == SourceKind::Log { Next::End } else { Next::Idle });
            }
            let partition = self.random.pick(&ready);
            self.lanes[partition].resting = false;
            let batch = self.batch(partition, budget);
            self.stage.step(Call::SourceNext, Edge::After, "source").await?;
            Ok(Next::Batch(batch))
        })
    }

    fn resting(&mut self) -> Vec<PartitionId> {
        std::mem::take(&mut self.resting)
    }

    fn release<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.stage.step(Call::SourceRelease, Edge::Before, "source").await?;
            for (id, position) in positions {
                let progress = Progress::of(position);
                {
                    let mut state = self.stage.lock();
                    let durable = state
                        .disk
                        .store
                        .checkpoint
                        .as_ref()
                        .and_then(|c| c.positions.get(id).map(Progress::of));
                    if durable.is_none_or(|durable| durable < progress) {
                        state.breach(format!(
                            "{id} was released up to {progress:?}, but the last checkpoint stands at {durable:?}"
                        ));
                    }
                }
                let partition = self.partitions.iter().position(|p| p.id == *id);
                if let (Some(partition), SourceKind::Queue) = (partition, self.kind) {
                    self.acknowledge(partition, progress);
                }
            }
            self.stage.step(Call::SourceRelease, Edge::After, "source").await
        })
    }
}

/// The mutant that acknowledges what it delivers.
pub(crate) struct EarlyAck(pub(crate) SimSource);

impl Source for EarlyAck {
    fn open<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        self.0.open(positions)
    }

    fn next(&mut self, budget: Budget) -> Fut<'_, Result<Next>> {
        Box::pin(async move {
            let next = self.0.next(budget).await?;
            if let Next::Batch(batch) = &next {
                self.0.release(&[(batch.partition.clone(), batch.position.clone())]).await?;
            }
            Ok(next)
        })
    }

    fn release<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        self.0.release(positions)
    }
}
