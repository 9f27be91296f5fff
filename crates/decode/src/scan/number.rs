//! Number tokens.

/// A number token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number<'a> {
    /// An integer literal in i64's range.
    Int(i64),
    /// Anything else, as written.
    Text(&'a str),
}

/// The digits at the front: their value (wrapping) and their number. Eight at a step, without a loop over the rest.
#[inline(always)]
pub(crate) fn leading_digits(bytes: &[u8]) -> (u64, usize) {
    const POWERS: [u64; 8] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
    let mut rest = bytes;
    let mut n = 0u64;
    while let Some((chunk, tail)) = rest.split_first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk) ^ 0x3030_3030_3030_3030;
        // The top bit of each byte that is no digit: one that exceeds 9, or had its top bit set.
        let above = (word & 0x7f7f_7f7f_7f7f_7f7f) + 0x7676_7676_7676_7676;
        let odd = (above | word) & 0x8080_8080_8080_8080;
        if odd == 0 {
            n = n.wrapping_mul(100_000_000).wrapping_add(eight_digits(word));
            rest = tail;
            continue;
        }
        let count = (odd.trailing_zeros() / 8) as usize;
        if count > 0 {
            // Shifted up, the digits have zeros before them instead of other text behind them.
            let value = eight_digits(word << (8 * (8 - count)));
            n = n.wrapping_mul(POWERS[count & 7]).wrapping_add(value);
        }
        return (n, bytes.len() - rest.len() + count);
    }
    while let Some((&digit @ b'0'..=b'9', tail)) = rest.split_first() {
        n = n.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        rest = tail;
    }
    (n, bytes.len() - rest.len())
}

/// The number of eight decimal digits, the first in the lowest byte: pairs, then fours, then all.
#[inline(always)]
fn eight_digits(word: u64) -> u64 {
    let pairs = word.wrapping_mul(2561) >> 8;
    let fours = (pairs & 0x00ff_00ff_00ff_00ff).wrapping_mul(6_553_601) >> 16;
    (fours & 0x0000_ffff_0000_ffff).wrapping_mul(42_949_672_960_001) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_counted_wherever_they_end() {
        let digits = "1234567890123456789";
        for len in 0..=19 {
            for behind in ["", ",", ",\"ts_us\":1717200000000255", "e", "/", ":", "ü", "}}}}}}}}}}}}"] {
                let text = format!("{}{behind}", &digits[..len]);
                let expected = (digits[..len].parse().unwrap_or(0), len);
                assert_eq!(leading_digits(text.as_bytes()), expected, "{text}");
            }
        }
    }
}
