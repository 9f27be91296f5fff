//! An emulator with a topic, a subscription, a publisher and sources.

use std::time::{Duration, Instant};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::{Budget, Next, RecordBatch, Source};
use millstream_emulator::pubsub::{Counts, Running, Server};
use millstream_pubsub::{Connection, PubsubConfig, PubsubSource, SubscriptionName, TopicName};
use pb::publisher_client::PublisherClient;
use pb::subscriber_client::SubscriberClient;
use tonic::transport::Channel;

pub(crate) const TOPIC: &str = "projects/p/topics/orders";
pub(crate) const SUBSCRIPTION: &str = "projects/p/subscriptions/orders-sub";
pub(crate) const BUDGET: Budget = Budget { records: 10_000, bytes: 1 << 20 };
/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) server: Running,
    pub(crate) publisher: PublisherClient<Channel>,
    pub(crate) subscriber: SubscriberClient<Channel>,
}

impl World {
    pub(crate) async fn new(change: impl FnOnce(&mut pb::Subscription)) -> Self {
        let server = Server::builder().start().await.unwrap();
        let channel =
            Channel::from_shared(format!("http://{}", server.address())).unwrap().connect().await.unwrap();
        let (publisher, subscriber) = (PublisherClient::new(channel.clone()), SubscriberClient::new(channel));
        let mut world = Self { server, publisher, subscriber };
        let topic = pb::Topic { name: TOPIC.to_owned(), ..pb::Topic::default() };
        world.publisher.create_topic(topic).await.unwrap();
        let mut subscription = pb::Subscription {
            name: SUBSCRIPTION.to_owned(),
            topic: TOPIC.to_owned(),
            ..pb::Subscription::default()
        };
        change(&mut subscription);
        world.subscriber.create_subscription(subscription).await.unwrap();
        world
    }

    pub(crate) fn connection(&self) -> Connection {
        Connection { endpoint: Some(format!("http://{}", self.server.address())), credentials: None }
    }

    pub(crate) fn config(&self) -> PubsubConfig {
        let mut config = PubsubConfig::new(self.connection(), vec![name(SUBSCRIPTION)]);
        config.poll_interval = Duration::from_millis(50);
        config
    }

    pub(crate) async fn open(&self, change: impl FnOnce(&mut PubsubConfig)) -> PubsubSource {
        let mut config = self.config();
        change(&mut config);
        let mut source = PubsubSource::new(config).unwrap();
        source.open(&[]).await.unwrap();
        source
    }

    pub(crate) async fn publish(&mut self, key: &str, texts: impl IntoIterator<Item = String>) {
        let message = |text: String| pb::PubsubMessage {
            data: text.into_bytes().into(),
            ordering_key: key.to_owned(),
            ..pb::PubsubMessage::default()
        };
        self.publish_messages(texts.into_iter().map(message).collect()).await;
    }

    pub(crate) async fn publish_messages(&mut self, messages: Vec<pb::PubsubMessage>) {
        let request = pb::PublishRequest { topic: TOPIC.to_owned(), messages };
        self.publisher.publish(request).await.unwrap();
    }

    pub(crate) fn faults(&self, text: &str) {
        self.server.set_faults(text.parse().unwrap());
    }

    /// Waits until the server's counts are as wanted.
    pub(crate) async fn until(&self, what: &str, wanted: impl Fn(&Counts) -> bool) -> Counts {
        let began = Instant::now();
        loop {
            let counts = self.server.counts();
            if wanted(&counts) {
                return counts;
            }
            assert!(began.elapsed() < PATIENCE, "never {what}: {counts:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) fn name(text: &str) -> SubscriptionName {
    SubscriptionName::parse(text, None).unwrap()
}

pub(crate) fn topic(text: &str) -> TopicName {
    TopicName::parse(text, None).unwrap()
}

/// The next batch; waits for it.
pub(crate) async fn batch(source: &mut PubsubSource) -> RecordBatch {
    let began = Instant::now();
    loop {
        if let Next::Batch(batch) = source.next(BUDGET).await.unwrap() {
            return batch;
        }
        assert!(began.elapsed() < PATIENCE, "nothing came");
    }
}

/// Batches until `count` records came.
pub(crate) async fn batches(source: &mut PubsubSource, count: usize) -> Vec<RecordBatch> {
    let mut batches: Vec<RecordBatch> = Vec::new();
    while batches.iter().map(|b| b.slots.len()).sum::<usize>() < count {
        batches.push(batch(source).await);
    }
    batches
}

/// The values of batches, as texts.
pub(crate) fn texts<'a>(batches: impl IntoIterator<Item = &'a RecordBatch>) -> Vec<String> {
    let of = |batch: &RecordBatch| {
        let text = |record: millstream_core::Record<'_>| match record.body() {
            millstream_core::Body::Value(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => String::new(),
        };
        batch.records().map(text).collect::<Vec<_>>()
    };
    batches.into_iter().flat_map(of).collect()
}

/// Releases everything up to a batch.
pub(crate) async fn release(source: &mut PubsubSource, batch: &RecordBatch) {
    source.release(&[(batch.partition.clone(), batch.position.clone())]).await.unwrap();
}
