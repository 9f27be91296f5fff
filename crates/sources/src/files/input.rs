//! The bytes of one open file, plain or decompressed, by offset.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use flate2::bufread::MultiGzDecoder;

use crate::files::position::{Fingerprint, HEAD_BYTES, TAIL_BYTES, hash};

/// Why a read stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It gave as many bytes as were asked for.
    Full,
    /// The file has no more bytes now.
    End,
    /// The compressed data cannot be read on; the reason.
    Broken(String),
}

/// An open file.
#[derive(Debug)]
pub(crate) struct Input {
    file: File,
    gzip: Option<Box<Gzip>>,
}

/// A decompressor, and the bytes right before its place that its user gave back.
#[derive(Debug)]
struct Gzip {
    decoder: MultiGzDecoder<RawBytes>,
    rest: Vec<u8>,
    /// Offset of `rest`'s first byte; the decompressor's own where there is none.
    rest_start: u64,
    follow: bool,
    broken: Option<String>,
}

/// The compressed bytes. When followed, the end of the file says "not now" and not "never", which keeps the
/// decompressor able to go on when the file has grown.
#[derive(Debug)]
struct RawBytes {
    file: BufReader<File>,
    follow: bool,
}

impl Read for RawBytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let n = available.read(into)?;
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for RawBytes {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let follow = self.follow;
        let available = self.file.fill_buf()?;
        if available.is_empty() && follow { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(available) }
    }

    fn consume(&mut self, amount: usize) {
        self.file.consume(amount);
    }
}

impl Input {
    /// Reads `file` as plain bytes.
    pub(crate) fn plain(file: File) -> Self {
        Self { file, gzip: None }
    }

    /// Reads `file` decompressed. `follow`: a cut end is waited for, not [`Stop::Broken`].
    pub(crate) fn gzip(file: File, follow: bool) -> io::Result<Self> {
        let gzip = Some(Box::new(Gzip::open(&file, follow)?));
        Ok(Self { file, gzip })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn is_gzip(&self) -> bool {
        self.gzip.is_some()
    }

    /// Appends up to `count` bytes from `offset` on.
    pub(crate) fn read_from(&mut self, offset: u64, into: &mut Vec<u8>, count: usize) -> io::Result<Stop> {
        match &mut self.gzip {
            None => {
                self.file.seek(SeekFrom::Start(offset))?;
                self.read_on(into, count)
            }
            Some(gzip) => gzip.read_from(&self.file, offset, into, count),
        }
    }

    /// Appends up to `count` bytes behind those that were read last.
    pub(crate) fn read_on(&mut self, into: &mut Vec<u8>, count: usize) -> io::Result<Stop> {
        match &mut self.gzip {
            None => read_up_to(&mut self.file, into, count),
            Some(gzip) => gzip.read_on(into, count),
        }
    }

    /// Gives back `unused`, the bytes from `offset` on that were read but not used. Plain files seek and need none of it.
    pub(crate) fn give_back(&mut self, offset: u64, unused: &[u8]) {
        if let Some(gzip) = &mut self.gzip {
            gzip.rest.splice(..0, unused.iter().copied());
            gzip.rest_start = offset;
        }
    }

    /// The file alone, for another start.
    pub(crate) fn into_file(self) -> File {
        self.file
    }
}

impl Gzip {
    fn open(file: &File, follow: bool) -> io::Result<Self> {
        let mut own = file.try_clone()?;
        own.seek(SeekFrom::Start(0))?;
        let raw = RawBytes { file: BufReader::with_capacity(64 << 10, own), follow };
        Ok(Self { decoder: MultiGzDecoder::new(raw), rest: Vec::new(), rest_start: 0, follow, broken: None })
    }

    fn read_from(&mut self, file: &File, offset: u64, into: &mut Vec<u8>, count: usize) -> io::Result<Stop> {
        if offset < self.rest_start {
            *self = Self::open(file, self.follow)?;
        }
        let mut skipped = Vec::new();
        while offset > self.rest_start {
            skipped.clear();
            let wanted = (offset - self.rest_start).min(256 << 10) as usize;
            let stop = self.read_on(&mut skipped, wanted)?;
            if stop != Stop::Full {
                return Ok(stop);
            }
        }
        self.read_on(into, count)
    }

    fn read_on(&mut self, into: &mut Vec<u8>, count: usize) -> io::Result<Stop> {
        if !self.rest.is_empty() {
            let n = count.min(self.rest.len());
            into.extend(self.rest.drain(..n));
            self.rest_start += n as u64;
            return if n == count { Ok(Stop::Full) } else { self.read_on(into, count - n) };
        }
        if let Some(reason) = &self.broken {
            return Ok(Stop::Broken(reason.clone()));
        }
        let before = into.len();
        let read = read_up_to(&mut self.decoder, into, count);
        self.rest_start += (into.len() - before) as u64;
        match read {
            Ok(stop) => Ok(stop),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Stop::End),
            // The operating system's errors carry a number; the decompressor's do not.
            Err(e) if e.raw_os_error().is_some() => Err(e),
            Err(e) => {
                let reason = e.to_string();
                self.broken = Some(reason.clone());
                Ok(Stop::Broken(reason))
            }
        }
    }
}

/// `read_to_end` fills spare capacity without zeroing it first.
fn read_up_to(from: &mut impl Read, into: &mut Vec<u8>, count: usize) -> io::Result<Stop> {
    let n = from.take(count as u64).read_to_end(into)?;
    Ok(if n == count { Stop::Full } else { Stop::End })
}

/// The first `len` bytes of the file, or fewer if it is shorter.
pub(crate) fn head(file: &File, len: usize) -> io::Result<Vec<u8>> {
    bytes_at(file, 0, len)
}

fn bytes_at(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

impl Fingerprint {
    /// Whether the file still holds what was read up to `offset`.
    pub(crate) fn matches(&self, file: &File, offset: u64) -> io::Result<bool> {
        let head_len = usize::from(self.head_len);
        let head = head(file, head_len)?;
        if head.len() < head_len || hash(&head) != self.head_hash {
            return Ok(false);
        }
        let tail_len = usize::from(self.tail_len);
        // A tail within the head says nothing new.
        if tail_len == 0 || offset <= self.head_len.into() {
            return Ok(true);
        }
        let tail = bytes_at(file, offset.saturating_sub(tail_len as u64), tail_len)?;
        Ok(tail.len() == tail_len && hash(&tail) == self.tail_hash)
    }

    /// Covers more of the head, up to `read` bytes, if it is not yet complete. `chunk` is what was just read from `base`
    /// on (empty for gzip). `None`: the file's head is not what it was.
    pub(crate) fn extended(
        mut self,
        file: &File,
        read: u64,
        base: u64,
        chunk: &[u8],
    ) -> io::Result<Option<Self>> {
        let want = read.min(HEAD_BYTES as u64) as usize;
        let have = usize::from(self.head_len);
        if want <= have {
            return Ok(Some(self));
        }
        let bytes = head(file, want)?;
        let same_as_before = bytes.len() == want && hash(&bytes[..have]) == self.head_hash;
        let overlap = bytes.get(base as usize..).unwrap_or_default();
        let same_as_read = overlap.iter().zip(chunk).all(|(a, b)| a == b);
        if !same_as_before || !same_as_read {
            return Ok(None);
        }
        self.head_len = want as u16;
        self.head_hash = hash(&bytes);
        Ok(Some(self))
    }

    /// Takes the bytes before `offset` from the file.
    pub(crate) fn set_tail_from(&mut self, file: &File, offset: u64) -> io::Result<()> {
        let start = offset.saturating_sub(TAIL_BYTES as u64);
        self.set_tail(&bytes_at(file, start, (offset - start) as usize)?);
        Ok(())
    }

    /// Remembers the last bytes of `consumed`, which end at the offset.
    pub(crate) fn set_tail(&mut self, consumed: &[u8]) {
        let tail = &consumed[consumed.len().saturating_sub(TAIL_BYTES)..];
        self.tail_len = tail.len() as u16;
        self.tail_hash = hash(tail);
    }
}
