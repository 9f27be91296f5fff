//! Publishes messages in rounds: what was added since the last round goes out at once, in requests of one ordering key each.
//!
//! Within a key the order of adding is the order of publishing: a key's requests follow each other, and the next round waits for the
//! last. A request whose answer was lost is sent again, so that a message can be published twice.

use std::collections::HashMap;
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
}

impl Publisher {
    /// A publisher that has nothing to publish yet.
    pub fn new(client: Client, topic: TopicName) -> Self {
        Self { client, topic, added: HashMap::new(), messages: 0, bytes: 0 }
    }

    /// Adds a message to the round; publishes the round if it has become large.
    ///
    /// # Errors
    /// If publishing fails for good, or for a minute. What was published of the round stays published.
    pub async fn add(&mut self, message: impl Into<pb::PubsubMessage>) -> Result<()> {
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
        let mut requests = JoinSet::new();
        for (key, messages) in std::mem::take(&mut self.added) {
            let mut chunks = chunks(messages);
            let ordered = !key.is_empty();
            while !chunks.is_empty() {
                // The requests of a key follow each other; those without a key need not.
                let these = if ordered { std::mem::take(&mut chunks) } else { vec![chunks.remove(0)] };
                while requests.len() >= REQUESTS_AT_A_TIME {
                    done(requests.join_next().await)?;
                }
                let (client, topic) = (self.client.clone(), self.topic.clone());
                requests.spawn(async move {
                    for messages in these {
                        send(&client, &topic, messages).await?;
                    }
                    Ok(())
                });
            }
        }
        (self.messages, self.bytes) = (0, 0);
        while !requests.is_empty() {
            done(requests.join_next().await)?;
        }
        Ok(())
    }
}

fn done(ended: Option<Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    match ended {
        None => Ok(()),
        Some(Ok(sent)) => sent,
        // The runtime ends, and whoever waits with it.
        Some(Err(ended)) if ended.is_cancelled() => {
            Err(Error::transient("publishing was cut short: the run ended"))
        }
        Some(Err(panic)) => {
            Err(Error::fatal("publishing panicked: please report this as a bug").with_source(panic))
        }
    }
}

async fn send(client: &Client, topic: &TopicName, messages: Vec<pb::PubsubMessage>) -> Result<()> {
    let call = Call { what: "publish to", resource: topic.path(), role: PUBLISHER };
    let message = pb::PublishRequest { topic: topic.path().to_owned(), messages };
    let mut backoff = Backoff::new();
    let began = Instant::now();
    loop {
        let Err(status) = try_send(client, topic, message.clone()).await else { return Ok(()) };
        if !is_retryable(status.code()) || began.elapsed() > PATIENCE {
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
