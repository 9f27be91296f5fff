//! Bytes and bit strings.

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use millstream_core::{RowBuilder, Value};

use super::{Ctx, Fail, INVALID_VALUE, WRONG_TYPE};
use crate::scan::Cursor;

const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const PLAIN: GeneralPurpose = GeneralPurpose::new(&STANDARD, CONFIG);
const SAFE: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, CONFIG);

/// How bytes are written in a JSON string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryForm {
    Base64,
    UrlSafe,
    Hex,
}

impl BinaryForm {
    /// Its name in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BinaryForm::Base64 => "base64",
            BinaryForm::UrlSafe => "URL-safe base64",
            BinaryForm::Hex => "hexadecimal",
        }
    }

    /// Appends the bytes of `text` to `out`; `false` if it is not of this form.
    pub(crate) fn decode(self, text: &str, out: &mut Vec<u8>) -> bool {
        match self {
            BinaryForm::Base64 => short_base64(text.as_bytes(), out) || PLAIN.decode_vec(text, out).is_ok(),
            BinaryForm::UrlSafe => SAFE.decode_vec(text, out).is_ok(),
            BinaryForm::Hex => hex(text.as_bytes(), out),
        }
    }
}

const INVALID: u8 = 0xff;
const VALUES: [u8; 256] = {
    let mut table = [INVALID; 256];
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut i = 0;
    while i < alphabet.len() {
        table[alphabet[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// Unscaled decimals are eight characters or so; the general engine's set-up costs more than their decoding. Answers
/// `false`, with nothing appended, for whatever it does not take.
#[inline]
fn short_base64(text: &[u8], out: &mut Vec<u8>) -> bool {
    if text.len() > 12 || text.is_empty() || !text.len().is_multiple_of(4) {
        return false;
    }
    let padding = text.iter().rev().take_while(|&&b| b == b'=').count();
    if padding > 2 {
        return false;
    }
    let mut n = 0u128;
    for &b in &text[..text.len() - padding] {
        let value = VALUES[b as usize];
        if value == INVALID {
            return false;
        }
        n = n << 6 | u128::from(value);
    }
    let len = text.len() / 4 * 3 - padding;
    let spare = (text.len() - padding) * 6 - len * 8;
    // Bits beyond the last byte must be zero, as the general engine demands.
    if n & ((1 << spare) - 1) != 0 {
        return false;
    }
    let bytes = (n >> spare).to_be_bytes();
    out.extend_from_slice(&bytes[16 - len..]);
    true
}

fn hex(text: &[u8], out: &mut Vec<u8>) -> bool {
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    if !text.len().is_multiple_of(2) {
        return false;
    }
    for pair in text.chunks_exact(2) {
        match (digit(pair[0]), digit(pair[1])) {
            (Some(high), Some(low)) => out.push(high << 4 | low),
            _ => return false,
        }
    }
    true
}

pub(crate) fn bytes(
    form: BinaryForm,
    cur: &mut Cursor<'_>,
    ctx: &mut Ctx,
    out: &mut RowBuilder,
) -> Result<(), Fail> {
    if cur.byte() != b'"' {
        return Err(Fail::Bad(WRONG_TYPE, "bytes as text"));
    }
    let string = cur.string()?;
    let text = string.decode();
    if ctx.detect && ctx.placeholder.is_binary(&text) {
        out.push(Value::Unchanged);
        return Ok(());
    }
    let mut good = false;
    out.push_bytes_with(|heap| good = form.decode(&text, heap));
    if good { Ok(()) } else { Err(Fail::Bad(INVALID_VALUE, "base64 or hexadecimal text")) }
}

/// Bit strings come little-endian, without trailing zero bytes on PostgreSQL and with them on MySQL. They leave as
/// big-endian bytes, padded to their declared length, so that `B'10100101'` is the byte `A5` and both databases agree.
pub(crate) fn bits(
    bits: Option<u32>,
    cur: &mut Cursor<'_>,
    ctx: &mut Ctx,
    out: &mut RowBuilder,
) -> Result<(), Fail> {
    match cur.byte() {
        b'"' => {}
        b't' | b'f' => {
            let set = cur.byte() == b't';
            cur.literal(if set { "true" } else { "false" })?;
            out.push(Value::Bytes(&[u8::from(set)]));
            return Ok(());
        }
        _ => return Err(Fail::Bad(WRONG_TYPE, "a bit string as base64")),
    }
    let text = cur.string()?.decode();
    if ctx.detect && ctx.placeholder.is_binary(&text) {
        out.push(Value::Unchanged);
        return Ok(());
    }
    let mut bytes = std::mem::take(&mut ctx.bytes);
    bytes.clear();
    let good = BinaryForm::Base64.decode(&text, &mut bytes);
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    // A declared length is trusted only up to MySQL's and PostgreSQL's own limits' order of magnitude.
    let wanted = bits.map_or(0, |n| n.div_ceil(8).min(1 << 16) as usize);
    if bytes.len() < wanted {
        ctx.expand(wanted)?;
        bytes.resize(wanted, 0);
    }
    bytes.reverse();
    out.push(Value::Bytes(&bytes));
    ctx.bytes = bytes;
    if good { Ok(()) } else { Err(Fail::Bad(INVALID_VALUE, "a bit string as base64")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn forms_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let decode = |form: BinaryForm, text: &str| {
                let mut out = Vec::new();
                form.decode(text, &mut out).then_some(out)
            };
            prop_assert_eq!(decode(BinaryForm::Base64, &PLAIN.encode(&bytes)), Some(bytes.clone()));
            prop_assert_eq!(decode(BinaryForm::UrlSafe, &SAFE.encode(&bytes)), Some(bytes.clone()));
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            prop_assert_eq!(decode(BinaryForm::Hex, &hex), Some(bytes));
        }

        #[test]
        fn the_short_path_agrees_with_the_engine(text in "[A-Za-z0-9+/=]{0,12}") {
            let mut short = Vec::new();
            if short_base64(text.as_bytes(), &mut short) {
                prop_assert_eq!(PLAIN.decode(&text).ok(), Some(short));
            }
        }
    }
}
