//! The append layout: history and latest view.

use millstream_core::{Op, Type, Value};
use millstream_duckdb::Layout;

use crate::world::{World, event, schema};

#[test]
fn history_and_latest_state() {
    let mut world = World::new(Layout::Append);
    let orders = schema("orders", 1, &[("id", Type::Int64), ("status", Type::Text)]);
    let of = |op, n, id, status| event(&orders, op, n, &[Value::Int(id), status]);
    world.epoch(vec![
        of(Op::Create, 1, 1, Value::Text("new")),
        of(Op::Create, 2, 2, Value::Text("new")),
        of(Op::Update, 4, 1, Value::Text("paid")),
    ]);
    // A late event and a delete.
    world.epoch(vec![of(Op::Update, 3, 1, Value::Text("late")), of(Op::Delete, 5, 2, Value::Null)]);
    assert_eq!(
        world
            .rows("SELECT id, status, __op, __source_table, __lsn, __order FROM orders_raw ORDER BY __order"),
        [
            "1|new|c|public.orders|1|0000000000000000/0000000000000001/0000000000000001",
            "2|new|c|public.orders|2|0000000000000000/0000000000000002/0000000000000002",
            "1|late|u|public.orders|3|0000000000000000/0000000000000003/0000000000000003",
            "1|paid|u|public.orders|4|0000000000000000/0000000000000004/0000000000000004",
            "2|NULL|d|public.orders|5|0000000000000000/0000000000000005/0000000000000005",
        ]
    );
    assert_eq!(world.rows("SELECT * FROM orders_latest"), ["1|paid"]);
}

#[test]
fn what_no_checkpoint_names_is_taken_back() {
    let mut world = World::new(Layout::Append);
    let orders = schema("orders", 1, &[("id", Type::Int64)]);
    let of = |n, id| event(&orders, Op::Create, n, &[Value::Int(id)]);
    let first = world.epoch(vec![of(1, 1)]);
    world.epoch(vec![of(2, 2)]);
    world.begin();
    world.write(vec![of(3, 3)]);
    // Crash with one epoch committed but not checkpointed, and one not even committed.
    let mut world = world.crash(Some(&first)).unwrap();
    assert_eq!(world.rows("SELECT id FROM orders_raw"), ["1"]);
    let codes: Vec<_> = world.notices().iter().map(|n| (n.code, n.count)).collect();
    assert_eq!(codes, [("rolled_back", 1)]);
    // Again, which changes nothing; then they come again.
    let mut world = world.crash(Some(&first)).unwrap();
    let second = world.epoch(vec![of(2, 2), of(3, 3)]);
    let world = world.crash(Some(&second)).unwrap();
    assert_eq!(world.rows("SELECT id FROM orders_raw ORDER BY id"), ["1", "2", "3"]);
    // Without a checkpoint everything goes.
    let world = world.crash(None).unwrap();
    assert_eq!(world.rows("SELECT count(*) FROM orders_raw"), ["0"]);
}

#[test]
fn a_file_that_is_behind_the_checkpoint_is_refused() {
    let mut world = World::new(Layout::Append);
    let orders = schema("orders", 1, &[("id", Type::Int64)]);
    let token = world.epoch(vec![event(&orders, Op::Create, 1, &[Value::Int(1)])]);
    let path = world.path();
    let World { folder, config, sink, .. } = world;
    drop(sink);
    std::fs::remove_file(path).unwrap();
    let mut sink = millstream_duckdb::DuckSink::open(config).unwrap();
    let error = crate::world::now(millstream_core::Sink::recover(&mut sink, Some(&token))).unwrap_err();
    assert_eq!(error.kind(), millstream_core::Kind::Fatal);
    assert!(error.to_string().contains("deleted, replaced"), "{error}");
    drop(folder);
}

/// Each table had a bound of its own for the rows that wait in memory, and all of them together none.
#[test]
fn rows_of_many_tables_do_not_add_up_in_memory() {
    let mut world = World::new(Layout::Append);
    let text = "x".repeat(1 << 20);
    world.begin();
    for table in 0..16 {
        let schema = schema(&format!("t{table}"), 1, &[("id", Type::Int64), ("v", Type::Text)]);
        let rows = (0..16).map(|i| {
            event(&schema, Op::Create, table * 100 + i, &[Value::Int(i as i64), Value::Text(&text)])
        });
        world.write(rows.collect());
    }
    // Of 256 MB, too little in each table for its own bound, 128 MB may still wait here. DuckDB has the others.
    let taken = "SELECT sum(memory_usage_bytes + temporary_storage_bytes) >= 100 << 20 FROM duckdb_memory()";
    assert_eq!(world.rows(taken), ["true"]);
    world.prepare();
    assert_eq!(world.rows("SELECT count(*), sum(length(v)) FROM t15_raw"), [format!("16|{}", 16 << 20)]);
}

/// An answer is held whole: one of a large table ended the pipeline beside it.
#[test]
fn an_answer_has_bounds() {
    let world = World::new(Layout::Append);
    let error = |sql: &str| world.sink.database().query(sql, true).unwrap_err().to_string();
    assert!(error("SELECT * FROM range(100001)").contains("more than 100000 rows: add a LIMIT"));
    assert!(error("SELECT repeat('x', 10000000) FROM range(40)").contains("more than 256 MB"));
    assert_eq!(world.rows("SELECT count(*) FROM range(1000000)"), ["1000000"]);
}

/// A read-only query could write files, the warehouse itself among them, and change the running instance.
#[test]
fn a_read_only_query_touches_nothing() {
    let mut world = World::new(Layout::Append);
    let orders = schema("orders", 1, &[("id", Type::Int64)]);
    world.epoch(vec![event(&orders, Op::Create, 1, &[Value::Int(1)])]);
    let out = world.folder.path().join("copied.csv");
    let path = world.config.path.clone();
    let statements = [
        format!("COPY (SELECT 1) TO '{}' (FORMAT csv)", out.display()),
        format!("COPY (SELECT 1) TO '{}' (FORMAT csv)", path.display()),
        format!("EXPORT DATABASE '{}'", out.display()),
        format!("ATTACH '{}'", out.display()),
        "SET GLOBAL memory_limit = '1MB'".to_owned(),
        "CHECKPOINT".to_owned(),
        "INSTALL httpfs".to_owned(),
        format!("SELECT * FROM read_csv('{}')", path.display()),
        "DROP TABLE orders_raw".to_owned(),
        String::new(),
    ];
    for sql in &statements {
        assert!(world.sink.database().query(sql, true).is_err(), "beside a pipeline: {sql}");
    }
    assert_eq!(world.rows("SELECT id FROM orders_latest"), ["1"]);
    let World { folder, sink, .. } = world;
    drop(sink);
    for sql in &statements {
        assert!(millstream_duckdb::query(&path, sql, true).is_err(), "on a file: {sql}");
    }
    let answer = millstream_duckdb::query(&path, "SELECT id FROM orders_latest", true).unwrap();
    assert_eq!(answer.rows, [[Some("1".to_owned())]]);
    assert!(!folder.path().join("copied.csv").exists());
}
