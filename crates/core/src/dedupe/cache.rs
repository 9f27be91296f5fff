//! The keys in memory: an index over slots, evicted by CLOCK within a budget.
//!
//! A slot that changed since the last committed barrier is never evicted, so that the view is only ever asked for entries
//! that it holds in their newest state. When all slots changed, the cache grows past its budget; `dirty_bytes` tells the
//! engine to end the epoch early.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::entry::Entry;

/// Addresses up to this length are kept in the slot.
const INLINE_MAX: usize = 22;
/// Slots are allocated in blocks of this many, so that growth copies nothing.
const BLOCK: usize = 1024;
/// How far the clock's hand goes for one insertion.
const STEPS_MAX: usize = 64;

/// Changed in the current epoch.
const DIRTY: u8 = 1;
/// Changed in the outstanding barrier's epoch.
const PENDING: u8 = 2;
/// Used since the hand passed.
const USED: u8 = 4;
/// Holds no key.
const FREE: u8 = 8;

#[derive(Debug)]
enum Address {
    Inline(u8, [u8; INLINE_MAX]),
    Heap(Box<[u8]>),
}

impl Address {
    fn new(bytes: &[u8]) -> Self {
        if bytes.len() <= INLINE_MAX {
            let mut inline = [0; INLINE_MAX];
            inline[..bytes.len()].copy_from_slice(bytes);
            Address::Inline(bytes.len() as u8, inline)
        } else {
            Address::Heap(bytes.into())
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Address::Inline(len, bytes) => &bytes[..usize::from(*len)],
            Address::Heap(bytes) => bytes,
        }
    }

    fn footprint(&self) -> usize {
        match self {
            Address::Inline(..) => 0,
            Address::Heap(bytes) => bytes.len() + 16,
        }
    }
}

/// A key in memory.
#[derive(Debug)]
pub(super) struct Slot {
    hash: u64,
    /// Index of its table in the gate.
    pub(super) table: u32,
    state: u8,
    address: Address,
    /// Heap bytes when last measured.
    heap: u32,
    /// Its state.
    pub(super) entry: Entry,
}

impl Slot {
    /// The key's address.
    pub(super) fn address(&self) -> &[u8] {
        self.address.bytes()
    }
}

/// Names a slot while its key is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotId(u32);

/// See the module's docs.
#[derive(Debug)]
pub(super) struct Cache {
    hasher: FixedState,
    index: HashTable<u32>,
    blocks: Vec<Vec<Slot>>,
    free: Vec<u32>,
    dirty: Vec<u32>,
    pending: Vec<u32>,
    hand: u32,
    heap: usize,
    dirty_bytes: usize,
    bytes_max: usize,
}

impl Cache {
    /// Keeps at most about `bytes_max` bytes of unchanged keys.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            hasher: FixedState::default(),
            index: HashTable::new(),
            blocks: Vec::new(),
            free: Vec::new(),
            dirty: Vec::new(),
            pending: Vec::new(),
            hand: 0,
            heap: 0,
            dirty_bytes: 0,
            bytes_max,
        }
    }

    /// The hash by which a key is found here. It never leaves memory.
    pub(super) fn hash(&self, table: u32, address: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(table);
        hasher.write(address);
        hasher.finish()
    }

    /// The slot of a key, if it is in memory.
    pub(super) fn find(&mut self, hash: u64, table: u32, address: &[u8]) -> Option<SlotId> {
        let blocks = &self.blocks;
        let found = self.index.find(hash, |&i| {
            let slot = slot_at(blocks, i);
            slot.hash == hash && slot.table == table && slot.address() == address
        });
        let id = SlotId(*found?);
        self.slot_mut(id).state |= USED;
        Some(id)
    }

    /// Puts a key in, which must not be there, evicting others if the budget is spent.
    pub(super) fn insert(&mut self, hash: u64, table: u32, address: &[u8], entry: Entry) -> SlotId {
        if self.bytes() >= self.bytes_max {
            self.evict();
        }
        let address = Address::new(address);
        let heap = (address.footprint() + entry.footprint()) as u32;
        self.heap += heap as usize;
        let slot = Slot { hash, table, state: USED, address, heap, entry };
        let i = match self.free.pop() {
            Some(i) => {
                *self.slot_mut(SlotId(i)) = slot;
                i
            }
            None => self.push(slot),
        };
        let blocks = &self.blocks;
        self.index.insert_unique(hash, i, |&i| slot_at(blocks, i).hash);
        SlotId(i)
    }

    /// A slot.
    pub(super) fn slot(&self, id: SlotId) -> &Slot {
        slot_at(&self.blocks, id.0)
    }

    /// A slot, to change; [`changed`](Self::changed) must follow.
    pub(super) fn slot_mut(&mut self, id: SlotId) -> &mut Slot {
        &mut self.blocks[id.0 as usize / BLOCK][id.0 as usize % BLOCK]
    }

    /// Marks a slot as changed in this epoch.
    pub(super) fn changed(&mut self, id: SlotId) {
        let slot = &mut self.blocks[id.0 as usize / BLOCK][id.0 as usize % BLOCK];
        let heap = (slot.address.footprint() + slot.entry.footprint()) as u32;
        self.heap = self.heap + heap as usize - slot.heap as usize;
        let newly = slot.state & DIRTY == 0;
        self.dirty_bytes +=
            if newly { size_of::<Slot>() + heap as usize } else { heap.saturating_sub(slot.heap) as usize };
        slot.heap = heap;
        slot.state |= DIRTY;
        if newly {
            self.dirty.push(id.0);
        }
    }

    /// Calls `visit` with every slot that changed in this epoch, which ends here.
    pub(super) fn barrier(&mut self, mut visit: impl FnMut(&mut Slot)) {
        assert!(self.pending.is_empty(), "invariant: the last barrier was committed before the next");
        std::mem::swap(&mut self.dirty, &mut self.pending);
        self.dirty_bytes = 0;
        for &i in &self.pending {
            let slot = &mut self.blocks[i as usize / BLOCK][i as usize % BLOCK];
            slot.state = slot.state & !DIRTY | PENDING;
            visit(slot);
        }
    }

    /// The last barrier's slots are in the view.
    pub(super) fn committed(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        for i in pending.drain(..) {
            self.slot_mut(SlotId(i)).state &= !PENDING;
        }
        self.pending = pending;
    }

    /// Number of keys in memory.
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    /// Bytes of slots that changed in this epoch.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    /// Bytes in use: slots, heap, index.
    pub(super) fn bytes(&self) -> usize {
        let slots = self.index.len() * (size_of::<Slot>() + 2 * size_of::<u32>());
        slots + self.heap + (self.dirty.capacity() + self.pending.capacity()) * size_of::<u32>()
    }

    fn push(&mut self, slot: Slot) -> u32 {
        if self.blocks.last().is_none_or(|block| block.len() == BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let last = self.blocks.len() - 1;
        let block = &mut self.blocks[last];
        block.push(slot);
        u32::try_from(last * BLOCK + block.len() - 1).expect("invariant: fewer than 2^32 keys are in memory")
    }

    fn evict(&mut self) {
        let slots = self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len()) as u32;
        for _ in 0..STEPS_MAX.min(slots as usize) {
            let i = self.hand;
            self.hand = if i + 1 >= slots { 0 } else { i + 1 };
            let slot = &mut self.blocks[i as usize / BLOCK][i as usize % BLOCK];
            if slot.state & (DIRTY | PENDING | FREE) != 0 {
                continue;
            }
            if slot.state & USED != 0 {
                slot.state &= !USED;
                continue;
            }
            slot.state = FREE;
            self.heap -= slot.heap as usize;
            let hash = slot.hash;
            (slot.address, slot.entry, slot.heap) = (Address::new(&[]), Entry::default(), 0);
            if let Ok(found) = self.index.find_entry(hash, |&at| at == i) {
                found.remove();
            }
            self.free.push(i);
            if self.bytes() < self.bytes_max {
                return;
            }
        }
    }
}

fn slot_at(blocks: &[Vec<Slot>], i: u32) -> &Slot {
    &blocks[i as usize / BLOCK][i as usize % BLOCK]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::EventId;

    #[test]
    fn changed_keys_stay_until_they_are_committed() {
        let mut cache = Cache::new(1);
        let put = |cache: &mut Cache, n: u32| {
            let hash = cache.hash(0, &n.to_be_bytes());
            cache.insert(hash, 0, &n.to_be_bytes(), Entry::default())
        };
        let kept = put(&mut cache, 0);
        cache.slot_mut(kept).entry.ids.tail.insert(EventId(7));
        cache.changed(kept);
        for n in 1..500 {
            put(&mut cache, n);
        }
        let hash = cache.hash(0, &[0; 4]);
        assert!(cache.len() < 10, "{} keys", cache.len());
        assert_eq!(cache.find(hash, 0, &[0; 4]), Some(kept));
        let mut seen = 0;
        cache.barrier(|slot| seen += slot.entry.ids.tail.count());
        assert_eq!(seen, 1);
        for n in 500..1000 {
            put(&mut cache, n);
        }
        assert_eq!(cache.find(hash, 0, &[0; 4]), Some(kept));
        cache.committed();
        for n in 1000..1500 {
            put(&mut cache, n);
        }
        assert_eq!(cache.find(hash, 0, &[0; 4]), None);
    }

    #[test]
    fn a_slot_is_three_cache_lines() {
        assert!(size_of::<Slot>() <= 192, "{}", size_of::<Slot>());
    }
}
