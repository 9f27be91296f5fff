//! After a new snapshot, the rows go that it did not write again.

use crate::workplace::{Workplace, wait};

fn config(incarnation: u16, more: &str) -> String {
    format!(
        "pipeline: p
source: {{ type: files, path: in/*.jsonl, poll_interval: 50ms, discovery_interval: 50ms{more} }}
tables: {{ public.t: {{ key: [id] }} }}
checkpoint: {{ directory: state, interval: 100ms }}
incarnation: {incarnation}
sinks:
  - {{ type: duckdb, name: history, path: h.duckdb }}
  - {{ type: duckdb, name: hard, path: hard.duckdb, layout: replica }}
  - {{ type: duckdb, name: soft, path: soft.duckdb, layout: replica, delete: soft }}
"
    )
}

/// A change of a table, or a snapshot's read where `op` is `r`.
fn event(table: &str, op: &str, lsn: u64, id: u64, v: &str) -> String {
    let (db, table) = table.split_once('.').unwrap();
    let is_read = op == "r";
    let sequence =
        if is_read { format!(r#"[null,\"{lsn}\"]"#) } else { format!(r#"[\"{}\",\"{lsn}\"]"#, lsn - 1) };
    let source = format!(
        r#"{{"connector":"postgresql","name":"s","ts_ms":{lsn},"snapshot":"{is_read}","db":"{db}","schema":"public","table":"{table}","sequence":"{sequence}","txId":{lsn},"lsn":{lsn}}}"#
    );
    let columns = r#"[{"field":"id","type":"int64"},{"field":"v","type":"string","optional":true}]"#;
    let image =
        |name: &str| format!(r#"{{"field":"{name}","type":"struct","optional":true,"fields":{columns}}}"#);
    format!(
        r#"{{"schema":{{"type":"struct","fields":[{},{}]}},"payload":{{"before":null,"after":{{"id":{id},"v":"{v}"}},"source":{source},"op":"{op}","ts_ms":{lsn}}}}}"#,
        image("before"),
        image("after")
    ) + "\n"
}

/// A pipeline that read rows 1 to 5 in incarnation 0.
fn before_the_loss() -> Workplace {
    let place = Workplace::new(&config(0, ""));
    let rows = (1..=5).map(|id| event("d.t", "c", 1000 * id, id, &format!("a{id}")));
    place.write("in/1.jsonl", rows.collect::<String>());
    place.run(&["run", "p.yaml"]).ok();
    place
}

/// The snapshot after it: rows 3 and 5 are gone, row 2 has changed, and positions began anew.
fn new_snapshot(place: &Workplace) {
    let rows = [(1, "a1"), (2, "b2"), (4, "a4")].map(|(id, v)| event("d.t", "r", 50, id, v));
    place.write("in/2.jsonl", rows.concat());
}

fn query(place: &Workplace, sink: &str, sql: &str) -> String {
    let rows = place.run(&["query", "p.yaml", "--sink", sink, "--csv", sql]).ok().out;
    rows.lines().skip(1).collect::<Vec<_>>().join(" ")
}

/// The rows that are there: in the latest view, in a replica that deletes, and in one that marks, with the mark.
fn rows(place: &Workplace) -> [String; 3] {
    [
        query(place, "history", "SELECT id, v FROM t_latest ORDER BY id"),
        query(place, "hard", "SELECT id, v FROM t ORDER BY id"),
        query(place, "soft", "SELECT id, v, _metadata_deleted FROM t ORDER BY id"),
    ]
}

/// How many rows of each operation the history holds.
fn history(place: &Workplace) -> String {
    query(place, "history", "SELECT __op, count(*) FROM t_raw GROUP BY ALL ORDER BY ALL")
}

const SWEPT: [&str; 3] =
    ["1,a1 2,b2 4,a4", "1,a1 2,b2 4,a4", "1,a1,false 2,b2,false 3,a3,true 4,a4,false 5,a5,true"];
const ROW_3_IS_BACK: [&str; 3] =
    ["1,a1 2,b2 3,c3 4,a4", "1,a1 2,b2 3,c3 4,a4", "1,a1,false 2,b2,false 3,c3,false 4,a4,false 5,a5,true"];

#[test]
fn a_sweep_deletes_what_the_new_snapshot_did_not_write() {
    let place = before_the_loss();
    place.write("p.yaml", config(1, ""));
    let early = place.run(&["sweep", "p.yaml", "public.t"]);
    assert_eq!(early.code, 1);
    assert!(early.err.contains("nothing was read with `incarnation: 1` yet"), "{}", early.err);
    new_snapshot(&place);
    place.run(&["run", "p.yaml"]).ok();
    assert_eq!(rows(&place)[1], "1,a1 2,b2 3,a3 4,a4 5,a5");

    let swept = place.run(&["sweep", "p.yaml", "public.t", "--json"]).ok().json();
    assert_eq!(swept["swept"], serde_json::json!(["public.t"]));
    assert_eq!((&swept["incarnation"], &swept["by_running_pipeline"]), (&1.into(), &false.into()));
    assert_eq!(swept["summary"]["records_in"], 1);
    assert_eq!(swept["summary"]["residues"], serde_json::json!([]));
    assert_eq!(rows(&place), SWEPT);
    assert_eq!(history(&place), "c,5 r,3 t,1");
    let explained = place.run(&["explain", "p.yaml", "public.t", "3"]).ok().out;
    for said in [
        "gone with the sweep of what was before incarnation 1\n",
        "replica t (sink hard): no row\n",
        "the table was swept of what was before incarnation 1\n",
    ] {
        assert!(explained.contains(said), "{said}{explained}");
    }

    let again = place.run(&["sweep", "p.yaml", "--all"]).ok().out;
    let said = "swept 1 table: rows that incarnation 1 did not write are deleted\n  public.t\n";
    assert!(again.starts_with(said), "{again}");
    assert_eq!((rows(&place), history(&place).as_str()), (SWEPT.map(str::to_owned), "c,5 r,3 t,1"));

    place.write("in/3.jsonl", event("d.t", "c", 60, 3, "c3"));
    place.run(&["run", "p.yaml"]).ok();
    assert_eq!(rows(&place), ROW_3_IS_BACK);
    assert_eq!(history(&place), "c,6 r,3 t,1");
}

#[test]
fn a_running_pipeline_sweeps_when_it_is_asked() {
    let place = before_the_loss();
    place.write("p.yaml", config(1, ", follow: true"));
    new_snapshot(&place);
    let status = || place.run(&["status", "p.yaml", "--json"]).json();
    let records = || status()["counters"]["records"].as_u64().unwrap_or(0);
    let running = place
        .start(&["run", "p.yaml", "--json"], || place.path("state/control.sock").exists() && records() == 8);

    let refused = |says: &str| {
        let refused = place.run(&["sweep", "p.yaml", "public.t"]);
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains(says), "{}", refused.err);
    };
    place.run(&["pause", "p.yaml"]).ok();
    wait(|| status()["phase"] == "paused");
    refused("p is paused and takes nothing in");
    place.run(&["resume", "p.yaml"]).ok();
    wait(|| status()["phase"] == "running");
    place.write("p.yaml", config(2, ", follow: true"));
    refused("the running pipeline has `incarnation: 1`, and the config says 2");
    place.write("p.yaml", config(1, ", follow: true"));
    let unknown = place.run(&["sweep", "p.yaml", "public.tt"]);
    assert!(unknown.err.contains("did you mean `public.t`?"), "{}", unknown.err);

    for _ in 0..2 {
        let swept = place.run(&["sweep", "p.yaml", "public.t", "--json"]).ok().json();
        assert_eq!(swept["by_running_pipeline"], true);
        // Without a wait: the answer says that it is done.
        assert_eq!(rows(&place), SWEPT);
        assert_eq!(history(&place), "c,5 r,3 t,1");
    }
    place.write("in/3.jsonl", event("d.t", "c", 60, 3, "c3"));
    wait(|| rows(&place) == ROW_3_IS_BACK);
    place.run(&["drain", "p.yaml"]).ok();
    let summary = running.end().ok().json();
    assert_eq!(summary["residues"], serde_json::json!([]));
    assert_eq!(summary["counters"]["records"], 11);
    assert_eq!(rows(&place), ROW_3_IS_BACK);
}

/// A sweep is forgotten with the process that was asked for it, so who asked must hear of it.
#[test]
fn a_sweep_that_was_lost_is_no_success() {
    let place = before_the_loss();
    let slow = config(1, ", follow: true").replace("interval: 100ms }", "interval: 5m }");
    place.write("p.yaml", &slow);
    new_snapshot(&place);
    let records_in = || place.run(&["status", "p.yaml", "--json"]).json()["records_in"].as_u64();
    let running = place
        .start(&["run", "p.yaml"], || place.path("state/control.sock").exists() && records_in() == Some(3));
    let asking = place.start(&["sweep", "p.yaml", "public.t"], || records_in() == Some(4));
    place.run(&["cancel", "p.yaml"]).ok();
    running.end();
    let lost = asking.end();
    assert_eq!(lost.code, 1, "{}", lost.out);
    assert!(lost.err.contains("ask again, a second sweep changes nothing"), "{}", lost.err);
    place.write("p.yaml", config(1, ""));
    place.run(&["run", "p.yaml"]).ok();
    assert_eq!(rows(&place)[1], "1,a1 2,b2 3,a3 4,a4 5,a5");
    place.run(&["sweep", "p.yaml", "public.t"]).ok();
    assert_eq!(rows(&place), SWEPT);
}

#[test]
fn what_cannot_be_swept_is_refused() {
    let config = "pipeline: p
source: { type: files, path: in.jsonl }
tables: { public.left: { exclude: true } }
checkpoint: { directory: state }
incarnation: 1
sinks: [{ type: discard }]
";
    let place = Workplace::new(&config.replace("exclude: true", ""));
    let refused = |words: &[&str], code: i32, says: &str| {
        let refused = place.run(&[&["sweep", "p.yaml"], words].concat());
        assert_eq!(refused.code, code, "{}", refused.err);
        assert!(refused.err.contains(says), "{}", refused.err);
    };
    refused(&["public.t"], 1, "p never started");
    let tables = ["d.t", "e.t", "d.u", "d.left"].map(|table| event(table, "c", 10, 1, "a"));
    place.write("in.jsonl", tables.concat());
    place.run(&["run", "p.yaml"]).ok();
    place.write("p.yaml", config);

    refused(&[], 2, "name the tables to sweep, as `schema.table`, or give --all");
    refused(&["public.u", "--all"], 2, "cannot be used with");
    refused(&["public.uu"], 1, "no table `public.uu` was ever seen; did you mean `public.u`?");
    refused(&["public.t"], 1, "`public.t` is a table of several databases: `d.public.t`, `e.public.t`");
    refused(&["public.left"], 1, "the config leaves public.left out");
    place.write("p.yaml", format!("{config}decode: {{ messages: public.u }}\n"));
    refused(&["public.u"], 1, "public.u holds logical messages: as its rows are not read again");
    place.write("p.yaml", config.replace("incarnation: 1\n", ""));
    refused(&["public.u"], 2, "no row is older than `incarnation: 0`: raise `incarnation`");
    place.write("p.yaml", format!("{config}dedupe: off\n"));
    refused(&["public.u"], 2, "with `dedupe: off` no state is kept");

    place.write("p.yaml", config);
    let swept = |word: &str| place.run(&["sweep", "p.yaml", word, "--json"]).ok().json()["swept"].clone();
    assert_eq!(swept("e.public.t"), serde_json::json!(["e.public.t"]));
    assert_eq!(swept("--all"), serde_json::json!(["d.public.t", "public.u", "e.public.t"]));
}
