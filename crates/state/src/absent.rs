//! Keys that are certainly not in the store, told from memory.
//!
//! A new key is looked up before it is written, and to find nothing costs a tree more than to find something: it asks the
//! filter of every table whose range the key falls in. Here one filter holds all keys.
//!
//! A store that was opened empty has it from the start. One that holds keys already gets it once enough lookups found
//! nothing: a thread reads the keys over, and until it is done the tree answers as before. Whoever commits says its keys
//! here first, so that no key is ever visible and unknown.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;

use crate::filter::Filter;

/// So many lookups that found nothing make it worth reading the keys over.
const MISSES_MIN: u64 = 100_000;

/// Which keys are certainly absent.
pub(crate) struct Absent {
    stage: RwLock<Stage>,
    misses: AtomicU64,
    /// Held while a commit says its keys and writes them, and while a reading over begins: a key is in what that reads, or
    /// it is said to the filter that it fills.
    commit: Mutex<()>,
    reader: Mutex<Option<JoinHandle<()>>>,
    stop: AtomicBool,
}

enum Stage {
    /// The store holds keys that were never read.
    Unknown,
    /// A thread reads them.
    Filling(Filter),
    /// Every key of the store is in it.
    Complete(Filter),
}

impl Absent {
    /// `is_empty`: the store holds no key.
    pub(crate) fn new(is_empty: bool) -> Self {
        let stage = if is_empty { Stage::Complete(Filter::new()) } else { Stage::Unknown };
        Self {
            stage: RwLock::new(stage),
            misses: AtomicU64::new(0),
            commit: Mutex::new(()),
            reader: Mutex::new(None),
            stop: AtomicBool::new(false),
        }
    }

    /// Whether the store certainly does not hold `key`.
    pub(crate) fn is_absent(&self, key: &[u8]) -> bool {
        match &*self.read() {
            Stage::Complete(filter) => !filter.may_hold(key),
            Stage::Unknown | Stage::Filling(_) => false,
        }
    }

    /// A lookup found nothing. The answer is `true` once, when the keys should be read over.
    pub(crate) fn missed(&self) -> bool {
        self.misses.fetch_add(1, Ordering::Relaxed) + 1 == MISSES_MIN
            && matches!(*self.read(), Stage::Unknown)
    }

    /// Says the keys that are about to be written. They may be written while the answer is kept.
    pub(crate) fn announce<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> MutexGuard<'_, ()> {
        let commit = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh: Vec<_> = match &*self.read() {
            Stage::Unknown => return commit,
            // Only what is new takes room, not each writing of it.
            Stage::Filling(filter) | Stage::Complete(filter) => {
                keys.filter(|key| !filter.may_hold(key)).collect()
            }
        };
        if let Stage::Filling(filter) | Stage::Complete(filter) = &mut *self.write() {
            filter.reserve(fresh.len());
        }
        // Readers go on meanwhile.
        if let Stage::Filling(filter) | Stage::Complete(filter) = &*self.read() {
            fresh.into_iter().for_each(|key| filter.insert(key));
        }
        commit
    }

    /// Reads the keys over in a thread. `keys` is called once, to begin; what is written later is announced.
    pub(crate) fn fill<K: AsRef<[u8]>, I: Iterator<Item = Option<K>>>(
        self: &Arc<Self>,
        keys: impl FnOnce() -> I + Send + 'static,
    ) {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let this = self.clone();
        let read = move || this.read_over(keys);
        // Without a thread all goes on as before.
        *reader = std::thread::Builder::new().name("millstream:keys".to_owned()).spawn(read).ok();
    }

    fn read_over<K: AsRef<[u8]>, I: Iterator<Item = Option<K>>>(&self, keys: impl FnOnce() -> I) {
        let keys = {
            let _commit = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
            *self.write() = Stage::Filling(Filter::new());
            keys()
        };
        let mut some = Vec::with_capacity(1024);
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            some.clear();
            for key in keys.by_ref().take(1024) {
                // A key that can't be read may be any key.
                let Some(key) = key else { return *self.write() = Stage::Unknown };
                some.push(key);
            }
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            if let Stage::Filling(filter) = &mut *self.write() {
                filter.reserve(some.len());
                some.iter().for_each(|key| filter.insert(key.as_ref()));
            }
        }
        let mut stage = self.write();
        if let Stage::Filling(filter) = std::mem::replace(&mut *stage, Stage::Unknown) {
            *stage = Stage::Complete(filter);
        }
    }

    /// Ends the thread that reads, and with it what it holds of the store.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // It only ends early by a panic, which left the stage at `Filling`.
            let _ = reader.join();
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Stage> {
        self.stage.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Stage> {
        self.stage.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn announced(absent: &Absent, keys: &[&str]) {
        let keys: Vec<_> = keys.iter().map(|k| k.as_bytes()).collect();
        drop(absent.announce(keys.into_iter()));
    }

    #[test]
    fn an_empty_store_knows_from_the_start() {
        let absent = Absent::new(true);
        assert!(absent.is_absent(b"a"));
        announced(&absent, &["a"]);
        assert!(!absent.is_absent(b"a"));
        assert!(absent.is_absent(b"b"));
        assert!(!(0..2 * MISSES_MIN).any(|_| absent.missed()), "there is nothing to read over");
    }

    /// Every writing of a key took room for one more key: a few keys, written every second, filled gigabytes in a day.
    #[test]
    fn a_key_that_is_written_again_takes_no_room() {
        let absent = Absent::new(true);
        let keys: Vec<_> = (0..1000).map(|i| format!("key {i}")).collect();
        let keys: Vec<_> = keys.iter().map(|k| &**k).collect();
        announced(&absent, &keys);
        let bytes = || match &*absent.read() {
            Stage::Complete(filter) => filter.bytes(),
            Stage::Unknown | Stage::Filling(_) => unreachable!("the store was empty"),
        };
        let before = bytes();
        (0..2000).for_each(|_| announced(&absent, &keys));
        assert_eq!(bytes(), before);
    }

    #[test]
    fn a_store_with_keys_knows_when_they_were_read_over() {
        let absent = Arc::new(Absent::new(false));
        assert!(!absent.is_absent(b"a"));
        assert_eq!((0..2 * MISSES_MIN).filter(|_| absent.missed()).count(), 1);
        let (send, keys) = mpsc::channel::<Option<&str>>();
        absent.fill(move || keys.into_iter());
        send.send(Some("old")).unwrap();
        // Committed while the old ones are read.
        while !matches!(*absent.read(), Stage::Filling(_)) {
            std::thread::yield_now();
        }
        announced(&absent, &["new"]);
        assert!(!absent.is_absent(b"other"), "not all is known yet");
        drop(send);
        while !absent.is_absent(b"other") {
            std::thread::yield_now();
        }
        assert!(!absent.is_absent(b"old") && !absent.is_absent(b"new"));
        absent.stop();
    }

    #[test]
    fn a_key_that_cannot_be_read_makes_no_key_absent() {
        let absent = Arc::new(Absent::new(false));
        absent.fill(|| [Some("a"), None, Some("b")].into_iter());
        absent.stop();
        assert!(!absent.is_absent(b"c") && matches!(*absent.read(), Stage::Unknown));
    }
}
