//! Dead letters: what could not be processed, kept whole with its cause.

use std::fmt;

use crate::Fut;
use crate::checkpoint::CommitToken;
use crate::error::Result;

/// Which step refused the record; each stage has its own dead-letter output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Not readable: no JSON, invalid UTF-8, a broken frame.
    Parse,
    /// Readable but not an event: a missing or mistyped field, no key where there must be one.
    Validate,
    /// A decoded row that a sink refused.
    Write,
}

impl Stage {
    /// Its name in files and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Parse => "parse",
            Stage::Validate => "validate",
            Stage::Write => "write",
        }
    }
}

/// A machine-readable code and a text for people. Neither holds row values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Stable snake_case code, e.g. `invalid_json`, `missing_field`; documented in the README.
    pub code: &'static str,
    /// What is wrong and where in the record.
    pub text: String,
}

impl Cause {
    /// A cause.
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

/// A record or row that could not be processed, with everything needed to replay it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// Which step refused it.
    pub stage: Stage,
    /// Why.
    pub cause: Cause,
    /// The table (`schema.table`), where it was known.
    pub table: Option<String>,
    /// The sink that refused the row; `None` of the stages before.
    pub sink: Option<String>,
    /// The original value bytes; `None` for a record without value.
    pub value: Option<Vec<u8>>,
    /// The original key bytes.
    pub key: Option<Vec<u8>>,
    /// Headers or attributes.
    pub headers: Vec<(Vec<u8>, Vec<u8>)>,
    /// Topic or subscription, where the frame named one.
    pub topic: Option<Vec<u8>>,
    /// The partition (file, subscription) it came from.
    pub partition: String,
    /// Its offset there, or the number derived from its message id.
    pub offset: u64,
    /// The broker's id of the message.
    pub message_id: Option<Vec<u8>>,
    /// When the broker took it, ms since the epoch.
    pub publish_ts_ms: Option<i64>,
    /// Which delivery of it failed; 1 for the first, one more with each replay.
    pub attempt: u32,
}

/// Where dead letters go. Follows the epochs like a sink: what was written after the last checkpoint's token is taken
/// back by [`recover`](Self::recover), and its records come again.
pub trait DeadLetters: Send {
    /// Removes what was written after `last` (`None`: everything). Called once, first.
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>>;

    /// Appends letters.
    fn write<'a>(&'a mut self, letters: &'a [DeadLetter]) -> Fut<'a, Result<()>>;

    /// Makes what was written durable. `None` if nothing was written since the last token.
    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>>;
}
