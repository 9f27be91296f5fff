//! Every file that is or was known, and which of them a path shows now.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use millstream_core::PartitionId;

use crate::files::input::Input;
use crate::files::position::{FilePosition, Identity};

/// Index of a file in its [`Catalog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId(usize);

/// What is to be done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Named by a checkpoint, not seen since the start.
    Restored,
    /// To be read, or being read.
    Queued,
    /// Read to its end for now.
    Idle,
    /// Its name is gone, or its content was replaced, and nothing of it can be read any more.
    Gone,
}

/// A line whose end is not yet written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Partial {
    /// Where it starts.
    pub(crate) start: u64,
    /// No line end before this.
    pub(crate) scanned: u64,
}

/// A file.
#[derive(Debug)]
pub(crate) struct TrackedFile {
    pub(crate) partition: PartitionId,
    pub(crate) place: FilePosition,
    pub(crate) phase: Phase,
    pub(crate) input: Option<Input>,
    /// An open file whose format is still to be found out.
    pub(crate) handle: Option<File>,
    pub(crate) partial: Option<Partial>,
    /// That length when it was last read to its end.
    pub(crate) end_len: Option<u64>,
    /// When that was.
    pub(crate) ended: Option<Instant>,
    pub(crate) trust: Trust,
    /// The file that had this path before and is read to its end first.
    pub(crate) after: Option<FileId>,
    /// The last discovery that found it.
    pub(crate) sighted: u64,
    /// When it was last read, as a count of reads.
    pub(crate) last_read: u64,
    /// Whether people were told that it cannot be read.
    pub(crate) reported: bool,
}

impl TrackedFile {
    fn new(partition: PartitionId, place: FilePosition, phase: Phase) -> Self {
        Self {
            partition,
            place,
            phase,
            input: None,
            handle: None,
            partial: None,
            end_len: None,
            ended: None,
            trust: Trust::default(),
            after: None,
            sighted: 0,
            last_read: 0,
            reported: false,
        }
    }

    /// Whether it is held open.
    pub(crate) fn is_open(&self) -> bool {
        self.input.is_some() || self.handle.is_some()
    }

    pub(crate) fn close(&mut self) {
        self.input = None;
        self.handle = None;
    }

    /// Whether reading may give something, judging by its length and time of change.
    pub(crate) fn may_have_more(&self) -> bool {
        let read = if self.place.gzip { self.place.raw_len } else { self.place.offset };
        let all_read = if self.place.gzip { read == self.place.len } else { read >= self.place.len };
        // A line without end may be rewritten with as many bytes.
        let seen =
            self.end_len == Some(self.place.len) && self.ended.is_some_and(|at| self.trust.is_old_at(at));
        !all_read && !seen
    }

    /// Bytes of it that were not read, where that is known.
    pub(crate) fn unread(&self) -> u64 {
        if self.place.gzip { 0 } else { self.place.len.saturating_sub(self.place.offset) }
    }

    pub(crate) fn observe(&mut self, metadata: &Metadata) {
        self.place.len = metadata.len();
        self.trust.observe(metadata);
    }

    /// Whether the file of `metadata` still holds what was read from it. `handle` opens it where it must be looked into.
    pub(crate) fn still_holds(
        &mut self,
        metadata: &Metadata,
        handle: impl FnOnce() -> io::Result<Option<File>>,
    ) -> io::Result<Holds> {
        self.trust.observe(metadata);
        let read = if self.place.gzip { self.place.raw_len } else { self.place.offset };
        if metadata.len() < read {
            return Ok(Holds::No);
        }
        if self.place.offset == 0 || self.trust.is_settled() {
            return Ok(Holds::Yes);
        }
        let opened;
        let file = match &self.input {
            Some(input) => input.file(),
            None => match handle()? {
                Some(file) => {
                    opened = file;
                    &opened
                }
                None => return Ok(Holds::Unknown),
            },
        };
        if self.place.fingerprint.matches(file, self.place.offset)? {
            self.trust.verified();
            Ok(Holds::Yes)
        } else {
            Ok(Holds::No)
        }
    }
}

/// Whether a file holds what was read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    Yes,
    No,
    /// Its name changed hands meanwhile; the next discovery will tell.
    Unknown,
}

/// Whether a file is known to be unchanged since its fingerprint was compared.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    signature: Option<(u64, i64, i64)>,
    since: Option<Instant>,
    verified: Option<Instant>,
}

/// File systems stamp changes with a clock that ticks every few milliseconds: two changes within a tick look like one.
const TICK: Duration = Duration::from_millis(50);

impl Trust {
    fn observe(&mut self, metadata: &Metadata) {
        let signature = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        if self.signature != Some(signature) {
            *self = Self { signature: Some(signature), since: Some(Instant::now()), verified: None };
        }
    }

    /// Whether `metadata` differs from what was last seen.
    pub(crate) fn would_change(&self, metadata: &Metadata) -> bool {
        self.signature != Some((metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
    }

    fn verified(&mut self) {
        self.verified = Some(Instant::now());
    }

    fn is_settled(&self) -> bool {
        self.verified.is_some_and(|at| self.is_old_at(at))
    }

    /// Whether the file as it is now was so for at least a tick before `at`.
    fn is_old_at(&self, at: Instant) -> bool {
        self.since.is_some_and(|since| at.saturating_duration_since(since) >= TICK)
    }
}

/// Opens `path` if it is still the file called `identity`.
pub(crate) fn open_same(path: &Path, identity: Identity) -> io::Result<Option<File>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    Ok((Identity::of(&file.metadata()?) == identity).then_some(file))
}

/// All files, by index, identity and path.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    files: Vec<TrackedFile>,
    by_identity: HashMap<Identity, Vec<FileId>>,
    by_path: HashMap<PathBuf, FileId>,
    partitions: HashSet<PartitionId>,
    /// The highest serial number given.
    serial: u64,
}

impl std::ops::Index<FileId> for Catalog {
    type Output = TrackedFile;

    fn index(&self, id: FileId) -> &TrackedFile {
        &self.files[id.0]
    }
}

impl std::ops::IndexMut<FileId> for Catalog {
    fn index_mut(&mut self, id: FileId) -> &mut TrackedFile {
        &mut self.files[id.0]
    }
}

impl Catalog {
    pub(crate) fn ids(&self) -> impl Iterator<Item = FileId> + use<> {
        (0..self.files.len()).map(FileId)
    }

    /// Takes in a file of a checkpoint.
    pub(crate) fn restore(&mut self, partition: PartitionId, place: FilePosition) {
        self.insert(TrackedFile::new(partition, place, Phase::Restored));
    }

    /// Takes in a new content. Its partition is named after where it was first seen.
    pub(crate) fn add(&mut self, path: &Path, identity: Identity) -> FileId {
        let of_identity = self.by_identity.get(&identity).into_iter().flatten();
        let mut generation = of_identity.map(|&id| self[id].place.generation + 1).max().unwrap_or(0);
        let partition = loop {
            let Identity { device, inode } = identity;
            let name = format!("{}#{device}:{inode}:{generation}", path.display());
            let partition = PartitionId::new(&name);
            if !self.partitions.contains(&partition) {
                break partition;
            }
            generation += 1;
        };
        self.serial += 1;
        let place = FilePosition::start(path, identity, generation, self.serial);
        self.insert(TrackedFile::new(partition, place, Phase::Idle))
    }

    fn insert(&mut self, file: TrackedFile) -> FileId {
        let id = FileId(self.files.len());
        self.partitions.insert(file.partition.clone());
        self.by_identity.entry(file.place.identity).or_default().push(id);
        self.serial = self.serial.max(file.place.serial);
        // Checkpoints name files in no order.
        let holder = self.by_path.get(&file.place.path);
        if holder.is_none_or(|&h| self[h].place.serial <= file.place.serial) {
            self.by_path.insert(file.place.path.clone(), id);
        }
        self.files.push(file);
        id
    }

    /// The file that last had `path`.
    pub(crate) fn holder(&self, path: &Path) -> Option<FileId> {
        self.by_path.get(path).copied()
    }

    /// Says that `id` has `path` now.
    pub(crate) fn set_path(&mut self, id: FileId, path: &Path) {
        if self[id].place.path != path {
            self[id].place.path = path.to_owned();
        }
        if self.by_path.get(path) != Some(&id) {
            self.by_path.insert(path.to_owned(), id);
        }
    }

    /// Says that `id` is the file of another identity now: it was copied or restored there.
    pub(crate) fn set_identity(&mut self, id: FileId, identity: Identity) {
        let old = self[id].place.identity;
        if let Some(ids) = self.by_identity.get_mut(&old) {
            ids.retain(|&other| other != id);
        }
        self[id].place.identity = identity;
        self.by_identity.entry(identity).or_default().push(id);
    }

    /// The files that `identity` may be, likeliest first: the one that this process saw last, or else those of the
    /// checkpoint, those of the same path and the latest first.
    pub(crate) fn candidates(&self, identity: Identity, path: &Path) -> Vec<FileId> {
        let Some(ids) = self.by_identity.get(&identity) else { return Vec::new() };
        if let Some(&live) = ids.iter().rev().find(|&&id| self[id].phase != Phase::Restored) {
            return vec![live];
        }
        let mut ids = ids.clone();
        ids.sort_by_key(|&id| {
            let place = &self[id].place;
            std::cmp::Reverse((place.path == path, place.serial))
        });
        ids
    }
}
