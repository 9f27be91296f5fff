//! Whole-gate tests: a world of shards, a store, a history and a replica, with crashes, against models.

mod exact;
mod inflight;
mod keyless;
mod toast;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use super::*;
use crate::counters::TableCounters;
use crate::error::Result;
use crate::event::{Event, Facts, Op, Origin, Snapshot};
use crate::key::Key;
use crate::order::{EventId, Incarnation, Order};
use crate::row::{Row, RowBuilder};
use crate::schema::{Column, RowSchema, TableName};
use crate::sink::Output;
use crate::store::{Space, StateView};
use crate::value::{Type, Value};

/// Committed state.
#[derive(Default)]
pub(super) struct Memory(Mutex<Entries>);

type Entries = BTreeMap<(Space, Vec<u8>), Vec<u8>>;

impl Memory {
    fn apply(&self, delta: &StateDelta) {
        let mut all = self.0.lock().unwrap();
        for (space, key, value) in &delta.writes {
            match value {
                Some(value) => all.insert((*space, key.clone()), value.clone()),
                None => all.remove(&(*space, key.clone())),
            };
        }
    }

    fn count(&self, space: Space) -> usize {
        self.0.lock().unwrap().keys().filter(|(s, _)| *s == space).count()
    }
}

impl StateView for Memory {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().get(&(space, key.to_vec())).cloned())
    }

    fn scan(&self, space: Space, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for ((s, key), value) in self.0.lock().unwrap().iter() {
            if *s == space && key.starts_with(prefix) && !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}

/// What sinks made of the outputs.
#[derive(Default, Clone)]
struct Ledger {
    /// Rows of the history: (key, id) with the orders they were written with.
    history: BTreeMap<(Option<Key>, EventId), Vec<Order>>,
    /// Origins of keyless rows.
    keyless: Vec<Origin>,
    replica: BTreeMap<Key, (Order, Vec<String>)>,
    counters: TableCounters,
    events: u64,
    patches: u64,
}

impl Ledger {
    fn write(&mut self, output: Output) {
        let judged = match output {
            Output::Patch(patch) => {
                self.patches += 1;
                let Some((order, row)) = self.replica.get_mut(&patch.key) else { return };
                assert_eq!(*order, patch.order, "a patch names the replica's row");
                for (i, &column) in patch.columns.iter().enumerate() {
                    row[column] = format!("{:?}", patch.values.get(i));
                }
                return;
            }
            Output::Event(judged) => judged,
        };
        self.events += 1;
        let event = &judged.event;
        if judged.distinct {
            match (&event.key, event.op) {
                (None, op) if op != Op::Truncate => self.keyless.push(event.origin),
                (key, _) => self.history.entry((key.clone(), event.id)).or_default().push(event.order),
            }
        }
        if !judged.newest {
            return;
        }
        assert!(judged.distinct);
        match (&event.key, event.op) {
            (None, _) => self.replica.retain(|_, (order, _)| *order > event.order),
            (Some(key), Op::Delete) => {
                self.replica.remove(key);
            }
            (Some(key), _) => {
                let row = cells(judged.current_row());
                self.replica.insert(key.clone(), (event.order, row));
            }
        }
    }
}

fn cells(row: &Row) -> Vec<String> {
    row.iter().map(|v| format!("{v:?}")).collect()
}

#[derive(Clone, Default)]
struct Checkpoint {
    cursor: usize,
    ledger: Ledger,
    forwards: Vec<Vec<u8>>,
}

/// One step of a schedule.
#[derive(Debug, Clone, Copy)]
enum Step {
    Deliver(usize),
    /// Of the forwards under way, the one with this number (modulo).
    Forward(usize),
    Barrier,
    Commit,
    /// With so many shards afterwards.
    Crash(usize),
}

/// An engine in small: delivers a stream, and loses everything since the last commit at a crash.
struct World {
    config: Arc<GateConfig>,
    stream: Vec<Event>,
    memory: Arc<Memory>,
    gates: Vec<Gate>,
    now_ms: i64,
    cursor: usize,
    ledger: Ledger,
    /// Forwards under way, with the epoch they were sent in.
    under_way: VecDeque<(u64, Forward)>,
    epoch: u64,
    outstanding: Option<(StateDelta, Checkpoint)>,
    committed: Checkpoint,
}

impl World {
    fn new(config: GateConfig, stream: Vec<Event>, shards: usize) -> Self {
        let mut world = Self {
            config: Arc::new(config),
            stream,
            memory: Arc::default(),
            gates: Vec::new(),
            now_ms: 1_000_000,
            cursor: 0,
            ledger: Ledger::default(),
            under_way: VecDeque::new(),
            epoch: 0,
            outstanding: None,
            committed: Checkpoint::default(),
        };
        world.start(shards);
        world
    }

    fn start(&mut self, shards: usize) {
        let gate = |shard| Gate::new(Arc::clone(&self.config), shard, shards, self.memory.clone()).unwrap();
        self.gates = (0..shards).map(gate).collect();
    }

    fn run(&mut self, steps: &[Step]) {
        for &step in steps {
            match step {
                Step::Deliver(n) => (0..n).for_each(|_| self.deliver()),
                Step::Forward(n) if !self.under_way.is_empty() => self.forward(n % self.under_way.len()),
                Step::Forward(_) => {}
                Step::Barrier => self.barrier(),
                Step::Commit => self.commit(),
                Step::Crash(shards) => self.crash(shards),
            }
        }
        while self.cursor < self.stream.len() {
            self.deliver();
        }
        while !self.under_way.is_empty() {
            self.forward(0);
        }
        self.barrier();
        self.commit();
    }

    fn deliver(&mut self) {
        let Some(event) = self.stream.get(self.cursor).cloned() else { return };
        self.cursor += 1;
        let shards = self.gates.len();
        let owner = shard_of(&event, shards);
        for shard in 0..shards {
            if shard == owner || event.op == Op::Truncate {
                self.at(shard, |gate, out, sends| gate.judge(Box::new(event.clone()), false, out, sends));
            }
        }
    }

    /// An event comes again for a sink that refused its row.
    fn again(&mut self, event: &Event) {
        let owner = shard_of(event, self.gates.len());
        self.at(owner, |gate, out, _| gate.judge_again(Box::new(event.clone()), false, out));
    }

    fn forward(&mut self, n: usize) {
        let (_, forward) = self.under_way.remove(n).unwrap();
        let forward = Forward::decode(&forward.encode()).unwrap();
        let shard = forward.shard(self.gates.len());
        self.at(shard, |gate, out, sends| gate.receive(forward, out, sends));
    }

    fn at(
        &mut self,
        shard: usize,
        act: impl FnOnce(&mut Gate, &mut Vec<Output>, &mut Vec<Forward>) -> Result<()>,
    ) {
        let (mut out, mut sends) = (Vec::new(), Vec::new());
        act(&mut self.gates[shard], &mut out, &mut sends).unwrap();
        out.into_iter().for_each(|output| self.ledger.write(output));
        let epoch = self.epoch;
        self.under_way.extend(sends.into_iter().map(|f| (epoch, f)));
    }

    fn barrier(&mut self) {
        self.commit();
        // Those of the epoch before must have arrived; those of this one are in its checkpoint.
        while let Some(n) = self.under_way.iter().position(|(epoch, _)| *epoch < self.epoch) {
            self.forward(n);
        }
        self.now_ms += 700;
        let mut writes = StateDelta::default();
        let mut forwards = Vec::new();
        for gate in &mut self.gates {
            let barrier = gate.barrier(self.now_ms);
            assert_eq!(gate.dirty_bytes(), 0);
            writes.writes.extend(barrier.state.writes);
            barrier.counters.values().for_each(|c| self.ledger.counters.add(c));
            forwards.extend(barrier.forwards);
        }
        self.epoch += 1;
        let checkpoint = Checkpoint { cursor: self.cursor, ledger: self.ledger.clone(), forwards };
        self.outstanding = Some((writes, checkpoint));
    }

    fn commit(&mut self) {
        if let Some((delta, checkpoint)) = self.outstanding.take() {
            self.memory.apply(&delta);
            self.committed = checkpoint;
            self.gates.iter_mut().for_each(Gate::committed);
        }
    }

    fn crash(&mut self, shards: usize) {
        self.outstanding = None;
        (self.cursor, self.ledger) = (self.committed.cursor, self.committed.ledger.clone());
        let forwards = self.committed.forwards.iter().map(|bytes| Forward::decode(bytes).unwrap());
        // Sent again at once, so they belong to the epoch before the first new one.
        self.under_way = forwards.map(|f| (self.epoch, f)).collect();
        self.epoch += 1;
        self.start(shards);
    }

    /// That every count fits the others and the outputs.
    fn check_counters(&self) {
        let c = &self.ledger.counters;
        assert_eq!(c.events, c.distinct + c.duplicates);
        assert_eq!(c.events, self.ledger.events);
    }
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::prelude::*;
    let step = prop_oneof![
        6 => (1..30usize).prop_map(Step::Deliver),
        3 => (0..9usize).prop_map(Step::Forward),
        2 => Just(Step::Barrier),
        2 => Just(Step::Commit),
        1 => (1..5usize).prop_map(Step::Crash),
    ];
    prop::collection::vec(step, 0..60)
}

/// `n` indexes in an order with duplicates: every index at least once.
fn deliveries(n: usize, window: usize, seed: &[u32]) -> Vec<usize> {
    let pick =
        |i: usize| seed[i % seed.len()].wrapping_mul(2_654_435_761).rotate_left(i as u32 % 31) as usize;
    let mut all: Vec<(usize, usize)> = Vec::new();
    for i in 0..n {
        for copy in 0..1 + (pick(i) % 7 == 0) as usize + (pick(i + 3) % 11 == 0) as usize {
            all.push((i + pick(i + 17 * copy + 1) % window.max(1), i));
        }
    }
    all.sort_by_key(|&(at, i)| (at, pick(i)));
    all.into_iter().map(|(_, i)| i).collect()
}

fn table(columns: &[(&str, Type)]) -> Arc<RowSchema> {
    let column = |(name, ty): &(&str, Type)| Column {
        name: (*name).into(),
        ty: ty.clone(),
        nullable: true,
        guessed: false,
    };
    let columns = columns.iter().map(column).collect();
    Arc::new(RowSchema { table: Arc::new(TableName::new("shop", "public", "orders")), columns, key: vec![0] })
}

fn key(n: i64) -> Key {
    Key::from_values([Value::Int(n)])
}

fn row(values: &[Value<'_>]) -> Row {
    let mut b = RowBuilder::new();
    values.iter().for_each(|&v| b.push(v));
    b.finish()
}

/// A change or read at PostgreSQL order (0, p, lsn).
fn event(schema: &Arc<RowSchema>, op: Op, key: Option<Key>, p: u64, lsn: u64, row: Row) -> Event {
    Event {
        schema: Arc::clone(schema),
        op,
        key,
        old_key: None,
        new_key: None,
        order: Order::postgres(Incarnation(0), p, lsn),
        id: EventId::postgres(Incarnation(0), lsn, op == Op::Read),
        p_known: true,
        row,
        before: None,
        full_before: false,
        facts: Facts { ts_us: Some(lsn as i64), snapshot: Snapshot::No, ..Facts::default() },
        origin: Origin::default(),
        record: 0,
    }
}
