//! Rows as the Storage Write API takes them: protobuf, written by hand, into one buffer for many rows.
//!
//! The bytes are those of a `ProtoRows` message, i.e. each row with its tag and length, so that a request is a slice of the buffer and no
//! row is copied. Lengths stand before their rows and are known after them: a row's length gets as many bytes as the last row's
//! had, and only if that was wrong, the row is moved.
//!
//! A column is named by its field number: its position in the [`Descriptor`](crate::Descriptor)'s fields, counted from 1. NULL is a field that is
//! left out. An array's elements are put one after another under one number.

use bytes::Bytes;

use crate::civil;
use crate::descriptor::{CHANGE_SEQUENCE_NUMBER, CHANGE_TYPE};
use crate::numeric::{self, NumberBytes};
use crate::rows::Rows;
use crate::unfit::Unfit;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
/// Field 1 of `ProtoRows`.
const ROW_TAG: u8 = 1 << 3 | LENGTH as u8;

/// What a row of a table with change data capture does to the row of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It takes its place.
    Upsert,
    /// It takes it away; only its key counts.
    Delete,
}

/// Collects encoded rows.
#[derive(Debug, Default)]
pub struct RowWriter {
    bytes: Vec<u8>,
    /// Where each row ends.
    ends: Vec<usize>,
    /// Bytes of the last row's length.
    length_bytes: usize,
}

impl RowWriter {
    /// A writer without rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rows so far.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of the rows so far.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Begins a row. It counts once it is [finished](RowEncoder::finish); dropped before, it leaves nothing.
    #[inline]
    pub fn begin(&mut self) -> RowEncoder<'_> {
        let start = self.bytes.len();
        let guess = self.length_bytes.max(1);
        self.bytes.push(ROW_TAG);
        self.bytes.resize(start + 1 + guess, 0);
        RowEncoder { writer: self, start, body: start + 1 + guess }
    }

    /// Hands out the rows and starts again with a buffer of the same size.
    pub fn take(&mut self) -> Rows {
        let capacity = (self.bytes.len(), self.ends.len());
        let bytes = std::mem::replace(&mut self.bytes, Vec::with_capacity(capacity.0));
        let ends = std::mem::replace(&mut self.ends, Vec::with_capacity(capacity.1));
        Rows::new(Bytes::from(bytes), ends)
    }
}

/// Where a nested message begins.
#[derive(Debug)]
#[must_use = "a message that is begun has to be ended"]
pub struct Mark(usize);

/// Writes one row, or one message in it.
#[derive(Debug)]
pub struct RowEncoder<'a> {
    writer: &'a mut RowWriter,
    start: usize,
    body: usize,
}

impl Drop for RowEncoder<'_> {
    fn drop(&mut self) {
        // Finishing makes the row's end its start.
        self.writer.bytes.truncate(self.start);
    }
}

impl RowEncoder<'_> {
    /// Adds the row to the writer's.
    #[inline]
    pub fn finish(mut self) {
        let length_at = self.start + 1;
        let length_bytes = write_length(&mut self.writer.bytes, length_at, self.body - length_at);
        self.writer.length_bytes = length_bytes;
        self.start = self.writer.bytes.len();
        self.writer.ends.push(self.start);
    }

    /// Bytes of the row so far.
    pub fn byte_len(&self) -> usize {
        self.writer.bytes.len() - self.body
    }

    /// Takes back what was put after the row had so many bytes. No message may have been begun or ended since.
    #[inline]
    pub fn truncate(&mut self, byte_len: usize) {
        self.writer.bytes.truncate(self.body + byte_len);
    }

    /// A BOOL.
    #[inline]
    pub fn put_bool(&mut self, number: u32, v: bool) {
        self.tag(number, VARINT);
        self.writer.bytes.push(v.into());
    }

    /// An INT64.
    #[inline]
    pub fn put_int(&mut self, number: u32, v: i64) {
        self.tag(number, VARINT);
        put_varint(&mut self.writer.bytes, v as u64);
    }

    /// A FLOAT64; NaN and the infinities are values.
    #[inline]
    pub fn put_float(&mut self, number: u32, v: f64) {
        self.tag(number, FIXED64);
        self.writer.bytes.extend_from_slice(&v.to_le_bytes());
    }

    /// A STRING, or the text of a JSON.
    #[inline]
    pub fn put_text(&mut self, number: u32, v: &str) {
        self.put_bytes(number, v.as_bytes());
    }

    /// BYTES.
    #[inline]
    pub fn put_bytes(&mut self, number: u32, v: &[u8]) {
        self.tag(number, LENGTH);
        put_varint(&mut self.writer.bytes, v.len() as u64);
        self.writer.bytes.extend_from_slice(v);
    }

    /// A DATE, in days since 1970-01-01.
    ///
    /// # Errors
    /// Outside the years 1 to 9999.
    #[inline]
    pub fn put_date(&mut self, number: u32, days: i32) -> Result<(), Unfit> {
        self.put_int(number, civil::date(days)?.into());
        Ok(())
    }

    /// A TIME, in microseconds since midnight.
    ///
    /// # Errors
    /// Below 0, or from 24 hours on.
    #[inline]
    pub fn put_time(&mut self, number: u32, us: i64) -> Result<(), Unfit> {
        self.put_int(number, civil::time(us)?);
        Ok(())
    }

    /// A DATETIME, in microseconds since 1970-01-01T00:00:00.
    ///
    /// # Errors
    /// Outside the years 1 to 9999.
    #[inline]
    pub fn put_date_time(&mut self, number: u32, us: i64) -> Result<(), Unfit> {
        self.put_int(number, civil::date_time(us)?);
        Ok(())
    }

    /// A TIMESTAMP, in microseconds since 1970-01-01T00:00:00Z.
    ///
    /// # Errors
    /// Outside the years 1 to 9999.
    #[inline]
    pub fn put_timestamp(&mut self, number: u32, us: i64) -> Result<(), Unfit> {
        self.put_int(number, civil::timestamp(us)?);
        Ok(())
    }

    /// A NUMERIC: `unscaled × 10^-scale`.
    ///
    /// # Errors
    /// If it is not exactly one.
    #[inline]
    pub fn put_numeric(&mut self, number: u32, unscaled: i128, scale: u16) -> Result<(), Unfit> {
        self.put_number(number, numeric::numeric(unscaled, scale))
    }

    /// A BIGNUMERIC: `unscaled × 10^-scale`.
    ///
    /// # Errors
    /// If it is not exactly one.
    pub fn put_big_numeric(&mut self, number: u32, unscaled: i128, scale: u16) -> Result<(), Unfit> {
        self.put_number(number, numeric::big_numeric(unscaled, scale))
    }

    /// A NUMERIC from plain decimal text.
    ///
    /// # Errors
    /// If it is not exactly one, or no number.
    pub fn put_numeric_digits(&mut self, number: u32, text: &str) -> Result<(), Unfit> {
        self.put_number(number, numeric::numeric_of_digits(text))
    }

    /// A BIGNUMERIC from plain decimal text.
    ///
    /// # Errors
    /// If it is not exactly one, or no number.
    pub fn put_big_numeric_digits(&mut self, number: u32, text: &str) -> Result<(), Unfit> {
        self.put_number(number, numeric::big_numeric_of_digits(text))
    }

    #[inline]
    fn put_number(&mut self, number: u32, v: Result<NumberBytes, Unfit>) -> Result<(), Unfit> {
        self.put_bytes(number, v?.as_slice());
        Ok(())
    }

    /// Begins a STRUCT, or one of an array of them. What is put until its [end](Self::end_message) is put into it.
    #[inline]
    pub fn begin_message(&mut self, number: u32) -> Mark {
        self.tag(number, LENGTH);
        let mark = Mark(self.writer.bytes.len());
        self.writer.bytes.push(0);
        mark
    }

    /// Ends the STRUCT that was begun last.
    #[inline]
    pub fn end_message(&mut self, mark: Mark) {
        write_length(&mut self.writer.bytes, mark.0, 1);
    }

    /// What the row does; for tables with change data capture, together with
    /// [`put_sequence_number`](Self::put_sequence_number).
    #[inline]
    pub fn put_change(&mut self, change: Change) {
        let text = match change {
            Change::Upsert => "UPSERT",
            Change::Delete => "DELETE",
        };
        self.put_text(CHANGE_TYPE, text);
    }

    /// The row's order among those of its key: 1 to 4 sections of 1 to 16 hex digits with `/` between them.
    ///
    /// # Errors
    /// If it is of another form.
    #[inline]
    pub fn put_sequence_number(&mut self, text: &str) -> Result<(), Unfit> {
        let mut sections = 0;
        for section in text.as_bytes().split(|&b| b == b'/') {
            sections += 1;
            if !(1..=16).contains(&section.len())
                || !section.iter().all(u8::is_ascii_hexdigit)
                || sections > 4
            {
                return Err(Unfit::Sequence);
            }
        }
        self.put_text(CHANGE_SEQUENCE_NUMBER, text);
        Ok(())
    }

    #[inline]
    fn tag(&mut self, number: u32, kind: u32) {
        put_varint(&mut self.writer.bytes, u64::from(number << 3 | kind));
    }
}

/// Writes the length of what follows the `reserved` bytes at `at`, moving it if the length needs another number of bytes. Returns that
/// number.
#[inline]
fn write_length(bytes: &mut Vec<u8>, at: usize, reserved: usize) -> usize {
    let body = at + reserved;
    let len = bytes.len().saturating_sub(body);
    let needed = varint_len(len as u64);
    if needed != reserved {
        move_body(bytes, body, at + needed);
    }
    let mut rest = len;
    for slot in &mut bytes[at..at + needed] {
        *slot = rest as u8 & 0x7f | 0x80;
        rest >>= 7;
    }
    bytes[at + needed - 1] &= 0x7f;
    needed
}

#[cold]
fn move_body(bytes: &mut Vec<u8>, from: usize, to: usize) {
    let end = bytes.len();
    if to > from {
        bytes.resize(end + (to - from), 0);
    }
    bytes.copy_within(from..end, to);
    bytes.truncate(to + (end - from));
}

fn varint_len(v: u64) -> usize {
    (64 - (v | 1).leading_zeros()).div_ceil(7) as usize
}

#[inline]
fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    if v < 0x80 {
        out.push(v as u8);
        return;
    }
    let mut buffer = [0; 10];
    let mut len = 0;
    while v >= 0x80 {
        buffer[len] = v as u8 | 0x80;
        v >>= 7;
        len += 1;
    }
    buffer[len] = v as u8;
    out.extend_from_slice(&buffer[..=len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(lens: &[usize]) -> Rows {
        let mut writer = RowWriter::new();
        for &len in lens {
            let mut row = writer.begin();
            row.put_bytes(1, &vec![b'x'; len]);
            row.finish();
        }
        writer.take()
    }

    #[test]
    fn lengths_are_right_whatever_the_guess_was() {
        let lens = [0, 124, 125, 126, 3, 20_000, 1, 16_380, 16_379, 2_100_000, 2];
        let rows = rows_of(&lens);
        assert_eq!(rows.len(), lens.len());
        for (i, &len) in lens.iter().enumerate() {
            let body = rows.row(i);
            assert_eq!(body.len(), 1 + varint_len(len as u64) + len, "row {i}");
        }
    }

    #[test]
    fn a_row_that_is_not_finished_leaves_nothing() {
        let mut writer = RowWriter::new();
        let mut row = writer.begin();
        row.put_int(1, 7);
        row.finish();
        let before = writer.byte_len();
        let mut row = writer.begin();
        row.put_text(2, "half");
        assert_eq!(row.put_date(3, i32::MAX), Err(Unfit::Date));
        drop(row);
        assert_eq!((writer.byte_len(), writer.len()), (before, 1));
        assert_eq!(writer.take().bytes(), &[0x0a, 2, 0x08, 7][..]);
        assert!(writer.is_empty() && writer.take().is_empty());
    }

    #[test]
    fn messages_have_their_lengths() {
        let mut writer = RowWriter::new();
        let mut row = writer.begin();
        let outer = row.begin_message(1);
        let empty = row.begin_message(2);
        row.end_message(empty);
        let long = row.begin_message(3);
        row.put_bytes(1, &[9; 200]);
        row.end_message(long);
        row.end_message(outer);
        row.finish();
        let rows = writer.take();
        let mut expected = vec![0x0a, 0xd0, 0x01, 0x12, 0, 0x1a, 0xcb, 0x01, 0x0a, 0xc8, 0x01];
        expected.extend([9; 200]);
        assert_eq!(rows.row(0), expected);
    }

    #[test]
    fn sequence_numbers_have_four_sections_at_most() {
        let mut writer = RowWriter::new();
        let mut row = writer.begin();
        for good in ["0", "fFf/ABC", "0000000000000001/2/3/4"] {
            assert_eq!(row.put_sequence_number(good), Ok(()), "{good}");
        }
        for bad in ["", "/", "1/2/3/4/5", "g", "00000000000000001", "1/"] {
            assert_eq!(row.put_sequence_number(bad), Err(Unfit::Sequence), "{bad}");
        }
    }
}
