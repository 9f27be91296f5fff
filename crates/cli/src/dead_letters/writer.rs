//! Writes dead letters, following the epochs: what no checkpoint names is taken back.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use millstream_core::{CommitToken, DeadLetter, DeadLetters, Error, Fut, Result};
use millstream_engine::{Clock, SystemClock};
use tracing::warn;

use super::letter::{Letter, LetterId};
use super::{STAGES, file_name};

/// The token's format number.
const FORMAT: u8 = 1;

/// Where a stage's file stood: its length and the last number that was given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    bytes: u64,
    number: u64,
}

/// Dead letters in a folder. Token: a format byte, then for each stage length and last number as 8 bytes each, little-endian.
///
/// Someone may edit lines or delete files at any time while no pipeline runs; numbers go on. So what a checkpoint does not
/// name is told by number: letters above the token's number are removed. Without a token nobody knows whose letters a
/// folder holds, so that they are set aside and not removed.
#[derive(Debug)]
pub(crate) struct Writer {
    directory: PathBuf,
    files: [Option<File>; 3],
    marks: [Mark; 3],
    dirty: [bool; 3],
    /// Something was written since the last token.
    news: bool,
}

impl Writer {
    /// A writer into `directory`, which [`DeadLetters::recover`] makes.
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            files: [None, None, None],
            marks: [Mark::default(); 3],
            dirty: [false; 3],
            news: false,
        }
    }

    fn path(&self, stage: usize) -> PathBuf {
        self.directory.join(file_name(STAGES[stage]))
    }

    fn recover_now(&mut self, last: Option<&CommitToken>) -> Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(|e| self.failed("create", &self.directory, e))?;
        let marks = match last {
            Some(token) => decode_token(&token.0).ok_or_else(|| {
                Error::fatal("the checkpoint's mark of dead letters has an unknown format: it was written by a newer version")
            })?,
            None => [Mark::default(); 3],
        };
        for (stage, mark) in marks.into_iter().enumerate() {
            let path = self.path(stage);
            if last.is_none() {
                self.set_aside(&path)?;
            }
            self.marks[stage] = mark;
            let length = match std::fs::metadata(&path) {
                Ok(metadata) => metadata.len(),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => 0,
                Err(e) => return Err(self.failed("read", &path, e)),
            };
            self.marks[stage].bytes = length;
            if length != mark.bytes {
                let kept = kept_length(&path, mark.number).map_err(|e| self.failed("read", &path, e))?;
                if kept < length {
                    let file = OpenOptions::new()
                        .write(true)
                        .open(&path)
                        .map_err(|e| self.failed("open", &path, e))?;
                    file.set_len(kept)
                        .and_then(|()| file.sync_all())
                        .map_err(|e| self.failed("truncate", &path, e))?;
                }
                self.marks[stage].bytes = kept;
            }
        }
        Ok(())
    }

    /// Renames a file of letters that no checkpoint names.
    fn set_aside(&self, path: &Path) -> Result<()> {
        if !std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0) {
            return Ok(());
        }
        let free = (1..).map(|n| path.with_extension(format!("{n}.jsonl"))).find(|p| !p.exists());
        let free = free.expect("invariant: there are more numbers than files");
        std::fs::rename(path, &free).map_err(|e| self.failed("rename", path, e))?;
        warn!("{} holds letters that no checkpoint names; it is {} now", path.display(), free.display());
        Ok(())
    }

    fn write_now(&mut self, letters: &[DeadLetter]) -> Result<()> {
        let time = i64::try_from(SystemClock.now().as_micros())
            .ok()
            .and_then(|us| Timestamp::from_microsecond(us).ok());
        let time = time.unwrap_or(Timestamp::UNIX_EPOCH).to_string();
        let mut lines: [Vec<u8>; 3] = Default::default();
        for dead in letters {
            let stage =
                STAGES.iter().position(|s| *s == dead.stage).expect("invariant: all stages are listed");
            self.marks[stage].number += 1;
            let id = LetterId { stage: dead.stage, number: self.marks[stage].number };
            serde_json::to_writer(&mut lines[stage], &Letter::of(dead, id, time.clone()))
                .map_err(|e| Error::fatal("a dead letter cannot be written as JSON").with_source(e))?;
            lines[stage].push(b'\n');
        }
        for (stage, lines) in lines.iter().enumerate().filter(|(_, lines)| !lines.is_empty()) {
            let path = self.path(stage);
            let file = match &mut self.files[stage] {
                Some(file) => file,
                empty => {
                    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
                    empty.insert(opened.map_err(|e| failed("open", &path, e))?)
                }
            };
            file.write_all(lines).map_err(|e| failed("write", &path, e))?;
            self.marks[stage].bytes += lines.len() as u64;
            self.dirty[stage] = true;
            self.news = true;
        }
        Ok(())
    }

    fn prepare_now(&mut self) -> Result<Option<CommitToken>> {
        for stage in 0..STAGES.len() {
            if !std::mem::take(&mut self.dirty[stage]) {
                continue;
            }
            if let Some(file) = &self.files[stage] {
                file.sync_data().map_err(|e| self.failed("sync", &self.path(stage), e))?;
            }
            // The folder too, or a crash could lose a new file's name.
            let synced = File::open(&self.directory).and_then(|folder| folder.sync_all());
            synced.map_err(|e| self.failed("sync", &self.directory, e))?;
        }
        Ok(std::mem::take(&mut self.news).then(|| encode_token(&self.marks)))
    }

    fn failed(&self, what: &str, path: &Path, error: std::io::Error) -> Error {
        failed(what, path, error)
    }
}

fn failed(what: &str, path: &Path, error: std::io::Error) -> Error {
    let message =
        format!("cannot {what} {} for dead letters; check its permissions and the disk", path.display());
    Error::transient(message).with_source(error)
}

/// Length of the file up to the first letter with a number above `last`, without a last line that was cut. A line that is
/// no letter is someone's edit, and stays.
fn kept_length(path: &Path, last: u64) -> std::io::Result<u64> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e),
    };
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut kept = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        reader.read_until(b'\n', &mut line)?;
        let number = line.strip_suffix(b"\n").and_then(|line| serde_json::from_slice::<Numbered>(line).ok());
        match number.and_then(|n| n.id.parse::<LetterId>().ok()) {
            Some(id) if id.number > last => return Ok(kept),
            _ if line.ends_with(b"\n") => kept += line.len() as u64,
            _ => return Ok(kept),
        }
    }
}

#[derive(serde::Deserialize)]
struct Numbered {
    id: String,
}

fn encode_token(marks: &[Mark; 3]) -> CommitToken {
    let mut token = vec![FORMAT];
    for mark in marks {
        token.extend(mark.bytes.to_le_bytes());
        token.extend(mark.number.to_le_bytes());
    }
    CommitToken(token)
}

fn decode_token(token: &[u8]) -> Option<[Mark; 3]> {
    let (&FORMAT, mut rest) = token.split_first()? else { return None };
    let mut marks = [Mark::default(); 3];
    for mark in &mut marks {
        let (bytes, after) = rest.split_first_chunk()?;
        let (number, after) = after.split_first_chunk()?;
        *mark = Mark { bytes: u64::from_le_bytes(*bytes), number: u64::from_le_bytes(*number) };
        rest = after;
    }
    rest.is_empty().then_some(marks)
}

impl DeadLetters for Writer {
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async move { self.recover_now(last) })
    }

    fn write<'a>(&'a mut self, letters: &'a [DeadLetter]) -> Fut<'a, Result<()>> {
        Box::pin(async move { self.write_now(letters) })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async move { self.prepare_now() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letters::letters;
    use millstream_core::{Cause, Stage};

    fn dead(stage: Stage, value: &[u8]) -> DeadLetter {
        DeadLetter {
            stage,
            cause: Cause::new("invalid_json", "expected a value at byte 3"),
            table: None,
            sink: None,
            value: Some(value.to_vec()),
            key: None,
            headers: vec![(b"h".to_vec(), vec![0xff])],
            topic: Some(b"t".to_vec()),
            partition: "a.jsonl".to_owned(),
            offset: 7,
            message_id: None,
            publish_ts_ms: None,
            attempt: 1,
        }
    }

    fn ids(directory: &Path) -> Vec<String> {
        letters(directory).unwrap().map(|l| l.unwrap().id).collect()
    }

    #[test]
    fn what_no_token_names_is_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path());
        writer.recover_now(None).unwrap();
        assert_eq!(writer.prepare_now().unwrap(), None);
        writer.write_now(&[dead(Stage::Parse, b"{"), dead(Stage::Write, b"{}")]).unwrap();
        let token = writer.prepare_now().unwrap().unwrap();
        writer.write_now(&[dead(Stage::Parse, b"lost"), dead(Stage::Validate, b"lost")]).unwrap();
        drop(writer);
        assert_eq!(ids(dir.path()), ["parse-1", "parse-2", "validate-1", "write-1"]);

        let mut writer = Writer::new(dir.path());
        writer.recover_now(Some(&token)).unwrap();
        assert_eq!(ids(dir.path()), ["parse-1", "write-1"]);
        writer.write_now(&[dead(Stage::Parse, b"again")]).unwrap();
        assert_eq!(ids(dir.path()), ["parse-1", "parse-2", "write-1"]);
        assert_ne!(writer.prepare_now().unwrap(), Some(token));
        assert_eq!(writer.prepare_now().unwrap(), None);
    }

    /// Without a checkpoint the folder was emptied, whoever had written into it: another pipeline, or this one before its
    /// checkpoint was deleted to load everything anew.
    #[test]
    fn letters_that_no_checkpoint_names_are_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        for round in 1..3 {
            let mut writer = Writer::new(dir.path());
            writer.recover_now(None).unwrap();
            assert!(ids(dir.path()).is_empty());
            writer.write_now(&[dead(Stage::Parse, b"{")]).unwrap();
            assert_eq!(ids(dir.path()), ["parse-1"]);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), round);
        }
        assert!(dir.path().join("parse.1.jsonl").exists());
    }

    /// One line damaged by hand took all letters behind it along.
    #[test]
    fn a_line_that_is_no_letter_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path());
        writer.recover_now(None).unwrap();
        writer.write_now(&[dead(Stage::Parse, b"1"), dead(Stage::Parse, b"2")]).unwrap();
        let token = writer.prepare_now().unwrap().unwrap();
        writer.write_now(&[dead(Stage::Parse, b"lost")]).unwrap();
        let path = dir.path().join("parse.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replacen("parse-1", "parse-one", 1)).unwrap();
        let mut writer = Writer::new(dir.path());
        writer.recover_now(Some(&token)).unwrap();
        let kept = std::fs::read_to_string(&path).unwrap();
        assert_eq!(kept.lines().count(), 2);
        assert!(kept.contains("parse-one") && kept.contains("parse-2"));
    }

    /// A crash in the middle of a write leaves half a line, which is not a letter.
    #[test]
    fn half_a_line_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path());
        writer.recover_now(None).unwrap();
        writer.write_now(&[dead(Stage::Parse, b"{")]).unwrap();
        let token = writer.prepare_now().unwrap().unwrap();
        let path = dir.path().join("parse.jsonl");
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&whole[..], &whole[..20]].concat()).unwrap();
        let mut writer = Writer::new(dir.path());
        writer.recover_now(Some(&token)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    /// Deleting letters between runs is allowed: numbers go on, and what a later crash left is still told from them.
    #[test]
    fn letters_may_be_deleted_between_runs() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(dir.path());
        writer.recover_now(None).unwrap();
        writer.write_now(&[dead(Stage::Parse, b"1"), dead(Stage::Parse, b"2")]).unwrap();
        let token = writer.prepare_now().unwrap().unwrap();
        std::fs::remove_file(dir.path().join("parse.jsonl")).unwrap();

        let mut writer = Writer::new(dir.path());
        writer.recover_now(Some(&token)).unwrap();
        writer.write_now(&[dead(Stage::Parse, b"3")]).unwrap();
        assert_eq!(ids(dir.path()), ["parse-3"]);
        let mut writer = Writer::new(dir.path());
        writer.recover_now(Some(&token)).unwrap();
        assert!(ids(dir.path()).is_empty(), "parse-3 was not in the checkpoint");
    }

    #[test]
    fn a_damaged_token_is_refused() {
        for token in [vec![], vec![2; 49], vec![1; 48], vec![1; 50]] {
            assert_eq!(decode_token(&token), None);
        }
    }
}
