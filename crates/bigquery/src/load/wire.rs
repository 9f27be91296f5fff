//! Encoded rows read back: the fields of a message, in the order in which they stand in it.

/// A field's value: a number of any kind by its bits, or what has a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Raw<'a> {
    Bits(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message with their numbers.
pub(super) struct Fields<'a>(&'a [u8]);

/// Reads a message. What is no message ends early, with an error as last item.
pub(super) fn fields(message: &[u8]) -> Fields<'_> {
    Fields(message)
}

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (at, &byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }

    fn field(&mut self) -> Option<(usize, Raw<'a>)> {
        let tag = self.varint()?;
        let number = usize::try_from(tag >> 3).ok()?;
        let raw = match tag & 7 {
            0 => Raw::Bits(self.varint()?),
            1 => {
                let (bits, rest) = self.0.split_first_chunk()?;
                self.0 = rest;
                Raw::Bits(u64::from_le_bytes(*bits))
            }
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(len)?;
                self.0 = rest;
                Raw::Bytes(bytes)
            }
            _ => return None,
        };
        Some((number, raw))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(usize, Raw<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field().ok_or(Malformed);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encode::RowWriter;

    #[test]
    fn what_was_written_is_read() {
        let mut writer = RowWriter::new();
        let mut row = writer.begin();
        row.put_int(1, -1);
        row.put_float(200, 1.5);
        row.put_text(3, "ü");
        row.finish();
        let rows = writer.take();
        let read: Vec<_> = fields(rows.row(0)).map(Result::unwrap).collect();
        let expected =
            [(1, Raw::Bits(u64::MAX)), (200, Raw::Bits(1.5f64.to_bits())), (3, Raw::Bytes("ü".as_bytes()))];
        assert_eq!(read, expected);
    }

    proptest! {
        #[test]
        fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let read = fields(&bytes).take(100).count();
            prop_assert!(read <= bytes.len());
        }
    }
}
