//! Running, asking, ending.

use crate::workplace::{Workplace, corpus};

fn shop(follow: bool) -> Workplace {
    let place = Workplace::new(&format!(
        "source: {{ type: files, path: in.jsonl, lines: record, follow: {follow}, poll_interval: 50ms }}
checkpoint: {{ interval: 100ms }}
sinks:
  - {{ type: duckdb, name: history, path: o.duckdb, layout: append }}
  - {{ type: duckdb, name: replica, path: o.duckdb, layout: replica }}
"
    ));
    place.write("in.jsonl", std::fs::read(corpus("shop.plain.jsonl")).unwrap());
    place
}

fn records(place: &Workplace) -> u64 {
    place.run(&["status", "p.yaml", "--json"]).json()["counters"]["records"].as_u64().unwrap_or(0)
}

#[test]
fn a_run_accounts_for_everything_and_a_second_one_finds_nothing_new() {
    let place = shop(false);
    let first = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(first["counters"]["records"], 137);
    assert_eq!(first["counters"]["events"], 116);
    assert_eq!(first["residues"].as_array().unwrap().len(), 0);
    assert_eq!(first["counters"]["notices"], serde_json::json!({}), "there is nothing to warn of");
    let second = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(second["records_in"], 0);
    assert_eq!(second["counters"]["records"], 137);
    let csv =
        place.run(&["query", "p.yaml", "SELECT order_id, status FROM orders ORDER BY 1", "--csv"]).ok().out;
    assert_eq!(csv, "order_id,status\r\n1101,paid\r\n1103,new\r\n1104,new\r\n1105,new\r\n1106,new\r\n");
    let views = place.run(&["views", "p.yaml", "--json"]).ok().json();
    let names: Vec<_> = views.as_array().unwrap().iter().map(|v| v["view"].as_str().unwrap()).collect();
    assert_eq!(names, ["customers_latest", "orders_latest"]);
}

#[test]
fn logical_messages_are_rows_where_a_table_is_named() {
    let place = shop(false);
    let config = std::fs::read_to_string(place.path("p.yaml")).unwrap();
    place.write("p.yaml", format!("decode: {{ messages: public.messages }}\n{config}"));
    let summary = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(summary["counters"]["control"]["message"], serde_json::Value::Null);
    let rows = |table: &str| {
        let sql = format!("SELECT prefix, content::VARCHAR AS content FROM {table} ORDER BY lsn");
        place.run(&["query", "p.yaml", &sql, "--csv"]).ok().out
    };
    let expected = "prefix,content
audit,\"plain message, not in a transaction\"
audit,\"{\\x22by\\x22: \\x22tester\\x22, \\x22why\\x22: \\x22in a transaction\\x22}\"
audit,not transactional: seen although rolled back
bin,\\x00\\xFF\\x10
";
    assert_eq!(rows("messages_latest").replace('\r', ""), expected);
    assert_eq!(rows("messages_latest"), rows("messages"), "view and replica");
}

#[test]
fn a_key_is_explained() {
    let place = shop(false);
    place.run(&["run", "p.yaml"]).ok();
    let shown = place.print(&["explain", "p.yaml", "public.orders", "101"]);
    // When it was ingested is the only thing that differs from run to run.
    let shown: Vec<&str> = shown.lines().map(|line| line.split("  ingested").next().unwrap()).collect();
    insta::assert_snapshot!("explain", shown.join("\n"));
    let wrong = place.run(&["explain", "p.yaml", "public.order", "101"]);
    assert!(wrong.err.contains("did you mean `public.orders`?"), "{}", wrong.err);
}

#[test]
fn a_running_pipeline_answers_and_drains() {
    let place = shop(true);
    let running = place.start(&["run", "p.yaml", "--json"], || {
        place.path(".millstream/p/control.sock").exists() && records(&place) == 137
    });
    let count = |sql: &str| place.run(&["query", "p.yaml", sql, "--json"]).ok().json()[0]["n"].clone();
    assert_eq!(count("SELECT count(*) AS n FROM orders"), 5);
    // The file is open for writing beside the query: nothing may leave its read-only transaction.
    assert_eq!(place.run(&["query", "p.yaml", "DROP TABLE orders"]).code, 1);
    assert_eq!(place.run(&["query", "p.yaml", "COMMIT; DROP TABLE orders"]).code, 1);
    assert_eq!(count("SELECT count(*) AS n FROM orders"), 5);
    let explained = place.run(&["explain", "p.yaml", "public.orders", "1101", "--json"]).ok().json();
    assert_eq!(explained["state"]["known_ids"], 2);
    let second = place.run(&["run", "p.yaml"]);
    assert_eq!(second.code, 1);
    assert!(second.err.contains("runs already"), "{}", second.err);
    running.signal("TERM");
    let ended = running.end().ok();
    assert_eq!(ended.json()["phase"], "finished");
    assert!(!place.path(".millstream/p/control.sock").exists());
    assert_eq!(place.run(&["drain", "p.yaml"]).code, 1, "nothing runs any more");
}

#[test]
fn a_savepoint_starts_a_pipeline_anew() {
    let place = shop(false);
    place.run(&["run", "p.yaml"]).ok();
    let savepoint = place.run(&["savepoint", "p.yaml", "first", "--json"]).ok().json()["savepoint"].clone();
    let refused = place.run(&["run", "p.yaml", "--from", savepoint.as_str().unwrap()]);
    assert_eq!(refused.code, 1, "the checkpoint directory is not empty");
    std::fs::rename(place.path(".millstream/p/state"), place.path("state-before")).unwrap();
    let config = std::fs::read_to_string(place.path("p.yaml")).unwrap();
    place.write("p.yaml", config + "shards: 7\n");
    let summary = place.run(&["run", "p.yaml", "--json", "--from", savepoint.as_str().unwrap()]).ok().json();
    assert_eq!(summary["records_in"], 0, "it goes on where the savepoint was");
    assert_eq!(summary["counters"]["records"], 137);
}

#[test]
fn the_demo_shows_what_it_promises() {
    let place = Workplace::new("");
    let events = corpus("");
    let words = ["demo", "--files", "--directory", "demo", "--events", events.to_str().unwrap()];
    let shown = place.run(&words).ok().out;
    for promised in [
        "orders_latest      7,421",
        "customers          1,146",
        "public.orders: 17,246 events = 16,800 distinct + 446 duplicates",
        "dead letters: 2 invalid_frame",
        "every record and event is accounted for",
        "/demo/demo.duckdb",
    ] {
        assert!(shown.contains(promised), "{promised}\n{shown}");
    }
    place.run(&words).ok();
    place.write("mine/file", "");
    let mine = place.run(&["demo", "--directory", "mine", "--events", events.to_str().unwrap()]);
    assert_eq!(mine.code, 2, "a folder that no demo made is left alone");
    place.write("mine/demo.yaml", "pipeline: mine\n");
    let mine = place.run(&["demo", "--directory", "mine", "--events", events.to_str().unwrap()]);
    assert_eq!(mine.code, 2, "nor one with a config of that name");
    assert!(place.path("mine/file").exists());
}

#[test]
fn the_live_demo_ends_by_itself_and_balances() {
    let place = Workplace::new("");
    let events = corpus("");
    let words = [
        "demo",
        "--directory",
        "demo",
        "--seconds",
        "4",
        "--interval",
        "200ms",
        "--events",
        events.to_str().unwrap(),
    ];
    let shown = place.run(&words).ok().out;
    for promised in
        ["from published to visible: p50", "orders_latest", "every record and event is accounted for"]
    {
        assert!(shown.contains(promised), "{promised}\n{shown}");
    }
}

/// With `dedupe: off` a redelivered event stands twice in the history, and its row stood twice in the latest view too:
/// the sink was never told that its history repeats.
#[test]
fn without_dedupe_the_latest_view_still_has_each_row_once() {
    let place = Workplace::new(
        "source: { type: files, path: in.jsonl, lines: record }\ndedupe: off\n\
         sinks:\n  - { type: duckdb, path: out.duckdb, layout: append }\n",
    );
    let events = std::fs::read_to_string(corpus("shop.schema.jsonl")).unwrap();
    place.write("in.jsonl", events.repeat(2));
    place.run(&["run", "p.yaml", "--until-idle"]).ok();
    let count = |of: &str| {
        let sql = format!("SELECT count(*) AS n, count(DISTINCT order_id) AS keys FROM {of}");
        let rows = place.run(&["query", "p.yaml", &sql, "--json"]).ok().json();
        (rows[0]["n"].as_u64().unwrap(), rows[0]["keys"].as_u64().unwrap())
    };
    assert_eq!(count("orders_raw").0, 2 * 96);
    let (rows, keys) = count("orders_latest");
    assert!(keys > 0);
    assert_eq!(rows, keys);
}

/// Two pipelines with one file and one name of their sinks: the second one had no checkpoint, took the first one's rows for
/// rows of its own that no checkpoint names, and removed them.
#[test]
fn a_second_pipeline_does_not_take_the_tables_of_the_first() {
    let place = shop(false);
    place.run(&["run", "p.yaml"]).ok();
    place.write(
        "other.yaml",
        "source: { type: files, path: in.jsonl, lines: record }\nsinks:\n  - { type: duckdb, name: history, path: o.duckdb }\n",
    );
    let refused = place.run(&["run", "other.yaml"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("holds rows that pipeline p wrote"), "{}", refused.err);
    let rows = place.run(&["query", "p.yaml", "SELECT count(*) AS n FROM orders_raw", "--json"]).ok().json();
    assert_eq!(rows[0]["n"], 96);
    place.run(&["run", "p.yaml"]).ok();
}

/// A run that was cancelled by command ended with success.
#[test]
fn a_cancelled_run_says_so() {
    let place = shop(true);
    let running = place.start(&["run", "p.yaml"], || {
        place.path(".millstream/p/control.sock").exists() && records(&place) == 137
    });
    place.run(&["pause", "p.yaml"]).ok();
    place.run(&["cancel", "p.yaml"]).ok();
    let ended = running.end();
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("cancelled; the next run goes on from epoch"), "{}", ended.err);
}

/// An incarnation that was lowered again, or left out of a copy of the config, was taken as it was: all that came was older
/// than what was there, and was superseded without a word.
#[test]
fn a_lower_incarnation_is_refused() {
    let place = shop(false);
    let config = std::fs::read_to_string(place.path("p.yaml")).unwrap();
    place.write("p.yaml", format!("{config}incarnation: 2\n"));
    place.run(&["run", "p.yaml"]).ok();
    place.write("p.yaml", format!("{config}incarnation: 1\n"));
    let refused = place.run(&["run", "p.yaml"]);
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("the config says `incarnation: 1`"), "{}", refused.err);
    assert!(refused.err.contains("Set `incarnation: 2`"), "{}", refused.err);
    place.write("p.yaml", format!("{config}incarnation: 3\n"));
    place.run(&["run", "p.yaml"]).ok();
}

/// The watermark that is shown was the lowest of all files that were ever read: one old file held it back for good. When
/// everything is read nothing is outstanding, so it stands its delay behind the newest event; a run that finds nothing new
/// shows it where it was.
#[test]
fn an_old_file_does_not_hold_the_watermark_back() {
    let place = Workplace::new(
        "source: { type: files, path: '*.jsonl', lines: record }\nsinks: [{ type: discard }]\nthreads: 3\n",
    );
    for events in ["shop.plain.jsonl", "inflight.plain.jsonl", "toast.plain.jsonl"] {
        place.write(events, std::fs::read(corpus(events)).unwrap());
    }
    let first = place.run(&["run", "p.yaml", "--json"]).ok().json();
    let watermark = first["watermark_ms"].as_i64().unwrap();
    assert_eq!(watermark, first["newest_ms"].as_i64().unwrap() - 30_000);
    let second = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!((second["watermark_ms"].as_i64(), &second["checkpoints"]), (Some(watermark), &1.into()));
}

/// A run from a savepoint that failed at a sink left the restored state behind, and the next try was refused because of it.
#[test]
fn a_start_from_a_savepoint_that_failed_can_be_tried_again() {
    let place = shop(false);
    let config = std::fs::read_to_string(place.path("p.yaml")).unwrap();
    place.write("p.yaml", config + "restart: { attempts: 0 }\n");
    place.run(&["run", "p.yaml"]).ok();
    place.run(&["savepoint", "p.yaml", "first"]).ok();
    std::fs::remove_dir_all(place.path(".millstream/p/state")).unwrap();
    std::fs::rename(place.path("o.duckdb"), place.path("away.duckdb")).unwrap();
    place.write("o.duckdb", "no database".repeat(1000));
    for _ in 0..2 {
        let failed = place.run(&["run", "p.yaml", "--from", "first"]);
        assert_eq!(failed.code, 1);
        assert!(failed.err.contains("o.duckdb"), "{}", failed.err);
        assert!(!failed.err.contains("already holds"), "{}", failed.err);
    }
    std::fs::rename(place.path("away.duckdb"), place.path("o.duckdb")).unwrap();
    place.write("in.jsonl", std::fs::read_to_string(corpus("shop.plain.jsonl")).unwrap().repeat(2));
    let done = place.run(&["run", "p.yaml", "--json", "--from", "first"]).ok().json();
    assert_eq!((&done["records_in"], &done["counters"]["records"]), (&137.into(), &274.into()));
    let refused = place.run(&["run", "p.yaml", "--from", "first"]);
    assert_eq!(refused.code, 1, "checkpoints followed: nothing is thrown away");
}

/// A sink's default name told its place in the list, so that sinks which were listed in another order were other sinks: with new
/// tables, or refused for those that were there.
#[test]
fn sinks_may_be_listed_in_another_order() {
    let place = shop(false);
    place.run(&["run", "p.yaml"]).ok();
    let config = std::fs::read_to_string(place.path("p.yaml")).unwrap();
    let (head, sinks) = config.split_once("sinks:\n").unwrap();
    let mut sinks: Vec<&str> = sinks.lines().collect();
    sinks.reverse();
    place.write("p.yaml", format!("{head}sinks:\n  - {{ type: discard }}\n{}\n", sinks.join("\n")));
    let second = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(second["records_in"], 0);
    let named: Vec<_> = second["counters"]["sinks"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(named, ["discard", "history", "replica"]);
    place.write("p.yaml", config.replace("name: history, ", ""));
    let refused = place.run(&["run", "p.yaml"]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("several sinks of type `duckdb`"), "{}", refused.err);
    assert!(refused.err.contains("p.yaml:4:5"), "{}", refused.err);
}

/// What a file source noticed was logged by the source and once more by the engine.
#[test]
fn a_notice_is_logged_once() {
    let place = Workplace::new("source: { type: files, path: in.jsonl.gz }\nsinks: [{ type: discard }]\n");
    // The start of a gzip member, and nothing of it.
    place.write("in.jsonl.gz", [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b]);
    let ended = place.run(&["run", "p.yaml"]).ok();
    assert_eq!(ended.err.matches("the gzip data cannot be read behind byte 0").count(), 1, "{}", ended.err);
}

/// A change event of table `public.t` with its schema, whose key column is of this type.
fn typed(ty: &str, id: &str, op: &str, lsn: u32, v: &str) -> String {
    let row = format!(
        r#""type":"struct","optional":true,"name":"V","fields":[{{"field":"id","type":"{ty}"}},{{"field":"v","type":"string"}}]"#
    );
    let schema = format!(
        r#"{{"type":"struct","name":"E","fields":[{{"field":"before",{row}}},{{"field":"after",{row}}}]}}"#
    );
    let row = format!(r#"{{"id":{id},"v":"{v}"}}"#);
    let (before, after) = if op == "d" { (&*row, "null") } else { ("null", &*row) };
    let source = format!(
        r#"{{"connector":"postgresql","ts_ms":{lsn},"db":"d","schema":"public","table":"t","lsn":{lsn},"sequence":"[\"{lsn}\",\"{lsn}\"]"}}"#
    );
    format!(
        r#"{{"schema":{schema},"payload":{{"before":{before},"after":{after},"source":{source},"op":"{op}","ts_ms":{lsn}}}}}"#
    ) + "\n"
}

/// After a key column's type had changed, `explain` failed on the table: it asked for two columns of one name.
#[test]
fn a_key_that_became_text_is_one_row_everywhere() {
    let place = Workplace::new(
        "source: { type: files, path: in.jsonl }\ntables: { public.t: { key: [id] } }\nsinks:
  - { type: duckdb, name: history, path: o.duckdb }
  - { type: duckdb, name: replica, path: o.duckdb, layout: replica }
",
    );
    let events = [
        typed("int64", "1", "c", 10, "a"),
        typed("int64", "2", "c", 20, "b"),
        typed("int64", "3", "c", 30, "c"),
        typed("string", "\"1\"", "u", 40, "A"),
        typed("string", "\"2\"", "d", 50, ""),
        typed("string", "\"x\"", "c", 60, "d"),
    ];
    place.write("in.jsonl", events.concat());
    place.run(&["run", "p.yaml"]).ok();
    for from in ["t_latest", "t"] {
        let sql = format!("SELECT coalesce(id__string, id::VARCHAR) AS key, v FROM {from} ORDER BY 1");
        let rows = place.run(&["query", "p.yaml", &sql, "--csv"]).ok().out;
        assert_eq!(rows, "key,v\r\n1,A\r\n3,c\r\nx,d\r\n", "{from}");
    }
    let explained = place.run(&["explain", "p.yaml", "public.t", "1", "--json"]).ok().json();
    let events = explained["histories"][0]["events"].as_array().unwrap_or_else(|| panic!("{explained}"));
    assert_eq!(events.len(), 2, "{explained}");
    assert_eq!(events[1]["row"]["id__string"], "1", "{explained}");
}
