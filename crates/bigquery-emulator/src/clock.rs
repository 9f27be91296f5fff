//! The emulator's time: the machine's, plus what a test advanced it by.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The clock.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    epoch: i64,
    advanced: AtomicI64,
}

impl Clock {
    /// Starts it.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn start() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64);
        Self { started: Instant::now(), epoch, advanced: AtomicI64::new(0) }
    }

    /// Microseconds since 1970.
    pub(crate) fn micros(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.epoch.saturating_add(elapsed).saturating_add(self.advanced.load(Ordering::Relaxed))
    }

    /// Milliseconds since 1970.
    pub(crate) fn millis(&self) -> i64 {
        self.micros() / 1000
    }

    /// Lets time pass at once.
    pub(crate) fn advance(&self, by: Duration) {
        self.advanced.fetch_add(micros(by), Ordering::Relaxed);
    }
}

/// A duration in microseconds.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}
