//! Publishes records of the corpus as Debezium Server does.

use std::collections::{BTreeSet, HashMap};
use std::error::Error as _;
use std::time::{Duration, Instant};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use pb::publisher_client::PublisherClient;
use pb::subscriber_client::SubscriberClient;
use serde_json::Value as Json;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

/// Longer than anything should take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
const PROJECT: &str = "projects/truth";
/// How often a call is refused before that is believed.
const REFUSALS_MAX: usize = 20;

/// The message that Debezium Server makes of a record: the value as data, the key as ordering key, headers as attributes.
fn message(line: &str) -> pb::PubsubMessage {
    let record: Json = serde_json::from_str(line).unwrap();
    let text = |value: &Json| value.as_str().map(str::to_owned).unwrap_or_default();
    let headers = record["headers"].as_array().into_iter().flatten();
    let mut attributes: HashMap<String, String> =
        headers.map(|header| (text(&header["key"]), text(&header["value"]))).collect();
    let data = text(&record["value"]);
    if data.is_empty() && attributes.is_empty() {
        // Pub/Sub takes no message without both: a tombstone has to say something.
        attributes.insert("tombstone".to_owned(), "true".to_owned());
    }
    let ordering_key = text(&record["key"]);
    pb::PubsubMessage {
        data: data.into_bytes().into(),
        attributes,
        ordering_key,
        ..pb::PubsubMessage::default()
    }
}

/// The topic that Debezium chose for a record; heartbeats' begin with what Pub/Sub refuses.
fn topic_of(line: &str) -> String {
    let record: Json = serde_json::from_str(line).unwrap();
    let topic = record["topic"].as_str().unwrap_or("changes");
    if topic.starts_with(|c: char| c.is_ascii_alphabetic()) { topic.to_owned() } else { format!("t{topic}") }
}

/// All topics of records.
pub(crate) fn topics(lines: &[String]) -> BTreeSet<String> {
    lines.iter().map(|line| topic_of(line)).collect()
}

/// A publisher that does not give up.
pub(crate) struct Publisher {
    runtime: Runtime,
    address: String,
}

impl Publisher {
    pub(crate) fn new(address: String) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, address }
    }

    fn channel(&self) -> Channel {
        let _inside = self.runtime.enter();
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect_lazy()
    }

    /// Makes a topic and its subscription.
    pub(crate) fn make(&self, topic: &str, exactly_once: bool) {
        let channel = self.channel();
        let name = format!("{PROJECT}/topics/{topic}");
        let subscription = pb::Subscription {
            name: format!("{PROJECT}/subscriptions/{topic}-sub"),
            topic: name.clone(),
            // Google's own fake knows no default.
            ack_deadline_seconds: 10,
            enable_exactly_once_delivery: exactly_once,
            ..pb::Subscription::default()
        };
        self.until_it_works(async || {
            let topic = pb::Topic { name: name.clone(), ..pb::Topic::default() };
            there(PublisherClient::new(channel.clone()).create_topic(topic).await)?;
            there(SubscriberClient::new(channel.clone()).create_subscription(subscription.clone()).await)
        });
    }

    /// Publishes lines in requests of one key; a request that fails is sent again, so that some messages come twice.
    pub(crate) fn publish(&self, lines: &[String]) {
        let channel = self.channel();
        let messages: Vec<_> = lines.iter().map(|line| (topic_of(line), message(line))).collect();
        let together = |a: &(String, pb::PubsubMessage), b: &(String, pb::PubsubMessage)| {
            a.0 == b.0 && a.1.ordering_key == b.1.ordering_key
        };
        for chunk in messages.chunk_by(together) {
            let messages = chunk.iter().map(|(_, message)| message.clone()).collect();
            let request = pb::PublishRequest { topic: format!("{PROJECT}/topics/{}", chunk[0].0), messages };
            self.until_it_works(async || {
                PublisherClient::new(channel.clone()).publish(request.clone()).await.map(|_| ())
            });
        }
    }

    fn until_it_works(&self, call: impl AsyncFn() -> Result<(), tonic::Status>) {
        let began = Instant::now();
        let mut refused = 0;
        while let Err(status) = self.runtime.block_on(call()) {
            // A server that is away, or a connection that broke. A server that gives another answer may mean it: it was asked for
            // minutes on end whether a subscription without a deadline is really refused.
            let passes = status.code() == tonic::Code::Unavailable || status.source().is_some();
            refused += usize::from(!passes);
            assert!(refused < REFUSALS_MAX && began.elapsed() < PATIENCE, "{status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn there<T>(made: Result<T, tonic::Status>) -> Result<(), tonic::Status> {
    match made {
        Err(status) if status.code() != tonic::Code::AlreadyExists => Err(status),
        _ => Ok(()),
    }
}
