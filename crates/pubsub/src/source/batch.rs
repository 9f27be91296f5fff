//! Messages as records.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::record::{Range, Slot};
use millstream_core::{Budget, PartitionId};

use super::{Delivery, publish_ts_ms};

/// Attribute under which an ordering key that is no record key is kept.
const ORDERING_KEY: &str = "ordering_key";

/// Records under construction.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) buffer: Vec<u8>,
    pub(super) slots: Vec<Slot>,
    topic: Range,
}

impl Records {
    /// None yet, of a topic, with room for about so many bytes.
    pub(super) fn of_topic(topic: &str, bytes: usize) -> Self {
        let mut records = Self { buffer: Vec::with_capacity(topic.len() + bytes), ..Self::default() };
        records.topic = records.put(topic.as_bytes());
        records
    }

    /// Whether the data of the delivery's next message fits into the budget. The first of a batch always does.
    pub(super) fn has_room(&self, delivery: &Delivery, budget: Budget) -> bool {
        let next = delivery.messages.as_slice().first().and_then(|received| received.message.as_ref());
        let next = next.map_or(0, |message| message.data.len());
        self.slots.is_empty() || self.buffer.len() + next <= budget.bytes
    }

    /// Adds a message. One without data has no value: a tombstone, whatever its attributes say.
    pub(super) fn push(&mut self, received: &pb::ReceivedMessage) {
        let Some(message) = &received.message else {
            // A delivery without a message: a record without anything.
            return self.slots.push(Slot::default());
        };
        let value = (!message.data.is_empty()).then(|| self.put(&message.data));
        let key = is_key(&message.ordering_key).then(|| self.put(message.ordering_key.as_bytes()));
        let mut headers = Vec::new();
        if !message.attributes.is_empty() {
            let mut attributes: Vec<_> = message.attributes.iter().collect();
            // The map has no order, and dead letters should not differ from run to run.
            attributes.sort_unstable();
            headers = attributes.into_iter().map(|(n, v)| self.header(n, v)).collect();
        }
        if key.is_none() && !message.ordering_key.is_empty() {
            headers.push(self.header(ORDERING_KEY, &message.ordering_key));
        }
        let message_id = Some(self.put(message.message_id.as_bytes()));
        self.slots.push(Slot {
            value,
            key,
            headers,
            topic: Some(self.topic),
            offset: offset_of(&message.message_id),
            message_id,
            publish_ts_ms: publish_ts_ms(received),
            delivery_attempt: u32::try_from(received.delivery_attempt).ok().filter(|attempt| *attempt > 0),
            ..Slot::default()
        });
    }

    fn header(&mut self, name: &str, value: &str) -> (Range, Range) {
        (self.put(name.as_bytes()), self.put(value.as_bytes()))
    }

    fn put(&mut self, bytes: &[u8]) -> Range {
        let start = self.buffer.len() as u32;
        self.buffer.extend_from_slice(bytes);
        Range { start, len: bytes.len() as u32 }
    }
}

/// Debezium's keys are JSON objects; it publishes rows without a key under the text `default`.
fn is_key(ordering_key: &str) -> bool {
    ordering_key.trim_ascii_start().starts_with('{')
}

/// The service's ids are decimal numbers; those of other servers become their hash.
fn offset_of(message_id: &str) -> u64 {
    message_id.parse().unwrap_or_else(|_| PartitionId::new(message_id).stable_hash())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::record::Body;
    use millstream_core::{Position, RecordBatch};

    fn batch(messages: &[pb::PubsubMessage]) -> RecordBatch {
        let mut records = Records::of_topic("orders", 0);
        for message in messages {
            let received = pb::ReceivedMessage {
                message: Some(message.clone()),
                delivery_attempt: 3,
                ..Default::default()
            };
            records.push(&received);
        }
        let Records { buffer, slots, .. } = records;
        RecordBatch { partition: PartitionId::new("s"), buffer, slots, position: Position::default() }
    }

    #[test]
    fn keys_values_and_attributes() {
        let message = pb::PubsubMessage {
            data: "{}".into(),
            attributes: [("b", "2"), ("a", "1")].map(|(n, v)| (n.to_owned(), v.to_owned())).into(),
            message_id: "17".into(),
            publish_time: Some(prost_types::Timestamp { seconds: 2, nanos: 5_000_000 }),
            ordering_key: r#"{"id":1}"#.into(),
        };
        let keyless = pb::PubsubMessage { ordering_key: "default".into(), ..message.clone() };
        let empty = pb::PubsubMessage { data: "".into(), message_id: "m1".into(), ..message.clone() };
        let batch = batch(&[message, keyless, empty]);
        let records: Vec<_> = batch.records().collect();
        assert_eq!(records[0].body(), Body::Value(b"{}"));
        assert!(records.iter().all(|r| r.topic() == Some(b"orders")));
        assert_eq!(records[0].key(), Some(&br#"{"id":1}"#[..]));
        assert_eq!(records[0].headers().map(|h| h.name).collect::<Vec<_>>(), [b"a", b"b"]);
        assert_eq!((records[0].offset(), records[0].publish_ts_ms()), (17, Some(2005)));
        assert_eq!((records[0].message_id(), records[0].delivery_attempt()), (Some(&b"17"[..]), Some(3)));
        assert_eq!(records[1].key(), None);
        let last = records[1].headers().last().unwrap();
        assert_eq!((last.name, last.value), (&b"ordering_key"[..], &b"default"[..]));
        assert_eq!(records[2].body(), Body::Tombstone);
        assert_ne!(records[2].offset(), 0);
    }
}
