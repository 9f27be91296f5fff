//! Drives a file source as the engine does.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millstream_core::source::Notice;
use millstream_core::{Body, Budget, Next, PartitionId, Position, RecordBatch, Source};
use millstream_sources::files::{FileSource, FilesConfig};
use tempfile::TempDir;

pub(crate) const BUDGET: Budget = Budget { records: 10_000, bytes: 1 << 20 };

/// What was delivered as one record.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Got {
    pub(crate) partition: String,
    pub(crate) offset: u64,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) broken: Option<&'static str>,
}

/// A directory, and a source on it, with the positions that a checkpoint would hold.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) config: FilesConfig,
    pub(crate) source: FileSource,
    pub(crate) positions: BTreeMap<PartitionId, Position>,
    pub(crate) notices: Vec<Notice>,
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// A config that follows `pattern` below `dir` without waiting.
pub(crate) fn following(dir: &Path, pattern: &str) -> FilesConfig {
    let path = dir.join(pattern).to_str().unwrap().to_owned();
    FilesConfig {
        follow: true,
        poll_interval: Duration::ZERO,
        discovery_interval: Duration::ZERO,
        ..FilesConfig::new(path)
    }
}

/// A config that reads `pattern` below `dir` once.
pub(crate) fn bounded(dir: &Path, pattern: &str) -> FilesConfig {
    FilesConfig { follow: false, ..following(dir, pattern) }
}

impl World {
    pub(crate) fn new(config: impl FnOnce(&Path) -> FilesConfig, files: &[(&str, &[u8])]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            write(&dir.path().join(name), content);
        }
        let config = config(dir.path());
        let source = FileSource::new(config.clone()).unwrap();
        let mut world = Self { dir, config, source, positions: BTreeMap::new(), notices: Vec::new() };
        world.restart();
        world
    }

    /// A new process at the positions of the last checkpoint.
    pub(crate) fn restart(&mut self) {
        self.source = FileSource::new(self.config.clone()).unwrap();
        let positions: Vec<_> = self.positions.clone().into_iter().collect();
        block_on(self.source.open(&positions)).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn append(&self, name: &str, bytes: &[u8]) {
        append(&self.path(name), bytes);
    }

    /// Everything that is there now, by batch: up to the end, or to the second `Idle` in a row.
    pub(crate) fn batches(&mut self, budget: Budget) -> Vec<RecordBatch> {
        let mut batches = Vec::new();
        let mut idle = 0;
        while idle < 2 {
            match block_on(self.source.next(budget)).unwrap() {
                Next::Batch(batch) => {
                    idle = 0;
                    self.positions.insert(batch.partition.clone(), batch.position.clone());
                    batches.push(batch);
                }
                Next::Idle | Next::Held | Next::Waiting => idle += 1,
                Next::End => break,
            }
        }
        self.notices.extend(self.source.notices());
        batches
    }

    pub(crate) fn drain(&mut self) -> Vec<Got> {
        self.batches(BUDGET).iter().flat_map(records).collect()
    }

    /// The drained values as text.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        self.drain().into_iter().map(|got| text(&got)).collect()
    }

    /// Codes of the notices since the last call.
    pub(crate) fn codes(&mut self) -> Vec<&'static str> {
        self.notices.extend(self.source.notices());
        std::mem::take(&mut self.notices).iter().map(|n| n.code).collect()
    }
}

pub(crate) fn text(got: &Got) -> String {
    String::from_utf8_lossy(got.value.as_deref().unwrap_or(b"<none>")).into_owned()
}

pub(crate) fn records(batch: &RecordBatch) -> Vec<Got> {
    batch
        .records()
        .map(|record| {
            let (value, broken) = match record.body() {
                Body::Value(bytes) => (Some(bytes.to_vec()), None),
                Body::Tombstone => (None, None),
                Body::Broken(bytes, cause) => (Some(bytes.to_vec()), Some(cause.code)),
            };
            Got { partition: record.partition().to_string(), offset: record.offset(), value, broken }
        })
        .collect()
}

pub(crate) fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

pub(crate) fn append(path: &Path, bytes: &[u8]) {
    OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
}
