//! A replica that is merged, against the emulator in this process.

use serde_json::{Value as Json, json};

use crate::bigquery::{Warehouse, append, change, written};
use crate::workplace::Workplace;

const MERGE: &str = "layout: replica, delivery: merge, staging: { dataset: staged }";

fn id(id: u64) -> Json {
    json!({ "id": id })
}

#[test]
fn rows_come_and_go_by_merges() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config(MERGE, ""));
    append(
        &place,
        &[
            change("c", 10, id(1), json!({ "id": 1, "v": "a" })),
            change("c", 11, id(2), json!({ "id": 2, "v": "b" })),
            change("u", 12, id(1), json!({ "id": 1, "v": "a2" })),
        ],
    );
    let counters = written(&place);
    assert_eq!((&counters["written"], &counters["superseded"]), (&json!(2), &json!(1)));
    assert_eq!(warehouse.query("SELECT id, v FROM d.t ORDER BY id"), ["1|a2", "2|b"]);
    // Of the rows of a key in one epoch, the newest.
    assert_eq!(warehouse.query("SELECT __op, id FROM staged.t__staging ORDER BY __order"), ["c|2", "u|1"]);
    append(
        &place,
        &[
            change("u", 13, id(1), json!({ "id": 1, "v": "a3", "new": 7 })),
            change("d", 14, id(2), json!(null)),
        ],
    );
    written(&place);
    assert_eq!(warehouse.query("SELECT id, v, new, _metadata_deleted FROM d.t"), ["1|a3|7|false"]);
    assert_eq!(warehouse.query("SELECT `table`, `column`, change FROM d._schema_changes"), ["t|new|add"]);
}
