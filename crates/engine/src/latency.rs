//! From a message's publish time to its rows being visible, as a histogram.
//!
//! Limits: publish times are kept in steps of 5 ms, latencies in steps of at most 6 %, from 1 ms to 18 hours.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::RecordBatch;

/// Steps of publish times, ms.
const STEP_MS: i64 = 5;
/// Different publish times of an epoch at most; a backlog of years has more, and is counted in coarser steps.
const TIMES_MAX: usize = 50_000;
/// Steps between a latency and its double.
const PER_DOUBLING: usize = 16;
const DOUBLINGS: usize = 26;

/// Publish times of an epoch's records.
#[derive(Debug, Default)]
pub(crate) struct Published {
    /// Time in steps → records.
    times: BTreeMap<i64, u64>,
    /// How many steps are one, as a power of two.
    coarse: u32,
}

impl Published {
    /// Adds the records of a batch that have a publish time.
    pub(crate) fn add(&mut self, batch: &RecordBatch) {
        let times = batch.slots.iter().filter_map(|slot| slot.publish_ts_ms);
        // Neighbours were mostly published together.
        let (mut last, mut run) = (i64::MIN, 0);
        for ms in times {
            let step = (ms / STEP_MS) >> self.coarse;
            if step != last && run > 0 {
                *self.times.entry(last).or_default() += std::mem::take(&mut run);
            }
            last = step;
            run += 1;
        }
        if run > 0 {
            *self.times.entry(last).or_default() += run;
        }
        while self.times.len() > TIMES_MAX {
            self.coarse += 1;
            for (step, n) in std::mem::take(&mut self.times) {
                *self.times.entry(step >> 1).or_default() += n;
            }
        }
    }
}

/// How long records took from their publishing until their rows were visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latency {
    buckets: Vec<u64>,
    count: u64,
    sum_ms: u128,
}

impl Default for Latency {
    fn default() -> Self {
        Self { buckets: vec![0; PER_DOUBLING * DOUBLINGS], count: 0, sum_ms: 0 }
    }
}

impl Latency {
    /// Counts an epoch's records as visible at `now_ms`.
    pub(crate) fn visible(&mut self, published: &Published, now_ms: i64) {
        for (step, n) in &published.times {
            let at_ms = (step << published.coarse).saturating_mul(STEP_MS);
            // Of two clocks the publisher's may be ahead.
            let ms = now_ms.saturating_sub(at_ms).max(0) as u64;
            self.buckets[bucket(ms)] += n;
            self.count += n;
            self.sum_ms += u128::from(ms) * u128::from(*n);
        }
    }

    /// Records counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of their latencies.
    pub fn sum(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.sum_ms).unwrap_or(u64::MAX))
    }

    /// The latency that a share of the records (`0.0` to `1.0`) did not exceed; `None` without records.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        self.buckets.iter().enumerate().find_map(|(at, n)| {
            seen += n;
            (seen >= wanted).then(|| upper(at))
        })
    }

    /// How many took at most `limit`, as far as the steps tell.
    pub fn at_most(&self, limit: Duration) -> u64 {
        let within = self.buckets.iter().enumerate().take_while(|(at, _)| upper(*at) <= limit);
        within.map(|(_, n)| n).sum()
    }

    /// What was counted since an earlier state.
    #[must_use]
    pub fn since(&self, earlier: &Latency) -> Latency {
        Latency {
            buckets: self
                .buckets
                .iter()
                .zip(&earlier.buckets)
                .map(|(now, then)| now.saturating_sub(*then))
                .collect(),
            count: self.count.saturating_sub(earlier.count),
            sum_ms: self.sum_ms.saturating_sub(earlier.sum_ms),
        }
    }
}

/// Below 16 ms one bucket a millisecond, then 16 for each doubling.
fn bucket(ms: u64) -> usize {
    let doubling = (u64::BITS - (ms / PER_DOUBLING as u64).leading_zeros()) as usize;
    let within = if doubling == 0 { ms } else { (ms >> (doubling - 1)) - PER_DOUBLING as u64 };
    (doubling * PER_DOUBLING + within as usize).min(PER_DOUBLING * DOUBLINGS - 1)
}

/// The largest latency of a bucket.
fn upper(at: usize) -> Duration {
    let (doubling, within) = (at / PER_DOUBLING, (at % PER_DOUBLING) as u64);
    let ms = match doubling {
        0 => within,
        _ => ((PER_DOUBLING as u64 + within + 1) << (doubling - 1)) - 1,
    };
    Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_latency_within_their_steps() {
        let mut last = 0;
        for ms in (0..5000).chain((5000..40_000_000).step_by(9973)) {
            let at = bucket(ms);
            assert!(at == last || at == last + 1 || ms >= 5000, "{ms}");
            last = at;
            let upper = upper(at).as_millis() as u64;
            assert!(upper >= ms && upper as f64 <= ms as f64 * 1.0625 + 1.0, "{ms} in {upper}");
        }
        bucket(u64::MAX);
    }

    #[test]
    fn quantiles_of_what_was_counted() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(0.5), None);
        let published = Published { times: [(100, 90), (20, 10)].into(), coarse: 0 };
        latency.visible(&published, 1000);
        assert_eq!((latency.count(), latency.sum()), (100, Duration::from_millis(90 * 500 + 10 * 900)));
        let near = |share, ms: u64| {
            let got = latency.quantile(share).unwrap().as_millis() as f64;
            assert!((got - ms as f64).abs() <= ms as f64 * 0.07, "{share}: {got}");
        };
        near(0.5, 500);
        near(0.9, 500);
        near(0.95, 900);
        assert_eq!(latency.at_most(Duration::from_millis(600)), 90);
        let earlier = latency.clone();
        latency.visible(&Published { times: [(199, 5)].into(), coarse: 0 }, 1000);
        assert_eq!(latency.since(&earlier).count(), 5);
    }

    #[test]
    fn a_backlog_of_years_is_counted_in_coarser_steps() {
        let mut published = Published::default();
        for chunk in 0..200i64 {
            let slot = |n: i64| millstream_core::record::Slot {
                publish_ts_ms: Some((chunk * 1000 + n) * 60_000),
                ..Default::default()
            };
            published.add(&RecordBatch {
                partition: millstream_core::PartitionId::new("p"),
                buffer: Vec::new(),
                slots: (0..1000).map(slot).collect(),
                position: Default::default(),
            });
        }
        assert!(published.times.len() <= TIMES_MAX && published.coarse > 0);
        assert_eq!(published.times.values().sum::<u64>(), 200_000);
    }
}
