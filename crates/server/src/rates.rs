//! What flows a second, over the last seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use millstream_engine::Status;

/// What flows a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    /// Records taken in.
    pub records: f64,
    /// Bytes of these records.
    pub bytes: f64,
    /// Events judged.
    pub events: f64,
}

/// Keeps samples of the counts that grow while the pipeline runs.
#[derive(Debug, Default)]
pub struct Rates {
    /// (when; records, bytes, events), the oldest first.
    samples: VecDeque<(Instant, [u64; 3])>,
}

impl Rates {
    const WINDOW: Duration = Duration::from_secs(5);
    /// Samples that follow each other sooner tell nothing more.
    const APART: Duration = Duration::from_millis(100);

    /// Takes a sample; called a few times a second.
    pub fn sample(&mut self, status: &Status) {
        self.sample_at(Instant::now(), [status.records_in, status.bytes_in, status.events_in]);
    }

    fn sample_at(&mut self, now: Instant, counts: [u64; 3]) {
        if self.samples.back().is_some_and(|(last, _)| now.saturating_duration_since(*last) < Self::APART) {
            return;
        }
        self.samples.push_back((now, counts));
        while self.samples.len() > 2 && now.saturating_duration_since(self.samples[1].0) >= Self::WINDOW {
            self.samples.pop_front();
        }
    }

    /// What flowed between the first and the last sample.
    pub fn rate(&self) -> Rate {
        let (Some((since, before)), Some((until, after))) = (self.samples.front(), self.samples.back())
        else {
            return Rate::default();
        };
        let seconds = until.saturating_duration_since(*since).as_secs_f64();
        let of = |n: usize| {
            if seconds > 0.0 { after[n].saturating_sub(before[n]) as f64 / seconds } else { 0.0 }
        };
        Rate { records: of(0), bytes: of(1), events: of(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_seconds_count() {
        let start = Instant::now();
        let mut rates = Rates::default();
        assert_eq!(rates.rate(), Rate::default());
        for second in 0..20u64 {
            let n = if second < 10 { 0 } else { (second - 10) * 1000 };
            rates.sample_at(start + Duration::from_secs(second), [n, n * 10, n]);
            // Too soon to count.
            rates.sample_at(start + Duration::from_millis(second * 1000 + 1), [0, 0, 0]);
        }
        assert_eq!(rates.rate(), Rate { records: 1000.0, bytes: 10_000.0, events: 1000.0 });
        assert!(rates.samples.len() <= 7);
    }
}
