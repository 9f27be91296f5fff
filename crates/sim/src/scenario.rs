//! One seed's world and the lives of its pipeline: crash, start again, until everything is processed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::dedupe::{GateConfig, Mode};
use millstream_core::{Incarnation, Kind};
use millstream_engine::{Handle, Restart, Settings, start};
use tokio::time::{sleep, timeout};

use crate::delivery::{self, Partition};
use crate::disk::Disk;
use crate::fault::{Call, Edge, Fault, Plan};
use crate::history::History;
use crate::mutant::Mutant;
use crate::random::Random;
use crate::sink::Style;
use crate::source::{QUEUE_IDLE, SourceKind};
use crate::stage::Stage;
use crate::verdict;
use crate::world::{Layout, SimWorld, SinkSpec};
use crate::writer::Writer;

/// No life takes longer than this, in virtual time: a pipeline that still runs is stuck.
const LIFE_MAX: Duration = Duration::from_secs(4 * 3600);

/// What came of a seed.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Events of the history: how large this world is.
    pub events: usize,
    /// What was found wrong; empty is right.
    pub violations: Vec<String>,
    /// Every step, if a trace was asked for.
    pub trace: Vec<String>,
    /// Where faults struck, and how often.
    pub struck: BTreeMap<(Call, Edge, Fault), u64>,
    /// What happened besides: late events kept, patches, savepoints and the like.
    pub seen: BTreeMap<&'static str, u64>,
    /// A number that two runs of one seed share.
    pub digest: u64,
}

/// How to run a seed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// A mistake to make.
    pub mutant: Option<Mutant>,
    /// Whether to write down every step.
    pub trace: bool,
}

/// Runs the world of `seed`.
pub fn run(seed: u64, options: Options) -> Outcome {
    Scenario::new(seed, options).run()
}

/// What may happen in the life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// It crashes at a step, if it gets there.
    CrashAtStep,
    /// It is killed at some time.
    Kill,
    Drain,
    Cancel,
    /// It runs until everything is processed.
    Exhausted,
}

struct Scenario {
    stage: Arc<Stage>,
    world: Arc<SimWorld>,
    random: Random,
    gate: Arc<GateConfig>,
    interval_ms: u64,
    savepoints: u64,
}

impl Scenario {
    fn new(seed: u64, options: Options) -> Self {
        let Options { mutant, trace } = options;
        let mut random = Random::new(seed);
        let target = random.pick(&[30, 60, 100, 300]);
        let history = Arc::new(Writer::write(random.fork(), target));
        let partitions = Arc::new(delivery::deliver(&history, random.fork()));
        let stage = Arc::new(Stage::new(history, Disk::default(), random.fork(), mutant, trace));
        let kind = random.pick(&[SourceKind::Log, SourceKind::Queue]);
        let sinks = sinks(&mut random, mutant);
        let pace_ms = random.pick(&[0, 5, 50]);
        describe(&stage, seed, &partitions, kind, &sinks);
        let world = Arc::new(SimWorld { stage: stage.clone(), partitions, kind, pace_ms, sinks });
        let gate = GateConfig {
            mode: if mutant == Some(Mutant::LatestOnHistory) { Mode::Latest } else { Mode::Exact },
            toast_tuple_target: 32,
            cache_bytes: random.pick(&[0, 3000, 1 << 20]),
            ..GateConfig::default()
        };
        let interval_ms = random.pick(&[20, 100, 500]);
        Self { stage, world, random, gate: Arc::new(gate), interval_ms, savepoints: 0 }
    }

    fn run(mut self) -> Outcome {
        let lives = self.random.between(1, 8);
        for life in 1..=lives {
            let end = match self.random.below(100) {
                _ if life == lives => End::Exhausted,
                0..=64 => End::CrashAtStep,
                65..=79 => End::Kill,
                80..=89 => End::Drain,
                _ => End::Cancel,
            };
            self.live(life, end);
            if !self.stage.lock().violations.is_empty() {
                break;
            }
            if end != End::Exhausted {
                self.restore();
            }
        }
        let sound = self.stage.lock().violations.is_empty();
        if sound {
            verdict::judge(&self.stage, &self.world);
        }
        let (digest, trace) = (self.stage.digest(), self.stage.take_trace());
        let mut state = self.stage.lock();
        Outcome {
            events: self.stage.history.changes.len(),
            violations: std::mem::take(&mut state.violations),
            trace,
            struck: std::mem::take(&mut state.struck),
            seen: std::mem::take(&mut state.seen),
            digest,
        }
    }

    /// A life with the faults that befit its end.
    fn live(&mut self, life: u64, end: End) {
        let plan = match end {
            End::CrashAtStep => Plan::crashing(&mut self.random, 2),
            _ => Plan::survivable(&mut self.random, 3),
        };
        self.life(life, end, plan);
    }

    /// One process, from start to its end or death.
    fn life(&mut self, life: u64, end: End, plan: Plan) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return self.stage.violation(format!("no runtime: {error}")),
        };
        let skew_us = self.random.below(10_000_000) as i64 - 5_000_000;
        let settings = self.settings();
        let script = self.script(end);
        let stage = self.stage.clone();
        let world = self.world.clone();
        runtime.block_on(async {
            stage.begin_life(plan, skew_us);
            stage.lock().note(|| {
                format!(
                    "---- life {life}, to end by {end:?}: {} shards, {} decoders, checkpoints every {:?}",
                    settings.shards, settings.decoders, settings.checkpoint_interval
                )
            });
            let handle = start(world, settings);
            tokio::select! {
                biased;
                () = stage.crash.notified() => stage.lock().note(|| "---- dead".to_owned()),
                () = perform(&stage, &handle, script) => {}
            }
            stage.end_life();
        });
    }

    fn settings(&mut self) -> Settings {
        let random = &mut self.random;
        Settings {
            pipeline: "sim".into(),
            checkpoint_interval: Duration::from_millis(self.interval_ms),
            checkpoint_timeout: random.pick(&[Duration::from_secs(2), Duration::from_secs(600)]),
            epoch_bytes_max: random.pick(&[1000, 1 << 30]),
            decoders: random.pick(&[1, 2, 3, 7]),
            shards: random.pick(&[1, 2, 3, 7]),
            in_flight_bytes_max: 1 << 20,
            watermark_delay_ms: random.pick(&[0, 5000, 30_000]),
            incarnation: Incarnation(0),
            gate: self.gate.clone(),
            restart: Restart {
                // Slow calls can outlast many checkpoints; they become fast after a while.
                attempts: 1000,
                delay: random.pick(&[Duration::ZERO, Duration::from_secs(1)]),
                stable_after: Duration::from_secs(600),
            },
            idle: (self.world.kind == SourceKind::Queue).then_some(QUEUE_IDLE),
        }
    }

    /// What is asked of the pipeline, each after a pause.
    fn script(&mut self, end: End) -> Vec<(Duration, Request)> {
        let mut script = Vec::new();
        let scale = self.random.pick(&[20, 300, 3000]);
        let wait = |random: &mut Random| Duration::from_millis(random.below(scale));
        for _ in 0..self.random.below(4) {
            let pause = wait(&mut self.random);
            if self.random.chance(50) {
                script.push((pause, Request::Pause));
                script.push((wait(&mut self.random), Request::Resume));
            } else {
                self.savepoints += 1;
                script.push((pause, Request::Savepoint(self.savepoints)));
            }
        }
        let last = match end {
            End::Kill => Request::Kill,
            End::Drain => Request::Drain,
            End::Cancel => Request::Cancel,
            End::CrashAtStep | End::Exhausted => return script,
        };
        script.push((wait(&mut self.random), last));
        script
    }

    /// Sometimes starts the next life from a savepoint instead of the last checkpoint, where the sinks and the source can
    /// go back so far.
    fn restore(&mut self) {
        if !self.random.chance(25) {
            return;
        }
        let world = self.world.clone();
        let rewinds = world.kind == SourceKind::Log && world.sinks.iter().all(|s| s.style == Style::RollBack);
        let mut state = self.stage.lock();
        let newest = state.disk.store.checkpoint.as_ref().map(|c| c.epoch);
        let epoch_of = |vault: &crate::disk::Vault| vault.checkpoint.as_ref().map(|c| c.epoch);
        let able: Vec<_> = state
            .disk
            .savepoints
            .iter()
            .filter(|(_, v)| rewinds || epoch_of(v) == newest)
            .map(|(n, _)| n.clone())
            .collect();
        if able.is_empty() {
            return;
        }
        let name = &able[self.random.index(able.len())];
        let vault = state.disk.savepoints[name].clone();
        let epoch = epoch_of(&vault);
        state.note(|| format!("---- back to savepoint {name} of epoch {:?}", epoch.map(|e| e.0)));
        state.count("savepoints restored", 1);
        state.count("savepoints restored over newer checkpoints", u64::from(epoch != newest));
        state.disk.store = vault;
        state.disk.restored = true;
        // What came after it is another past now.
        state.disk.savepoints.retain(|_, v| epoch_of(v) <= epoch);
    }
}

/// Asked of a running pipeline.
#[derive(Debug, Clone, Copy)]
enum Request {
    Pause,
    Resume,
    Savepoint(u64),
    Drain,
    Cancel,
    Kill,
}

/// Plays the script, then waits for the pipeline's end.
async fn perform(stage: &Stage, handle: &Handle, script: Vec<(Duration, Request)>) {
    let draining = Cell::new(false);
    let play = async {
        for (pause, request) in script {
            sleep(pause).await;
            stage.lock().note(|| format!("---- {request:?}"));
            match request {
                Request::Pause => handle.pause(),
                Request::Resume => handle.resume(),
                Request::Savepoint(n) => {
                    // Refused between attempts; the next life does not depend on it.
                    let _ = handle.savepoint(&format!("s{n}")).await;
                }
                Request::Drain => {
                    draining.set(true);
                    handle.drain();
                }
                Request::Cancel => handle.cancel(),
                Request::Kill => stage.kill(),
            }
        }
        std::future::pending::<()>().await;
    };
    let ended = async {
        tokio::select! {
            biased;
            ended = handle.wait() => ended,
            () = play => unreachable!("invariant: the script never ends"),
        }
    };
    match timeout(LIFE_MAX, ended).await {
        Err(_) => stage.violation(format!("stuck: {:?}", handle.status().phase)),
        // What it had in flight is told to be undone, and is the next life's.
        Ok(Err(error)) if draining.get() && error.kind() == Kind::Transient => {
            stage.lock().count("drains that failed", 1);
        }
        Ok(Err(error)) => stage.violation(format!("the pipeline failed: {error}")),
        Ok(Ok(summary)) => {
            for residue in &summary.residues {
                stage.violation(format!("conservation at the end: {residue}"));
            }
            let mut state = stage.lock();
            state.count("restarts", summary.status.restarts.into());
            state.count("checkpoint timeouts", summary.status.checkpoints_failed);
            state.note(|| format!("---- ended in epoch {}", summary.status.epoch.0));
        }
    }
}

fn sinks(random: &mut Random, mutant: Option<Mutant>) -> Vec<SinkSpec> {
    let mut sinks = Vec::new();
    let mut add = |random: &mut Random, layout: Layout, style: Option<Style>| {
        let name =
            format!("{}-{}", sinks.len(), if layout == Layout::History { "history" } else { "replica" });
        let style = style.unwrap_or_else(|| random.pick(&[Style::Staging, Style::RollBack]));
        sinks.push(SinkSpec { name, layout, style });
    };
    // What cannot be taken back must be staged.
    let style = (mutant == Some(Mutant::EarlyFlush)).then_some(Style::Staging);
    if random.chance(95) {
        add(random, Layout::History, style);
    }
    add(random, Layout::Replica, None);
    if random.chance(30) {
        let layout = random.pick(&[Layout::History, Layout::Replica]);
        add(random, layout, style);
    }
    sinks
}

fn describe(stage: &Stage, seed: u64, partitions: &[Partition], kind: SourceKind, sinks: &[SinkSpec]) {
    let history: &History = &stage.history;
    let deliveries: usize = partitions.iter().map(|p| p.deliveries.len()).sum();
    let sinks: Vec<_> = sinks.iter().map(|s| format!("{} {:?}", s.name, s.style)).collect();
    stage.lock().note(|| {
        format!(
            "seed {seed}: {} events in {} tables, {} records, {deliveries} deliveries in {} partitions of a {kind:?}, locks: \
             {}, sinks: {}",
            history.changes.len(),
            history.tables.len(),
            history.stream.len(),
            partitions.len(),
            history.locks,
            sinks.join(", ")
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log that came to its end while an epoch was being taken ended the pipeline with that epoch, although records that it
    /// gave after the barrier were still on their way: they stayed unprocessed until the next run. Here every call is slow, so
    /// that the end comes while some sink prepares.
    #[test]
    fn an_exhausted_source_gets_a_last_epoch() {
        for seed in 0..30 {
            let mut scenario = Scenario::new(seed, Options::default());
            scenario.interval_ms = 1;
            scenario.life(1, End::Exhausted, Plan::slow(100, 20));
            verdict::judge(&scenario.stage, &scenario.world);
            assert_eq!(scenario.stage.lock().violations, Vec::<String>::new(), "seed {seed}");
        }
    }
}
