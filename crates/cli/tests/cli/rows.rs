//! Plain messages as rows, against the emulator in this process.

use millstream_bigquery_emulator::Server;
use serde_json::{Value as Json, json};

use crate::bigquery::{Warehouse, append, written};
use crate::workplace::Workplace;

const COLUMNS: &str = "columns: { id: { type: INT64, mode: REQUIRED }, sym: STRING, at: { type: TIMESTAMP, unit: ms }, price: 'NUMERIC(12,2)', \
                       tags: { type: STRING, mode: REPEATED }, place: { type: RECORD, fields: { x: FLOAT64, y: FLOAT64 } }, doc: JSON }";

/// A pipeline of JSON lines into the table `t`.
fn config(warehouse: &Warehouse, sink: &str, table: &str) -> String {
    let config =
        warehouse.config(&format!("layout: rows, {sink}"), "").replace("lines: record", "lines: value");
    format!("{config}decode: {{ format: json }}\ntables: {{ t: {{ {table} }} }}\n")
}

fn with_dataset(warehouse: &Warehouse) {
    warehouse.call("datasets", Some(&json!({ "datasetReference": { "projectId": "p", "datasetId": "d" } })));
}

fn line(message: &Json) -> String {
    format!("{message}\n")
}

fn fields(warehouse: &Warehouse, table: &str) -> Vec<String> {
    let text =
        |field: &Json| format!("{} {} {}", field["name"], field["type"], field["mode"]).replace('"', "");
    warehouse.table(table)["schema"]["fields"].as_array().unwrap().iter().map(text).collect()
}

#[test]
fn a_table_is_made_as_it_is_declared_whatever_the_delivery() {
    let row = json!({ "id": 1, "sym": "ü", "at": 1_591_563_480_500u64, "price": "12.5", "tags": ["a", "b"], "place": { "y": 2.5 }, "doc": { "n": 1.10 } });
    for delivery in ["exactly-once", "at-least-once", "load"] {
        let warehouse = Warehouse::of(Server::builder().bucket("loads", "US"));
        let mut sink = format!("delivery: {delivery}");
        if delivery == "load" {
            sink += ", load: { bucket: loads, triggering_frequency: 15m }";
        }
        let design = format!("{COLUMNS}, partition_by: at, partition_unit: month, cluster_by: [sym, id]");
        let mut config = config(&warehouse, &format!("{sink}, partition_expiration: 90d"), &design);
        if delivery == "load" {
            let gcs = format!("\", gcs: \"http://{}\" }}, layout", warehouse.server.gcs());
            config = config.replacen("\" }, layout", &gcs, 1);
        }
        let place = Workplace::new(&config);
        append(
            &place,
            &[
                line(&row),
                line(&json!([{ "id": 2 }, { "id": 3, "price": -0.01 }])),
                line(&json!({ "sym": "no id" })),
            ],
        );
        assert_eq!(written(&place)["written"], 3, "{delivery}");
        let expected = [
            "id INTEGER REQUIRED",
            "sym STRING NULLABLE",
            "at TIMESTAMP NULLABLE",
            "price NUMERIC NULLABLE",
            "tags STRING REPEATED",
            "place RECORD NULLABLE",
            "doc JSON NULLABLE",
        ];
        assert_eq!(fields(&warehouse, "t"), expected, "{delivery}");
        let table = warehouse.table("t");
        assert_eq!(
            table["timePartitioning"],
            json!({ "type": "MONTH", "field": "at", "expirationMs": (90 * 86_400_000u64).to_string() })
        );
        assert_eq!(table["clustering"]["fields"], json!(["sym", "id"]));
        let sql = "SELECT id, sym, UNIX_MICROS(at), price, ARRAY_LENGTH(tags), place.y, TO_JSON_STRING(doc) FROM d.t ORDER BY id";
        assert_eq!(
            warehouse.query(sql),
            [
                "1|ü|1591563480500000|12.5|2|2.5|{\"n\":1.1}",
                "2|NULL|NULL|NULL|0|NULL|null",
                "3|NULL|NULL|-0.01|0|NULL|null"
            ],
            "{delivery}"
        );
        // A second run goes on where the first one ended.
        append(&place, &[line(&json!({ "id": 4 }))]);
        written(&place);
        assert_eq!(warehouse.query("SELECT COUNT(*) FROM d.t"), ["4"], "{delivery}");
    }
}

/// Every message that names a row's key again is a duplicate, wherever it comes from.
#[test]
fn a_row_with_a_key_comes_once() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&config(
        &warehouse,
        "delivery: exactly-once",
        "key: [id], columns: { id: STRING, v: INT64 }",
    ));
    let of = |id: &str, v: u64| line(&json!({ "id": id, "v": v }));
    append(&place, &[of("a", 1), of("b", 2), of("a", 3)]);
    let counts = written(&place);
    assert_eq!((&counts["written"], &counts["duplicates"]), (&json!(2), &json!(1)));
    append(&place, &[of("b", 4), of("c", 5)]);
    written(&place);
    assert_eq!(warehouse.query("SELECT id, v FROM d.t ORDER BY id"), ["a|1", "b|2", "c|5"]);
}

/// Without columns in the config those of the table count.
#[test]
fn a_table_that_is_there_tells_its_columns() {
    let warehouse = Warehouse::start();
    with_dataset(&warehouse);
    let place = Workplace::new(&config(&warehouse, "create: never", "key: [id]"));
    append(
        &place,
        &[
            line(&json!({ "id": 1, "day": "2026-05-01", "n": 1.25 })),
            line(&json!({ "id": 2, "day": "never" })),
            line(&json!({ "day": null })),
        ],
    );
    let missing = place.run(&["run", "p.yaml"]);
    assert!(
        missing.code == 1
            && missing.err.contains("the config declares no columns of t, and there is no such table"),
        "{}",
        missing.err
    );
    warehouse.query("CREATE TABLE d.t (id INT64 NOT NULL, day DATE, n NUMERIC, theirs STRING)");
    let before = fields(&warehouse, "t");
    let checked = place.run(&["check", "p.yaml", "--json"]).json();
    assert_eq!(
        (&checked["sample"]["events"], &checked["sample"]["dead"]["missing_field"]["records"]),
        (&json!(1), &json!(1)),
        "{checked}"
    );
    let summary = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(summary["counters"]["dead"], json!({ "invalid_value": 1, "missing_field": 1 }));
    assert_eq!(warehouse.query("SELECT * FROM d.t"), ["1|2026-05-01|1.25|NULL"]);
    assert_eq!(fields(&warehouse, "t"), before, "the table stays what it is");
}

#[test]
fn a_table_that_contradicts_what_is_declared_is_told_at_once() {
    let cases = [
        (
            "day DATE, id INT64",
            "column day of p.d.t is DATE, and STRING is declared for t: declare what the column is",
        ),
        (
            "must STRING NOT NULL, id INT64",
            "column must of p.d.t is REQUIRED, and the config does not declare it",
        ),
    ];
    for (columns, told) in cases {
        let warehouse = Warehouse::start();
        with_dataset(&warehouse);
        warehouse.query(&format!("CREATE TABLE d.t ({columns})"));
        let place = Workplace::new(&config(
            &warehouse,
            "delivery: exactly-once",
            "columns: { id: INT64, day: STRING }",
        ));
        append(&place, &[line(&json!({ "id": 1, "day": "x" }))]);
        let ended = place.run(&["run", "p.yaml"]);
        assert!(ended.code == 1 && ended.err.contains(told), "{}", ended.err);
        assert_eq!(warehouse.query("SELECT COUNT(*) FROM d.t"), ["0"]);
    }
    // What is declared beyond the table is added, and what need not have a value any more is NULLABLE.
    let warehouse = Warehouse::start();
    with_dataset(&warehouse);
    warehouse.query("CREATE TABLE d.t (id INT64 NOT NULL)");
    let place = Workplace::new(&config(
        &warehouse,
        "delivery: exactly-once",
        "columns: { id: INT64, new: { type: STRING, mode: REQUIRED } }",
    ));
    append(&place, &[line(&json!({ "new": "x" }))]);
    written(&place);
    assert_eq!(fields(&warehouse, "t"), ["id INTEGER NULLABLE", "new STRING NULLABLE"]);
    assert_eq!(warehouse.query("SELECT id, new FROM d.t"), ["NULL|x"]);
}

/// The letter of an element is that element: replayed, it brings no row of the others again.
#[test]
fn an_element_that_the_warehouse_refuses_is_replayed_alone() {
    let warehouse = Warehouse::start();
    with_dataset(&warehouse);
    let reference = json!({ "projectId": "p", "datasetId": "d", "tableId": "t" });
    let place_field = json!([{ "name": "id", "type": "INTEGER" }, { "name": "place", "type": "GEOGRAPHY" }]);
    warehouse.call(
        "datasets/d/tables",
        Some(&json!({ "tableReference": reference, "schema": { "fields": place_field } })),
    );
    let place = Workplace::new(&config(
        &warehouse,
        "delivery: exactly-once",
        "columns: { id: INT64, place: STRING }",
    ));
    let message = json!([{ "id": 1, "place": "POINT(1 2)" }, { "id": 2, "place": "" }, { "id": 3 }]);
    append(&place, &[line(&message)]);
    let counts = written(&place);
    assert_eq!((&counts["written"], &counts["rejected"]), (&json!(2), &json!(1)), "{counts}");
    let letter = place.run(&["dead-letters", "show", "p.yaml", "write-1", "--json"]).ok().json();
    assert_eq!(letter["value"], json!({ "id": 2, "place": "" }).to_string());
    place.run(&["dead-letters", "replay", "p.yaml", "write-1"]).ok();
    assert_eq!(
        warehouse.query("SELECT id FROM d.t ORDER BY id"),
        ["1", "3"],
        "it is refused again, and nothing else came"
    );
    let listed = place.run(&["dead-letters", "list", "p.yaml", "--json"]).ok().json();
    let told: Vec<_> = listed.as_array().unwrap().iter().map(|l| (&l["example"], &l["replayed"])).collect();
    assert_eq!(told, [(&json!("write-1"), &json!(1)), (&json!("write-2"), &json!(0))], "{listed}");
}

/// Beside the rows layout a history has the time of ingestion and the rest of what is known of a row.
#[test]
fn plain_rows_may_be_a_history() {
    let warehouse = Warehouse::start();
    let table = "key: [id], columns: { id: INT64, v: STRING }";
    let place = Workplace::new(
        &config(&warehouse, "name: plain", table).replace("layout: rows, name: plain", "layout: append"),
    );
    append(
        &place,
        &[
            line(&json!({ "id": 1, "v": "a" })),
            line(&json!({ "id": 1, "v": "b" })),
            line(&json!({ "id": 2 })),
        ],
    );
    written(&place);
    assert_eq!(
        warehouse.query("SELECT id, v, __op, __source_table, __ingested_at IS NULL FROM d.t_raw ORDER BY id"),
        ["1|a|c|t|false", "2|NULL|c|t|false"]
    );
    assert_eq!(warehouse.query("SELECT id, v FROM d.t_latest ORDER BY id"), ["1|a", "2|NULL"]);
}

/// A checkpoint from before rows that are there would write them a second time.
#[test]
fn a_run_without_the_checkpoint_of_its_rows_is_refused() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&config(&warehouse, "delivery: exactly-once", "columns: { id: INT64 }"));
    append(&place, &[line(&json!({ "id": 1 }))]);
    written(&place);
    std::fs::remove_dir_all(place.path(".millstream")).unwrap();
    let ended = place.run(&["run", "p.yaml"]);
    assert!(
        ended.code == 1 && ended.err.contains("there is no checkpoint, but rows in p.d"),
        "{}",
        ended.err
    );
    assert_eq!(warehouse.query("SELECT COUNT(*) FROM d.t"), ["1"]);
}

/// The shipped examples, beside a copy of nothing but the data that they name.
#[test]
fn the_examples_are_valid_and_the_one_of_rows_runs() {
    let place = Workplace::new("");
    let tree = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut configs = Vec::new();
    for file in std::fs::read_dir(tree.join("examples")).unwrap() {
        let file = file.unwrap();
        let name = format!("examples/{}", file.file_name().to_str().unwrap());
        place.write(&name, std::fs::read(file.path()).unwrap());
        configs.extend(name.ends_with(".yaml").then_some(name));
    }
    std::os::unix::fs::symlink(tree.join("corpus").canonicalize().unwrap(), place.path("corpus")).unwrap();
    std::fs::create_dir_all(place.path("target/examples/in")).unwrap();
    assert!(configs.len() >= 4, "{configs:?}");
    for config in &configs {
        place.run(&["check", config]).ok();
    }
    let summary = place.run(&["run", "examples/quotes.yaml", "--json"]).ok().json();
    let counters = &summary["counters"];
    assert_eq!(
        (&counters["dead"], &summary["residues"]),
        (&json!({ "wrong_type": 1 }), &json!([])),
        "{summary}"
    );
    let sql = "SELECT sym, \"time\", lowAskSize, vwap FROM stats ORDER BY ALL";
    let rows = place.run(&["query", "examples/quotes.yaml", "--csv", sql]).ok().out;
    let rows: Vec<_> = rows.lines().skip(1).collect();
    assert_eq!(rows, ["ALPHA,22:58,20,238.0331", "ALPHA,22:59,35,238.1", "BETA,22:58,110,12.5"]);
}
