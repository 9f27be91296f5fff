//! The source: which file is read next, and what comes of a read.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millstream_core::record::Slot;
use millstream_core::source::Notice;
use millstream_core::{Budget, Cause, Error, Fut, Next, PartitionId, Position, RecordBatch, Result, Source};

use crate::files::ack;
use crate::files::catalog::{Catalog, FileId, Holds, Partial, Phase, open_same};
use crate::files::chunk::{self, Found, Limits};
use crate::files::config::FilesConfig;
use crate::files::discovery::Search;
use crate::files::input::{self, Input, Stop};
use crate::files::lines::Cutter;
use crate::files::position::FilePosition;

/// Files that are read in turn.
const READING_MAX: usize = 16;
/// Files that are held open, those being read included.
const OPEN_MAX: usize = 64;
/// Fewest bytes that are read at a time, however small the budget.
const READ_BYTES_MIN: usize = 4096;

/// Delivers the lines of files. See [`files`](crate::files) for its limits.
#[derive(Debug)]
pub struct FileSource {
    pub(super) config: FilesConfig,
    pub(super) search: Search,
    pub(super) catalog: Catalog,
    /// Files to be read, in order.
    pending: VecDeque<FileId>,
    /// Files being read, the next one first.
    reading: VecDeque<FileId>,
    /// Files that are held open.
    open: Vec<FileId>,
    cutter: Cutter,
    chunk: Vec<u8>,
    pub(super) notices: Vec<Notice>,
    /// Paths of which people were told that they cannot be looked at.
    pub(super) unreachable: HashSet<PathBuf>,
    pub(super) discoveries: u64,
    pub(super) discovered: Option<Instant>,
    looked: Instant,
    reads: u64,
}

/// What came of a read.
enum Step {
    Batch(RecordBatch),
    /// The file has nothing more now.
    AtEnd,
    /// Something changed; read again.
    Again,
}

impl FileSource {
    /// A source of `config`; fatal if a bound or the glob is wrong. Opens nothing yet.
    pub fn new(config: FilesConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self {
            search: Search::parse(&config.path)?,
            cutter: Cutter::new(config.lines, config.max_record_bytes),
            config,
            catalog: Catalog::default(),
            pending: VecDeque::new(),
            reading: VecDeque::new(),
            open: Vec::new(),
            chunk: Vec::new(),
            notices: Vec::new(),
            unreachable: HashSet::new(),
            discoveries: 0,
            discovered: None,
            looked: Instant::now(),
            reads: 0,
        })
    }

    pub(super) fn notice(&mut self, code: &'static str, text: String) {
        tracing::warn!(code, "{text}");
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
        for (partition, position) in positions {
            let place = FilePosition::decode(partition, position)?;
            self.catalog.restore(partition.clone(), place);
        }
        self.discover()
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
            // The signature may be newer than the last read, which `end_len` tells; the length may be as it was, which
            // the signature tells.
            let changed = file.end_len != Some(metadata.len()) || file.trust.would_change(&metadata);
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
                Ok(Step::Batch(batch)) => {
                    self.reading.push_back(id);
                    return Ok(Some(batch));
                }
                Ok(Step::Again) => self.reading.push_front(id),
                Ok(Step::AtEnd) => self.rest(id),
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
        if file.phase == Phase::Queued {
            file.phase = Phase::Idle;
        }
        if !follow {
            self.close(id);
        }
    }

    pub(super) fn close(&mut self, id: FileId) {
        self.catalog[id].close();
        self.open.retain(|&other| other != id);
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
        let (sighted, len) = (self.catalog[id].sighted, self.catalog[id].len);
        let file = &mut self.catalog[new];
        file.sighted = sighted;
        file.len = len;
        if reopen.is_some() {
            file.handle = reopen;
            self.open.push(new);
        }
        self.enqueue(new);
        new
    }

    /// Opens a file and finds out its format. `false`: there is nothing to read now.
    fn open_file(&mut self, id: FileId) -> Result<bool> {
        if self.catalog[id].input.is_some() {
            return Ok(true);
        }
        let handle = match self.catalog[id].handle.take() {
            Some(handle) => Ok(Some(handle)),
            None => {
                self.make_room();
                open_same(&self.catalog[id].place.path, self.catalog[id].place.identity)
            }
        };
        self.open.retain(|&other| other != id);
        let path = self.catalog[id].place.path.clone();
        let handle = match handle {
            Ok(Some(handle)) => handle,
            Ok(None) if self.config.follow => {
                self.discovered = None;
                return Ok(false);
            }
            Ok(None) => {
                return Err(Error::fatal(format!(
                    "{} was moved, replaced or deleted before it was read; keep input files in place during a bounded \
                     run, or set follow: true",
                    path.display()
                )));
            }
            Err(e) => return self.cannot_read(id, e).map(|()| false),
        };
        let follow = self.config.follow;
        let magic = input::head(&handle, 2).map_err(|e| read_error(&path, e))?;
        // One byte may become a gzip magic; while following, no line can be complete before the second.
        if magic.is_empty() || (magic.len() < 2 && magic[0] == 0x1f && follow) {
            self.catalog[id].end_len = Some(magic.len() as u64);
            self.catalog[id].handle = Some(handle);
            self.open.push(id);
            return Ok(false);
        }
        let gzip = magic == [0x1f, 0x8b];
        if !gzip && path.extension().is_some_and(|e| e == "gz") && self.catalog[id].place.offset == 0 {
            let text =
                format!("{} is named like a gzip file but is none; it is read as it is", path.display());
            self.notice("not_gzip", text);
        }
        let file = &mut self.catalog[id];
        file.place.gzip = gzip;
        file.input = Some(if gzip {
            Input::gzip(handle, follow).map_err(|e| read_error(&path, e))?
        } else {
            Input::plain(handle)
        });
        file.reported = false;
        self.open.push(id);
        Ok(true)
    }

    /// Tells that a file cannot be opened: an error where the run would otherwise end without it.
    pub(super) fn cannot_read(&mut self, id: FileId, e: io::Error) -> Result<()> {
        let path = self.catalog[id].place.path.clone();
        let out_of_handles = matches!(e.raw_os_error(), Some(23 | 24));
        if out_of_handles {
            return Err(Error::transient(format!(
                "{} cannot be opened: too many open files; raise the limit (ulimit -n)",
                path.display()
            ))
            .with_source(e));
        }
        if !self.config.follow {
            return Err(Error::fatal(format!(
                "{} cannot be read; give this user permission to read it, or leave it out of the path",
                path.display()
            ))
            .with_source(e));
        }
        if !std::mem::replace(&mut self.catalog[id].reported, true) {
            self.notice(
                "file_unreadable",
                format!("{} cannot be read and is tried again at each discovery: {e}", path.display()),
            );
        }
        self.catalog[id].end_len = None;
        Ok(())
    }

    /// Closes the idle file that was read longest ago if as many are open as may be; those that still have a name first.
    fn make_room(&mut self) {
        if self.open.len() < OPEN_MAX {
            return;
        }
        let discoveries = self.discoveries;
        let idle = self.open.iter().copied().filter(|&id| self.catalog[id].phase != Phase::Queued);
        let oldest = idle.min_by_key(|&id| {
            let file = &self.catalog[id];
            (file.sighted < discoveries, file.last_read)
        });
        if let Some(id) = oldest {
            self.close(id);
        }
    }

    fn read(&mut self, id: FileId, budget: Budget) -> Result<Step> {
        if !self.open_file(id)? {
            return Ok(Step::AtEnd);
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

    fn read_chunk(&mut self, id: FileId, budget: Budget, chunk: &mut Vec<u8>) -> io::Result<Step> {
        if self.is_spent(id)? {
            return self.at_end(id);
        }
        if self.catalog[id].place.unfinished.is_some() && !self.finish_line(id)? {
            return self.at_end(id);
        }
        let expected = self.cutter.expected_bytes(budget.records);
        let mut target = self.config.chunk_bytes.min(budget.bytes).min(expected);
        let file = &mut self.catalog[id];
        let Some(input) = &mut file.input else { return Ok(Step::Again) };
        let raw_len = input.file().metadata()?.len();
        let offset = file.place.offset;
        if !input.is_gzip() {
            // One byte more than there should be tells the end.
            target = target.min(raw_len.saturating_sub(offset) as usize + 1);
        }
        target = target.max(READ_BYTES_MIN);
        let mut limits = Limits { target, max_line: self.config.max_record_bytes };
        if let Some(partial) = file.partial.filter(|p| p.start == offset && !input.is_gzip()) {
            input.read_from(partial.scanned, chunk, 0)?;
            let (scanned, terminated, _) = chunk::find_end(input, partial.scanned)?;
            if !terminated {
                file.partial = Some(Partial { scanned, ..partial });
                file.end_len = Some(scanned);
                return self.at_end(id);
            }
            limits.target = target.max((scanned - offset).min(limits.max_line as u64 + 2) as usize);
        }
        let (found, stop) = chunk::read(input, offset, limits, chunk)?;
        file.partial = None;
        let at_end = stop != Stop::Full;
        let bounded = !self.config.follow || matches!(stop, Stop::Broken(_));
        let read_to = match found {
            Found::Lines(_) | Found::Rest => offset + chunk.len() as u64,
            Found::Overlong { len, .. } => offset + len,
        };
        let (slots, framed, consumed, unfinished) = match found {
            Found::Lines(complete) => {
                let cut = self.cutter.cut(&chunk[..complete], true, offset, budget);
                (cut.slots, cut.framed, cut.consumed as u64, None)
            }
            Found::Overlong { len, terminated } if terminated || bounded => {
                let slot = self.cutter.overlong(chunk, len, offset);
                (vec![slot], None, len + u64::from(terminated), (!terminated).then_some(offset))
            }
            Found::Rest if bounded => {
                let (slots, framed) = self.last_line(id, chunk, budget, &stop);
                let unfinished = (!chunk.is_empty()).then_some(offset);
                (slots, framed, chunk.len() as u64, unfinished)
            }
            Found::Rest | Found::Overlong { .. } => (Vec::new(), None, 0, None),
        };
        let file = &mut self.catalog[id];
        if at_end && consumed == 0 {
            file.end_len = Some(if file.place.gzip { raw_len } else { read_to });
            file.partial = (read_to > offset).then_some(Partial { start: offset, scanned: read_to });
        }
        if !matches!(found, Found::Overlong { .. })
            && let Some(input) = &mut file.input
        {
            input.give_back(offset + consumed, &chunk[consumed as usize..]);
        }
        let taken = chunk.len().min(consumed as usize);
        if slots.is_empty() {
            return self.at_end(id);
        }
        if !self.advance(id, &chunk[..taken], consumed)? {
            return Ok(self.rewritten(id));
        }
        let file = &mut self.catalog[id];
        file.place.unfinished = unfinished;
        // Where the data breaks, the dead letter that says so ends it.
        let ended = stop == Stop::End || (at_end && found == Found::Rest);
        file.place.raw_len =
            if file.place.gzip && ended && offset + consumed == read_to { raw_len } else { 0 };
        let buffer = framed.unwrap_or_else(|| {
            let mut buffer = std::mem::take(chunk);
            buffer.truncate(taken);
            buffer
        });
        let (partition, position) = (file.partition.clone(), file.place.encode());
        Ok(Step::Batch(RecordBatch { partition, buffer, slots, position }))
    }

    /// Whether a compressed file was read to its end, or to where it breaks, and is still of the length that it had then.
    fn is_spent(&mut self, id: FileId) -> io::Result<bool> {
        let file = &mut self.catalog[id];
        let (true, Some(input)) = (file.place.raw_len > 0, &file.input) else { return Ok(false) };
        let raw_len = input.file().metadata()?.len();
        file.end_len = Some(raw_len);
        Ok(raw_len == file.place.raw_len)
    }

    /// The record of a last line without end. Where the compressed data breaks off, the cut line is no record but a
    /// dead letter, and there is one even if nothing of a line is left: it stands for what is lost.
    fn last_line(
        &mut self,
        id: FileId,
        chunk: &[u8],
        budget: Budget,
        stop: &Stop,
    ) -> (Vec<Slot>, Option<Vec<u8>>) {
        let file = &self.catalog[id];
        let offset = file.place.offset;
        if let Stop::Broken(reason) = stop {
            let text = format!(
                "{}: the gzip data cannot be read behind byte {} of its content: {reason}; what came before was delivered",
                file.place.path.display(),
                offset + chunk.len() as u64
            );
            self.notice("gzip_broken", text);
            let cause = Cause::new("gzip_broken", format!("the gzip data cannot be read on: {reason}"));
            let mut kept = Vec::new();
            let slot = crate::files::frame::broken(chunk, offset, &mut kept, cause);
            return (vec![slot], Some(kept));
        }
        if chunk.is_empty() {
            return (Vec::new(), None);
        }
        let cut = self.cutter.cut(chunk, false, offset, budget);
        (cut.slots, cut.framed)
    }

    /// A bounded run delivered a last line without end; whether there is something behind it now.
    fn finish_line(&mut self, id: FileId) -> io::Result<bool> {
        let follow = self.config.follow;
        let file = &mut self.catalog[id];
        let (Some(start), Some(input)) = (file.place.unfinished, &mut file.input) else { return Ok(true) };
        let offset = file.place.offset;
        let raw_len = input.file().metadata()?.len();
        let mut next = Vec::new();
        input.read_from(offset, &mut next, 2)?;
        input.give_back(offset, &next);
        let end = match next.as_slice() {
            [] => None,
            [b'\r'] if follow => None,
            [b'\n', ..] => Some(offset + 1),
            [b'\r', b'\n'] => Some(offset + 2),
            _ => Some(start),
        };
        let Some(end) = end else {
            file.end_len = Some(raw_len);
            return Ok(false);
        };
        if !file.place.fingerprint.matches(input.file(), offset)? {
            // The end of the read will notice; nothing may be moved meanwhile.
            file.place.unfinished = None;
            return Ok(true);
        }
        file.place.offset = end;
        file.place.unfinished = None;
        if file.place.gzip {
            file.place.fingerprint.tail_len = 0;
        } else {
            file.place.fingerprint.set_tail_from(input.file(), end)?;
        }
        if end == start {
            let text = format!(
                "{}: the last line, at byte {start}, was delivered before it was complete, and is delivered again whole",
                file.place.path.display()
            );
            self.notice("line_continued", text);
        }
        Ok(true)
    }

    /// Moves the offset behind `consumed` bytes, of which `bytes` were kept, if the file is still what it was.
    fn advance(&mut self, id: FileId, bytes: &[u8], consumed: u64) -> io::Result<bool> {
        let file = &mut self.catalog[id];
        let Some(input) = file.input.as_ref() else { return Ok(false) };
        let metadata = input.file().metadata()?;
        if file.still_holds(&metadata, || Ok(None))? == Holds::No {
            return Ok(false);
        }
        let Some(input) = file.input.as_ref() else { return Ok(false) };
        let (base, offset) = (file.place.offset, file.place.offset + consumed);
        let gzip = file.place.gzip;
        let (read, chunk) = if gzip { (metadata.len(), &[][..]) } else { (offset, bytes) };
        if read < offset && !gzip || !gzip && metadata.len() < offset {
            return Ok(false);
        }
        let Some(mut print) = file.place.fingerprint.extended(input.file(), read, base, chunk)? else {
            return Ok(false);
        };
        if gzip {
            print.tail_len = 0;
        } else if bytes.len() as u64 == consumed {
            print.set_tail(bytes);
        } else {
            print.set_tail_from(input.file(), offset)?;
        }
        file.len = metadata.len();
        file.place.fingerprint = print;
        file.place.offset = offset;
        Ok(true)
    }

    /// Nothing was read; make sure that this is because the file ends here.
    fn at_end(&mut self, id: FileId) -> io::Result<Step> {
        let file = &mut self.catalog[id];
        let Some(input) = file.input.as_ref() else { return Ok(Step::AtEnd) };
        let metadata = input.file().metadata()?;
        if file.still_holds(&metadata, || Ok(None))? == Holds::No {
            return Ok(self.rewritten(id));
        }
        self.catalog[id].len = metadata.len();
        Ok(Step::AtEnd)
    }

    /// The open file's content was exchanged: reads the new one from its start.
    fn rewritten(&mut self, id: FileId) -> Step {
        let path = self.catalog[id].place.path.clone();
        self.tell_truncated(id);
        let handle = self.catalog[id].input.take().map(Input::into_file);
        self.supersede(id, path, handle);
        // The old file is out of every queue; `read_some` must not put it back.
        Step::AtEnd
    }

    pub(super) fn tell_truncated(&mut self, id: FileId) {
        let place = &self.catalog[id].place;
        let text = format!(
            "{} was truncated or rewritten after {} bytes of it had been read; it is read again from its start",
            place.path.display(),
            place.offset
        );
        self.notice("file_truncated", text);
    }
}

/// An error of the file system while reading.
fn read_error(path: &std::path::Path, e: io::Error) -> Error {
    Error::transient(format!("{} cannot be read on; check the disk or network file system", path.display()))
        .with_source(e)
}

impl Source for FileSource {
    fn open<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move { self.start_over(positions) })
    }

    fn next(&mut self, budget: Budget) -> Fut<'_, Result<Next>> {
        Box::pin(self.give(budget))
    }

    fn release<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move { ack::release(positions) })
    }

    fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }
}
