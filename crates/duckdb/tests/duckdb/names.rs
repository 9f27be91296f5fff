//! Names: whatever a source calls its tables and columns has a place, and nothing collides silently.

use duckdb::Connection;
use millstream_core::{Op, TableName, Type, Value};
use millstream_duckdb::{DeleteMode, DuckConfig, DuckSink, Layout, query};

use crate::world::{World, event, now, schema, schema_with};

const REPLICA: Layout = Layout::Replica { delete: DeleteMode::Soft };

const ODD: [&str; 16] = [
    "Orders",
    "order-items",
    "select",
    "größe",
    "数据",
    "with space",
    " lead",
    "dot.ted",
    "quo\"ted",
    "it's",
    "semi;colon",
    "new\nline",
    "nul\u{0}l",
    "",
    "rowid",
    "🦆",
];

#[test]
fn odd_names_of_tables_and_columns_work_in_every_layout() {
    for layout in [Layout::Append, Layout::Changelog, Layout::Rows, REPLICA] {
        let mut world = World::new(layout);
        let columns: Vec<(&str, Type)> = ODD.iter().map(|&name| (name, Type::Int64)).collect();
        let values: Vec<_> = (0..ODD.len() as i64).map(Value::Int).collect();
        world.epoch(
            ODD.iter().map(|table| event(&schema(table, 1, &columns), Op::Create, 1, &values)).collect(),
        );
        // Again with a column more, and after a restart.
        let more: Vec<_> = columns.iter().cloned().chain([("more ; --", Type::Text)]).collect();
        let more_values: Vec<_> = values.iter().copied().chain([Value::Text("x")]).collect();
        let token = world
            .epoch(ODD.iter().map(|t| event(&schema(t, 1, &more), Op::Update, 2, &more_values)).collect());
        let mut world = world.crash(Some(&token)).unwrap();
        world.epoch(
            ODD.iter().map(|table| event(&schema(table, 1, &columns), Op::Update, 3, &values)).collect(),
        );
        let tables = world.rows("SELECT count(*) FROM _millstream_tables");
        assert_eq!(tables, [ODD.len().to_string()]);
        if layout == REPLICA {
            for table in ODD.iter().filter(|t| !t.contains(['\n', '\u{0}']) && !t.is_empty()) {
                let quoted = table.replace('"', "\"\"");
                assert_eq!(
                    world.rows(&format!("SELECT \"quo\"\"ted\", \"数据\" FROM \"{quoted}\"")),
                    ["8|4"]
                );
            }
            assert_eq!(world.rows("SELECT \"new_xa_line\" FROM \"_x_\""), ["11"]);
        }
        if layout == Layout::Append {
            assert_eq!(world.rows("SELECT \"with space\", rowid FROM \"dot.ted_latest\""), ["5|14"]);
        }
    }
}

#[test]
fn columns_like_ours_are_escaped_and_say_so() {
    let mut world = World::new(Layout::Append);
    let odd = schema(
        "t",
        1,
        &[("id", Type::Int64), ("__op", Type::Text), ("_metadata_x", Type::Text), ("ID", Type::Text)],
    );
    world.epoch(vec![event(
        &odd,
        Op::Create,
        1,
        &[Value::Int(1), Value::Text("a"), Value::Text("b"), Value::Text("c")],
    )]);
    assert_eq!(world.rows("SELECT id, __op, _x5f__op, _x5f_metadata_x, \"ID_2\" FROM t_raw"), ["1|c|a|b|c"]);
    let comments =
        "SELECT column_name, comment FROM duckdb_columns() WHERE comment IS NOT NULL ORDER BY column_index";
    assert_eq!(
        world.rows(comments),
        [
            "_x5f__op|source column: __op",
            "_x5f_metadata_x|source column: _metadata_x",
            "ID_2|source column: ID"
        ]
    );
    let renamed = world.notices().iter().filter(|n| n.code == "column_renamed").count();
    assert_eq!(renamed, 3);
}

#[test]
fn tables_that_share_a_name_are_told_apart_for_good() {
    let mut world = World::new(REPLICA);
    let of = |schema: &str, table: &str| {
        schema_with(TableName::new("shop", schema, table), 1, &[("id", Type::Int64)], false)
    };
    let public = of("public", "orders");
    let sales = of("sales", "ORDERS");
    world.epoch(vec![
        event(&public, Op::Create, 1, &[Value::Int(1)]),
        event(&sales, Op::Create, 1, &[Value::Int(2)]),
    ]);
    let texts: Vec<_> =
        world.notices().into_iter().filter(|n| n.code == "table_renamed").map(|n| n.text).collect();
    assert_eq!(
        texts,
        ["table sales.ORDERS is called sales_ORDERS, because ORDERS is taken by another table"]
    );
    // The other one comes first after a restart.
    let token = world.epoch(vec![event(&sales, Op::Create, 2, &[Value::Int(3)])]);
    let mut world = world.crash(Some(&token)).unwrap();
    world.epoch(vec![
        event(&sales, Op::Create, 3, &[Value::Int(4)]),
        event(&public, Op::Create, 4, &[Value::Int(5)]),
    ]);
    assert_eq!(world.rows("SELECT id FROM orders ORDER BY id"), ["1", "5"]);
    assert_eq!(world.rows("SELECT id FROM sales_orders ORDER BY id"), ["2", "3", "4"]);
}

#[test]
fn a_table_called_like_anothers_history_or_view() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("w.duckdb");
    let open = |name: &str, layout| {
        let mut sink = DuckSink::open(DuckConfig::new(name, &path, layout)).unwrap();
        now(millstream_core::Sink::recover(&mut sink, None)).unwrap();
        sink
    };
    let (mut append, mut replica) = (open("0-duckdb", Layout::Append), open("1-duckdb", REPLICA));
    let tables = ["t", "t_raw", "t_latest", "t_raw_raw"];
    for sink in [&mut append, &mut replica] {
        use millstream_core::{Epoch, Output, Sink};
        now(sink.begin(Epoch(1), 1_000_000)).unwrap();
        let events = tables.iter().enumerate().map(|(i, table)| {
            Output::Event(event(
                &schema(table, 1, &[("id", Type::Int64)]),
                Op::Create,
                1,
                &[Value::Int(i as i64)],
            ))
        });
        now(sink.write(&crate::world::batch(events.collect()))).unwrap();
    }
    // Both epochs were open at once.
    let tokens = [&mut append, &mut replica].map(|sink| now(millstream_core::Sink::prepare(sink)).unwrap());
    assert!(tokens.iter().all(Option::is_some));
    let names = query(
        &path,
        "SELECT \"table\" || ' ' || layout || ' ' || name || ' ' || COALESCE(view, '') FROM _millstream_tables ORDER BY ALL",
        true,
    );
    let names: Vec<_> = names.unwrap().rows.into_iter().map(|row| row[0].clone().unwrap()).collect();
    assert_eq!(
        names,
        [
            "t append t_raw t_latest",
            "t replica t ",
            "t_latest append t_latest_raw t_latest_latest",
            "t_latest replica public_t_latest ",
            "t_raw append t_raw_raw t_raw_latest",
            "t_raw replica public_t_raw ",
            "t_raw_raw append t_raw_raw_raw t_raw_raw_latest",
            "t_raw_raw replica public_t_raw_raw ",
        ]
    );
    for (i, table) in tables.iter().enumerate() {
        let answer = query(&path, &format!("SELECT id FROM {table}_latest"), true).unwrap();
        assert_eq!(answer.rows, [[Some(i.to_string())]]);
    }
}

#[test]
fn tables_that_others_made_are_never_touched() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("w.duckdb");
    let theirs = Connection::open(&path).unwrap();
    theirs
        .execute_batch("CREATE TABLE orders (id BIGINT, x VARCHAR); INSERT INTO orders VALUES (7, 'theirs')")
        .unwrap();
    drop(theirs);
    let config = DuckConfig::new("0-duckdb", &path, REPLICA);
    let mut sink = DuckSink::open(config.clone()).unwrap();
    now(millstream_core::Sink::recover(&mut sink, None)).unwrap();
    let mut world = World { folder, config, sink, epoch: 0 };
    world.epoch(vec![event(&schema("orders", 1, &[("id", Type::Int64)]), Op::Create, 1, &[Value::Int(1)])]);
    let world = world.crash(None).unwrap();
    assert_eq!(world.rows("SELECT * FROM orders"), ["7|theirs"]);
    assert_eq!(world.rows("SELECT count(*) FROM public_orders"), ["0"]);
}

#[test]
fn templates_and_datasets() {
    let mut world = World::with(Layout::Append, |config| {
        config.dataset = "my set".to_owned();
        config.table_name = "{db}_{schema}_{table}".to_owned();
    });
    world.epoch(vec![event(&schema("orders", 1, &[("id", Type::Int64)]), Op::Create, 1, &[Value::Int(1)])]);
    assert_eq!(world.rows("SELECT id FROM \"my set\".shop_public_orders_latest"), ["1"]);
}

/// A file `shop.duckdb` with a dataset `shop`: DuckDB called the database by its file's name and took every name in the
/// dataset for ambiguous, so that such a pipeline never started.
#[test]
fn a_dataset_called_like_its_file() {
    let mut world = World::with(Layout::Append, |config| {
        config.path.set_file_name("shop.duckdb");
        config.dataset = "shop".to_owned();
    });
    world.epoch(vec![event(&schema("orders", 1, &[("id", Type::Int64)]), Op::Create, 1, &[Value::Int(1)])]);
    assert_eq!(world.rows("SELECT id FROM shop.orders_latest"), ["1"]);
}

#[test]
fn another_layout_under_the_same_name_is_refused() {
    let mut world = World::new(Layout::Append);
    world.epoch(vec![event(&schema("orders", 1, &[("id", Type::Int64)]), Op::Create, 1, &[Value::Int(1)])]);
    let config = DuckConfig { layout: REPLICA, ..world.config.clone() };
    let error = DuckSink::open(config).err().unwrap();
    assert!(error.to_string().contains("layout append, but is now replica"), "{error}");
}
