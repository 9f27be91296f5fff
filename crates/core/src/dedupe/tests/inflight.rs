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
    // LSNs of the transaction in flight: some written before the read, one at its very position, some after.
    let lsn = prop_oneof![9_000..10_400u64, Just(S)];
    let in_flight = prop::collection::btree_set(lsn, 0..4);
    let kind = prop_oneof![Just(Kind::Unknown), Just(Kind::Early), Just(Kind::AtS), Just(Kind::BelowS)];
    (0..3u64, in_flight, kind, 0..3u64, any::<bool>()).prop_map(|(old, in_flight, kind, later, delete)| {
        let schema = numbers();
        let mut all = Vec::new();
        // Once a commit was seen before the snapshot, the transaction in flight has a known p.
        let old = if matches!(kind, Kind::Unknown | Kind::Early) { 0 } else { old };
        for i in 0..old {
            all.push(at(&schema, Op::Update, Some(100 + i * 50), 120 + i * 50, 500 + i as i64));
        }
        all.push(at(&schema, Op::Read, None, S, READ_US));
        let last = in_flight.len().saturating_sub(1);
        for (i, &lsn) in in_flight.iter().enumerate() {
            let op = if delete && i == last { Op::Delete } else { Op::Update };
            let (p, time_us) = match kind {
                Kind::Unknown => (None, READ_US + 77),
                Kind::Early => (None, READ_US - 77),
                Kind::AtS => (Some(S), READ_US + 77),
                Kind::BelowS => (Some(S - 700), READ_US + 77),
            };
            all.push(at(&schema, op, p, lsn, time_us));
        }
        for i in 0..later {
            let p = 10_500 + i * 50;
            all.push(at(&schema, Op::Update, Some(p), p + 20, READ_US + 100 + i as i64));
        }
        if kind == Kind::Early {
            // Only the connector's clock tells, and only in milliseconds.
            all.iter_mut().for_each(|event| event.facts.processed_ts_ms = Some(2_000));
        }
        all
    })
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// No commit was seen before it.
    Unknown,
    /// The same, and it committed before the time that the reads carry.
    Early,
    /// The last commit before it is at the snapshot's position.
    AtS,
    /// Or before.
    BelowS,
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

/// A read that was written adjusted came again with its own order, above the change that had overtaken it.
#[test]
fn what_comes_again_is_adjusted_as_before() {
    let schema = numbers();
    let read = at(&schema, Op::Read, None, S, READ_US);
    let change = at(&schema, Op::Update, None, 9_500, READ_US + 1);
    for stream in [vec![read.clone(), change.clone()], vec![change.clone(), read.clone()]] {
        let mut world = run(stream);
        let accepted = std::mem::take(&mut world.ledger);
        for event in [&read, &change] {
            world.again(event);
        }
        assert_eq!(world.ledger.replica, accepted.replica);
        let newest = |ledger: &Ledger| {
            ledger.history.iter().max_by_key(|(_, orders)| orders[0]).map(|((_, id), _)| *id).unwrap()
        };
        assert_eq!(newest(&world.ledger), change.id);
    }
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

/// A read-only incremental snapshot's position can be that of the next record, a change of a row just read. Equal orders decide
/// nothing, so the change was lost for ever.
#[test]
fn on_a_tie_the_change_wins() {
    let schema = numbers();
    let mut read = at(&schema, Op::Read, Some(S - 5), S, READ_US);
    read.facts.snapshot = Snapshot::Incremental;
    let change = at(&schema, Op::Delete, Some(S - 5), S, READ_US - 1);
    let world = run(vec![read.clone(), change.clone(), read.clone(), change.clone()]);
    assert_eq!(order_of(&world, &change).sections(), [0, S - 5, S + 1]);
    assert!(world.ledger.replica.is_empty());
    let world = run(vec![change.clone(), read.clone(), change.clone(), read.clone()]);
    assert_eq!(order_of(&world, &read).sections(), [0, S - 5, S - 1]);
    assert!(world.ledger.replica.is_empty());
    assert_eq!((world.ledger.counters.adjusted, world.ledger.counters.duplicates), (1, 2));
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

/// What one event does to a long text, in the order of the commits.
#[derive(Debug, Clone, Copy)]
enum Edit {
    /// Leaves it.
    Touch,
    /// Writes a new one.
    Write,
    /// Deletes the row and inserts it again.
    Replace,
}

fn edits(n: usize) -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec(
        prop_oneof![3 => Just(Edit::Touch), 2 => Just(Edit::Write), 1 => Just(Edit::Replace)],
        0..n,
    )
}

/// The events of a row with a large value around a snapshot, in the order of the truth, and the row's last state.
fn large_truth(
    old: &[Edit],
    in_flight: &[Edit],
    later: &[Edit],
    p: Option<u64>,
) -> (Vec<Event>, Vec<String>) {
    let schema = table(&[("id", Type::Int64), ("n", Type::Int64), ("body", Type::Text)]);
    let (mut all, mut n) = (Vec::new(), 0);
    let mut body = "first ".repeat(60);
    let mut push = |edit: Option<Edit>, p: Option<u64>, lsn: u64, time_us: i64, body: &mut String| {
        n += 1;
        let mut put = |op, lsn, value: Value<'_>| {
            let mut event = at(&schema, op, p, lsn, time_us);
            event.row = row(&[Value::Int(1), Value::Int(n), value]);
            all.push(event);
        };
        match edit {
            None => put(Op::Read, lsn, Value::Text(body)),
            Some(Edit::Touch) => put(Op::Update, lsn, Value::Unchanged),
            Some(Edit::Write) => {
                *body = format!("text {n} ").repeat(60);
                put(Op::Update, lsn, Value::Text(body));
            }
            Some(Edit::Replace) => {
                *body = format!("text {n} ").repeat(60);
                put(Op::Delete, lsn, Value::Null);
                put(Op::Create, lsn + 1, Value::Text(body));
            }
        }
    };
    let old_edits = [Edit::Replace].iter().chain(old).filter(|_| p.is_some());
    for (i, &edit) in old_edits.enumerate() {
        let at = 100 + 50 * i as u64;
        push(Some(edit), Some(at), at + 20, at as i64, &mut body);
    }
    push(None, None, S, READ_US, &mut body);
    for (i, &edit) in in_flight.iter().enumerate() {
        push(Some(edit), p, 9_900 + 40 * i as u64, READ_US + 77, &mut body);
    }
    for (i, &edit) in later.iter().enumerate() {
        let at = 10_500 + 50 * i as u64;
        push(Some(edit), Some(at), at + 20, READ_US + 100 + i as i64, &mut body);
    }
    let cells = vec!["Int(1)".to_owned(), format!("Int({n})"), format!("{:?}", Value::Text(&body))];
    (all, cells)
}

proptest! {
    /// Values that came late were ranked by their orders alone, so that a snapshot's value could outlive a change that was in
    /// flight across it.
    #[test]
    fn large_values_follow_the_same_rules(
        old in edits(4),
        in_flight in edits(5),
        later in edits(4),
        p in prop_oneof![Just(None), Just(Some(S)), Just(Some(S - 700))],
        seed in prop::collection::vec(any::<u32>(), 8..40),
        steps in steps(),
    ) {
        let (truth, cells) = large_truth(&old, &in_flight, &later, p);
        let stream = deliveries(truth.len(), 20, &seed).into_iter().map(|i| truth[i].clone()).collect();
        let config = GateConfig { toast_tuple_target: 200, ..GateConfig::default() };
        let mut world = World::new(config, stream, 2);
        world.run(&steps);
        prop_assert_eq!(&world.ledger.replica[&key(1)].1, &cells);
        world.check_counters();
    }
}
