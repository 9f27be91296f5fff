//! When leases end: buckets by tick, and in them runs of neighbours. Limits: what was acknowledged or extended meanwhile
//! stays in its bucket until the bucket is due, at 16 bytes a run.

use std::collections::BTreeMap;

/// Places in a subscription that are due together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    first: u64,
    count: u64,
}

impl Run {
    /// Its places.
    pub(crate) fn places(self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }
}

/// Buckets of runs.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    buckets: BTreeMap<u64, Vec<Run>>,
}

impl Leases {
    /// Notes that these places are due at a tick.
    pub(crate) fn add(&mut self, tick: u64, places: impl IntoIterator<Item = u64>) {
        let mut places = places.into_iter().peekable();
        if places.peek().is_none() {
            return;
        }
        let bucket = self.buckets.entry(tick).or_default();
        for place in places {
            match bucket.last_mut() {
                Some(run) if run.first + run.count == place => run.count += 1,
                _ => bucket.push(Run { first: place, count: 1 }),
            }
        }
    }

    /// Takes the next bucket that is due at this tick.
    pub(crate) fn due(&mut self, tick: u64) -> Option<(u64, Vec<Run>)> {
        let first = self.buckets.first_entry().filter(|bucket| *bucket.key() <= tick)?;
        Some(first.remove_entry())
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.buckets.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run_and_buckets_come_in_turn() {
        let mut leases = Leases::default();
        leases.add(9, [7]);
        leases.add(5, [1, 2, 3, 8, 9]);
        leases.add(5, [10]);
        assert_eq!(leases.due(4), None);
        let (tick, runs) = leases.due(20).unwrap();
        assert_eq!((tick, runs), (5, vec![Run { first: 1, count: 3 }, Run { first: 8, count: 3 }]));
        assert_eq!(leases.due(20).unwrap().0, 9);
        assert_eq!(leases.due(20), None);
    }
}
