//! Spans of time counted in fixed buckets: percentiles without keeping the spans.
//!
//! Counted twice: between bounds that read well, for those who add histograms up, and in steps of 6 %, for percentiles.

use std::time::Duration;

/// How often a span fell between two bounds. Counts since the start of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    /// By bound, and a last one for what is longer than all of them.
    counts: [u64; Histogram::BOUNDS_MS.len() + 1],
    steps: Box<[u64]>,
    sum_ms: u64,
}

/// Steps between a span and its double.
const STEPS_PER_DOUBLING: usize = 16;
/// Up to 18 hours; longer spans count as that.
const DOUBLINGS: usize = 23;

impl Default for Histogram {
    fn default() -> Self {
        let steps = vec![0; STEPS_PER_DOUBLING * DOUBLINGS].into();
        Self { counts: [0; Histogram::BOUNDS_MS.len() + 1], steps, sum_ms: 0 }
    }
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
        let step = &mut self.steps[step(ms)];
        *step = step.saturating_add(times);
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

    /// The span that the share `of` (0 to 1) of all spans does not exceed, at most 6 % too long. `None` if there were none.
    pub fn quantile(&self, of: f64) -> Option<Duration> {
        let rank = ((of.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64).max(1);
        let mut reached = 0u64;
        self.steps.iter().enumerate().find_map(|(at, n)| {
            reached = reached.saturating_add(*n);
            (reached >= rank).then(|| Duration::from_millis(longest_ms(at)))
        })
    }
}

/// Below 16 ms a step is a millisecond, then there are 16 for each doubling.
fn step(ms: u64) -> usize {
    let doubling = (u64::BITS - (ms / STEPS_PER_DOUBLING as u64).leading_zeros()) as usize;
    let within = if doubling == 0 { ms } else { (ms >> (doubling - 1)) - STEPS_PER_DOUBLING as u64 };
    (doubling * STEPS_PER_DOUBLING + within as usize).min(STEPS_PER_DOUBLING * DOUBLINGS - 1)
}

/// The longest span of a step, ms.
fn longest_ms(step: usize) -> u64 {
    let (doubling, within) = (step / STEPS_PER_DOUBLING, (step % STEPS_PER_DOUBLING) as u64);
    match doubling {
        0 => within,
        _ => ((STEPS_PER_DOUBLING as u64 + within + 1) << (doubling - 1)) - 1,
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
        assert_eq!(histogram.quantile(0.0), Some(Duration::from_millis(10)));
        assert_eq!(histogram.quantile(0.2), Some(Duration::from_millis(11)));
        assert_eq!(histogram.quantile(0.6), Some(Duration::from_millis(415)), "within 6 % of 400");
        histogram.add(Duration::MAX, u64::MAX);
        assert!(histogram.quantile(0.99) > Some(Duration::from_secs(60_000)));
    }

    #[test]
    fn steps_cover_every_span() {
        let mut last = 0;
        for ms in (0..5000).chain((5000..40_000_000).step_by(9973)) {
            let at = step(ms);
            assert!(at == last || at == last + 1 || ms >= 5000, "{ms}");
            last = at;
            let longest = longest_ms(at);
            assert!(longest >= ms && longest as f64 <= ms as f64 * 1.0625 + 1.0, "{ms} in {longest}");
        }
        assert_eq!(step(u64::MAX), STEPS_PER_DOUBLING * DOUBLINGS - 1);
    }
}
