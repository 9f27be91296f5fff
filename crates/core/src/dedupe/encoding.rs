//! What every stored entry and every forward is written with, beside the primitives of [`bytes`](crate::bytes).

pub(super) use crate::bytes::{
    put_bytes, put_signed, put_wide, take_byte, take_bytes, take_len, take_signed, take_slice, take_text,
    take_wide,
};
use crate::bytes::{put_varint, take_varint};
use crate::error::Error;
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
        fn orders_come_back(sections in prop::collection::vec(any::<u64>(), 1..=4)) {
            let order = Order::from_sections(&sections);
            let mut out = Vec::new();
            put_order(&mut out, &order);
            let mut bytes = &out[..];
            prop_assert_eq!(take_order(&mut bytes), Some(order));
            prop_assert!(bytes.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = take_order(&mut &bytes[..]);
        }
    }
}
