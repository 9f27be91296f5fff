//! Tables of very many columns.

use serde_json::{Map, Value as Json, json};

use crate::bigquery::{Warehouse, append, change, written};
use crate::workplace::Workplace;

const PLACEHOLDER: &str = "__debezium_unavailable_value";

/// A row of 200 columns.
fn row(id: u64, value: impl Fn(usize) -> Json) -> Json {
    let mut row: Map<String, Json> = (0..200).map(|i| (format!("c{i}"), value(i))).collect();
    row.insert("id".to_owned(), json!(id));
    row.into()
}

/// The statement had a join for each column that ever came unchanged: with 200 of them it did not come to its end. What is known of
/// a column may be that it is NULL.
#[test]
fn two_hundred_columns_that_come_unchanged_are_merged_in_one_pass() {
    let warehouse = Warehouse::start();
    let sink = "layout: replica, delivery: merge, staging: { dataset: staged }";
    let place = Workplace::new(&warehouse.config(sink, ""));
    let id = json!({ "id": 1 });
    let unchanged = |_| json!(PLACEHOLDER);
    let first = |i: usize| if i == 0 { json!(null) } else { json!(PLACEHOLDER) };
    append(&place, &[change("c", 10, id.clone(), row(1, |i| json!(format!("v{i}"))))]);
    append(&place, &[change("u", 11, json!({ "id": 2 }), row(2, unchanged))]);
    written(&place);
    // Without its state the pipeline fills nothing in, and merges again all that is staged.
    for (lsn, values) in [(20, &first as &dyn Fn(usize) -> Json), (30, &unchanged)] {
        std::fs::remove_dir_all(place.path(".millstream")).unwrap();
        place.write("in.jsonl", change("u", lsn, id.clone(), row(1, values)));
        written(&place);
    }
    let rows = warehouse.query("SELECT id, c0, c1, c199 FROM d.t ORDER BY id");
    assert_eq!(rows, ["1|NULL|v1|v199", "2|NULL|NULL|NULL"]);
    let unchanged = "SELECT ARRAY_LENGTH(__unchanged) FROM staged.t__staging ORDER BY __order";
    assert_eq!(warehouse.query(unchanged), ["0", "200", "199", "200"]);
}

/// A replica with native upserts has 2,000 columns at most: one more ended the pipeline. Rows with a value for it are dead letters, and
/// everything else goes on.
#[test]
fn a_replica_has_no_more_columns_than_bigquery_takes() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: replica", ""));
    let row = |id: u64, count: usize, more: usize| {
        let mut row: Map<String, Json> = (0..count).map(|i| (format!("c{i}"), json!(i))).collect();
        row.extend((0..more).map(|i| (format!("m{i}"), json!(i))));
        row.insert("id".to_owned(), json!(id));
        change("u", 10 + id, json!({ "id": id }), row.into())
    };
    append(&place, &[row(1, 1990, 0)]);
    written(&place);
    append(&place, &[row(2, 10, 9), row(3, 11, 5)]);
    let ended = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(ended["counters"]["sinks"]["bigquery"]["rejected"], 1, "{ended}");
    assert_eq!(warehouse.query("SELECT id, c9, c10, m4 FROM d.t ORDER BY id"), ["1|9|10|NULL", "3|9|10|4"]);
    let letters = place.run(&["dead-letters", "list", "p.yaml"]).ok().out;
    assert!(letters.contains("too_many_columns"), "{letters}");
}
