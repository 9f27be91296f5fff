//! How long a checkpoint may take.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::{Error, Result};
use tokio::time::{Instant, sleep_until};
use tracing::warn;

use crate::flow::Staged;
use crate::handle::Shared;

/// A checkpoint that outlasts its timeout this often in a row fails the attempt.
const TIMEOUTS_MAX: u32 = 3;

/// Waits for the steps of a checkpoint, counts the timeouts that it outlasts, and gives up at the third.
pub(crate) struct Patience {
    shared: Arc<Shared>,
    timeout: Duration,
    started: Instant,
    timeouts: u32,
}

impl Patience {
    pub(crate) fn new(shared: Arc<Shared>, timeout: Duration) -> Self {
        Self { shared, timeout, started: Instant::now(), timeouts: 0 }
    }

    /// A new checkpoint begins.
    pub(crate) fn begin(&mut self) {
        self.started = Instant::now();
        self.timeouts = 0;
    }

    /// Waits for a step of it.
    pub(crate) async fn wait<T>(&mut self, step: impl Future<Output = Staged<T>>) -> Staged<T> {
        tokio::pin!(step);
        loop {
            tokio::select! {
                biased;
                done = &mut step => return done,
                () = sleep_until(self.started + self.timeout * (self.timeouts + 1)) => self.late()?,
            }
        }
    }

    fn late(&mut self) -> Result<()> {
        self.timeouts += 1;
        let waited = self.timeout * self.timeouts;
        warn!(seconds = waited.as_secs(), "a checkpoint outlasts its timeout");
        self.shared.update(|status| status.checkpoints_failed += 1);
        if self.timeouts < TIMEOUTS_MAX {
            return Ok(());
        }
        Err(Error::transient(format!(
            "a checkpoint did not become durable within {} s: look at the sinks' and the checkpoint directory's disks, \
             or raise checkpoint.timeout",
            waited.as_secs()
        )))
    }
}
