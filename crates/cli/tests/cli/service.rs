//! An emulator of Pub/Sub in this process, with topics of their own subscriptions.

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_emulator::pubsub::{Counts, Running, Server};
use pb::publisher_client::PublisherClient;
use pb::subscriber_client::SubscriberClient;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

/// A message that says `data`.
pub(crate) fn message(data: impl Into<Vec<u8>>) -> pb::PubsubMessage {
    pb::PubsubMessage { data: data.into().into(), ..pb::PubsubMessage::default() }
}

/// A create event of `public.notes`, whose key is `code`.
pub(crate) fn note(code: &str, text: &str) -> String {
    let source = r#"{"version":"3.6.3.Final","connector":"postgresql","name":"db","ts_ms":1000,"snapshot":"false","db":"shop","schema":"public","table":"notes","lsn":100}"#;
    format!(
        r#"{{"before":null,"after":{{"code":"{code}","text":"{text}"}},"source":{source},"op":"c","ts_ms":1000}}"#
    )
}

/// The key of such an event, of exactly so many bytes, and the code in it.
pub(crate) fn key_of(bytes: usize) -> (String, String) {
    let code = "k".repeat(bytes - r#"{"code":""}"#.len());
    (format!(r#"{{"code":"{code}"}}"#), code)
}

/// The emulator. Names are those of the project `p`.
pub(crate) struct Service {
    runtime: Runtime,
    server: Running,
    channel: Channel,
}

impl Service {
    /// With these topics, each with the subscription `TOPIC-sub`.
    pub(crate) fn with(topics: &[&str]) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = runtime.block_on(Server::builder().start()).unwrap();
        let inside = runtime.enter();
        let channel = Channel::from_shared(format!("http://{}", server.address())).unwrap().connect_lazy();
        drop(inside);
        let service = Self { runtime, server, channel };
        for topic in topics {
            service.make_topic(topic);
            let subscription = pb::Subscription {
                name: format!("projects/p/subscriptions/{topic}-sub"),
                topic: format!("projects/p/topics/{topic}"),
                ..pb::Subscription::default()
            };
            let mut client = SubscriberClient::new(service.channel.clone());
            service.runtime.block_on(client.create_subscription(subscription)).unwrap();
        }
        service
    }

    /// A topic without a subscription.
    pub(crate) fn make_topic(&self, topic: &str) {
        let made = pb::Topic { name: format!("projects/p/topics/{topic}"), ..pb::Topic::default() };
        self.runtime.block_on(PublisherClient::new(self.channel.clone()).create_topic(made)).unwrap();
    }

    /// As a config names it.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.server.address())
    }

    pub(crate) fn set_faults(&self, text: &str) {
        self.server.set_faults(text.parse().unwrap());
    }

    /// Lets time pass: leases end.
    pub(crate) fn advance(&self, time: Duration) {
        self.runtime.block_on(self.server.advance(time));
    }

    pub(crate) fn counts(&self) -> Counts {
        self.server.counts()
    }

    /// Messages of a topic's subscription that are not acknowledged.
    pub(crate) fn backlog(&self, topic: &str) -> u64 {
        self.counts().subscriptions[&format!("projects/p/subscriptions/{topic}-sub")].backlog
    }

    pub(crate) fn publish(&self, topic: &str, message: pb::PubsubMessage) -> Result<(), tonic::Status> {
        let request =
            pb::PublishRequest { topic: format!("projects/p/topics/{topic}"), messages: vec![message] };
        let mut client = PublisherClient::new(self.channel.clone());
        self.runtime.block_on(client.publish(request)).map(|_| ())
    }

    /// Up to a hundred messages of a topic's subscription.
    pub(crate) fn pull(&self, topic: &str) -> Vec<pb::PubsubMessage> {
        let request = pb::PullRequest {
            subscription: format!("projects/p/subscriptions/{topic}-sub"),
            max_messages: 100,
            ..pb::PullRequest::default()
        };
        let mut client = SubscriberClient::new(self.channel.clone());
        let pulled = self.runtime.block_on(client.pull(request)).unwrap().into_inner();
        pulled.received_messages.into_iter().filter_map(|received| received.message).collect()
    }
}
