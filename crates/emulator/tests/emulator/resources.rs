//! Topics, subscriptions, snapshots: making, changing, listing, deleting, detaching; seeks and retention.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::schema_service_client::SchemaServiceClient;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::seek_request::Target;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::*;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::world::{SUBSCRIPTION, TOPIC, World, texts};

fn code<T>(result: Result<T, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

fn mask(path: &str) -> Option<prost_types::FieldMask> {
    Some(prost_types::FieldMask { paths: vec![path.to_owned()] })
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

#[tokio::test]
async fn topics_and_subscriptions_are_kept_as_they_were_made() {
    let mut world = World::new(|_| ()).await;
    let topic = Topic { name: TOPIC.to_owned(), ..Topic::default() };
    assert_eq!(code(world.publisher.create_topic(topic).await), Code::AlreadyExists);
    for name in ["orders", "projects/p/topics/1a", "projects/p/topics/goog-x", "projects/p/topics/ab"] {
        let topic = Topic { name: name.to_owned(), ..Topic::default() };
        assert_eq!(code(world.publisher.create_topic(topic).await), Code::InvalidArgument, "{name}");
    }
    let got =
        world.subscriber.get_subscription(GetSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() });
    let got = got.await.unwrap().into_inner();
    assert_eq!((got.ack_deadline_seconds, got.topic.as_str()), (10, TOPIC));
    assert_eq!(got.message_retention_duration, seconds(7 * 24 * 3600));

    let made = |change: fn(&mut Subscription)| {
        let mut subscription = Subscription {
            name: "projects/p/subscriptions/made".to_owned(),
            topic: TOPIC.to_owned(),
            ..Subscription::default()
        };
        change(&mut subscription);
        let mut subscriber = world.subscriber.clone();
        async move { code(subscriber.create_subscription(subscription).await) }
    };
    assert_eq!(made(|s| s.topic = "projects/p/topics/none".to_owned()).await, Code::NotFound);
    assert_eq!(made(|s| s.name = SUBSCRIPTION.to_owned()).await, Code::AlreadyExists);
    assert_eq!(made(|s| s.ack_deadline_seconds = 9).await, Code::InvalidArgument);
    assert_eq!(made(|s| s.ack_deadline_seconds = 601).await, Code::InvalidArgument);
    assert_eq!(made(|s| s.message_retention_duration = seconds(1)).await, Code::InvalidArgument);
    assert_eq!(
        made(|s| s.dead_letter_policy =
            Some(DeadLetterPolicy { dead_letter_topic: TOPIC.to_owned(), max_delivery_attempts: 4 }))
        .await,
        Code::InvalidArgument
    );
    assert_eq!(
        made(|s| s.push_config =
            Some(PushConfig { push_endpoint: "https://x".to_owned(), ..PushConfig::default() }))
        .await,
        Code::Unimplemented
    );
    assert_eq!(made(|_| ()).await, Code::Ok);

    let update = |path: &str, change: fn(&mut Subscription)| {
        let mut subscription = Subscription { name: SUBSCRIPTION.to_owned(), ..Subscription::default() };
        change(&mut subscription);
        let request = UpdateSubscriptionRequest { subscription: Some(subscription), update_mask: mask(path) };
        let mut subscriber = world.subscriber.clone();
        async move { subscriber.update_subscription(request).await.map(tonic::Response::into_inner) }
    };
    let updated = update("ack_deadline_seconds", |s| s.ack_deadline_seconds = 33).await.unwrap();
    assert_eq!(updated.ack_deadline_seconds, 33);
    assert_eq!(code(update("filter", |_| ()).await), Code::InvalidArgument);
    assert_eq!(code(update("nonsense", |_| ()).await), Code::InvalidArgument);

    let list =
        ListSubscriptionsRequest { project: "projects/p".to_owned(), page_size: 1, ..Default::default() };
    let page = world.subscriber.list_subscriptions(list.clone()).await.unwrap().into_inner();
    assert_eq!(page.subscriptions[0].name, "projects/p/subscriptions/made");
    let list = ListSubscriptionsRequest { page_token: page.next_page_token, ..list };
    let page = world.subscriber.list_subscriptions(list).await.unwrap().into_inner();
    assert_eq!((page.subscriptions[0].name.as_str(), page.next_page_token.as_str()), (SUBSCRIPTION, ""));
    let request = ListTopicsRequest { project: "projects/q".to_owned(), ..Default::default() };
    assert!(world.publisher.list_topics(request).await.unwrap().into_inner().topics.is_empty());

    let endpoint = Channel::from_shared(format!("http://{}", world.server.address())).unwrap();
    let mut schemas = SchemaServiceClient::new(endpoint.connect().await.unwrap());
    let request = GetSchemaRequest { name: "projects/p/schemas/s".to_owned(), view: 0 };
    assert_eq!(code(schemas.get_schema(request).await), Code::Unimplemented);
}

#[tokio::test]
async fn subscriptions_outlive_their_topic() {
    let mut world = World::new(|_| ()).await;
    world.publish(&["a"]).await;
    world.publisher.delete_topic(DeleteTopicRequest { topic: TOPIC.to_owned() }).await.unwrap();
    let got =
        world.subscriber.get_subscription(GetSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() });
    assert_eq!(got.await.unwrap().into_inner().topic, "_deleted-topic_");
    assert_eq!(texts(&world.pull(10).await), ["a"]);
    // A topic of the same name is another topic.
    world.topic(TOPIC).await;
    world.publish(&["b"]).await;
    assert!(world.pull(10).await.is_empty());
}

#[tokio::test]
async fn detached_and_deleted_subscriptions_end_their_streams() {
    let mut world = World::new(|_| ()).await;
    let mut stream = world.stream(|_| ()).await;
    stream.nothing().await;
    let request = DetachSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() };
    world.publisher.detach_subscription(request).await.unwrap();
    assert_eq!(stream.end().await.code(), Code::FailedPrecondition);
    world.publish(&["a"]).await;
    let pull = PullRequest { subscription: SUBSCRIPTION.to_owned(), max_messages: 1, ..Default::default() };
    assert_eq!(code(world.subscriber.pull(pull).await), Code::FailedPrecondition);
    let got =
        world.subscriber.get_subscription(GetSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() });
    assert!(got.await.unwrap().into_inner().detached);

    let other = "projects/p/subscriptions/other";
    world.subscribe(|subscription| subscription.name = other.to_owned()).await;
    let mut stream = world.stream(|first| first.subscription = other.to_owned()).await;
    stream.nothing().await;
    let request = DeleteSubscriptionRequest { subscription: other.to_owned() };
    world.subscriber.delete_subscription(request).await.unwrap();
    assert_eq!(stream.end().await.code(), Code::NotFound);
}

#[tokio::test]
async fn a_seek_to_a_time_brings_back_what_is_retained() {
    let mut world = World::new(|subscription| subscription.retain_acked_messages = true).await;
    world.publish(&["a", "b"]).await;
    world.advance(100).await;
    world.publish(&["c"]).await;
    let got = world.pull(10).await;
    let time = got[2].message.clone().unwrap().publish_time.unwrap();
    world.ack(&got).await;
    assert!(world.pull(10).await.is_empty());
    let seek = |target| SeekRequest { subscription: SUBSCRIPTION.to_owned(), target: Some(target) };
    world.subscriber.seek(seek(Target::Time(time))).await.unwrap();
    assert_eq!(texts(&world.pull(10).await), ["c"]);
    let early = prost_types::Timestamp { seconds: time.seconds - 1000, nanos: 0 };
    world.subscriber.seek(seek(Target::Time(early))).await.unwrap();
    let all = world.pull(10).await;
    assert_eq!(texts(&all), ["a", "b", "c"]);
    // Acks of deliveries from before the seek mean nothing.
    world.ack(&got).await;
    assert_eq!(world.counts().backlog, 3);
    let late = prost_types::Timestamp { seconds: time.seconds + 1000, nanos: 0 };
    world.subscriber.seek(seek(Target::Time(late))).await.unwrap();
    assert_eq!(world.counts().backlog, 0);
    // After its retention a message is gone for good.
    world.advance(7 * 24 * 3600).await;
    world.subscriber.seek(seek(Target::Time(early))).await.unwrap();
    assert!(world.pull(10).await.is_empty());
}

#[tokio::test]
async fn a_seek_to_a_snapshot_brings_back_its_backlog_and_what_came_later() {
    let mut world = World::new(|_| ()).await;
    world.publish(&["a", "b"]).await;
    let got = world.pull(10).await;
    world.ack(&got[..1]).await;
    let name = "projects/p/snapshots/before".to_owned();
    let request = CreateSnapshotRequest {
        name: name.clone(),
        subscription: SUBSCRIPTION.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    let snapshot = world.subscriber.create_snapshot(request.clone()).await.unwrap().into_inner();
    assert_eq!(snapshot.topic, TOPIC);
    assert_eq!(code(world.subscriber.create_snapshot(request).await), Code::AlreadyExists);
    world.publish(&["c"]).await;
    world.ack(&got[1..]).await;
    let late = world.pull(10).await;
    assert_eq!(texts(&late), ["c"]);
    world.ack(&late).await;
    let target = Some(Target::Snapshot(name.clone()));
    let seek = SeekRequest { subscription: SUBSCRIPTION.to_owned(), target };
    world.subscriber.seek(seek.clone()).await.unwrap();
    assert_eq!(texts(&world.pull(10).await), ["b", "c"]);

    let request = ListSnapshotsRequest { project: "projects/p".to_owned(), ..Default::default() };
    assert_eq!(world.subscriber.list_snapshots(request).await.unwrap().into_inner().snapshots.len(), 1);
    let request = ListTopicSnapshotsRequest { topic: TOPIC.to_owned(), ..Default::default() };
    assert_eq!(world.publisher.list_topic_snapshots(request).await.unwrap().into_inner().snapshots.len(), 1);
    world.advance(7 * 24 * 3600).await;
    assert_eq!(code(world.subscriber.seek(seek).await), Code::NotFound, "it expired");
    assert_eq!(
        code(world.subscriber.get_snapshot(GetSnapshotRequest { snapshot: name }).await),
        Code::NotFound
    );
}
