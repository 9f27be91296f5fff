//! The layout of one table for all events, against the emulator in this process.

use serde_json::{Value as Json, json};

use crate::bigquery::{Warehouse, append, change, written};
use crate::workplace::Workplace;

#[test]
fn every_event_is_kept_as_it_came() {
    for delivery in ["exactly-once", "at-least-once"] {
        let warehouse = Warehouse::start();
        let place = Workplace::new(&warehouse.config(&format!("layout: envelope, delivery: {delivery}"), ""));
        let id = json!({ "id": 1 });
        let create = change("c", 10, id.clone(), json!({ "id": 1, "v": "a" }));
        append(&place, &[create.clone(), create.clone()]);
        append(
            &place,
            &[change("d", 12, id.clone(), json!(null)), change("t", 13, json!(null), json!(null))],
        );
        let counts = written(&place);
        assert_eq!((&counts["written"], &counts["duplicates"]), (&json!(3), &json!(1)));
        let rows = "SELECT `database`, `schema`, `table`, change_type, primary_keys, is_deleted, UNIX_MICROS(source_timestamp), `order` \
                    FROM d.cdc_events ORDER BY `order`";
        let order = |lsn: &str| format!("0000000000000000/000000000000000{lsn}/000000000000000{lsn}");
        let row = |rest: &str, lsn: &str| format!("shop|s|t|{rest}|1700000000000000|{}", order(lsn));
        assert_eq!(
            warehouse.query(rows),
            [
                row(r#"INSERT|{"id":1}|false"#, "A"),
                row(r#"DELETE|{"id":1}|true"#, "C"),
                row("TRUNCATE|NULL|false", "D")
            ]
        );
        let payload: Json = serde_json::from_str(
            &warehouse.query("SELECT payload FROM d.cdc_events ORDER BY `order` LIMIT 1")[0],
        )
        .unwrap();
        let record: Json = serde_json::from_str(&create).unwrap();
        let value: Json = serde_json::from_str(record["value"].as_str().unwrap()).unwrap();
        assert_eq!(payload, value);
        assert_eq!(warehouse.query("SELECT COUNT(DISTINCT uuid) FROM d.cdc_events"), ["3"]);
        assert_eq!(warehouse.table("cdc_events")["timePartitioning"]["field"], "read_timestamp");
        // A second run goes on where the first one ended.
        append(&place, &[change("c", 14, json!({ "id": 2 }), json!({ "id": 2, "v": "b" }))]);
        written(&place);
        assert_eq!(warehouse.query("SELECT COUNT(*) FROM d.cdc_events"), ["4"]);
    }
}

/// A table of others of that name is taken on if it has room for the events.
#[test]
fn a_table_that_is_there_is_taken_or_refused() {
    for (columns, expected) in
        [("uuid STRING, theirs INT64", None), ("uuid INT64", Some("column uuid is INT64"))]
    {
        let warehouse = Warehouse::start();
        warehouse
            .call("datasets", Some(&json!({ "datasetReference": { "projectId": "p", "datasetId": "d" } })));
        warehouse.query(&format!("CREATE TABLE d.cdc_events ({columns})"));
        let place = Workplace::new(&warehouse.config("layout: envelope", ""));
        append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1 }))]);
        let ended = place.run(&["run", "p.yaml"]);
        match expected {
            None => {
                assert_eq!(warehouse.query("SELECT change_type, theirs FROM d.cdc_events"), ["INSERT|NULL"])
            }
            Some(said) => assert!(ended.code == 1 && ended.err.contains(said), "{}", ended.err),
        }
    }
}
