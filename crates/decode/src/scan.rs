//! A strict JSON scanner over text that is already known to be UTF-8.
//!
//! It accepts exactly RFC 8259 with two limits: nesting of at most [`DEPTH_MAX`] and no lone surrogates in `\u`
//! escapes (they have no UTF-8 form, so no warehouse could hold them). Whatever is skipped is validated as strictly as
//! what is read: a record is either wholly JSON or refused. Nothing recurses without a bound.

use std::borrow::Cow;

/// Deepest nesting of objects and arrays, counted from the outermost.
pub(crate) const DEPTH_MAX: u32 = 128;

/// Why text is not JSON, and at which byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScanError {
    pub(crate) fault: Fault,
    pub(crate) at: u32,
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The text ends within a value.
    Cut,
    /// A character that cannot stand there.
    Unexpected,
    /// An unknown escape, or a `\u` escape that is not a character.
    Escape,
    /// A raw control character within a string.
    Control,
    /// Not a number by JSON's grammar.
    Number,
    /// Nested deeper than [`DEPTH_MAX`].
    Deep,
    /// More text after the value.
    Trailing,
}

impl Fault {
    /// The dead letter's code.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Fault::Deep => "too_deep",
            Fault::Trailing => "trailing_data",
            _ => "invalid_json",
        }
    }

    /// What to say about it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Fault::Cut => "the text ends within a value",
            Fault::Unexpected => "unexpected character",
            Fault::Escape => "invalid escape or lone surrogate in a string",
            Fault::Control => "raw control character in a string",
            Fault::Number => "invalid number",
            Fault::Deep => "nested deeper than 128",
            Fault::Trailing => "more text after the value",
        }
    }
}

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
fn unescape(bytes: &[u8], at: usize) -> Option<(char, usize)> {
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

/// A number token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number<'a> {
    /// An integer literal in i64's range.
    Int(i64),
    /// Anything else, as written.
    Text(&'a str),
}

/// A position in a text, moving over JSON tokens.
#[derive(Debug, Clone)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

type Scan<T> = Result<T, ScanError>;

impl<'a> Cursor<'a> {
    /// At the start of `text`, which lies `depth` levels deep in its record.
    pub(crate) fn new(text: &'a str, depth: u32) -> Self {
        Self { text, at: 0, depth }
    }

    /// Bytes passed.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Levels of nesting around the position.
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The text from `start` to here.
    pub(crate) fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or_default()
    }

    /// The byte here; 0 at the end (NUL is valid nowhere outside strings, so the two need no telling apart).
    #[inline(always)]
    pub(crate) fn byte(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    /// Passes white space.
    #[inline(always)]
    pub(crate) fn space(&mut self) {
        while matches!(self.byte(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    /// Passes `token` if it stands here.
    #[inline(always)]
    pub(crate) fn eat(&mut self, token: &[u8]) -> bool {
        match self.text.as_bytes().get(self.at..self.at + token.len()) {
            Some(text) if same(text, token) => {
                self.at += token.len();
                true
            }
            _ => false,
        }
    }

    /// Passes one byte.
    #[inline(always)]
    pub(crate) fn expect(&mut self, byte: u8) -> Scan<()> {
        if self.byte() == byte {
            self.at += 1;
            Ok(())
        } else {
            Err(self.unexpected())
        }
    }

    /// The error of an unexpected byte here.
    #[cold]
    pub(crate) fn unexpected(&self) -> ScanError {
        self.fault(if self.at >= self.text.len() { Fault::Cut } else { Fault::Unexpected })
    }

    #[cold]
    fn fault(&self, fault: Fault) -> ScanError {
        ScanError { fault, at: u32::try_from(self.at).unwrap_or(u32::MAX) }
    }

    /// One level deeper.
    #[inline]
    pub(crate) fn enter(&mut self) -> Scan<()> {
        if self.depth >= DEPTH_MAX {
            return Err(self.fault(Fault::Deep));
        }
        self.depth += 1;
        Ok(())
    }

    /// One level up.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// After the last value: only white space may follow.
    pub(crate) fn end(&mut self) -> Scan<()> {
        self.space();
        if self.at == self.text.len() { Ok(()) } else { Err(self.fault(Fault::Trailing)) }
    }

    /// Opens the object that begins here and passes its first name and colon; `None` if it is empty (and closed).
    #[inline]
    pub(crate) fn first_key(&mut self) -> Scan<Option<Str<'a>>> {
        self.expect(b'{')?;
        self.enter()?;
        self.space();
        if self.byte() == b'}' {
            self.at += 1;
            self.leave();
            return Ok(None);
        }
        self.name().map(Some)
    }

    /// After a member's value: passes the next name and colon; `None` at the object's end (passed).
    #[inline]
    pub(crate) fn next_key(&mut self) -> Scan<Option<Str<'a>>> {
        self.space();
        match self.byte() {
            b',' => {
                self.at += 1;
                self.space();
                self.name().map(Some)
            }
            b'}' => {
                self.at += 1;
                self.leave();
                Ok(None)
            }
            _ => Err(self.unexpected()),
        }
    }

    #[inline]
    fn name(&mut self) -> Scan<Str<'a>> {
        let name = self.string()?;
        if self.byte() != b':' {
            self.space();
        }
        self.expect(b':')?;
        self.space();
        Ok(name)
    }

    /// Opens the array that begins here; `false` if it is empty (and closed).
    pub(crate) fn first_element(&mut self) -> Scan<bool> {
        self.expect(b'[')?;
        self.enter()?;
        self.space();
        if self.byte() == b']' {
            self.at += 1;
            self.leave();
            return Ok(false);
        }
        Ok(true)
    }

    /// After an element: `true` at the next one, `false` at the array's end (passed).
    pub(crate) fn next_element(&mut self) -> Scan<bool> {
        self.space();
        match self.byte() {
            b',' => {
                self.at += 1;
                self.space();
                Ok(true)
            }
            b']' => {
                self.at += 1;
                self.leave();
                Ok(false)
            }
            _ => Err(self.unexpected()),
        }
    }

    /// The string that begins here.
    #[inline]
    pub(crate) fn string(&mut self) -> Scan<Str<'a>> {
        self.expect(b'"')?;
        let start = self.at;
        self.at = special(self.text.as_bytes(), start);
        if self.byte() == b'"' {
            let raw = self.since(start);
            self.at += 1;
            return Ok(Str { raw, escaped: false });
        }
        self.string_from(start)
    }

    /// The rest of a string that began at `start`, from an escape on.
    #[inline(never)]
    fn string_from(&mut self, start: usize) -> Scan<Str<'a>> {
        let mut escaped = false;
        loop {
            self.at = special(self.text.as_bytes(), self.at);
            match self.text.as_bytes().get(self.at) {
                Some(b'"') => {
                    let raw = self.since(start);
                    self.at += 1;
                    return Ok(Str { raw, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    match unescape(self.text.as_bytes(), self.at) {
                        Some((_, len)) => self.at += len,
                        None => return Err(self.fault(Fault::Escape)),
                    }
                }
                Some(_) => return Err(self.fault(Fault::Control)),
                None => return Err(self.fault(Fault::Cut)),
            }
        }
    }

    /// The number that begins here.
    #[inline]
    pub(crate) fn number(&mut self) -> Scan<Number<'a>> {
        let start = self.at;
        let negative = self.byte() == b'-';
        if negative {
            self.at += 1;
        }
        let bytes = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let (n, digits) = leading_digits(bytes);
        if digits == 0 || (digits > 1 && bytes[0] == b'0') {
            self.at += digits;
            return Err(self.fault(Fault::Number));
        }
        self.at += digits;
        if matches!(bytes.get(digits), Some(b'.' | b'e' | b'E')) {
            return self.fraction(start);
        }
        // Nineteen digits fit in a u64, and maybe in an i64.
        if digits <= 19 {
            if !negative && n <= i64::MAX as u64 {
                return Ok(Number::Int(n as i64));
            }
            if negative && n <= i64::MIN.unsigned_abs() {
                return Ok(Number::Int((n as i64).wrapping_neg()));
            }
        }
        Ok(Number::Text(self.since(start)))
    }

    /// An unsigned integer of at most 19 digits.
    #[inline]
    pub(crate) fn unsigned(&mut self) -> Option<u64> {
        let (n, digits) = leading_digits(self.text.as_bytes().get(self.at..)?);
        self.at += digits;
        (1..=19).contains(&digits).then_some(n)
    }

    fn fraction(&mut self, start: usize) -> Scan<Number<'a>> {
        if self.byte() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.byte(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.byte(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(Number::Text(self.since(start)))
    }

    fn digits(&mut self) -> Scan<()> {
        if !self.byte().is_ascii_digit() {
            return Err(self.fault(Fault::Number));
        }
        while self.byte().is_ascii_digit() {
            self.at += 1;
        }
        Ok(())
    }

    /// `true`, `false` or `null`.
    #[inline]
    pub(crate) fn literal(&mut self, word: &str) -> Scan<()> {
        if self.eat(word.as_bytes()) { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Passes the value that begins here, validating it.
    #[inline]
    pub(crate) fn skip(&mut self) -> Scan<()> {
        match self.byte() {
            b'"' => self.string().map(|_| ()),
            b'{' | b'[' => self.skip_nested(),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            b'-' | b'0'..=b'9' => self.number().map(|_| ()),
            _ => Err(self.unexpected()),
        }
    }

    /// The value that begins here, as written.
    #[inline]
    pub(crate) fn raw(&mut self) -> Scan<&'a str> {
        let start = self.at;
        self.skip()?;
        Ok(self.since(start))
    }

    /// Passes an object or array without recursion: one bit a level tells objects from arrays.
    fn skip_nested(&mut self) -> Scan<()> {
        let outside = self.depth;
        let mut objects = 0u128;
        loop {
            let more = match self.byte() {
                b'{' => {
                    objects = objects << 1 | 1;
                    self.first_key()?.is_some()
                }
                b'[' => {
                    objects <<= 1;
                    self.first_element()?
                }
                _ => {
                    self.skip()?;
                    self.next_of(objects)?
                }
            };
            if more {
                continue;
            }
            // The innermost level is closed; so may be those around it.
            objects >>= 1;
            loop {
                if self.depth == outside {
                    return Ok(());
                }
                if self.next_of(objects)? {
                    break;
                }
                objects >>= 1;
            }
        }
    }

    #[inline]
    fn next_of(&mut self, objects: u128) -> Scan<bool> {
        if objects & 1 == 1 { Ok(self.next_key()?.is_some()) } else { self.next_element() }
    }
}

/// The digits at the front: their value (wrapping) and their number. Eight at a step, without a loop over the rest.
#[inline(always)]
fn leading_digits(bytes: &[u8]) -> (u64, usize) {
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

/// Equality of short texts of one length, without a call.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    match a.len() {
        8..=16 => a.first_chunk::<8>() == b.first_chunk::<8>() && a.last_chunk::<8>() == b.last_chunk::<8>(),
        4..=7 => a.first_chunk::<4>() == b.first_chunk::<4>() && a.last_chunk::<4>() == b.last_chunk::<4>(),
        17..=32 => {
            a.first_chunk::<16>() == b.first_chunk::<16>() && a.last_chunk::<16>() == b.last_chunk::<16>()
        }
        _ => a == b,
    }
}

/// The first byte at or after `at` that ends or interrupts a string: `"`, `\` or a control character. Eight bytes a
/// step; in each of the three tests only the lowest hit is exact, and only the lowest is used.
#[inline(always)]
fn special(bytes: &[u8], mut at: usize) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str) -> Result<(), Fault> {
        let mut cursor = Cursor::new(text, 0);
        cursor.space();
        cursor.skip().and_then(|()| cursor.end()).map_err(|e| e.fault)
    }

    #[test]
    fn what_is_skipped_is_validated() {
        for (text, fault) in [
            ("", Fault::Cut),
            ("{", Fault::Cut),
            (r#"{"a":"#, Fault::Cut),
            (r#"{"a":1"#, Fault::Cut),
            (r#""abc"#, Fault::Cut),
            (r#"{"a":1,}"#, Fault::Unexpected),
            (r#"{a:1}"#, Fault::Unexpected),
            ("[1,]", Fault::Unexpected),
            ("[1}", Fault::Unexpected),
            ("{\"a\":[1}", Fault::Unexpected),
            ("nul", Fault::Unexpected),
            ("\0", Fault::Unexpected),
            ("tru", Fault::Unexpected),
            ("01", Fault::Number),
            ("-", Fault::Number),
            ("1.", Fault::Number),
            ("1e", Fault::Number),
            ("1e+", Fault::Number),
            (".5", Fault::Unexpected),
            ("+1", Fault::Unexpected),
            ("NaN", Fault::Unexpected),
            (r#""\x""#, Fault::Escape),
            (r#""\u12g4""#, Fault::Escape),
            (r#""\ud800""#, Fault::Escape),
            (r#""\ud800A""#, Fault::Escape),
            (r#""\udc00""#, Fault::Escape),
            ("\"a\tb\"", Fault::Control),
            ("\"a\0b\"", Fault::Control),
            ("\"12345678\n\"", Fault::Control),
            ("1 2", Fault::Trailing),
            ("{}{}", Fault::Trailing),
            ("null,", Fault::Trailing),
        ] {
            assert_eq!(check(text), Err(fault), "{text:?}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert_eq!(check(&nested(128)), Ok(()));
        assert_eq!(check(&nested(129)), Err(Fault::Deep));
        assert_eq!(check(&"[".repeat(1_000_000)), Err(Fault::Deep));
        assert_eq!(check(&(r#"{"a":"#.repeat(129) + "1")), Err(Fault::Deep));
    }

    #[test]
    fn escapes_decode() {
        let mut cursor = Cursor::new(r#""a\"\\\/\b\f\n\r\t\u00fc\ud83d\ude9a€""#, 0);
        let text = cursor.string().unwrap();
        assert!(text.escaped);
        assert_eq!(text.decode(), "a\"\\/\u{8}\u{c}\n\r\tü\u{1f69a}€");
    }

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

    #[test]
    fn integers_are_read_while_scanned() {
        let number = |text| Cursor::new(text, 0).number();
        assert_eq!(number("-9223372036854775808"), Ok(Number::Int(i64::MIN)));
        assert_eq!(number("9223372036854775807"), Ok(Number::Int(i64::MAX)));
        assert_eq!(number("9223372036854775808"), Ok(Number::Text("9223372036854775808")));
        assert_eq!(number("-0"), Ok(Number::Int(0)));
        assert_eq!(number("1.50,"), Ok(Number::Text("1.50")));
        assert_eq!(number("1E5]"), Ok(Number::Text("1E5")));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<f64>().prop_map(|f| serde_json::json!(f)),
            ".*".prop_map(Into::into),
        ];
        leaf.prop_recursive(6, 60, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(serde_json::Value::Array),
                prop::collection::vec((".*", inner), 0..6)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn generated_json_is_accepted(value in json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            prop_assert_eq!(check(&text.unwrap()), Ok(()));
        }

        #[test]
        fn damaged_json_is_judged_as_serde_does(value in json(), at in any::<prop::sample::Index>(), byte in 0u8..128) {
            let mut bytes = serde_json::to_vec(&value).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(text) = std::str::from_utf8(&bytes) {
                let serde = serde_json::from_str::<serde_json::Value>(text).is_ok();
                prop_assert_eq!(check(text).is_ok(), serde, "{}", text);
            }
        }

        #[test]
        fn strings_decode_as_serde_does(text in "\\PC*[\"\\\\\n\u{1f}\u{1f69a}]?.*") {
            let written = serde_json::to_string(&text).unwrap();
            let string = Cursor::new(&written, 0).string().unwrap();
            prop_assert_eq!(string.decode(), text);
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".*") {
            let _ = check(&text);
        }
    }
}
