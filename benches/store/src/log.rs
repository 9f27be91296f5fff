//! A third candidate, to know what the two libraries' generality costs: an append-only log and an index in memory
//! (8 bytes a key: 24 bits of hash, 40 bits of position). A lookup of an absent key touches no file.
//! Prototype: neither compaction nor a saved index, so that opening replays the whole log.

use crate::store::{Reader, Row, Store};
use std::fs::{File, OpenOptions};
use std::hash::Hasher;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, RwLock};

const PARTS: usize = 256;
const EMPTY: u64 = u64::MAX;
const POS: u64 = (1 << 40) - 1;

fn hash(key: &[u8]) -> u64 {
    let mut h = crate::Fx::default();
    h.write(key);
    h.finish()
}

#[derive(Default)]
struct Part {
    slots: Vec<u64>,
    len: usize,
}

impl Part {
    /// The slot that holds the key, or the empty one where it belongs.
    fn find(&self, h: u64, mut same: impl FnMut(u64) -> bool) -> usize {
        let mask = self.slots.len() - 1;
        // Only bits that the slot keeps choose its place, so that growing needs no key.
        let mut i = (h >> 40) as usize & mask;
        loop {
            let s = self.slots[i];
            if s == EMPTY || (s >> 40 == h >> 40 && same(s & POS)) {
                return i;
            }
            i = (i + 1) & mask;
        }
    }
}

struct Inner {
    file: File,
    parts: Vec<RwLock<Part>>,
    epoch: AtomicU64,
}

impl Inner {
    fn row<T>(&self, pos: u64, f: impl FnOnce(&[u8], &[u8]) -> T) -> T {
        let mut b = [0u8; 256];
        let n = self.file.read_at(&mut b, pos).unwrap();
        let (k, v) = (b[0] as usize, b[1] as usize);
        assert!(n >= 2 + k + v);
        f(&b[2..2 + k], &b[2 + k..2 + k + v])
    }

    fn put(&self, key: &[u8], pos: u64) {
        let h = hash(key);
        let mut p = self.parts[h as usize % PARTS].write().unwrap();
        if p.len * 8 >= p.slots.len() * 7 {
            let old = std::mem::take(&mut p.slots);
            p.slots = vec![EMPTY; (old.len() * 2).max(64)];
            for s in old.into_iter().filter(|s| *s != EMPTY) {
                let i = p.find(s, |_| false);
                p.slots[i] = s;
            }
        }
        let i = p.find(h, |at| self.row(at, |k, _| k == key));
        p.len += usize::from(p.slots[i] == EMPTY);
        p.slots[i] = (h >> 40) << 40 | pos;
    }
}

pub struct Log {
    inner: Arc<Inner>,
    write: Mutex<(u64, Vec<u8>)>,
}

impl Log {
    pub fn open(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let file = OpenOptions::new().create(true).read(true).append(true).open(dir.join("log")).unwrap();
        let parts = (0..PARTS).map(|_| RwLock::new(Part { slots: vec![EMPTY; 64], len: 0 })).collect();
        let inner = Inner { file, parts, epoch: AtomicU64::new(0) };
        let (mut pos, mut body, mut head) = (0, vec![], [0u8; 24]);
        let mut r = std::io::BufReader::with_capacity(1 << 20, File::open(dir.join("log")).unwrap());
        while r.read_exact(&mut head).is_ok() {
            let [len, sum, epoch] = [0, 8, 16].map(|i| u64::from_le_bytes(head[i..i + 8].try_into().unwrap()));
            body.resize(len as usize, 0);
            // A torn epoch at the end never happened.
            if r.read_exact(&mut body).is_err() || hash(&body) != sum {
                break;
            }
            let mut i = 0;
            while i < body.len() {
                let (k, v) = (body[i] as usize, body[i + 1] as usize);
                inner.put(&body[i + 2..i + 2 + k], pos + 24 + i as u64);
                i += 2 + k + v;
            }
            inner.epoch.store(epoch, Relaxed);
            pos += 24 + len;
        }
        inner.file.set_len(pos).unwrap();
        Log { inner: Arc::new(inner), write: Mutex::new((pos, vec![])) }
    }
}

impl Store for Log {
    fn reader(&self) -> Reader {
        let inner = self.inner.clone();
        Box::new(move |key, f| {
            let h = hash(key);
            let p = inner.parts[h as usize % PARTS].read().unwrap();
            let i = p.find(h, |at| {
                inner.row(at, |k, v| {
                    if k == key {
                        f(v);
                    }
                    k == key
                })
            });
            p.slots[i] != EMPTY
        })
    }
    fn commit(&self, epoch: u64, rows: &[Row], _: &[Row]) {
        let mut w = self.write.lock().unwrap();
        let (pos, buf) = &mut *w;
        buf.clear();
        buf.resize(24, 0);
        for (k, v) in rows {
            buf.extend([k.len() as u8, v.len() as u8]);
            buf.extend_from_slice(k);
            buf.extend_from_slice(v);
        }
        let (len, sum) = (buf.len() as u64 - 24, hash(&buf[24..]));
        for (i, x) in [len, sum, epoch].into_iter().enumerate() {
            buf[i * 8..i * 8 + 8].copy_from_slice(&x.to_le_bytes());
        }
        (&self.inner.file).write_all(buf).unwrap();
        self.inner.file.sync_data().unwrap();
        let mut at = *pos + 24;
        for (k, v) in rows {
            self.inner.put(k, at);
            at += (2 + k.len() + v.len()) as u64;
        }
        *pos = at;
        self.inner.epoch.store(epoch, Relaxed);
    }
    fn last_epoch(&self) -> u64 {
        self.inner.epoch.load(Relaxed)
    }
    fn scan(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        for p in &self.inner.parts {
            let slots = p.read().unwrap().slots.clone();
            slots.iter().filter(|s| **s != EMPTY).for_each(|s| self.inner.row(s & POS, &mut *f));
        }
    }
    fn compact(&self) {}
}
