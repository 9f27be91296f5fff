//! The way of messages through the broker: publishing, forwarding dead letters, and being done with them.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use tonic::Status;

use super::backlog::Letter;
use super::broker::{Broker, durable};
use super::message::{self, BYTES_MAX};
use super::names;
use super::record::{self, Finished, Published, Record};
use super::status;
use super::subscription::Subscription;
use super::topic::Topic;

/// A publish request's most messages.
const MESSAGES_MAX: usize = 1000;

impl Broker {
    /// Publishes a request's messages; the first id.
    pub(crate) async fn publish(
        &self,
        name: &str,
        messages: Vec<Bytes>,
        bytes: usize,
    ) -> Result<u64, Status> {
        let topic = self.topic(name)?;
        if messages.is_empty() {
            return Err(status::invalid("The request has no messages."));
        }
        if messages.len() > MESSAGES_MAX {
            let count = messages.len();
            return Err(status::invalid(format!(
                "A request has at most {MESSAGES_MAX} messages; this one has {count}."
            )));
        }
        if bytes > BYTES_MAX {
            return Err(status::invalid(format!(
                "A request has at most {BYTES_MAX} bytes; this one has {bytes}."
            )));
        }
        let mut key: Option<Bytes> = None;
        let mut wires = Vec::with_capacity(messages.len());
        for wire in &messages {
            let seen = message::look(wire).map_err(status::invalid)?;
            if *key.get_or_insert_with(|| seen.key.clone()) != seen.key {
                return Err(status::invalid(
                    "All messages of a publish request must have the same ordering key.",
                ));
            }
            wires.push(seen.wire);
        }
        self.hand_out(&topic, wires, &key.unwrap_or_default()).await
    }

    async fn hand_out(&self, topic: &Topic, wires: Vec<Bytes>, key: &Bytes) -> Result<u64, Status> {
        let count = wires.len() as u64;
        let bytes = wires.iter().map(|wire| wire.len() + 8).sum();
        let room = self.room(bytes).await?;
        let journal =
            |published: Published, wires: Vec<Bytes>| self.write(room, || Record::Publish(published, wires));
        let (first, pending) = topic.publish(wires, key, &self.next_id, &self.clock, journal)?;
        self.published.fetch_add(count, Ordering::Relaxed);
        durable(pending).await?;
        Ok(first)
    }

    /// Does what a change of a backlog asks for.
    pub(crate) async fn settle(&self, subscription: &Subscription) -> Result<(), Status> {
        let effects = subscription.backlog().take_effects();
        if effects.wake {
            subscription.wake();
        }
        self.finish(subscription, effects.finished).await?;
        if effects.letters.is_empty() {
            return Ok(());
        }
        let config = subscription.config();
        let policy = config.dead_letter_policy.as_ref();
        let topic = policy.and_then(|policy| self.topic(&policy.dead_letter_topic).ok());
        for letter in effects.letters {
            let published = match &topic {
                Some(topic) => self.forward(&config.name, topic, &letter).await,
                None => false,
            };
            subscription.backlog().forwarded(letter.place, published, self.clock.now());
        }
        // Being rid of a letter may free its key, and makes no further letters.
        let effects = subscription.backlog().take_effects();
        if effects.wake {
            subscription.wake();
        }
        self.finish(subscription, effects.finished).await
    }

    async fn forward(&self, subscription: &str, topic: &Topic, letter: &Letter) -> bool {
        let time = message::rfc3339(letter.published);
        let more = [
            ("CloudPubSubDeadLetterSourceDeliveryCount", letter.attempts.to_string()),
            ("CloudPubSubDeadLetterSourceSubscription", names::id(subscription).to_owned()),
            ("CloudPubSubDeadLetterSourceSubscriptionProject", names::project(subscription).to_owned()),
            ("CloudPubSubDeadLetterSourceTopicPublishTime", time),
        ];
        let wire = message::with_attributes(&letter.wire, &more);
        let key = message::ordering_key(&wire);
        self.hand_out(topic, vec![wire], &key).await.is_ok()
    }

    /// Tells the journal what a subscription is done with. With exactly-once delivery an ack is only confirmed once it
    /// cannot be forgotten; otherwise a lost ack is but one more delivery.
    async fn finish(&self, subscription: &Subscription, ids: Vec<u64>) -> Result<(), Status> {
        let Some(journal) = self.journal().filter(|_| !ids.is_empty()) else { return Ok(()) };
        let record = Record::Finish(Finished { tag: subscription.tag, runs: record::runs(&ids) });
        let permit = journal.room(record.size()).await?;
        if subscription.properties().exactly_once_delivery_enabled {
            durable(Some(journal.write(record, permit))).await
        } else {
            journal.note(record, permit);
            Ok(())
        }
    }
}
