//! Plain messages: a market's quotes of sixteen columns, thousands of them, single and in arrays, good and bad, over Pub/Sub into BigQuery
//! and DuckDB at once, with faults on all sides and the pipeline killed on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millstream_emulator::pubsub::{Faults, Server};
use serde_json::{Value as Json, json};

use crate::bigquery::{self, BUCKET, Emulator};
use crate::feeder::Random;
use crate::pipeline::Pipeline;
use crate::publisher::Publisher;
use crate::pubsub::{self, drain, until};

const PROJECT: &str = "rows";
const MESSAGES: usize = 4_000;
const KILLS: usize = 8;

/// The columns, of which the first three tell a row from all others.
const COLUMNS: [(&str, &str); 16] = [
    ("date", "STRING"),
    ("sym", "STRING"),
    ("time", "STRING"),
    ("lowAskSize", "INT64"),
    ("highAskSize", "INT64"),
    ("lowBidPrice", "FLOAT64"),
    ("highBidPrice", "FLOAT64"),
    ("lowBidSize", "INT64"),
    ("highBidSize", "INT64"),
    ("lowTradePrice", "FLOAT64"),
    ("highTradePrice", "FLOAT64"),
    ("lowTradeSize", "INT64"),
    ("highTradeSize", "INT64"),
    ("lowAskPrice", "FLOAT64"),
    ("highAskPrice", "FLOAT64"),
    ("vwap", "FLOAT64"),
];

/// Messages, the rows that they must become, and the bad ones.
#[derive(Default)]
struct Market {
    messages: Vec<String>,
    /// How often each row is there, as texts of its columns.
    rows: BTreeMap<Vec<String>, usize>,
    /// What must be kept as dead letters, by its text, with the cause.
    bad: BTreeMap<String, &'static str>,
}

/// A number as the warehouses' own are shown here.
fn shown(ty: &str, text: Option<&str>) -> String {
    match (ty, text) {
        (_, None) => "∅".to_owned(),
        ("FLOAT64", Some(text)) => format!("{:?}", text.parse::<f64>().unwrap()),
        (_, Some(text)) => text.to_owned(),
    }
}

impl Market {
    /// `repeats`: good messages are published again now and then, with other messages around them.
    fn of(random: &mut Random, repeats: bool) -> Self {
        let mut market = Self::default();
        let mut minute = 0;
        while market.messages.len() < MESSAGES {
            let several = random.below(4) == 0;
            let objects: Vec<_> = (0..if several { 1 + random.below(4) } else { 1 })
                .map(|_| {
                    minute += 1;
                    market.object(random, minute)
                })
                .collect();
            let text = if several { format!("[{}]", objects.join(" , ")) } else { objects[0].clone() };
            let text = match random.below(100) {
                0 => market.cut(&text, &objects),
                _ => text,
            };
            market.messages.push(text.clone());
            if repeats && random.below(5) == 0 {
                let at =
                    market.messages.len() - 1 - random.below(market.messages.len().min(300) as u64) as usize;
                let again = market.messages[at].clone();
                market.messages.push(again);
            }
        }
        market
    }

    /// An object, good or bad.
    fn object(&mut self, random: &mut Random, minute: u64) -> String {
        let mut members: Vec<(&str, String)> = Vec::new();
        let mut row = Vec::new();
        for (name, ty) in COLUMNS {
            let value = match (name, ty) {
                ("date", _) => json!(format!("2020-06-{:02}", 1 + minute / 1440 % 28)),
                ("sym", _) => json!(["DUMMY", "ÄÖ\"1", "X"][random.below(3) as usize]),
                ("time", _) => json!(format!("{:02}:{:02}#{minute}", minute / 60 % 24, minute % 60)),
                (_, "INT64") => json!(random.below(1_000)),
                _ => json!(random.below(100_000_000) as f64 / 100_000.0),
            };
            // A member that is not there, or null, is NULL.
            let optional = !["date", "sym", "time"].contains(&name);
            let value = if optional && random.below(12) == 0 { Json::Null } else { value };
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            row.push(shown(ty, (!value.is_null()).then_some(&*text)));
            match (value.is_null(), random.below(3)) {
                (true, 0) => {}
                // Numbers may come as texts.
                (false, 0) if ty == "INT64" => members.push((name, json!(text).to_string())),
                _ => members.push((name, value.to_string())),
            }
        }
        let cause = match random.below(40) {
            0 => {
                members.retain(|(name, _)| *name != "sym");
                Some("missing_field")
            }
            1 => {
                members.push(("volume", "1".to_owned()));
                Some("unknown_field")
            }
            2 => {
                members.retain(|(name, _)| *name != "vwap");
                members.push(("vwap", json!("much").to_string()));
                Some("wrong_type")
            }
            3 => {
                members.push(("time", members[0].1.clone()));
                Some("duplicate_field")
            }
            _ => None,
        };
        if random.below(5) == 0 {
            members.rotate_left(5);
        }
        let members: Vec<_> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let text = format!("{{{}}}", members.join(","));
        match cause {
            Some(cause) => drop(self.bad.insert(text.clone(), cause)),
            None => *self.rows.entry(row).or_default() += 1,
        }
        text
    }

    /// A message that breaks off, with none of its objects.
    fn cut(&mut self, text: &str, objects: &[String]) -> String {
        for object in objects {
            if self.bad.remove(object).is_none() {
                let good = self.rows.keys().find(|row| object.contains(&json!(row[2]).to_string())).cloned();
                self.rows.remove(&good.unwrap());
            }
        }
        let cut: String = text.chars().take(text.chars().count() - 3).collect();
        self.bad.insert(cut.clone(), "invalid_json");
        cut
    }
}

fn pipeline(address: &str, emulator: &Emulator, key: bool) -> Pipeline {
    let mut columns = serde_json::Map::new();
    for (name, ty) in COLUMNS {
        let column = if name == "sym" { json!({ "type": ty, "mode": "REQUIRED" }) } else { json!(ty) };
        columns.insert(name.to_owned(), column);
    }
    let mut table = json!({ "columns": columns, "cluster_by": ["sym"] });
    if key {
        table["key"] = json!(["date", "sym", "time"]);
    }
    let sink = |name: &str, more: Json| {
        let mut sink = json!({
            "type": "bigquery", "name": name, "project": PROJECT, "dataset": name, "layout": "rows",
            "endpoints": { "rest": format!("http://{}", emulator.server.rest()), "grpc": format!("http://{}", emulator.server.grpc()) },
        });
        sink.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        sink
    };
    let mut load = sink(
        "load",
        json!({ "delivery": "load", "load": { "bucket": BUCKET, "triggering_frequency": "300ms", "shards": 2 } }),
    );
    load["endpoints"]["gcs"] = format!("http://{}", emulator.server.gcs()).into();
    Pipeline::with(json!({
        "pipeline": "rows",
        "source": { "type": "pubsub", "project": "truth", "subscriptions": ["stats-sub"], "endpoint": format!("http://{address}"), "lease": "10s" },
        "decode": { "format": "json" },
        "tables": { "market.stats": table },
        "checkpoint": { "directory": "state", "interval": "50ms" },
        "restart": { "attempts": 0 },
        "sinks": [
            { "type": "duckdb", "path": "out.duckdb", "layout": "rows" },
            sink("once", json!({})),
            sink("twice", json!({ "delivery": "at-least-once" })),
            load,
        ],
        "shards": 2,
        "threads": 2,
    }))
}

/// How often a BigQuery table has each row.
fn held_by_bigquery(emulator: &Emulator, dataset: &str) -> BTreeMap<Vec<String>, usize> {
    let (fields, rows) = emulator.query(PROJECT, &format!("SELECT * FROM {dataset}.stats"));
    let names: Vec<_> = fields.iter().map(|field| field["name"].as_str().unwrap()).collect();
    assert_eq!(names, COLUMNS.map(|(name, _)| name), "the declared columns and nothing else");
    let mut held = BTreeMap::new();
    for row in rows {
        let cells = row["f"].as_array().unwrap().iter().zip(COLUMNS);
        let row = cells.map(|(cell, (_, ty))| shown(ty, cell["v"].as_str())).collect();
        *held.entry(row).or_default() += 1;
    }
    held
}

fn held_by_duckdb(pipeline: &Pipeline) -> BTreeMap<Vec<String>, usize> {
    let connection = pipeline.open();
    let mut names = connection.prepare("SELECT column_name FROM (DESCRIBE stats)").unwrap();
    let names: Vec<String> = names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(names, COLUMNS.map(|(name, _)| name));
    let columns = COLUMNS.map(|(name, _)| format!("\"{name}\"::VARCHAR")).join(", ");
    let mut rows = connection.prepare(&format!("SELECT {columns} FROM stats")).unwrap();
    let read = |row: &duckdb::Row<'_>| {
        let cell = |at: usize| row.get::<_, Option<String>>(at);
        (0..16).map(|at| cell(at).map(|text| shown(COLUMNS[at].1, text.as_deref()))).collect()
    };
    let mut held = BTreeMap::new();
    for row in rows.query_map([], read).unwrap() {
        *held.entry(row.unwrap()).or_default() += 1;
    }
    held
}

/// What is wrong with the rows that somebody has.
fn compare(what: &str, held: &BTreeMap<Vec<String>, usize>, rows: &BTreeMap<Vec<String>, usize>) {
    let differ = |a: &BTreeMap<Vec<String>, usize>, b: &BTreeMap<Vec<String>, usize>| {
        let rows = a.iter().filter(|(row, n)| b.get(*row) != Some(n)).take(3);
        rows.map(|(row, n)| format!("{n} × {row:?}")).collect::<Vec<_>>().join("\n")
    };
    assert!(
        held == rows,
        "{what} has {} rows of {}; there and not so:\n{}\nnot there:\n{}",
        held.values().sum::<usize>(),
        rows.values().sum::<usize>(),
        differ(held, rows),
        differ(rows, held)
    );
}

/// The dead letters' values and causes.
fn letters(pipeline: &Pipeline) -> BTreeSet<(String, String)> {
    let output = pipeline.execute(&["dead-letters", "list", "CONFIG", "--json"]);
    let groups: Vec<Json> = serde_json::from_slice(&output.stdout).unwrap();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for group in &groups {
        *counts.entry(group["stage"].as_str().unwrap()).or_default() += group["letters"].as_u64().unwrap();
    }
    let ids = counts.iter().flat_map(|(stage, n)| (1..=*n).map(move |number| format!("{stage}-{number}")));
    let ids: Vec<_> = ids.collect();
    let mut found = BTreeSet::new();
    for ids in ids.chunks(500) {
        let words =
            ["dead-letters", "show", "CONFIG", "--json"].into_iter().chain(ids.iter().map(String::as_str));
        let output = pipeline.execute(&words.collect::<Vec<_>>());
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let letter: Json = serde_json::from_str(line).unwrap();
            let text = |key: &str| letter[key].as_str().unwrap().to_owned();
            found.insert((text("value"), text("code")));
        }
    }
    found
}

fn through_kills_and_faults(key: bool) {
    let mut random = Random::new(if key { 77 } else { 78 });
    let market = Market::of(&mut random, key);
    let lines: Vec<_> =
        market.messages.iter().map(|text| json!({ "topic": "stats", "value": text }).to_string()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::builder().start()).unwrap();
    let publisher = Publisher::new(server.address().to_string());
    publisher.make("stats", false);
    let emulator = Emulator::start(bigquery::FAULTS.parse().unwrap());
    let mut pipeline = pipeline(&server.address().to_string(), &emulator, key);
    let faults = |on: bool| {
        // A publisher that repeats a request makes two messages of one. Without a key these are two rows.
        let text = format!("seed=5,{}", pubsub::FAULTS);
        server.set_faults(if on { text.parse().unwrap() } else { Faults::default() });
    };
    let mut pieces = lines.chunks(lines.len().div_ceil(KILLS + 1));
    for kill in 0..KILLS {
        pipeline.set("/shards", [1, 2, 7][kill % 3].into());
        let mut process = pipeline.start_for_summary();
        faults(key);
        publisher.publish(pieces.next().unwrap_or_default());
        faults(true);
        let began = std::time::Instant::now();
        while !pipeline.has_checkpoint() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(random.below(800)));
        until(&mut process, &pipeline, || true).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }
    faults(key);
    pieces.for_each(|piece| publisher.publish(piece));
    faults(true);
    let mut process = pipeline.start_for_summary();
    until(&mut process, &pipeline, || {
        runtime.block_on(server.advance(Duration::from_secs(1)));
        server.counts().backlog == 0
    })
    .unwrap();
    let summary = drain(process, &pipeline).unwrap();
    assert_eq!(summary.0["residues"], json!([]), "{}", summary.0);

    compare("DuckDB", &held_by_duckdb(&pipeline), &market.rows);
    compare("BigQuery, exactly once", &held_by_bigquery(&emulator, "once"), &market.rows);
    compare("BigQuery, loaded", &held_by_bigquery(&emulator, "load"), &market.rows);
    let twice = held_by_bigquery(&emulator, "twice");
    assert!(twice.keys().eq(market.rows.keys()), "at least once: every row, and no other");
    let bad = market.bad.iter().map(|(text, cause)| (text.clone(), (*cause).to_owned())).collect();
    let found = letters(&pipeline);
    assert!(found == bad, "{:?}", found.symmetric_difference(&bad).take(5).collect::<Vec<_>>());
    assert!(emulator.server.objects(BUCKET).is_empty(), "files are left after a drain");
    println!(
        "{} messages, {} rows, {} bad; {} rows more at least once; {} faults of BigQuery",
        market.messages.len(),
        market.rows.values().sum::<usize>(),
        market.bad.len(),
        twice.values().sum::<usize>() - market.rows.values().sum::<usize>(),
        emulator.server.faults_hit()
    );
}

/// Messages are delivered again, in other orders, and published again: a row is told by its key.
#[test]
fn rows_with_a_key_killed_with_faults() {
    through_kills_and_faults(true);
}

/// Messages are delivered again: a row is told by its message, and its place in it.
#[test]
fn rows_without_a_key_killed_with_faults() {
    through_kills_and_faults(false);
}
