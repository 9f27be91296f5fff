//! Spans of time counted in fixed buckets: percentiles without keeping the spans.

use std::time::Duration;

/// How often a span fell between two bounds. Counts since the start of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// By bound, and a last one for what is longer than all of them.
    counts: [u64; Histogram::BOUNDS_MS.len() + 1],
    sum_ms: u64,
}

impl Histogram {
    /// The buckets' upper bounds, each included.
    pub const BOUNDS_MS: [u64; 16] = [
        10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 900_000,
        3_600_000,
    ];

    /// Counts `span`, `times` times.
    pub fn add(&mut self, span: Duration, times: u64) {
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS_MS.partition_point(|bound| *bound < ms);
        self.counts[bucket] = self.counts[bucket].saturating_add(times);
        self.sum_ms = self.sum_ms.saturating_add(ms.saturating_mul(times));
    }

    /// How many spans there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// All spans together.
    pub fn sum(&self) -> Duration {
        Duration::from_millis(self.sum_ms)
    }

    /// How many spans were at most as long as each of [`BOUNDS_MS`](Self::BOUNDS_MS).
    pub fn cumulative(&self) -> [u64; Self::BOUNDS_MS.len()] {
        let mut sum = 0u64;
        std::array::from_fn(|bucket| {
            sum = sum.saturating_add(self.counts[bucket]);
            sum
        })
    }

    /// The span that the share `of` (0 to 1) of all spans does not exceed, interpolated within its bucket as Prometheus does.
    /// `None` if there were none; the highest bound for what is above it.
    pub fn quantile(&self, of: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = of.clamp(0.0, 1.0) * count as f64;
        let mut before = 0u64;
        let mut lower = 0;
        for (bound, n) in Self::BOUNDS_MS.iter().zip(self.counts) {
            let reached = before.saturating_add(n);
            if n > 0 && reached as f64 >= rank {
                let share = ((rank - before as f64) / n as f64).clamp(0.0, 1.0);
                let ms = lower as f64 + (*bound - lower) as f64 * share;
                return Some(Duration::from_secs_f64(ms / 1000.0));
            }
            (before, lower) = (reached, *bound);
        }
        Some(Duration::from_millis(lower))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_fall_into_buckets_and_percentiles_between_bounds() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.count(), histogram.quantile(0.5)), (0, None));
        histogram.add(Duration::from_millis(10), 1);
        histogram.add(Duration::from_millis(11), 1);
        histogram.add(Duration::from_millis(400), 8);
        assert_eq!(histogram.cumulative()[..6], [1, 2, 2, 2, 2, 10]);
        assert_eq!((histogram.count(), histogram.sum()), (10, Duration::from_millis(3221)));
        assert_eq!(histogram.quantile(0.0), Some(Duration::ZERO));
        // The fourth of the eight between 250 and 500 ms.
        assert_eq!(histogram.quantile(0.6), Some(Duration::from_millis(375)));
        assert_eq!(histogram.quantile(1.0), Some(Duration::from_millis(500)));
        histogram.add(Duration::MAX, u64::MAX);
        assert_eq!(histogram.quantile(0.99), Some(Duration::from_secs(3600)));
    }
}
