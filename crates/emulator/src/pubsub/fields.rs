//! The fields of a protobuf message, one after the other, without decoding what is in them.

use std::ops::Range;

/// The bytes are no protobuf message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// One field.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// Its number.
    pub(crate) number: u32,
    /// Its value, if it is a number: varint or fixed.
    pub(crate) value: u64,
    /// Where its content is; empty for numbers.
    pub(crate) content: Range<usize>,
    /// Where the field is as a whole.
    pub(crate) whole: Range<usize>,
    /// Whether it has a length, like strings, bytes and messages.
    pub(crate) delimited: bool,
}

/// Goes over the fields of `bytes`.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// The fields of these bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(Malformed)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn skip(&mut self, length: u64) -> Result<Range<usize>, Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len()).ok_or(Malformed)?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    fn fixed(&mut self, length: usize) -> Result<u64, Malformed> {
        let range = self.skip(length as u64)?;
        Ok(self.bytes[range].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn field(&mut self) -> Result<Field, Malformed> {
        let start = self.at;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Malformed)?;
        if number == 0 {
            return Err(Malformed);
        }
        let (mut value, mut content, mut delimited) = (0, self.at..self.at, false);
        match tag & 7 {
            0 => value = self.varint()?,
            1 => value = self.fixed(8)?,
            2 => {
                let length = self.varint()?;
                content = self.skip(length)?;
                delimited = true;
            }
            5 => value = self.fixed(4)?,
            // Groups are not used by this API.
            _ => return Err(Malformed),
        }
        Ok(Field { number, value, content, whole: start..self.at, delimited })
    }
}

impl Iterator for Fields<'_> {
    type Item = Result<Field, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.at = self.bytes.len();
        }
        Some(field)
    }
}

/// A buffer for the few bytes around a message: written at once.
#[derive(Debug)]
pub(crate) struct Scratch {
    bytes: [u8; 128],
    length: usize,
}

impl Scratch {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self { bytes: [0; 128], length: 0 }
    }

    /// Appends a varint.
    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// Appends a byte. What is too much is left out; callers stay far below the size.
    pub(crate) fn byte(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    /// Appends bytes.
    pub(crate) fn slice(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.byte(*byte);
        }
    }

    /// What was written.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// How many bytes a varint takes.
pub(crate) fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_bytes() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut scratch = Scratch::new();
                scratch.varint(value);
                assert_eq!(scratch.as_slice().len(), varint_len(value), "{value}");
                let mut fields = Fields::new(scratch.as_slice());
                assert_eq!(fields.varint(), Ok(value));
            }
        }
    }

    #[test]
    fn cut_bytes_are_malformed() {
        for bytes in [
            &[0x0a][..],
            &[0x0a, 5, 1],
            &[0x08, 0x80],
            &[0x03],
            &[0x00, 1],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ] {
            assert!(Fields::new(bytes).any(|field| field.is_err()), "{bytes:?}");
        }
    }
}
