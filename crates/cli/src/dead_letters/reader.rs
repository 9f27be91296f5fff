//! Reads dead letters back.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;

use millstream_core::{Error, Result, Stage};

use super::letter::Letter;
use super::ranges::Ranges;
use super::{STAGES, file_name};

/// The file that tells which letters were replayed; the checkpoint knows it first, this is its copy for readers.
const LEDGER: &str = "replayed.json";

/// All letters in `directory`, stage by stage, oldest first. Lines that are no letters (half-written ones) are skipped.
pub(crate) fn letters(directory: &Path) -> Result<impl Iterator<Item = Result<Letter>> + use<>> {
    let mut readers = Vec::new();
    for stage in STAGES {
        if let Some(lines) = Lines::open(directory, stage, 0)? {
            readers.push(lines);
        }
    }
    Ok(readers.into_iter().flatten())
}

/// The letters of one stage's file.
pub(super) struct Lines {
    reader: BufReader<File>,
    /// Offset of the next line.
    pub(super) offset: u64,
    shown: String,
}

impl Lines {
    /// The file of `stage` from byte `offset`, which must be a line's start; `None` if there is no such file.
    pub(super) fn open(directory: &Path, stage: Stage, offset: u64) -> Result<Option<Self>> {
        let path = directory.join(file_name(stage));
        let shown = path.display().to_string();
        let opened = File::open(&path).and_then(|mut file| file.seek(SeekFrom::Start(offset)).map(|_| file));
        match opened {
            Ok(file) => Ok(Some(Self { reader: BufReader::with_capacity(1 << 18, file), offset, shown })),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => {
                Err(Error::transient(format!("cannot read the dead letters in {shown}")).with_source(e))
            }
        }
    }
}

impl Iterator for Lines {
    type Item = Result<Letter>;

    fn next(&mut self) -> Option<Result<Letter>> {
        let mut line = Vec::new();
        loop {
            line.clear();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                // A line without its end is being written just now.
                Ok(_) if line.last() != Some(&b'\n') => return None,
                Ok(n) => self.offset += n as u64,
                Err(e) => {
                    let error = Error::transient(format!("cannot read the dead letters in {}", self.shown));
                    return Some(Err(error.with_source(e)));
                }
            }
            if let Ok(letter) = serde_json::from_slice(&line) {
                return Some(Ok(letter));
            }
        }
    }
}

/// Which letters were replayed, by stage.
pub(crate) fn replayed(directory: &Path) -> BTreeMap<String, Ranges> {
    // A ledger that is missing or damaged is written anew by the next replay.
    let text = std::fs::read(directory.join(LEDGER)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Writes the ledger, whole or not at all.
pub(super) fn write_ledger(directory: &Path, replayed: &BTreeMap<String, Ranges>) -> Result<()> {
    let path = directory.join(LEDGER);
    let half = directory.join("replayed.json.new");
    let text = serde_json::to_vec(replayed)
        .map_err(|e| Error::fatal("the ledger of replays is not JSON").with_source(e))?;
    std::fs::write(&half, text)
        .and_then(|()| std::fs::rename(&half, &path))
        .map_err(|e| Error::transient(format!("cannot write {}", path.display())).with_source(e))
}
