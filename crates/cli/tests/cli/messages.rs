//! What people see. Look at a changed golden before accepting it.

use crate::workplace::{Workplace, corpus};

fn discard(events: &str) -> String {
    format!(
        "source: {{ type: files, path: {}, lines: record }}\nsinks: [{{ type: discard }}]\n",
        corpus(events).display()
    )
}

#[test]
fn help_names_every_command() {
    let place = Workplace::new("");
    let mut all = place.print(&["--help"]);
    let commands = [
        vec!["run"],
        vec!["check"],
        vec!["demo"],
        vec!["explain"],
        vec!["query"],
        vec!["views"],
        vec!["schema"],
        vec!["dead-letters"],
        vec!["dead-letters", "list"],
        vec!["dead-letters", "show"],
        vec!["dead-letters", "replay"],
        vec!["sweep"],
        vec!["savepoint"],
        vec!["status"],
        vec!["drain"],
    ];
    for command in commands {
        let words: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        all += &format!("\n$ millstream {}\n{}", words.join(" "), place.print(&words));
    }
    insta::assert_snapshot!("help", all);
}

#[test]
fn wrong_words_and_configs_end_with_2() {
    let place = Workplace::new("source: { type: files, path: x, lines: records }\nsinks: []\n");
    insta::assert_snapshot!("wrong_config", place.print(&["run", "p.yaml"]));
    insta::assert_snapshot!("no_config", place.print(&["check", "nowhere.yaml"]));
    assert_eq!(place.run(&["rum", "p.yaml"]).code, 2);
    assert_eq!(place.run(&[]).code, 2);
}

#[test]
fn check_says_what_would_be_lost() {
    for events in [
        "shop.plain.jsonl",
        "toast.plain.jsonl",
        "no_pk.schema.jsonl",
        "mysql.schema.jsonl",
        "names.schema.jsonl",
    ] {
        let config =
            discard(events).replace("{ type: discard }", "{ type: duckdb, path: o.duckdb, layout: replica }");
        let place = Workplace::new(&config);
        let name = format!("check_{}", events.split('.').next().unwrap());
        insta::assert_snapshot!(name, place.print(&["check", "p.yaml"]));
        assert!(
            !place.path("o.duckdb").exists() && !place.path(".millstream").exists(),
            "check leaves nothing behind"
        );
    }
}

#[test]
fn check_finds_what_would_stop_a_run() {
    let place = Workplace::new(
        "source: { type: files, path: nothing/*.jsonl }
checkpoint: { directory: p.yaml/state }
sinks: [{ type: duckdb, path: p.yaml/o.duckdb }]
",
    );
    insta::assert_snapshot!("check_errors", place.print(&["check", "p.yaml"]));
    let report = place.run(&["check", "p.yaml", "--json"]);
    assert_eq!(report.code, 2);
    assert_eq!(report.json()["findings"][0]["code"], "unreadable_source");
}

#[test]
fn records_that_would_be_dead_are_explained() {
    let place = Workplace::new(&discard("shop.plain.jsonl").replace("lines: record", "lines: value"));
    let shown = place.print(&["check", "p.yaml"]);
    let line = shown.lines().find(|line| line.starts_with("warning")).unwrap();
    assert!(line.contains("137 records would be dead letters (missing_field)"), "{shown}");
    assert!(shown.contains("`record` is for lines with topic, key, value and headers"), "{shown}");
}

#[test]
fn schema_is_json() {
    let schema = Workplace::new("").run(&["schema"]).ok().json();
    assert_eq!(schema["title"], "Millstream pipeline");
}

/// Without dedupe nothing tells which of two events of a key is newer: a replica went by arrival, and an old event that came
/// again brought a deleted row back.
#[test]
fn a_replica_without_dedupe_is_refused() {
    let place = Workplace::new(
        "source: { type: files, path: in.jsonl }\ndedupe: off\nsinks:\n  - { type: duckdb, path: o.duckdb, layout: replica }\n",
    );
    let ended = place.run(&["run", "p.yaml"]);
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains("`dedupe: off` keeps no order"), "{}", ended.err);
}
