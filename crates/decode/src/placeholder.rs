//! The connector's placeholder for unchanged out-of-line (TOAST) values, in all the forms it takes.
//!
//! | column | form |
//! |---|---|
//! | text, json, xml | the text |
//! | bytes | base64, URL-safe base64 or hex of the text |
//! | text array | an array of the text alone |
//! | integer array | its bytes' codes |
//! | uuid array | an array of the UUID (version 3) that Java's `UUID.nameUUIDFromBytes` makes of its bytes |
//! | hstore | `{"<text>":"<text>"}` as JSON text or object |
//! | numeric | null, which nothing tells from NULL |

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};

use crate::md5::md5;
use crate::scan::{Cursor, Number, ScanError, Str};

/// A placeholder and its derived forms.
#[derive(Debug, Clone)]
pub(crate) struct Placeholder {
    text: String,
    binary: [String; 4],
    uuid: String,
    /// The hstore form as a JSON string between its quotes.
    map: String,
    /// Bit n: some textual form has n bytes. All bits where a form is longer than the bits tell.
    lengths: u128,
}

impl Placeholder {
    /// The forms of `text`.
    pub(crate) fn new(text: &str) -> Self {
        let binary = [
            BASE64_STANDARD.encode(text),
            BASE64_URL_SAFE.encode(text),
            BASE64_URL_SAFE_NO_PAD.encode(text),
            text.bytes().map(|b| format!("{b:02x}")).collect(),
        ];
        let quoted = serde_json::to_string(text).unwrap_or_default();
        let map = serde_json::to_string(&format!("{{{quoted}:{quoted}}}")).unwrap_or_default();
        let map = map.trim_matches('"').to_owned();
        let lengths = binary.iter().map(String::len).chain([text.len()]);
        let lengths = lengths.map(|n| if n < 128 { 1u128 << n } else { u128::MAX }).fold(0, |a, b| a | b);
        Self { text: text.to_owned(), binary, map, lengths, uuid: name_uuid(text.as_bytes()) }
    }

    /// Whether a string is the text itself.
    #[inline]
    pub(crate) fn is_text(&self, string: Str<'_>) -> bool {
        string.raw.len() >= self.text.len() && string.is(&self.text)
    }

    /// Whether a string of a bytes column is it.
    pub(crate) fn is_binary(&self, text: &str) -> bool {
        text == self.text || self.binary.iter().any(|form| form == text)
    }

    /// Whether a string of a column without type facts is it.
    #[inline]
    pub(crate) fn is_any_text(&self, string: Str<'_>) -> bool {
        let len = string.raw.len().min(127);
        if self.lengths >> len & 1 == 0 && !string.escaped {
            return false;
        }
        let own = if string.escaped {
            string.raw == self.map
        } else {
            self.binary.iter().any(|form| form == string.raw)
        };
        own || self.is_text(string)
    }

    /// Whether the JSON object or array `raw` is it.
    pub(crate) fn is_nested(&self, raw: &str) -> bool {
        let mut cur = Cursor::new(raw, 0);
        match cur.byte() {
            b'[' => self.is_list(&mut cur).unwrap_or(false),
            b'{' => self.is_map(&mut cur).unwrap_or(false),
            _ => false,
        }
    }

    /// Whether the array at the cursor is it; if so the cursor has passed it, otherwise it stands anywhere.
    pub(crate) fn is_list(&self, cur: &mut Cursor<'_>) -> Result<bool, ScanError> {
        if !cur.first_element()? {
            return Ok(false);
        }
        if cur.byte() == b'"' {
            let only = cur.string()?;
            return Ok((self.is_any_text(only) || only.is(&self.uuid)) && !cur.next_element()?);
        }
        let bytes = self.text.as_bytes();
        for (i, &code) in bytes.iter().enumerate() {
            if !cur.byte().is_ascii_digit() || cur.number()? != Number::Int(code.into()) {
                return Ok(false);
            }
            if cur.next_element()? == (i + 1 == bytes.len()) {
                return Ok(false);
            }
        }
        Ok(!bytes.is_empty())
    }

    fn is_map(&self, cur: &mut Cursor<'_>) -> Result<bool, ScanError> {
        match cur.first_key()? {
            Some(name) if self.is_text(name) && cur.byte() == b'"' => {
                Ok(self.is_text(cur.string()?) && cur.next_key()?.is_none())
            }
            _ => Ok(false),
        }
    }
}

/// Java's `UUID.nameUUIDFromBytes`: the MD5 with version 3 and the IETF variant.
fn name_uuid(name: &[u8]) -> String {
    let mut digest = md5(name);
    digest[6] = digest[6] & 0x0f | 0x30;
    digest[8] = digest[8] & 0x3f | 0x80;
    let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The forms of the default text as a real connector emitted them.
    #[test]
    fn forms_are_those_of_the_connector() {
        let p = Placeholder::new("__debezium_unavailable_value");
        assert_eq!(p.uuid, "b68a35a7-17ad-35b3-af2a-ae46edb4545a");
        assert!(p.is_binary("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="));
        assert!(p.is_nested(r#"["__debezium_unavailable_value"]"#));
        assert!(p.is_nested(r#"["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]"#));
        assert!(p.is_nested(r#"{"__debezium_unavailable_value":"__debezium_unavailable_value"}"#));
        let codes: Vec<_> = "__debezium_unavailable_value".bytes().map(|b| b.to_string()).collect();
        assert!(p.is_nested(&format!("[{}]", codes.join(","))));
        assert!(!p.is_nested(&format!("[{},1]", codes.join(","))));
        assert!(!p.is_nested(&format!("[{}]", codes[1..].join(","))));
        assert!(!p.is_nested(r#"["__debezium_unavailable_value","x"]"#));
        assert!(!p.is_nested("[]"));
    }
}
