//! The replica layout: current state, soft and hard deletes, truncates, late values, replays.

use millstream_core::{Judged, Key, Op, Output, Patch, Row, Type, Value};
use millstream_duckdb::{DeleteMode, Layout};

use crate::world::{World, event, order, row, schema};

const SOFT: Layout = Layout::Replica { delete: DeleteMode::Soft };
const HARD: Layout = Layout::Replica { delete: DeleteMode::Hard };
const STATE: &str = "SELECT id, status, _metadata_deleted, _metadata_lsn FROM orders ORDER BY id";

fn orders(op: Op, n: u64, id: i64, status: Value<'_>) -> Judged {
    event(
        &schema("orders", 1, &[("id", Type::Int64), ("status", Type::Text)]),
        op,
        n,
        &[Value::Int(id), status],
    )
}

fn truncate(n: u64) -> Judged {
    event(&schema("orders", 1, &[("id", Type::Int64), ("status", Type::Text)]), Op::Truncate, n, &[])
}

fn old(mut judged: Judged) -> Judged {
    judged.newest = false;
    judged
}

#[test]
fn a_soft_delete_keeps_the_last_known_values() {
    let mut world = World::new(SOFT);
    world.epoch(vec![
        orders(Op::Create, 1, 1, Value::Text("new")),
        orders(Op::Create, 2, 2, Value::Text("new")),
        orders(Op::Create, 3, 3, Value::Text("new")),
    ]);
    world.epoch(vec![
        orders(Op::Update, 4, 1, Value::Text("paid")),
        // Deleted in the same epoch as its last update, and in a later one.
        orders(Op::Delete, 5, 1, Value::Null),
        orders(Op::Delete, 6, 2, Value::Null),
        // A key that was never seen.
        orders(Op::Delete, 7, 9, Value::Null),
    ]);
    assert_eq!(world.rows(STATE), ["1|paid|true|5", "2|new|true|6", "3|new|false|3", "9|NULL|true|7"]);
    // A deleted key that is created again lives.
    world.epoch(vec![orders(Op::Create, 8, 2, Value::Text("again"))]);
    assert_eq!(world.rows(STATE)[1], "2|again|false|8");
    let timestamps = world.rows("SELECT _metadata_timestamp::VARCHAR FROM orders WHERE id = 2");
    assert_eq!(timestamps, ["2023-11-14 22:13:20.008+00"]);
}

#[test]
fn a_hard_delete_leaves_nothing() {
    let mut world = World::new(HARD);
    world.epoch(vec![
        orders(Op::Create, 1, 1, Value::Text("new")),
        orders(Op::Create, 2, 2, Value::Text("new")),
        orders(Op::Delete, 3, 2, Value::Null),
    ]);
    world.epoch(vec![orders(Op::Delete, 4, 1, Value::Null), orders(Op::Create, 5, 3, Value::Text("new"))]);
    assert_eq!(world.rows(STATE), ["3|new|false|5"]);
}

#[test]
fn every_event_is_accounted_for() {
    let mut world = World::new(SOFT);
    world.begin();
    let mut duplicate = old(orders(Op::Create, 1, 1, Value::Text("new")));
    duplicate.distinct = false;
    let keyless = event(&schema("log", 0, &[("a", Type::Int64)]), Op::Create, 1, &[Value::Int(1)]);
    let report = world.write(vec![
        orders(Op::Update, 2, 1, Value::Text("paid")),
        old(orders(Op::Create, 1, 1, Value::Text("new"))),
        duplicate,
        keyless,
    ]);
    assert_eq!((report.written, report.superseded, report.duplicates, report.filtered), (1, 1, 1, 1));
    world.prepare();
    assert_eq!(world.rows(STATE), ["1|paid|false|2"]);
}

#[test]
fn a_truncate_applies_by_order_wherever_it_stands() {
    for layout in [SOFT, HARD] {
        let mut world = World::new(layout);
        world.epoch(vec![orders(Op::Create, 1, 1, Value::Text("old"))]);
        world.begin();
        let report = world.write(vec![
            orders(Op::Create, 2, 2, Value::Text("before")),
            orders(Op::Create, 11, 3, Value::Text("after")),
            truncate(10),
            // Of another shard, which had not heard of the truncate.
            orders(Op::Create, 4, 4, Value::Text("before")),
        ]);
        assert_eq!((report.written, report.superseded), (3, 1));
        world.prepare();
        let live = "SELECT id, status FROM orders WHERE NOT _metadata_deleted ORDER BY id";
        assert_eq!(world.rows(live), ["3|after"]);
        // Remembered across epochs and restarts.
        let last = world.epoch(vec![orders(Op::Create, 5, 5, Value::Text("before"))]);
        let mut world = world.crash(Some(&last)).unwrap();
        world.epoch(vec![
            orders(Op::Create, 6, 6, Value::Text("before")),
            orders(Op::Create, 12, 1, Value::Text("new")),
        ]);
        assert_eq!(world.rows(live), ["1|new", "3|after"]);
    }
}

#[test]
fn replayed_changes_never_take_the_table_back() {
    for layout in [SOFT, HARD] {
        let mut world = World::new(layout);
        let first = world.epoch(vec![
            orders(Op::Create, 1, 1, Value::Text("a")),
            orders(Op::Create, 2, 2, Value::Text("b")),
        ]);
        world.epoch(vec![
            orders(Op::Update, 4, 1, Value::Text("c")),
            orders(Op::Update, 5, 2, Value::Text("d")),
        ]);
        let before = world.rows(STATE);
        // No checkpoint names the second epoch. Its changes come again, some of them later than others.
        let mut world = world.crash(Some(&first)).unwrap();
        assert_eq!(world.rows(STATE), before);
        world.epoch(vec![orders(Op::Update, 3, 1, Value::Text("between"))]);
        assert_eq!(world.rows(STATE), before);
        world.epoch(vec![
            orders(Op::Update, 4, 1, Value::Text("c")),
            orders(Op::Update, 5, 2, Value::Text("d")),
        ]);
        assert_eq!(world.rows(STATE), before);
        world.epoch(vec![orders(Op::Delete, 6, 1, Value::Null)]);
        assert_eq!(world.rows("SELECT id, status FROM orders WHERE NOT _metadata_deleted"), ["2|d"]);
    }
}

#[test]
fn without_a_checkpoint_the_replica_is_loaded_anew() {
    let mut world = World::new(SOFT);
    world.epoch(vec![orders(Op::Create, 1, 1, Value::Text("a"))]);
    let mut world = world.crash(None).unwrap();
    assert_eq!(world.rows(STATE), [""; 0]);
    world.epoch(vec![orders(Op::Create, 1, 1, Value::Text("a"))]);
    assert_eq!(world.rows(STATE), ["1|a|false|1"]);
}

/// What a truncate said of one log was held against another: after its checkpoint was deleted, a pipeline over a database made
/// anew, whose positions are smaller, took nothing in and said nothing.
#[test]
fn loading_anew_forgets_truncates() {
    let mut world = World::new(SOFT);
    world.epoch(vec![orders(Op::Create, 1000, 1, Value::Text("a")), truncate(1001)]);
    let mut world = world.crash(None).unwrap();
    world.epoch(vec![orders(Op::Create, 1, 1, Value::Text("b"))]);
    assert_eq!(world.rows(STATE), ["1|b|false|1"]);
}

/// A late value for a key with a NULL in it was compared with `=`, and lost, where nothing else was staged.
#[test]
fn late_values_find_keys_with_nulls() {
    let pairs = schema("pairs", 2, &[("a", Type::Int64), ("b", Type::Int64), ("v", Type::Text)]);
    let mut world = World::new(SOFT);
    world.epoch(vec![event(&pairs, Op::Create, 1, &[Value::Int(1), Value::Null, Value::Null])]);
    world.begin();
    world.write_outputs(vec![Output::Patch(Patch {
        schema: pairs,
        key: Key::from_values([Value::Int(1), Value::Null]),
        order: order(1),
        columns: vec![2],
        values: row(&[Value::Text("late")]),
    })]);
    world.prepare();
    assert_eq!(world.rows("SELECT a, b, v FROM pairs"), ["1|NULL|late"]);
}

fn patch(n: u64, id: i64, values: Row) -> Output {
    let schema = schema("orders", 1, &[("id", Type::Int64), ("status", Type::Text)]);
    Output::Patch(Patch {
        schema,
        key: Key::from_values([Value::Int(id)]),
        order: order(n),
        columns: vec![1],
        values,
    })
}

#[test]
fn late_values_fill_the_row_that_still_has_their_order() {
    let mut world = World::new(SOFT);
    world.epoch(vec![orders(Op::Create, 1, 1, Value::Null), orders(Op::Create, 2, 2, Value::Text("b"))]);
    world.begin();
    world.write_outputs(vec![
        patch(1, 1, row(&[Value::Text("late")])),
        // Staged in the same epoch.
        Output::Event(orders(Op::Update, 5, 3, Value::Unchanged)),
        patch(5, 3, row(&[Value::Text("filled")])),
        // The row has moved on, or is unknown.
        patch(1, 2, row(&[Value::Text("wrong")])),
        patch(1, 77, row(&[Value::Text("wrong")])),
    ]);
    world.prepare();
    assert_eq!(world.rows(STATE), ["1|late|false|1", "2|b|false|2", "3|filled|false|5"]);
}

#[test]
fn unchanged_values_keep_what_the_table_or_the_stage_has() {
    let mut world = World::new(SOFT);
    world.epoch(vec![
        orders(Op::Create, 1, 1, Value::Text("large")),
        orders(Op::Create, 2, 2, Value::Text("big")),
    ]);
    world.epoch(vec![
        orders(Op::Update, 3, 1, Value::Unchanged),
        orders(Op::Update, 4, 2, Value::Text("huge")),
        orders(Op::Update, 5, 2, Value::Unchanged),
        orders(Op::Update, 6, 2, Value::Unchanged),
    ]);
    assert_eq!(world.rows(STATE), ["1|large|false|3", "2|huge|false|6"]);
    let mut filled = orders(Op::Update, 7, 1, Value::Unchanged);
    filled.filled = Some(row(&[Value::Int(1), Value::Text("from state")]));
    world.epoch(vec![filled]);
    assert_eq!(world.rows(STATE)[0], "1|from state|false|7");
}

#[test]
fn keys_of_two_columns_and_with_nulls() {
    let mut world = World::new(SOFT);
    let pairs = schema("pairs", 2, &[("a", Type::Int64), ("b", Type::Text), ("v", Type::Int64)]);
    let of = |op, n, b, v| event(&pairs, op, n, &[Value::Int(1), b, v]);
    world.epoch(vec![
        of(Op::Create, 1, Value::Text("x"), Value::Int(1)),
        of(Op::Create, 2, Value::Null, Value::Int(2)),
    ]);
    world.epoch(vec![
        of(Op::Update, 3, Value::Null, Value::Int(3)),
        of(Op::Delete, 4, Value::Text("x"), Value::Null),
    ]);
    assert_eq!(
        world.rows("SELECT a, b, v, _metadata_deleted FROM pairs ORDER BY _metadata_order"),
        ["1|NULL|3|false", "1|x|1|true"]
    );
}

#[test]
fn a_large_epoch_is_applied_in_parts() {
    let mut world = World::new(HARD);
    world.begin();
    for part in 0..3u64 {
        let events = (0..60_000u64).map(|i| {
            let op = if i % 7 == 0 && part == 2 { Op::Delete } else { Op::Update };
            let value = part.to_string();
            let value = if op == Op::Delete { Value::Null } else { Value::Text(&value) };
            orders(op, part * 100_000 + i + 1, i as i64, value)
        });
        world.write(events.collect());
    }
    world.prepare();
    let deleted = 60_000 / 7 + 1;
    assert_eq!(
        world.rows("SELECT count(*), count(DISTINCT id), min(status), max(status) FROM orders"),
        [format!("{0}|{0}|2|2", 60_000 - deleted)]
    );
}

/// A replica that was changed from `delete: soft` to `hard` went on with its marked rows, which looked like rows.
#[test]
fn rows_that_were_kept_as_deleted_go_when_the_replica_keeps_none() {
    let mut world = World::new(Layout::Replica { delete: DeleteMode::Soft });
    let token = world.epoch(vec![
        orders(Op::Create, 1, 1, Value::Text("new")),
        orders(Op::Create, 2, 2, Value::Text("new")),
        orders(Op::Delete, 3, 1, Value::Null),
    ]);
    assert_eq!(world.rows("SELECT id FROM orders ORDER BY id"), ["1", "2"]);
    world.config.layout = Layout::Replica { delete: DeleteMode::Hard };
    let mut world = world.crash(Some(&token)).unwrap();
    assert_eq!(world.rows("SELECT id FROM orders ORDER BY id"), ["2"]);
    let told = world.notices();
    assert_eq!((told[0].code, told[0].count, told.len()), ("deleted_rows_removed", 1, 1));
    let mut world = world.crash(Some(&token)).unwrap();
    assert_eq!(world.notices(), []);
}
