//! Watermarks: the source time up to which a partition's events are believed complete.

use std::collections::HashMap;

use crate::position::PartitionId;

/// Tracks the highest source time of each partition. Bounded out-of-orderness: a partition's watermark is its highest
/// time minus the allowed delay; late events are processed and counted and move nothing.
#[derive(Debug)]
pub struct Watermarks {
    delay_ms: i64,
    highest_ms: HashMap<PartitionId, i64>,
}

impl Watermarks {
    /// `delay_ms`: how far behind the newest event an event may come without being late (30 000 by default).
    pub fn new(delay_ms: i64, seen: impl IntoIterator<Item = (PartitionId, i64)>) -> Self {
        Self { delay_ms, highest_ms: seen.into_iter().collect() }
    }

    /// The watermark of a partition before the batch that is about to be observed; `None` before its first event.
    pub fn of(&self, partition: &PartitionId) -> Option<i64> {
        self.highest_ms.get(partition).map(|ms| ms.saturating_sub(self.delay_ms))
    }

    /// Takes in the highest source time of a batch.
    pub fn observe(&mut self, partition: &PartitionId, highest_ms: i64) {
        match self.highest_ms.get_mut(partition) {
            Some(seen) => *seen = (*seen).max(highest_ms),
            None => {
                self.highest_ms.insert(partition.clone(), highest_ms);
            }
        }
    }

    /// The pipeline's watermark: the lowest of its partitions'.
    pub fn lowest(&self) -> Option<i64> {
        self.highest_ms.values().min().map(|ms| ms.saturating_sub(self.delay_ms))
    }

    /// Highest times seen, for the checkpoint.
    pub fn snapshot(&self) -> Vec<(PartitionId, i64)> {
        let mut all: Vec<_> = self.highest_ms.iter().map(|(p, ms)| (p.clone(), *ms)).collect();
        all.sort();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_events_do_not_move_it() {
        let p = PartitionId::new("a");
        let mut w = Watermarks::new(30_000, []);
        assert_eq!(w.of(&p), None);
        w.observe(&p, 100_000);
        w.observe(&p, 50_000);
        assert_eq!(w.of(&p), Some(70_000));
        assert_eq!(w.lowest(), Some(70_000));
    }
}
