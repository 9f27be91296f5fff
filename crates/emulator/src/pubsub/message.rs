//! Published messages as bytes: what is looked at, and the service's rules for them. Limits: 100 attributes, keys of 256
//! and values of 1,024 bytes, an ordering key of 1 KB, 10 MB in all.

use jiff::Timestamp;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use super::fields::{Field, Fields, Malformed, varint_len};

/// A message's, and a request's, most bytes.
pub(crate) const BYTES_MAX: usize = 10 * 1024 * 1024;
const ATTRIBUTES_MAX: usize = 100;
const ATTRIBUTE_KEY_MAX: usize = 256;
const ATTRIBUTE_VALUE_MAX: usize = 1024;
/// An ordering key's most bytes.
pub(crate) const ORDERING_KEY_MAX: usize = 1024;

const DATA: u32 = 1;
const ATTRIBUTES: u32 = 2;
const ORDERING_KEY: u32 = 5;

/// A message that was accepted.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Its id, unique in the server.
    pub(crate) id: u64,
    /// `PubsubMessage` without id and time.
    pub(crate) wire: Bytes,
}

/// What was seen on looking through a message.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The message, without fields that are not the publisher's.
    pub(crate) wire: Bytes,
    /// Its ordering key, empty for none.
    pub(crate) key: Bytes,
}

/// Looks through a message and checks it; what is wrong with it otherwise.
pub(crate) fn look(wire: &Bytes) -> Result<Seen, String> {
    let malformed = |Malformed| "The message is malformed.".to_owned();
    if wire.len() > BYTES_MAX {
        return Err(format!(
            "A message must not be larger than {BYTES_MAX} bytes; this one has {}.",
            wire.len()
        ));
    }
    let (mut key, mut attributes, mut data, mut foreign) = (0..0, 0, false, false);
    for field in Fields::new(wire) {
        let field = field.map_err(malformed)?;
        match field.number {
            DATA if field.delimited => data |= !field.content.is_empty(),
            ATTRIBUTES if field.delimited => {
                attributes += 1;
                let (name, value) = attribute(wire, &field).map_err(malformed)?;
                check_attribute(&wire[name], &wire[value])?;
            }
            ORDERING_KEY if field.delimited => key = field.content,
            _ => foreign = true,
        }
    }
    if !data && attributes == 0 {
        return Err("A message must have data or at least one attribute.".to_owned());
    }
    if attributes > ATTRIBUTES_MAX {
        return Err(format!("A message has at most {ATTRIBUTES_MAX} attributes; this one has {attributes}."));
    }
    if key.len() > ORDERING_KEY_MAX {
        return Err(format!(
            "An ordering key has at most {ORDERING_KEY_MAX} bytes; this one has {}.",
            key.len()
        ));
    }
    if std::str::from_utf8(&wire[key.clone()]).is_err() {
        return Err("The ordering key is not UTF-8.".to_owned());
    }
    let key = Bytes::copy_from_slice(&wire[key]);
    // A copy: a slice would keep the whole request, buffers and all, until its last message is acknowledged.
    let wire = if foreign { cleaned(wire).map_err(malformed)? } else { Bytes::copy_from_slice(wire) };
    Ok(Seen { wire, key })
}

/// Where an attribute's name and value are.
fn attribute(wire: &[u8], field: &Field) -> Result<(Range<usize>, Range<usize>), Malformed> {
    let base = field.content.start;
    let (mut name, mut value) = (base..base, base..base);
    for part in Fields::new(&wire[field.content.clone()]) {
        let part = part?;
        let range = base + part.content.start..base + part.content.end;
        match part.number {
            1 => name = range,
            2 => value = range,
            _ => {}
        }
    }
    Ok((name, value))
}

fn check_attribute(name: &[u8], value: &[u8]) -> Result<(), String> {
    if name.len() > ATTRIBUTE_KEY_MAX {
        return Err(format!(
            "An attribute's key has at most {ATTRIBUTE_KEY_MAX} bytes; one has {}.",
            name.len()
        ));
    }
    if value.len() > ATTRIBUTE_VALUE_MAX {
        let length = value.len();
        return Err(format!(
            "An attribute's value has at most {ATTRIBUTE_VALUE_MAX} bytes; one has {length}."
        ));
    }
    if std::str::from_utf8(name).is_err() || std::str::from_utf8(value).is_err() {
        return Err("An attribute is not UTF-8.".to_owned());
    }
    if name.is_empty() {
        return Err("An attribute's key must not be empty.".to_owned());
    }
    if name.starts_with(b"goog") {
        return Err("An attribute's key must not start with \"goog\".".to_owned());
    }
    Ok(())
}

/// The message without id, time and unknown fields, which publishers do not set.
fn cleaned(wire: &Bytes) -> Result<Bytes, Malformed> {
    let mut clean = BytesMut::with_capacity(wire.len());
    for field in Fields::new(wire) {
        let field = field?;
        if field.delimited && matches!(field.number, DATA | ATTRIBUTES | ORDERING_KEY) {
            clean.put_slice(&wire[field.whole]);
        }
    }
    Ok(clean.freeze())
}

/// Goes over a message's attributes: the last of equal keys counts, as everywhere in protobuf.
pub(crate) fn attributes(wire: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    Fields::new(wire).filter_map(Result::ok).filter(|field| field.number == ATTRIBUTES).filter_map(|field| {
        let (name, value) = attribute(wire, &field).ok()?;
        Some((std::str::from_utf8(&wire[name]).ok()?, std::str::from_utf8(&wire[value]).ok()?))
    })
}

/// The message's ordering key, empty for none.
pub(crate) fn ordering_key(wire: &Bytes) -> Bytes {
    let key = Fields::new(wire).filter_map(Result::ok).filter(|field| field.number == ORDERING_KEY).last();
    key.map_or_else(Bytes::new, |field| wire.slice(field.content))
}

/// The message with more attributes.
pub(crate) fn with_attributes(wire: &Bytes, more: &[(&str, String)]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(wire.len() + 128 * more.len());
    bytes.put_slice(wire);
    for (name, value) in more {
        let string = |s: &str| 1 + varint_len(s.len() as u64) + s.len();
        put_varint(&mut bytes, u64::from(ATTRIBUTES) << 3 | 2);
        put_varint(&mut bytes, (string(name) + string(value)) as u64);
        for (number, text) in [(1, *name), (2, value.as_str())] {
            put_varint(&mut bytes, number << 3 | 2);
            put_varint(&mut bytes, text.len() as u64);
            bytes.put_slice(text.as_bytes());
        }
    }
    bytes.freeze()
}

/// A time as RFC 3339, in UTC and with milliseconds, as the service writes it into attributes.
pub(crate) fn rfc3339(nanos: i64) -> String {
    match Timestamp::from_nanosecond(nanos.into()) {
        Ok(time) => time.strftime("%Y-%m-%dT%H:%M:%S%.3f+00:00").to_string(),
        // Every count of nanoseconds in 64 bits lies within jiff's years.
        Err(_) => String::new(),
    }
}

fn put_varint(bytes: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        bytes.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.put_u8(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pubsub::api::PubsubMessage;
    use prost::Message as _;

    fn encoded(message: &PubsubMessage) -> Bytes {
        message.encode_to_vec().into()
    }

    #[test]
    fn what_publishers_do_not_set_is_left_out() {
        let sent = PubsubMessage {
            data: Bytes::from_static(b"body"),
            attributes: [("a".to_owned(), "b".to_owned())].into(),
            message_id: "mine".to_owned(),
            publish_time: Some(prost_types::Timestamp { seconds: 5, nanos: 6 }),
            ordering_key: "key".to_owned(),
        };
        let seen = look(&encoded(&sent)).unwrap();
        assert_eq!(&seen.key[..], b"key");
        let kept = PubsubMessage::decode(seen.wire.clone()).unwrap();
        assert_eq!(kept, PubsubMessage { message_id: String::new(), publish_time: None, ..sent });
        assert_eq!(attributes(&seen.wire).collect::<Vec<_>>(), [("a", "b")]);
        let more = with_attributes(&seen.wire, &[("c", "d".to_owned())]);
        assert_eq!(PubsubMessage::decode(more).unwrap().attributes.len(), 2);
    }

    #[test]
    fn times_are_written_out() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000+00:00");
        assert_eq!(rfc3339(951_782_400_123_456_789), "2000-02-29T00:00:00.123+00:00");
        assert_eq!(rfc3339(1_796_045_696_000_000_000), "2026-11-30T13:34:56.000+00:00");
    }

    #[test]
    fn the_rules_for_messages_are_the_services() {
        let with = |change: fn(&mut PubsubMessage)| {
            let mut message = PubsubMessage { data: Bytes::from_static(b"x"), ..PubsubMessage::default() };
            change(&mut message);
            look(&encoded(&message)).err().unwrap_or_default()
        };
        assert_eq!(with(|_| ()), "");
        assert!(with(|m| m.data.clear()).contains("must have data"));
        assert!(with(|m| m.ordering_key = "k".repeat(1025)).contains("1024 bytes"));
        assert!(with(|m| _ = m.attributes.insert("k".repeat(257), String::new())).contains("256 bytes"));
        assert!(with(|m| _ = m.attributes.insert("k".to_owned(), "v".repeat(1025))).contains("1024 bytes"));
        assert!(with(|m| _ = m.attributes.insert("googx".to_owned(), String::new())).contains("goog"));
        assert!(with(|m| _ = m.attributes.insert(String::new(), String::new())).contains("empty"));
        assert!(
            with(|m| m.attributes = (0..101).map(|n| (n.to_string(), String::new())).collect())
                .contains("at most 100")
        );
    }
}
