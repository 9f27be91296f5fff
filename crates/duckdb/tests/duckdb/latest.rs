//! The latest view: ranking, truncates, and values that events did not carry.

use std::sync::Arc;

use millstream_core::{Judged, Key, Op, RowSchema, TableName, Type, Value};
use millstream_duckdb::{DeleteMode, Layout, views};

use crate::world::{World, event, schema, schema_with};

fn docs() -> Arc<RowSchema> {
    schema(
        "docs",
        1,
        &[("id", Type::Int64), ("title", Type::Text), ("body", Type::Text), ("note", Type::Text)],
    )
}

fn doc(op: Op, n: u64, id: i64, title: &str, body: Value<'_>) -> Judged {
    event(&docs(), op, n, &[Value::Int(id), Value::Text(title), body, Value::Null])
}

fn moved(mut judged: Judged, from: i64) -> Judged {
    judged.event.old_key = Some(Key::from_values([Value::Int(from)]));
    judged
}

fn deleted(n: u64, id: i64) -> Judged {
    event(&docs(), Op::Delete, n, &[Value::Int(id)])
}

const LATEST: &str = "SELECT id, title, body FROM docs_latest ORDER BY id";

#[test]
fn an_unchanged_value_is_the_last_one_that_came() {
    let mut world = World::new(Layout::Append);
    world.epoch(vec![
        doc(Op::Create, 1, 1, "a", Value::Text("first")),
        doc(Op::Update, 2, 1, "b", Value::Text("second")),
        doc(Op::Update, 4, 1, "d", Value::Unchanged),
        doc(Op::Update, 3, 1, "c", Value::Unchanged),
        // The value before is NULL, which is a value.
        doc(Op::Create, 5, 2, "a", Value::Text("gone")),
        doc(Op::Update, 6, 2, "b", Value::Null),
        doc(Op::Update, 7, 2, "c", Value::Unchanged),
        // Nothing is known of it.
        doc(Op::Update, 8, 3, "z", Value::Unchanged),
    ]);
    assert_eq!(world.rows(LATEST), ["1|d|second", "2|c|NULL", "3|z|NULL"]);
    assert_eq!(world.rows("SELECT __unchanged FROM docs_raw WHERE id = 3"), ["[body]"]);
    assert_eq!(world.rows("SELECT count(*) FROM docs_raw WHERE __unchanged IS NULL"), ["4"]);
    // A late event that carries an older value changes nothing; one that carries a newer value does.
    world.epoch(vec![
        doc(Op::Update, 9, 3, "y", Value::Text("new")),
        doc(Op::Update, 10, 3, "x", Value::Unchanged),
    ]);
    assert_eq!(world.rows(LATEST)[2], "3|x|new");
}

#[test]
fn a_key_change_leads_to_the_old_keys_value() {
    let mut world = World::new(Layout::Append);
    world.epoch(vec![
        doc(Op::Create, 1, 1, "a", Value::Text("large")),
        doc(Op::Create, 2, 9, "other", Value::Text("other")),
        // 1 becomes 2, then 3; each time the value is not carried.
        deleted(3, 1),
        moved(doc(Op::Create, 3, 2, "b", Value::Unchanged), 1),
        deleted(4, 2),
        moved(doc(Op::Create, 4, 3, "c", Value::Unchanged), 2),
        doc(Op::Update, 5, 3, "d", Value::Unchanged),
    ]);
    assert_eq!(world.rows(LATEST), ["3|d|large", "9|other|other"]);
    assert_eq!(
        world.rows("SELECT __old_key FROM docs_raw WHERE __old_key IS NOT NULL ORDER BY __order"),
        ["[\"1\"]", "[\"2\"]"]
    );
}

#[test]
fn an_earlier_life_of_the_key_is_not_looked_at() {
    let mut world = World::new(Layout::Append);
    world.epoch(vec![
        // 3 lived and died before 1 became 3; the youngest row of an older life is younger than the value.
        doc(Op::Create, 1, 1, "a", Value::Text("mine")),
        doc(Op::Create, 2, 3, "x", Value::Text("wrong")),
        doc(Op::Update, 3, 3, "x", Value::Text("wrong too")),
        deleted(4, 3),
        deleted(5, 1),
        moved(doc(Op::Create, 5, 3, "b", Value::Unchanged), 1),
        // And 1 lives anew, in which 3 has no part.
        doc(Op::Create, 6, 1, "new", Value::Text("new")),
        doc(Op::Update, 7, 1, "newer", Value::Unchanged),
    ]);
    assert_eq!(world.rows(LATEST), ["1|newer|new", "3|b|mine"]);
}

#[test]
fn swapped_keys_find_their_own_values() {
    let mut world = World::new(Layout::Append);
    world.epoch(vec![
        doc(Op::Create, 1, 1, "one", Value::Text("body of one")),
        doc(Op::Create, 2, 2, "two", Value::Text("body of two")),
        // 1 → 3, 2 → 1, 3 → 2.
        deleted(3, 1),
        moved(doc(Op::Create, 3, 3, "one", Value::Unchanged), 1),
        deleted(4, 2),
        moved(doc(Op::Create, 4, 1, "two", Value::Unchanged), 2),
        deleted(5, 3),
        moved(doc(Op::Create, 5, 2, "one", Value::Unchanged), 3),
    ]);
    assert_eq!(world.rows(LATEST), ["1|two|body of two", "2|one|body of one"]);
}

#[test]
fn keys_of_other_types_lead_back_too() {
    let mut world = World::new(Layout::Append);
    let types = [
        ("k1", Type::Text),
        ("k2", Type::Bytes),
        ("k3", Type::Timestamp),
        ("k4", Type::Decimal { precision: 10, scale: 2 }),
        ("k5", Type::Date),
        ("body", Type::Text),
    ];
    let wide = schema("wide", 5, &types);
    let key = |text| {
        let money = Value::Decimal { unscaled: 150, scale: 2 };
        [Value::Text(text), Value::Bytes(&[0, 255]), Value::Timestamp(1_500_000), money, Value::Date(3)]
    };
    let of = |op, n, text, body| event(&wide, op, n, &[&key(text)[..], &[body]].concat());
    let mut create = of(Op::Create, 2, "b", Value::Unchanged);
    create.event.old_key = Some(Key::from_values(key("a \"quoted\" ' \u{1}ü")));
    world.epoch(vec![of(Op::Create, 1, "a \"quoted\" ' \u{1}ü", Value::Text("large")), create]);
    assert_eq!(world.rows("SELECT k1, body FROM wide_latest WHERE k1 = 'b'"), ["b|large"]);
}

#[test]
fn a_truncate_hides_what_is_below_it() {
    let mut world = World::new(Layout::Append);
    world.epoch(vec![doc(Op::Create, 1, 1, "a", Value::Null), doc(Op::Create, 12, 2, "b", Value::Null)]);
    world.epoch(vec![event(&docs(), Op::Truncate, 10, &[]), doc(Op::Create, 5, 3, "late", Value::Null)]);
    assert_eq!(world.rows(LATEST), ["2|b|NULL"]);
    assert_eq!(world.rows("SELECT id, __op FROM docs_raw WHERE __op = 't'"), ["NULL|t"]);
}

/// A truncate tells no key. Where it was the first event of its table to arrive, as Pub/Sub may have it, the table counted as one
/// without a key; and if the first row to arrive after it was an older one, as one that had lost its key: the latest view and the
/// replica missed rows.
#[test]
fn a_truncate_may_be_the_first_to_arrive() {
    let unkeyed = schema("docs", 0, &[]);
    let all = [(5, 1, "before"), (15, 2, "after"), (16, 3, "after, too"), (6, 3, "before")];
    for layout in [Layout::Append, Layout::Replica { delete: DeleteMode::Hard }] {
        let rows = match layout {
            Layout::Append => "SELECT id, title FROM docs_latest ORDER BY id",
            _ => "SELECT id, title FROM docs ORDER BY id",
        };
        for first in 0..all.len() {
            for restarts in [false, true] {
                let mut world = World::new(layout);
                let token = world.epoch(vec![event(&unkeyed, Op::Truncate, 10, &[])]);
                if restarts {
                    world = world.crash(Some(&token)).unwrap();
                }
                let mut events = all.to_vec();
                events.rotate_left(first);
                let judged = |(n, id, title)| {
                    // What the gate says of what is below a truncate.
                    let newest = n > 10;
                    Judged { newest, ..doc(Op::Update, n, id, title, Value::Null) }
                };
                world.epoch(events.into_iter().map(judged).collect());
                let found = world.rows(rows);
                assert_eq!(found, ["2|after", "3|after, too"], "{layout:?} {first} {restarts}");
                let codes: Vec<_> = world.notices().iter().map(|n| n.code).collect();
                assert!(!codes.contains(&"no_key") && !codes.contains(&"key_changed"), "{codes:?}");
            }
        }
    }
}

#[test]
fn a_table_without_key_has_no_view_and_says_so_once() {
    let mut world = World::new(Layout::Append);
    let log = schema("log", 0, &[("line", Type::Text)]);
    world.epoch(vec![
        event(&log, Op::Create, 1, &[Value::Text("x")]),
        event(&log, Op::Create, 1, &[Value::Text("x")]),
    ]);
    world.epoch(vec![event(&log, Op::Create, 1, &[Value::Text("x")])]);
    assert_eq!(world.rows("SELECT count(*) FROM log_raw"), ["3"]);
    assert_eq!(world.rows("SELECT count(*) FROM duckdb_views() WHERE NOT internal"), ["0"]);
    let codes: Vec<_> = world.notices().iter().map(|n| n.code).collect();
    assert_eq!(codes, ["no_key"]);
}

/// That rows come without the key that the table has was told for each schema that they came with, i.e. once a decoder
/// and again after every new column; once a table is enough.
#[test]
fn a_lost_key_is_told_once() {
    let mut world = World::new(Layout::Append);
    let of = |keys| schema("t", keys, &[("id", Type::Int64), ("v", Type::Text)]);
    let wider = schema("t", 0, &[("id", Type::Int64), ("v", Type::Text), ("w", Type::Text)]);
    let values = |n| [Value::Int(n), Value::Text("x")];
    world.epoch(vec![event(&of(1), Op::Create, 1, &values(1))]);
    assert_eq!(world.notices(), []);
    world.epoch(vec![event(&of(0), Op::Create, 2, &values(2)), event(&of(0), Op::Create, 3, &values(3))]);
    world.epoch(vec![event(&wider, Op::Create, 4, &[Value::Int(4), Value::Text("x"), Value::Text("y")])]);
    let told: Vec<_> = world.notices().into_iter().filter(|n| n.code == "no_key").collect();
    assert_eq!(told.len(), 1);
    assert!(told[0].text.starts_with("rows of public.t come without a key now"), "{told:?}");
}

#[test]
fn keys_with_nulls_are_keys() {
    let mut world = World::new(Layout::Append);
    let pairs = schema("pairs", 2, &[("a", Type::Int64), ("b", Type::Text), ("v", Type::Text)]);
    let of = |n, b, v| event(&pairs, Op::Update, n, &[Value::Int(1), b, v]);
    world.epoch(vec![of(1, Value::Null, Value::Text("old")), of(2, Value::Text("x"), Value::Text("x"))]);
    world.epoch(vec![of(3, Value::Null, Value::Text("new")), of(4, Value::Null, Value::Unchanged)]);
    assert_eq!(world.rows("SELECT * FROM pairs_latest ORDER BY b"), ["1|x|x", "1|NULL|new"]);
}

#[test]
fn a_repeated_event_is_one_row_where_the_history_may_repeat() {
    let mut world = World::with(Layout::Append, |config| config.history_repeats = true);
    world.epoch(vec![doc(Op::Create, 1, 1, "a", Value::Null), doc(Op::Create, 1, 1, "a", Value::Null)]);
    assert_eq!(world.rows(LATEST), ["1|a|NULL"]);
}

#[test]
fn the_views_as_sql() {
    let mut world = World::new(Layout::Append);
    world.epoch(vec![doc(Op::Create, 1, 1, "a", Value::Null)]);
    let plain = views(&world.config).unwrap();
    world.epoch(vec![doc(Op::Update, 2, 1, "b", Value::Unchanged)]);
    let World { folder, config, sink, .. } = world;
    drop(sink);
    // Offline, from the file.
    let filled = views(&config).unwrap();
    let show = |views: &[(String, String)]| {
        views.iter().map(|(name, sql)| format!("-- {name}\n{sql}")).collect::<Vec<_>>().join("\n\n")
    };
    insta::assert_snapshot!("latest_plain", show(&plain));
    insta::assert_snapshot!("latest_with_unchanged", show(&filled));
    drop(folder);
}

/// A column whose value was left out before any other was seen had no place in the table: its name was not written down, so
/// that nobody looked for the value when it came late.
#[test]
fn a_value_that_is_left_out_first_is_looked_up() {
    let of = |ty| {
        let table = TableName::new("shop", "public", "docs");
        schema_with(table, 1, &[("id", Type::Int64), ("body", ty)], true)
    };
    let mut world = World::new(Layout::Append);
    world.epoch(vec![event(&of(Type::Null), Op::Update, 9, &[Value::Int(1), Value::Unchanged])]);
    assert_eq!(world.rows("SELECT __unchanged FROM docs_raw"), ["[body]"]);
    world.epoch(vec![event(&of(Type::Text), Op::Update, 8, &[Value::Int(1), Value::Text("real")])]);
    assert_eq!(world.rows("SELECT id, body FROM docs_latest"), ["1|real"]);
}
