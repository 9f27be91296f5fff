//! Dead letters as messages of a topic, and back: the record's bytes as data, the facts as attributes.
//!
//! | attribute | what |
//! |---|---|
//! | `millstream-stage`, `millstream-code`, `millstream-cause` | which step refused it, and why |
//! | `millstream-partition`, `millstream-offset`, `millstream-message-id`, `millstream-publish-time-ms` | where it came from |
//! | `millstream-table`, `millstream-topic` | where known |
//! | `millstream-sink` | the sink that refused the row, of the write stage |
//! | `millstream-attempt` | which delivery failed; 1 is the first |
//! | `millstream-key`, `millstream-key-base64` | the record's key; base64 where it is not UTF-8 |
//! | `millstream-empty` | there is no value, and the data is empty for that |
//! | anything else | the record's own headers |
//!
//! Letters are published before the checkpoint that counts them. After a crash they are published again: readers tell them by partition
//! and offset. A letter that no message can hold whole (headers or key above the limits of attributes, more than 10 MB) goes elsewhere.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::bytes::fnv1a;
use millstream_core::record::{Range, Slot};
use millstream_core::{Cause, CommitToken, DeadLetter, DeadLetters, Fut, Result, Stage};
use prost::Message;

use crate::admin;
use crate::client::Client;
use crate::config::{Connection, Create};
use crate::name::{SubscriptionName, TopicName};
use crate::publisher::{
    ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, ATTRIBUTES_MAX, MESSAGE_BYTES_MAX, Publisher,
};

const PREFIX: &str = "millstream-";
const KEY: &str = "millstream-key";
const KEY_BASE64: &str = "millstream-key-base64";
const EMPTY: &str = "millstream-empty";
const ATTEMPT: &str = "millstream-attempt";
const STAGE: &str = "millstream-stage";
const CODE: &str = "millstream-code";
/// The cause of a letter that a replay cannot help.
const NOT_REPLAYABLE: &str = "write_stage_not_replayable";
const PARTITION: &str = "millstream-partition";
const OFFSET: &str = "millstream-offset";
const TOPIC: &str = "millstream-topic";
const MESSAGE_ID: &str = "millstream-message-id";
const PUBLISH_TIME: &str = "millstream-publish-time-ms";

/// A topic for dead letters. Its token is that of the place for the others: messages cannot be taken back.
pub struct LetterTopic {
    client: Client,
    topic: TopicName,
    subscription: Option<SubscriptionName>,
    create: bool,
    publisher: Publisher,
    others: Box<dyn DeadLetters>,
}

impl LetterTopic {
    /// Letters to `topic`, and those that no message can hold to `others`; the topic and the subscription from which letters are
    /// replayed have to exist, or are made if `create` is set.
    ///
    /// # Errors
    /// If no credentials are found or the endpoint is no URL.
    pub fn new(
        connection: &Connection,
        topic: TopicName,
        subscription: Option<SubscriptionName>,
        create: bool,
        others: Box<dyn DeadLetters>,
    ) -> Result<Self> {
        let client = Client::new(connection, 1)?;
        let publisher = Publisher::new(client.clone(), topic.clone());
        Ok(Self { client, topic, subscription, create, publisher, others })
    }
}

/// The letter as a message; `None` if none can hold it whole.
fn message(letter: &DeadLetter) -> Option<pb::PubsubMessage> {
    let mut attributes = HashMap::new();
    for (name, value) in &letter.headers {
        let (name, value) = (std::str::from_utf8(name).ok()?, std::str::from_utf8(value).ok()?);
        let fits = !name.is_empty()
            && name.len() <= ATTRIBUTE_NAME_BYTES_MAX
            && value.len() <= ATTRIBUTE_VALUE_BYTES_MAX
            && !name.starts_with("goog")
            && !name.starts_with(PREFIX);
        if !fits || attributes.insert(name.to_owned(), value.to_owned()).is_some() {
            return None;
        }
    }
    let mut fact = |name: &str, value: &str| attributes.insert(name.to_owned(), cut(value).to_owned());
    fact(STAGE, letter.stage.name());
    fact(CODE, letter.cause.code);
    fact("millstream-cause", &letter.cause.text);
    fact(PARTITION, &letter.partition);
    fact(OFFSET, &letter.offset.to_string());
    fact(ATTEMPT, &letter.attempt.to_string());
    if let Some(table) = &letter.table {
        fact("millstream-table", table);
    }
    if let Some(sink) = &letter.sink {
        fact("millstream-sink", sink);
    }
    if let Some(topic) = &letter.topic {
        fact(TOPIC, &String::from_utf8_lossy(topic));
    }
    if let Some(id) = &letter.message_id {
        fact(MESSAGE_ID, &String::from_utf8_lossy(id));
    }
    if let Some(ms) = letter.publish_ts_ms {
        fact(PUBLISH_TIME, &ms.to_string());
    }
    if letter.value.is_none() {
        fact(EMPTY, "true");
    }
    if let Some(key) = &letter.key {
        let (name, text) = match std::str::from_utf8(key) {
            Ok(text) => (KEY, text.to_owned()),
            Err(_) => (KEY_BASE64, STANDARD.encode(key)),
        };
        if text.len() > ATTRIBUTE_VALUE_BYTES_MAX {
            return None;
        }
        fact(name, &text);
    }
    let data = letter.value.clone().unwrap_or_default().into();
    let message = pb::PubsubMessage { data, attributes, ..pb::PubsubMessage::default() };
    (message.attributes.len() <= ATTRIBUTES_MAX && message.encoded_len() <= MESSAGE_BYTES_MAX)
        .then_some(message)
}

/// At most as many bytes as an attribute takes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(ATTRIBUTE_VALUE_BYTES_MAX)]
}

/// Makes the records of letters from the messages of a subscription to their topic: key, headers, topic, message id, publish time and
/// attempts are theirs again. A letter that was published twice has one offset, so that even rows without a key come once. Letters of
/// the write stage become letters again: their events are in state, and would be dropped as duplicates. A message that Pub/Sub itself
/// put there stays as it is, but for the attributes that Pub/Sub added.
pub fn restore(slots: &mut [Slot], buffer: &mut Vec<u8>) {
    for slot in slots {
        restore_slot(slot, buffer);
    }
}

fn restore_slot(slot: &mut Slot, buffer: &mut Vec<u8>) {
    let bytes = |range: Range| range.start as usize..(range.start + range.len) as usize;
    // Its own topic is that of letters, which tells no table.
    slot.topic = None;
    let mut own = Vec::new();
    let mut place = Vec::new();
    for (name, value) in std::mem::take(&mut slot.headers) {
        let name_text = String::from_utf8_lossy(&buffer[bytes(name)]).into_owned();
        let text = || std::str::from_utf8(&buffer[bytes(value)]).unwrap_or_default();
        match &*name_text {
            KEY => slot.key = Some(value),
            KEY_BASE64 => {
                if let Ok(key) = STANDARD.decode(text()) {
                    let start = buffer.len() as u32;
                    buffer.extend_from_slice(&key);
                    slot.key = Some(Range { start, len: key.len() as u32 });
                }
            }
            ATTEMPT => slot.failures = text().parse().unwrap_or(1),
            TOPIC => slot.topic = Some(value),
            MESSAGE_ID => slot.message_id = Some(value),
            PUBLISH_TIME => slot.publish_ts_ms = text().parse().ok().or(slot.publish_ts_ms),
            // Or of a replay of one, which has the stage of its refusal.
            STAGE | CODE if text() == Stage::Write.name() || text() == NOT_REPLAYABLE => {
                let text = "the sink refused this row before, and its event is known to the keyed state: a replay would drop it";
                slot.broken = Some(Cause::new(NOT_REPLAYABLE, text));
            }
            PARTITION | OFFSET => place.extend_from_slice(&buffer[bytes(value)]),
            name if name.starts_with(PREFIX) || name.starts_with("CloudPubSubDeadLetter") => {}
            _ => own.push((name, value)),
        }
    }
    if !place.is_empty() {
        slot.offset = fnv1a(&place);
    }
    slot.headers = own;
}

impl DeadLetters for LetterTopic {
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            if self.create {
                let create = Create::of_topic(self.topic.clone(), self.subscription.as_slice().len());
                admin::create_topic(&self.client, &self.topic).await?;
                admin::create(&self.client, self.subscription.as_slice(), &create).await?;
            } else {
                admin::need_topic(&self.client, &self.topic).await.map_err(|e| e.at("dead letters"))?;
                if let Some(subscription) = &self.subscription {
                    let needed = admin::need_subscription(&self.client, subscription).await;
                    needed.map_err(|e| e.at("dead letters"))?;
                }
            }
            self.others.recover(last).await
        })
    }

    fn write<'a>(&'a mut self, letters: &'a [DeadLetter]) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            for letter in letters {
                match message(letter) {
                    Some(message) => self.publisher.add(message).await?,
                    None => self.others.write(std::slice::from_ref(letter)).await?,
                }
            }
            Ok(())
        })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async move {
            self.publisher.publish().await?;
            self.others.prepare().await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::record_of;
    use millstream_core::record::Body;

    fn letter(key: &[u8], value: Option<&[u8]>) -> DeadLetter {
        DeadLetter {
            stage: Stage::Parse,
            cause: Cause::new("invalid_json", "é".repeat(2000)),
            table: Some("public.orders".into()),
            sink: None,
            value: value.map(<[u8]>::to_vec),
            key: Some(key.to_vec()),
            headers: vec![(b"h".to_vec(), b"1".to_vec())],
            topic: None,
            partition: "projects/p/subscriptions/s".into(),
            offset: 7,
            message_id: Some(b"7".to_vec()),
            publish_ts_ms: Some(5),
            attempt: 2,
        }
    }

    #[test]
    fn a_letter_comes_back_as_its_record() {
        for (key, value) in [(&b"{\"id\":1}"[..], Some(&b"\xff{"[..])), (b"\xfe", None)] {
            let message = message(&letter(key, value)).unwrap();
            assert!(message.attributes.values().all(|v| v.len() <= ATTRIBUTE_VALUE_BYTES_MAX));
            let mut batch = record_of(&message);
            restore(&mut batch.slots, &mut batch.buffer);
            let record = batch.records().next().unwrap();
            assert_eq!(record.key(), Some(key));
            assert_eq!(record.body(), value.map_or(Body::Tombstone, Body::Value));
            assert_eq!(record.headers().map(|h| h.name).collect::<Vec<_>>(), [b"h"]);
            assert_eq!(record.topic(), None, "that of letters tells no table");
            assert_eq!((record.message_id(), record.publish_ts_ms()), (Some(&b"7"[..]), Some(5)));
            assert_eq!(batch.slots[0].failures, 2);
            let offset = batch.slots[0].offset;
            let mut again = record_of(&pb::PubsubMessage { message_id: "another".into(), ..message });
            restore(&mut again.slots, &mut again.buffer);
            assert_eq!(again.slots[0].offset, offset, "a letter that was published twice is one");
        }
    }

    /// A replay of the topic took refused rows too: they were dropped as duplicates, and acknowledged, and were gone.
    #[test]
    fn a_letter_of_the_write_stage_stays_a_letter() {
        let refused = DeadLetter {
            stage: Stage::Write,
            topic: Some(b"db.public.t".to_vec()),
            ..letter(b"k", Some(b"v"))
        };
        let mut batch = record_of(&message(&refused).unwrap());
        restore(&mut batch.slots, &mut batch.buffer);
        let record = batch.records().next().unwrap();
        assert!(
            matches!(record.body(), Body::Broken(b"v", cause) if cause.code == "write_stage_not_replayable")
        );
        assert_eq!(record.topic(), Some(&b"db.public.t"[..]));
        // The letter that comes of it is refused where records are read, and must stay one in the next replay too.
        let again = DeadLetter { cause: Cause::new(NOT_REPLAYABLE, ""), ..letter(b"k", Some(b"v")) };
        let mut batch = record_of(&message(&again).unwrap());
        restore(&mut batch.slots, &mut batch.buffer);
        assert!(batch.slots[0].broken.is_some());
    }

    #[test]
    fn what_attributes_cannot_hold_does_not_fit() {
        let fits = |letter: &DeadLetter| message(letter).is_some();
        assert!(fits(&letter(b"k", Some(b"v"))));
        assert!(!fits(&letter(&[b'k'; 1025], Some(b"v"))));
        assert!(!fits(&letter(b"k", Some(&vec![b'v'; 10_000_000]))));
        let twice = DeadLetter {
            headers: vec![(b"h".to_vec(), vec![]), (b"h".to_vec(), vec![])],
            ..letter(b"k", None)
        };
        assert!(!fits(&twice));
    }
}
