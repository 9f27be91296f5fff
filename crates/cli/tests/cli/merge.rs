//! A replica that is merged, against the emulator in this process.

use serde_json::{Value as Json, json};

use crate::bigquery::{Warehouse, append, change, written};
use crate::workplace::{Workplace, wait};

const MERGE: &str = "layout: replica, delivery: merge, staging: { dataset: staged }";

fn id(id: u64) -> Json {
    json!({ "id": id })
}

/// Rows 1 and 2.
fn a_and_b() -> [String; 2] {
    [
        change("c", 10, id(1), json!({ "id": 1, "v": "a" })),
        change("c", 11, id(2), json!({ "id": 2, "v": "b" })),
    ]
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

#[test]
fn staged_rows_expire_and_the_replica_has_no_staleness() {
    let warehouse = Warehouse::start();
    let place =
        Workplace::new(&warehouse.config("layout: replica, delivery: merge, staging: { keep: 3d }", ""));
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
    written(&place);
    let staging = warehouse.table("t__staging");
    assert_eq!(
        staging["timePartitioning"],
        json!({ "type": "DAY", "field": "__ingested_at", "expirationMs": (3 * 86_400_000).to_string() })
    );
    let replica = warehouse.table("t");
    assert!(replica.get("maxStaleness").is_none() && replica.get("tableConstraints").is_none(), "{replica}");
    assert_eq!(replica["clustering"]["fields"], json!(["id"]));
}

/// A key column of which no row had a value was no column at all: rows of such a key alone were staged and never merged.
#[test]
fn rows_whose_key_was_always_null_are_merged() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config(MERGE, ""));
    let null = || json!({ "id": null });
    append(&place, &[change("c", 10, null(), json!({ "id": null, "v": "a" }))]);
    written(&place);
    append(&place, &[change("u", 11, null(), json!({ "id": null, "v": "b" }))]);
    written(&place);
    let rows = "SELECT id, v FROM d.t ORDER BY v";
    assert_eq!(warehouse.query(rows), ["NULL|b"]);
    append(&place, &[change("c", 12, id(7), json!({ "id": 7, "v": "c" }))]);
    append(&place, &[change("u", 13, null(), json!({ "id": null, "v": "d" }))]);
    written(&place);
    assert_eq!(warehouse.query(rows), ["7|c", "NULL|d"]);
    append(&place, &[change("d", 14, null(), json!(null))]);
    written(&place);
    assert_eq!(warehouse.query(rows), ["7|c"]);
}

/// Nor did rows come through of such a key that came to be the table's later.
#[test]
fn a_new_key_may_be_always_null() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config(MERGE, ""));
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "k": null, "v": "a" }))]);
    written(&place);
    append(&place, &[change("u", 11, json!({ "k": null }), json!({ "id": 1, "k": null, "v": "b" }))]);
    written(&place);
    assert_eq!(warehouse.query("SELECT id, k, v FROM d.t"), ["1|NULL|b"]);
}

/// What is staged is seen though nothing more comes.
#[test]
fn an_idle_pipeline_merges() {
    let warehouse = Warehouse::start();
    let sink = "layout: replica, delivery: merge, apply: { interval: 1s }";
    let place = Workplace::new(&warehouse.config(sink, ", follow: true, poll_interval: 20ms"));
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
    let running = place
        .start(&["run", "p.yaml"], || warehouse.query("SELECT v FROM d.t").first() == Some(&"a".to_owned()));
    append(&place, &[change("u", 11, id(1), json!({ "id": 1, "v": "b" }))]);
    wait(|| warehouse.query("SELECT v FROM d.t") == ["b"]);
    running.signal("TERM");
    running.end().ok();
    // Only windows with rows were merged.
    let jobs = warehouse.call("jobs", None);
    let jobs =
        jobs["jobs"].as_array().unwrap().iter().map(|job| job["jobReference"]["jobId"].as_str().unwrap());
    assert_eq!(jobs.filter(|id| id.starts_with("millstream-merge-")).count(), 2);
}

/// A merge that failed while no row came was only logged: the run went on, and told nobody before the next epoch.
#[test]
fn a_merge_that_fails_ends_an_idle_run() {
    let warehouse = Warehouse::start();
    let sink = "layout: replica, delivery: merge, apply: { interval: 1s }";
    let place = Workplace::new(&warehouse.config(sink, ", follow: true, poll_interval: 20ms"));
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
    let running = place.start(&["run", "p.yaml"], || warehouse.query("SELECT v FROM d.t") == ["a"]);
    warehouse.server.set_faults("deny=projects/p/datasets/d/tables/t:PERMISSION_DENIED".parse().unwrap());
    append(&place, &[change("u", 11, id(1), json!({ "id": 1, "v": "b" }))]);
    let ended = running.end_by_itself();
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(
        ended.err.contains("the pipeline failed") && ended.err.contains("p.d.t: permission denied"),
        "{}",
        ended.err
    );
    warehouse.server.set_faults("".parse().unwrap());
    place.write("p.yaml", warehouse.config(sink, ""));
    written(&place);
    assert_eq!(warehouse.query("SELECT v FROM d.t"), ["b"]);
}

/// With its checkpoint a pipeline loses the order of rows that were deleted: a change of such a row that came again, older than the delete,
/// would have made it anew.
#[test]
fn a_delete_is_remembered_by_what_was_staged() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config(MERGE, ""));
    append(&place, &a_and_b());
    written(&place);
    append(&place, &[change("d", 20, id(1), json!(null))]);
    written(&place);
    std::fs::remove_dir_all(place.path(".millstream")).unwrap();
    place.write("in.jsonl", change("c", 30, id(3), json!({ "id": 3, "v": "c" })));
    written(&place);
    // Two windows later.
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
    append(&place, &[change("u", 9, id(2), json!({ "id": 2, "v": "old" }))]);
    written(&place);
    assert_eq!(warehouse.query("SELECT id, v FROM d.t ORDER BY id"), ["2|b", "3|c"]);
    append(&place, &[change("c", 31, id(1), json!({ "id": 1, "v": "again" }))]);
    written(&place);
    assert_eq!(warehouse.query("SELECT id, v FROM d.t ORDER BY id"), ["1|again", "2|b", "3|c"]);
}

/// A truncate deletes what is older, whether it was merged before or is staged beside it; what is newer stays.
#[test]
fn a_truncate_is_merged_in_its_order() {
    for (delete, expected) in
        [("hard", vec!["3|c|false"]), ("soft", vec!["1|a|true", "2|b|true", "3|c|false"])]
    {
        let warehouse = Warehouse::start();
        let place = Workplace::new(&format!(
            "shards: 1\n{}",
            warehouse.config(&format!("{MERGE}, delete: {delete}"), "")
        ));
        append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
        written(&place);
        append(
            &place,
            &[
                change("c", 11, id(2), json!({ "id": 2, "v": "b" })),
                change("t", 20, json!(null), json!(null)),
            ],
        );
        append(&place, &[change("c", 21, id(3), json!({ "id": 3, "v": "c" }))]);
        written(&place);
        let rows = "SELECT id, v, _metadata_deleted FROM d.t ORDER BY id";
        assert_eq!(warehouse.query(rows), expected);
        // Nothing older comes back.
        append(&place, &[change("u", 12, id(4), json!({ "id": 4, "v": "d" }))]);
        assert_eq!(written(&place)["superseded"], 1);
        assert_eq!(warehouse.query(rows), expected);
    }
}

/// Rows that a run with `delete: soft` had marked stayed for ever once the config said `delete: hard`. They go with the next merge of their
/// table, by one statement; later runs have nothing to look for.
#[test]
fn rows_marked_as_deleted_go_when_deletes_become_hard() {
    let warehouse = Warehouse::start();
    let config = |delete: &str| warehouse.config(&format!("{MERGE}, delete: {delete}"), "");
    let deletes = || {
        let jobs = warehouse.call("jobs", None);
        let sql = |job: &Json| job["configuration"]["query"]["query"].as_str().unwrap_or_default().to_owned();
        jobs["jobs"].as_array().unwrap().iter().map(sql).filter(|sql| sql.starts_with("DELETE")).count()
    };
    let rows = || warehouse.query("SELECT id, v, _metadata_deleted FROM d.t ORDER BY id");
    let place = Workplace::new(&config("soft"));
    append(&place, &a_and_b());
    written(&place);
    append(&place, &[change("d", 12, id(1), json!(null))]);
    written(&place);
    assert_eq!(rows(), ["1|a|true", "2|b|false"]);
    assert_eq!(deletes(), 0);
    place.write("p.yaml", config("hard"));
    append(&place, &[change("c", 13, id(3), json!({ "id": 3, "v": "c" }))]);
    let ended = place.run(&["run", "p.yaml", "--json"]).ok();
    assert_eq!(rows(), ["2|b|false", "3|c|false"]);
    assert!(ended.out.contains("kept as deleted were removed (×1)"), "{}", ended.out);
    // What is older than the delete stays away.
    append(&place, &[change("u", 11, id(1), json!({ "id": 1, "v": "old" }))]);
    append(&place, &[change("u", 14, id(3), json!({ "id": 3, "v": "c2" }))]);
    written(&place);
    assert_eq!(rows(), ["2|b|false", "3|c2|false"]);
    assert_eq!(deletes(), 1);
    // And back: marked again, and removed again.
    place.write("p.yaml", config("soft"));
    append(&place, &[change("d", 15, id(2), json!(null))]);
    written(&place);
    assert_eq!(rows(), ["2|b|true", "3|c2|false"]);
    place.write("p.yaml", config("hard"));
    append(&place, &[change("u", 16, id(3), json!({ "id": 3, "v": "c3" }))]);
    written(&place);
    assert_eq!((rows(), deletes()), (vec!["3|c3|false".to_owned()], 2));
}

/// A table of the source whose name was that of another one's staging ended the run: "no free name".
#[test]
fn a_table_may_be_called_like_a_staging() {
    let named =
        |name: &str, line: String| line.replace(r#"\"table\":\"t\""#, &format!(r#"\"table\":\"{name}\""#));
    for first in ["t__staging", "t"] {
        let warehouse = Warehouse::start();
        let place = Workplace::new(&warehouse.config("layout: replica, delivery: merge", ""));
        let second = if first == "t" { "t__staging" } else { "t" };
        for (lsn, name) in [(10, first), (20, second), (30, first), (40, second)] {
            let row = json!({ "id": 1, "v": format!("{name}{lsn}") });
            append(&place, &[named(name, change("u", lsn, id(1), row))]);
            written(&place);
        }
        let replica = if first == "t" { "s_t__staging" } else { "t__staging" };
        assert_eq!(warehouse.query("SELECT v FROM d.t"), [if first == "t" { "t30" } else { "t40" }]);
        let expected = if first == "t" { "t__staging40" } else { "t__staging30" };
        assert_eq!(warehouse.query(&format!("SELECT v FROM d.{replica}")), [expected], "{first} first");
    }
}

/// A view was made anew with the staging's new column, before the replica had it, and kept the columns of before until the run ended.
#[test]
fn views_follow_a_replica_that_is_merged() {
    let warehouse = Warehouse::start();
    let sink = "layout: replica, delivery: merge, apply: { interval: 1s }, views: [{ name: all_rows, sql: SELECT * FROM d.t }]";
    let place = Workplace::new(&warehouse.config(sink, ", follow: true, poll_interval: 20ms"));
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
    let first = |sql: &str| warehouse.query(sql).first().cloned().unwrap_or_default();
    let running = place.start(&["run", "p.yaml"], || first("SELECT v FROM d.t") == "a");
    append(&place, &[change("u", 11, id(1), json!({ "id": 1, "v": "b", "new": 7 }))]);
    wait(|| first("SELECT new FROM d.t") == "7");
    // With the next epoch.
    append(&place, &[change("u", 12, id(1), json!({ "id": 1, "v": "c", "new": 8 }))]);
    let has_new = || {
        let fields = warehouse.table("all_rows")["schema"]["fields"].clone();
        fields.as_array().is_some_and(|fields| fields.iter().any(|field| field["name"] == "new"))
    };
    wait(has_new);
    running.signal("TERM");
    running.end().ok();
}

/// One table is never written in both ways.
#[test]
fn a_replica_stays_with_its_way() {
    let warehouse = Warehouse::start();
    let upsert = warehouse.config("layout: replica", "");
    let merge = warehouse.config(MERGE, "");
    for (first, then, said) in [
        (&upsert, &merge, "is written by native upserts, and the config says `delivery: merge`"),
        (&merge, &upsert, "is merged (`delivery: merge`), and the config says `delivery: upsert`"),
    ] {
        warehouse.query("DROP TABLE IF EXISTS d.t");
        let place = Workplace::new(first);
        append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
        written(&place);
        place.write("p.yaml", then);
        append(&place, &[change("u", 11, id(1), json!({ "id": 1, "v": "b" }))]);
        let ended = place.run(&["run", "p.yaml"]);
        assert!(ended.code == 1 && ended.err.contains(said), "{}", ended.err);
    }
    warehouse.query("DROP TABLE d.t");
    warehouse.query("CREATE TABLE d.t (id INT64) OPTIONS (max_staleness = INTERVAL 5 MINUTE)");
    let place = Workplace::new(&merge);
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": "a" }))]);
    let ended = place.run(&["run", "p.yaml"]);
    assert!(ended.err.contains("as it has `max_staleness`"), "{}", ended.err);
}

/// The types of a table that is there are those in which its staging is made.
#[test]
fn a_table_of_others_is_merged_into() {
    let warehouse = Warehouse::start();
    warehouse.call("datasets", Some(&json!({ "datasetReference": { "projectId": "p", "datasetId": "d" } })));
    warehouse.query("CREATE TABLE d.t (ID INT64 NOT NULL, v STRING, theirs STRING)");
    warehouse.query("INSERT INTO d.t (ID, v, theirs) VALUES (1, 'x', 'y')");
    let place = Workplace::new(&warehouse.config(MERGE, ""));
    append(
        &place,
        &[
            change("u", 10, id(1), json!({ "id": 1, "v": 5 })),
            change("c", 11, id(2), json!({ "id": 2, "v": 6 })),
        ],
    );
    assert_eq!(written(&place)["written"], 2);
    assert_eq!(warehouse.query("SELECT ID, v, theirs FROM d.t ORDER BY 1"), ["1|5|y", "2|6|NULL"]);
    append(&place, &[change("u", 12, id(1), json!({ "id": 1, "v": 7, "theirs": 8 }))]);
    written(&place);
    assert_eq!(warehouse.query("SELECT ID, v, theirs FROM d.t ORDER BY 1"), ["1|7|8", "2|6|NULL"]);
}

/// A number that grows wider does so in both tables.
#[test]
fn both_tables_widen() {
    let warehouse = Warehouse::start();
    let schema = |v: Json| json!([{ "name": "id", "type": "INT64" }, v]).to_string();
    let tables = "tables: { s.t: { schema: t.schema.json } }\n";
    let place = Workplace::new(&format!("{tables}{}", warehouse.config(MERGE, "")));
    place.write("t.schema.json", schema(json!({ "name": "v", "type": "INT64" })));
    append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": 5 }))]);
    written(&place);
    place.write(
        "t.schema.json",
        schema(json!({ "name": "v", "type": "NUMERIC", "precision": "12", "scale": "2" })),
    );
    append(&place, &[change("u", 11, id(1), json!({ "id": 1, "v": 1.5 }))]);
    written(&place);
    assert_eq!(warehouse.query("SELECT v FROM d.t"), ["1.5"]);
    let changes = warehouse.query("SELECT `table`, `column`, change, `from`, `to` FROM d._schema_changes");
    assert_eq!(changes, ["t|v|widen|INT64|NUMERIC"]);
}

#[test]
fn what_makes_no_sense_is_told() {
    let warehouse = Warehouse::start();
    for (sink, expected) in [
        ("layout: append, delivery: merge", "`delivery: merge` is only for `layout: replica`"),
        ("layout: replica, apply: { interval: 5s }", "`apply` is only for `delivery: merge`"),
        ("layout: replica, delivery: merge, staging: { keep: 36h }", "`keep` is a number of whole days"),
        (
            "layout: replica, delivery: merge, staging: { delivery: upsert }",
            "no such delivery is for staging",
        ),
        ("layout: replica, delivery: merge, apply: { interval: 10ms }", "`interval` is at least 1s"),
        ("layout: replica, delivery: merge, freshness: 5m", "with `delivery: upsert`"),
        ("layout: append, name: x (files)", "a BigQuery sink is called `x (files)`"),
    ] {
        let place = Workplace::new(&warehouse.config(sink, ""));
        let ended = place.run(&["run", "p.yaml"]);
        assert!(ended.code == 2 && ended.err.contains(expected), "{sink}: {}", ended.err);
    }
}

/// After one of the two tables was dropped, a raised `incarnation` was said to help, or nothing was, and a start failed for ever. The error
/// says what helps, and it does.
#[test]
fn tables_that_were_dropped_end_the_run_with_what_to_do() {
    let warehouse = Warehouse::start();
    let sink = format!("{MERGE}, apply: {{ interval: 1h }}");
    let place = Workplace::new(&warehouse.config(&sink, ", follow: true, poll_interval: 20ms"));
    let staged = |count: &str| warehouse.query("SELECT COUNT(*) FROM staged.t__staging") == [count];
    for (lsn, table) in [(10, "d.t"), (11, "staged.t__staging")] {
        append(&place, &[change("u", lsn, id(1), json!({ "id": 1, "v": lsn }))]);
        let running = place.start(&["run", "p.yaml"], || staged("1"));
        running.signal("KILL");
        running.end();
        warehouse.query(&format!("DROP TABLE {table}"));
        let ended = place.run(&["run", "p.yaml"]);
        let said = format!("p.{table} is gone, with rows of the pipeline");
        assert!(ended.code == 1 && ended.err.contains(&said), "{}", ended.err);
        assert!(ended.err.contains("delete the checkpoint directory"), "{}", ended.err);
        std::fs::remove_dir_all(place.path(".millstream")).unwrap();
        let running = place.start(&["run", "p.yaml"], || staged(if table == "d.t" { "2" } else { "1" }));
        running.signal("TERM");
        running.end().ok();
        assert_eq!(warehouse.query("SELECT v FROM d.t"), [lsn.to_string()]);
        warehouse.query("DROP TABLE d.t");
        warehouse.query("DROP TABLE staged.t__staging");
        std::fs::remove_dir_all(place.path(".millstream")).unwrap();
    }
}

/// A token is written before what it names is merged, so that after a drained run, too, the next one merged again: with the replica dropped
/// for a new snapshot, as is said to be the way, that failed. What ran is known by its job.
#[test]
fn a_replica_may_be_dropped_after_a_drained_run() {
    let warehouse = Warehouse::start();
    let config = warehouse.config(MERGE, "");
    let place = Workplace::new(&config);
    for incarnation in 0..3 {
        place.write("p.yaml", format!("incarnation: {incarnation}\n{config}"));
        append(&place, &[change("r", 10 + incarnation, id(1), json!({ "id": 1, "v": incarnation }))]);
        written(&place);
        assert_eq!(warehouse.query("SELECT v FROM d.t"), [incarnation.to_string()]);
        warehouse.query("DROP TABLE d.t");
    }
}
