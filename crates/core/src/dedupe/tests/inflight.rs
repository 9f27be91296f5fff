//! Changes in flight across a snapshot: whatever arrives first, the newest is the truth's, and the orders written say so.

use super::*;
use proptest::prelude::*;

const S: u64 = 10_000;
const READ_US: i64 = 1_000_000;

fn numbers() -> Arc<RowSchema> {
    table(&[("id", Type::Int64), ("n", Type::Int64)])
}

fn at(schema: &Arc<RowSchema>, op: Op, p: Option<u64>, lsn: u64, time_us: i64) -> Event {
    let mut event =
        event(schema, op, Some(key(1)), p.unwrap_or(lsn), lsn, row(&[Value::Int(1), Value::Int(time_us)]));
    event.p_known = p.is_some();
    event.facts.ts_us = Some(time_us);
    if op == Op::Read {
        event.facts.snapshot = Snapshot::Yes;
    }
    event
}

/// One key's events in the order in which the source committed (or read) them.
fn truth() -> impl Strategy<Value = Vec<Event>> {
    let old = 0..3usize;
    // LSNs of the transaction in flight: some written before the read, some after.
    let in_flight = prop::collection::btree_set(9_000..10_400u64, 0..4);
    (old, in_flight, any::<Option<bool>>(), 0..3usize, any::<bool>()).prop_map(
        |(old, in_flight, p, later, delete)| {
            let schema = numbers();
            let mut all = Vec::new();
            // Changes before the snapshot have known p, so the one in flight has too.
            let unknown = p.is_none() && old == 0;
            for i in 0..old as u64 {
                all.push(at(&schema, Op::Update, Some(100 + i * 50), 120 + i * 50, 500 + i as i64));
            }
            let mut read = at(&schema, Op::Read, Some(S), S, READ_US);
            read.p_known = false;
            all.push(read);
            let p = if p == Some(true) { S } else { S - 700 };
            let last = in_flight.len().saturating_sub(1);
            for (i, &lsn) in in_flight.iter().enumerate() {
                let op = if delete && i == last { Op::Delete } else { Op::Update };
                all.push(at(&schema, op, (!unknown).then_some(p), lsn, READ_US + 77));
            }
            for i in 0..later as u64 {
                all.push(at(
                    &schema,
                    Op::Update,
                    Some(10_500 + i * 50),
                    10_520 + i * 50,
                    READ_US + 100 + i as i64,
                ));
            }
            all
        },
    )
}

proptest! {
    #[test]
    fn the_newest_is_the_last_committed(
        truth in truth(),
        seed in prop::collection::vec(any::<u32>(), 8..40),
        steps in steps(),
        mode in prop_oneof![Just(Mode::Exact), Just(Mode::Latest)],
    ) {
        let stream = deliveries(truth.len(), 10, &seed).into_iter().map(|i| truth[i].clone()).collect();
        let mut world = World::new(GateConfig { mode, ..GateConfig::default() }, stream, 2);
        world.run(&steps);
        let last = truth.last().unwrap();
        match world.ledger.replica.get(&key(1)) {
            Some((_, row)) => prop_assert_eq!(row, &cells(&last.row)),
            None => prop_assert_eq!(last.op, Op::Delete),
        }
        if mode == Mode::Exact {
            // Histories rank by the orders written.
            let top = world.ledger.history.iter().max_by_key(|(_, orders)| orders[0]).unwrap();
            prop_assert_eq!(top.0.1, last.id);
            prop_assert!(world.ledger.history.values().all(|orders| orders.len() == 1));
            prop_assert_eq!(world.ledger.history.len(), truth.len());
        }
        world.check_counters();
    }
}

fn run(stream: Vec<Event>) -> World {
    let mut world = World::new(GateConfig::default(), stream, 1);
    world.run(&[]);
    world
}

fn order_of(world: &World, event: &Event) -> Order {
    world.ledger.history[&(event.key.clone(), event.id)][0]
}

#[test]
fn the_later_arriving_of_the_two_is_adjusted() {
    let schema = numbers();
    let read = at(&schema, Op::Read, None, S, READ_US);
    let change = at(&schema, Op::Update, None, 9_500, READ_US + 1);
    let world = run(vec![read.clone(), change.clone(), read.clone(), change.clone()]);
    assert_eq!(order_of(&world, &change).sections(), [0, S + 1, 9_500]);
    assert_eq!(order_of(&world, &read).sections(), [0, S, S]);
    assert_eq!((world.ledger.counters.adjusted, world.ledger.counters.duplicates), (1, 2));

    let world = run(vec![change.clone(), read.clone(), change.clone(), read.clone()]);
    assert_eq!(order_of(&world, &change).sections(), [0, 9_500, 9_500]);
    assert_eq!(order_of(&world, &read).sections(), [0, 0, S]);
    assert_eq!((world.ledger.counters.adjusted, world.ledger.counters.duplicates), (1, 2));
}

#[test]
fn a_change_committed_before_the_read_is_not_adjusted() {
    let schema = numbers();
    let read = at(&schema, Op::Read, None, S, READ_US);
    let change = at(&schema, Op::Update, Some(9_000), 9_500, READ_US - 1);
    let world = run(vec![read, change.clone()]);
    assert_eq!(order_of(&world, &change), change.order);
    assert_eq!(world.ledger.counters.adjusted, 0);
}

/// An incremental read's clock is the connector's: against changes with a known p only the stream's positions count.
#[test]
fn incremental_reads_trust_the_stream() {
    let schema = numbers();
    let mut read = at(&schema, Op::Read, Some(8_000), S, READ_US);
    read.facts.snapshot = Snapshot::Incremental;
    let before = at(&schema, Op::Update, Some(7_000), 7_500, READ_US + 50);
    let world = run(vec![read.clone(), before.clone()]);
    assert_eq!(order_of(&world, &before), before.order);
    let world = run(vec![before.clone(), read.clone()]);
    assert_eq!(order_of(&world, &read), read.order);

    let unknown = at(&schema, Op::Update, None, 7_500, READ_US + 50);
    let world = run(vec![read.clone(), unknown.clone()]);
    assert_eq!(order_of(&world, &unknown).sections(), [0, 8_001, 7_500]);
    let world = run(vec![unknown.clone(), read.clone()]);
    assert_eq!(order_of(&world, &read).sections(), [0, 0, S]);
}

#[test]
fn a_replay_with_another_p_is_a_duplicate_and_counted() {
    let schema = numbers();
    let first = at(&schema, Op::Update, None, 9_500, 5);
    let again = at(&schema, Op::Update, Some(9_400), 9_500, 5);
    for mode in [Mode::Exact, Mode::Latest] {
        let mut world =
            World::new(GateConfig { mode, ..GateConfig::default() }, vec![first.clone(), again.clone()], 1);
        world.run(&[]);
        let c = world.ledger.counters;
        assert_eq!((c.distinct, c.duplicates, c.adjusted), (1, 1, 1));
    }
}
