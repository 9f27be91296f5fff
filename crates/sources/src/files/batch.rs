//! One read of one file: a chunk becomes a batch, and the file's position moves behind it.

use std::io;
use std::time::Instant;

use millstream_core::record::Slot;
use millstream_core::{Budget, Cause, RecordBatch};

use crate::files::catalog::{FileId, Holds, Partial};
use crate::files::chunk::{self, Found, Limits};
use crate::files::frame;
use crate::files::input::{Input, Stop};
use crate::files::lines;
use crate::files::reader::FileSource;

/// Fewest bytes that are read at a time, however small the budget.
const READ_BYTES_MIN: usize = 4096;

/// The records of a chunk.
#[derive(Default)]
struct Taken {
    slots: Vec<Slot>,
    /// What they point into, if not into the chunk.
    framed: Option<Vec<u8>>,
    /// Bytes of the file that they took.
    consumed: u64,
    /// Where the last of them starts, if no line end followed it.
    unfinished: Option<u64>,
}

impl FileSource {
    /// The next records of an open file; `None` if it has nothing more now, or never.
    pub(super) fn read_chunk(
        &mut self,
        id: FileId,
        budget: Budget,
        chunk: &mut Vec<u8>,
    ) -> io::Result<Option<RecordBatch>> {
        if self.is_spent(id)? || (self.catalog[id].place.unfinished.is_some() && !self.finish_line(id)?) {
            return self.at_end(id);
        }
        let Some(limits) = self.limits(id, budget)? else { return self.at_end(id) };
        let file = &mut self.catalog[id];
        let Some(input) = &mut file.input else { return Ok(None) };
        let raw_len = input.file().metadata()?.len();
        let offset = file.place.offset;
        let (found, stop) = chunk::read(input, offset, limits, chunk)?;
        let at_end = stop != Stop::Full;
        let read_to = match found {
            Found::Lines(_) | Found::Rest => offset + chunk.len() as u64,
            Found::Overlong { len, .. } => offset + len,
        };
        let Taken { slots, framed, consumed, unfinished } = self.take(id, &found, &stop, chunk, budget);
        let file = &mut self.catalog[id];
        file.partial = None;
        if at_end && consumed == 0 {
            file.end_len = Some(if file.place.gzip { raw_len } else { read_to });
            let long = read_to - offset > limits.target as u64;
            file.partial = long.then_some(Partial { start: offset, scanned: read_to });
        }
        if !matches!(found, Found::Overlong { .. })
            && let Some(input) = &mut file.input
        {
            input.give_back(offset + consumed, &chunk[consumed as usize..]);
        }
        if slots.is_empty() {
            return self.at_end(id);
        }
        let kept = chunk.len().min(consumed as usize);
        if !self.advance(id, &chunk[..kept], consumed)? {
            self.rewritten(id);
            return Ok(None);
        }
        let file = &mut self.catalog[id];
        file.place.unfinished = unfinished;
        // Where the data breaks, the dead letter that says so ends it.
        let ended = stop == Stop::End || (at_end && found == Found::Rest);
        let all = file.place.gzip && ended && offset + consumed == read_to;
        file.place.raw_len = if all { raw_len } else { 0 };
        let buffer = framed.unwrap_or_else(|| {
            let mut buffer = std::mem::take(chunk);
            buffer.truncate(kept);
            buffer
        });
        let (partition, position) = (file.partition.clone(), file.place.encode());
        Ok(Some(RecordBatch { partition, buffer, slots, position }))
    }

    /// How much to read. `None`: the line whose start is known has no end yet.
    fn limits(&mut self, id: FileId, budget: Budget) -> io::Result<Option<Limits>> {
        let max_line = self.config.max_record_bytes;
        let expected = self.cutter.expected_bytes(budget.records);
        let mut target = self.config.chunk_bytes.min(budget.bytes).min(expected);
        let file = &mut self.catalog[id];
        let Some(input) = file.input.as_mut().filter(|input| !input.is_gzip()) else {
            return Ok(Some(Limits { target: target.max(READ_BYTES_MIN), max_line }));
        };
        let offset = file.place.offset;
        // One byte more than there should be tells the end.
        let there = input.file().metadata()?.len().saturating_sub(offset);
        target =
            target.min(usize::try_from(there).unwrap_or(usize::MAX).saturating_add(1)).max(READ_BYTES_MIN);
        if let Some(partial) = file.partial.filter(|partial| partial.start == offset) {
            input.read_from(partial.scanned, &mut Vec::new(), 0)?;
            let (scanned, terminated, _) = chunk::find_end(input, partial.scanned)?;
            if !terminated {
                file.partial = Some(Partial { scanned, ..partial });
                file.end_len = Some(scanned);
                return Ok(None);
            }
            target = target.max((scanned - offset).min(max_line as u64 + 2) as usize);
        }
        Ok(Some(Limits { target, max_line }))
    }

    /// The records of what was found.
    fn take(&mut self, id: FileId, found: &Found, stop: &Stop, chunk: &[u8], budget: Budget) -> Taken {
        let offset = self.catalog[id].place.offset;
        let last = !self.config.follow || matches!(stop, Stop::Broken(_));
        match *found {
            Found::Lines(complete) => {
                let cut = self.cutter.cut(&chunk[..complete], true, offset, budget);
                Taken {
                    slots: cut.slots,
                    framed: cut.framed,
                    consumed: cut.consumed as u64,
                    unfinished: None,
                }
            }
            Found::Overlong { len, terminated } if terminated || last => Taken {
                slots: vec![self.cutter.overlong(chunk, len, offset)],
                framed: None,
                consumed: len + u64::from(terminated),
                unfinished: (!terminated).then_some(offset),
            },
            Found::Rest if last => {
                let (slots, framed) = self.last_line(id, chunk, budget, stop);
                let unfinished = (!chunk.is_empty()).then_some(offset);
                Taken { slots, framed, consumed: chunk.len() as u64, unfinished }
            }
            Found::Rest | Found::Overlong { .. } => Taken::default(),
        }
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
            let slot = frame::broken(chunk, offset, &mut kept, cause);
            return (vec![slot], Some(kept));
        }
        if chunk.len() == lines::mark_len(chunk, offset) {
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
        if !gzip && metadata.len() < offset {
            return Ok(false);
        }
        let (read, chunk) = if gzip { (metadata.len(), &[][..]) } else { (offset, bytes) };
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
        file.place.len = metadata.len();
        file.place.fingerprint = print;
        file.place.offset = offset;
        Ok(true)
    }

    /// Nothing was read; make sure that this is because the file ends here.
    fn at_end(&mut self, id: FileId) -> io::Result<Option<RecordBatch>> {
        let file = &mut self.catalog[id];
        let Some(input) = file.input.as_ref() else { return Ok(None) };
        let metadata = input.file().metadata()?;
        if file.still_holds(&metadata, || Ok(None))? == Holds::No {
            self.rewritten(id);
            return Ok(None);
        }
        let file = &mut self.catalog[id];
        file.place.len = metadata.len();
        file.ended = Some(Instant::now());
        Ok(None)
    }

    /// The open file's content was exchanged: reads the new one from its start.
    fn rewritten(&mut self, id: FileId) {
        let path = self.catalog[id].place.path.clone();
        self.tell_truncated(id);
        let handle = self.catalog[id].input.take().map(Input::into_file);
        self.supersede(id, path, handle);
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
