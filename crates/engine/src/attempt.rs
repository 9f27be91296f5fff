//! One attempt: recover from the last checkpoint, wire the stages, run them to an end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::dedupe::{Forward, Gate};
use millstream_core::watermark::Watermarks;
use millstream_core::{Checkpoint, DeadLetters, Epoch, Error, Result, Sink, Source, Store};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc::{self, Receiver, Sender, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::coordinator::{Coordinator, DEAD_LETTERS, Request};
use crate::decode;
use crate::dispatch::Dispatch;
use crate::flow::{Aside, EpochStart, IntakeOrder, Staged, Stop};
use crate::handle::Shared;
use crate::intake::{Intake, budget_units};
use crate::patience::Patience;
use crate::recovery::{self, Plan};
use crate::settings::Settings;
use crate::shard::{Pressure, Shard};
use crate::sink_lane::SinkLane;
use crate::status::Phase;
use crate::world::World;

/// Batches between two stages. Small: the in-flight budget bounds bytes, this bounds how far stages drift apart.
const QUEUE: usize = 4;

/// How long the source may take to acknowledge what was released.
const CLOSE_PATIENCE: Duration = Duration::from_secs(20);
/// How long it may take to give back what was not.
const CANCEL_PATIENCE: Duration = Duration::from_secs(3);

/// How an attempt ended that did not fail.
pub(crate) enum Attempted {
    /// The pipeline came to its end, or was cancelled.
    Ended,
    /// It was to be drained before it took anything in.
    NotBegun,
}

/// Runs one attempt. Dropping the future ends it at once, like a crash.
pub(crate) async fn attempt(
    world: Arc<dyn World>,
    settings: Arc<Settings>,
    shared: Arc<Shared>,
) -> Result<Attempted> {
    let mut requests = shared.listen();
    let recovered = tokio::select! {
        biased;
        () = shared.until_cancelled() => return Ok(Attempted::Ended),
        recovered = Recovered::load(world.as_ref(), &settings, &shared) => recovered?,
    };
    if *shared.draining.borrow() {
        // Asked while no attempt was listening.
        requests.close();
        return Ok(Attempted::NotBegun);
    }
    let mut stages = Stages { tasks: JoinSet::new() };
    let (closed, source_closed) = oneshot::channel();
    let coordinator = wire(&world, &settings, &shared, recovered, requests, closed, &mut stages)?;
    let intake = coordinator.intake.clone();
    shared.phase(if *shared.paused.borrow() { Phase::Paused } else { Phase::Running });
    stages.tasks.spawn(async move { coordinator.run().await.map(|()| Ended::Finished) });
    let outcome = tokio::select! {
        biased;
        () = shared.until_cancelled() => {
            close(&intake, source_closed, true).await;
            // Whatever blocks is left behind: the run ends.
            return Ok(Attempted::Ended);
        }
        outcome = stages.outcome() => outcome,
    };
    if outcome.is_ok() {
        close(&intake, source_closed, false).await;
    }
    stages.stop().await;
    outcome.map(|()| Attempted::Ended)
}

/// Lets the source go and waits for that. An intake that is gone has closed nothing, and needs no wait.
async fn close(intake: &UnboundedSender<IntakeOrder>, closed: oneshot::Receiver<()>, cancelled: bool) {
    if intake.send(IntakeOrder::Close { cancelled }).is_ok() {
        let patience = if cancelled { CANCEL_PATIENCE } else { CLOSE_PATIENCE };
        // Whoever is cut short leaves records unacknowledged, and they come again.
        let _ = timeout(patience, closed).await;
    }
}

/// How a stage ended without failing.
enum Ended {
    /// The coordinator: the pipeline came to its end.
    Finished,
    /// Its input ended.
    Starved,
}

/// The stages' tasks; dropping them stops them.
struct Stages {
    tasks: JoinSet<Staged<Ended>>,
}

impl Stages {
    fn spawn(&mut self, stage: impl Future<Output = Staged> + Send + 'static) {
        self.tasks.spawn(async move { stage.await.map(|()| Ended::Starved) });
    }

    /// Spawns a stage that may block its thread (a sink's library calls). On a runtime with one thread, a simulation's,
    /// everything stays on it, so that a run can be repeated.
    fn spawn_blocking(&mut self, stage: impl Future<Output = Staged> + Send + 'static) {
        let runtime = Handle::current();
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return self.spawn(stage);
        }
        self.tasks.spawn_blocking(move || runtime.block_on(stage).map(|()| Ended::Starved));
    }

    /// Stops all stages and waits until the last one let go of its connector: the next attempt opens the same files.
    async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Waits for the stage that decides: the coordinator at the end of the pipeline, or the one that failed. Stages that
    /// only lost a neighbour are passed over, so that the error shown is the cause.
    async fn outcome(&mut self) -> Result<()> {
        while let Some(ended) = self.tasks.join_next().await {
            match ended {
                Ok(Ok(Ended::Finished)) => return Ok(()),
                Ok(Ok(Ended::Starved) | Err(Stop::Neighbour)) => {}
                Ok(Err(Stop::Failed(error))) => return Err(error),
                Err(panic) => {
                    return Err(
                        Error::fatal("a stage panicked: please report this as a bug").with_source(panic)
                    );
                }
            }
        }
        Err(Error::fatal("all stages ended without a cause: please report this as a bug"))
    }
}

/// The connectors, brought to the state of the last checkpoint.
struct Recovered {
    store: Box<dyn Store>,
    source: Box<dyn Source>,
    sinks: Vec<(String, Box<dyn Sink>)>,
    dead_letters: Box<dyn DeadLetters>,
    last: Option<Checkpoint>,
    plan: Plan,
}

impl Recovered {
    async fn load(world: &dyn World, settings: &Settings, shared: &Shared) -> Result<Self> {
        let mut store = world.store()?;
        let last = store.latest().await?;
        recovery::check_incarnation(last.as_ref(), settings.incarnation)?;
        let mut sinks = world.sinks()?;
        let names: Vec<_> = sinks.iter().map(|(name, _)| name.clone()).collect();
        let plan = recovery::plan(last.as_ref(), &names);
        for (code, text) in &plan.notices {
            warn!(code, "{text}");
            shared.update(|status| status.notice(text.clone()));
        }
        for ((name, sink), of) in sinks.iter_mut().zip(&plan.sinks) {
            sink.recover(of.token()).await.map_err(|e| e.at(name))?;
        }
        let mut dead_letters = world.dead_letters()?;
        let mark = last.iter().flat_map(|c| &c.sinks).find(|mark| mark.sink == DEAD_LETTERS);
        dead_letters.recover(mark.map(|mark| &mark.token)).await?;
        let mut source = world.source()?;
        source.open(last.as_ref().map_or(&[], |c| &c.positions)).await?;
        match &last {
            Some(checkpoint) => info!(epoch = checkpoint.epoch.0, "recovered from the last checkpoint"),
            None => info!("no checkpoint: starting at the beginning"),
        }
        shared.update(|status| {
            status.recovered = true;
            status.epoch = last.as_ref().map_or(Epoch(0), |c| c.epoch);
            status.counters = plan.counters.clone();
            let reached_ms = last.as_ref().and_then(|c| c.watermark_ms);
            status.watermark_ms = reached_ms.map(|ms| ms.saturating_sub(settings.watermark_delay_ms));
        });
        Ok(Self { store, source, sinks, dead_letters, last, plan })
    }
}

/// A stage's bounded inputs, one a lane.
fn lanes<T>(count: usize) -> (Vec<Sender<T>>, Vec<Receiver<T>>) {
    (0..count).map(|_| mpsc::channel(QUEUE)).unzip()
}

/// Connects the stages and starts all but the coordinator, which is handed back.
fn wire(
    world: &Arc<dyn World>,
    settings: &Arc<Settings>,
    shared: &Arc<Shared>,
    recovered: Recovered,
    requests: UnboundedReceiver<Request>,
    closed: oneshot::Sender<()>,
    stages: &mut Stages,
) -> Result<Coordinator> {
    let Recovered { store, source, sinks, dead_letters, last, plan } = recovered;
    let last = last.unwrap_or_default();
    // Before intake runs: what it counts from now on asks for a checkpoint.
    let taken_in = shared.gauges.came_in();
    let now_us = i64::try_from(world.clock().now().as_micros()).unwrap_or(i64::MAX);
    let flowing = EpochStart { epoch: plan.epoch, ingested_at_us: now_us.max(plan.ingested_at_us + 1) };
    let (reports, reported) = mpsc::channel(64);
    let (orders, intake_orders) = mpsc::unbounded_channel();
    let (work, to_work) = lanes(settings.decoders);
    let (worked, to_dispatch) = lanes(settings.decoders);
    let (to_shards, shard_events) = lanes(settings.shards);

    let intake = Intake {
        source,
        orders: intake_orders,
        workers: work,
        reports: reports.clone(),
        budget_units: budget_units(settings.in_flight_bytes_max),
        idle: settings.idle,
        paused: *shared.paused.borrow(),
        gauges: shared.gauges.clone(),
    };
    stages.spawn(async move {
        let ended = intake.run().await;
        drop(closed);
        ended
    });
    for (work, worked) in to_work.into_iter().zip(worked) {
        stages.spawn(decode::run(world.decoder()?, settings.incarnation, settings.shards, work, worked));
    }
    let dispatch = Dispatch {
        workers: to_dispatch,
        shards: to_shards,
        reports: reports.clone(),
        watermarks: Watermarks::new(settings.watermark_delay_ms, last.watermarks, last.watermark_ms),
        epoch: flowing.epoch,
        gauges: shared.gauges.clone(),
    };
    stages.spawn(dispatch.run());

    let (mut sink_lanes, mut shard_sinks) = (Vec::new(), vec![Vec::new(); settings.shards]);
    for _ in &sinks {
        let (to_sink, lanes) = lanes(settings.shards);
        for (shard, sender) in shard_sinks.iter_mut().zip(to_sink) {
            shard.push(sender);
        }
        sink_lanes.push(lanes);
    }
    let pressure = Arc::new(Pressure::new(settings.shards, settings.epoch_bytes_max));
    let (peers, asides): (Vec<_>, Vec<_>) = (0..settings.shards).map(|_| mpsc::unbounded_channel()).unzip();
    let shard_inputs = shard_events.into_iter().zip(asides).zip(shard_sinks);
    for (index, ((events, asides), sinks)) in shard_inputs.enumerate() {
        let shard = Shard {
            index,
            epoch: flowing.epoch,
            early: Vec::new(),
            gate: Gate::new(settings.gate.clone(), index, settings.shards, store.view())?,
            events,
            asides,
            peers: peers.clone(),
            sinks,
            reports: reports.clone(),
            pressure: pressure.clone(),
            gauges: shared.gauges.clone(),
            world: world.clone(),
        };
        stages.spawn(shard.run());
    }
    let mut commit_orders = Vec::new();
    for (index, ((name, sink), lanes)) in sinks.into_iter().zip(sink_lanes).enumerate() {
        let (order, commits) = mpsc::unbounded_channel();
        commit_orders.push((name.clone(), order));
        shared.gauges.watch_sink(&name, sink.figures());
        let lane = SinkLane { index, name, sink, lanes, commits, reports: reports.clone(), start: flowing };
        stages.spawn_blocking(lane.run());
    }
    // Messages of the last checkpoint may not have arrived before the crash; they are idempotent.
    for encoded in &last.forwards {
        let forward = Forward::decode(encoded)?;
        let shard = forward.shard(settings.shards);
        let sent = Aside::Forward { forward, sent_in: last.epoch };
        peers[shard].send(sent).map_err(|_| Error::fatal("a shard ended at once"))?;
    }
    Ok(Coordinator {
        world: world.clone(),
        settings: settings.clone(),
        shared: shared.clone(),
        store,
        dead_letters,
        reports: reported,
        requests,
        intake: orders,
        sinks: commit_orders,
        shards: peers,
        pressure,
        flowing,
        unreleased: last.positions.into_iter().collect(),
        marks: last.sinks.into_iter().map(|mark| (mark.sink.clone(), mark)).collect(),
        counters: plan.counters,
        letters: BTreeMap::new(),
        early_letters: Vec::new(),
        notices: BTreeMap::new(),
        forwards_pending: !last.forwards.is_empty(),
        held: false,
        taken_in,
        ending: false,
        timer: Box::pin(sleep(settings.checkpoint_interval)),
        patience: Patience::new(shared.clone(), settings.checkpoint_timeout),
    })
}
