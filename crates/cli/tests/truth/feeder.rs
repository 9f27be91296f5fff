//! What delivery does to records: it repeats them, it swaps them, and it stops in the middle of a line.

use std::io::Write as _;
use std::path::Path;

/// A seeded generator (SplitMix64), so that a failing run can be made again.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Every line one to three times, none further than 50 positions from where it was.
pub(crate) fn repeated_and_shuffled(lines: &[String], random: &mut Random) -> Vec<String> {
    let mut copies: Vec<(u64, u64, &String)> = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        for _ in 0..1 + random.below(3) {
            copies.push((i as u64 + random.below(50), random.next(), line));
        }
    }
    copies.sort();
    copies.into_iter().map(|(_, _, line)| line.clone()).collect()
}

/// Appends text to a file.
pub(crate) fn append(file: &Path, text: &[u8]) {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    file.write_all(text).unwrap();
}

#[test]
fn no_line_is_lost_or_moves_far() {
    let lines: Vec<String> = (0..1000).map(|i| i.to_string()).collect();
    let shuffled = repeated_and_shuffled(&lines, &mut Random::new(7));
    let mut seen = vec![0; 1000];
    let mut highest = 0;
    for line in &shuffled {
        let line: usize = line.parse().unwrap();
        seen[line] += 1;
        assert!(line + 50 > highest, "{line} came after {highest}");
        highest = highest.max(line);
    }
    assert!(seen.iter().all(|n| (1..=3).contains(n)));
    assert!((1900..2100).contains(&shuffled.len()));
}
