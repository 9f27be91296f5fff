//! The emulator's time: the machine's, plus what a test advanced it by.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Leases end on the ticks of this clock.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// Time since the start.
pub(crate) type Moment = Duration;

/// The clock.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    epoch: i64,
    advanced: AtomicU64,
}

impl Clock {
    /// Starts it.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn start() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        Self { started: Instant::now(), epoch, advanced: AtomicU64::new(0) }
    }

    /// How long it has been running.
    pub(crate) fn now(&self) -> Moment {
        self.started.elapsed() + Duration::from_nanos(self.advanced.load(Ordering::Relaxed))
    }

    /// Nanoseconds since 1970.
    pub(crate) fn wall(&self) -> i64 {
        self.epoch.saturating_add(i64::try_from(self.now().as_nanos()).unwrap_or(i64::MAX))
    }

    /// Lets time pass at once.
    pub(crate) fn advance(&self, by: Duration) {
        self.advanced.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX / 4), Ordering::Relaxed);
    }
}

/// The first tick that is not before this moment.
pub(crate) fn tick_after(moment: Moment) -> u64 {
    u64::try_from(moment.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX)
}

/// The last tick that has passed at this moment.
pub(crate) fn tick_at(moment: Moment) -> u64 {
    u64::try_from(moment.as_nanos() / TICK.as_nanos()).unwrap_or(u64::MAX)
}
