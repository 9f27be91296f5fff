//! The primitives of every format on disk: numbers, lengths, byte strings; and the one hash that formats may depend on.
//!
//! Readers take off the front of a slice and answer `None` on anything that the writers cannot have written: cut input,
//! overlong numbers, lengths past the end. Nothing here panics or allocates before a length is checked.

/// Appends `v` as a LEB128 varint.
pub fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Takes a LEB128 varint off the front of `bytes`; `None` if cut or longer than 64 bits.
pub fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut v = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        if shift == 63 && byte > 1 {
            return None;
        }
        v |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(v);
        }
    }
    None
}

/// Takes one byte.
pub fn take_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(byte)
}

/// Takes `len` bytes.
pub fn take_slice<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

/// Appends a length and the bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Takes what [`put_bytes`] wrote.
pub fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take_len(bytes)?;
    take_slice(bytes, len)
}

/// Takes a text that [`put_bytes`] wrote.
pub fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(take_bytes(bytes)?).ok()
}

/// Takes a number of things of at least one byte each, so that a hostile count cannot reserve memory.
pub fn take_len(bytes: &mut &[u8]) -> Option<usize> {
    let len = usize::try_from(take_varint(bytes)?).ok()?;
    (len <= bytes.len()).then_some(len)
}

/// Appends a signed number, small magnitudes short.
pub fn put_signed(out: &mut Vec<u8>, v: i64) {
    put_varint(out, ((v << 1) ^ (v >> 63)) as u64);
}

/// Takes what [`put_signed`] wrote.
pub fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    let raw = take_varint(bytes)?;
    Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
}

/// Appends `v` as a LEB128 varint of up to 19 bytes.
pub fn put_wide(out: &mut Vec<u8>, mut v: u128) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Takes what [`put_wide`] wrote.
pub fn take_wide(bytes: &mut &[u8]) -> Option<u128> {
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

/// FNV-1a of 64 bits: stable across versions and machines, which a hasher of the standard library is not.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    fnv1a_on(0xcbf2_9ce4_8422_2325, bytes)
}

/// The same, going on from `hash`.
pub fn fnv1a_on(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// FNV-1a of 128 bits, for identities: of some billions of them, two are the same by chance only with 128 bits.
pub fn fnv1a_128(bytes: &[u8]) -> u128 {
    const PRIME: u128 = (1 << 88) + 0x13b;
    let first = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    bytes.iter().fold(first, |h: u128, &b| (h ^ u128::from(b)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// State on disk, sharding and names of tables depend on it; from the reference implementation.
    #[test]
    fn the_hash_is_fixed_forever() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv1a_on(fnv1a(b"foo"), b"bar"), fnv1a(b"foobar"));
        assert_eq!(fnv1a_128(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    proptest! {
        #[test]
        fn what_was_put_comes_back(
            wide in any::<u128>(),
            signed in any::<i64>(),
            number in any::<u64>(),
            text in ".{0,20}",
        ) {
            let mut out = Vec::new();
            put_wide(&mut out, wide);
            put_signed(&mut out, signed);
            put_varint(&mut out, number);
            put_bytes(&mut out, text.as_bytes());
            let mut bytes = &out[..];
            prop_assert_eq!(take_wide(&mut bytes), Some(wide));
            prop_assert_eq!(take_signed(&mut bytes), Some(signed));
            prop_assert_eq!(take_varint(&mut bytes), Some(number));
            prop_assert_eq!(take_text(&mut bytes), Some(&*text));
            prop_assert!(bytes.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = take_wide(&mut &bytes[..]);
            let _ = take_signed(&mut &bytes[..]);
            let _ = take_text(&mut &bytes[..]);
        }
    }
}
