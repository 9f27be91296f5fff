//! A run: a sorted set of event ids in about three bytes each.
//!
//! ```text
//! top                 the largest id
//! deltas              id[1] - id[0], id[2] - id[1], …, top - id[n-2]; each a LEB128 varint, ascending
//! ```
//!
//! The last byte of a LEB128 varint is the only one below 0x80, so the deltas can be read from the back. An id above the top
//! is appended in place, and an id just below it (an event that overtook another) is found after a few steps.

use super::encoding::{put_wide, take_wide};
use crate::bytes::{put_varint, take_varint};
use crate::order::EventId;

/// A sorted set of event ids. May be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Run {
    /// The largest id; meaningless while `count` is 0.
    top: u128,
    count: u32,
    deltas: Vec<u8>,
}

/// Where an id belongs in a run.
enum Place {
    /// It is there.
    Present,
    /// Between two ids, or below the lowest: `start..end` are the bytes of the delta to split (empty below the lowest),
    /// `above` is the next larger id.
    Gap { start: usize, end: usize, above: u128 },
}

impl Run {
    /// A run of one id.
    pub(super) fn of(id: EventId) -> Self {
        Self { top: id.0, count: 1, deltas: Vec::new() }
    }

    /// Number of ids.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// The largest id.
    pub(super) fn top(&self) -> Option<EventId> {
        (self.count > 0).then_some(EventId(self.top))
    }

    /// The smallest id.
    pub(super) fn bottom(&self) -> Option<EventId> {
        self.top().map(|top| EventId(top.0 - self.span()))
    }

    /// Bytes on the heap.
    pub(super) fn footprint(&self) -> usize {
        self.deltas.capacity()
    }

    /// Whether `id` is in the run.
    pub(super) fn contains(&self, id: EventId) -> bool {
        self.count > 0 && id.0 <= self.top && matches!(self.find(id.0), Place::Present)
    }

    /// Adds `id`; `false` if it was there.
    pub(super) fn insert(&mut self, id: EventId) -> bool {
        if self.count == 0 {
            (self.top, self.count) = (id.0, 1);
            return true;
        }
        if id.0 > self.top {
            put_wide(&mut self.deltas, id.0 - self.top);
            self.top = id.0;
            self.count += 1;
            return true;
        }
        match self.find(id.0) {
            Place::Present => false,
            Place::Gap { start, end, above } => {
                let mut split = Vec::with_capacity(40);
                if start < end {
                    let below = above - read_back(&self.deltas, end).0;
                    put_wide(&mut split, id.0 - below);
                }
                put_wide(&mut split, above - id.0);
                self.deltas.splice(start..end, split);
                self.count += 1;
                true
            }
        }
    }

    /// Splits off all but the newest `keep` ids (at least 1) as a run of their own; `None` if there are no more.
    pub(super) fn split_older(&mut self, keep: u32) -> Option<Run> {
        let keep = keep.max(1);
        if self.count <= keep {
            return None;
        }
        let (mut id, mut end) = (self.top, self.deltas.len());
        for _ in 1..keep {
            let (delta, start) = read_back(&self.deltas, end);
            (id, end) = (id - delta, start);
        }
        let (delta, start) = read_back(&self.deltas, end);
        let newer = self.deltas.split_off(end);
        let mut deltas = std::mem::replace(&mut self.deltas, newer);
        deltas.truncate(start);
        let older = Run { top: id - delta, count: self.count - keep, deltas };
        self.count = keep;
        Some(older)
    }

    /// Appends the run, except for its top: count, then the deltas up to the end of `out`'s entry.
    pub(super) fn encode_below_top(&self, out: &mut Vec<u8>) {
        put_varint(out, self.count.into());
        out.extend_from_slice(&self.deltas);
    }

    /// Reads a run to the end of `bytes`, given its top; `None` if it is not one.
    pub(super) fn decode_below_top(top: EventId, mut bytes: &[u8]) -> Option<Self> {
        let count = u32::try_from(take_varint(&mut bytes)?).ok()?;
        let mut rest = bytes;
        let mut room = top.0;
        for _ in 1..count {
            let delta = take_wide(&mut rest)?;
            if delta == 0 {
                return None;
            }
            room = room.checked_sub(delta)?;
        }
        rest.is_empty().then(|| Self { top: top.0, count, deltas: bytes.to_vec() })
    }

    /// All ids, largest first.
    #[cfg(test)]
    pub(super) fn ids(&self) -> Vec<EventId> {
        let mut ids = Vec::new();
        let (mut id, mut end) = (self.top, self.deltas.len());
        if self.count > 0 {
            ids.push(EventId(id));
        }
        while end > 0 {
            let (delta, start) = read_back(&self.deltas, end);
            (id, end) = (id - delta, start);
            ids.push(EventId(id));
        }
        ids
    }

    fn span(&self) -> u128 {
        let (mut span, mut end) = (0, self.deltas.len());
        while end > 0 {
            let (delta, start) = read_back(&self.deltas, end);
            (span, end) = (span + delta, start);
        }
        span
    }

    fn find(&self, id: u128) -> Place {
        let (mut above, mut end) = (self.top, self.deltas.len());
        loop {
            if id == above {
                return Place::Present;
            }
            if end == 0 {
                return Place::Gap { start: 0, end: 0, above };
            }
            let (delta, start) = read_back(&self.deltas, end);
            let below = above - delta;
            if id > below {
                return Place::Gap { start, end, above };
            }
            (above, end) = (below, start);
        }
    }
}

/// The varint that ends before `end`, and where it starts.
fn read_back(deltas: &[u8], end: usize) -> (u128, usize) {
    let mut start = end - 1;
    let mut v = u128::from(deltas[start]);
    while start > 0 && deltas[start - 1] >= 0x80 {
        start -= 1;
        v = v << 7 | u128::from(deltas[start] & 0x7f);
    }
    (v, start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn id() -> impl Strategy<Value = u128> {
        prop_oneof![0..60u128, any::<u128>(), (0..40u128).prop_map(|n| n << 90)]
    }

    proptest! {
        #[test]
        fn a_run_is_a_set(ids in prop::collection::vec(id(), 1..80), keep in 1..20u32) {
            let mut run = Run::default();
            let mut model = BTreeSet::new();
            for &id in &ids {
                prop_assert_eq!(run.insert(EventId(id)), model.insert(id));
            }
            prop_assert!(ids.iter().all(|&id| run.contains(EventId(id))));
            prop_assert_eq!(run.contains(EventId(7)), model.contains(&7));
            let down = |m: &BTreeSet<u128>| m.iter().rev().map(|&id| EventId(id)).collect::<Vec<_>>();
            prop_assert_eq!(run.ids(), down(&model));
            prop_assert_eq!(run.bottom().unwrap().0, *model.first().unwrap());

            let mut out = Vec::new();
            run.encode_below_top(&mut out);
            prop_assert_eq!(Run::decode_below_top(run.top().unwrap(), &out), Some(run.clone()));

            let older = run.split_older(keep);
            prop_assert_eq!(run.count() as usize, model.len().min(keep as usize));
            let mut all = run.ids();
            all.extend(older.iter().flat_map(Run::ids));
            prop_assert_eq!(all, down(&model));
        }

        #[test]
        fn arbitrary_bytes_never_panic(top in any::<u128>(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some(run) = Run::decode_below_top(EventId(top), &bytes) {
                let _ = (run.bottom(), run.contains(EventId(3)));
            }
        }
    }
}
