//! One error for all contracts: what happened, where, what to do; its kind decides what the engine does next.

use std::fmt;

/// What the engine may do about an error. Retry policy reads this and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The same call may succeed later: a lost connection, a full disk, a busy server. Restarts the pipeline
    /// from its last checkpoint, within the restart strategy's attempts.
    Transient,
    /// No retry helps: wrong configuration, missing permission, an unknown format number, lost data.
    Fatal,
}

/// An error of a source, decoder, store or sink. Never holds row values or secrets.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The result of every fallible contract.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error that a retry may mend. `message` says what happened, where, and what to do.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { kind: Kind::Transient, message: message.into(), source: None }
    }

    /// An error that no retry mends. `message` says what happened, where, and what to do.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self { kind: Kind::Fatal, message: message.into(), source: None }
    }

    /// Attaches the lower-level cause; shown after the message.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Puts `place` (a file, table, sink) before the message.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// What the engine may do about it.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}
