//! String tokens.

use std::borrow::Cow;

/// A string token between its quotes, as written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Str<'a> {
    /// The text between the quotes.
    pub(crate) raw: &'a str,
    /// Whether it holds escapes.
    pub(crate) escaped: bool,
}

impl<'a> Str<'a> {
    /// The string's value.
    pub(crate) fn decode(self) -> Cow<'a, str> {
        if self.escaped {
            let mut out = String::with_capacity(self.raw.len());
            self.append_to(&mut out);
            Cow::Owned(out)
        } else {
            Cow::Borrowed(self.raw)
        }
    }

    /// Whether its value is `text`.
    pub(crate) fn is(self, text: &str) -> bool {
        if self.escaped { self.decode() == text } else { self.raw == text }
    }

    /// Appends its value. The escapes were validated when it was scanned.
    pub(crate) fn append_to(self, out: &mut String) {
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
            out.push_str(&rest[..at]);
            let (c, used) = unescape(rest.as_bytes(), at).unwrap_or((char::REPLACEMENT_CHARACTER, 2));
            out.push(c);
            rest = rest.get(at + used..).unwrap_or_default();
        }
        out.push_str(rest);
    }
}

/// The character of the escape that begins at `at`, and its length in bytes; `None` if it is none.
pub(super) fn unescape(bytes: &[u8], at: usize) -> Option<(char, usize)> {
    let simple = match *bytes.get(at + 1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let high = hex4(bytes, at + 2)?;
            if !(0xd800..0xdc00).contains(&high) {
                return Some((char::from_u32(high)?, 6));
            }
            if bytes.get(at + 6..at + 8) != Some(b"\\u") {
                return None;
            }
            let low = hex4(bytes, at + 8)?;
            if !(0xdc00..0xe000).contains(&low) {
                return None;
            }
            return Some((char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00))?, 12));
        }
        _ => return None,
    };
    Some((simple, 2))
}

fn hex4(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.iter().try_fold(0, |n, &b| Some(n << 4 | (b as char).to_digit(16)?))
}

/// The first byte at or after `at` that ends or interrupts a string: `"`, `\` or a control character. Eight bytes a
/// step; in each of the three tests only the lowest hit is exact, and only the lowest is used.
#[inline(always)]
pub(super) fn special(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TOPS: u64 = 0x8080_8080_8080_8080;
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let quote = word ^ (ONES * b'"' as u64);
        let slash = word ^ (ONES * b'\\' as u64);
        let hits = (quote.wrapping_sub(ONES) & !quote)
            | (slash.wrapping_sub(ONES) & !slash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        let hits = hits & TOPS;
        if hits != 0 {
            return at + (hits.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < bytes.len() && !matches!(bytes[at], b'"' | b'\\' | 0..=0x1f) {
        at += 1;
    }
    at
}
