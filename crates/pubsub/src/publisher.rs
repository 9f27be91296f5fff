//! Publishes messages in rounds: what was added since the last round goes out at once, in requests of one ordering key each.
//!
//! Within a key the order of adding is the order of publishing: a key's requests follow each other, and the next round waits for the
//! last. A request whose answer was lost is sent again, so that a message can be published twice.
//!
//! A round that fails sends nothing more: what is on its way is waited for, no key's later requests follow the one that failed, and the
//! publisher takes nothing more. What it had comes again from the last checkpoint, to another publisher and in the same order. So
//! messages of a key may come twice, from some message on, but none is left out and none overtakes another.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::{Error, Result};
use prost::Message as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::backoff::Backoff;
use crate::client::Client;
use crate::failure::{Call, PUBLISHER, is_retryable};
use crate::name::TopicName;

/// Messages of a request; the service's limit.
const MESSAGES_PER_REQUEST: usize = 1000;
/// Bytes of a request; the service takes 10 MB.
const BYTES_PER_REQUEST: usize = 9_500_000;
/// A larger message is refused by the service.
pub(crate) const MESSAGE_BYTES_MAX: usize = 9_900_000;
/// A longer ordering key is refused by the service.
pub(crate) const ORDERING_KEY_BYTES_MAX: usize = 1024;
/// Of names of attributes.
pub(crate) const ATTRIBUTE_NAME_BYTES_MAX: usize = 256;
/// Of values of attributes.
pub(crate) const ATTRIBUTE_VALUE_BYTES_MAX: usize = 1024;
/// Of a message.
pub(crate) const ATTRIBUTES_MAX: usize = 100;
/// Requests on their way at a time.
const REQUESTS_AT_A_TIME: usize = 32;
/// A round begins by itself when so much was added.
const ROUND_MESSAGES: usize = 20_000;
const ROUND_BYTES: usize = 16 << 20;
/// How long a request is tried.
const PATIENCE: Duration = Duration::from_secs(60);

/// A message to publish.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    /// Its data.
    pub data: Vec<u8>,
    /// Its ordering key; empty for none. At most 1 KiB.
    pub ordering_key: String,
    /// Its attributes, by name; a name that comes twice keeps its last value.
    pub attributes: Vec<(String, String)>,
}

impl From<Message> for pb::PubsubMessage {
    fn from(message: Message) -> Self {
        let Message { data, ordering_key, attributes } = message;
        Self {
            data: data.into(),
            ordering_key,
            attributes: attributes.into_iter().collect(),
            ..Self::default()
        }
    }
}

/// Publishes to one topic.
pub struct Publisher {
    client: Client,
    topic: TopicName,
    /// By ordering key, in the order of adding.
    added: HashMap<String, Vec<pb::PubsubMessage>>,
    messages: usize,
    bytes: usize,
    /// A round failed, or whoever waited for it went away: some of what was added may not be published.
    is_broken: bool,
}

impl Publisher {
    /// A publisher that has nothing to publish yet.
    pub fn new(client: Client, topic: TopicName) -> Self {
        Self { client, topic, added: HashMap::new(), messages: 0, bytes: 0, is_broken: false }
    }

    /// Adds a message to the round; publishes the round if it has become large.
    ///
    /// # Errors
    /// If publishing fails for good, or for a minute. What was published of the round stays published; this publisher takes nothing
    /// more, as later messages of a key would overtake those that are missing.
    pub async fn add(&mut self, message: impl Into<pb::PubsubMessage>) -> Result<()> {
        self.refuse_if_broken()?;
        let message = message.into();
        self.messages += 1;
        self.bytes += message.encoded_len();
        match self.added.get_mut(&message.ordering_key) {
            Some(of_key) => of_key.push(message),
            None => {
                self.added.insert(message.ordering_key.clone(), vec![message]);
            }
        }
        if self.messages >= ROUND_MESSAGES || self.bytes >= ROUND_BYTES {
            self.publish().await?;
        }
        Ok(())
    }

    /// Publishes everything that was added and waits until the service has it all.
    ///
    /// # Errors
    /// Like [`add`](Self::add).
    pub async fn publish(&mut self) -> Result<()> {
        self.refuse_if_broken()?;
        self.is_broken = true;
        let round = Round::new(self.client.clone(), self.topic.clone());
        (self.messages, self.bytes) = (0, 0);
        round.publish(std::mem::take(&mut self.added)).await?;
        self.is_broken = false;
        Ok(())
    }

    fn refuse_if_broken(&self) -> Result<()> {
        if self.is_broken {
            return Err(Error::fatal(format!(
                "publishing to {} failed before: what was not published comes again from the last checkpoint",
                self.topic
            )));
        }
        Ok(())
    }
}

/// One round.
struct Round {
    client: Client,
    topic: TopicName,
    /// The first failure; from then on nothing more is sent.
    failed: Arc<OnceLock<Error>>,
    /// Each sends its messages one request after another.
    senders: JoinSet<()>,
}

impl Round {
    fn new(client: Client, topic: TopicName) -> Self {
        Self { client, topic, failed: Arc::default(), senders: JoinSet::new() }
    }

    async fn publish(mut self, added: HashMap<String, Vec<pb::PubsubMessage>>) -> Result<()> {
        for (key, messages) in added {
            let chunks = chunks(messages);
            // The requests of a key follow each other; those without a key need not.
            if key.is_empty() {
                for chunk in chunks {
                    self.start(vec![chunk]).await;
                }
            } else {
                self.start(chunks).await;
            }
        }
        // Also after a failure: what is still on its way would come to lie among what the next publisher sends.
        while let Some(ended) = self.senders.join_next().await {
            self.note(ended);
        }
        if self.failed.get().is_none() {
            return Ok(());
        }
        let error = Arc::into_inner(self.failed).and_then(OnceLock::into_inner);
        // Whoever else holds it, the round failed.
        Err(error.unwrap_or_else(|| Error::transient("publishing failed")))
    }

    /// Waits for its turn.
    async fn start(&mut self, requests: Vec<Vec<pb::PubsubMessage>>) {
        while self.senders.len() >= REQUESTS_AT_A_TIME {
            if let Some(ended) = self.senders.join_next().await {
                self.note(ended);
            }
        }
        let (client, topic, failed) = (self.client.clone(), self.topic.clone(), self.failed.clone());
        self.senders.spawn(async move {
            for messages in requests {
                if failed.get().is_some() {
                    return;
                }
                if let Err(error) = send(&client, &topic, messages, &failed).await {
                    // Only the first is told: the others may have ended for its sake.
                    let _ = failed.set(error);
                }
            }
        });
    }

    fn note(&self, ended: Result<(), tokio::task::JoinError>) {
        let Err(ended) = ended else { return };
        let error = if ended.is_cancelled() {
            // The runtime ends, and whoever waits with it.
            Error::transient("publishing was cut short: the run ended")
        } else {
            Error::fatal("publishing panicked: please report this as a bug").with_source(ended)
        };
        let _ = self.failed.set(error);
    }
}

async fn send(
    client: &Client,
    topic: &TopicName,
    messages: Vec<pb::PubsubMessage>,
    failed: &OnceLock<Error>,
) -> Result<()> {
    let call = Call { what: "publish to", resource: topic.path(), role: PUBLISHER };
    let message = pb::PublishRequest { topic: topic.path().to_owned(), messages };
    let mut backoff = Backoff::new();
    let began = Instant::now();
    loop {
        let Err(status) = try_send(client, topic, message.clone()).await else { return Ok(()) };
        if !is_retryable(status.code()) || began.elapsed() > PATIENCE || failed.get().is_some() {
            return Err(call.error(&status));
        }
        tracing::debug!("{}; trying again", call.error(&status));
        sleep(backoff.wait()).await;
    }
}

async fn try_send(client: &Client, topic: &TopicName, message: pb::PublishRequest) -> Result<(), Status> {
    let request = client.request(message, "topic", topic.path()).await?;
    client.publisher().publish(request).await.map(|_| ())
}

/// Messages in requests of bounded size, in order.
fn chunks(messages: Vec<pb::PubsubMessage>) -> Vec<Vec<pb::PubsubMessage>> {
    let mut chunks = Vec::new();
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    for message in messages {
        let len = message.encoded_len();
        if chunk.len() == MESSAGES_PER_REQUEST || (bytes + len > BYTES_PER_REQUEST && !chunk.is_empty()) {
            chunks.push(std::mem::take(&mut chunk));
            bytes = 0;
        }
        bytes += len;
        chunk.push(message);
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> pb::PubsubMessage {
        pb::PubsubMessage { data: vec![b'x'; bytes].into(), ..pb::PubsubMessage::default() }
    }

    #[test]
    fn requests_are_bounded() {
        let many = chunks(vec![message(10); 2500]);
        assert_eq!(many.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 500]);
        let large = chunks(vec![message(4_000_000); 5]);
        assert_eq!(large.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(chunks(vec![message(9_800_000)]).len(), 1);
        assert!(chunks(Vec::new()).is_empty());
    }
}
