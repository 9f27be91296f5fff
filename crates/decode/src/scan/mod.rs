//! A strict JSON scanner over text that is already known to be UTF-8.
//!
//! It accepts exactly RFC 8259 with two limits: nesting of at most [`DEPTH_MAX`] and no lone surrogates in `\u`
//! escapes (they have no UTF-8 form, so no warehouse could hold them). Whatever is skipped is validated as strictly as
//! what is read: a record is either wholly JSON or refused. Nothing recurses without a bound.

mod number;
mod string;

pub(crate) use number::{Number, leading_digits};
pub(crate) use string::Str;
use string::{special, unescape};

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

    /// The string that begins here, if it is one without escapes; otherwise the cursor stays.
    #[inline(always)]
    pub(crate) fn plain_string(&mut self) -> Option<&'a str> {
        if self.byte() != b'"' {
            return None;
        }
        let end = special(self.text.as_bytes(), self.at + 1);
        if self.text.as_bytes().get(end) != Some(&b'"') {
            return None;
        }
        let text = self.text.get(self.at + 1..end);
        self.at = end + 1;
        text
    }

    /// The integer within ±i64::MAX that begins here; otherwise the cursor stays.
    #[inline(always)]
    pub(crate) fn plain_int(&mut self) -> Option<i64> {
        let negative = self.byte() == b'-';
        let first = self.at + usize::from(negative);
        let bytes = self.text.as_bytes().get(first..)?;
        let (n, digits) = leading_digits(bytes);
        let canonical = digits == 1 || (2..=19).contains(&digits) && bytes[0] != b'0';
        if !canonical || n > i64::MAX as u64 || matches!(bytes.get(digits), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        self.at = first + digits;
        Some(if negative { -(n as i64) } else { n as i64 })
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
            b'-' | b'0'..=b'9' => match self.plain_int() {
                Some(_) => Ok(()),
                None => self.number().map(|_| ()),
            },
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
