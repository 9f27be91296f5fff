//! The same truth when records come again and out of order, when the process is killed, and when the number of shards
//! changes on the way.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::corpus::{self, Variant};
use crate::events::Events;
use crate::feeder::{self, Random};
use crate::pipeline::{Pipeline, Summary};
use crate::residual::{Report, Residuals};
use crate::scenarios::{faults, judge};

/// Shards of a pipeline's first, second, … run.
const SHARDS: [u64; 3] = [1, 2, 7];
/// Kills in all, over all scenarios.
const KILLS: usize = 50;

/// A variant's records, without those of tables without a key: their copies cannot be told.
pub(crate) fn records(variant: &Variant) -> Vec<String> {
    let keyed = |line: &String| {
        let record: Json = serde_json::from_str(line).unwrap();
        let is_row = || {
            let value: Json =
                record["value"].as_str().and_then(|v| serde_json::from_str(v).ok()).unwrap_or_default();
            let payload = value.get("payload").unwrap_or(&value);
            matches!(payload["op"].as_str(), Some("r" | "c" | "u" | "d"))
        };
        !record["key"].is_null() || !is_row()
    };
    variant.lines().into_iter().filter(keyed).collect()
}

/// Runs `task` for each item on two threads; what the tasks found wrong.
pub(crate) fn on_two_threads<T: Sync>(items: &[T], task: impl Fn(usize, &T) -> String + Sync) -> String {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = String::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return found };
            found.push_str(&task(at, item));
        }
    };
    std::thread::scope(|scope| {
        let threads = [scope.spawn(work), scope.spawn(work)];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// How many last runs went on from a checkpoint of a killed one.
static WENT_ON: AtomicUsize = AtomicUsize::new(0);

/// The pipeline's last run, and what is wrong after it.
fn verdict(variant: &Variant, pipeline: &Pipeline, lines: &[String]) -> String {
    verdict_of(variant, pipeline, lines, pipeline.run())
}

/// What is wrong after a last run with this summary.
pub(crate) fn verdict_of(
    variant: &Variant,
    pipeline: &Pipeline,
    lines: &[String],
    summary: Result<Summary, String>,
) -> String {
    let summary = match summary {
        Ok(summary) => summary,
        Err(failure) => {
            return format!("{}: {failure}\n", variant.label());
        }
    };
    if summary.0["records_in"].as_u64() < summary.0["counters"]["records"].as_u64() {
        WENT_ON.fetch_add(1, Ordering::Relaxed);
    }
    let events = Events::read(lines, variant.is_flat(), variant.is_mysql());
    let residuals = Residuals::read();
    let (report, mut wrong) = judge(&pipeline.open(), variant, &events, &residuals);
    wrong.extend(faults(&summary).into_iter().map(|fault| format!("{}: {fault}", variant.label())));
    if report.is_empty() && wrong.is_empty() {
        return String::new();
    }
    format!("{}\n{}", wrong.join("\n"), Report::text(&report, variant.scenario))
}

/// Every record one to three times, shuffled within 50 positions; pipelines with 1, 2 and 7 shards by turns.
#[test]
fn repeated_and_shuffled_records() {
    let variants: Vec<Variant> = corpus::variants().into_iter().filter(|v| v.scenario != "bench").collect();
    let found = on_two_threads(&variants, |index, variant| {
        let lines = records(variant);
        let shuffled = feeder::repeated_and_shuffled(&lines, &mut Random::new(index as u64));
        let mut pipeline = Pipeline::new(variant, variant.types(), &PathBuf::from("in.jsonl"));
        pipeline.set("/shards", SHARDS[index % SHARDS.len()].into());
        feeder::append(&pipeline.path("in.jsonl"), (shuffled.join("\n") + "\n").as_bytes());
        verdict(variant, &pipeline, &lines)
    });
    assert!(found.is_empty(), "{found}");
}

/// As above, and the process is killed at 50 random moments while the file grows, going on with another number of
/// shards each time.
#[test]
fn killed_at_random() {
    // One variant of each scenario, those with their schema first, and the flattened ones.
    let mut variants: Vec<Variant> = Vec::new();
    let mut all = corpus::variants();
    all.sort_by_key(|v| !v.is_wrapped());
    for variant in all.into_iter().filter(|v| v.scenario != "bench") {
        if variant.is_flat() || variants.iter().all(|v| v.scenario != variant.scenario || v.is_flat()) {
            variants.push(variant);
        }
    }
    let kills = |index: usize| (index + 1) * KILLS / variants.len() - index * KILLS / variants.len();
    let found = on_two_threads(&variants, |index, variant| {
        let lines = records(variant);
        let mut random = Random::new(1000 + index as u64);
        let shuffled = feeder::repeated_and_shuffled(&lines, &mut random);
        let mut pipeline = Pipeline::new(variant, variant.types(), &PathBuf::from("in.jsonl"));
        pipeline.set("/source/follow", true.into());
        pipeline.set("/source/poll_interval", "10ms".into());
        pipeline.set("/checkpoint/interval", "20ms".into());
        let text = (shuffled.join("\n") + "\n").into_bytes();
        let mut fed = 0;
        feeder::append(&pipeline.path("in.jsonl"), b"");
        for kill in 0..kills(index) {
            pipeline.set("/shards", SHARDS[(index + kill) % SHARDS.len()].into());
            let target = text.len() * (kill + 1) / (kills(index) + 1);
            match run_and_kill(&pipeline, &text, fed, target, &mut random) {
                Ok(bytes) => fed = bytes,
                Err(failure) => return format!("{}: {failure}\n", variant.label()),
            }
        }
        feeder::append(&pipeline.path("in.jsonl"), &text[fed..]);
        pipeline.set("/source/follow", false.into());
        pipeline.set("/shards", SHARDS[(index + kills(index)) % SHARDS.len()].into());
        verdict(variant, &pipeline, &lines)
    });
    println!("{} of {} last runs went on from a checkpoint", WENT_ON.load(Ordering::Relaxed), variants.len());
    assert!(found.is_empty(), "{found}");
}

/// Runs the pipeline while the file grows from `fed` to `target` bytes in pieces that end anywhere, and kills it at a
/// random moment; how many bytes the file has then, or what the pipeline said when it ended by itself.
fn run_and_kill(
    pipeline: &Pipeline,
    text: &[u8],
    mut fed: usize,
    target: usize,
    random: &mut Random,
) -> Result<usize, String> {
    let mut process = pipeline.start();
    let pieces = 8 + random.below(8) as usize;
    let step = (target - fed) / pieces + 1;
    let kill_after = Duration::from_millis(random.below(500));
    let mut feed = || {
        let end = (fed + step).min(target);
        feeder::append(&pipeline.path("in.jsonl"), &text[fed..end]);
        fed = end;
        std::thread::sleep(Duration::from_millis(random.below(40)));
    };
    // Only a kill between checkpoints says something. A process that makes none in time is killed all the same: where
    // kills land changes what is tried, not what must hold.
    feed();
    let started = Instant::now();
    while !pipeline.has_checkpoint() && started.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let running = Instant::now();
    while running.elapsed() < kill_after {
        feed();
    }
    if let Some(status) = process.try_wait().unwrap() {
        let log = std::fs::read_to_string(pipeline.path("log.txt")).unwrap();
        return Err(format!("the pipeline ended by itself with {status}:\n{log}"));
    }
    // On Unix this is SIGKILL.
    process.kill().unwrap();
    process.wait().unwrap();
    Ok(fed)
}
