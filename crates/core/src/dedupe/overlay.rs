//! Entries of a rarely touched space, held in memory from their change until it is committed.
//!
//! An entry that changed in the current epoch is *dirty*; one that changed in the epoch of the outstanding barrier is
//! *pending*. Both are served from memory; the store's view may still show the state before. All others are a cache, thrown
//! away as a whole when it outgrows its bound, which needs no bookkeeping on access.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::error::Result;
use crate::store::{Space, StateView};

/// The change list of an epoch.
pub(super) type Writes = Vec<(Space, Vec<u8>, Option<Vec<u8>>)>;

/// Something that is stored under one key of a space.
pub(super) trait Stored: Sized {
    /// Where.
    const SPACE: Space;
    /// Its bytes, format byte first.
    fn encode(&self) -> Vec<u8>;
    /// From its bytes; fatal on an unknown format or garbage.
    fn decode(bytes: &[u8]) -> Result<Self>;
    /// Bytes that it keeps in memory.
    fn footprint(&self) -> usize;
}

#[derive(Debug)]
struct Held<T> {
    /// `None`: known to be absent.
    value: Option<T>,
    dirty: bool,
    pending: bool,
    bytes: usize,
}

/// See the module's docs.
#[derive(Debug)]
pub(super) struct Overlay<T> {
    held: HashMap<Box<[u8]>, Held<T>, FixedState>,
    dirty: Vec<Box<[u8]>>,
    bytes: usize,
    dirty_bytes: usize,
    bytes_max: usize,
}

impl<T: Stored> Overlay<T> {
    /// Keeps up to `bytes_max` bytes of entries that could be read again.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { held: HashMap::default(), dirty: Vec::new(), bytes: 0, dirty_bytes: 0, bytes_max }
    }

    /// The entry under `key`.
    pub(super) fn get(&mut self, key: &[u8], view: &dyn StateView) -> Result<Option<&T>> {
        if !self.held.contains_key(key) {
            if self.bytes > self.bytes_max {
                self.trim();
            }
            let value = view.get(T::SPACE, key)?.map(|bytes| T::decode(&bytes)).transpose()?;
            let bytes = footprint(key, value.as_ref());
            self.bytes += bytes;
            self.held.insert(key.into(), Held { value, dirty: false, pending: false, bytes });
        }
        Ok(self.held.get(key).and_then(|held| held.value.as_ref()))
    }

    /// Replaces the entry under `key`; `None` removes it.
    pub(super) fn set(&mut self, key: &[u8], value: Option<T>) {
        let bytes = footprint(key, value.as_ref());
        let held = match self.held.get_mut(key) {
            Some(held) => held,
            None => self.held.entry(key.into()).or_insert(Held {
                value: None,
                dirty: false,
                pending: false,
                bytes: 0,
            }),
        };
        self.bytes = self.bytes + bytes - held.bytes;
        if held.dirty {
            self.dirty_bytes = self.dirty_bytes + bytes - held.bytes;
        } else {
            held.dirty = true;
            self.dirty_bytes += bytes;
            self.dirty.push(key.into());
        }
        (held.value, held.bytes) = (value, bytes);
    }

    /// Takes the entry out for a change, which [`set`](Self::set) must follow.
    pub(super) fn take(&mut self, key: &[u8], view: &dyn StateView) -> Result<Option<T>> {
        self.get(key, view)?;
        Ok(self.held.get_mut(key).and_then(|held| held.value.take()))
    }

    /// Hands out the epoch's changes. They stay in memory until [`committed`](Self::committed).
    pub(super) fn barrier(&mut self, writes: &mut Writes) {
        for key in self.dirty.drain(..) {
            let held = self.held.get_mut(&key).expect("invariant: a dirty entry is held");
            (held.dirty, held.pending) = (false, true);
            writes.push((T::SPACE, key.into_vec(), held.value.as_ref().map(T::encode)));
        }
        self.dirty_bytes = 0;
    }

    /// The last barrier's changes are in the view.
    pub(super) fn committed(&mut self) {
        for held in self.held.values_mut() {
            held.pending = false;
        }
        if self.bytes > self.bytes_max {
            self.trim();
        }
    }

    /// Bytes of entries that changed in this epoch.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    fn trim(&mut self) {
        self.held.retain(|_, held| held.dirty || held.pending);
        self.bytes = self.held.values().map(|held| held.bytes).sum();
    }
}

fn footprint<T: Stored>(key: &[u8], value: Option<&T>) -> usize {
    size_of::<Held<T>>() + 2 * (key.len() + 16) + value.map_or(0, T::footprint)
}
