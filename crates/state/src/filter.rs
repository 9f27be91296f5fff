//! A set of keys that answers "certainly not" or "maybe", in about 12 bits a key: Bloom filters of growing size, each in
//! blocks of a cache line, so that a key touches one line in each.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::quality::FixedState;

/// Keys for which the first part has room; each later one has room for four times as many.
const FIRST_KEYS: usize = 1 << 20;
const GROWTH: usize = 4;

/// Words of 64 bits in a block.
const BLOCK: usize = 8;

/// Blocks for so many keys: 12 bits a key.
const KEYS_PER_BLOCK: usize = 64 * BLOCK / 12;

/// Bits that a key sets in its block.
const BITS: u32 = 6;

pub(crate) struct Filter {
    /// All but the last one are full.
    parts: Vec<Part>,
    /// Keys that the last part has room for.
    room: usize,
}

struct Part {
    words: Box<[AtomicU64]>,
    keys: usize,
}

impl Filter {
    pub(crate) fn new() -> Self {
        Self { parts: Vec::new(), room: 0 }
    }

    /// Makes room for `keys` more.
    pub(crate) fn reserve(&mut self, keys: usize) {
        if self.room < keys {
            let next = self.parts.last().map_or(FIRST_KEYS, |part| part.keys * GROWTH);
            let part = Part::new(next.max(keys));
            self.room = part.keys;
            self.parts.push(part);
        }
        self.room -= keys;
    }

    /// Bytes that it takes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| 8 * part.words.len()).sum()
    }

    /// Adds a key for which there is room.
    pub(crate) fn insert(&self, key: &[u8]) {
        let hash = hash(key);
        if let Some(part) = self.parts.last() {
            let (block, mut rest) = part.place(hash);
            for _ in 0..BITS {
                let (word, bit) = take_bit(&mut rest);
                block[word].fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// `false` if the key was certainly never added.
    pub(crate) fn may_hold(&self, key: &[u8]) -> bool {
        let hash = hash(key);
        self.parts.iter().any(|part| {
            let (block, mut rest) = part.place(hash);
            (0..BITS).all(|_| {
                let (word, bit) = take_bit(&mut rest);
                block[word].load(Ordering::Relaxed) & bit != 0
            })
        })
    }
}

impl Part {
    fn new(keys: usize) -> Self {
        let words = keys.div_ceil(KEYS_PER_BLOCK) * BLOCK;
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect(), keys }
    }

    /// The block of a key, and the bits of its hash that choose within the block.
    fn place(&self, hash: u64) -> (&[AtomicU64], u64) {
        let blocks = (self.words.len() / BLOCK) as u128;
        // The upper half of the product is even over the blocks; the lower half is what is left of the hash.
        let product = u128::from(hash) * blocks;
        let at = (product >> 64) as usize * BLOCK;
        (&self.words[at..at + BLOCK], hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32))
    }
}

/// The next 9 bits: a word of the block and a bit in it.
fn take_bit(rest: &mut u64) -> (usize, u64) {
    let bits = *rest & 511;
    *rest >>= 9;
    ((bits >> 6) as usize, 1 << (bits & 63))
}

fn hash(key: &[u8]) -> u64 {
    FixedState::with_seed(0).hash_one(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_forgotten_and_few_are_mistaken() {
        let mut filter = Filter::new();
        assert!(!filter.may_hold(b"a"));
        let key = |i: u64| i.to_be_bytes();
        let count = 3 * FIRST_KEYS as u64;
        for chunk in 0..count / 1024 {
            filter.reserve(1024);
            (0..1024).for_each(|i| filter.insert(&key(chunk * 1024 + i)));
        }
        assert_eq!(filter.parts.len(), 2);
        assert!((0..count).all(|i| filter.may_hold(&key(i))));
        let mistaken = (count..2 * count).filter(|&i| filter.may_hold(&key(i))).count();
        assert!(mistaken < count as usize / 50, "{mistaken} of {count}");
        // A commit larger than the next part would be.
        filter.reserve(100 * FIRST_KEYS);
        assert!(filter.room == 0 && filter.may_hold(&key(0)));
    }
}
