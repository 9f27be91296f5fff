//! Cuts a chunk of a file into lines and lines into record slots.

use millstream_core::record::{Range, Slot};
use millstream_core::{Budget, Cause};

use crate::files::config::Lines;
use crate::files::frame;

/// How much of a line that is too long is kept, at most.
pub(crate) const KEPT_BYTES: usize = 64 << 10;

/// The records cut from a chunk.
pub(crate) struct Cut {
    /// What the slots point into; `None` where they point into the chunk itself.
    pub(crate) framed: Option<Vec<u8>>,
    pub(crate) slots: Vec<Slot>,
    /// Bytes of the chunk that they took.
    pub(crate) consumed: usize,
}

/// Cuts lines. Remembers how long lines are, to allocate once.
#[derive(Debug)]
pub(crate) struct Cutter {
    lines: Lines,
    max_record_bytes: usize,
    mean_line_bytes: usize,
}

impl Cutter {
    pub(crate) fn new(lines: Lines, max_record_bytes: usize) -> Self {
        Self { lines, max_record_bytes, mean_line_bytes: 512 }
    }

    /// Bytes worth reading for `records` records.
    pub(crate) fn expected_bytes(&self, records: usize) -> usize {
        records.saturating_mul(self.mean_line_bytes + self.mean_line_bytes / 8 + 1)
    }

    /// Cuts `chunk`, which ends with a line end, or is one line without (`terminated` false). `base` is the chunk's
    /// offset in its file.
    pub(crate) fn cut(&mut self, chunk: &[u8], terminated: bool, base: u64, budget: Budget) -> Cut {
        let expected = chunk.len() / self.mean_line_bytes.max(1) + 8;
        let mut slots = Vec::with_capacity(expected.min(budget.records.max(1)));
        let mut framed = match self.lines {
            Lines::Value => None,
            Lines::Record => Some(Vec::with_capacity(chunk.len())),
        };
        let ends = memchr::memchr_iter(b'\n', chunk).map(|end| (end, end + 1));
        let rest = (!terminated).then_some((chunk.len(), chunk.len()));
        let mut start = 0;
        for (end, next) in ends.chain(rest) {
            let line = &chunk[start..end];
            let line = if next > end { line.strip_suffix(b"\r").unwrap_or(line) } else { line };
            let offset = base + start as u64;
            let mark = mark_len(line, offset);
            let (line, first) = (&line[mark..], start + mark);
            slots.push(match &mut framed {
                _ if line.len() > self.max_record_bytes => {
                    let mut slot = self.too_large(line.len() as u64, offset);
                    slot.value = Some(match &mut framed {
                        None => range(first, self.kept_bytes()),
                        Some(framed) => frame::append(framed, &line[..self.kept_bytes()]),
                    });
                    slot
                }
                None => Slot { value: Some(range(first, line.len())), offset, ..Slot::default() },
                Some(framed) => frame::read(line, offset, framed),
            });
            start = next;
            if slots.len() >= budget.records || start >= budget.bytes {
                break;
            }
        }
        if !slots.is_empty() {
            self.mean_line_bytes = (self.mean_line_bytes * 3 + start / slots.len()).div_ceil(4);
        }
        Cut { framed, slots, consumed: start }
    }

    /// The record of a line of `len` bytes, of which only `head` was kept.
    pub(crate) fn overlong(&self, head: &[u8], len: u64, offset: u64) -> Slot {
        Slot { value: Some(range(0, head.len())), ..self.too_large(len, offset) }
    }

    fn kept_bytes(&self) -> usize {
        KEPT_BYTES.min(self.max_record_bytes)
    }

    fn too_large(&self, len: u64, offset: u64) -> Slot {
        let cause = Cause::new(
            "too_large",
            format!(
                "a line of {len} bytes is longer than max_record_bytes, {}; its first {} bytes are kept",
                self.max_record_bytes,
                self.kept_bytes()
            ),
        );
        Slot { offset, broken: Some(cause), ..Slot::default() }
    }
}

/// Bytes of a byte order mark, which some editors put before the first line of a file; elsewhere it is content.
pub(crate) fn mark_len(line: &[u8], offset: u64) -> usize {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    if offset == 0 && line.starts_with(MARK) { MARK.len() } else { 0 }
}

fn range(start: usize, len: usize) -> Range {
    Range { start: start as u32, len: len as u32 }
}
