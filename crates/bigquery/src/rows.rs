//! Encoded rows: one buffer and where each row ends.

use bytes::{Bytes, BytesMut};

/// Encoded rows, as a [`RowWriter`](crate::RowWriter) gives them. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// Each with its tag and length, so that the whole is a `ProtoRows` message.
    bytes: Bytes,
    ends: Vec<usize>,
}

impl Rows {
    pub(crate) fn new(bytes: Bytes, ends: Vec<usize>) -> Self {
        Self { bytes, ends }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes that they take in requests.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of a `ProtoRows` message with these rows.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// A row's own bytes; empty past the end.
    pub fn row(&self, index: usize) -> &[u8] {
        let framed = self.bytes.get(self.range(index)).unwrap_or_default();
        // Behind the tag and the length.
        let body = framed.iter().skip(1).position(|b| b & 0x80 == 0).map_or(framed.len(), |at| at + 2);
        framed.get(body..).unwrap_or_default()
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        let start = if index == 0 { Some(&0) } else { self.ends.get(index - 1) };
        match (start, self.ends.get(index)) {
            (Some(&start), Some(&end)) => start..end,
            _ => 0..0,
        }
    }

    /// Bytes that a row takes in a request.
    pub(crate) fn framed_len(&self, index: usize) -> usize {
        self.range(index).len()
    }

    /// The rows from `from` up to, and without, `to`; the buffer is shared.
    pub(crate) fn slice(&self, from: usize, to: usize) -> Self {
        let start = self.range(from).start;
        let ends: Vec<_> =
            self.ends.get(from..to).unwrap_or_default().iter().map(|end| end - start).collect();
        let len = ends.last().copied().unwrap_or_default();
        Self { bytes: self.bytes.slice(start..start + len), ends }
    }

    /// In parts of at most `bytes_max` bytes, in order. A row that is larger by itself is a part of its own.
    pub(crate) fn split(&self, bytes_max: usize) -> Vec<Self> {
        let mut parts = Vec::new();
        let (mut from, mut start) = (0, 0);
        for (i, &end) in self.ends.iter().enumerate() {
            if end - start > bytes_max && i > from {
                parts.push(self.slice(from, i));
                (from, start) = (i, self.ends[i - 1]);
            }
        }
        if from < self.len() {
            parts.push(if from == 0 { self.clone() } else { self.slice(from, self.len()) });
        }
        parts
    }

    /// Those that `keep` says yes to, by index.
    pub(crate) fn retain(&self, keep: impl Fn(usize) -> bool) -> Self {
        let mut bytes = BytesMut::with_capacity(self.bytes.len());
        let mut ends = Vec::with_capacity(self.ends.len());
        for i in (0..self.len()).filter(|&i| keep(i)) {
            bytes.extend_from_slice(&self.bytes[self.range(i)]);
            ends.push(bytes.len());
        }
        Self { bytes: bytes.freeze(), ends }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::RowWriter;

    fn rows(lens: &[usize]) -> Rows {
        let mut writer = RowWriter::new();
        for (i, &len) in lens.iter().enumerate() {
            let mut row = writer.begin();
            row.put_bytes(1, &vec![i as u8; len]);
            row.finish();
        }
        writer.take()
    }

    #[test]
    fn parts_are_bounded_and_whole() {
        let all = rows(&[10, 10, 10, 500, 10, 200, 1]);
        let parts = all.split(40);
        assert_eq!(parts.iter().map(Rows::len).collect::<Vec<_>>(), [2, 1, 1, 1, 1, 1]);
        let joined: Vec<u8> = parts.iter().flat_map(|p| p.bytes().to_vec()).collect();
        assert_eq!(&joined, all.bytes());
        let again: Vec<_> = parts.iter().flat_map(|p| (0..p.len()).map(|i| p.row(i).to_vec())).collect();
        assert_eq!(again, (0..all.len()).map(|i| all.row(i).to_vec()).collect::<Vec<_>>());
        assert_eq!(all.split(1 << 20), std::slice::from_ref(&all));
        assert!(Rows::default().split(10).is_empty());
    }

    #[test]
    fn rows_can_be_taken_out() {
        let all = rows(&[1, 200, 3]);
        let kept = all.retain(|i| i != 1);
        assert_eq!((kept.len(), kept.row(1)), (2, all.row(2)));
        assert_eq!(kept.row(9), b"");
        assert_eq!(all.slice(5, 9), Rows::default());
    }
}
