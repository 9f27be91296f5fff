//! BIGNUMERIC: decimal numbers of 76 digits, kept as canonical text.

/// The largest magnitude: 2^255 at scale 38.
const MAX: &str = "57896044618658097711785492504343953926634992332820282019728792003956564819967";
/// Digits after the point.
pub(crate) const SCALE: usize = 38;

/// The canonical text of an unscaled integer in two's complement, little endian.
pub(crate) fn from_bytes(bytes: &[u8]) -> Result<String, String> {
    if bytes.is_empty() || bytes.len() > 32 {
        return Err(format!("BIGNUMERIC takes 1 to 32 bytes, not {}", bytes.len()));
    }
    let negative = bytes[bytes.len() - 1] & 0x80 != 0;
    let mut limbs = [if negative { u32::MAX } else { 0 }; 8];
    for (i, &byte) in bytes.iter().enumerate() {
        let shift = 8 * (i % 4);
        limbs[i / 4] = (limbs[i / 4] & !(0xff << shift)) | (u32::from(byte) << shift);
    }
    if negative {
        let mut carry = true;
        for limb in &mut limbs {
            let (sum, over) = (!*limb).overflowing_add(u32::from(carry));
            (*limb, carry) = (sum, over);
        }
    }
    let mut digits = Vec::new();
    while limbs.iter().any(|&limb| limb != 0) {
        let mut rest = 0u64;
        for limb in limbs.iter_mut().rev() {
            let value = (rest << 32) | u64::from(*limb);
            *limb = (value / 1_000_000_000) as u32;
            rest = value % 1_000_000_000;
        }
        for _ in 0..9 {
            digits.push(b'0' + (rest % 10) as u8);
            rest /= 10;
        }
    }
    digits.reverse();
    let digits: String = digits.into_iter().map(char::from).collect();
    Ok(text(negative, digits.trim_start_matches('0'), SCALE))
}

/// A sign, digits and a scale as text without needless zeros.
fn text(negative: bool, digits: &str, scale: usize) -> String {
    let padded = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = padded.split_at(padded.len() - scale);
    let fraction = fraction.trim_end_matches('0');
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let sign = if negative && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
    if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

/// A sign and the digits at this scale, of a decimal text with or without an exponent.
pub(crate) fn digits(input: &str, scale: usize) -> Result<(bool, String), String> {
    let wrong = || format!("Invalid number: {input}");
    let trimmed = input.trim();
    let (negative, unsigned) = match trimmed.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().map_err(|_| wrong())?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = whole.bytes().chain(fraction.bytes());
    if (whole.is_empty() && fraction.is_empty())
        || !all.clone().all(|b| b.is_ascii_digit())
        || exponent.abs() > 1000
    {
        return Err(wrong());
    }
    let mut digits: String = all.map(char::from).collect();
    let shift = exponent - fraction.len() as i32 + scale as i32;
    if shift >= 0 {
        digits.extend(std::iter::repeat_n('0', shift as usize));
    } else {
        let cut = digits.len().saturating_sub(shift.unsigned_abs() as usize);
        if digits[cut..].bytes().any(|b| b != b'0') {
            return Err(format!("{input} has more than {scale} digits after the point"));
        }
        digits.truncate(cut);
    }
    Ok((negative, digits.trim_start_matches('0').to_owned()))
}

/// The canonical text of a decimal text.
pub(crate) fn canonical(input: &str) -> Result<String, String> {
    let (negative, digits) = digits(input, SCALE)?;
    if digits.len() > MAX.len() || (digits.len() == MAX.len() && digits.as_str() > MAX) {
        return Err(format!("BIGNUMERIC out of range: {input}"));
    }
    Ok(text(negative, &digits, SCALE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_texts_agree() {
        let unscaled = 10i128.pow(38);
        assert_eq!(from_bytes(&unscaled.to_le_bytes()).unwrap(), "1");
        assert_eq!(from_bytes(&(-unscaled - 5).to_le_bytes()).unwrap(), format!("-1.{}5", "0".repeat(37)));
        assert_eq!(from_bytes(&[0]).unwrap(), "0");
        assert_eq!(from_bytes(&[0xff]).unwrap(), format!("-0.{}1", "0".repeat(37)));
        let mut most = [0xff; 32];
        most[31] = 0x7f;
        let text = from_bytes(&most).unwrap();
        assert_eq!(text.replace('.', ""), MAX);
        assert_eq!(canonical(&text).unwrap(), text);
        assert!(from_bytes(&[0; 33]).is_err() && from_bytes(&[]).is_err());
    }

    #[test]
    fn texts_become_canonical() {
        for (input, wanted) in
            [("1.50", "1.5"), ("-0.0", "0"), ("+7", "7"), ("1e3", "1000"), ("12.5e-1", "1.25"), (".5", "0.5")]
        {
            assert_eq!(canonical(input).unwrap(), wanted);
        }
        for wrong in
            ["", "x", "1e", "1e9999", "1.2.3", &format!("0.{}1", "0".repeat(38)), &"9".repeat(40), "é"]
        {
            assert!(canonical(wrong).is_err(), "{wrong}");
        }
    }
}
