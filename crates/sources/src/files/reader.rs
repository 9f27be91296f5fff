//! The source: which file is read next, and what comes of a read.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_core::source::Notice;
use millstream_core::{
    Budget, Error, Fut, Next, PartitionId, Position, RecordBatch, Result, Source, TellFigures,
};

use crate::files::ack;
use crate::files::backlog::Backlog;
use crate::files::catalog::{Catalog, FileId, Phase};
use crate::files::config::FilesConfig;
use crate::files::discovery::Searches;
use crate::files::input::Input;
use crate::files::lines::Cutter;
use crate::files::position::FilePosition;

/// Files that are read in turn.
const READING_MAX: usize = 16;

/// Delivers the lines of files. See [`files`](crate::files) for its limits.
#[derive(Debug)]
pub struct FileSource {
    pub(super) config: FilesConfig,
    pub(super) search: Searches,
    pub(super) catalog: Catalog,
    /// Files to be read, in order.
    pending: VecDeque<FileId>,
    /// Files being read, the next one first.
    reading: VecDeque<FileId>,
    /// Files that are held open.
    pub(super) open: Vec<FileId>,
    pub(super) cutter: Cutter,
    chunk: Vec<u8>,
    pub(super) notices: Vec<Notice>,
    /// Partitions that were read to their end.
    resting: Vec<PartitionId>,
    /// Paths of which people were told that they cannot be looked at.
    pub(super) unreachable: HashSet<PathBuf>,
    pub(super) discoveries: u64,
    pub(super) discovered: Option<Instant>,
    looked: Instant,
    reads: u64,
    backlog: Arc<Backlog>,
}

impl FileSource {
    /// A source of `config`; fatal if a bound or the glob is wrong. Opens nothing yet.
    pub fn new(config: FilesConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            search: Searches::parse(config.paths())?,
            cutter: Cutter::new(config.lines, config.max_record_bytes),
            config,
            catalog: Catalog::default(),
            pending: VecDeque::new(),
            reading: VecDeque::new(),
            open: Vec::new(),
            chunk: Vec::new(),
            notices: Vec::new(),
            resting: Vec::new(),
            unreachable: HashSet::new(),
            discoveries: 0,
            discovered: None,
            looked: Instant::now(),
            reads: 0,
            backlog: Arc::default(),
        })
    }

    /// For the engine to count and show.
    pub(super) fn notice(&mut self, code: &'static str, text: String) {
        self.notices.push(Notice { code, text });
    }

    /// Puts a file in the queue, once.
    pub(super) fn enqueue(&mut self, id: FileId) {
        if self.catalog[id].phase != Phase::Queued {
            self.catalog[id].phase = Phase::Queued;
            self.pending.push_back(id);
        }
    }

    fn start_over(&mut self, positions: &[(PartitionId, Position)]) -> Result<()> {
        self.catalog = Catalog::default();
        self.pending.clear();
        self.reading.clear();
        self.open.clear();
        self.unreachable.clear();
        self.resting.clear();
        for (partition, position) in positions {
            let place = FilePosition::decode(partition, position)?;
            self.catalog.restore(partition.clone(), place);
        }
        self.discover()?;
        self.tell_backlog();
        Ok(())
    }

    async fn give(&mut self, budget: Budget) -> Result<Next> {
        let mut waited = false;
        loop {
            if self.config.follow {
                self.look_around()?;
            }
            if let Some(batch) = self.read_some(budget)? {
                return Ok(Next::Batch(batch));
            }
            if !self.config.follow {
                return Ok(Next::End);
            }
            if waited {
                return Ok(Next::Idle);
            }
            // The only await: everything before it is either in `self` or returned.
            tokio::time::sleep(self.config.poll_interval).await;
            waited = true;
        }
    }

    fn tell_backlog(&self) {
        let queued = self.pending.iter().chain(&self.reading);
        self.backlog.set(queued.map(|id| self.catalog[*id].unread()));
    }

    /// Looks for new files and new data, each when it is due, also while other files keep the reader busy.
    fn look_around(&mut self) -> Result<()> {
        if self.looked.elapsed() >= self.config.poll_interval {
            self.looked = Instant::now();
            self.look_at_open_files();
        }
        let interval = self.discovery_interval();
        if self.discovered.is_none_or(|at| at.elapsed() >= interval) {
            self.discover()?;
        }
        Ok(())
    }

    fn discovery_interval(&self) -> Duration {
        let rare = self.config.discovery_interval;
        if self.search.is_cheap() { rare.min(self.config.poll_interval) } else { rare }
    }

    /// Queues open files that have changed, and calls for a discovery where a name shows another file.
    fn look_at_open_files(&mut self) {
        for id in self.open.clone() {
            let file = &mut self.catalog[id];
            if file.phase != Phase::Idle {
                continue;
            }
            let handle = file.input.as_ref().map(Input::file).or(file.handle.as_ref());
            let Some(Ok(metadata)) = handle.map(std::fs::File::metadata) else { continue };
            // What was last seen may be newer than the last read.
            let changed = file.end_len != Some(metadata.len())
                || file.trust.would_change(&metadata)
                || file.may_have_more();
            let renamed = file.sighted == self.discoveries
                && !std::fs::metadata(&file.place.path).is_ok_and(|at_path| {
                    crate::files::position::Identity::of(&at_path) == file.place.identity
                });
            if changed {
                self.enqueue(id);
            }
            if renamed {
                self.discovered = None;
            }
        }
    }

    /// Reads the queued files in turn until one gives a batch.
    fn read_some(&mut self, budget: Budget) -> Result<Option<RecordBatch>> {
        loop {
            self.admit();
            let Some(id) = self.reading.pop_front() else { return Ok(None) };
            match self.read(id, budget) {
                Ok(Some(batch)) => {
                    self.reading.push_back(id);
                    return Ok(Some(batch));
                }
                Ok(None) => self.rest(id),
                Err(e) => {
                    self.reading.push_front(id);
                    return Err(e);
                }
            }
        }
    }

    /// Lets queued files in whose predecessors are done.
    fn admit(&mut self) {
        while self.reading.len() < READING_MAX {
            let catalog = &self.catalog;
            let free =
                |id: &FileId| catalog[*id].after.is_none_or(|before| catalog[before].phase != Phase::Queued);
            let Some(at) = self.pending.iter().position(free) else { return };
            if let Some(id) = self.pending.remove(at) {
                self.reading.push_back(id);
            }
        }
    }

    /// A file was read to its end.
    fn rest(&mut self, id: FileId) {
        let follow = self.config.follow;
        let file = &mut self.catalog[id];
        self.resting.push(file.partition.clone());
        if file.phase == Phase::Queued {
            file.phase = Phase::Idle;
        }
        if !follow {
            self.close(id);
        }
    }

    /// Takes a file out of the queues.
    pub(super) fn dequeue(&mut self, id: FileId) {
        self.pending.retain(|&other| other != id);
        self.reading.retain(|&other| other != id);
    }

    /// The rest of the file's content is gone: what is at its path, or what its inode holds, is another content.
    pub(super) fn supersede(&mut self, id: FileId, path: PathBuf, reopen: Option<std::fs::File>) -> FileId {
        let identity = self.catalog[id].place.identity;
        self.close(id);
        self.catalog[id].phase = Phase::Gone;
        self.dequeue(id);
        let new = self.catalog.add(&path, identity);
        self.catalog.set_path(new, &path);
        let (sighted, len) = (self.catalog[id].sighted, self.catalog[id].place.len);
        let file = &mut self.catalog[new];
        file.sighted = sighted;
        file.place.len = len;
        if reopen.is_some() {
            file.handle = reopen;
            self.open.push(new);
        }
        self.enqueue(new);
        new
    }

    /// The next records of a file; `None` if it has nothing more now.
    fn read(&mut self, id: FileId, budget: Budget) -> Result<Option<RecordBatch>> {
        if !self.open_file(id)? {
            return Ok(None);
        }
        self.reads += 1;
        self.catalog[id].last_read = self.reads;
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.clear();
        let step = self.read_chunk(id, budget, &mut chunk);
        // In value mode the batch took the chunk; a huge line's memory is not kept.
        if chunk.capacity() <= 2 * self.config.chunk_bytes {
            self.chunk = chunk;
        }
        let path = &self.catalog[id].place.path;
        step.map_err(|e| read_error(path, e))
    }
}

/// An error of the file system while reading.
pub(super) fn read_error(path: &std::path::Path, e: io::Error) -> Error {
    Error::transient(format!("{} cannot be read on; check the disk or network file system", path.display()))
        .with_source(e)
}

impl Source for FileSource {
    fn open<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move { self.start_over(positions) })
    }

    fn next(&mut self, budget: Budget) -> Fut<'_, Result<Next>> {
        Box::pin(async move {
            let next = self.give(budget).await;
            self.tell_backlog();
            next
        })
    }

    fn release<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move { ack::release(positions) })
    }

    fn resting(&mut self) -> Vec<PartitionId> {
        std::mem::take(&mut self.resting)
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn figures(&self) -> Option<TellFigures> {
        let backlog = self.backlog.clone();
        Some(Arc::new(move || backlog.figures()))
    }
}
