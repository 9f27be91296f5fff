//! Events without a key, told by where they came from.

use super::*;
use proptest::prelude::*;

fn keyless(partition: u64, offset: u64, index: u32) -> Event {
    let schema = table(&[("n", Type::Int64)]);
    let mut event = event(&schema, Op::Create, None, 7, 7, row(&[Value::Int(offset as i64)]));
    event.origin = Origin { partition, offset, index };
    event
}

proptest! {
    #[test]
    fn each_origin_once(
        origins in prop::collection::btree_set((0..3u64, 0..5_000u64, 0..2u32), 1..300),
        seed in prop::collection::vec(any::<u32>(), 8..40),
        steps in steps(),
        stride in prop_oneof![Just(1u64), Just(700), Just(1 << 33)],
    ) {
        let origins: Vec<_> = origins.into_iter().collect();
        let of = |i: usize| keyless(origins[i].0, origins[i].1 * stride, origins[i].2);
        let stream = deliveries(origins.len(), 50, &seed).into_iter().map(of).collect();
        let mut world = World::new(GateConfig::default(), stream, 3);
        world.run(&steps);
        prop_assert_eq!(world.ledger.keyless.len(), origins.len());
        prop_assert!(world.ledger.replica.is_empty());
        prop_assert_eq!(world.ledger.counters.newest, 0);
        world.check_counters();
    }
}

/// A file of ten million bytes is remembered while its events may come again, and forgotten afterwards.
#[test]
fn blocks_are_forgotten_in_time() {
    let config = GateConfig { keyless_kept_ms: 5_000, ..GateConfig::default() };
    let stream: Vec<_> = (0..100_000).map(|i| keyless(1, i * 1000, 0)).collect();
    let mut world = World::new(config, stream, 2);
    let steps: Vec<_> = (0..50).flat_map(|_| [Step::Deliver(1000), Step::Barrier, Step::Commit]).collect();
    world.run(&[&steps[..], &[Step::Crash(3)], &steps[..]].concat());
    assert_eq!(world.ledger.keyless.len(), 100_000);
    let blocks = world.memory.count(Space::Keys);
    assert!((5..20).contains(&blocks), "{blocks} of a hundred blocks are kept");
}
