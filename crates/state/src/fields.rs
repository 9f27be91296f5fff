//! Reading fields off a checkpoint, with an error that says what was read.

use millstream_core::bytes::{take_bytes, take_len, take_signed, take_text, take_varint};
use millstream_core::{Error, Result};

/// Takes fields off a byte string; every error says what was being read, never what was in it.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        take_varint(&mut self.rest).ok_or_else(|| self.damaged())
    }

    pub(crate) fn signed(&mut self) -> Result<i64> {
        take_signed(&mut self.rest).ok_or_else(|| self.damaged())
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        take_bytes(&mut self.rest).ok_or_else(|| self.damaged())
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        take_text(&mut self.rest).ok_or_else(|| self.damaged())
    }

    /// A count of items that follow, each at least one byte: a larger one is damage, not a reason to allocate.
    pub(crate) fn count(&mut self) -> Result<usize> {
        take_len(&mut self.rest).ok_or_else(|| self.damaged())
    }

    pub(crate) fn end(&self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.damaged()) }
    }

    pub(crate) fn damaged(&self) -> Error {
        Error::fatal(format!(
            "{} is damaged ({} bytes before its end): restore a savepoint with `millstream run CONFIG --from SAVEPOINT`, \
             or remove the checkpoint directory to start anew",
            self.what,
            self.rest.len()
        ))
    }
}
