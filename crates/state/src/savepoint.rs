//! Savepoints: one portable file with a checkpoint and all its state.
//!
//! ```text
//! "MLSSAVE" format(1 byte, = 1)
//! length-prefixed checkpoint bytes
//! entries: 1, length-prefixed row key (space, key), length-prefixed value
//! 0, number of entries (varint)
//! CRC-32C of all before (4 bytes, little-endian)
//! ```
//! Written beside its final name and renamed when fsynced: a savepoint is whole or absent. It names no shard count and
//! no machine, so it restores anywhere.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use fjall::Readable;
use millstream_core::bytes::{put_bytes, put_varint, take_varint};
use millstream_core::{Error, Result};

use crate::local::{CHECKPOINT, RESTORED, Tree, io, storage};

const MAGIC: &[u8; 7] = b"MLSSAVE";
const FORMAT: u8 = 1;
/// Entries between two commits of a restore: bounds its memory.
const RESTORE_BATCH: usize = 10_000;
/// No field of a savepoint is larger; a larger length is damage, not a reason to allocate.
const FIELD_BYTES_MAX: u64 = 1 << 30;

/// Where a savepoint called `name` of the pipeline in `directory` is.
fn path_of(directory: &Path, name: &str) -> PathBuf {
    directory.join("savepoints").join(format!("{name}.savepoint"))
}

/// The file of a savepoint given by path or name.
pub(crate) fn find(directory: &Path, savepoint: &str) -> Result<PathBuf> {
    let tried = [PathBuf::from(savepoint), path_of(directory, savepoint)];
    tried.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        Error::fatal(format!(
            "there is no savepoint {savepoint}: neither {} nor {} is a file",
            tried[0].display(),
            tried[1].display()
        ))
    })
}

/// Copies the last checkpoint and its state into a new savepoint; returns its path.
pub(crate) fn write(directory: &Path, name: &str, tree: &Tree) -> Result<String> {
    if name.is_empty()
        || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        || name.starts_with('.')
    {
        return Err(Error::fatal("a savepoint's name is made of letters, digits, '-', '_' and '.'"));
    }
    let path = path_of(directory, name);
    if path.exists() {
        return Err(Error::fatal(format!("savepoint {name} exists already: choose another name")));
    }
    let folder = directory.join("savepoints");
    std::fs::create_dir_all(&folder).map_err(|e| io("cannot create", &folder, e))?;
    // The checkpoint and the state must be of one moment: both are read from this snapshot.
    let snapshot = tree.db.snapshot();
    let Some(checkpoint) = snapshot.get(&tree.rows, [CHECKPOINT]).map_err(|e| storage("cannot read", e))?
    else {
        return Err(Error::fatal(
            "there is no checkpoint yet to make a savepoint of: run the pipeline first",
        ));
    };
    let half = path.with_extension("half");
    let file = File::create(&half).map_err(|e| io("cannot create", &half, e))?;
    let mut out = Summed { inner: BufWriter::with_capacity(1 << 20, file), crc: 0 };
    let failed = |e| io("cannot write", &half, e);
    out.put(MAGIC).and_then(|()| out.put(&[FORMAT])).map_err(failed)?;
    let mut buffer = Vec::new();
    put_bytes(&mut buffer, &checkpoint);
    out.put(&buffer).map_err(failed)?;
    let mut entries = 0u64;
    for entry in snapshot.range(&tree.rows, ..[CHECKPOINT]) {
        let (key, value) = entry.into_inner().map_err(|e| storage("cannot read keyed state", e))?;
        if *key == [RESTORED] {
            continue;
        }
        buffer.clear();
        buffer.push(1);
        put_bytes(&mut buffer, &key);
        put_bytes(&mut buffer, &value);
        out.put(&buffer).map_err(failed)?;
        entries += 1;
    }
    buffer.clear();
    buffer.push(0);
    put_varint(&mut buffer, entries);
    out.put(&buffer).map_err(failed)?;
    let crc = out.crc.to_le_bytes();
    out.inner.write_all(&crc).map_err(failed)?;
    let file = out.inner.into_inner().map_err(|e| failed(e.into_error()))?;
    file.sync_all().map_err(failed)?;
    std::fs::rename(&half, &path).map_err(|e| io("cannot rename", &half, e))?;
    File::open(&folder).and_then(|f| f.sync_all()).map_err(|e| io("cannot sync", &folder, e))?;
    Ok(path.display().to_string())
}

/// Fills an empty tree from a savepoint. The checkpoint is written last: a tree without one is no store.
pub(crate) fn read(path: &Path, tree: &Tree) -> Result<()> {
    let file = File::open(path).map_err(|e| io("cannot open", path, e))?;
    let mut input = Summed { inner: BufReader::with_capacity(1 << 20, file), crc: 0 };
    let damaged =
        || Error::fatal(format!("savepoint {} is damaged or cut short: use another one", path.display()));
    let mut head = [0; 8];
    input.take_exact(&mut head).map_err(|_| damaged())?;
    if &head[..7] != MAGIC {
        return Err(Error::fatal(format!("{} is not a savepoint", path.display())));
    }
    if head[7] != FORMAT {
        return Err(Error::fatal(format!(
            "savepoint {} has format {}, and this version of millstream reads format {FORMAT}",
            path.display(),
            head[7]
        )));
    }
    let checkpoint = input.field().map_err(|_| damaged())?;
    let mut entries = 0u64;
    let mut batch = tree.db.batch();
    loop {
        let mut more = [0];
        input.take_exact(&mut more).map_err(|_| damaged())?;
        if more[0] == 0 {
            break;
        }
        let key = input.field().map_err(|_| damaged())?;
        let value = input.field().map_err(|_| damaged())?;
        batch.insert(&tree.rows, key, value);
        entries += 1;
        if batch.len() == RESTORE_BATCH {
            let full = std::mem::replace(&mut batch, tree.db.batch());
            full.commit().map_err(|e| storage("cannot write restored state", e))?;
        }
    }
    batch.commit().map_err(|e| storage("cannot write restored state", e))?;
    let written = input.varint().map_err(|_| damaged())?;
    let sum = input.crc;
    let mut crc = [0; 4];
    input.inner.read_exact(&mut crc).map_err(|_| damaged())?;
    if written != entries
        || u32::from_le_bytes(crc) != sum
        || input.inner.read(&mut [0]).map_err(|_| damaged())? != 0
    {
        return Err(damaged());
    }
    crate::format::decode_checkpoint(&checkpoint)?;
    tree.put_checkpoint(&checkpoint)
}

/// A stream and the checksum of what went through it.
struct Summed<T> {
    inner: T,
    crc: u32,
}

impl<W: Write> Summed<W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.inner.write_all(bytes)
    }
}

impl<R: Read> Summed<R> {
    fn take_exact(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        self.inner.read_exact(bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Ok(())
    }

    fn varint(&mut self) -> std::io::Result<u64> {
        let mut bytes = Vec::with_capacity(10);
        loop {
            let mut byte = [0];
            self.take_exact(&mut byte)?;
            bytes.push(byte[0]);
            if byte[0] < 0x80 {
                return take_varint(&mut bytes.as_slice())
                    .ok_or_else(|| std::io::ErrorKind::InvalidData.into());
            }
            if bytes.len() == 10 {
                return Err(std::io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn field(&mut self) -> std::io::Result<Vec<u8>> {
        let len = self.varint()?;
        if len > FIELD_BYTES_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        self.inner.by_ref().take(len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != len {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        Ok(bytes)
    }
}
