//! Dead letters: kept whole, listed, shown, replayed once each.

use crate::workplace::{Workplace, corpus, wait};

/// Three good lines, then one of each kind of bad one.
fn input() -> Vec<u8> {
    let good = std::fs::read_to_string(corpus("shop.plain.jsonl")).unwrap();
    let mut lines: Vec<u8> =
        good.lines().take(3).flat_map(|line| [line, "\n"]).collect::<String>().into_bytes();
    lines.extend_from_slice(br#"{"topic":"t","key":null,"value":"{\"a\": 1"}"#);
    lines.extend_from_slice(b"\n");
    lines.extend_from_slice(
        br#"{"topic":"t","key":"{\"id\":1}","value":"{\"op\":\"c\"}","headers":[{"key":"h","value":"v"}]}"#,
    );
    lines.extend_from_slice(b"\n\xff\xfe\n");
    lines
}

const CONFIG: &str = "source: { type: files, path: in.jsonl, lines: record }\nsinks: [{ type: discard }]\n";

#[test]
fn letters_are_listed_shown_and_replayed_once() {
    let place = Workplace::new(CONFIG);
    place.write("in.jsonl", input());
    let summary = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(summary["counters"]["records"], 6);
    assert_eq!(summary["counters"]["dead"].as_object().unwrap().len(), 3);
    insta::assert_snapshot!("dead_letters_list", place.print(&["dead-letters", "list", "p.yaml"]));

    let shown = place.run(&["dead-letters", "show", "p.yaml", "validate-1", "--json"]).ok().json();
    assert_eq!(shown["code"], "missing_field");
    assert_eq!(shown["value"], r#"{"op":"c"}"#);
    assert_eq!(shown["key"], r#"{"id":1}"#);
    assert_eq!(shown["headers"][0]["name"], "h");
    let bytes = place.run(&["dead-letters", "show", "p.yaml", "--json"]).ok().out;
    assert!(bytes.contains(r#""value":{"base64":"//4="}"#), "{bytes}");
    assert_eq!(place.run(&["dead-letters", "show", "p.yaml", "parse-99"]).code, 1);
    assert_eq!(place.run(&["dead-letters", "show", "p.yaml", "parse"]).code, 2);

    let replayed =
        place.run(&["dead-letters", "replay", "p.yaml", "--cause", "missing_field", "--json"]).ok().json();
    assert_eq!((&replayed["replayed"], &replayed["failed_again"]), (&1.into(), &1.into()));
    assert_eq!(replayed["summary"]["counters"]["records"], 7, "a replayed letter is a record");
    let list = place.run(&["dead-letters", "list", "p.yaml", "--json"]).ok().json();
    let of = |partition: &str| {
        let groups = list.as_array().unwrap().iter();
        groups
            .filter(|g| g["code"] == "missing_field")
            .find(|g| g["partition"].as_str().unwrap().starts_with(partition))
            .unwrap()
            .clone()
    };
    assert_eq!(of(place.path("in.jsonl").canonicalize().unwrap().to_str().unwrap())["replayed"], 1);
    let again = of("dead-letters/validate");
    assert_eq!((&again["letters"], &again["replayed"]), (&1.into(), &0.into()));
    let second = place.run(&["dead-letters", "show", "p.yaml", "validate-2", "--json"]).ok().json();
    assert_eq!(second["attempt"], 2);

    let nothing = place.run(&["dead-letters", "replay", "p.yaml", "validate-1", "--json"]).ok().json();
    assert_eq!(nothing["replayed"], 0, "once");
    let unknown = place.run(&["dead-letters", "replay", "p.yaml", "validate-99"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("there is no letter validate-99"), "{}", unknown.err);
}

/// A letter that failed for want of a setting arrives when it is replayed under a better config, gated like any event.
#[test]
fn a_replay_under_a_better_config_arrives() {
    let strict = "source: { type: files, path: in.jsonl, lines: record }
tables: { public.customers: { key: [nowhere] } }
sinks: [{ type: discard }]
";
    let place = Workplace::new(strict);
    let good = std::fs::read_to_string(corpus("shop.plain.jsonl")).unwrap();
    let first = good.lines().find(|line| line.contains("public.customers")).unwrap();
    place.write("in.jsonl", format!("{first}\n"));
    let summary = place.run(&["run", "p.yaml", "--json"]).ok().json();
    assert_eq!(summary["counters"]["dead"]["missing_key"], 1, "{summary}");
    place.write("p.yaml", strict.replace("[nowhere]", "[customer_id]"));
    let replayed = place.run(&["dead-letters", "replay", "p.yaml", "--json"]).ok().json();
    assert_eq!(replayed["failed_again"], 0);
    assert_eq!(replayed["summary"]["counters"]["tables"]["public.customers"]["distinct"], 1);
}

/// A change of table `t`, whose column `v` is of the given type.
fn event(op: &str, lsn: u64, ty: &str, id: u64, v: &str) -> String {
    let source = format!(
        r#"{{"connector":"postgresql","name":"s","ts_ms":{lsn},"snapshot":"false","db":"d","schema":"public","table":"t","sequence":"[\"{}\",\"{lsn}\"]","txId":{lsn},"lsn":{lsn}}}"#,
        lsn - 1
    );
    let columns =
        format!(r#"[{{"field":"id","type":"int64"}},{{"field":"v","type":"{ty}","optional":true}}]"#);
    let image =
        |name: &str| format!(r#"{{"field":"{name}","type":"struct","optional":true,"fields":{columns}}}"#);
    format!(
        r#"{{"schema":{{"type":"struct","fields":[{},{}]}},"payload":{{"before":null,"after":{{"id":{id},"v":{v}}},"source":{source},"op":"{op}","ts_ms":{lsn}}}}}"#,
        image("before"),
        image("after")
    ) + "\n"
}

/// A row that one sink refused could not be replayed, as its event was known: nobody could mend a table and then have the
/// row. It comes again for the sink that refused it, and only for that one.
#[test]
fn a_row_that_a_sink_refused_comes_again_for_that_sink() {
    let config = |policy: &str| {
        format!(
            "source: {{ type: files, path: in.jsonl }}
tables: {{ public.t: {{ key: [id] }} }}
sinks:
  - {{ type: duckdb, name: history, path: h.duckdb, on_type_change: {policy} }}
  - {{ type: duckdb, name: replica, path: r.duckdb, layout: replica, on_type_change: {policy} }}
  - {{ type: duckdb, name: all, path: all.duckdb }}
"
        )
    };
    let place = Workplace::new(&config("dead-letter"));
    let lines = [
        event("c", 10, "int64", 1, "1"),
        event("c", 20, "int64", 2, "1"),
        event("u", 30, "string", 1, r#""one""#),
        event("u", 40, "string", 2, r#""two""#),
        event("u", 50, "int64", 2, "3"),
    ];
    place.write("in.jsonl", lines.concat());
    let summary = place.run(&["run", "p.yaml", "--json"]).ok().json();
    let refused = |sink: &str| summary["counters"]["sinks"][sink]["rejected"].as_u64().unwrap();
    assert_eq!((refused("history"), refused("replica"), refused("all")), (2, 2, 0), "{summary}");
    let query = |file: &str, sql: &str| {
        let rows = place.run(&["query", "p.yaml", "--sink", file, "--csv", sql]).ok().out;
        rows.lines().skip(1).collect::<Vec<_>>().join(" ")
    };
    let history = "SELECT id, v::VARCHAR, v__string, __lsn FROM t_raw ORDER BY ALL";
    assert_eq!(query("replica", "SELECT id, v FROM t ORDER BY ALL"), "1,1 2,3");

    // Too early: each is refused once more, which was told as "0 failed again".
    let vain = place.run(&["dead-letters", "replay", "p.yaml", "--json"]).ok().json();
    assert_eq!(
        (&vain["replayed"], &vain["failed_again"]),
        (&4.into(), &3.into()),
        "one is superseded: {vain}"
    );

    place.write("p.yaml", config("new-column"));
    let replayed = place.run(&["dead-letters", "replay", "p.yaml", "--json"]).ok().json();
    assert_eq!((&replayed["replayed"], &replayed["failed_again"]), (&3.into(), &0.into()), "{replayed}");
    let all = query("all", history);
    assert_eq!(query("history", history), all, "each row once, also where it was written before");
    assert_eq!(all.matches("one").count(), 1, "{all}");
    let replica = "SELECT id, v::VARCHAR, v__string FROM t ORDER BY ALL";
    assert_eq!(query("replica", replica), "1,,one 2,3,", "what is older stays out");
    let nothing = place.run(&["dead-letters", "replay", "p.yaml", "--json"]).ok().json();
    assert_eq!(nothing["replayed"], 0);

    // A letter for a sink that is gone has nobody to take it.
    place.write("in2.jsonl", event("u", 60, "boolean", 2, "true"));
    let two = config("dead-letter").replace("path: in.jsonl", "path: in*.jsonl");
    place.write("p.yaml", &two);
    place.run(&["run", "p.yaml"]).ok();
    place.write("p.yaml", two.replace("name: history, path: h", "name: other, path: o"));
    let left = place.run(&["dead-letters", "replay", "p.yaml", "--json"]).ok();
    assert_eq!(left.json()["replayed"], 1, "the replica's: {}", left.out);
    assert!(left.err.contains("1 letter left out: the sink that refused the row"), "{}", left.err);
}

#[test]
fn a_running_pipeline_replays_when_it_is_asked() {
    let place =
        Workplace::new(&CONFIG.replace("lines: record", "lines: record, follow: true, poll_interval: 50ms"));
    place.write("in.jsonl", input());
    let letters = |place: &Workplace| place.run(&["dead-letters", "list", "p.yaml", "--json"]).json();
    let count = |list: &serde_json::Value, field: &str| -> u64 {
        list.as_array().unwrap().iter().map(|group| group[field].as_u64().unwrap()).sum()
    };
    let running = place.start(&["run", "p.yaml"], || {
        place.path(".millstream/p/control.sock").exists() && count(&letters(&place), "letters") == 3
    });
    let asked = place.run(&["dead-letters", "replay", "p.yaml", "parse-1", "--json"]).ok().json();
    assert_eq!(asked["by_running_pipeline"], true);
    wait(|| count(&letters(&place), "replayed") == 1);
    wait(|| count(&letters(&place), "letters") == 4);
    place.run(&["drain", "p.yaml"]).ok();
    running.end().ok();
}

/// Letters of a topic are replayed by the running pipeline, more than once, and without one; what fails again stays in the topic.
#[test]
fn letters_of_a_topic_are_replayed_as_often_as_one_asks() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(millstream_emulator::pubsub::Server::builder().start()).unwrap();
    let config = |key: &str| {
        format!(
            "pipeline: p\nsource: {{ type: files, path: in/*, follow: true, poll_interval: 50ms, discovery_interval: 50ms }}\n{key}\
             dead_letters: {{ type: pubsub, project: p, topic: dead, subscription: dead-sub, create: true, endpoint: \"http://{}\" }}\n\
             checkpoint: {{ directory: state, interval: 100ms }}\nsinks: [{{ type: discard }}]\n",
            server.address()
        )
    };
    let place = Workplace::new(&config(""));
    place.write("in/1.jsonl", "{\n");
    let dead = |pipeline: &Workplace| {
        let status = pipeline.run(&["status", "p.yaml", "--json"]);
        status.code == 0 && status.json()["counters"]["dead"]["invalid_json"].as_u64().is_some()
    };
    let dead_are = |n: u64| {
        let status = place.run(&["status", "p.yaml", "--json"]);
        status.code == 0 && status.json()["counters"]["dead"]["invalid_json"].as_u64() == Some(n)
    };
    let running = place.start(&["run", "p.yaml"], || place.path("state/control.sock").exists());
    wait(|| dead(&place));
    // Each replay fails again and publishes one more letter, which only the next one takes.
    for n in 2..4 {
        let said = place.run(&["dead-letters", "replay", "p.yaml"]).ok().out;
        assert!(said.contains("and those of the topic"), "{said}");
        wait(|| dead_are(n));
    }
    running.signal("INT");
    running.end().ok();
    let counts = server.counts();
    assert_eq!((counts.published, counts.acked, counts.backlog), (3, 2, 1), "{counts:?}");
    let replayed = place.run(&["dead-letters", "replay", "p.yaml", "--json"]).ok().json();
    assert_eq!(
        (replayed["replayed"].as_u64(), replayed["failed_again"].as_u64()),
        (Some(1), Some(1)),
        "{replayed}"
    );
    assert_eq!(server.counts().published, 4);
}
