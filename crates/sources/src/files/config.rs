//! What to read, and how.

use std::time::Duration;

use millstream_core::{Error, Result};

/// Settings of a file source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesConfig {
    /// A file, a directory (every `.jsonl`, `.ndjson` and `.json` file at any depth in it, also with `.gz`), or a glob:
    /// `*`, `?` and `[…]` within a name, `**` for directories at any depth. A wildcard matches no name that begins with
    /// a dot. Links are followed; a file that is reached by several names is read once.
    pub path: String,
    /// Further paths of the same forms.
    pub more_paths: Vec<String>,
    /// Whether to wait for more data and more files. Otherwise the source ends at the end of the last file.
    pub follow: bool,
    /// What a line is.
    pub lines: Lines,
    /// How often known files are looked at for new data, and about how long [`next`](millstream_core::Source::next)
    /// waits before it answers that there is none.
    pub poll_interval: Duration,
    /// How often new files are looked for. A path without wildcards is looked at every `poll_interval`.
    pub discovery_interval: Duration,
    /// A longer line becomes a dead letter (`too_large`) that keeps its first 64 KiB at most. At most 1 GiB.
    pub max_record_bytes: usize,
    /// About how many bytes are read at a time and handed out as one batch; 4 KiB to 64 MiB.
    pub chunk_bytes: usize,
}

/// What a line is. Lines end with LF or CRLF, and only with these: other Unicode line separators may stand in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lines {
    /// A record's value.
    #[default]
    Value,
    /// A JSON object with a record's `topic`, `key`, `value` and `headers` (a list of `{"key", "value"}`). Strings are
    /// taken as their content, null as none, any other JSON as its text. `value` must be there; other members are
    /// ignored. A line that is no such object becomes a dead letter (`invalid_frame`).
    Record,
}

impl FilesConfig {
    /// Settings for `path`, read once, each line a value; everything else by default.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            more_paths: Vec::new(),
            follow: false,
            lines: Lines::Value,
            poll_interval: Duration::from_secs(1),
            discovery_interval: Duration::from_secs(60),
            max_record_bytes: 64 << 20,
            chunk_bytes: 512 << 10,
        }
    }

    /// All paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.path).chain(self.more_paths.iter().map(String::as_str))
    }

    /// Checks the bounds.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.paths().any(str::is_empty) {
            return Err(Error::fatal("the file source has no path: name a file, a directory or a glob"));
        }
        if !(4 << 10..=64 << 20).contains(&self.chunk_bytes) {
            return Err(Error::fatal(format!(
                "chunk_bytes is {}, but must be 4096 to 67108864",
                self.chunk_bytes
            )));
        }
        if !(1..=1 << 30).contains(&self.max_record_bytes) {
            return Err(Error::fatal(format!(
                "max_record_bytes is {}, but must be 1 to 1073741824",
                self.max_record_bytes
            )));
        }
        Ok(())
    }
}
