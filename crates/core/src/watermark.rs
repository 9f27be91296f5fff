//! Watermarks: the source time up to which events are believed complete, of a partition and of the pipeline.

use std::collections::{HashMap, HashSet};

use crate::position::PartitionId;

/// Tracks the highest source time of each partition. Bounded out-of-orderness: a partition's watermark is its highest
/// time minus the allowed delay; late events are processed and counted and move nothing.
///
/// The pipeline's is the lowest of the partitions that are being read. One that rests, since it was read to its end or gave
/// nothing yet in this run, does not hold it back; where all rest, it is the highest, as nothing is outstanding. It never
/// goes back: what a partition brings that wakes up behind it is late.
#[derive(Debug)]
pub struct Watermarks {
    delay_ms: i64,
    highest_ms: HashMap<PartitionId, i64>,
    /// Partitions that are being read.
    awake: HashSet<PartitionId>,
    /// Partitions whose highest time rose since it was last asked for.
    risen: HashSet<PartitionId>,
    /// The highest of all.
    top_ms: Option<i64>,
    /// What the pipeline's watermark came to, without the delay.
    reached_ms: Option<i64>,
}

impl Watermarks {
    /// `delay_ms`: how far behind the newest event an event may come without being late (30 000 by default); the highest
    /// times and what the pipeline's watermark came to, as the last checkpoint has them.
    pub fn new(
        delay_ms: i64,
        seen: impl IntoIterator<Item = (PartitionId, i64)>,
        reached_ms: Option<i64>,
    ) -> Self {
        let highest_ms: HashMap<_, _> = seen.into_iter().collect();
        let top_ms = highest_ms.values().copied().max();
        Self { delay_ms, highest_ms, awake: HashSet::new(), risen: HashSet::new(), top_ms, reached_ms }
    }

    /// The watermark of a partition before the batch that is about to be observed; `None` before its first event.
    pub fn of(&self, partition: &PartitionId) -> Option<i64> {
        self.highest_ms.get(partition).map(|ms| ms.saturating_sub(self.delay_ms))
    }

    /// Takes in the highest source time of a batch.
    pub fn observe(&mut self, partition: &PartitionId, highest_ms: i64) {
        self.top_ms = self.top_ms.max(Some(highest_ms));
        if !self.awake.contains(partition) {
            self.awake.insert(partition.clone());
        }
        if self.highest_ms.get(partition).is_none_or(|seen| *seen < highest_ms) {
            self.highest_ms.insert(partition.clone(), highest_ms);
            self.risen.insert(partition.clone());
        }
    }

    /// The partition was read to its end.
    pub fn rest(&mut self, partition: &PartitionId) {
        self.awake.remove(partition);
    }

    /// What the pipeline's watermark has come to, without the delay.
    pub fn reached(&mut self) -> Option<i64> {
        let lowest = self.awake.iter().filter_map(|partition| self.highest_ms.get(partition)).min().copied();
        self.reached_ms = self.reached_ms.max(lowest.or(self.top_ms));
        self.reached_ms
    }

    /// The highest times that rose since the last call, for the checkpoint.
    pub fn take_risen(&mut self) -> Vec<(PartitionId, i64)> {
        let mut risen: Vec<_> = self.risen.drain().map(|p| (self.highest_ms[&p], p)).collect();
        risen.sort_by(|a, b| a.1.cmp(&b.1));
        risen.into_iter().map(|(ms, p)| (p, ms)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_events_do_not_move_it() {
        let p = PartitionId::new("a");
        let mut w = Watermarks::new(30_000, [], None);
        assert_eq!(w.of(&p), None);
        w.observe(&p, 100_000);
        assert_eq!(w.take_risen(), [(p.clone(), 100_000)]);
        w.observe(&p, 50_000);
        assert_eq!((w.of(&p), w.reached()), (Some(70_000), Some(100_000)));
        assert_eq!(w.take_risen(), []);
    }

    /// The watermark was the lowest of all partitions that were ever seen, so that the file of a past year, long read to its
    /// end, held it back for good.
    #[test]
    fn what_rests_does_not_hold_it_back_and_it_never_goes_back() {
        let [old, a, b] = ["old", "a", "b"].map(PartitionId::new);
        let mut w = Watermarks::new(0, [], None);
        w.observe(&old, 10);
        w.observe(&a, 500);
        assert_eq!(w.reached(), Some(10), "both are being read");
        w.rest(&old);
        assert_eq!(w.reached(), Some(500));
        w.observe(&b, 300);
        assert_eq!(w.reached(), Some(500), "a partition behind it does not take it back");
        w.observe(&a, 900);
        assert_eq!(w.reached(), Some(500));
        w.rest(&b);
        w.rest(&a);
        assert_eq!(w.reached(), Some(900), "nothing is outstanding");
        let mut again = Watermarks::new(0, [(old.clone(), 10), (a.clone(), 900)], w.reached());
        again.observe(&old, 20);
        assert_eq!(again.reached(), Some(900));
    }
}
