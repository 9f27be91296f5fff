//! Pipelines that are wrong on purpose: checkers that do not catch them are of no use.

/// A mistake, made by a wrapper around a contract or by a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// Records are acknowledged when they are delivered.
    EarlyAck,
    /// Rows are visible for good when they are prepared, whether or not a checkpoint follows.
    EarlyFlush,
    /// Keyed state becomes durable apart from, and before, the rest of its checkpoint.
    StateOutsideCheckpoint,
    /// The checkpoint forgets the tokens of its epoch.
    DroppedToken,
    /// Dedupe mode `latest` in front of a history.
    LatestOnHistory,
}

impl Mutant {
    /// All five.
    pub const ALL: [Mutant; 5] = [
        Mutant::EarlyAck,
        Mutant::EarlyFlush,
        Mutant::StateOutsideCheckpoint,
        Mutant::DroppedToken,
        Mutant::LatestOnHistory,
    ];
}
