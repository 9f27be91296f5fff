//! Two's complement integers of any length as decimal digits.

/// Longest integer taken, bytes: PostgreSQL's widest numeric (131 072 digits before the point and 16 383 after it) has
/// 61 231.
pub(crate) const BYTES_MAX: usize = 62_000;

/// Appends the digits of a big-endian two's complement integer's magnitude to `out` and answers whether it is negative.
/// Quadratic in the length, which [`BYTES_MAX`] bounds.
pub(crate) fn magnitude(bytes: &[u8], out: &mut String) -> bool {
    let negative = bytes.first().is_some_and(|b| b & 0x80 != 0);
    if bytes.len() <= 16 {
        let fill = if negative { 0xff } else { 0 };
        let mut wide = [fill; 16];
        wide[16 - bytes.len()..].copy_from_slice(bytes);
        push_number(out, i128::from_be_bytes(wide).unsigned_abs());
        return negative;
    }
    let mut limbs = limbs(bytes, negative);
    // Nine decimal digits a division, least significant first.
    let mut groups = Vec::with_capacity(limbs.len() * 2);
    while limbs.first() == Some(&0) {
        limbs.remove(0);
    }
    let mut head = 0;
    while head < limbs.len() {
        let mut rest = 0u64;
        for limb in &mut limbs[head..] {
            let n = rest << 32 | u64::from(*limb);
            *limb = (n / 1_000_000_000) as u32;
            rest = n % 1_000_000_000;
        }
        groups.push(rest as u32);
        while head < limbs.len() && limbs[head] == 0 {
            head += 1;
        }
    }
    for (i, group) in groups.iter().rev().enumerate() {
        let digits = group.to_string();
        if i > 0 {
            out.extend(std::iter::repeat_n('0', 9 - digits.len()));
        }
        out.push_str(&digits);
    }
    if groups.is_empty() {
        out.push('0');
    }
    negative
}

/// The magnitude as big-endian 32-bit limbs.
fn limbs(bytes: &[u8], negative: bool) -> Vec<u32> {
    let fill = if negative { 0xff } else { 0 };
    let pad = (4 - bytes.len() % 4) % 4;
    let mut padded = vec![fill; pad];
    padded.extend_from_slice(bytes);
    let mut limbs: Vec<u32> =
        padded.chunks_exact(4).map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]])).collect();
    if negative {
        let mut carry = true;
        for limb in limbs.iter_mut().rev() {
            let (value, overflow) = (!*limb).overflowing_add(u32::from(carry));
            *limb = value;
            carry = overflow;
        }
        if carry {
            limbs.insert(0, 1);
        }
    }
    limbs
}

/// A number's text in `buffer`, without going through a formatter.
pub(crate) fn digits(n: u64, negative: bool, buffer: &mut [u8; 21]) -> &str {
    let mut at = buffer.len();
    let mut rest = n;
    loop {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if negative {
        at -= 1;
        buffer[at] = b'-';
    }
    std::str::from_utf8(&buffer[at..]).expect("invariant: digits are ASCII")
}

fn push_number(out: &mut String, n: u128) {
    if let Ok(small) = u64::try_from(n) {
        let mut buffer = [0; 21];
        out.push_str(digits(small, false, &mut buffer));
    } else {
        out.push_str(&n.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(bytes: &[u8]) -> String {
        let mut out = String::new();
        let negative = magnitude(bytes, &mut out);
        if negative { format!("-{out}") } else { out }
    }

    #[test]
    fn long_integers_come_out_exactly() {
        // 2^136 and its negative, computed by hand from 2^128 × 256.
        let mut bytes = vec![1];
        bytes.extend([0; 17]);
        assert_eq!(text(&bytes), "87112285931760246646623899502532662132736");
        bytes[0] = 0xff;
        assert_eq!(text(&bytes), "-87112285931760246646623899502532662132736");
        assert_eq!(text(&[0; 20]), "0");
        assert_eq!(text(&[0x80, 0, 0, 0]), "-2147483648");
        let lowest = [[0x80].as_slice(), &[0; 19]].concat();
        assert_eq!(text(&lowest), format!("-{}", "730750818665451459101842416358141509827966271488"));
    }

    proptest! {
        #[test]
        fn integers_agree_with_i128(n in any::<i128>(), pad in 0usize..40) {
            let fill = if n < 0 { 0xff } else { 0 };
            let bytes = [vec![fill; pad], n.to_be_bytes().to_vec()].concat();
            prop_assert_eq!(text(&bytes), n.to_string());
        }
    }
}
