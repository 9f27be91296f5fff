//! A plan's surroundings for the engine: connectors made by the registry, the store, dead letters, the clock.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use millstream_core::dedupe::{GateConfig, Mode};
use millstream_core::{DeadLetters, Decoder, Error, Incarnation, Result, Sink, Source, StateView, Store};
use millstream_engine::{Clock, Restart, Settings, SystemClock, World};
use millstream_state::LocalStore;

use crate::config::{DedupeMode, ReplicaIdentity};
use crate::dead_letters::{Desk, Inlet, Writer};
use crate::plan::Plan;
use crate::registry;

/// Bytes of records between intake and sinks.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// Bytes of uncommitted state that end an epoch early.
const EPOCH_BYTES_MAX: usize = 96 << 20;
/// Memory for state that could be read again, of all gates together.
const STATE_CACHE_BYTES: usize = 96 << 20;

/// The committed state of the running attempt, for those who ask about it. Holds nothing open by itself: an attempt that
/// ends must be able to let go of its store.
#[derive(Default)]
pub(crate) struct StateShelf(Mutex<Option<Weak<dyn StateView>>>);

impl StateShelf {
    /// The view; `None` between attempts.
    pub(crate) fn view(&self) -> Option<Arc<dyn StateView>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Weak::upgrade)
    }

    fn put(&self, view: &Arc<dyn StateView>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(view));
    }
}

/// The surroundings of one plan.
pub(crate) struct PlanWorld {
    plan: Arc<Plan>,
    options: Arc<millstream_decode::Options>,
    desk: Arc<Desk>,
    /// Whether the plan's own source is read, or only what the desk is asked for.
    intake: bool,
    shelf: Arc<StateShelf>,
    clock: SystemClock,
}

impl PlanWorld {
    /// Surroundings of `plan`, which read its source and what `desk` is asked for. Not to be called from within a runtime.
    pub(crate) fn new(plan: Arc<Plan>, desk: Arc<Desk>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Error::fatal("cannot start threads").with_source(e))?;
        let options = Arc::new(runtime.block_on(registry::decoder_options(&plan))?);
        Ok(Self { plan, options, desk, intake: true, shelf: Arc::default(), clock: SystemClock })
    }

    /// The same without the plan's source: only what the desk is asked for is read.
    pub(crate) fn of_desk(plan: Arc<Plan>, desk: Arc<Desk>) -> Result<Self> {
        Ok(Self { intake: false, ..Self::new(plan, desk)? })
    }
}

impl PlanWorld {
    /// Where the running attempt's state is found.
    pub(crate) fn shelf(&self) -> Arc<StateShelf> {
        self.shelf.clone()
    }
}

impl World for PlanWorld {
    fn source(&self) -> Result<Box<dyn Source>> {
        let inner = if self.intake { Some(registry::source(&self.plan.source)?) } else { None };
        let topic = self.plan.letter_topic.clone().and_then(registry::topic_letters);
        let sinks = self.plan.sinks.iter().map(|sink| sink.name.clone()).collect();
        Ok(Box::new(Inlet::new(inner, self.desk.clone(), topic, sinks)))
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        registry::decoder(self.plan.decode.format, self.options.clone())
    }

    fn sinks(&self) -> Result<Vec<(String, Box<dyn Sink>)>> {
        self.plan.sinks.iter().map(|sink| Ok((sink.name.clone(), registry::sink(sink)?))).collect()
    }

    fn store(&self) -> Result<Box<dyn Store>> {
        let store = LocalStore::open(&self.plan.checkpoint.directory, millstream_state::Options::default())?;
        self.shelf.put(&store.view());
        Ok(Box::new(store))
    }

    fn dead_letters(&self) -> Result<Box<dyn DeadLetters>> {
        let folder = Box::new(Writer::new(&self.plan.dead_letters));
        Ok(match &self.plan.letter_topic {
            Some(topic) => Box::new(registry::letter_topic(topic, folder)?),
            None => folder,
        })
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

/// How the engine runs `plan`.
pub(crate) fn settings(plan: &Plan, idle: Option<std::time::Duration>) -> Settings {
    let full_identity = plan
        .tables
        .iter()
        .filter(|(_, table)| table.replica_identity == Some(ReplicaIdentity::Full))
        .map(|(name, _)| name.clone())
        .collect();
    let gate = GateConfig {
        mode: match plan.dedupe.mode {
            DedupeMode::Exact => Mode::Exact,
            DedupeMode::Latest => Mode::Latest,
            DedupeMode::Off => Mode::Off,
        },
        ids_kept_min: plan.dedupe.keep_per_key,
        ids_kept_ms: plan.dedupe.keep.as_millis() as i64,
        keyless_kept_ms: plan.dedupe.keep_keyless.as_millis() as i64,
        cache_bytes: STATE_CACHE_BYTES / plan.shards,
        full_identity,
        ..GateConfig::default()
    };
    Settings {
        pipeline: plan.pipeline.clone(),
        checkpoint_interval: plan.checkpoint.interval,
        checkpoint_timeout: plan.checkpoint.timeout,
        epoch_bytes_max: EPOCH_BYTES_MAX,
        decoders: plan.threads,
        shards: plan.shards,
        in_flight_bytes_max: IN_FLIGHT_BYTES_MAX,
        watermark_delay_ms: plan.watermark_delay.as_millis() as i64,
        incarnation: Incarnation(plan.incarnation),
        gate: Arc::new(gate),
        restart: Restart {
            attempts: plan.restart.attempts,
            delay: plan.restart.delay,
            stable_after: plan.restart.stable_after,
        },
        idle,
    }
}
