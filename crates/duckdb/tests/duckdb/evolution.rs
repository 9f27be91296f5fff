//! Schema evolution in each layout: new columns, widening, type changes by policy; never a value lost.

use std::sync::Arc;

use millstream_core::evolution::ChangePolicy;
use millstream_core::{Kind, Op, Output, RowSchema, Sink, TableName, Type, Value};
use millstream_duckdb::{DeleteMode, DuckConfig, Layout};

use crate::world::{World, batch, event, now, schema, schema_with};

const LAYOUTS: [Layout; 3] =
    [Layout::Append, Layout::Changelog, Layout::Replica { delete: DeleteMode::Soft }];

fn table(layout: Layout) -> &'static str {
    match layout {
        Layout::Append => "SELECT * FROM t_raw",
        Layout::Changelog => "SELECT after.* FROM t_changelog",
        Layout::Rows | Layout::Replica { .. } => "SELECT * FROM t",
    }
}

fn columns(world: &World, layout: Layout) -> Vec<String> {
    let sql = format!("SELECT column_name || ' ' || column_type FROM (DESCRIBE {})", table(layout));
    let ours = |c: &String| !c.starts_with("__") && !c.starts_with("_metadata");
    world.rows(&sql).into_iter().filter(ours).collect()
}

fn values(world: &World, layout: Layout, columns: &str) -> Vec<String> {
    world.rows(&format!("SELECT {columns} FROM ({}) ORDER BY id", table(layout)))
}

fn dec(precision: u16, scale: u16) -> Type {
    Type::Decimal { precision, scale }
}

fn of(ty: Type) -> Arc<RowSchema> {
    schema("t", 1, &[("id", Type::Int64), ("v", ty)])
}

fn guessed(ty: Type) -> Arc<RowSchema> {
    schema_with(TableName::new("shop", "public", "t"), 1, &[("id", Type::Int64), ("v", ty)], true)
}

#[test]
fn new_columns_appear_in_every_layout_within_an_epoch() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        let narrow = schema("t", 1, &[("id", Type::Int64)]);
        let wide = schema("t", 1, &[("new", Type::Text), ("id", Type::Int64)]);
        let mut event_of_wide = event(&wide, Op::Create, 2, &[Value::Text("x"), Value::Int(2)]);
        event_of_wide.event.key = Some(millstream_core::Key::from_values([Value::Int(2)]));
        let wide = Arc::new(RowSchema { key: vec![1], ..(*wide).clone() });
        event_of_wide.event.schema = wide;
        world.epoch(vec![
            event(&narrow, Op::Create, 1, &[Value::Int(1)]),
            event_of_wide,
            event(&narrow, Op::Create, 3, &[Value::Int(3)]),
        ]);
        assert_eq!(values(&world, layout, "id, new"), ["1|NULL", "2|x", "3|NULL"]);
        let logged = world.rows("SELECT \"column\", change, \"from\", \"to\", epoch, \"at\"::VARCHAR FROM _schema_changes WHERE \"column\" NOT LIKE 'source.%'");
        assert_eq!(logged, ["new|add|NULL|VARCHAR|1|1970-01-01 00:00:01+00"]);
        assert!(world.notices().iter().any(|n| n.code == "column_added"));
        if layout == Layout::Append {
            assert_eq!(world.rows("SELECT id, new FROM t_latest ORDER BY id"), ["1|NULL", "2|x", "3|NULL"]);
        }
    }
}

#[test]
fn numbers_widen_in_place() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.epoch(vec![event(&of(Type::Int64), Op::Create, 1, &[Value::Int(1), Value::Int(i64::MAX)])]);
        let money = Value::Decimal { unscaled: 150, scale: 2 };
        world.epoch(vec![event(&of(dec(12, 2)), Op::Create, 2, &[Value::Int(2), money])]);
        world.epoch(vec![event(&of(dec(12, 4)), Op::Create, 3, &[Value::Int(3), Value::Digits("0.1234")])]);
        assert_eq!(columns(&world, layout), ["id BIGINT", "v DECIMAL(23,4)"]);
        let unbounded = Value::Digits("123456789012345678901234567890123456789.5");
        world.epoch(vec![event(&of(Type::Numeric), Op::Create, 4, &[Value::Int(4), unbounded])]);
        world.epoch(vec![event(&of(Type::Int64), Op::Create, 5, &[Value::Int(5), Value::Int(7)])]);
        assert_eq!(columns(&world, layout), ["id BIGINT", "v VARCHAR"]);
        assert_eq!(
            values(&world, layout, "v"),
            [
                "9223372036854775807.0000",
                "1.5000",
                "0.1234",
                "123456789012345678901234567890123456789.5",
                "7"
            ]
        );
        let logged =
            world.rows("SELECT \"from\", \"to\" FROM _schema_changes WHERE change = 'widen' ORDER BY epoch");
        assert_eq!(logged, ["BIGINT|DECIMAL(21,2)", "DECIMAL(21,2)|DECIMAL(23,4)", "DECIMAL(23,4)|VARCHAR"]);
    }
}

#[test]
fn a_type_change_goes_to_a_second_column() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.epoch(vec![event(&of(Type::Int64), Op::Create, 1, &[Value::Int(1), Value::Int(1)])]);
        world.epoch(vec![
            event(&of(Type::Text), Op::Create, 2, &[Value::Int(2), Value::Text("two")]),
            event(&of(Type::Int64), Op::Create, 3, &[Value::Int(3), Value::Int(3)]),
            event(&of(Type::Bytes), Op::Create, 4, &[Value::Int(4), Value::Bytes(&[4])]),
        ]);
        assert_eq!(columns(&world, layout), ["id BIGINT", "v BIGINT", "v__string VARCHAR", "v__bytes BLOB"]);
        assert_eq!(
            values(&world, layout, "v, v__string, v__bytes"),
            ["1|NULL|NULL", "NULL|two|NULL", "3|NULL|NULL", "NULL|NULL|\\x04"]
        );
        // Found again after a restart.
        let token =
            world.epoch(vec![event(&of(Type::Text), Op::Create, 5, &[Value::Int(5), Value::Text("5")])]);
        let mut world = world.crash(Some(&token)).unwrap();
        world.epoch(vec![event(&of(Type::Text), Op::Create, 6, &[Value::Int(6), Value::Text("6")])]);
        assert_eq!(values(&world, layout, "v__string")[4..], ["5", "6"]);
    }
}

#[test]
fn a_type_change_by_the_other_policies() {
    for layout in LAYOUTS {
        let with = |policy| World::with(layout, |config: &mut DuckConfig| config.on_type_change = policy);
        let mut world = with(ChangePolicy::DeadLetter);
        world.epoch(vec![event(&of(Type::Int64), Op::Create, 1, &[Value::Int(1), Value::Int(1)])]);
        world.begin();
        let report = world.write(vec![
            event(&of(Type::Bytes), Op::Create, 2, &[Value::Int(2), Value::Bytes(&[2])]),
            event(&of(Type::Bytes), Op::Create, 3, &[Value::Int(3), Value::Null]),
        ]);
        assert_eq!(
            (report.written, report.rejected.len(), report.rejected[0].cause.code),
            (1, 1, "type_changed")
        );
        world.prepare();
        assert_eq!(values(&world, layout, "id, v"), ["1|1", "3|NULL"]);

        let mut world = with(ChangePolicy::Stop);
        world.epoch(vec![event(&of(Type::Int64), Op::Create, 1, &[Value::Int(1), Value::Int(1)])]);
        world.begin();
        let change = event(&of(Type::Bytes), Op::Create, 2, &[Value::Int(2), Value::Bytes(&[2])]);
        let error = now(world.sink.write(&batch(vec![Output::Event(change)]))).unwrap_err();
        assert_eq!(error.kind(), Kind::Fatal);
        assert!(error.to_string().contains("public.t, column v"), "{error}");
    }
}

#[test]
fn guesses_widen_to_text_and_never_fight_known_types() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.epoch(vec![
            event(&guessed(Type::Null), Op::Create, 1, &[Value::Int(1), Value::Null]),
            event(&guessed(Type::Int64), Op::Create, 2, &[Value::Int(2), Value::Int(12)]),
            event(&guessed(Type::Float64), Op::Create, 3, &[Value::Int(3), Value::Float(0.5)]),
            event(&guessed(Type::Text), Op::Create, 4, &[Value::Int(4), Value::Text("x")]),
            event(&guessed(Type::Bool), Op::Create, 5, &[Value::Int(5), Value::Bool(true)]),
        ]);
        assert_eq!(columns(&world, layout), ["id BIGINT", "v VARCHAR"]);
        assert_eq!(values(&world, layout, "v"), ["NULL", "12.0", "0.5", "x", "true"]);

        let mut world = World::new(layout);
        world.epoch(vec![
            event(&of(Type::Timestamp), Op::Create, 1, &[Value::Int(1), Value::Timestamp(0)]),
            event(&guessed(Type::Text), Op::Create, 2, &[Value::Int(2), Value::Text("1970-01-01T00:00:01Z")]),
            // A guess that does not convert has a column of its own.
            event(&guessed(Type::Text), Op::Create, 3, &[Value::Int(3), Value::Text("never")]),
            event(&guessed(Type::Text), Op::Create, 4, &[Value::Int(4), Value::Text("1970-01-01T00:00:02Z")]),
        ]);
        assert_eq!(
            values(&world, layout, "v::VARCHAR, v__string"),
            [
                "1970-01-01 00:00:00+00|NULL",
                "1970-01-01 00:00:01+00|NULL",
                "NULL|never",
                "1970-01-01 00:00:02+00|NULL"
            ]
        );
    }
}

#[test]
fn integers_beyond_doubles_are_not_rounded_by_a_guess() {
    let mut world = World::new(Layout::Append);
    world.epoch(vec![event(
        &guessed(Type::Int64),
        Op::Create,
        1,
        &[Value::Int(1), Value::Int(9_007_199_254_740_993)],
    )]);
    world.epoch(vec![event(&guessed(Type::Float64), Op::Create, 2, &[Value::Int(2), Value::Float(0.5)])]);
    assert_eq!(values(&world, Layout::Append, "v"), ["9007199254740993", "0.5"]);
}

#[test]
fn a_change_that_was_not_committed_is_made_again() {
    let mut world = World::new(Layout::Append);
    let first = world.epoch(vec![event(&of(Type::Int64), Op::Create, 1, &[Value::Int(1), Value::Int(1)])]);
    world.begin();
    let text = || event(&of(Type::Text), Op::Create, 2, &[Value::Int(2), Value::Text("two")]);
    world.write(vec![text()]);
    let mut world = world.crash(Some(&first)).unwrap();
    assert_eq!(columns(&world, Layout::Append), ["id BIGINT", "v BIGINT"]);
    world.epoch(vec![text()]);
    assert_eq!(values(&world, Layout::Append, "v, v__string"), ["1|NULL", "NULL|two"]);
    // Rolled back on the open sink, too.
    world.begin();
    let bytes = || event(&of(Type::Bytes), Op::Create, 3, &[Value::Int(3), Value::Bytes(&[1])]);
    world.write(vec![bytes()]);
    now(world.sink.recover(Some(&first))).unwrap();
    assert_eq!(columns(&world, Layout::Append), ["id BIGINT", "v BIGINT", "v__string VARCHAR"]);
    world.epoch(vec![text(), bytes()]);
    assert_eq!(
        values(&world, Layout::Append, "v, v__string, v__bytes"),
        ["1|NULL|NULL", "NULL|two|NULL", "NULL|NULL|\\x01"]
    );
}

#[test]
fn a_value_that_does_not_fit_is_refused_alone() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.begin();
        let money = of(dec(5, 2));
        let report = world.write(vec![
            event(&money, Op::Create, 1, &[Value::Int(1), Value::Digits("999.99")]),
            event(&money, Op::Create, 2, &[Value::Int(2), Value::Digits("1000.00")]),
            event(&money, Op::Create, 3, &[Value::Int(3), Value::Digits("0.001")]),
            event(&money, Op::Create, 4, &[Value::Int(4), Value::Text("abc")]),
        ]);
        let causes: Vec<_> = report.rejected.iter().map(|r| (r.output, r.cause.code)).collect();
        assert_eq!(causes, [(1, "value_out_of_range"), (2, "value_out_of_range"), (3, "type_mismatch")]);
        assert!(!report.rejected[0].cause.text.contains("1000"), "no row values in causes");
        assert_eq!(report.written, 1);
        world.prepare();
        assert_eq!(values(&world, layout, "id, v"), ["1|999.99"]);
    }
}

#[test]
fn changes_survive_a_power_cut_with_their_epoch() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        world.epoch(vec![event(&of(Type::Int64), Op::Create, 1, &[Value::Int(1), Value::Int(1)])]);
        let token = world.epoch(vec![
            event(&of(Type::Int64), Op::Update, 2, &[Value::Int(1), Value::Int(2)]),
            event(&of(dec(12, 2)), Op::Create, 3, &[Value::Int(2), Value::Int(3)]),
            event(&of(Type::Text), Op::Create, 4, &[Value::Int(3), Value::Text("three")]),
        ]);
        // This epoch is lost, with its columns.
        world.begin();
        world.write(vec![event(&of(Type::Bytes), Op::Create, 5, &[Value::Int(4), Value::Bytes(&[4])])]);
        let mut world = world.power_cut(Some(&token)).unwrap();
        assert_eq!(columns(&world, layout), ["id BIGINT", "v DECIMAL(21,2)", "v__string VARCHAR"]);
        world.epoch(vec![event(&of(Type::Text), Op::Create, 6, &[Value::Int(5), Value::Text("five")])]);
        let rows = values(&world, layout, "id, v, v__string");
        assert_eq!(rows[rows.len() - 4..], ["1|2.00|NULL", "2|3.00|NULL", "3|NULL|three", "5|NULL|five"]);
    }
}

/// A table whose first events had another key, or none, took the new key only for its view; the replica kept staging by
/// the old one, and a column that came with the key was asked for before it existed.
#[test]
fn a_key_that_changes_together_with_the_columns() {
    for layout in LAYOUTS {
        let mut world = World::new(layout);
        let before = schema("t", 1, &[("id", Type::Int64), ("v", Type::Text)]);
        let after = schema("t", 2, &[("id", Type::Int64), ("region", Type::Text), ("v", Type::Text)]);
        world.epoch(vec![event(&before, Op::Create, 1, &[Value::Int(1), Value::Text("a")])]);
        let of = |n, region, v| {
            event(&after, Op::Create, n, &[Value::Int(1), Value::Text(region), Value::Text(v)])
        };
        let other = schema("t", 1, &[("id", Type::Int64), ("v", Type::Text)]);
        world.epoch(vec![
            event(&before, Op::Update, 2, &[Value::Int(1), Value::Text("a")]),
            event(&other, Op::Update, 3, &[Value::Int(1), Value::Text("a")]),
            of(4, "eu", "b"),
            of(5, "us", "c"),
            of(6, "eu", "d"),
            // Of a schema that was mapped before the change.
            event(&other, Op::Create, 7, &[Value::Int(2), Value::Text("e")]),
        ]);
        let rows = match layout {
            Layout::Append => {
                world.rows("SELECT id, region, v FROM t_latest ORDER BY region NULLS FIRST, id")
            }
            Layout::Replica { .. } => {
                world.rows("SELECT id, region, v FROM t ORDER BY region NULLS FIRST, id")
            }
            Layout::Changelog | Layout::Rows => continue,
        };
        assert_eq!(rows, ["1|NULL|a", "2|NULL|e", "1|eu|d", "1|us|c"]);
        assert!(world.notices().iter().any(|n| n.code == "key_changed"));
    }
}

/// After a change from (id) to (id, code), the latest view ranked all rows by (id, code): every code that a row ever had
/// stood in it as a row of its own, also of rows that were deleted. And in the replica a row stayed whose delete, under the
/// new key, overtook its create on the way through another shard.
#[test]
fn rows_under_an_older_key_are_known_by_it() {
    let of = |key| schema("t", key, &[("id", Type::Int64), ("code", Type::Text), ("v", Type::Text)]);
    let (before, after) = (of(1), of(2));
    let row = |schema: &Arc<RowSchema>, op, n, id, code, v| {
        event(schema, op, n, &[Value::Int(id), Value::Text(code), Value::Text(v)])
    };
    let old = || {
        vec![
            row(&before, Op::Create, 1, 1, "a", "one"),
            row(&before, Op::Update, 2, 1, "b", "one"),
            row(&before, Op::Create, 3, 2, "x", "two"),
            row(&before, Op::Create, 4, 3, "c", "three"),
            row(&before, Op::Update, 5, 3, "d", "three"),
            event(&before, Op::Delete, 6, &[Value::Int(3)]),
            row(&before, Op::Create, 7, 4, "y", "four"),
            row(&before, Op::Update, 8, 4, "z", "four"),
        ]
    };
    let new = || {
        vec![
            row(&after, Op::Update, 10, 1, "b", "ONE"),
            event(&after, Op::Delete, 11, &[Value::Int(2), Value::Text("x")]),
            row(&after, Op::Create, 12, 4, "other", "five"),
        ]
    };
    for layout in [Layout::Append, Layout::Replica { delete: DeleteMode::Hard }, LAYOUTS[2]] {
        for (name, epochs) in [
            ("in order", vec![old(), new()]),
            ("in one epoch", vec![old().into_iter().chain(new()).collect()]),
            ("overtaken", vec![new().into_iter().chain(old()).collect()]),
            (
                "overtaken after the first",
                vec![
                    old().into_iter().take(1).collect(),
                    new().into_iter().chain(old().into_iter().skip(1)).collect(),
                ],
            ),
        ] {
            let mut world = World::new(layout);
            epochs.into_iter().for_each(|epoch| drop(world.epoch(epoch)));
            let from = match layout {
                Layout::Append => "t_latest",
                Layout::Replica { delete: DeleteMode::Soft } => "t WHERE NOT _metadata_deleted",
                _ => "t",
            };
            let rows = world.rows(&format!("SELECT id, code, v FROM {from} ORDER BY id, code"));
            assert_eq!(rows, ["1|b|ONE", "4|other|five", "4|z|four"], "{name}, {layout:?}");
        }
    }
}

/// After `ALTER TABLE … ALTER id TYPE text` a history has `id` and `id__string`, and all columns of a key counted for its
/// equality: each row that was written again stood twice in the latest view and in the replica, once under the number and
/// once under its text, deleted rows stayed, and large values that came unchanged were not found.
#[test]
fn a_key_whose_type_changes_still_knows_its_rows() {
    let of = |id| schema("t", 1, &[("id", id), ("v", Type::Text), ("body", Type::Text)]);
    let (before, after) = (of(Type::Int64), of(Type::Text));
    let old = |op, n, id, v| {
        event(
            &before,
            op,
            n,
            &[Value::Int(id), Value::Text(v), Value::Text(if id == 1 { "large" } else { "" })],
        )
    };
    let new = |op, n, id, v, body| event(&after, op, n, &[Value::Text(id), Value::Text(v), body]);
    let unchanged = Value::Unchanged;
    let first = || {
        vec![
            old(Op::Create, 1, 1, "a"),
            old(Op::Update, 2, 1, "b"),
            old(Op::Create, 3, 2, "c"),
            old(Op::Create, 4, 3, "untouched"),
            old(Op::Create, 5, 4, "gone"),
            event(&before, Op::Delete, 6, &[Value::Int(4)]),
        ]
    };
    let second = || {
        vec![
            new(Op::Update, 11, "1", "B", unchanged),
            // Of a key that no number has.
            new(Op::Create, 13, "02", "other", Value::Text("")),
        ]
    };
    let delete = || vec![event(&after, Op::Delete, 20, &[Value::Text("2")])];
    let late = || vec![old(Op::Update, 7, 1, "late"), old(Op::Update, 8, 3, "untouched")];
    for layout in [Layout::Append, Layout::Replica { delete: DeleteMode::Hard }, LAYOUTS[2]] {
        for (name, epochs) in [
            ("in order", vec![first(), second(), delete()]),
            ("in one epoch", vec![[first(), second(), delete()].into_iter().flatten().collect()]),
            ("overtaken", vec![first(), [second(), late()].into_iter().flatten().collect(), delete()]),
            ("overtaken by an epoch", vec![first(), second(), late(), delete()]),
        ] {
            let mut world = World::new(layout);
            epochs.into_iter().for_each(|epoch| drop(world.epoch(epoch)));
            let from = match layout {
                Layout::Append => "t_latest",
                Layout::Replica { delete: DeleteMode::Soft } => "t WHERE NOT _metadata_deleted",
                _ => "t",
            };
            let rows = world.rows(&format!("SELECT id, id__string, v, body FROM {from} ORDER BY v"));
            let expected = ["NULL|1|B|large", "NULL|02|other|", "3|NULL|untouched|"];
            assert_eq!(rows, expected, "{name}, {layout:?}");
        }
    }
}

/// The same where the history may hold an event twice, where a key has a second column, and where the table's key is another
/// one by then.
#[test]
fn a_key_of_two_columns_whose_type_changes() {
    let of = |keys, id| schema("t", keys, &[("id", id), ("region", Type::Text), ("v", Type::Text)]);
    let int = |schema: &Arc<RowSchema>, op, n, id, region, v| {
        event(schema, op, n, &[Value::Int(id), Value::Text(region), Value::Text(v)])
    };
    let (one, two, text) = (of(1, Type::Int64), of(2, Type::Int64), of(2, Type::Text));
    for layout in [Layout::Append, Layout::Replica { delete: DeleteMode::Hard }, LAYOUTS[2]] {
        let mut world = World::with(layout, |config| config.history_repeats = true);
        world.epoch(vec![int(&one, Op::Create, 1, 1, "eu", "a"), int(&one, Op::Create, 2, 2, "us", "b")]);
        world.epoch(vec![int(&two, Op::Update, 3, 1, "eu", "c"), int(&two, Op::Create, 4, 3, "eu", "d")]);
        world.epoch(vec![
            event(&text, Op::Update, 5, &[Value::Text("1"), Value::Text("eu"), Value::Text("e")]),
            event(&text, Op::Create, 6, &[Value::Text("1"), Value::Text("us"), Value::Text("f")]),
        ]);
        let from = if layout == Layout::Append { "t_latest" } else { "t" };
        let rows = world
            .rows(&format!("SELECT coalesce(id__string, id::VARCHAR), region, v FROM {from} ORDER BY v"));
        assert_eq!(rows, ["2|us|b", "3|eu|d", "1|eu|e", "1|us|f"], "{layout:?}");
    }
}
