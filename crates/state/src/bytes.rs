//! Reading and writing length-prefixed fields.

use millstream_core::key::{put_varint, take_varint};
use millstream_core::{Error, Result};

/// Appends a length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a signed number, small magnitudes short.
pub(crate) fn put_signed(out: &mut Vec<u8>, v: i64) {
    put_varint(out, ((v << 1) ^ (v >> 63)) as u64);
}

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
        let raw = self.number()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.number()?).map_err(|_| self.damaged())?;
        let (head, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.damaged())?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.damaged())
    }

    /// A count of items that follow, each at least one byte: a larger one is damage, not a reason to allocate.
    pub(crate) fn count(&mut self) -> Result<usize> {
        let count = self.number()?;
        if count > self.rest.len() as u64 {
            return Err(self.damaged());
        }
        Ok(count as usize)
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
