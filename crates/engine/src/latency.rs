//! How long changes take from the database to the warehouse. A sample of each batch's events is followed to the commit that made
//! them visible: a clock reading for each event would cost more than it tells.

use std::time::Duration;

use millstream_core::{Event, Record};

use crate::histogram::Histogram;

/// Events of a batch that are followed, about.
const STAMPS_PER_BATCH: usize = 64;
/// Stamps of an epoch; what comes behind them counts as its last one did.
const STAMPS_MAX: usize = 1 << 16;

/// How long events took, those of snapshots and redelivered ones included. Counts since the start of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Latencies {
    /// From the commit in the source's database until every sink had made it visible.
    pub source_to_warehouse: Histogram,
    /// From the commit in the source's database until the broker took it.
    pub source_to_broker: Histogram,
    /// From there until every sink had made it visible.
    pub broker_to_warehouse: Histogram,
}

/// When an event passed its first stations, ms since 1970, and for how many events it stands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    source_ms: Option<i64>,
    broker_ms: Option<i64>,
    stands_for: u64,
}

/// Chooses the events of one batch that are followed.
pub(crate) struct Sampler {
    stride: usize,
    pub(crate) stamps: Vec<Stamp>,
}

impl Sampler {
    pub(crate) fn new(records: usize) -> Self {
        Self { stride: records / STAMPS_PER_BATCH + 1, stamps: Vec::new() }
    }

    /// The record's first event.
    pub(crate) fn see(&mut self, index: u32, record: &Record<'_>, event: &Event) {
        if (index as usize).is_multiple_of(self.stride) {
            let (source_ms, broker_ms) = (event.facts.ts_ms, record.publish_ts_ms());
            if source_ms.is_some() || broker_ms.is_some() {
                self.stamps.push(Stamp { source_ms, broker_ms, stands_for: self.stride as u64 });
            }
        }
    }
}

/// Adds a batch's stamps to its epoch's.
pub(crate) fn gather(epoch: &mut Vec<Stamp>, batch: Vec<Stamp>) {
    let room = STAMPS_MAX.saturating_sub(epoch.len());
    let beyond: u64 = batch.iter().skip(room).map(|stamp| stamp.stands_for).sum();
    epoch.extend(batch.into_iter().take(room));
    if let Some(last) = epoch.last_mut() {
        last.stands_for += beyond;
    }
}

impl Latencies {
    /// The events of these stamps are visible now. Clocks that disagree count as no time at all.
    pub(crate) fn visible(&mut self, stamps: &[Stamp], now_ms: i64) {
        let span = |from: i64, to: i64| Duration::from_millis(to.saturating_sub(from).max(0) as u64);
        for Stamp { source_ms, broker_ms, stands_for } in stamps {
            if let Some(source_ms) = source_ms {
                self.source_to_warehouse.add(span(*source_ms, now_ms), *stands_for);
            }
            if let (Some(source_ms), Some(broker_ms)) = (source_ms, broker_ms) {
                self.source_to_broker.add(span(*source_ms, *broker_ms), *stands_for);
            }
            if let Some(broker_ms) = broker_ms {
                self.broker_to_warehouse.add(span(*broker_ms, now_ms), *stands_for);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(source_ms: i64, broker_ms: Option<i64>) -> Stamp {
        Stamp { source_ms: Some(source_ms), broker_ms, stands_for: 10 }
    }

    #[test]
    fn each_way_is_counted_where_both_of_its_ends_are_known() {
        let mut latencies = Latencies::default();
        latencies.visible(&[stamp(1000, None), stamp(1000, Some(3000)), stamp(9000, Some(8000))], 5000);
        let counted = |of: &Histogram| (of.count(), of.sum().as_millis());
        assert_eq!(counted(&latencies.source_to_warehouse), (30, 80_000), "one clock is ahead of ours");
        assert_eq!(counted(&latencies.source_to_broker), (20, 20_000));
        assert_eq!(counted(&latencies.broker_to_warehouse), (20, 20_000));
    }

    #[test]
    fn an_epoch_keeps_a_bounded_number_and_counts_all() {
        let mut epoch = Vec::new();
        for _ in 0..STAMPS_MAX / 50 {
            gather(&mut epoch, vec![stamp(0, None); 64]);
        }
        assert_eq!(epoch.len(), STAMPS_MAX);
        let counted: u64 = epoch.iter().map(|stamp| stamp.stands_for).sum();
        assert_eq!(counted, (STAMPS_MAX / 50 * 64 * 10) as u64);
    }
}
