//! The same truth through BigQuery, emulated: what its queries answer is copied into a DuckDB database that is judged like the files of
//! the DuckDB sink.

use std::fmt::Write as _;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use duckdb::Connection;
use millstream_bigquery_emulator::{Faults, Running, Server};
use serde_json::{Value as Json, json};

use crate::cell::{Cell, literal, quote};
use crate::chaos::{on_two_threads, records};
use crate::comparison::{Difference, View};
use crate::corpus::{self, Variant};
use crate::envelope;
use crate::events::Events;
use crate::feeder::{self, Random};
use crate::pipeline::Pipeline;
use crate::publisher::{Publisher, topics};
use crate::pubsub;
use crate::residual::{Report, Residuals};
use crate::scenarios::{faults, judge_in};

/// The emulator that the tests share, each with a project of its own.
pub(crate) static EMULATOR: LazyLock<Emulator> = LazyLock::new(|| Emulator::start(Faults::default()));
/// A bucket that is there.
pub(crate) const BUCKET: &str = "loads";
static PROJECTS: AtomicUsize = AtomicUsize::new(0);

/// An emulator in this process.
pub(crate) struct Emulator {
    runtime: tokio::runtime::Runtime,
    pub(crate) server: Running,
    http: reqwest::Client,
}

impl Emulator {
    pub(crate) fn start(faults: Faults) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(Server::builder().faults(faults).bucket(BUCKET, "US").start()).unwrap();
        let http = runtime.block_on(async {
            // Whoever was first is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
            reqwest::Client::new()
        });
        Self { runtime, server, http }
    }

    pub(crate) fn call(&self, path: &str, body: Option<Json>) -> Json {
        let url = format!("http://{}/bigquery/v2/projects/{path}", self.server.rest());
        self.runtime.block_on(async {
            for _ in 0..50 {
                let request = match &body {
                    Some(body) => self.http.post(&url).json(body),
                    None => self.http.get(&url),
                };
                let response = request.send().await.unwrap();
                let (status, answer) = (response.status(), response.bytes().await.unwrap());
                if status.is_success() {
                    return serde_json::from_slice(&answer).unwrap();
                }
                let passes = status.is_server_error() || status.as_u16() == 429;
                assert!(passes, "{url}: {status} {}", String::from_utf8_lossy(&answer));
            }
            panic!("{url} fails again and again")
        })
    }

    /// All rows of a query.
    pub(crate) fn query(&self, project: &str, sql: &str) -> (Vec<Json>, Vec<Json>) {
        let options = json!({ "useInt64Timestamp": true });
        let body =
            json!({ "query": sql, "useLegacySql": false, "maxResults": 5000, "formatOptions": options });
        let mut page = self.call(&format!("{project}/queries"), Some(body));
        let fields = page["schema"]["fields"].as_array().cloned().unwrap_or_default();
        let mut rows = Vec::new();
        loop {
            assert_eq!(page["jobComplete"], true, "{sql}");
            rows.extend(page["rows"].as_array().cloned().unwrap_or_default());
            let Some(token) = page["pageToken"].as_str() else { return (fields, rows) };
            let job = page["jobReference"]["jobId"].as_str().unwrap();
            let path = format!(
                "{project}/queries/{job}?maxResults=5000&formatOptions.useInt64Timestamp=true&pageToken={token}"
            );
            page = self.call(&path, None);
        }
    }

    /// A config's sinks, one of each layout.
    fn sinks(&self, project: &str, replica: Replica) -> Json {
        let sink = |name: &str, more: Json| {
            let mut sink = json!({
                "type": "bigquery", "name": name, "project": project, "dataset": name,
                "endpoints": { "rest": format!("http://{}", self.server.rest()), "grpc": format!("http://{}", self.server.grpc()) },
            });
            sink.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            sink
        };
        let replica = |delete: &str| {
            let mut sink = json!({ "layout": "replica", "delete": delete });
            if let Replica::Merged { staging } = replica {
                sink["delivery"] = "merge".into();
                sink["staging"] = json!({ "dataset": format!("staged_{delete}"), "delivery": staging });
                sink["apply"] = json!({ "interval": "1s" });
            }
            sink
        };
        json!([
            sink("soft", replica("soft")),
            sink("hard", replica("hard")),
            sink("history", json!({ "layout": "append" })),
            sink("changelog", json!({ "layout": "changelog" })),
            sink("envelope", json!({ "layout": "envelope" })),
        ])
    }

    /// What a project's datasets hold.
    pub(crate) fn copy(&self, project: &str) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("SET TimeZone = 'UTC'").unwrap();
        for view in [View::Soft.name(), View::Hard.name(), View::Latest.name(), "changelog"] {
            let listed = self.call(&format!("{project}/datasets/{view}/tables?maxResults=10000"), None);
            let mut sql = format!(
                "CREATE SCHEMA {view};
                 CREATE TABLE {view}._millstream_tables (sink VARCHAR, db VARCHAR, \"schema\" VARCHAR, \"table\" VARCHAR, name VARCHAR, view VARCHAR);
                 CREATE TABLE {view}._millstream_columns (sink VARCHAR, name VARCHAR, position BIGINT, source VARCHAR, \"column\" VARCHAR);"
            );
            for table in listed["tables"].as_array().into_iter().flatten() {
                let name = table["tableReference"]["tableId"].as_str().unwrap();
                // The one that a DuckDB sink has is made here of the tables' descriptions.
                if name == "_millstream_tables" {
                    continue;
                }
                self.copy_table(project, view, name, &mut sql);
            }
            connection.execute_batch(&sql).unwrap();
        }
        connection
    }

    fn copy_table(&self, project: &str, dataset: &str, name: &str, sql: &mut String) {
        let encoded: String = name.bytes().map(|b| format!("%{b:02X}")).collect();
        let table = self.call(&format!("{project}/datasets/{dataset}/tables/{encoded}"), None);
        if let Some(note) = note(&table["description"]) {
            let text = |key: &str| literal(note[key].as_str().unwrap());
            let view = name.strip_suffix("_raw").map(|base| format!("{base}_latest")).unwrap_or_default();
            let _ = write!(
                sql,
                "INSERT INTO {dataset}._millstream_tables VALUES ('{dataset}', {}, {}, {}, {}, {});",
                text("db"),
                text("schema"),
                text("table"),
                literal(name),
                literal(&view)
            );
            for (position, field) in table["schema"]["fields"].as_array().into_iter().flatten().enumerate() {
                let column = field["name"].as_str().unwrap();
                let source = note_of(field)["source"].as_str().unwrap_or(column).to_owned();
                let _ = write!(
                    sql,
                    "INSERT INTO {dataset}._millstream_columns VALUES ('{dataset}', {}, {position}, {}, {});",
                    literal(name),
                    literal(&source),
                    literal(column)
                );
            }
        }
        let (fields, rows) = self.query(project, &format!("SELECT * FROM `{project}`.`{dataset}`.`{name}`"));
        let columns: Vec<String> = fields
            .iter()
            .map(|f| format!("{} {}", quote(f["name"].as_str().unwrap()), duckdb_type(f)))
            .collect();
        let is_view = table["type"] == "VIEW";
        let stored = if is_view { format!("__{name}") } else { name.to_owned() };
        let target = format!("{dataset}.{}", quote(&stored));
        let _ = write!(sql, "CREATE TABLE {target} ({});", columns.join(", "));
        for chunk in rows.chunks(200) {
            let row = |row: &Json| {
                let cells = row["f"].as_array().unwrap().iter().zip(&fields);
                let cells: Vec<_> = cells.map(|(cell, field)| value(&cell["v"], field)).collect();
                format!("({})", cells.join(", "))
            };
            let rows: Vec<_> = chunk.iter().map(row).collect();
            let _ = write!(sql, "INSERT INTO {target} VALUES {};", rows.join(", "));
        }
        // What no array holds, a NULL, stands beside it as the JSON text of the whole array.
        for field in fields.iter().filter(|f| f["mode"] == "REPEATED" && f["type"] != "BYTES") {
            let array = field["name"].as_str().unwrap();
            let beside = format!("{array}__string");
            if fields.iter().any(|f| f["name"] == *beside) {
                let (array, beside, ty) = (quote(array), quote(&beside), duckdb_type(field));
                let _ = write!(
                    sql,
                    "UPDATE {target} SET {array} = {beside}::JSON::{ty}, {beside} = NULL WHERE {array} IS NULL AND {beside} IS NOT NULL;"
                );
            }
        }
        if is_view {
            let _ = write!(sql, "CREATE VIEW {dataset}.{} AS SELECT * FROM {target};", quote(name));
        }
    }
}

/// The note in a description.
fn note(description: &Json) -> Option<Json> {
    let line = description.as_str()?.lines().last()?.strip_prefix("millstream: ")?;
    serde_json::from_str(line).ok()
}

/// The note of a column, whose type it may name.
fn note_of(field: &Json) -> Json {
    note(&field["description"]).unwrap_or(Json::Null)
}

fn duckdb_type(field: &Json) -> String {
    let fields = || {
        let fields = field["fields"].as_array().unwrap().iter();
        let member = |f: &Json| format!("{} {}", quote(f["name"].as_str().unwrap()), duckdb_type(f));
        format!("STRUCT({})", fields.map(member).collect::<Vec<_>>().join(", "))
    };
    let ty = match field["type"].as_str().unwrap() {
        "INTEGER" | "INT64" => "BIGINT".to_owned(),
        "FLOAT" | "FLOAT64" => "DOUBLE".to_owned(),
        "NUMERIC" => "DECIMAL(38,9)".to_owned(),
        "BIGNUMERIC" | "STRING" => "VARCHAR".to_owned(),
        "BOOLEAN" | "BOOL" => "BOOLEAN".to_owned(),
        "BYTES" => "BLOB".to_owned(),
        "DATETIME" => "TIMESTAMP".to_owned(),
        "TIMESTAMP" => "TIMESTAMPTZ".to_owned(),
        "RECORD" | "STRUCT" => fields(),
        same => same.to_owned(),
    };
    if field["mode"] == "REPEATED" { format!("{ty}[]") } else { ty }
}

fn value(cell: &Json, field: &Json) -> String {
    if field["mode"] == "REPEATED" {
        let elements = cell.as_array().cloned().unwrap_or_default();
        let mut element = field.clone();
        element["mode"] = "NULLABLE".into();
        let elements: Vec<_> = elements.iter().map(|e| value(&e["v"], &element)).collect();
        if elements.is_empty() {
            // No array is NULL in BigQuery: what was written so is read as an empty one.
            return "NULL".to_owned();
        }
        return format!("[{}]", elements.join(", "));
    }
    if cell.is_null() {
        return "NULL".to_owned();
    }
    if let Some(members) = cell["f"].as_array() {
        let fields = field["fields"].as_array().unwrap();
        let member = |(cell, f): (&Json, &Json)| {
            format!("{} := {}", quote(f["name"].as_str().unwrap()), value(&cell["v"], f))
        };
        let members: Vec<_> = members.iter().zip(fields).map(member).collect();
        return format!("struct_pack({})", members.join(", "));
    }
    let text = literal(cell.as_str().unwrap());
    match field["type"].as_str().unwrap() {
        "BYTES" => format!("from_base64({text})"),
        "TIMESTAMP" => format!("make_timestamptz({text}::BIGINT)"),
        _ => format!("{text}::{}", duckdb_type(field)),
    }
}

/// How replicas are written.
#[derive(Clone, Copy)]
pub(crate) enum Replica {
    /// By native upserts.
    Upserted,
    /// Merged from what was staged `exactly-once` or `at-least-once`.
    Merged { staging: &'static str },
}

/// Where replicas with native upserts refuse rows, as a primary key holds no NULL and is the one that the table was made with.
const KEYS_OF_OTHERS: [&str; 3] = ["schema_evolution.plain", "schema_evolution.schema", "no_pk.message_key"];

/// A pipeline into the emulator, and its project.
pub(crate) fn pipeline(
    emulator: &Emulator,
    variant: &Variant,
    input: &std::path::Path,
    replica: Replica,
) -> (Pipeline, String) {
    let project = format!("truth-{}", PROJECTS.fetch_add(1, Ordering::Relaxed));
    let mut pipeline = Pipeline::new(variant, variant.types(), input);
    pipeline.set("/sinks", emulator.sinks(&project, replica));
    (pipeline, project)
}

/// What is wrong in a project.
pub(crate) fn verdict(
    emulator: &Emulator,
    project: &str,
    variant: &Variant,
    lines: &[String],
    (once, killed): (bool, bool),
    replica: Replica,
) -> String {
    let events = Events::read(lines, variant.is_flat(), variant.is_mysql());
    let residuals = Residuals::read();
    let counts = |difference: &Difference| {
        // Which of the two it was cannot be told.
        let is_null_or_empty = difference.expected == json!([]) && difference.got == Some(Cell::Null);
        // After a key change the large values come from another shard, by chance an epoch later; an upsert writes whole rows, so that
        // this one is a dead letter then.
        let has_late_values = matches!(replica, Replica::Upserted)
            && killed
            && difference.table == "public.toast_default"
            && difference.key == "33";
        !is_null_or_empty && !has_late_values
    };
    let keeps_key =
        matches!(replica, Replica::Upserted) && KEYS_OF_OTHERS.contains(&variant.label().as_str());
    let views = if keeps_key { &[View::Latest][..] } else { &View::ALL };
    let (report, mut wrong) = judge_in(views, &emulator.copy(project), variant, &events, &residuals, counts);
    if !once {
        // Rows may be there twice, none may be missing.
        wrong.retain(|line| line.ends_with(" 0 rows"));
    }
    wrong.extend(envelope::differences(emulator, project, variant, &events));
    if report.is_empty() && wrong.is_empty() {
        return String::new();
    }
    format!("{}\n{}", wrong.join("\n"), Report::text(&report, variant.scenario))
}

/// Every variant of the corpus but the large one, once and in order, into every layout.
#[test]
fn the_corpus_through_bigquery() {
    the_corpus(Replica::Upserted, |_, _, _| {});
}

/// The same with replicas that are merged.
#[test]
fn the_corpus_through_merges() {
    the_corpus(Replica::Merged { staging: "exactly-once" }, |_, _, _| {});
}

/// The same; `deliver` says how histories are written.
pub(crate) fn the_corpus(replica: Replica, deliver: impl Fn(&mut Pipeline, &Emulator, &str) + Sync) {
    let variants: Vec<Variant> = corpus::variants().into_iter().filter(|v| v.scenario != "bench").collect();
    let emulator = &*EMULATOR;
    let found = on_two_threads(&variants, |_, variant| {
        let (mut pipeline, project) = pipeline(emulator, variant, &variant.file(), replica);
        deliver(&mut pipeline, emulator, &project);
        let label = |text: String| format!("{}: {text}\n", variant.label());
        match pipeline.run() {
            Err(failure) => label(failure),
            Ok(summary) => {
                let mut found: String = faults(&summary).into_iter().map(label).collect();
                found += &verdict(emulator, &project, variant, &variant.lines(), (true, false), replica);
                found
            }
        }
    });
    assert!(found.is_empty(), "{found}");
}

/// What goes wrong between a sink and BigQuery, at rates that hit every scenario. That streams expire with rows nobody has seen is a
/// loss, and not among them.
pub(crate) const FAULTS: &str = "unavailable=0.03,lost_answer=0.03,cut=0.03,throttle=0.03,slow_append=0.05,slow_append_millis=20,\
                      rest_unavailable=0.03,rest_throttle=0.03,rest_lost_answer=0.03,load_fails=0.1";
/// Kills in all, over all scenarios.
const KILLS: usize = 40;

/// Every scenario over Pub/Sub into BigQuery, with faults on both sides, killed at random moments, with another number of shards each
/// time. Histories hold each event once where that is promised; views and replicas are right in any case. Answers the emulator.
pub(crate) fn killed(
    once: bool,
    replica: Replica,
    deliver: impl Fn(&mut Pipeline, &Emulator, &str) + Sync,
) -> Emulator {
    let mut variants: Vec<Variant> = Vec::new();
    for variant in corpus::variants().into_iter().filter(|v| v.scenario != "bench") {
        if variants.iter().all(|v| v.scenario != variant.scenario) {
            variants.push(variant);
        }
    }
    let emulator = Emulator::start(FAULTS.parse().unwrap());
    let count = variants.len();
    let found = on_two_threads(&variants, |index, variant| {
        let lines = records(variant);
        let mut random = Random::new(3000 + index as u64);
        let shuffled = feeder::repeated_and_shuffled(&lines, &mut random);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(millstream_emulator::pubsub::Server::builder().start()).unwrap();
        let address = server.address().to_string();
        let publisher = Publisher::new(address.clone());
        topics(&lines).iter().for_each(|topic| publisher.make(topic, false));
        server.set_faults(format!("seed={index},{}", pubsub::FAULTS).parse().unwrap());
        let mut pipeline = pubsub::pipeline(variant, &lines, &address, 2);
        let project = format!("truth-{}", PROJECTS.fetch_add(1, Ordering::Relaxed));
        pipeline.set("/sinks", emulator.sinks(&project, replica));
        deliver(&mut pipeline, &emulator, &project);
        let kills = pubsub::share(KILLS, index, count);
        let mut pieces = shuffled.chunks(shuffled.len().div_ceil(kills + 1).max(1));
        for kill in 0..kills {
            pipeline.set("/shards", [1, 2, 7][kill % 3].into());
            let mut process = pipeline.start_for_summary();
            publisher.publish(pieces.next().unwrap_or_default());
            let began = std::time::Instant::now();
            while !pipeline.has_checkpoint() && began.elapsed() < std::time::Duration::from_secs(30) {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            std::thread::sleep(std::time::Duration::from_millis(random.below(600)));
            if let Err(failure) = pubsub::until(&mut process, &pipeline, || true) {
                return format!("{}: {failure}\n", variant.label());
            }
            process.kill().unwrap();
            process.wait().unwrap();
        }
        pieces.for_each(|piece| publisher.publish(piece));
        let mut process = pipeline.start_for_summary();
        let ended = pubsub::until(&mut process, &pipeline, || {
            runtime.block_on(server.advance(std::time::Duration::from_secs(1)));
            server.counts().backlog == 0
        });
        let summary = ended.and_then(|()| pubsub::drain(process, &pipeline));
        match summary {
            Err(failure) => format!("{}: {failure}\n", variant.label()),
            Ok(summary) => {
                let mut found: String = faults(&summary)
                    .into_iter()
                    .map(|fault| format!("{}: {fault}\n", variant.label()))
                    .collect();
                found += &verdict(&emulator, &project, variant, &lines, (once, true), replica);
                found
            }
        }
    });
    assert!(found.is_empty(), "{found}");
    println!("{} faults were hit", emulator.server.faults_hit());
    emulator
}

/// Sets a key of both histories.
pub(crate) fn set(pipeline: &mut Pipeline, key: &str, value: &Json) {
    for sink in 2..4 {
        pipeline.set(&format!("/sinks/{sink}/{key}"), value.clone());
    }
}

#[test]
fn killed_with_faults_exactly_once() {
    killed(true, Replica::Upserted, |pipeline, _, _| set(pipeline, "delivery", &json!("exactly-once")));
}

#[test]
fn killed_with_faults_at_least_once() {
    killed(false, Replica::Upserted, |pipeline, _, _| set(pipeline, "delivery", &json!("at-least-once")));
}

#[test]
fn killed_with_faults_merged() {
    let replica = Replica::Merged { staging: "exactly-once" };
    killed(true, replica, |pipeline, _, _| set(pipeline, "delivery", &json!("exactly-once")));
}

#[test]
fn killed_with_faults_merged_from_rows_that_come_twice() {
    let replica = Replica::Merged { staging: "at-least-once" };
    killed(false, replica, |pipeline, _, _| set(pipeline, "delivery", &json!("at-least-once")));
}
