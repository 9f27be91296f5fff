//! Where reading a file goes on, and how the file is recognised again.
//!
//! Encoded (little endian):
//! ```text
//! 0   u8   format, 1
//! 1   u8   flags: 1 gzip, 2 the last line had no end
//! 2   u64  device         26  u64  serial        50  u64  raw length    68  u16  tail length
//! 10  u64  inode          34  u64  offset        58  u16  head length   70  u64  tail hash
//! 18  u64  generation     42  u64  line start    60  u64  head hash     78  u64  length
//!                                                                       86  …    path
//! ```

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millstream_core::{Error, PartitionId, Position, Result};

const FORMAT: u8 = 1;
const GZIP: u8 = 1;
const UNFINISHED: u8 = 2;
const FIXED_BYTES: usize = 86;

/// Bytes at a file's start that the fingerprint covers.
pub(crate) const HEAD_BYTES: usize = 4096;
/// Bytes before the offset that the fingerprint covers. Events with an embedded schema share their first 4 KiB, but
/// their ends hold source positions and times.
pub(crate) const TAIL_BYTES: usize = 256;

/// Which file: what a rename keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Hashes of bytes that were read, by which a rewritten file is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fingerprint {
    /// Bytes from the start; at most [`HEAD_BYTES`].
    pub(crate) head_len: u16,
    pub(crate) head_hash: u64,
    /// Bytes right before the offset; at most [`TAIL_BYTES`]. None for gzip, whose offsets are not the file's.
    pub(crate) tail_len: u16,
    pub(crate) tail_hash: u64,
}

/// Where reading one file goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilePosition {
    pub(crate) identity: Identity,
    /// Counts the contents that the same inode has had.
    pub(crate) generation: u64,
    /// Rises with each content that the pipeline has seen: of two that had the same path, the later one.
    pub(crate) serial: u64,
    /// Bytes read, of the decompressed content for gzip.
    pub(crate) offset: u64,
    /// Start of the last line, if it was delivered although no line end followed it.
    pub(crate) unfinished: Option<u64>,
    pub(crate) gzip: bool,
    /// Gzip only: length of the compressed file when all of it had been read; 0 if that was not yet so.
    pub(crate) raw_len: u64,
    pub(crate) fingerprint: Fingerprint,
    /// Its length in the file system when it was last seen: what of it is unread if it is gone when reading goes on.
    pub(crate) len: u64,
    /// Where it was last seen.
    pub(crate) path: PathBuf,
}

impl FilePosition {
    /// The start of a file.
    pub(crate) fn start(path: &Path, identity: Identity, generation: u64, serial: u64) -> Self {
        Self {
            identity,
            generation,
            serial,
            offset: 0,
            unfinished: None,
            gzip: false,
            raw_len: 0,
            fingerprint: Fingerprint::default(),
            len: 0,
            path: path.to_owned(),
        }
    }

    pub(crate) fn encode(&self) -> Position {
        let path = self.path.as_os_str().as_bytes();
        let mut out = Vec::with_capacity(FIXED_BYTES + path.len());
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        out.push(FORMAT);
        out.push(flag(self.gzip, GZIP) | flag(self.unfinished.is_some(), UNFINISHED));
        let line = self.unfinished.unwrap_or(self.offset);
        let Identity { device, inode } = self.identity;
        let numbers = [device, inode, self.generation, self.serial, self.offset, line, self.raw_len];
        for number in numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let print = &self.fingerprint;
        for (len, hash) in [(print.head_len, print.head_hash), (print.tail_len, print.tail_hash)] {
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&hash.to_le_bytes());
        }
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(path);
        Position(out)
    }

    /// Reads what [`encode`](Self::encode) wrote; anything else is a fatal error that names the partition.
    pub(crate) fn decode(partition: &PartitionId, position: &Position) -> Result<Self> {
        let bytes = position.0.as_slice();
        let format = bytes.first().copied().unwrap_or_default();
        if format != FORMAT || bytes.len() < FIXED_BYTES {
            return Err(Error::fatal(format!(
                "the checkpoint's position of file {partition} has format {format} and {} bytes, but this version \
                 reads format {FORMAT}; use the version that wrote the checkpoint, or start from another savepoint",
                bytes.len()
            )));
        }
        let u64_at = |at: usize| u64::from_le_bytes(array(bytes, at));
        let u16_at = |at: usize| u16::from_le_bytes(array(bytes, at));
        let flags = bytes[1];
        Ok(Self {
            identity: Identity { device: u64_at(2), inode: u64_at(10) },
            generation: u64_at(18),
            serial: u64_at(26),
            offset: u64_at(34),
            unfinished: (flags & UNFINISHED != 0).then(|| u64_at(42)),
            gzip: flags & GZIP != 0,
            raw_len: u64_at(50),
            fingerprint: Fingerprint {
                head_len: u16_at(58).min(HEAD_BYTES as u16),
                head_hash: u64_at(60),
                tail_len: u16_at(68).min(TAIL_BYTES as u16),
                tail_hash: u64_at(70),
            },
            len: u64_at(78),
            path: PathBuf::from(OsString::from_vec(bytes[FIXED_BYTES..].to_vec())),
        })
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// A 64-bit hash of `bytes`, eight at a time. It is part of the position's format and must not change.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = (h ^ u64::from_le_bytes(word)).wrapping_mul(K);
        h ^= h >> 29;
    }
    h
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn positions_round_trip(
            numbers in any::<[u64; 10]>(),
            flags in any::<[bool; 2]>(),
            lens in (0..=HEAD_BYTES as u16, 0..=TAIL_BYTES as u16),
            path in proptest::collection::vec(1u8.., 0..40),
        ) {
            let position = FilePosition {
                identity: Identity { device: numbers[0], inode: numbers[1] },
                generation: numbers[2],
                serial: numbers[8],
                offset: numbers[3],
                unfinished: flags[0].then_some(numbers[4]),
                gzip: flags[1],
                raw_len: numbers[5],
                fingerprint: Fingerprint {
                    head_len: lens.0, head_hash: numbers[6], tail_len: lens.1, tail_hash: numbers[7],
                },
                len: numbers[9],
                path: PathBuf::from(OsString::from_vec(path)),
            };
            prop_assert_eq!(FilePosition::decode(&PartitionId::new("p"), &position.encode()).unwrap(), position);
        }

        #[test]
        fn other_bytes_are_refused_or_read_but_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = FilePosition::decode(&PartitionId::new("p"), &Position(bytes));
        }
    }

    #[test]
    fn an_unknown_format_is_refused() {
        let error =
            FilePosition::decode(&PartitionId::new("a.jsonl#1:2:0"), &Position(vec![9; 100])).unwrap_err();
        assert!(error.to_string().contains("a.jsonl#1:2:0 has format 9"), "{error}");
    }

    #[test]
    fn the_hash_is_pinned() {
        // Checkpoints hold these hashes.
        assert_eq!(hash(b""), 0);
        assert_eq!(hash(b"millstream"), 0xb678_06aa_ea6e_b32b);
        assert_ne!(hash(b"a"), hash(b"a\0"));
    }
}
