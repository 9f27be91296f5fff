//! A dead letter as one line of JSON.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use millstream_core::{DeadLetter, Stage};
use serde::{Deserialize, Serialize};

use super::STAGES;

/// Names a letter: its stage and its number there, from 1, e.g. `parse-17`. Never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LetterId {
    pub(crate) stage: Stage,
    pub(crate) number: u64,
}

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stage.name(), self.number)
    }
}

impl FromStr for LetterId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` names no letter; ids look like `parse-17`");
        let (stage, number) = text.rsplit_once('-').ok_or_else(wrong)?;
        let stage = STAGES.into_iter().find(|s| s.name() == stage).ok_or_else(wrong)?;
        let number = number.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
        Ok(Self { stage, number })
    }
}

/// Text, or the base64 of bytes that are not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Payload {
    Text(String),
    Binary { base64: String },
}

impl Payload {
    /// Of bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Binary { base64: STANDARD.encode(bytes) },
        }
    }

    /// The bytes; `None` if the base64 was damaged.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.as_bytes().to_vec()),
            Self::Binary { base64 } => STANDARD.decode(base64).ok(),
        }
    }
}

/// A header or attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LetterHeader {
    pub(crate) name: Payload,
    pub(crate) value: Payload,
}

/// A dead letter as it is written. Members that are absent were absent in the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Letter {
    /// Its [`LetterId`].
    pub(crate) id: String,
    /// When it was written, ISO 8601, UTC.
    pub(crate) time: String,
    pub(crate) stage: String,
    /// The cause's code.
    pub(crate) code: String,
    /// The cause for people.
    pub(crate) cause: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) table: Option<String>,
    /// The sink that refused the row, of the write stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sink: Option<String>,
    /// The file or subscription it came from; for a replayed letter `dead-letters/<stage>`.
    pub(crate) partition: String,
    /// Its byte offset there, or a number derived from its message id; for a replayed letter its number.
    pub(crate) offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message_id: Option<Payload>,
    /// When the broker took it, ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) publish_ts_ms: Option<i64>,
    /// Which delivery failed, from 1.
    pub(crate) attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) topic: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<Payload>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<Payload>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<LetterHeader>,
}

impl Letter {
    /// `dead` under the name `id`, written at `time`.
    pub(crate) fn of(dead: &DeadLetter, id: LetterId, time: String) -> Self {
        let payload = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(Payload::of);
        let header = |(name, value): &(Vec<u8>, Vec<u8>)| LetterHeader {
            name: Payload::of(name),
            value: Payload::of(value),
        };
        Self {
            id: id.to_string(),
            time,
            stage: dead.stage.name().to_owned(),
            code: dead.cause.code.to_owned(),
            cause: dead.cause.text.clone(),
            table: dead.table.clone(),
            sink: dead.sink.clone(),
            partition: dead.partition.clone(),
            offset: dead.offset,
            message_id: payload(&dead.message_id),
            publish_ts_ms: dead.publish_ts_ms,
            attempt: dead.attempt,
            topic: payload(&dead.topic),
            key: payload(&dead.key),
            value: payload(&dead.value),
            headers: dead.headers.iter().map(header).collect(),
        }
    }

    /// Whether there is who takes it: a letter of a refused row is for the sink that refused it.
    pub(crate) fn has_taker(&self, is_sink: impl Fn(&str) -> bool) -> bool {
        match &self.sink {
            Some(sink) => is_sink(sink),
            // Written before letters named their sink.
            None => self.stage != Stage::Write.name(),
        }
    }

    /// Its id; `None` if the line was damaged.
    pub(crate) fn letter_id(&self) -> Option<LetterId> {
        self.id.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_shown() {
        let id = LetterId { stage: Stage::Validate, number: 17 };
        assert_eq!(id.to_string(), "validate-17");
        assert_eq!("validate-17".parse(), Ok(id));
        for wrong in ["", "17", "parse", "parse-", "parse-0", "parse--1", "pars-1", "parse-x"] {
            assert!(wrong.parse::<LetterId>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_that_are_not_text_come_back() {
        let bytes = [0xff, 0x00, b'a'];
        let payload = Payload::of(&bytes);
        let json = serde_json::to_string(&payload).unwrap();
        assert_eq!(json, r#"{"base64":"/wBh"}"#);
        assert_eq!(serde_json::from_str::<Payload>(&json).unwrap().bytes().unwrap(), bytes);
        assert_eq!(serde_json::to_string(&Payload::of("grüße\n".as_bytes())).unwrap(), r#""grüße\n""#);
    }
}
