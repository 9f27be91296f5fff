//! Tables that were dropped while a pipeline had them.

use serde_json::json;

use crate::bigquery::{Warehouse, append, change, written};
use crate::workplace::Workplace;

const FOLLOW: &str = ", follow: true, poll_interval: 20ms";

fn row(op: &str, lsn: u64) -> String {
    change(op, lsn, json!({ "id": 1 }), json!({ "id": 1, "v": lsn }))
}

/// A table that was dropped between two runs was made anew without a word, and held the rows since then, as if there had been no others.
#[test]
fn a_table_that_was_dropped_is_not_made_anew_with_new_rows_only() {
    let newest = |table: &str| format!("SELECT v FROM {table}");
    for (sink, table) in [
        ("layout: append", "d.t_raw"),
        ("layout: append, delivery: at-least-once", "d.t_raw"),
        ("layout: changelog", "d.t_changelog"),
        ("layout: replica", "d.t"),
        ("layout: replica, delivery: merge", "d.t"),
    ] {
        let warehouse = Warehouse::start();
        let config = warehouse.config(sink, "");
        let place = Workplace::new(&config);
        append(&place, &[row("c", 10)]);
        written(&place);
        append(&place, &[row("u", 11)]);
        written(&place);
        warehouse.query(&format!("DROP TABLE {table}"));
        append(&place, &[row("u", 12)]);
        let ended = place.run(&["run", "p.yaml"]);
        let said = format!("p.{table} is gone: the pipeline wrote to it");
        assert!(ended.code == 1 && ended.err.contains(&said), "{sink}: {}", ended.err);
        let rows = |expected: &[&str]| match table {
            "d.t_changelog" => {
                assert_eq!(warehouse.query("SELECT after.v FROM d.t_changelog ORDER BY 1"), expected)
            }
            _ => assert_eq!(warehouse.query(&(newest(table) + " ORDER BY 1")), expected, "{sink}"),
        };
        // A new incarnation brings all rows again.
        place.write("snapshot.jsonl", row("r", 13));
        place.write("p.yaml", format!("incarnation: 1\n{config}").replace("in.jsonl", "snapshot.jsonl"));
        written(&place);
        rows(&["13"]);
        // And whoever wants new rows only can have them.
        warehouse.query(&format!("DROP TABLE {table}"));
        place.write("snapshot.jsonl", row("r", 13) + &row("u", 14));
        assert_eq!(place.run(&["run", "p.yaml"]).code, 1, "{sink}");
        warehouse.query("DELETE FROM d._millstream_tables WHERE TRUE");
        written(&place);
        rows(&["14"]);
    }
}

/// A table that the config calls otherwise by now is none that was dropped.
#[test]
fn another_name_is_not_a_table_that_is_gone() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: append", ""));
    append(&place, &[row("c", 10)]);
    written(&place);
    place.write("p.yaml", warehouse.config("layout: append, table_name: 'new_{table}'", ""));
    append(&place, &[row("u", 11)]);
    written(&place);
    assert_eq!(warehouse.query("SELECT v FROM d.t_raw"), ["10"]);
    assert_eq!(warehouse.query("SELECT v FROM d.new_t_raw"), ["11"]);
}

/// The staging was dropped while the pipeline ran: it waited for ten minutes for a stream of it, without a checkpoint and a word. With
/// everything merged nothing is lost, and a start makes it anew; else it says so.
#[test]
fn a_staging_that_is_dropped_ends_the_run() {
    for (interval, is_merged) in [("1s", true), ("1h", false)] {
        let warehouse = Warehouse::start();
        let sink = format!("layout: replica, delivery: merge, apply: {{ interval: {interval} }}");
        let place = Workplace::new(&warehouse.config(&sink, FOLLOW));
        let shown = if is_merged { "SELECT v FROM d.t" } else { "SELECT v FROM d.t__staging" };
        append(&place, &[row("c", 10)]);
        let running = place.start(&["run", "p.yaml"], || warehouse.query(shown) == ["10"]);
        warehouse.query("DROP TABLE d.t__staging");
        append(&place, &[row("u", 11)]);
        let ended = running.end_by_itself();
        let said = "p.d.t__staging is gone: it was dropped or renamed while the pipeline wrote to it";
        assert!(ended.code == 1 && ended.err.contains(said), "{}", ended.err);
        place.write("p.yaml", warehouse.config(&sink, ""));
        let ended = place.run(&["run", "p.yaml"]);
        if is_merged {
            ended.ok();
            assert_eq!(warehouse.query("SELECT v FROM d.t"), ["11"]);
        } else {
            let said = "p.d.t__staging is gone, with rows of the pipeline";
            assert!(ended.code == 1 && ended.err.contains(said), "{}", ended.err);
        }
    }
}

/// A DuckDB sink said no more than DuckDB: that a statement failed, as there was no such table.
#[test]
fn a_table_that_was_dropped_in_duckdb_is_told() {
    for (layout, table) in [("append", "t_raw"), ("replica", "t")] {
        let config = format!(
            "source: {{ type: files, path: in.jsonl, lines: record }}\nrestart: {{ attempts: 0 }}\n\
             sinks: [{{ type: duckdb, path: shop.duckdb, layout: {layout} }}]\n"
        );
        let place = Workplace::new(&config);
        let run = || place.run(&["run", "p.yaml"]);
        let sql = |sql: &str| {
            let file = duckdb::Connection::open(place.path("shop.duckdb")).unwrap();
            file.execute_batch(sql).unwrap();
        };
        append(&place, &[row("c", 10)]);
        run().ok();
        sql(&format!("DROP TABLE {table} CASCADE"));
        append(&place, &[row("u", 11)]);
        let ended = run();
        let said = format!("\"main\".\"{table}\" is gone: the pipeline wrote to it");
        assert!(ended.code == 1 && ended.err.contains(&said), "{}", ended.err);
        sql("DELETE FROM _millstream_tables; DELETE FROM _millstream_columns; DROP VIEW IF EXISTS t_latest");
        run().ok();
        let shown = place.run(&["query", "p.yaml", &format!("SELECT v FROM {table}"), "--csv"]).ok();
        assert_eq!(shown.out.lines().collect::<Vec<_>>(), ["v", "11"]);
    }
}
