//! The primitives that every stored entry and every forward is written with.
//!
//! Readers take off the front of a slice and answer `None` on anything that the writers cannot have written: cut input,
//! overlong numbers, lengths past the end. Nothing here panics or allocates before a length is checked.

use crate::error::Error;
use crate::key::{put_varint, take_varint};
use crate::order::Order;

/// An entry whose format byte this version does not know.
pub(super) fn unknown_format(what: &str, format: Option<u8>) -> Error {
    let found = format.map_or_else(|| "an empty entry".to_owned(), |f| format!("format {f}"));
    Error::fatal(format!(
        "state holds {what} in {found}, but this version reads format {FORMAT}; run the version that wrote it, or restore a \
         savepoint of this one"
    ))
}

/// An entry that has the right format byte but cannot have been written by this version.
pub(super) fn damaged(what: &str) -> Error {
    Error::fatal(format!(
        "state holds a damaged {what}; restore the last savepoint, or remove the checkpoint directory to read the source anew"
    ))
}

/// The format number that all entries begin with. Raised when any of their encodings changes.
pub(super) const FORMAT: u8 = 1;

/// Takes one byte.
pub(super) fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(byte)
}

/// Takes `len` bytes.
pub(super) fn take_slice<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

/// Appends a length and the bytes.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes what [`put_bytes`] wrote.
pub(super) fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_len(bytes)?;
    take_slice(bytes, len)
}

/// Takes a text that [`put_bytes`] wrote.
pub(super) fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(take_bytes(bytes)?).ok()
}

/// Takes a number of things of at least one byte each, so that a hostile count cannot reserve memory.
pub(super) fn take_len(bytes: &mut &[u8]) -> Option<usize> {
    let len = usize::try_from(take_varint(bytes)?).ok()?;
    (len <= bytes.len()).then_some(len)
}

/// Appends a signed number, small magnitudes short.
pub(super) fn put_signed(out: &mut Vec<u8>, v: i64) {
    put_varint(out, ((v << 1) ^ (v >> 63)) as u64);
}

/// Takes what [`put_signed`] wrote.
pub(super) fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    let raw = take_varint(bytes)?;
    Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
}

/// Appends `v` as a LEB128 varint of up to 19 bytes.
pub(super) fn put_wide(out: &mut Vec<u8>, mut v: u128) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Takes what [`put_wide`] wrote.
pub(super) fn take_wide(bytes: &mut &[u8]) -> Option<u128> {
    let mut v = 0u128;
    for shift in (0..128).step_by(7) {
        let byte = take_byte(bytes)?;
        if shift == 126 && byte > 3 {
            return None;
        }
        v |= u128::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(v);
        }
    }
    None
}

/// Appends an order: its number of sections and each of them.
pub(super) fn put_order(out: &mut Vec<u8>, order: &Order) {
    out.push(order.sections().len() as u8);
    for &section in order.sections() {
        put_varint(out, section);
    }
}

/// Takes what [`put_order`] wrote.
pub(super) fn take_order(bytes: &mut &[u8]) -> Option<Order> {
    let len = usize::from(take_byte(bytes)?);
    if !(1..=4).contains(&len) {
        return None;
    }
    let mut sections = [0; 4];
    for section in &mut sections[..len] {
        *section = take_varint(bytes)?;
    }
    Some(Order::from_sections(&sections[..len]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(wide in any::<u128>(), signed in any::<i64>(), sections in prop::collection::vec(any::<u64>(), 1..=4)) {
            let order = Order::from_sections(&sections);
            let mut out = Vec::new();
            put_wide(&mut out, wide);
            put_signed(&mut out, signed);
            put_order(&mut out, &order);
            let mut bytes = &out[..];
            prop_assert_eq!(take_wide(&mut bytes), Some(wide));
            prop_assert_eq!(take_signed(&mut bytes), Some(signed));
            prop_assert_eq!(take_order(&mut bytes), Some(order));
            prop_assert!(bytes.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = take_wide(&mut &bytes[..]);
            let _ = take_order(&mut &bytes[..]);
            let _ = take_text(&mut &bytes[..]);
        }
    }
}
