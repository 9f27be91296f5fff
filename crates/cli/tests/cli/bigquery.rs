//! BigQuery as a sink, against the emulator in this process.

use std::time::Duration;

use millstream_bigquery_emulator::{Builder, Running, Server};
use serde_json::{Value as Json, json};

use crate::workplace::{Workplace, wait};

pub(crate) struct Warehouse {
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) server: Running,
    pub(crate) http: reqwest::Client,
}

impl Warehouse {
    pub(crate) fn start() -> Self {
        Self::of(Server::builder())
    }

    pub(crate) fn of(builder: Builder) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(builder.start()).unwrap();
        // Whoever was first is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { runtime, server, http: reqwest::Client::new() }
    }

    pub(crate) fn call(&self, path: &str, body: Option<&Json>) -> Json {
        let url = format!("http://{}/bigquery/v2/projects/p/{path}", self.server.rest());
        self.runtime.block_on(async {
            let request = match body {
                Some(body) => self.http.post(&url).json(body),
                None => self.http.get(&url),
            };
            request.send().await.unwrap().json().await.unwrap()
        })
    }

    /// The rows of a query, cells joined by `|`; the error's text if it fails.
    pub(crate) fn query(&self, sql: &str) -> Vec<String> {
        let answer = self.call("queries", Some(&json!({ "query": sql, "useLegacySql": false })));
        if let Some(error) = answer["error"]["message"].as_str() {
            return vec![error.to_owned()];
        }
        let cell = |cell: &Json| cell["v"].as_str().unwrap_or("NULL").to_owned();
        let row = |row: &Json| row["f"].as_array().unwrap().iter().map(cell).collect::<Vec<_>>().join("|");
        answer["rows"].as_array().into_iter().flatten().map(row).collect()
    }

    pub(crate) fn table(&self, name: &str) -> Json {
        self.call(&format!("datasets/d/tables/{name}"), None)
    }

    pub(crate) fn config(&self, sink: &str, more: &str) -> String {
        let (rest, grpc) = (self.server.rest(), self.server.grpc());
        format!(
            "source: {{ type: files, path: in.jsonl, lines: record {more} }}\ncheckpoint: {{ interval: 100ms }}\nrestart: {{ attempts: 0 }}\n\
             sinks:\n  - {{ type: bigquery, project: p, dataset: d, endpoints: {{ rest: \"http://{rest}\", grpc: \"http://{grpc}\" }}, {sink} }}\n"
        )
    }
}

/// A change at a log position, with these members as row and key.
pub(crate) fn change(op: &str, lsn: u64, key: Json, row: Json) -> String {
    let source = json!({ "connector": "postgresql", "ts_ms": 1_700_000_000_000u64, "db": "shop", "schema": "s", "table": "t", "lsn": lsn,
        "sequence": format!("[\"{lsn}\",\"{lsn}\"]") });
    let value =
        json!({ "before": null, "after": row, "source": source, "op": op, "ts_ms": 1_700_000_000_000u64 });
    let record =
        json!({ "topic": "x.s.t", "key": key.to_string(), "value": value.to_string(), "headers": [] });
    format!("{record}\n")
}

pub(crate) fn append(place: &Workplace, lines: &[String]) {
    let path = place.path("in.jsonl");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    place.write("in.jsonl", before + &lines.concat());
}

pub(crate) fn written(place: &Workplace) -> Json {
    place.run(&["run", "p.yaml", "--json"]).ok().json()["counters"]["sinks"]["bigquery"].clone()
}

#[test]
fn a_history_and_its_view_follow_the_source() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: append", ""));
    let id = |id: u64| json!({ "id": id });
    append(
        &place,
        &[
            change("c", 10, id(1), json!({ "id": 1, "v": "a" })),
            change("c", 11, id(2), json!({ "id": 2, "v": "b" })),
        ],
    );
    assert_eq!(written(&place)["written"], 2);
    append(
        &place,
        &[
            change("u", 12, id(1), json!({ "id": 1, "v": "a2", "new": 7 })),
            change("d", 13, id(2), json!(null)),
        ],
    );
    written(&place);
    assert_eq!(warehouse.query("SELECT id, v, new FROM d.t_latest"), ["1|a2|7"]);
    assert_eq!(
        warehouse.query("SELECT __op, id, new FROM d.t_raw ORDER BY __order"),
        ["c|1|NULL", "c|2|NULL", "u|1|7", "d|2|NULL"]
    );
    assert_eq!(warehouse.query("SELECT `table`, `column`, change FROM d._schema_changes"), ["t_raw|new|add"]);
    let table = warehouse.table("t_raw");
    assert_eq!(table["timePartitioning"]["field"], "__ingested_at");
    assert_eq!(table["clustering"]["fields"], json!(["id", "__op"]));
}

/// After a request with a new schema was refused, as a server did not know the columns yet, it was sent again without the schema: rows were
/// read by the one before and the new column was NULL, counted as written.
#[test]
fn columns_that_servers_learn_late_keep_their_values() {
    for sink in ["layout: replica", "layout: append, delivery: at-least-once", "layout: append"] {
        let warehouse = Warehouse::of(Server::builder().schema_delay(Duration::from_secs(2)));
        let place = Workplace::new(&warehouse.config(sink, ", follow: true, poll_interval: 20ms"));
        let table = if sink == "layout: replica" { "d.t" } else { "d.t_latest" };
        let count = |sql: &str| warehouse.query(sql).first().cloned().unwrap_or_default();
        append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1, "v": 1 }))]);
        let running = place
            .start(&["run", "p.yaml", "--json"], || count(&format!("SELECT COUNT(*) FROM {table}")) == "1");
        append(&place, &[change("u", 11, json!({ "id": 1 }), json!({ "id": 1, "v": 2, "late": 5 }))]);
        append(&place, &[change("c", 12, json!({ "id": 2 }), json!({ "id": 2, "v": 3, "late": 6 }))]);
        wait(|| count(&format!("SELECT COUNT(late) FROM {table}")) == "2");
        running.signal("TERM");
        running.end().ok();
        assert_eq!(
            warehouse.query(&format!("SELECT id, v, late FROM {table} ORDER BY 1")),
            ["1|2|5", "2|3|6"],
            "{sink}"
        );
    }
}

/// Streams were never finalized: one for each table and run, and one more for each change of columns, were left to the service.
#[test]
fn no_stream_is_left_open_by_a_run_that_ends() {
    for (sink, written_to, table) in [
        ("layout: append", "t_raw", "t_raw"),
        ("layout: changelog", "t_changelog", "t_changelog"),
        ("layout: envelope", "cdc_events", "cdc_events"),
        ("layout: replica, delivery: merge", "t__staging", "t"),
    ] {
        let warehouse = Warehouse::start();
        let place = Workplace::new(&warehouse.config(sink, ", follow: true, poll_interval: 20ms"));
        let open = || warehouse.server.open_streams();
        let id = |id: u64| json!({ "id": id });
        append(&place, &[change("c", 10, id(1), json!({ "id": 1, "v": 1 }))]);
        let mut running = place.start(&["run", "p.yaml", "--json"], || open().len() == 1);
        let first = open();
        append(&place, &[change("c", 11, id(2), json!({ "id": 2, "v": 3, "more": 5 }))]);
        if sink != "layout: envelope" {
            // A stream keeps the columns of its time: rows with another one go to a new stream.
            wait(|| open().len() == 1 && open() != first);
        }
        // Seen is what a checkpoint names; streams made since then are nobody's after a kill.
        wait(|| warehouse.query(&format!("SELECT COUNT(*) FROM d.{written_to}")) == ["2"]);
        running.signal("KILL");
        running.end();
        let killed = open();
        assert!(!killed.is_empty(), "{sink}");
        append(&place, &[change("c", 12, id(3), json!({ "id": 3, "v": 4, "more": 6 }))]);
        running = place.start(&["run", "p.yaml", "--json"], || !open().is_empty() && open() != killed);
        running.signal("TERM");
        running.end().ok();
        assert_eq!(open(), [""; 0], "{sink}");
        assert_eq!(warehouse.query(&format!("SELECT COUNT(*) FROM d.{table}")), ["3"], "{sink}");
        // What a drained run's checkpoint names is finalized, and needs no flush.
        place.run(&["run", "p.yaml", "--until-idle"]).ok();
        assert_eq!(
            (open(), warehouse.query(&format!("SELECT COUNT(*) FROM d.{table}"))),
            (vec![], vec!["3".to_owned()])
        );
    }
}

/// A key column of which only NULL was known was left out of the primary key, so that rows replaced each other.
#[test]
fn a_primary_key_is_declared_whole() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: replica", ""));
    let key = |b: Json| json!({ "a": 1, "b": b });
    append(&place, &[change("c", 10, key(json!(null)), json!({ "a": 1, "b": null, "v": 1 }))]);
    append(&place, &[change("c", 11, key(json!("x")), json!({ "a": 1, "b": "x", "v": 2 }))]);
    append(&place, &[change("c", 12, key(json!("y")), json!({ "a": 1, "b": "y", "v": 3 }))]);
    let counts = written(&place);
    assert_eq!((&counts["written"], &counts["rejected"]), (&json!(2), &json!(1)), "a key holds no NULL");
    assert_eq!(warehouse.table("t")["tableConstraints"]["primaryKey"]["columns"], json!(["a", "b"]));
    assert_eq!(warehouse.query("SELECT b, v FROM d.t ORDER BY 1"), ["x|2", "y|3"]);
    let letters = place.run(&["dead-letters", "list", "p.yaml"]).ok().out;
    assert!(letters.contains("null_in_key"), "{letters}");
}

/// Without its checkpoint a pipeline wrote its histories a second time, without a word.
#[test]
fn a_checkpoint_from_before_what_is_visible_is_refused() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: append", ""));
    append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1 }))]);
    written(&place);
    place.run(&["run", "p.yaml"]).ok();
    std::fs::remove_dir_all(place.path(".millstream")).unwrap();
    let refused = place.run(&["run", "p.yaml"]);
    assert!(refused.err.contains("written a second time"), "{}", refused.err);
    assert_eq!(warehouse.query("SELECT COUNT(*) FROM d.t_raw"), ["1"]);
}

/// A member of a struct cannot be altered: the first wider number ended the pipeline, after every start.
#[test]
fn numbers_in_structs_widen_into_members_of_their_own() {
    let warehouse = Warehouse::start();
    let config = warehouse.config("layout: changelog", "");
    let place = Workplace::new(&config);
    append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1, "v": 1 }))]);
    written(&place);
    append(&place, &[change("u", 11, json!({ "id": 1 }), json!({ "id": 1, "v": 1.5 }))]);
    assert_eq!(written(&place)["written"], 2);
    let rows = "SELECT after.v, after.v__float64 FROM d.t_changelog ORDER BY _metadata_order";
    assert_eq!(warehouse.query(rows), ["1|NULL", "NULL|1.5"]);
}

/// One table whose key is no primary key ended the run of all.
#[test]
fn a_table_that_cannot_be_a_replica_is_left_out() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: replica", ""));
    append(&place, &[change("c", 10, json!({ "id": 1.5 }), json!({ "id": 1.5 }))]);
    append(&place, &[change("c", 11, json!({ "id": 2.5 }), json!({ "id": 2.5 }))]);
    let ended = place.run(&["run", "p.yaml", "--json"]).ok();
    assert_eq!(ended.json()["counters"]["sinks"]["bigquery"]["filtered"], 2);
    assert!(ended.err.contains("is left out"), "{}", ended.err);
}

#[test]
fn tables_of_others_are_taken_on_or_left_alone() {
    let warehouse = Warehouse::start();
    let dataset = json!({ "datasetReference": { "projectId": "p", "datasetId": "d" } });
    warehouse.call("datasets", Some(&dataset));
    let theirs = "CREATE TABLE d.t (ID INT64 NOT NULL, extra STRING, PRIMARY KEY (ID) NOT ENFORCED)";
    warehouse.query(theirs);
    let place = Workplace::new(&warehouse.config("layout: replica", ""));
    append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1, "v": 2 }))]);
    assert_eq!(written(&place)["written"], 1);
    assert_eq!(warehouse.query("SELECT ID, extra, v FROM d.t"), ["1|NULL|2"]);
    let other = Workplace::new(&format!("pipeline: other\n{}", warehouse.config("layout: replica", "")));
    append(&other, &[change("c", 10, json!({ "id": 5 }), json!({ "id": 5, "v": 6 }))]);
    assert_eq!(written(&other)["written"], 1);
    assert_eq!(warehouse.query("SELECT id, v FROM d.s_t"), ["5|6"]);
}

#[test]
fn what_is_missing_or_elsewhere_is_told() {
    let warehouse = Warehouse::start();
    let dataset = json!({ "datasetReference": { "projectId": "p", "datasetId": "d" }, "location": "EU" });
    warehouse.call("datasets", Some(&dataset));
    let line = [change("c", 10, json!({ "id": 1 }), json!({ "id": 1 }))];
    for (sink, expected) in [
        ("layout: append, location: US", "is in EU"),
        ("layout: append, create: never", "there is no table p.d.t_raw"),
        ("layout: append, dataset2: x", "dataset2"),
        ("layout: append, delivery: upsert", "only for `layout: replica`"),
    ] {
        let place = Workplace::new(&warehouse.config(sink, ""));
        append(&place, &line);
        let ended = place.run(&["run", "p.yaml"]);
        assert!(ended.err.contains(expected), "{sink}: {}", ended.err);
    }
}

/// `check` said of every BigQuery sink that it was valid, wherever its dataset or the service was.
#[test]
fn check_looks_at_the_dataset() {
    let warehouse = Warehouse::start();
    let found = |config: &str| {
        let place = Workplace::new(config);
        append(&place, &[change("c", 10, json!({ "id": 1 }), json!({ "id": 1 }))]);
        let answer = place.run(&["check", "p.yaml", "--json"]).json();
        let codes =
            answer["findings"].as_array().unwrap().iter().map(|f| f["code"].as_str().unwrap().to_owned());
        codes.collect::<Vec<_>>()
    };
    assert!(found(&warehouse.config("layout: append", "")).contains(&"to_be_made".to_owned()));
    let never = warehouse.config("layout: append, create: never", "");
    assert!(found(&never).contains(&"missing_resource".to_owned()));
    let dataset = json!({ "datasetReference": { "projectId": "p", "datasetId": "d" }, "location": "EU" });
    warehouse.call("datasets", Some(&dataset));
    let elsewhere = warehouse.config("layout: append, location: US", "");
    assert!(found(&elsewhere).contains(&"wrong_location".to_owned()));
    assert!(!found(&never).contains(&"missing_resource".to_owned()));
    let nobody = never.replace(&warehouse.server.rest().to_string(), "127.0.0.1:9");
    assert!(found(&nobody).contains(&"not_reached".to_owned()));
}

/// A table that somebody made with a GEOGRAPHY column got the source's text in a second column beside it: texts are what the Storage Write
/// API takes for GEOGRAPHY. A text that is none is one row's trouble.
#[test]
fn texts_go_to_a_geography_column_that_is_there() {
    let warehouse = Warehouse::start();
    let reference = |id: &str| json!({ "projectId": "p", "datasetId": "d", "tableId": id });
    warehouse.call("datasets", Some(&json!({ "datasetReference": { "projectId": "p", "datasetId": "d" } })));
    let fields = json!([{ "name": "place", "type": "GEOGRAPHY" }, { "name": "id", "type": "INTEGER" }]);
    warehouse.call(
        "datasets/d/tables",
        Some(&json!({ "tableReference": reference("t_raw"), "schema": { "fields": fields } })),
    );
    let place = Workplace::new(&warehouse.config("layout: append", ""));
    let row = |lsn: u64, id: u64, text: Json| {
        change("c", lsn, json!({ "id": id }), json!({ "id": id, "place": text }))
    };
    append(
        &place,
        &[
            row(10, 1, json!("POINT(13.4 52.5)")),
            row(11, 2, json!(null)),
            row(12, 3, json!("")),
            row(13, 4, json!("{\"type\":\"Point\",\"coordinates\":[1,2]}")),
        ],
    );
    let counters = written(&place);
    assert_eq!((&counters["written"], &counters["rejected"]), (&json!(3), &json!(1)), "{counters}");
    assert_eq!(
        warehouse.query("SELECT id, place FROM d.t_raw ORDER BY id"),
        ["1|POINT(13.4 52.5)", "2|NULL", "4|{\"type\":\"Point\",\"coordinates\":[1,2]}"]
    );
    assert_eq!(warehouse.table("t_raw")["schema"]["fields"][0]["type"], "GEOGRAPHY");
    assert_eq!(warehouse.query("SELECT place FROM d.t_latest WHERE id = 1"), ["POINT(13.4 52.5)"]);
}

/// Labels of the config went to new tables only.
#[test]
fn labels_of_tables_follow_the_config() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: append, labels: { team: a }", ""));
    let row = |lsn: u64| change("c", lsn, json!({ "id": lsn }), json!({ "id": lsn }));
    append(&place, &[row(10)]);
    written(&place);
    warehouse.query("ALTER TABLE d.t_raw SET OPTIONS (labels = [('team', 'a'), ('theirs', 'x'), ('millstream_pipeline', 'p')])");
    place.write("p.yaml", warehouse.config("layout: append, labels: { team: b, cost: c }", ""));
    append(&place, &[row(11)]);
    written(&place);
    let labels = json!({ "team": "b", "cost": "c", "theirs": "x", "millstream_pipeline": "p", "millstream_sink": "bigquery" });
    assert_eq!(warehouse.table("t_raw")["labels"], labels);
}

/// With `create: never` nobody was told that there was no latest view.
#[test]
fn a_latest_view_that_is_not_the_pipelines_to_make_is_told() {
    let warehouse = Warehouse::start();
    let place = Workplace::new(&warehouse.config("layout: append", ""));
    let row = |lsn: u64| change("c", lsn, json!({ "id": lsn }), json!({ "id": lsn }));
    append(&place, &[row(10)]);
    written(&place);
    warehouse.query("DROP VIEW d.t_latest");
    place.write("p.yaml", warehouse.config("layout: append, create: never", ""));
    append(&place, &[row(11)]);
    let ended = place.run(&["run", "p.yaml"]).ok();
    assert!(
        ended.err.contains("there is no view p.d.t_latest, and the config says `create: never`"),
        "{}",
        ended.err
    );
    assert_eq!(warehouse.query("SELECT COUNT(*) FROM d.t_raw"), ["2"]);
}
