//! Waits between attempts: doubled each time, within bounds, with full jitter, so that many clients do not come back at once.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The next wait's bound, doubled with each failure.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(30);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    /// A success: start again with short waits.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }

    /// How long to wait now: between half of the bound and the bound.
    pub(crate) fn wait(&mut self) -> Duration {
        let bound = self.next;
        self.next = (bound * 2).min(LAST);
        let jitter = random() % (bound.as_micros() as u64 / 2 + 1);
        bound / 2 + Duration::from_micros(jitter)
    }
}

/// A number that differs between processes and calls; not for secrets.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_again() {
        let mut backoff = Backoff::new();
        for _ in 0..20 {
            let bound = backoff.next;
            let wait = backoff.wait();
            assert!(wait >= bound / 2 && wait <= bound, "{wait:?} for {bound:?}");
        }
        assert_eq!(backoff.next, LAST);
        backoff.reset();
        assert!(backoff.wait() <= FIRST);
    }
}
