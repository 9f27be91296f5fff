//! The same truth when the records come over Pub/Sub, unordered, with every fault that the emulator knows, and with pipeline and
//! emulator killed on the way.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millstream_emulator::pubsub::Server;
use serde_json::json;

use crate::chaos::{on_two_threads, records, verdict_of};
use crate::corpus::{self, Variant};
use crate::feeder::Random;
use crate::pipeline::{Pipeline, Summary};
use crate::publisher::{PATIENCE, Publisher, topics};

/// Everything that can go wrong between Pub/Sub and its clients, at rates that hit every scenario.
pub(crate) const FAULTS: &str = "unavailable=0.05,lost_answer=0.02,cut=0.05,duplicate=0.1,reorder=0.3,lost_ack=0.1,slow_ack=0.1,early_expiry=0.05";
/// Kills in all, over all scenarios.
const KILLS_OF_PIPELINE: usize = 30;
const KILLS_OF_EMULATOR: usize = 10;

/// A pipeline that reads the subscriptions of the records' topics.
pub(crate) fn pipeline(variant: &Variant, lines: &[String], address: &str, shards: u64) -> Pipeline {
    let subscriptions: Vec<String> = topics(lines).iter().map(|topic| format!("{topic}-sub")).collect();
    let mut pipeline = Pipeline::new(variant, variant.types(), &PathBuf::new());
    pipeline.set(
        "/source",
        json!({
            "type": "pubsub",
            "project": "truth",
            "subscriptions": subscriptions,
            "endpoint": format!("http://{address}"),
            "lease": "10s",
        }),
    );
    pipeline.set("/checkpoint/interval", "50ms".into());
    pipeline.set("/shards", shards.into());
    pipeline
}

/// Waits until `done`, or the process ended by itself.
pub(crate) fn until(process: &mut Child, pipeline: &Pipeline, done: impl Fn() -> bool) -> Result<(), String> {
    let began = Instant::now();
    while !done() {
        if let Some(status) = process.try_wait().unwrap() {
            let log = std::fs::read_to_string(pipeline.path("log.txt")).unwrap();
            return Err(format!("the pipeline ended by itself with {status}:\n{log}"));
        }
        if began.elapsed() > PATIENCE {
            return Err("it never came to an end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Drains a running pipeline; its summary. By a signal: a pipeline that has only just started has no control socket yet.
pub(crate) fn drain(mut process: Child, pipeline: &Pipeline) -> Result<Summary, String> {
    Command::new("kill").args(["-TERM", &process.id().to_string()]).status().unwrap();
    let status = process.wait().unwrap();
    if !status.success() {
        let log = std::fs::read_to_string(pipeline.path("log.txt")).unwrap();
        return Err(format!("ended with {status}:\n{log}"));
    }
    let text = std::fs::read_to_string(pipeline.path("out.txt")).unwrap();
    serde_json::from_str(&text).map(Summary).map_err(|e| format!("no summary ({e}) in:\n{text}"))
}

/// Every variant of the corpus over the emulator with every fault at once. The emulator's time passes twenty times as fast, so
/// that leases end while the pipeline works on their messages.
#[test]
fn over_an_emulator_with_every_fault() {
    let variants: Vec<Variant> = corpus::variants().into_iter().filter(|v| v.scenario != "bench").collect();
    let found = on_two_threads(&variants, |index, variant| {
        let lines = records(variant);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(Server::builder().start()).unwrap();
        let address = server.address().to_string();
        let publisher = Publisher::new(address.clone());
        topics(&lines).iter().for_each(|topic| publisher.make(topic, index % 4 == 0));
        server.set_faults(format!("seed={index},{FAULTS}").parse().unwrap());
        let pipeline = pipeline(variant, &lines, &address, [1, 2, 7][index % 3]);
        // At several rates: all of it before the start, or in pieces while it runs.
        let pieces = [1, 3, 10][index % 3];
        let mut process = None;
        for piece in lines.chunks(lines.len().div_ceil(pieces).max(1)) {
            publisher.publish(piece);
            process.get_or_insert_with(|| pipeline.start_for_summary());
            std::thread::sleep(Duration::from_millis(30));
        }
        let mut process = process.expect("every variant has records");
        let ended = until(&mut process, &pipeline, || {
            runtime.block_on(server.advance(Duration::from_secs(1)));
            let counts = server.counts();
            counts.published >= lines.len() as u64 && counts.backlog == 0
        });
        let summary =
            ended.map_err(|e| format!("{e}; {:?}", server.counts())).and_then(|()| drain(process, &pipeline));
        verdict_of(variant, &pipeline, &lines, summary)
    });
    assert!(found.is_empty(), "{found}");
}

/// An emulator in a process of its own, which keeps its data.
struct Emulator {
    process: Child,
    folder: PathBuf,
    port: u16,
}

impl Emulator {
    fn start(folder: PathBuf, port: u16, seed: usize) -> Self {
        let port_file = folder.join("port");
        let _ = std::fs::remove_file(&port_file);
        std::fs::create_dir_all(&folder).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_millstream"))
            .args(["emulator", "pubsub", "--listen", &format!("127.0.0.1:{port}"), "--data", "data"])
            .args(["--port-file", "port", "--faults", &format!("seed={seed},{FAULTS}")])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let port = loop {
            let text = std::fs::read_to_string(&port_file).unwrap_or_default();
            if let Ok(port) = text.trim().parse() {
                break port;
            }
            assert!(began.elapsed() < PATIENCE, "the emulator did not start");
            std::thread::sleep(Duration::from_millis(20));
        };
        Self { process, folder, port }
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills it and starts it again on the same port and data.
    fn kill(&mut self, seed: usize) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        *self = Self::start(self.folder.clone(), self.port, seed);
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How often the `index`th of `count` is hit, if `all` hits are shared out evenly.
pub(crate) fn share(all: usize, index: usize, count: usize) -> usize {
    (index + 1) * all / count - index * all / count
}

/// The pipeline is killed thirty times and the emulator ten times while records come, and faults go on beside.
#[test]
fn pipeline_and_emulator_killed() {
    let wanted = ["shop", "toast", "schema_evolution", "incremental_busy", "inflight", "mysql"];
    let mut variants: Vec<Variant> = Vec::new();
    for variant in corpus::variants() {
        if wanted.contains(&variant.scenario) && !variants.iter().any(|v| v.scenario == variant.scenario) {
            variants.push(variant);
        }
    }
    let count = variants.len();
    let found = on_two_threads(&variants, |index, variant| {
        let lines = records(variant);
        let mut random = Random::new(2000 + index as u64);
        let folder = tempfile::tempdir().unwrap();
        let mut emulator = Emulator::start(folder.path().to_owned(), 0, index);
        let publisher = Publisher::new(emulator.address());
        topics(&lines).iter().for_each(|topic| publisher.make(topic, false));
        let mut pipeline = pipeline(variant, &lines, &emulator.address(), 2);
        let kills = share(KILLS_OF_PIPELINE, index, count);
        let emulator_kills = share(KILLS_OF_EMULATOR, index, count);
        let mut pieces = lines.chunks(lines.len().div_ceil(kills + 1).max(1));
        for kill in 0..kills {
            pipeline.set("/shards", [1, 2, 7][kill % 3].into());
            let mut process = pipeline.start_for_summary();
            publisher.publish(pieces.next().unwrap_or_default());
            let began = Instant::now();
            while !pipeline.has_checkpoint() && began.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(20));
            }
            std::thread::sleep(Duration::from_millis(random.below(400)));
            if let Err(failure) = until(&mut process, &pipeline, || true) {
                return format!("{}: {failure}\n", variant.label());
            }
            process.kill().unwrap();
            process.wait().unwrap();
            if kill < emulator_kills {
                emulator.kill(100 * index + kill);
            }
        }
        pieces.for_each(|piece| publisher.publish(piece));
        // Longer than a lease, which messages on their way to a killed pipeline still have.
        let summary = pipeline.run_with(&["--idle", "15s"]);
        verdict_of(variant, &pipeline, &lines, summary)
    });
    assert!(found.is_empty(), "{found}");
}

/// From files to Pub/Sub by one pipeline, and from there to the warehouse by another.
#[test]
fn from_files_to_pubsub_to_the_warehouse() {
    let variant = corpus::variants().into_iter().find(|v| v.scenario == "shop" && !v.is_flat()).unwrap();
    let lines = records(&variant);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(Server::builder().start()).unwrap();
    let address = server.address().to_string();
    let publisher = Publisher::new(address.clone());
    publisher.make("all", false);
    let mut first = Pipeline::new(&variant, variant.types(), &PathBuf::from("in.jsonl"));
    crate::feeder::append(&first.path("in.jsonl"), (lines.join("\n") + "\n").as_bytes());
    first.set("/sinks", json!([{ "type": "pubsub", "project": "truth", "topic": "all", "endpoint": format!("http://{address}") }]));
    let published = first.run().unwrap();
    assert_eq!(published.0["counters"]["sinks"]["pubsub"]["written"], server.counts().published);
    let mut second = pipeline(&variant, &lines, &address, 2);
    second.set("/source/subscriptions", "all-sub".into());
    let summary = second.run_with(&["--idle", "3s"]);
    let found = verdict_of(&variant, &second, &lines, summary);
    assert!(found.is_empty(), "{found}");
    assert_eq!(server.counts().backlog, 0);
}
