//! `lines: record`: one JSON object a line around a record, unescaped into the batch's buffer.

use std::borrow::Cow;

use millstream_core::Cause;
use millstream_core::record::{Range, Slot};
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(borrow, default)]
    topic: Option<&'a RawValue>,
    #[serde(borrow, default)]
    key: Option<&'a RawValue>,
    /// Must be there; null is a tombstone.
    #[serde(borrow)]
    value: &'a RawValue,
    #[serde(borrow, default)]
    headers: Option<Vec<FrameHeader<'a>>>,
}

#[derive(Deserialize)]
struct FrameHeader<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Option<&'a RawValue>,
}

/// Appends the record in `line` to `buffer`. A line that is no frame is appended whole, with the cause.
pub(crate) fn read(line: &[u8], offset: u64, buffer: &mut Vec<u8>) -> Slot {
    let start = buffer.len();
    match parse(line, buffer) {
        Ok(slot) => Slot { offset, ..slot },
        Err(cause) => {
            buffer.truncate(start);
            broken(line, offset, buffer, cause)
        }
    }
}

/// Appends `bytes` as the value of a record whose frame cannot be read.
pub(crate) fn broken(bytes: &[u8], offset: u64, buffer: &mut Vec<u8>, cause: Cause) -> Slot {
    Slot { value: Some(append(buffer, bytes)), offset, broken: Some(cause), ..Slot::default() }
}

fn parse(line: &[u8], buffer: &mut Vec<u8>) -> Result<Slot, Cause> {
    // Serde would also take an array for a struct.
    if line.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return Err(invalid("the line is no JSON object"));
    }
    // serde_json's messages name members, places and expected types, but a mistyped scalar is quoted; only the place
    // is passed on.
    let frame: Frame<'_> = serde_json::from_slice(line).map_err(|e| {
        let what = match e.classify() {
            serde_json::error::Category::Data => "a member is missing, repeated or has the wrong type",
            serde_json::error::Category::Eof => "the JSON is cut",
            _ => "the JSON cannot be read",
        };
        invalid(format!("{what}, at byte {} of the line", e.column()))
    })?;
    let topic = match frame.topic.map(RawValue::get) {
        None => None,
        Some(text) if text.starts_with('"') => Some(content(text, "topic", buffer)?),
        Some(_) => return Err(invalid("\"topic\" is neither a string nor null")),
    };
    let key = frame.key.map(|raw| content(raw.get(), "key", buffer)).transpose()?;
    let value = match frame.value.get() {
        "null" => None,
        text => Some(content(text, "value", buffer)?),
    };
    let mut headers = Vec::with_capacity(frame.headers.as_ref().map_or(0, Vec::len));
    for header in frame.headers.iter().flatten() {
        let name = append(buffer, header.key.as_bytes());
        // A header always has a value in a batch; one without is empty.
        let value = match header.value {
            Some(raw) => content(raw.get(), "a header's value", buffer)?,
            None => append(buffer, b""),
        };
        headers.push((name, value));
    }
    Ok(Slot { value, key, headers, topic, ..Slot::default() })
}

fn invalid(text: impl Into<String>) -> Cause {
    Cause::new("invalid_frame", text)
}

/// Appends a string's content, or any other JSON's text.
fn content(text: &str, member: &str, buffer: &mut Vec<u8>) -> Result<Range, Cause> {
    let Some(inner) = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) else {
        return Ok(append(buffer, text.as_bytes()));
    };
    let start = buffer.len();
    unescape(inner.as_bytes(), buffer)
        .ok_or_else(|| invalid(format!("{member:?} holds half of a surrogate pair or a broken escape")))?;
    Ok(Range { start: start as u32, len: (buffer.len() - start) as u32 })
}

/// Appends `bytes` and says where.
pub(crate) fn append(buffer: &mut Vec<u8>, bytes: &[u8]) -> Range {
    let start = buffer.len() as u32;
    buffer.extend_from_slice(bytes);
    Range { start, len: bytes.len() as u32 }
}

/// Appends what a JSON string's inside stands for; never more bytes than it has itself. `None` if it stands for nothing.
fn unescape(mut inner: &[u8], buffer: &mut Vec<u8>) -> Option<()> {
    while let Some(at) = memchr::memchr(b'\\', inner) {
        buffer.extend_from_slice(&inner[..at]);
        let plain = match inner.get(at + 1)? {
            b @ (b'"' | b'\\' | b'/') => *b,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (c, rest) = code_point(&inner[at + 2..])?;
                buffer.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                inner = rest;
                continue;
            }
            _ => return None,
        };
        buffer.push(plain);
        inner = &inner[at + 2..];
    }
    buffer.extend_from_slice(inner);
    Some(())
}

/// The code point of four hex digits, or of a surrogate pair written as four hex digits, `\u` and four more, and what follows.
fn code_point(text: &[u8]) -> Option<(char, &[u8])> {
    let high = hex(text)?;
    let rest = &text[4..];
    if !(0xd800..0xdc00).contains(&high) {
        return char::from_u32(high).map(|c| (c, rest));
    }
    let low = hex(rest.strip_prefix(b"\\u")?)?;
    if !(0xdc00..0xe000).contains(&low) {
        return None;
    }
    char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)).map(|c| (c, &rest[6..]))
}

fn hex(text: &[u8]) -> Option<u32> {
    text.get(..4)?.iter().try_fold(0, |n, b| Some(n * 16 + char::from(*b).to_digit(16)?))
}
