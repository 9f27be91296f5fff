//! Publish, Pull, StreamingPull, acks and leases.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::*;
use tonic::Code;

use crate::world::{SUBSCRIPTION, TOPIC, World, ids, message, texts};

#[tokio::test]
async fn what_is_published_is_pulled_as_it_was_and_acknowledged() {
    let mut world = World::new(|_| ()).await;
    let sent = PubsubMessage {
        data: b"body".to_vec().into(),
        attributes: [("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())].into(),
        ordering_key: "key".to_owned(),
        ..PubsubMessage::default()
    };
    let published = world.try_publish(vec![sent.clone(), message("key", "two")]).await.unwrap();
    let got = world.pull(10).await;
    assert_eq!(texts(&got), ["body", "two"]);
    let first = got[0].message.clone().unwrap();
    assert_eq!((&first.attributes, &first.ordering_key), (&sent.attributes, &sent.ordering_key));
    assert_eq!(first.message_id, published[0]);
    assert!(first.publish_time.unwrap().seconds > 1_700_000_000);
    assert_eq!(got[0].delivery_attempt, 0, "only dead-letter policies count attempts");
    assert!(world.pull(10).await.is_empty(), "they are leased");
    world.ack(&got).await;
    world.advance(700).await;
    assert!(world.pull(10).await.is_empty());
    let counts = world.counts();
    assert_eq!((counts.published, counts.delivered, counts.acked, counts.backlog), (2, 2, 2, 0));
    assert_eq!(counts.subscriptions[SUBSCRIPTION].acked, 2);
}

#[tokio::test]
async fn leases_end_and_can_be_extended_or_given_back() {
    let mut world = World::new(|_| ()).await;
    world.publish(&["a", "b", "c"]).await;
    let got = world.pull(10).await;
    world.modify(&got[1..2], 60).await.unwrap();
    world.modify(&got[2..], 0).await.unwrap();
    let again = world.pull(10).await;
    assert_eq!(texts(&again), ["c"]);
    assert_ne!(again[0].ack_id, got[2].ack_id);
    world.ack(&again).await;
    world.advance(11).await;
    assert_eq!(texts(&world.pull(10).await), ["a"]);
    world.advance(50).await;
    let mut rest = texts(&world.pull(10).await);
    rest.sort();
    assert_eq!(rest, ["a", "b"]);
    // A late ack counts, as without exactly-once delivery it may.
    world.ack(&got[..2]).await;
    world.advance(700).await;
    assert!(world.pull(10).await.is_empty());
    assert_eq!(world.counts().nacked, 1);
    assert_eq!(world.counts().expired, 3, "a twice, b once");
}

#[tokio::test]
async fn streams_deliver_and_take_acks() {
    let mut world = World::new(|_| ()).await;
    let mut stream = world.stream(|_| ()).await;
    world.publish(&["a", "b"]).await;
    let got = stream.take(2).await;
    assert_eq!(texts(&got), ["a", "b"]);
    assert!(!stream.properties.unwrap().exactly_once_delivery_enabled);
    stream.ack(&got[..1]).await;
    stream.modify(&got[1..], 0).await;
    assert_eq!(texts(&stream.take(1).await), ["b"]);
    world.advance(11).await;
    let again = stream.take(1).await;
    stream.ack(&again).await;
    stream.nothing().await;
    assert_eq!(world.counts().backlog, 0);
    assert_eq!(world.counts().streams, 1);
    // Leases of a stream that ended run on.
    world.publish(&["c"]).await;
    stream.take(1).await;
    drop(stream);
    assert!(world.pull(10).await.is_empty());
    world.advance(11).await;
    assert_eq!(texts(&world.pull(10).await), ["c"]);
}

#[tokio::test]
async fn a_stream_holds_no_more_than_its_limits() {
    let mut world = World::new(|_| ()).await;
    let mut by_count = world.stream(|first| first.max_outstanding_messages = 2).await;
    world.publish(&["a", "b", "c", "d"]).await;
    let got = by_count.take(2).await;
    by_count.nothing().await;
    by_count.ack(&got[..1]).await;
    let more = by_count.take(1).await;
    by_count.nothing().await;
    // Acks may come another way.
    world.ack(&got[1..]).await;
    let last = by_count.take(1).await;
    by_count.ack(&more).await;
    by_count.ack(&last).await;
    by_count.nothing().await;
    drop(by_count);
    // A stream that is about to end would still take messages.
    world.until(|counts| counts.streams == 0).await;
    let mut by_bytes = world.stream(|first| first.max_outstanding_bytes = 15).await;
    world.publish(&["12345678", "12345678", "12345678"]).await;
    let got = by_bytes.take(2).await;
    by_bytes.nothing().await;
    by_bytes.modify(&got[..1], 0).await;
    by_bytes.take(1).await;
    by_bytes.nothing().await;
}

#[tokio::test]
async fn streams_are_refused_for_what_the_service_refuses() {
    let mut world = World::new(|_| ()).await;
    world.publish(&["a"]).await;
    let mut unknown =
        world.stream(|first| first.subscription = "projects/p/subscriptions/none".to_owned()).await;
    assert_eq!(unknown.end().await.code(), Code::NotFound);
    for deadline in [0, 9, 601] {
        let mut stream = world.stream(|first| first.stream_ack_deadline_seconds = deadline).await;
        assert_eq!(stream.end().await.code(), Code::InvalidArgument, "{deadline}");
    }
    let later: [fn(&mut StreamingPullRequest); 7] = [
        |request| request.subscription = SUBSCRIPTION.to_owned(),
        |request| request.max_outstanding_messages = 5,
        |request| request.max_outstanding_bytes = 5,
        |request| request.protocol_version = 1,
        |request| request.ack_ids = vec!["nonsense".to_owned()],
        |request| request.modify_deadline_seconds = vec![10],
        |request| {
            request.modify_deadline_seconds = vec![-1];
            request.modify_deadline_ack_ids = vec!["nonsense".to_owned()];
        },
    ];
    for change in later {
        let mut stream = world.stream(|_| ()).await;
        let mut request = StreamingPullRequest::default();
        change(&mut request);
        stream.send(request.clone()).await;
        assert_eq!(stream.end().await.code(), Code::InvalidArgument, "{request:?}");
    }
    let mut stream = world.stream(|_| ()).await;
    stream
        .send(StreamingPullRequest { stream_ack_deadline_seconds: 20, ..StreamingPullRequest::default() })
        .await;
    stream.nothing().await;
}

#[tokio::test]
async fn publishing_and_acking_have_limits() {
    let mut world = World::new(|_| ()).await;
    let code = |result: Result<Vec<String>, tonic::Status>| result.err().map(|status| status.code());
    let invalid = Some(Code::InvalidArgument);
    assert_eq!(code(world.try_publish(Vec::new()).await), invalid);
    assert_eq!(code(world.try_publish(vec![message("", "")]).await), invalid);
    assert_eq!(code(world.try_publish(vec![message("a", "x"), message("b", "x")]).await), invalid);
    assert_eq!(code(world.try_publish(vec![message("", "x"), message("b", "x")]).await), invalid);
    assert_eq!(code(world.try_publish(vec![message(&"k".repeat(1025), "x")]).await), invalid);
    assert_eq!(code(world.try_publish(vec![message("", "x"); 1001]).await), invalid);
    assert_eq!(code(world.try_publish(vec![message("", &"x".repeat(11 << 20))]).await), invalid);
    assert_eq!(code(world.try_publish(vec![message("", &"x".repeat(10_000_000))]).await), None);
    assert_eq!(code(world.try_publish(vec![message("k", "x"); 1000]).await), None);
    let nowhere =
        PublishRequest { topic: "projects/p/topics/none".to_owned(), messages: vec![message("", "x")] };
    assert_eq!(world.publisher.publish(nowhere).await.unwrap_err().code(), Code::NotFound);

    let large = world.pull(5).await;
    assert_eq!(large.len(), 1, "a response is cut short behind what goes over its size");
    let mut got = world.pull(5).await;
    assert_eq!(world.modify(&got, 601).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(world.modify(&got, -1).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(world.try_ack(&[]).await.unwrap_err().code(), Code::InvalidArgument);
    got[0].ack_id = "nonsense".to_owned();
    assert_eq!(world.try_ack(&got).await.unwrap_err().code(), Code::InvalidArgument);
    let many = AcknowledgeRequest {
        subscription: SUBSCRIPTION.to_owned(),
        ack_ids: ids(&vec![got[1].clone(); 30_000]),
    };
    assert_eq!(world.subscriber.acknowledge(many).await.unwrap_err().code(), Code::InvalidArgument);
    let request = PullRequest { subscription: SUBSCRIPTION.to_owned(), ..PullRequest::default() };
    assert_eq!(world.subscriber.pull(request).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn every_subscription_gets_what_is_published_after_it_was_made() {
    let mut world = World::new(|_| ()).await;
    world.publish(&["a"]).await;
    let other = "projects/p/subscriptions/other";
    world.subscribe(|subscription| subscription.name = other.to_owned()).await;
    world.publish(&["b"]).await;
    assert_eq!(texts(&world.pull(10).await), ["a", "b"]);
    assert_eq!(texts(&world.pull_of(other, 10).await), ["b"]);
    let listed = world
        .publisher
        .list_topic_subscriptions(ListTopicSubscriptionsRequest {
            topic: TOPIC.to_owned(),
            ..Default::default()
        })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.subscriptions, [SUBSCRIPTION, other]);
}
