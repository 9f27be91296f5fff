//! Views that a config declares for dashboards, against the emulator in this process.

use serde_json::{Value as Json, json};

use crate::bigquery::{Warehouse, append, change, written};
use crate::workplace::Workplace;

const VIEWS: &str = "views: [
      { name: all_rows, sql: 'SELECT * FROM `{project}.{dataset}.t_latest`' },
      { name: kinds, kind: materialized-view, file: kinds.sql },
      { name: nightly, kind: scheduled-query, schedule: every 24 hours, sql: SELECT COUNT(*) AS n FROM d.t_latest } ]";

fn transfers(warehouse: &Warehouse) -> Vec<Json> {
    warehouse.call("locations/us/transferConfigs", None)["transferConfigs"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

#[test]
fn views_are_made_and_follow_columns() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config(&format!("layout: append, {VIEWS}"), ""));
    place.write("kinds.sql", "SELECT __op, COUNT(*) AS n FROM d.t_raw GROUP BY __op;\n");
    let id = |id: u64| json!({ "id": id });
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
    written(&place);
    assert_eq!(warehouse.query("SELECT * FROM d.all_rows"), ["1|a"]);
    assert_eq!(warehouse.query("SELECT * FROM d.kinds"), ["c|1"]);
    assert_eq!(warehouse.table("kinds")["type"], "MATERIALIZED_VIEW");
    let first = transfers(&warehouse);
    assert_eq!((first.len(), &first[0]["schedule"]), (1, &json!("every 24 hours")));
    assert_eq!(first[0]["params"]["destination_table_name_template"], "nightly");
    append(&place, &[change("u", 11, id(1), json!({ "id": 1, "v": "b", "w": 7 }))]);
    written(&place);
    assert_eq!(warehouse.query("SELECT * FROM d.all_rows"), ["1|b|7"]);
    // Another query takes the place of the one before.
    place.write("kinds.sql", "SELECT COUNT(*) AS n FROM d.t_raw");
    let config = std::fs::read_to_string(place.path("p.yaml")).unwrap();
    place.write("p.yaml", config.replace("every 24 hours", "every monday 09:00"));
    append(&place, &[change("u", 12, id(1), json!({ "id": 1, "v": "c", "w": 7 }))]);
    written(&place);
    assert_eq!(warehouse.query("SELECT * FROM d.kinds"), ["3"]);
    let then = transfers(&warehouse);
    assert_eq!((then.len(), &then[0]["schedule"]), (1, &json!("every monday 09:00")));
    assert_eq!(then[0]["name"], first[0]["name"]);
    let printed = place.run(&["views", "p.yaml"]).ok().out;
    assert!(
        printed.contains("-- all_rows, kept by sink bigquery\nSELECT * FROM `p.d.t_latest`"),
        "{printed}"
    );
}

/// A view that cannot be made stops nothing, and is made once its table is there.
#[test]
fn a_view_waits_for_its_table() {
    let warehouse = Warehouse::start();
    let views = "views: [{ name: later, sql: SELECT id FROM d.other_latest }]";
    let place = Workplace::new(&warehouse.config(&format!("layout: append, {views}"), ""));
    append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1 }))]);
    let ended = place.run(&["run", "p.yaml"]).ok();
    assert!(ended.err.contains("later is not as it should be"), "{}", ended.err);
    let other = change("c", 11, json!({ "id": 5 }), json!({ "id": 5 }))
        .replace(r#"\"table\":\"t\""#, r#"\"table\":\"other\""#);
    append(&place, &[other]);
    place.run(&["run", "p.yaml"]).ok();
    assert_eq!(warehouse.query("SELECT * FROM d.later"), ["5"]);
}

/// A scheduled query took any name, also that of a table of the pipeline, which it would have overwritten each night; and a view took the
/// place of a latest view.
#[test]
fn no_view_takes_the_place_of_what_the_pipeline_keeps() {
    let warehouse = Warehouse::start();
    let views = "views: [{ name: t_raw, kind: scheduled-query, schedule: every 24 hours, sql: SELECT 1 AS a }, \
                 { name: t_latest, sql: SELECT 1 AS a }]";
    let place = Workplace::new(&warehouse.config(&format!("layout: append, {views}"), ""));
    for lsn in [10, 11] {
        append(&place, &[change("u", lsn, json!({ "id": 1 }), json!({ "id": 1, "v": lsn }))]);
        let ended = place.run(&["run", "p.yaml"]).ok();
        assert!(ended.err.contains("p.d.t_raw is a table, and a view is to have this name"), "{}", ended.err);
        assert!(ended.err.contains("p.d.t_latest is a view of the pipeline"), "{}", ended.err);
        assert!(transfers(&warehouse).is_empty());
        assert_eq!(warehouse.query("SELECT v FROM d.t_latest"), [lsn.to_string()]);
    }
}

/// With `create: never` a view that is not there was left out without a word.
#[test]
fn a_view_that_may_not_be_made_is_told() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: append", ""));
    append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1 }))]);
    written(&place);
    place.write(
        "p.yaml",
        warehouse.config("layout: append, create: never, views: [{ name: v, sql: SELECT 1 AS a }]", ""),
    );
    append(&place, &[change("c", 11, json!({ "id": 2 }), json!({ "id": 2 }))]);
    let ended = place.run(&["run", "p.yaml"]).ok();
    assert!(
        ended.err.contains("there is no view p.d.v, and the config says `create: never`"),
        "{}",
        ended.err
    );
}

#[test]
fn what_makes_no_sense_is_told() {
    let warehouse = Warehouse::start();
    for (view, expected) in [
        ("{ name: v }", "its query in `sql` or in `file`"),
        ("{ name: v, file: nowhere.sql }", "cannot read this query"),
        ("{ name: v, kind: scheduled-query, sql: SELECT 1 }", "needs a `schedule`"),
        ("{ name: v, sql: SELECT 1, schedule: every day }", "only for `kind: scheduled-query`"),
        ("{ name: _millstream_epochs, sql: SELECT 1 }", "a table of Millstream's own"),
        ("{ name: v, sql: SELECT 1 }, { name: v, sql: SELECT 2 }", "two views are called `v`"),
    ] {
        let place = Workplace::new(&warehouse.config(&format!("views: [{view}]"), ""));
        let ended = place.run(&["run", "p.yaml"]);
        assert!(ended.code == 2 && ended.err.contains(expected), "{view}: {}", ended.err);
    }
}

/// A view was made by `CREATE VIEW … AS` and its SQL: a second statement in it ran as part of the script, whatever it did.
#[test]
fn a_view_is_one_query() {
    let warehouse = Warehouse::start();
    let views = "views: [{ name: two, sql: SELECT 1 AS a; DROP TABLE d.t_raw }, \
                 { name: kept, kind: materialized-view, sql: 'SELECT 2 AS a; TRUNCATE TABLE d.t_raw' }, { name: one, sql: 'SELECT \"a;b\" AS a;' }]";
    let place = Workplace::new(&warehouse.config(&format!("layout: append, {views}"), ""));
    append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1 }))]);
    let ended = place.run(&["run", "p.yaml"]).ok();
    assert!(ended.err.contains("the SQL of p.d.two is not one query (SCRIPT)"), "{}", ended.err);
    assert_eq!(warehouse.query("SELECT id FROM d.t_raw"), ["1"]);
    assert_eq!(warehouse.query("SELECT a FROM d.one"), ["a;b"]);
    for view in ["two", "kept"] {
        assert_eq!(warehouse.table(view)["error"]["code"], 404, "{view}");
    }
}
