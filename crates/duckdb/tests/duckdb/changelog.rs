//! The changelog layout.

use millstream_core::{Judged, Op, Type, Value};
use millstream_duckdb::Layout;

use crate::world::{World, event, row, schema};

fn order_event(op: Op, n: u64, id: i64, status: Value<'_>, before: Option<Value<'_>>) -> Judged {
    let orders = schema("orders", 1, &[("id", Type::Int64), ("status", Type::Text)]);
    let mut judged = event(&orders, op, n, &[Value::Int(id), status]);
    judged.event.before = before.map(|status| Box::new(row(&[Value::Int(id), status])));
    judged.event.full_before = before.is_some();
    judged
}

#[test]
fn rows_before_and_after() {
    let mut world = World::new(Layout::Changelog);
    let mut update = order_event(Op::Update, 2, 1, Value::Text("paid"), Some(Value::Text("new")));
    update.event.facts.source_json = Some(
        r#"{"version":"3.6","ts_ms":1700000000002,"schema":"public","table":"orders","lsn":2,"xmin":null}"#
            .into(),
    );
    update.event.facts.transaction_json =
        Some(r#"{"id":"7:2","total_order":1,"data_collection_order":1}"#.into());
    world.epoch(vec![
        order_event(Op::Create, 1, 1, Value::Text("new"), None),
        update,
        order_event(Op::Delete, 3, 1, Value::Null, Some(Value::Text("paid"))),
        order_event(Op::Truncate, 4, 0, Value::Null, None),
    ]);
    assert_eq!(
        world.rows(
            "SELECT op, before.id, before.status, after.id, after.status, _metadata_deleted, source.lsn, transaction.id, \
             _metadata_source FROM orders_changelog ORDER BY _metadata_order"
        ),
        [
            "c|NULL|NULL|1|new|false|1|NULL|public.orders",
            "u|1|new|1|paid|false|2|7:2|public.orders",
            "d|1|paid|NULL|NULL|true|3|NULL|public.orders",
            "t|NULL|NULL|NULL|NULL|false|4|NULL|public.orders",
        ]
    );
    assert_eq!(
        world.rows("SELECT before IS NULL, after IS NULL, ts_ms, _metadata_read_timestamp::VARCHAR FROM orders_changelog WHERE op = 'd'"),
        ["false|true|1700000000003|1970-01-01 00:00:01+00"]
    );
}

#[test]
fn structs_grow_with_the_table_and_with_the_source() {
    let mut world = World::new(Layout::Changelog);
    world.epoch(vec![order_event(Op::Create, 1, 1, Value::Text("new"), None)]);
    let wider =
        schema("orders", 1, &[("id", Type::Decimal { precision: 20, scale: 0 }), ("tip", Type::Float64)]);
    let mut second = event(&wider, Op::Create, 2, &[Value::Int(2), Value::Float(0.5)]);
    second.event.facts.source_json =
        Some(r#"{"file":"binlog.1","pos":4,"row":0.25,"odd":{"a":[1.0]}}"#.into());
    let mut third = event(&wider, Op::Create, 3, &[Value::Int(3), Value::Float(0.25)]);
    third.event.facts.source_json = Some(r#"{"file":17,"pos":"x"}"#.into());
    world.epoch(vec![second, third]);
    assert_eq!(
        world.rows("SELECT after.id, after.status, after.tip, source.file, source.pos, source.odd FROM orders_changelog ORDER BY _metadata_order"),
        ["1|new|NULL|NULL|NULL|NULL", "2|NULL|0.5|binlog.1|4|{\"a\":[1.0]}", "3|NULL|0.25|17|x|NULL"]
    );
    // The file that was written by these changes opens again, and goes on.
    let token = world.epoch(vec![order_event(Op::Create, 4, 4, Value::Text("x"), None)]);
    let mut world = world.crash(Some(&token)).unwrap();
    world.epoch(vec![order_event(Op::Create, 5, 5, Value::Text("y"), None)]);
    assert_eq!(world.rows("SELECT count(*), count(after.tip) FROM orders_changelog"), ["5|2"]);
}

#[test]
fn unchanged_values_are_named() {
    let mut world = World::new(Layout::Changelog);
    world.epoch(vec![order_event(Op::Update, 1, 1, Value::Unchanged, None)]);
    assert_eq!(
        world.rows("SELECT after.status, _metadata_unchanged FROM orders_changelog"),
        ["NULL|[status]"]
    );
}

#[test]
fn epochs_without_a_checkpoint_are_taken_back() {
    let mut world = World::new(Layout::Changelog);
    let first = world.epoch(vec![order_event(Op::Create, 1, 1, Value::Text("a"), None)]);
    world.epoch(vec![order_event(Op::Create, 2, 2, Value::Text("b"), None)]);
    let world = world.crash(Some(&first)).unwrap();
    assert_eq!(world.rows("SELECT after.id FROM orders_changelog"), ["1"]);
}
