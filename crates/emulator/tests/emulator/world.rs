//! A server with clients for a test.

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::publisher_client::PublisherClient;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::subscriber_client::SubscriberClient;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::*;
use millstream_emulator::pubsub::{Builder, Counts, Faults, Running, Server};
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

pub(crate) const TOPIC: &str = "projects/p/topics/orders";
pub(crate) const SUBSCRIPTION: &str = "projects/p/subscriptions/orders";

pub(crate) struct World {
    pub(crate) server: Running,
    pub(crate) publisher: PublisherClient<Channel>,
    pub(crate) subscriber: SubscriberClient<Channel>,
}

/// Clients of a server.
pub(crate) async fn clients(
    address: std::net::SocketAddr,
) -> (PublisherClient<Channel>, SubscriberClient<Channel>) {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    (
        PublisherClient::new(channel.clone()).max_decoding_message_size(64 << 20),
        SubscriberClient::new(channel).max_decoding_message_size(64 << 20),
    )
}

impl World {
    /// A server with a topic and a subscription on it.
    pub(crate) async fn new(change: impl FnOnce(&mut Subscription)) -> Self {
        let mut world = Self::empty(Server::builder()).await;
        world.topic(TOPIC).await;
        world.subscribe(change).await;
        world
    }

    pub(crate) async fn empty(builder: Builder) -> Self {
        let server = builder.start().await.unwrap();
        let (publisher, subscriber) = clients(server.address()).await;
        Self { server, publisher, subscriber }
    }

    pub(crate) async fn topic(&mut self, name: &str) {
        self.publisher.create_topic(Topic { name: name.to_owned(), ..Topic::default() }).await.unwrap();
    }

    pub(crate) async fn subscribe(&mut self, change: impl FnOnce(&mut Subscription)) -> Subscription {
        let mut subscription = Subscription {
            name: SUBSCRIPTION.to_owned(),
            topic: TOPIC.to_owned(),
            ..Subscription::default()
        };
        change(&mut subscription);
        self.subscriber.create_subscription(subscription).await.unwrap().into_inner()
    }

    pub(crate) async fn publish(&mut self, texts: &[&str]) -> Vec<String> {
        self.publish_keyed("", texts).await
    }

    pub(crate) async fn publish_keyed(&mut self, key: &str, texts: &[&str]) -> Vec<String> {
        let messages = texts.iter().map(|text| message(key, text)).collect();
        self.try_publish(messages).await.unwrap()
    }

    pub(crate) async fn try_publish(&mut self, messages: Vec<PubsubMessage>) -> Result<Vec<String>, Status> {
        let request = PublishRequest { topic: TOPIC.to_owned(), messages };
        Ok(self.publisher.publish(request).await?.into_inner().message_ids)
    }

    /// What a Pull gets, without waiting.
    pub(crate) async fn pull(&mut self, most: i32) -> Vec<ReceivedMessage> {
        self.pull_of(SUBSCRIPTION, most).await
    }

    pub(crate) async fn pull_of(&mut self, subscription: &str, most: i32) -> Vec<ReceivedMessage> {
        #[expect(deprecated)]
        let request = PullRequest {
            subscription: subscription.to_owned(),
            max_messages: most,
            return_immediately: true,
        };
        self.subscriber.pull(request).await.unwrap().into_inner().received_messages
    }

    pub(crate) async fn ack(&mut self, messages: &[ReceivedMessage]) {
        self.try_ack(messages).await.unwrap();
    }

    pub(crate) async fn try_ack(&mut self, messages: &[ReceivedMessage]) -> Result<(), Status> {
        let request = AcknowledgeRequest { subscription: SUBSCRIPTION.to_owned(), ack_ids: ids(messages) };
        self.subscriber.acknowledge(request).await.map(|_| ())
    }

    pub(crate) async fn modify(&mut self, messages: &[ReceivedMessage], seconds: i32) -> Result<(), Status> {
        let request = ModifyAckDeadlineRequest {
            subscription: SUBSCRIPTION.to_owned(),
            ack_ids: ids(messages),
            ack_deadline_seconds: seconds,
        };
        self.subscriber.modify_ack_deadline(request).await.map(|_| ())
    }

    pub(crate) async fn advance(&self, seconds: u64) {
        self.server.advance(Duration::from_secs(seconds)).await;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.server.counts()
    }

    /// Waits until the counts are so.
    pub(crate) async fn until(&self, so: impl Fn(&Counts) -> bool) {
        for _ in 0..2000 {
            if so(&self.counts()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{:?}", self.counts());
    }

    pub(crate) fn faults(&self, text: &str) {
        self.server.set_faults(text.parse::<Faults>().unwrap());
    }

    /// Opens a stream.
    pub(crate) async fn stream(&mut self, change: impl FnOnce(&mut StreamingPullRequest)) -> Stream {
        let mut first = StreamingPullRequest {
            subscription: SUBSCRIPTION.to_owned(),
            stream_ack_deadline_seconds: 10,
            ..StreamingPullRequest::default()
        };
        change(&mut first);
        let (requests, receiver) = mpsc::channel(16);
        requests.send(first).await.unwrap();
        let outgoing = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let responses = self.subscriber.streaming_pull(outgoing).await.unwrap().into_inner();
        Stream { requests, responses, properties: None, acks: Vec::new(), modifications: Vec::new() }
    }
}

pub(crate) struct Stream {
    pub(crate) requests: mpsc::Sender<StreamingPullRequest>,
    pub(crate) responses: Streaming<StreamingPullResponse>,
    pub(crate) properties: Option<streaming_pull_response::SubscriptionProperties>,
    pub(crate) acks: Vec<streaming_pull_response::AcknowledgeConfirmation>,
    pub(crate) modifications: Vec<streaming_pull_response::ModifyAckDeadlineConfirmation>,
}

impl Stream {
    pub(crate) async fn send(&self, request: StreamingPullRequest) {
        self.requests.send(request).await.unwrap();
    }

    pub(crate) async fn ack(&self, messages: &[ReceivedMessage]) {
        self.send(StreamingPullRequest { ack_ids: ids(messages), ..StreamingPullRequest::default() }).await;
    }

    pub(crate) async fn modify(&self, messages: &[ReceivedMessage], seconds: i32) {
        let ids = ids(messages);
        self.send(StreamingPullRequest {
            modify_deadline_seconds: vec![seconds; ids.len()],
            modify_deadline_ack_ids: ids,
            ..StreamingPullRequest::default()
        })
        .await;
    }

    /// The next response, whatever is in it.
    pub(crate) async fn response(&mut self) -> Result<Option<StreamingPullResponse>, Status> {
        tokio::time::timeout(Duration::from_secs(20), self.responses.message()).await.expect("a response")
    }

    /// Reads until there are this many messages.
    pub(crate) async fn take(&mut self, count: usize) -> Vec<ReceivedMessage> {
        let mut messages = Vec::new();
        while messages.len() < count {
            let response = self.response().await.unwrap().expect("the stream goes on");
            messages.extend(self.note(response));
        }
        assert_eq!(messages.len(), count, "{:?}", texts(&messages));
        messages
    }

    /// Keeps what a response says besides messages.
    pub(crate) fn note(&mut self, response: StreamingPullResponse) -> Vec<ReceivedMessage> {
        self.properties = response.subscription_properties.or(self.properties);
        self.acks.extend(response.acknowledge_confirmation);
        self.modifications.extend(response.modify_ack_deadline_confirmation);
        response.received_messages
    }

    /// Asserts that nothing comes for a while. Only ever fails by chance if something does come.
    pub(crate) async fn nothing(&mut self) {
        let wait = tokio::time::timeout(Duration::from_millis(150), self.responses.message()).await;
        if let Ok(response) = wait {
            let response = response.unwrap().expect("the stream goes on");
            let messages = self.note(response);
            assert!(messages.is_empty(), "{:?}", texts(&messages));
        }
    }

    /// How the stream ends.
    pub(crate) async fn end(&mut self) -> Status {
        loop {
            match self.response().await {
                Ok(Some(response)) => _ = self.note(response),
                Ok(None) => return Status::ok("the end"),
                Err(status) => return status,
            }
        }
    }
}

pub(crate) fn message(key: &str, text: &str) -> PubsubMessage {
    PubsubMessage {
        data: text.to_owned().into_bytes().into(),
        ordering_key: key.to_owned(),
        ..PubsubMessage::default()
    }
}

pub(crate) fn ids(messages: &[ReceivedMessage]) -> Vec<String> {
    messages.iter().map(|message| message.ack_id.clone()).collect()
}

pub(crate) fn texts(messages: &[ReceivedMessage]) -> Vec<String> {
    messages
        .iter()
        .map(|message| String::from_utf8(message.message.clone().unwrap().data.to_vec()).unwrap())
        .collect()
}
