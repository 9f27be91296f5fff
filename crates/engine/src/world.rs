//! What surrounds a pipeline: its connectors and the clock.

use std::time::Duration;

use millstream_core::{DeadLetters, Decoder, Result, Sink, Source, Store};

/// Makes a pipeline's connectors, anew for every attempt: after a failure nothing of the old ones is used again.
pub trait World: Send + Sync + 'static {
    /// The source, not yet opened.
    fn source(&self) -> Result<Box<dyn Source>>;

    /// A decoder; each worker has its own.
    fn decoder(&self) -> Result<Box<dyn Decoder>>;

    /// The sinks with their names, which must be stable across restarts (they name tokens in checkpoints).
    fn sinks(&self) -> Result<Vec<(String, Box<dyn Sink>)>>;

    /// The checkpoint store.
    fn store(&self) -> Result<Box<dyn Store>>;

    /// Where dead letters go.
    fn dead_letters(&self) -> Result<Box<dyn DeadLetters>>;

    /// The clock.
    fn clock(&self) -> &dyn Clock;
}

/// Wall-clock time. Waiting is tokio's, which simulations pause.
pub trait Clock: Send + Sync {
    /// Time since 1970-01-01T00:00:00Z.
    fn now(&self) -> Duration;
}

/// The machine's clock.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> Duration {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
    }
}
