//! The two candidates behind one small interface: a reader per shard, one atomic fsynced batch per epoch.

use crate::Opts;
use fjall::compaction::Leveled;
use fjall::config::*;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};
use redb::{Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;
use std::sync::{Arc, RwLock};

pub type Row<'a> = (&'a [u8], &'a [u8]);
/// Looks a key up and says whether it exists; the closure sees the bytes.
pub type Reader = Box<dyn Fn(&[u8], &mut dyn FnMut(&[u8])) -> bool + Send>;

pub trait Store: Send + Sync {
    fn reader(&self) -> Reader;
    fn commit(&self, epoch: u64, rows: &[Row], segments: &[Row]);
    fn last_epoch(&self) -> u64;
    /// A consistent scan, as a savepoint would make it; commits go on meanwhile.
    fn scan(&self, f: &mut dyn FnMut(&[u8], &[u8]));
    fn compact(&self);
    /// Waits until background work is done, so that CPU and disk figures are complete.
    fn settle(&self) {}
    fn describe(&self) -> String {
        String::new()
    }
}

/// Measures what the harness itself costs.
pub struct Null;
impl Store for Null {
    fn reader(&self) -> Reader {
        Box::new(|_, _| false)
    }
    fn commit(&self, _: u64, _: &[Row], _: &[Row]) {}
    fn last_epoch(&self) -> u64 {
        0
    }
    fn scan(&self, _: &mut dyn FnMut(&[u8], &[u8])) {}
    fn compact(&self) {}
}

pub struct Fjall {
    db: Database,
    state: Keyspace,
    segments: Keyspace,
    meta: Keyspace,
    ingest: usize,
}

impl Fjall {
    pub fn open(dir: &Path, o: &Opts) -> Self {
        let mb = |k: &str, d: u64| o.num(k, d) << 20;
        let db = Database::builder(dir)
            .cache_size(mb("cache", 32))
            .max_journaling_size(mb("journal", 512))
            .worker_threads(o.num("workers", 2) as usize)
            .manual_journal_persist(true)
            .open()
            .unwrap();
        let state = || {
            let mut k = KeyspaceCreateOptions::default()
                .max_memtable_size(mb("memtable", 64))
                .data_block_size_policy(BlockSizePolicy::all(o.num("block", 4) as u32 * 1024))
                .expect_point_read_hits(o.num("hits", 0) == 1)
                .compaction_strategy(Arc::new(
                    Leveled::default().with_l0_threshold(o.num("l0", 4) as u8).with_table_target_size(mb("table", 64)),
                ));
            if o.num("lz4", 1) == 0 {
                k = k.data_block_compression_policy(CompressionPolicy::disabled());
            } else if o.num("lz4", 1) == 2 {
                k = k.data_block_compression_policy(CompressionPolicy::all(CompressionType::Lz4));
            }
            if o.num("bits", 0) > 0 {
                let bloom = BloomConstructionPolicy::BitsPerKey(o.num("bits", 0) as f32);
                k = k.filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(bloom)));
            }
            if o.num("hash", 0) > 0 {
                k = k.data_block_hash_ratio_policy(HashRatioPolicy::all(o.num("hash", 0) as f32 / 100.0));
            }
            match o.num("pin", 0) {
                0 => k, // 1: all filters stay in memory; 2: indexes too
                1 => {
                    k.filter_block_pinning_policy(PinningPolicy::all(true)).filter_block_partitioning_policy(PartitioningPolicy::all(false))
                }
                _ => k
                    .filter_block_pinning_policy(PinningPolicy::all(true))
                    .filter_block_partitioning_policy(PartitioningPolicy::all(false))
                    .index_block_pinning_policy(PinningPolicy::all(true))
                    .index_block_partitioning_policy(PartitioningPolicy::all(false)),
            }
        };
        let small = || KeyspaceCreateOptions::default().max_memtable_size(8 << 20);
        Fjall {
            state: db.keyspace("state", state).unwrap(),
            segments: db.keyspace("segments", small).unwrap(),
            meta: db.keyspace("meta", small).unwrap(),
            db,
            ingest: o.num("ingest", u64::MAX) as usize,
        }
    }
}

impl Store for Fjall {
    fn reader(&self) -> Reader {
        let state = self.state.clone();
        Box::new(move |key, f| state.get(key).unwrap().map(|v| f(&v)).is_some())
    }
    fn commit(&self, epoch: u64, rows: &[Row], segments: &[Row]) {
        if rows.len() >= self.ingest {
            // A sorted table straight into level 0, past journal and memtable. Its rows become visible together, so the
            // epoch must be one of them (0xFF.. sorts after every table id).
            let mut i = self.state.start_ingestion().unwrap();
            for (k, v) in rows {
                i.write(*k, *v).unwrap();
            }
            i.write([0xFF; 3], epoch.to_be_bytes()).unwrap();
            return i.finish().unwrap();
        }
        // `batch()` starts with an empty Vec; half a million items would regrow it twenty times.
        let mut b =
            fjall::OwnedWriteBatch::with_capacity(self.db.clone(), rows.len() + segments.len() + 1).durability(Some(PersistMode::SyncData));
        for (k, v) in rows {
            b.insert(&self.state, *k, *v);
        }
        for (k, v) in segments {
            b.insert(&self.segments, *k, *v);
        }
        b.insert(&self.meta, "epoch", epoch.to_be_bytes());
        b.commit().unwrap();
    }
    fn last_epoch(&self) -> u64 {
        let meta = self.meta.get("epoch").unwrap().max(self.state.get([0xFF; 3]).unwrap());
        meta.map_or(0, |v| u64::from_be_bytes((*v).try_into().unwrap()))
    }
    fn scan(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        for kv in self.db.snapshot().iter(&self.state) {
            let (k, v) = kv.into_inner().unwrap();
            f(&k, &v);
        }
    }
    fn compact(&self) {
        for k in [&self.state, &self.segments, &self.meta] {
            k.rotate_memtable_and_wait().unwrap();
            k.major_compact().unwrap();
        }
    }
    fn settle(&self) {
        let mut quiet = 0;
        while quiet < 5 {
            let busy = self.db.outstanding_flushes() > 0 || self.db.active_compactions() > 0;
            quiet = if busy { 0 } else { quiet + 1 };
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
    fn describe(&self) -> String {
        format!(
            "tables={} l0={} sealed={} journals={} journal_mb={} cache_mb={} compact_s={:.1}",
            self.state.table_count(),
            self.state.l0_table_count(),
            self.state.sealed_memtable_count(),
            self.db.journal_count(),
            self.db.journal_disk_space().unwrap() >> 20,
            self.db.cache_size() >> 20,
            self.db.time_compacting().as_secs_f32()
        )
    }
}

const STATE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("state");
const SEGMENTS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("segments");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

pub struct Redb {
    db: RwLock<redb::Database>,
    quick_repair: bool,
}

impl Redb {
    pub fn open(dir: &Path, o: &Opts) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let db = redb::Builder::new().set_cache_size((o.num("cache", 256) as usize) << 20).create(dir.join("state.redb")).unwrap();
        let tx = db.begin_write().unwrap();
        tx.open_table(STATE).unwrap();
        tx.open_table(META).unwrap();
        tx.commit().unwrap();
        Redb { db: RwLock::new(db), quick_repair: o.num("quick", 0) == 1 }
    }
}

impl Store for Redb {
    fn reader(&self) -> Reader {
        // One read transaction per epoch: opening one per key would double the cost of a lookup.
        let table = self.db.read().unwrap().begin_read().unwrap().open_table(STATE).unwrap();
        Box::new(move |key, f| ReadableTable::get(&table, key).unwrap().map(|v| f(v.value())).is_some())
    }
    fn commit(&self, epoch: u64, rows: &[Row], segments: &[Row]) {
        let db = self.db.read().unwrap();
        let mut tx = db.begin_write().unwrap();
        tx.set_durability(Durability::Immediate).unwrap();
        tx.set_quick_repair(self.quick_repair);
        for (def, rows) in [(STATE, rows), (SEGMENTS, segments)] {
            let mut t = tx.open_table(def).unwrap();
            for (k, v) in rows {
                t.insert(*k, *v).unwrap();
            }
        }
        tx.open_table(META).unwrap().insert("epoch", epoch).unwrap();
        tx.commit().unwrap();
    }
    fn last_epoch(&self) -> u64 {
        let tx = self.db.read().unwrap().begin_read().unwrap();
        tx.open_table(META).unwrap().get("epoch").unwrap().map_or(0, |v| v.value())
    }
    fn scan(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let tx = self.db.read().unwrap().begin_read().unwrap();
        for kv in tx.open_table(STATE).unwrap().iter().unwrap() {
            let (k, v) = kv.unwrap();
            f(k.value(), v.value());
        }
    }
    fn compact(&self) {
        while self.db.write().unwrap().compact().unwrap() {}
    }
}
