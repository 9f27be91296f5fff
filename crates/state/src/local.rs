//! The store on a local disk, in an LSM tree (fjall).
//!
//! Layout of the directory:
//!
//! ```text
//! DIR/state/                     the tree: one keyspace; a key is its space's number (1 byte) and the space's own key,
//!                                and 0xFF is the checkpoint, 0xFE a partition's position, 0xFD its highest source time,
//!                                0xFC says that it was restored and that nothing was committed since
//! DIR/savepoints/NAME.savepoint  portable copies
//! ```
//!
//! One keyspace, since a commit must be atomic on both of its ways: a small epoch is one batch, fsynced with the tree's
//! journal; a large one is written as a sorted table of its own, past journal and memtable, at two thirds of the CPU. The
//! tree was chosen over a copy-on-write B-tree by measurement: see `benches/README.md`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fjall::config::{PartitioningPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, UserKey, UserValue};
use millstream_core::{Checkpoint, Error, Fut, PartitionId, Result, Space, StateDelta, StateView, Store};

use crate::absent::Absent;
use crate::format::{
    decode_checkpoint, decode_highest, decode_position, encode_checkpoint, encode_highest, encode_position,
};
use crate::savepoint;

/// How much memory the store may use.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Block cache, bytes.
    pub cache_bytes: u64,
    /// Memtable, bytes; up to two of them are in memory while one is written out.
    pub memtable_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { cache_bytes: 32 << 20, memtable_bytes: 16 << 20 }
    }
}

/// The checkpoint's key; no space has this number.
pub(crate) const CHECKPOINT: u8 = 0xFF;
/// What the keys of partitions' positions begin with.
const POSITION: u8 = 0xFE;
/// What the keys of partitions' highest source times begin with.
const HIGHEST: u8 = 0xFD;

/// The key of the mark that a restore leaves until the first commit.
pub(crate) const RESTORED: u8 = 0xFC;

/// The tree takes no longer keys, and panics.
const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// A command that looks at a pipeline which does not run holds the lock for moments, maybe those in which it is started; one that
/// runs holds it for good. So a lock is waited for, for a second.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// From this many rows an epoch is written as a table of its own; below, tables would be too small to pay.
const TABLE_ROWS_MIN: usize = 100_000;

/// A checkpoint store in a local directory.
pub struct LocalStore {
    directory: PathBuf,
    tree: Arc<Tree>,
}

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalStore").field("directory", &self.directory).finish_non_exhaustive()
    }
}

/// The open tree, shared by the store and its views.
pub(crate) struct Tree {
    pub(crate) db: Database,
    pub(crate) rows: Keyspace,
    /// The mark of a restore may be there.
    restored: AtomicBool,
    absent: Arc<Absent>,
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.absent.stop();
    }
}

impl LocalStore {
    /// Opens the store in `directory`, making it if it is not there. A store that another process has open is a
    /// transient error: that process may be about to end.
    pub fn open(directory: &Path, options: Options) -> Result<Self> {
        let tree = Tree::open(&directory.join("state"), options)?;
        Ok(Self { directory: directory.to_owned(), tree: Arc::new(tree) })
    }

    /// Whether `directory` holds a store.
    pub fn exists(directory: &Path) -> bool {
        directory.join("state").is_dir()
    }

    /// Makes a store in `directory` from a savepoint: a path, or a name under the directory's own `savepoints`. The
    /// directory must not hold a store yet, but for one that was restored and never committed since: a run whose sinks
    /// could not follow the savepoint can be tried again. After a crash in the middle there is none.
    pub fn restore(directory: &Path, savepoint: &str, options: Options) -> Result<()> {
        let file = savepoint::find(directory, savepoint)?;
        let state = directory.join("state");
        if state.exists() && !Tree::open(&state, options)?.is_only_restored()? {
            return Err(Error::fatal(format!(
                "{} already holds a checkpoint: move it away to start from savepoint {savepoint}",
                directory.display()
            )));
        }
        let half = directory.join("state.restoring");
        if half.exists() {
            std::fs::remove_dir_all(&half).map_err(|e| io("cannot remove", &half, e))?;
        }
        let tree = Tree::open(&half, options)?;
        savepoint::read(&file, &tree)?;
        drop(tree);
        if state.exists() {
            std::fs::remove_dir_all(&state).map_err(|e| io("cannot remove", &state, e))?;
        }
        std::fs::rename(&half, &state).map_err(|e| io("cannot rename", &half, e))
    }
}

impl Tree {
    fn open(path: &Path, options: Options) -> Result<Self> {
        std::fs::create_dir_all(path).map_err(|e| io("cannot create", path, e))?;
        let open = || {
            Database::builder(path)
                .cache_size(options.cache_bytes)
                // With more, idle workers pass each other compaction messages without pause.
                .worker_threads(1)
                .max_journaling_size(JOURNAL_BYTES)
                .manual_journal_persist(true)
                .open()
        };
        let mut opened = open();
        for _ in 0..LOCK_TRIES {
            if !matches!(opened, Err(fjall::Error::Locked)) {
                break;
            }
            std::thread::sleep(LOCK_PAUSE);
            opened = open();
        }
        let db = opened.map_err(|e| match e {
            fjall::Error::Locked => Error::transient(format!(
                "the checkpoint directory {} is in use by another process: end that pipeline first, or give this one a \
                 directory of its own (checkpoint.directory)",
                path.display()
            )),
            other => storage("cannot open the checkpoint store", other).at(path.display()),
        })?;
        let rows = db
            .keyspace("rows", || keyspace_options(options))
            .map_err(|e| storage("cannot open the tree", e))?;
        let is_empty = rows.is_empty().map_err(|e| storage("cannot read the tree", e))?;
        Ok(Self { db, rows, restored: AtomicBool::new(true), absent: Arc::new(Absent::new(is_empty)) })
    }

    /// Whether a savepoint was restored here and nothing was committed since.
    fn is_only_restored(&self) -> Result<bool> {
        self.rows.contains_key([RESTORED]).map_err(|e| storage("cannot read the tree", e))
    }

    fn commit(&self, checkpoint: Checkpoint) -> Result<()> {
        let encoded = encode_checkpoint(&checkpoint);
        let StateDelta { writes } = checkpoint.state;
        let mut rows: Vec<Row> = Vec::with_capacity(writes.len() + 2 * checkpoint.positions.len() + 1);
        let mut row = Vec::new();
        rows.extend(writes.into_iter().map(|(space, key, value)| {
            row.clear();
            row.push(space as u8);
            row.extend_from_slice(&key);
            (UserKey::from(&row[..]), value.map(UserValue::from))
        }));
        let positions = checkpoint.positions.iter();
        rows.extend(positions.map(|(p, at)| put(partition_key(POSITION, p), encode_position(at))));
        let highest = checkpoint.watermarks.iter();
        rows.extend(highest.map(|(p, ms)| put(partition_key(HIGHEST, p), encode_highest(*ms))));
        rows.push(put([CHECKPOINT], encoded));
        if self.restored.load(Ordering::Relaxed) && self.is_only_restored()? {
            rows.push(([RESTORED].into(), None));
        }
        // Sorted rows make both ways cheaper. The sort is stable, so of a key's writes the last one comes first when
        // reversed, and stays.
        rows.reverse();
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        rows.dedup_by(|later, first| later.0 == first.0);
        if let Some((key, _)) = rows.iter().find(|(key, _)| key.len() > KEY_BYTES_MAX) {
            return Err(Error::fatal(format!(
                "invariant: decoders refuse long keys, but state has one of {} bytes: please report this as a bug",
                key.len()
            )));
        }
        let keys = &rows[..rows.partition_point(|(key, _)| key[0] <= Space::Keys as u8)];
        let _announced = self.absent.announce(keys.iter().map(|(key, _)| &key[..]));
        let written =
            if rows.len() < TABLE_ROWS_MIN { self.commit_batch(rows) } else { self.commit_table(rows) };
        written.map_err(|e| storage("cannot write the checkpoint", e))?;
        self.restored.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn commit_batch(&self, rows: Vec<Row>) -> fjall::Result<()> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in rows {
            match value {
                Some(value) => batch.insert(&self.rows, key, value),
                None => batch.remove(&self.rows, key),
            }
        }
        batch.commit()
    }

    /// Atomic, since the table is registered in one step when it is whole and fsynced.
    fn commit_table(&self, rows: Vec<Row>) -> fjall::Result<()> {
        let mut table = self.rows.start_ingestion()?;
        for (key, value) in rows {
            match value {
                Some(value) => table.write(key, value)?,
                None => table.write_tombstone(key)?,
            }
        }
        table.finish()
    }

    /// Reads all keys over, so that those that are not among them are known.
    fn read_keys_over(&self) {
        let rows = self.rows.clone();
        self.absent.fill(move || rows.prefix([Space::Keys as u8]).map(|entry| entry.key().ok()));
    }

    /// The last checkpoint without its state.
    fn checkpoint(&self) -> Result<Option<Checkpoint>> {
        let bytes = self.rows.get([CHECKPOINT]).map_err(|e| storage("cannot read the checkpoint", e))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let mut checkpoint = decode_checkpoint(&bytes)?;
        checkpoint.positions = self.partitions(POSITION, decode_position)?;
        checkpoint.watermarks = self.partitions(HIGHEST, decode_highest)?;
        Ok(Some(checkpoint))
    }

    /// What is written of each partition under a kind of key.
    fn partitions<T>(&self, kind: u8, decode: impl Fn(&[u8]) -> Result<T>) -> Result<Vec<(PartitionId, T)>> {
        let read = |entry: fjall::Guard| {
            let (key, value) = entry.into_inner().map_err(|e| storage("cannot read the checkpoint", e))?;
            let name = std::str::from_utf8(&key[1..]).map_err(|e| {
                Error::fatal("the name of a partition in the checkpoint is damaged").with_source(e)
            })?;
            Ok((PartitionId::new(name), decode(&value)?))
        };
        self.rows.prefix([kind]).map(read).collect()
    }

    /// Writes a restored checkpoint's bytes; the last step of a restore.
    pub(crate) fn put_checkpoint(&self, bytes: &[u8]) -> Result<()> {
        self.commit_batch(vec![put([RESTORED], []), put([CHECKPOINT], bytes)])
            .map_err(|e| storage("cannot write the restored checkpoint", e))
    }
}

/// A row to write: its key, and its value or `None` to remove it. They are the tree's own, which hold short bytes in place, so
/// that sorting and writing make no copies.
type Row = (UserKey, Option<UserValue>);

/// A row that is written, not removed.
fn put(key: impl Into<UserKey>, value: impl Into<UserValue>) -> Row {
    (key.into(), Some(value.into()))
}

/// A row's key: the space's number, then the space's own key.
pub(crate) fn row_key(space: Space, key: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(key.len() + 1);
    row.push(space as u8);
    row.extend_from_slice(key);
    row
}

/// The key of what is written of a partition.
fn partition_key(kind: u8, partition: &PartitionId) -> Vec<u8> {
    let mut row = vec![kind];
    row.extend_from_slice(partition.0.as_bytes());
    row
}

/// Journals keep what is not yet in tables; recovery replays them, so their size bounds the time it takes.
const JOURNAL_BYTES: u64 = 128 << 20;

fn keyspace_options(options: Options) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .max_memtable_size(options.memtable_bytes)
        // New keys are looked up before they are written: filters and indexes must answer from memory.
        .expect_point_read_hits(false)
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
        .index_block_pinning_policy(PinningPolicy::all(true))
        .index_block_partitioning_policy(PartitioningPolicy::all(false))
}

impl StateView for Tree {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let row = row_key(space, key);
        if space == Space::Keys && self.absent.is_absent(&row) {
            return Ok(None);
        }
        let value = self.rows.get(row).map_err(|e| storage("cannot read keyed state", e))?;
        if value.is_none() && space == Space::Keys && self.absent.missed() {
            self.read_keys_over();
        }
        Ok(value.map(|v| v.to_vec()))
    }

    fn scan(&self, space: Space, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        for entry in self.rows.prefix(row_key(space, prefix)) {
            let (key, value) = entry.into_inner().map_err(|e| storage("cannot read keyed state", e))?;
            if !visit(&key[1..], &value) {
                break;
            }
        }
        Ok(())
    }
}

impl Store for LocalStore {
    fn latest(&mut self) -> Fut<'_, Result<Option<Checkpoint>>> {
        let tree = self.tree.clone();
        Box::pin(blocking(move || tree.checkpoint()))
    }

    fn commit(&mut self, checkpoint: Checkpoint) -> Fut<'_, Result<()>> {
        let tree = self.tree.clone();
        Box::pin(blocking(move || tree.commit(checkpoint)))
    }

    fn view(&self) -> Arc<dyn StateView> {
        self.tree.clone()
    }

    fn savepoint<'a>(&'a mut self, name: &'a str) -> Fut<'a, Result<String>> {
        let (tree, directory, name) = (self.tree.clone(), self.directory.clone(), name.to_owned());
        Box::pin(blocking(move || savepoint::write(&directory, &name, &tree)))
    }

    fn disk_bytes(&self) -> u64 {
        self.tree.db.disk_space().unwrap_or(0)
    }
}

/// Runs disk work off the async workers, which have records to move meanwhile.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(lost) => Err(Error::fatal("the checkpoint store's task was lost").with_source(lost)),
    }
}

pub(crate) fn io(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::transient(format!("{what} {}", path.display())).with_source(error)
}

/// Storage errors poison the tree, so that the pipeline restarts over what is durable.
pub(crate) fn storage(what: &str, error: fjall::Error) -> Error {
    Error::transient(format!("{what}: look at the disk of the checkpoint directory")).with_source(error)
}
