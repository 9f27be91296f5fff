//! The rows layout: what is declared and nothing else, each row once.

use std::sync::Arc;

use millstream_core::{Judged, Op, Output, RowSchema, Type, Value};
use millstream_duckdb::{Layout, views};

use crate::world::{World, batch, event, now, schema};

fn quotes() -> Arc<RowSchema> {
    schema("quotes", 0, &[("sym", Type::Text), ("price", Type::Float64), ("__order", Type::Int64)])
}

fn quote(n: u64, sym: &str, price: f64) -> Judged {
    event(&quotes(), Op::Create, n, &[Value::Text(sym), Value::Float(price), Value::Int(n as i64)])
}

#[test]
fn rows_have_the_declared_columns_and_nothing_else() {
    let mut world = World::new(Layout::Rows);
    let mut again = quote(1, "a", 1.5);
    again.distinct = false;
    let sweep = event(&schema("quotes", 0, &[]), Op::Truncate, 9, &[]);
    world.begin();
    let report = world.write(vec![quote(1, "a", 1.5), quote(2, "b", 2.5), again, sweep]);
    assert_eq!((report.written, report.duplicates, report.filtered), (2, 1, 1));
    let token = world.prepare().unwrap();
    now(millstream_core::Sink::commit(&mut world.sink, &token)).unwrap();
    // A column that would collide with a mark is renamed, as in every layout.
    assert_eq!(
        world.rows("SELECT column_name || ' ' || column_type FROM (DESCRIBE quotes)"),
        ["sym VARCHAR", "price DOUBLE", "_x5f__order BIGINT"]
    );
    assert_eq!(
        world.rows("SELECT column_name || ' ' || column_type FROM (DESCRIBE quotes_rows)"),
        ["sym VARCHAR", "price DOUBLE", "_x5f__order BIGINT", "__ingested_at TIMESTAMP WITH TIME ZONE"]
    );
    assert_eq!(world.rows("SELECT * FROM quotes ORDER BY sym"), ["a|1.5|1", "b|2.5|2"]);
    let codes: Vec<_> = world.notices().iter().map(|n| n.code).collect();
    assert_eq!(codes, ["column_renamed"], "that it has no key is no news");
    let config = world.config.clone();
    drop(world.sink);
    let sql = "CREATE OR REPLACE VIEW \"main\".\"quotes\" AS\nSELECT \"sym\", \"price\", \"_x5f__order\"\nFROM \"main\".\"quotes_rows\";";
    assert_eq!(views(&config).unwrap(), [("quotes".to_owned(), sql.to_owned())]);
}

#[test]
fn rows_that_no_checkpoint_names_are_taken_back() {
    let mut world = World::new(Layout::Rows);
    let first = world.epoch(vec![quote(1, "a", 1.0)]);
    world.epoch(vec![quote(2, "b", 2.0)]);
    world.begin();
    world.write(vec![quote(3, "c", 3.0)]);
    let mut world = world.power_cut(Some(&first)).unwrap();
    assert_eq!(world.rows("SELECT sym FROM quotes"), ["a"]);
    let second = world.epoch(vec![quote(2, "b", 2.0), quote(3, "c", 3.0)]);
    let world = world.crash(Some(&second)).unwrap();
    assert_eq!(world.rows("SELECT sym FROM quotes ORDER BY 1"), ["a", "b", "c"]);
    let world = world.crash(None).unwrap();
    assert_eq!(world.rows("SELECT count(*) FROM quotes"), ["0"]);
}

/// What is declared may grow; what the table's column is not and cannot become ends the run, and is not a dead letter for each row.
#[test]
fn columns_follow_the_declaration() {
    let mut world = World::new(Layout::Rows);
    let of = |columns: &[(&str, Type)], values: &[Value<'_>]| {
        event(&schema("t", 0, columns), Op::Create, 1, values)
    };
    world.epoch(vec![of(&[("n", Type::Int64)], &[Value::Int(1)])]);
    let wider = [("n", Type::Decimal { precision: 12, scale: 2 }), ("new", Type::Date)];
    let decimal = Value::Decimal { unscaled: 250, scale: 2 };
    world.epoch(vec![of(&wider, &[decimal, Value::Date(0)])]);
    assert_eq!(world.rows("SELECT * FROM t ORDER BY n"), ["1.00|NULL", "2.50|1970-01-01"]);
    world.begin();
    let other = of(&[("n", Type::Text)], &[Value::Text("x")]);
    let error =
        now(millstream_core::Sink::write(&mut world.sink, &batch(vec![Output::Event(other)]))).unwrap_err();
    let expected = "column n of t_rows is DECIMAL(21,2), and VARCHAR is declared for public.t: declare what the column is";
    assert!(error.to_string().contains(expected), "{error}");
}

/// A table of the user's with that name is left alone.
#[test]
fn a_name_that_is_taken_is_not_written_to() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("w.duckdb");
    let theirs = duckdb::Connection::open(&path).unwrap();
    theirs.execute_batch("CREATE TABLE quotes (theirs INT)").unwrap();
    drop(theirs);
    let mut world = World::with(Layout::Rows, |config| config.path = path);
    world.epoch(vec![quote(1, "a", 1.0)]);
    assert_eq!(world.rows("SELECT sym FROM public_quotes"), ["a"]);
    assert!(world.notices().iter().any(|n| n.code == "table_renamed"));
}
