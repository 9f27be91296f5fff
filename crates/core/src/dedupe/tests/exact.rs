//! Duplicates, newest and truncates against a model that remembers everything.

use super::*;
use proptest::prelude::*;

fn numbers() -> Arc<RowSchema> {
    table(&[("id", Type::Int64), ("n", Type::Int64)])
}

#[derive(Debug, Clone)]
struct Change {
    key: i64,
    op: Op,
    p: u64,
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let op = prop_oneof![
        8 => Just(Op::Update),
        2 => Just(Op::Create),
        2 => Just(Op::Delete),
        1 => Just(Op::Truncate),
    ];
    // Few values of p: orders of one key differ from those of their ids.
    let change = (0..4i64, op, 0..40u64).prop_map(|(key, op, p)| Change { key: key * key / 3, op, p });
    prop::collection::vec(change, 1..400)
}

fn events_of(changes: &[Change]) -> Vec<Event> {
    let schema = numbers();
    let event_of = |(i, c): (usize, &Change)| {
        let lsn = 1000 + 10 * i as u64;
        // A truncate is ordered by its place, or it would remove nearly everything.
        match c.op {
            Op::Truncate => event(&schema, Op::Truncate, None, c.p / 8, lsn, Row::default()),
            op => event(
                &schema,
                op,
                Some(key(c.key)),
                c.p,
                lsn,
                row(&[Value::Int(c.key), Value::Int(lsn as i64)]),
            ),
        }
    };
    changes.iter().enumerate().map(event_of).collect()
}

/// The replica that all events, in any order, lead to.
fn model(events: &[Event]) -> BTreeMap<Key, (Order, Vec<String>)> {
    let cut = events.iter().filter(|e| e.op == Op::Truncate).map(|e| e.order).max().unwrap_or(Order::MIN);
    let mut newest: BTreeMap<Key, &Event> = BTreeMap::new();
    for event in events.iter().filter(|e| e.key.is_some()) {
        let slot = newest.entry(event.key.clone().unwrap()).or_insert(event);
        if event.order > slot.order {
            *slot = event;
        }
    }
    let live = newest.into_iter().filter(|(_, e)| e.op != Op::Delete && e.order > cut);
    live.map(|(key, e)| (key, (e.order, cells(&e.row)))).collect()
}

fn shuffled(events: &[Event], window: usize, seed: &[u32]) -> Vec<Event> {
    deliveries(events.len(), window, seed).into_iter().map(|i| events[i].clone()).collect()
}

proptest! {
    #[test]
    fn each_distinct_event_once_and_the_newest_wins(
        changes in changes(),
        seed in prop::collection::vec(any::<u32>(), 8..40),
        window in 1..300usize,
        steps in steps(),
        shards in 1..5usize,
        cache_bytes in prop_oneof![Just(0usize), Just(1 << 20)],
    ) {
        let events = events_of(&changes);
        let config = GateConfig { cache_bytes, ..GateConfig::default() };
        let mut world = World::new(config, shuffled(&events, window, &seed), shards);
        world.run(&steps);
        prop_assert_eq!(world.ledger.history.len(), events.len());
        prop_assert!(world.ledger.history.values().all(|orders| orders.len() == 1));
        prop_assert_eq!(&world.ledger.replica, &model(&events));
        prop_assert_eq!(world.ledger.counters.distinct as usize, events.len());
        prop_assert_eq!(world.ledger.counters.untold, 0);
        prop_assert_eq!(world.ledger.patches, 0);
        world.check_counters();
    }

    /// Wherever a sweep comes among the events of two incarnations, and however often.
    #[test]
    fn a_sweep_leaves_what_its_incarnation_wrote(
        changes in changes(),
        raised in 0..400usize,
        seed in prop::collection::vec(any::<u32>(), 8..40),
        window in 1..300usize,
        steps in steps(),
        shards in 1..5usize,
    ) {
        let mut events = events_of(&changes);
        let raised = raised.min(events.len());
        for event in &mut events[raised..] {
            event.order = event.order.with_section(0, 1);
            event.id = EventId::postgres(Incarnation(1), event.facts.ts_us.unwrap() as u64, false);
        }
        let sweep = Event::sweep(TableName::clone(&events[0].schema.table), Incarnation(1));
        events.insert(raised, sweep.clone());
        let mut delivered = shuffled(&events, window, &seed);
        delivered.push(sweep);
        let mut world = World::new(GateConfig::default(), delivered, shards);
        world.run(&steps);
        prop_assert_eq!(world.ledger.history.len(), events.len());
        prop_assert!(world.ledger.history.values().all(|orders| orders.len() == 1), "one row of all sweeps");
        prop_assert_eq!(&world.ledger.replica, &model(&events));
        let is_of_it = |(order, _): &(Order, Vec<String>)| order.sections()[0] == 1;
        prop_assert!(world.ledger.replica.values().all(is_of_it));
        world.check_counters();
    }

    #[test]
    fn forgotten_ids_are_kept_and_counted(
        changes in changes(),
        seed in prop::collection::vec(any::<u32>(), 8..40),
        steps in steps(),
    ) {
        let events = events_of(&changes);
        let config = GateConfig { ids_kept_min: 10, ids_kept_ms: 0, ..GateConfig::default() };
        let mut world = World::new(config, shuffled(&events, 300, &seed), 2);
        world.run(&steps);
        prop_assert_eq!(world.ledger.history.len(), events.len());
        let again: usize = world.ledger.history.values().map(|orders| orders.len() - 1).sum();
        prop_assert!(again as u64 <= world.ledger.counters.untold);
        prop_assert_eq!(&world.ledger.replica, &model(&events));
        world.check_counters();
    }

    #[test]
    fn latest_ends_with_the_same_replica(
        changes in changes(),
        seed in prop::collection::vec(any::<u32>(), 8..40),
        window in 1..300usize,
        steps in steps(),
        switch in any::<bool>(),
    ) {
        let events = events_of(&changes);
        let config = GateConfig { mode: Mode::Latest, ..GateConfig::default() };
        let mut world = World::new(config, shuffled(&events, window, &seed), 3);
        if switch {
            // Exact state of an earlier run is cut down where it is touched.
            let all = std::mem::take(&mut world.stream);
            world.stream = all[..all.len() / 2].to_vec();
            world.config = Arc::new(GateConfig::default());
            world.start(3);
            world.run(&[]);
            world.stream = all;
            world.config = Arc::new(GateConfig { mode: Mode::Latest, ..GateConfig::default() });
            world.start(2);
        }
        world.run(&steps);
        prop_assert_eq!(&world.ledger.replica, &model(&events));
        world.check_counters();
    }

    #[test]
    fn off_passes_everything(changes in changes()) {
        let events = events_of(&changes);
        let config = GateConfig { mode: Mode::Off, ..GateConfig::default() };
        let mut world = World::new(config, events.clone(), 2);
        world.run(&[Step::Deliver(20), Step::Barrier]);
        prop_assert_eq!(world.ledger.counters.newest as usize, events.len());
        prop_assert_eq!(world.memory.0.lock().unwrap().len(), 0);
        world.check_counters();
    }
}

/// Twelve thousand ids on one key, replayed, are all recognised; segments are read again from the store.
#[test]
fn a_busy_key_recognises_a_replay() {
    let schema = numbers();
    let of = |i: u64| {
        event(&schema, Op::Update, Some(key(1)), i, 100 + 7 * i, row(&[Value::Int(1), Value::Int(i as i64)]))
    };
    let stream: Vec<_> = (0..12_000).chain((0..12_000).step_by(3)).map(of).collect();
    let mut world = World::new(GateConfig { cache_bytes: 0, ..GateConfig::default() }, stream, 1);
    let mut steps = Vec::new();
    for _ in 0..12 {
        steps.extend([Step::Deliver(1000), Step::Barrier, Step::Commit]);
    }
    steps.push(Step::Crash(2));
    world.run(&steps);
    let c = world.ledger.counters;
    assert_eq!((c.distinct, c.duplicates, c.untold), (12_000, 4_000, 0));
    assert!(world.memory.count(Space::Ids) > 5, "{} segments", world.memory.count(Space::Ids));
}

/// Segments older than the time and beyond the number go, and the floor tells that something was there.
#[test]
fn old_segments_are_pruned() {
    let schema = numbers();
    let of = |i: u64| {
        event(&schema, Op::Update, Some(key(1)), i, 100 + 7 * i, row(&[Value::Int(1), Value::Int(i as i64)]))
    };
    let config = GateConfig { ids_kept_min: 256, ids_kept_ms: 1000, ..GateConfig::default() };
    let stream: Vec<_> = (0..5_000).chain([3, 4_990]).map(of).collect();
    let mut world = World::new(config, stream, 1);
    let steps: Vec<_> = (0..50).flat_map(|_| [Step::Deliver(100), Step::Barrier, Step::Commit]).collect();
    world.run(&steps);
    let c = world.ledger.counters;
    assert_eq!((c.distinct, c.duplicates, c.untold), (5_001, 1, 1));
    assert!(world.memory.count(Space::Ids) < 10, "{} segments", world.memory.count(Space::Ids));
}

/// Two source tables whose events come with equal keys are two tables.
#[test]
fn keys_belong_to_their_table() {
    let (a, mut b) = (numbers(), (*numbers()).clone());
    b.table = Arc::new(TableName::new("shop", "public", "customers"));
    let b = Arc::new(b);
    let of =
        |schema, lsn| event(schema, Op::Create, Some(key(1)), lsn, lsn, row(&[Value::Int(1), Value::Int(1)]));
    let mut world = World::new(GateConfig::default(), vec![of(&a, 5), of(&b, 5), of(&b, 5)], 3);
    world.run(&[Step::Deliver(2), Step::Barrier, Step::Crash(1)]);
    assert_eq!((world.ledger.counters.distinct, world.ledger.counters.duplicates), (2, 1));
}
