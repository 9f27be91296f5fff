//! Values of every type arrive exactly.

use millstream_core::{Field, Op, RowBuilder, Type, Value};
use millstream_duckdb::{Decimals, DeleteMode, Layout, query};

use crate::world::{World, event, row, schema};

fn types() -> Vec<(&'static str, Type)> {
    let field = |name: &str, ty| Field { name: name.into(), ty };
    let point =
        Type::Struct(Box::new([field("x", Type::Float64), field("tags", Type::List(Box::new(Type::Text)))]));
    vec![
        ("id", Type::Int64),
        ("bool", Type::Bool),
        ("float", Type::Float64),
        ("money", Type::Decimal { precision: 4, scale: 2 }),
        ("wide", Type::Decimal { precision: 38, scale: 10 }),
        ("wider", Type::Decimal { precision: 60, scale: 10 }),
        ("numeric", Type::Numeric),
        ("text", Type::Text),
        ("bytes", Type::Bytes),
        ("json", Type::Json),
        ("date", Type::Date),
        ("time", Type::Time),
        ("datetime", Type::DateTime),
        ("timestamp", Type::Timestamp),
        ("ints", Type::List(Box::new(Type::Int64))),
        ("grid", Type::List(Box::new(Type::List(Box::new(Type::Int64))))),
        ("point", point),
    ]
}

#[test]
fn typed_values_come_back_exactly_in_every_layout() {
    for layout in
        [Layout::Append, Layout::Changelog, Layout::Rows, Layout::Replica { delete: DeleteMode::Hard }]
    {
        let mut world = World::new(layout);
        let all = schema("all", 1, &types());
        let list = row(&[Value::Int(1), Value::Null, Value::Int(-3)]);
        let grid = row(&[Value::List(&list), Value::List(&row(&[]))]);
        let tags = row(&[Value::Text("ä"), Value::Text("")]);
        let point = row(&[Value::Float(-0.5), Value::List(&tags)]);
        let values = [
            Value::Int(i64::MIN),
            Value::Bool(true),
            Value::Float(f64::NEG_INFINITY),
            Value::Decimal { unscaled: -9999, scale: 2 },
            Value::Digits("1234567890123456789012345678.0123456789"),
            Value::Digits("12345678901234567890123456789012345678901234567890.0123456789"),
            Value::Digits("0.100"),
            Value::Text("a\u{0}b 🦆 \"'"),
            Value::Bytes(&[0, 1, 255, 254]),
            Value::Json("{\"n\": 1.10, \"big\": 123456789012345678901234567890}"),
            Value::Date(-719_162),
            Value::Time(86_399_999_999),
            Value::DateTime(-1),
            Value::Timestamp(1_717_200_000_123_456),
            Value::List(&list),
            Value::List(&grid),
            Value::Struct(&point),
        ];
        let nulls: Vec<_> =
            (0..values.len()).map(|i| if i == 0 { Value::Int(0) } else { Value::Null }).collect();
        world.epoch(vec![event(&all, Op::Create, 1, &values), event(&all, Op::Create, 2, &nulls)]);
        let from = match layout {
            Layout::Append => "(SELECT * FROM all_raw)",
            Layout::Changelog => "(SELECT after.* FROM all_changelog)",
            Layout::Rows | Layout::Replica { .. } => "\"all\"",
        };
        let columns: Vec<_> =
            types().iter().skip(1).map(|(name, _)| format!("\"{name}\"::VARCHAR")).collect();
        let rows = world.query(&format!("SELECT {} FROM {from} ORDER BY id", columns.join(", "))).rows;
        let texts: Vec<_> = rows[0].iter().map(|v| v.as_deref().unwrap()).collect();
        assert_eq!(
            texts,
            [
                "true",
                "-inf",
                "-99.99",
                "1234567890123456789012345678.0123456789",
                "12345678901234567890123456789012345678901234567890.0123456789",
                "0.100",
                "a\u{0}b 🦆 \"'",
                "\\x00\\x01\\xFF\\xFE",
                "{\"n\": 1.10, \"big\": 123456789012345678901234567890}",
                "0001-01-01",
                "23:59:59.999999",
                "1969-12-31 23:59:59.999999",
                "2024-06-01 00:00:00.123456+00",
                "[1, NULL, -3]",
                "[[1,null,-3],[]]",
                "{'x': -0.5, 'tags': [ä, '']}",
            ]
        );
        assert!(rows[1].iter().all(Option::is_none));
        let types = world.rows(&format!("SELECT column_type FROM (DESCRIBE SELECT * FROM {from}) LIMIT 17"));
        assert_eq!(types[3..7], ["DECIMAL(4,2)", "DECIMAL(38,10)", "VARCHAR", "VARCHAR"]);
        assert_eq!(types[9..10], ["JSON"]);
        assert_eq!(types[13..16], ["TIMESTAMP WITH TIME ZONE", "BIGINT[]", "JSON"]);
    }
}

#[test]
fn decimals_as_text_by_choice() {
    let mut world = World::with(Layout::Append, |config| config.decimals = Decimals::Text);
    let money = schema("t", 1, &[("id", Type::Int64), ("v", Type::Decimal { precision: 4, scale: 2 })]);
    world.epoch(vec![event(
        &money,
        Op::Create,
        1,
        &[Value::Int(1), Value::Decimal { unscaled: 100, scale: 2 }],
    )]);
    assert_eq!(world.rows("SELECT v, typeof(v) FROM t_raw"), ["1.00|VARCHAR"]);
}

#[test]
fn unbounded_numeric_keys_are_equal_by_value() {
    for layout in [Layout::Append, Layout::Replica { delete: DeleteMode::Soft }] {
        let mut world = World::new(layout);
        let t = schema("t", 1, &[("id", Type::Numeric), ("v", Type::Text)]);
        world.epoch(vec![event(&t, Op::Create, 1, &[Value::Digits("1.50"), Value::Text("a")])]);
        world.epoch(vec![event(&t, Op::Update, 2, &[Value::Digits("1.5"), Value::Text("b")])]);
        let table = if layout == Layout::Append { "t_latest" } else { "t" };
        assert_eq!(world.rows(&format!("SELECT id, v FROM {table}")), ["1.5|b"]);
    }
}

#[test]
fn rows_of_megabytes_and_lists_of_thousands() {
    let mut world = World::new(Layout::Append);
    let t = schema(
        "t",
        1,
        &[("id", Type::Int64), ("text", Type::Text), ("list", Type::List(Box::new(Type::Int64)))],
    );
    let text = "x".repeat(3 << 20);
    let mut list = RowBuilder::new();
    (0..5000).for_each(|i| list.push(Value::Int(i)));
    let list = list.finish();
    let events = (0..20).map(|i| {
        event(&t, Op::Create, i + 1, &[Value::Int(i as i64), Value::Text(&text), Value::List(&list)])
    });
    world.epoch(events.collect());
    assert_eq!(
        world.rows("SELECT count(*), sum(length(text)), sum(len(list)), sum(list[5000]) FROM t_raw"),
        [format!("20|{}|100000|{}", 20 * (3 << 20), 20 * 4999)]
    );
}

#[test]
fn answers_as_text_and_json() {
    let mut world = World::new(Layout::Append);
    let t = schema("t", 1, &[("id", Type::Int64), ("v", Type::Text), ("f", Type::Float64)]);
    world.epoch(vec![
        event(&t, Op::Create, 1, &[Value::Int(1), Value::Text("a \"b\"\nc"), Value::Float(f64::NAN)]),
        event(&t, Op::Create, 2, &[Value::Int(2), Value::Null, Value::Float(0.5)]),
    ]);
    let answer = world.query("SELECT id, v, f FROM t_raw ORDER BY id");
    assert_eq!(
        answer.text(),
        "id  v        f\n--  -------  ---\n1   a \"b\" c  nan\n2   NULL     0.5\n(2 rows)\n"
    );
    assert_eq!(
        answer.json(),
        "[\n{\"id\":1,\"v\":\"a \\\"b\\\"\\nc\",\"f\":\"nan\"},\n{\"id\":2,\"v\":null,\"f\":0.5}\n]\n"
    );
    let refused = query(&world.path(), "DELETE FROM t_raw", true).unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert_eq!(world.rows("SELECT count(*) FROM t_raw"), ["2"]);
}
