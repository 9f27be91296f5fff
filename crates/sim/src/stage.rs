//! What all parts of a simulated world share: durable things, faults, time, the trace and what was found wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::{Error, Result};
use millstream_engine::Clock;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::disk::Disk;
use crate::fault::{Call, Edge, Fault, Plan};
use crate::history::History;
use crate::mutant::Mutant;
use crate::random::Random;

/// Found violations after which a run stops looking.
const VIOLATIONS_MAX: usize = 20;

/// No life needs more steps than this: a pipeline that takes more goes round in circles.
const STEPS_MAX: u64 = 50_000;

/// Calls are slow this long into a life at most, so that a pipeline with little patience gets on in the end.
const SLOW_MAX: Duration = Duration::from_secs(60);

/// The stage on which the simulated connectors play. It outlives crashes; what a crash loses is in the connectors.
pub(crate) struct Stage {
    pub(crate) history: Arc<History>,
    pub(crate) mutant: Option<Mutant>,
    state: Mutex<State>,
    pub(crate) crash: Notify,
}

/// What changes.
pub(crate) struct State {
    pub(crate) disk: Disk,
    pub(crate) plan: Plan,
    /// Luck of the connectors, apart from that of the life's script.
    pub(crate) random: Random,
    /// The process is dead: nothing happens any more until the next life.
    pub(crate) crashed: bool,
    /// Virtual time since 1970 at the start of this life, µs.
    base_us: i64,
    started: Option<Instant>,
    pub(crate) violations: Vec<String>,
    trace: Option<Vec<String>>,
    /// Steps at which faults struck, and other things worth counting.
    pub(crate) struck: BTreeMap<(Call, Edge, Fault), u64>,
    pub(crate) seen: BTreeMap<&'static str, u64>,
    digest: u64,
    is_mutant: bool,
    /// Steps of this life.
    steps: u64,
}

impl Stage {
    pub(crate) fn new(
        history: Arc<History>,
        disk: Disk,
        random: Random,
        mutant: Option<Mutant>,
        trace: bool,
    ) -> Self {
        let state = State {
            disk,
            plan: Plan::calm(),
            random,
            crashed: false,
            base_us: 1_800_000_000_000_000,
            started: None,
            violations: Vec::new(),
            trace: trace.then(Vec::new),
            struck: BTreeMap::new(),
            seen: BTreeMap::new(),
            digest: 0,
            is_mutant: mutant.is_some(),
            steps: 0,
        };
        Self { history, mutant, state: Mutex::new(state), crash: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process starts; `skew_us` is how far its machine's clock is from the last one's.
    pub(crate) fn begin_life(&self, plan: Plan, skew_us: i64) {
        let mut state = self.lock();
        state.base_us = state.now_us() + skew_us;
        state.started = Some(Instant::now());
        state.crashed = false;
        state.steps = 0;
        state.plan = plan;
    }

    /// The process is gone; its runtime too.
    pub(crate) fn end_life(&self) {
        let mut state = self.lock();
        state.base_us = state.now_us();
        state.started = None;
        state.crashed = true;
    }

    /// The process dies now.
    pub(crate) fn kill(&self) {
        self.lock().crashed = true;
        self.crash.notify_one();
    }

    /// A step of a call: may take long, fail, or be the last thing that the process did.
    pub(crate) async fn step(&self, call: Call, edge: Edge, who: &str) -> Result<()> {
        let Some((fault, slow)) = self.lock().reach(call, edge, who) else { return pending().await };
        if self.lock().steps >= STEPS_MAX {
            self.kill();
            return pending().await;
        }
        if !slow.is_zero() {
            sleep(slow).await;
            if self.lock().crashed {
                return pending().await;
            }
        }
        match fault {
            None => Ok(()),
            Some(Fault::Failure) => Err(Error::transient(format!("{who}: {call:?} was made to fail"))),
            Some(Fault::Crash) => {
                self.kill();
                pending().await
            }
        }
    }

    /// Something is wrong.
    pub(crate) fn violation(&self, text: impl fmt::Display) {
        self.lock().violation(text);
    }

    /// The trace so far; empty if none was asked for.
    pub(crate) fn take_trace(&self) -> Vec<String> {
        self.lock().trace.take().unwrap_or_default()
    }

    /// A number that two runs of one seed share.
    pub(crate) fn digest(&self) -> u64 {
        self.lock().digest
    }
}

impl State {
    /// Virtual time since 1970, µs.
    pub(crate) fn now_us(&self) -> i64 {
        let elapsed = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        self.base_us + elapsed.as_micros() as i64
    }

    /// What a step meets, and how long it takes; `None` for a dead process.
    fn reach(&mut self, call: Call, edge: Edge, who: &str) -> Option<(Option<Fault>, Duration)> {
        if self.crashed {
            return None;
        }
        self.steps += 1;
        if self.steps == STEPS_MAX {
            self.violation(format!("stuck: {STEPS_MAX} calls in one life"));
        }
        // `next` must not be slow after it took records: it may be dropped while it waits.
        let young = self.started.is_some_and(|started| started.elapsed() < SLOW_MAX);
        let is_slow = edge == Edge::Before && young && self.random.chance(self.plan.slow_percent);
        let slow = Duration::from_millis(if is_slow { self.random.below(self.plan.slow_ms_max) } else { 0 });
        let fault = self.plan.reach((call, edge));
        if let Some(fault) = fault {
            *self.struck.entry((call, edge, fault)).or_default() += 1;
        }
        self.note(|| match fault {
            None => format!("{who}: {edge:?} {call:?}"),
            Some(fault) => format!("{who}: {edge:?} {call:?} *** {fault:?}"),
        });
        Some((fault, slow))
    }

    /// Adds a line to the trace and to the digest.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        let now_us = self.now_us();
        self.digest = (self.digest ^ now_us as u64).wrapping_mul(0x100_0000_01b3).rotate_left(17);
        if let Some(trace) = &mut self.trace {
            let line = line();
            self.digest =
                line.bytes().fold(self.digest, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
            trace.push(format!("{:>14.3} ms  {line}", (now_us - 1_800_000_000_000_000) as f64 / 1000.0));
        }
    }

    pub(crate) fn violation(&mut self, text: impl fmt::Display) {
        let text = text.to_string();
        self.note(|| format!("VIOLATION: {text}"));
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }

    /// A call broke the contract. Nothing of it may be visible from outside, so the mutants must be caught without it.
    pub(crate) fn breach(&mut self, text: impl fmt::Display) {
        if self.is_mutant {
            self.note(|| format!("breach: {text}"));
        } else {
            self.violation(text);
        }
    }

    /// Counts something worth knowing of a run.
    pub(crate) fn count(&mut self, what: &'static str, n: u64) {
        *self.seen.entry(what).or_default() += n;
    }
}

impl Clock for Stage {
    fn now(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.lock().now_us()).unwrap_or(0))
    }
}
