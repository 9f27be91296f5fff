//! Reads the next stretch of whole lines of a file.
//!
//! Nothing is remembered between two chunks but the offset, so that a chunk that is dropped comes again: what follows
//! the last line end is read twice (plain files) or given back (gzip).

use std::io;

use crate::files::input::{Input, Stop};
use crate::files::lines::KEPT_BYTES;

/// What a read found, from the offset on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// `chunk[..n]` ends with a line end.
    Lines(usize),
    /// The file ends before the line does; the chunk holds what there is, which may be nothing.
    Rest,
    /// A line of this many bytes without its end, longer than allowed; the chunk holds its first [`KEPT_BYTES`].
    Overlong { len: u64, terminated: bool },
}

/// How to read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// About how many bytes.
    pub(crate) target: usize,
    /// The longest line.
    pub(crate) max_line: usize,
}

/// Reads from `offset` on into the empty `chunk`.
pub(crate) fn read(
    input: &mut Input,
    offset: u64,
    limits: Limits,
    chunk: &mut Vec<u8>,
) -> io::Result<(Found, Stop)> {
    // The longest line that is taken whole, with CR and LF.
    let most = limits.max_line + 2;
    chunk.reserve(limits.target);
    let mut stop = input.read_from(offset, chunk, limits.target)?;
    let mut scanned = 0;
    loop {
        if let Some(end) = memchr::memrchr(b'\n', &chunk[scanned..]) {
            return Ok((Found::Lines(scanned + end + 1), stop));
        }
        if chunk.len() >= most {
            return overlong(input, offset, limits, chunk);
        }
        if stop != Stop::Full {
            return Ok((Found::Rest, stop));
        }
        scanned = chunk.len();
        let more = chunk.len().max(4096).min(most - chunk.len());
        stop = input.read_on(chunk, more)?;
    }
}

fn overlong(
    input: &mut Input,
    offset: u64,
    limits: Limits,
    chunk: &mut Vec<u8>,
) -> io::Result<(Found, Stop)> {
    let read = chunk.len() as u64;
    chunk.truncate(KEPT_BYTES.min(limits.max_line));
    chunk.shrink_to_fit();
    let (scanned, terminated, stop) = find_end(input, offset + read)?;
    Ok((Found::Overlong { len: scanned - offset - u64::from(terminated), terminated }, stop))
}

/// Looks for the next line end from `offset` on, where the input stands, and returns the offset behind it, or the end.
pub(crate) fn find_end(input: &mut Input, mut offset: u64) -> io::Result<(u64, bool, Stop)> {
    let mut piece = Vec::new();
    loop {
        piece.clear();
        let stop = input.read_on(&mut piece, 64 << 10)?;
        if let Some(end) = memchr::memchr(b'\n', &piece) {
            offset += end as u64 + 1;
            input.give_back(offset, &piece[end + 1..]);
            return Ok((offset, true, stop));
        }
        offset += piece.len() as u64;
        if stop != Stop::Full {
            return Ok((offset, false, stop));
        }
    }
}
