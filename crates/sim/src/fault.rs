//! What goes wrong, and when: faults are planned by the step of the call at which they strike.

use std::collections::BTreeMap;

use crate::random::Random;

/// The calls of the contracts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// `Source::open`.
    SourceOpen,
    /// `Source::next`.
    SourceNext,
    /// `Source::release`.
    SourceRelease,
    /// `Sink::recover`.
    SinkRecover,
    /// `Sink::begin`.
    SinkBegin,
    /// `Sink::write`.
    SinkWrite,
    /// `Sink::prepare`.
    SinkPrepare,
    /// `Sink::commit`.
    SinkCommit,
    /// `Store::latest`.
    StoreLatest,
    /// `Store::commit`.
    StoreCommit,
    /// `Store::savepoint`.
    StoreSavepoint,
    /// `DeadLetters::recover`.
    LettersRecover,
    /// `DeadLetters::write`.
    LettersWrite,
    /// `DeadLetters::prepare`.
    LettersPrepare,
}

impl Call {
    /// All calls.
    pub const ALL: [Call; 14] = [
        Call::SourceOpen,
        Call::SourceNext,
        Call::SourceRelease,
        Call::SinkRecover,
        Call::SinkBegin,
        Call::SinkWrite,
        Call::SinkPrepare,
        Call::SinkCommit,
        Call::StoreLatest,
        Call::StoreCommit,
        Call::StoreSavepoint,
        Call::LettersRecover,
        Call::LettersWrite,
        Call::LettersPrepare,
    ];

    /// How often it happens in one life, roughly; a fault strikes one of the first so many.
    fn usual_count(self) -> u64 {
        match self {
            Call::SourceOpen | Call::StoreLatest | Call::LettersRecover | Call::StoreSavepoint => 1,
            Call::SinkRecover | Call::LettersWrite | Call::LettersPrepare => 3,
            Call::SourceRelease | Call::StoreCommit => 6,
            Call::SinkBegin | Call::SinkPrepare | Call::SinkCommit => 12,
            Call::SourceNext | Call::SinkWrite => 30,
        }
    }
}

/// Before or after a call's durable effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Edge {
    /// Nothing of it has happened.
    Before,
    /// All of it has happened, but the caller does not know.
    After,
}

impl Edge {
    /// Both.
    pub const ALL: [Edge; 2] = [Edge::Before, Edge::After];
}

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// The process dies.
    Crash,
    /// The call fails; a retry may succeed.
    Failure,
}

/// A step of a call.
pub(crate) type Step = (Call, Edge);

/// The faults of one life: each strikes at the n-th time that its step is reached.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    planned: BTreeMap<Step, Vec<(u64, Fault)>>,
    reached: BTreeMap<Step, u64>,
    /// Percent of the calls that take long.
    pub(crate) slow_percent: u64,
    /// The longest that they take, ms of virtual time.
    pub(crate) slow_ms_max: u64,
}

impl Plan {
    /// A life without a crash, but perhaps with failures and slow calls.
    pub(crate) fn survivable(random: &mut Random, failures_max: u64) -> Self {
        let mut plan = Plan {
            slow_percent: random.pick(&[0, 0, 5, 30]),
            slow_ms_max: random.pick(&[10, 200, 3000]),
            ..Plan::default()
        };
        for _ in 0..random.below(failures_max + 1) {
            plan.add(random, Fault::Failure);
        }
        plan
    }

    /// The same with a crash at a random step.
    pub(crate) fn crashing(random: &mut Random, failures_max: u64) -> Self {
        let mut plan = Self::survivable(random, failures_max);
        plan.add(random, Fault::Crash);
        plan
    }

    /// No fault, but slow calls.
    #[cfg(test)]
    pub(crate) fn slow(percent: u64, ms_max: u64) -> Self {
        Self { slow_percent: percent, slow_ms_max: ms_max, ..Self::default() }
    }

    /// No fault at all.
    pub(crate) fn calm() -> Self {
        Self::default()
    }

    fn add(&mut self, random: &mut Random, fault: Fault) {
        let call = random.pick(&Call::ALL);
        let edge = random.pick(&Edge::ALL);
        let nth = random.below(call.usual_count());
        self.planned.entry((call, edge)).or_default().push((nth, fault));
    }

    /// The step is reached: what strikes.
    pub(crate) fn reach(&mut self, step: Step) -> Option<Fault> {
        let reached = self.reached.entry(step).or_default();
        let now = *reached;
        *reached += 1;
        let planned = self.planned.get(&step)?;
        planned.iter().find(|(nth, _)| *nth == now).map(|(_, fault)| *fault)
    }
}
