//! How events are split into batches and epochs changes nothing in the tables.

use millstream_core::{Judged, Op, Type, Value};
use millstream_duckdb::{DeleteMode, Layout};
use proptest::prelude::*;

use crate::world::{World, event, schema};

/// Key, what happens, and the value's type.
type Step = (i64, u8, u8);

fn events(steps: &[Step]) -> Vec<Judged> {
    let narrow = schema("t", 1, &[("id", Type::Int64), ("v", Type::Int64)]);
    let money = schema(
        "t",
        1,
        &[("id", Type::Int64), ("v", Type::Decimal { precision: 6, scale: 2 }), ("w", Type::Text)],
    );
    let make = |(i, &(id, what, ty)): (usize, &Step)| {
        let n = i as u64 + 1;
        match (what, ty) {
            (0, _) => event(&narrow, Op::Delete, n, &[Value::Int(id)]),
            (1, _) => event(&narrow, Op::Truncate, n, &[]),
            (_, 0) => event(&narrow, Op::Update, n, &[Value::Int(id), Value::Int(i as i64)]),
            (2, _) => event(&money, Op::Update, n, &[Value::Int(id), Value::Int(1), Value::Unchanged]),
            _ => {
                let v = Value::Decimal { unscaled: i as i64 * 25, scale: 2 };
                event(&money, Op::Update, n, &[Value::Int(id), v, Value::Text("w")])
            }
        }
    };
    steps.iter().enumerate().map(make).collect()
}

fn tables(layout: Layout, steps: &[Step], batch: usize, epoch: usize) -> Vec<String> {
    let mut world = World::new(layout);
    let mut events = events(steps);
    while !events.is_empty() {
        world.begin();
        let mut rest = events.split_off(epoch.min(events.len()));
        std::mem::swap(&mut rest, &mut events);
        while !rest.is_empty() {
            let tail = rest.split_off(batch.min(rest.len()));
            world.write(std::mem::replace(&mut rest, tail));
        }
        world.prepare();
    }
    // Every step but truncates and deletes makes sure of column v; w may be missing in all variants alike.
    let table = if layout == Layout::Append { "t_latest" } else { "t" };
    let mut rows = world.rows(&format!("SELECT * FROM {table} ORDER BY id"));
    if layout == Layout::Append {
        rows.extend(world.rows("SELECT * EXCLUDE (__ingested_at) FROM t_raw ORDER BY __order, id"));
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn batches_and_epochs_do_not_matter(
        steps in prop::collection::vec((0i64..4, 0u8..6, 0u8..2), 1..20),
        batch in 1usize..10,
        epoch in 1usize..20,
    ) {
        for layout in [
            Layout::Append,
            Layout::Replica { delete: DeleteMode::Soft },
            Layout::Replica { delete: DeleteMode::Hard },
        ] {
            let whole = tables(layout, &steps, 1000, 1000);
            prop_assert_eq!(&tables(layout, &steps, batch, epoch), &whole, "{:?}", layout);
        }
    }
}
