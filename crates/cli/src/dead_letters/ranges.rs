//! A set of letter numbers, small where whole stretches were taken.

use millstream_core::bytes::{put_varint, take_varint};

/// The encoding's format number.
const FORMAT: u8 = 1;

/// A set of numbers as sorted, disjoint, inclusive ranges that do not touch.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Whether `n` is in it.
    pub(crate) fn contains(&self, n: u64) -> bool {
        let after = self.0.partition_point(|&(start, _)| start <= n);
        after > 0 && self.0[after - 1].1 >= n
    }

    /// Adds `n`.
    pub(crate) fn insert(&mut self, n: u64) {
        if self.contains(n) {
            return;
        }
        let at = self.0.partition_point(|&(start, _)| start <= n);
        let joins_left = at > 0 && self.0[at - 1].1 + 1 == n;
        let joins_right = at < self.0.len() && self.0[at].0 == n + 1;
        match (joins_left, joins_right) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = n,
            (false, true) => self.0[at].0 = n,
            (false, false) => self.0.insert(at, (n, n)),
        }
    }

    /// As bytes: format, count, then per range the gap from the one before and the length, as varints.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        put_varint(&mut out, self.0.len() as u64);
        let mut before = 0;
        for &(start, end) in &self.0 {
            put_varint(&mut out, start - before);
            put_varint(&mut out, end - start);
            before = end;
        }
        out
    }

    /// From bytes; `None` if they are not of that form.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let (&format, rest) = bytes.split_first()?;
        bytes = rest;
        if format != FORMAT {
            return None;
        }
        let count = take_varint(&mut bytes)?;
        let mut ranges = Vec::new();
        let mut before = 0u64;
        for _ in 0..count {
            let start = before.checked_add(take_varint(&mut bytes)?)?;
            let end = start.checked_add(take_varint(&mut bytes)?)?;
            ranges.push((start, end));
            before = end;
        }
        bytes.is_empty().then_some(Self(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_join_into_ranges_and_come_back() {
        let mut set = Ranges::default();
        for n in [5, 1, 3, 2, 9, 5, 4] {
            set.insert(n);
        }
        assert_eq!(set.0, [(1, 5), (9, 9)]);
        assert!(set.contains(3) && set.contains(9) && !set.contains(6) && !set.contains(0));
        assert_eq!(Ranges::decode(&set.encode()), Some(set));
        assert_eq!(Ranges::decode(&[2, 0]), None);
        assert_eq!(Ranges::decode(&[1, 200]), None);
    }
}
