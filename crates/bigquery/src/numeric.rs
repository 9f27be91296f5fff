//! NUMERIC and BIGNUMERIC as the write API takes them: the number without its point, at scale 9 or 38, as a two's complement
//! integer, its lowest byte first and no byte more than it needs.

use crate::unfit::Unfit;

/// 10^38: what a NUMERIC's integer stays below.
const NUMERIC_BOUND: u128 = 10u128.pow(38);
const NUMERIC_SCALE: u16 = 9;
const BIGNUMERIC_SCALE: u16 = 38;

/// What takes a number of each scale to scale 9.
const FACTORS: [i64; 10] =
    [1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1000, 100, 10, 1];

/// The bytes of a number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberBytes {
    bytes: [u8; 32],
    len: u8,
}

/// Bytes past the length say nothing.
impl PartialEq for NumberBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for NumberBytes {}

impl NumberBytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Of the whole two's complement form: the shortest head that still has the sign.
    fn shortest(bytes: [u8; 32]) -> Self {
        let fill = if bytes[31] & 0x80 == 0 { 0 } else { 0xff };
        let mut len = 32;
        while len > 1 && bytes[len - 1] == fill && (bytes[len - 2] ^ fill) & 0x80 == 0 {
            len -= 1;
        }
        Self { bytes, len: len as u8 }
    }

    #[inline]
    fn of_i128(v: i128) -> Self {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&v.to_le_bytes());
        // The bits that tell it from its sign, and one for the sign.
        let bits = 128 - (v ^ (v >> 127)).leading_zeros();
        Self { bytes, len: (bits / 8 + 1) as u8 }
    }
}

/// `unscaled × 10^-scale` as a NUMERIC, exactly.
#[inline]
pub(crate) fn numeric(unscaled: i128, scale: u16) -> Result<NumberBytes, Unfit> {
    if let (Ok(small), Some(&factor)) = (i64::try_from(unscaled), FACTORS.get(usize::from(scale))) {
        // Below 10^28.
        return Ok(NumberBytes::of_i128(i128::from(small) * i128::from(factor)));
    }
    let value = if scale <= NUMERIC_SCALE {
        let factor = 10i128.pow(u32::from(NUMERIC_SCALE - scale));
        unscaled.checked_mul(factor).ok_or(Unfit::NumericWhole)?
    } else {
        shrink(unscaled, scale - NUMERIC_SCALE).ok_or(Unfit::NumericFraction)?
    };
    if value.unsigned_abs() < NUMERIC_BOUND {
        Ok(NumberBytes::of_i128(value))
    } else {
        Err(Unfit::NumericWhole)
    }
}

/// `unscaled × 10^-scale` as a BIGNUMERIC, exactly.
pub(crate) fn big_numeric(unscaled: i128, scale: u16) -> Result<NumberBytes, Unfit> {
    if scale > BIGNUMERIC_SCALE {
        let value = shrink(unscaled, scale - BIGNUMERIC_SCALE).ok_or(Unfit::BigNumericFraction)?;
        return Ok(NumberBytes::of_i128(value));
    }
    let mut magnitude = Magnitude::of(unscaled.unsigned_abs());
    let grown = magnitude.times_power_of_ten(BIGNUMERIC_SCALE - scale);
    grown.and_then(|()| magnitude.signed(unscaled < 0)).ok_or(Unfit::BigNumericWhole)
}

/// Plain decimal text (optional sign, digits, optional point and digits) as a NUMERIC, exactly.
pub(crate) fn numeric_of_digits(text: &str) -> Result<NumberBytes, Unfit> {
    let (negative, magnitude) = read(text, NUMERIC_SCALE, Unfit::NumericWhole, Unfit::NumericFraction)?;
    match magnitude.as_u128() {
        Some(value) if value < NUMERIC_BOUND => {
            let value = value as i128;
            Ok(NumberBytes::of_i128(if negative { -value } else { value }))
        }
        _ => Err(Unfit::NumericWhole),
    }
}

/// The same as a BIGNUMERIC.
pub(crate) fn big_numeric_of_digits(text: &str) -> Result<NumberBytes, Unfit> {
    let (negative, magnitude) =
        read(text, BIGNUMERIC_SCALE, Unfit::BigNumericWhole, Unfit::BigNumericFraction)?;
    magnitude.signed(negative).ok_or(Unfit::BigNumericWhole)
}

/// Takes digits away that are zeros.
fn shrink(unscaled: i128, digits: u16) -> Option<i128> {
    if unscaled == 0 {
        return Some(0);
    }
    let divisor = 10i128.checked_pow(digits.into())?;
    (unscaled % divisor == 0).then(|| unscaled / divisor)
}

fn read(
    text: &str,
    scale: u16,
    whole_unfit: Unfit,
    fraction_unfit: Unfit,
) -> Result<(bool, Magnitude), Unfit> {
    let (negative, bare) = match text.strip_prefix('-') {
        Some(bare) => (true, bare),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = bare.split_once('.').unwrap_or((bare, ""));
    let digits = || whole.bytes().chain(fraction.bytes());
    if digits().next().is_none() || !digits().all(|b| b.is_ascii_digit()) {
        return Err(Unfit::NoNumber);
    }
    let fraction = fraction.trim_end_matches('0');
    let missing = usize::from(scale).checked_sub(fraction.len()).ok_or(fraction_unfit)?;
    let mut magnitude = Magnitude::of(0);
    for digit in whole.bytes().chain(fraction.bytes()) {
        magnitude.times_plus(10, u64::from(digit - b'0')).ok_or(whole_unfit)?;
    }
    magnitude.times_power_of_ten(missing as u16).ok_or(whole_unfit)?;
    Ok((negative, magnitude))
}

/// 256 bits, the lowest 64 first.
#[derive(Clone, Copy)]
struct Magnitude([u64; 4]);

impl Magnitude {
    fn of(v: u128) -> Self {
        Self([v as u64, (v >> 64) as u64, 0, 0])
    }

    fn as_u128(&self) -> Option<u128> {
        let [low, high, 0, 0] = self.0 else { return None };
        Some(u128::from(low) | u128::from(high) << 64)
    }

    fn times_plus(&mut self, factor: u64, summand: u64) -> Option<()> {
        let mut carry = u128::from(summand);
        for limb in &mut self.0 {
            let product = u128::from(*limb) * u128::from(factor) + carry;
            *limb = product as u64;
            carry = product >> 64;
        }
        (carry == 0).then_some(())
    }

    fn times_power_of_ten(&mut self, mut exponent: u16) -> Option<()> {
        while exponent > 0 {
            let step = exponent.min(19);
            self.times_plus(10u64.pow(step.into()), 0)?;
            exponent -= step;
        }
        Some(())
    }

    /// As two's complement; `None` if it needs a 257th bit.
    fn signed(self, negative: bool) -> Option<NumberBytes> {
        let mut limbs = self.0;
        if negative {
            let mut carry = true;
            for limb in &mut limbs {
                (*limb, carry) = (!*limb).overflowing_add(carry.into());
            }
        }
        let is_zero = self.0 == [0; 4];
        if !is_zero && (limbs[3] >> 63 == 1) != negative {
            return None;
        }
        let mut bytes = [0; 32];
        for (chunk, limb) in bytes.chunks_exact_mut(8).zip(limbs) {
            chunk.copy_from_slice(&limb.to_le_bytes());
        }
        Some(NumberBytes::shortest(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::key::decimal_text;
    use proptest::prelude::*;

    fn bytes(number: Result<NumberBytes, Unfit>) -> Result<Vec<u8>, Unfit> {
        number.map(|n| n.as_slice().to_vec())
    }

    #[test]
    fn numbers_have_the_bytes_that_java_gives() {
        // BigInteger.toByteArray() of the unscaled value, reversed.
        let cases: [(i128, u16, &[u8]); 6] = [
            (0, 0, &[0]),
            (1, 9, &[1]),
            (-1, 9, &[0xff]),
            (128, 9, &[0x80, 0]),
            (-128, 9, &[0x80]),
            (1, 0, &[0x00, 0xca, 0x9a, 0x3b]),
        ];
        for (unscaled, scale, expected) in cases {
            assert_eq!(bytes(numeric(unscaled, scale)).unwrap(), expected, "{unscaled} {scale}");
        }
        assert_eq!(bytes(big_numeric(-1, 38)).unwrap(), [0xff]);
        assert_eq!(bytes(big_numeric(1, 37)).unwrap(), [10]);
    }

    #[test]
    fn numbers_stay_in_their_bounds() {
        let nines = 10i128.pow(38) - 1;
        assert!(numeric(nines, 9).is_ok() && numeric(-nines, 9).is_ok());
        assert_eq!(numeric(nines + 1, 9), Err(Unfit::NumericWhole));
        assert_eq!(numeric(nines, 8), Err(Unfit::NumericWhole));
        assert_eq!(numeric(15, 10), Err(Unfit::NumericFraction));
        assert_eq!(numeric(150, 10), numeric(15, 9));
        assert_eq!(numeric(0, u16::MAX), numeric(0, 0));
        assert_eq!(numeric(1, u16::MAX), Err(Unfit::NumericFraction));
        assert!(big_numeric(nines, 0).is_ok());
        assert!(big_numeric(i128::MAX, 0).is_ok(), "1.7e38 is below 5.7e38");
        assert!(big_numeric(i128::MIN, 38).is_ok());
        assert_eq!(big_numeric(1, 39), Err(Unfit::BigNumericFraction));
        // The greatest and the least BIGNUMERIC.
        let max = "578960446186580977117854925043439539266.34992332820282019728792003956564819967";
        let over = "578960446186580977117854925043439539266.34992332820282019728792003956564819968";
        let mut largest = vec![0xff; 32];
        largest[31] = 0x7f;
        assert_eq!(bytes(big_numeric_of_digits(max)).unwrap(), largest);
        assert_eq!(big_numeric_of_digits(over), Err(Unfit::BigNumericWhole));
        assert!(big_numeric_of_digits(&format!("-{over}")).is_ok());
        assert_eq!(big_numeric_of_digits(&format!("-{over}1")), Err(Unfit::BigNumericFraction));
        assert_eq!(big_numeric_of_digits(&"9".repeat(500)), Err(Unfit::BigNumericWhole));
    }

    #[test]
    fn texts_that_are_no_numbers_are_refused() {
        for text in ["", "-", ".", "NaN", "Infinity", "1e5", "1.2.3", "--1", "１"] {
            assert_eq!(numeric_of_digits(text), Err(Unfit::NoNumber), "{text}");
        }
        for text in ["1.", ".5", "+1", "-0.0", "0001", "1.5000000000000"] {
            assert!(numeric_of_digits(text).is_ok(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn text_and_integer_give_the_same_bytes(unscaled in any::<i128>(), scale in 0u16..60) {
            let text = decimal_text(unscaled, scale.into());
            prop_assert_eq!(big_numeric_of_digits(&text), big_numeric(unscaled, scale));
            // An i128 that overflows on its way to scale 9 is too large by its text, too.
            prop_assert_eq!(numeric_of_digits(&text).is_ok(), numeric(unscaled, scale).is_ok());
            if let Ok(number) = numeric(unscaled, scale) {
                prop_assert_eq!(numeric_of_digits(&text).unwrap(), number);
            }
        }

        #[test]
        fn bytes_mean_the_number(unscaled in any::<i64>(), scale in 0u16..=9) {
            let number = numeric(unscaled.into(), scale).unwrap();
            let slice = number.as_slice();
            let mut wide = [if slice[slice.len() - 1] & 0x80 == 0 { 0 } else { 0xff }; 16];
            wide[..slice.len()].copy_from_slice(slice);
            prop_assert_eq!(i128::from_le_bytes(wide), i128::from(unscaled) * 10i128.pow(u32::from(9 - scale)));
        }
    }
}
