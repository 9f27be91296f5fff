//! Ordering, dead letters, retries, exactly-once delivery.

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::*;
use prost::Message as _;
use tonic::{Code, Status};

use crate::world::{SUBSCRIPTION, TOPIC, World, message, texts};

fn ordered(subscription: &mut Subscription) {
    subscription.enable_message_ordering = true;
}

#[tokio::test]
async fn a_key_is_with_one_stream_at_a_time_and_in_order() {
    let mut world = World::new(ordered).await;
    let mut one = world.stream(|first| first.max_outstanding_messages = 2).await;
    one.nothing().await;
    world.publish_keyed("k", &["1", "2", "3"]).await;
    let first = one.take(2).await;
    assert_eq!(texts(&first), ["1", "2"]);
    let mut two = world.stream(|_| ()).await;
    two.nothing().await;
    world.publish_keyed("other", &["a"]).await;
    assert_eq!(texts(&two.take(1).await), ["a"]);
    one.ack(&first[..1]).await;
    assert_eq!(texts(&one.take(1).await), ["3"]);
    two.nothing().await;
}

#[tokio::test]
async fn a_message_that_comes_again_brings_the_later_ones_of_its_key() {
    let mut world = World::new(ordered).await;
    world.publish_keyed("k", &["1", "2", "3"]).await;
    world.publish_keyed("l", &["a"]).await;
    let got = world.pull(10).await;
    assert_eq!(texts(&got), ["1", "2", "3", "a"]);
    // 2 is acknowledged, and comes again nevertheless, since 1 is given back.
    world.ack(&got[1..2]).await;
    world.modify(&got[..1], 0).await.unwrap();
    let again = world.pull(10).await;
    assert_eq!(texts(&again), ["1", "2", "3"]);
    // An ack of the delivery before does not count any more for what is with nobody.
    world.modify(&again[..1], 0).await.unwrap();
    world.ack(&again[1..2]).await;
    let once_more = world.pull(10).await;
    assert_eq!(texts(&once_more), ["1", "2", "3"]);
    world.ack(&once_more).await;
    world.advance(11).await;
    assert_eq!(texts(&world.pull(10).await), ["a"]);
    assert_eq!(world.counts().backlog, 1);
}

#[tokio::test]
async fn pulls_wait_for_the_messages_of_a_key_that_are_out() {
    let mut world = World::new(ordered).await;
    world.publish_keyed("k", &["1", "2", "3"]).await;
    let first = world.pull(1).await;
    assert_eq!(texts(&first), ["1"]);
    assert!(world.pull(10).await.is_empty());
    world.ack(&first).await;
    assert_eq!(texts(&world.pull(10).await), ["2", "3"]);
    // Without ordering, keys mean nothing.
    let plain = "projects/p/subscriptions/plain";
    world.subscribe(|subscription| subscription.name = plain.to_owned()).await;
    world.publish_keyed("k", &["4", "5"]).await;
    assert_eq!(world.pull_of(plain, 1).await.len(), 1);
    assert_eq!(world.pull_of(plain, 1).await.len(), 1);
}

#[tokio::test]
async fn a_client_that_comes_back_goes_on_with_its_keys() {
    let mut world = World::new(ordered).await;
    let mut stream = world.stream(|first| first.client_id = "me".to_owned()).await;
    stream.nothing().await;
    world.publish_keyed("k", &["1"]).await;
    let got = stream.take(1).await;
    drop(stream);
    world.until(|counts| counts.streams == 0).await;
    world.publish_keyed("k", &["2"]).await;
    let mut stranger = world.stream(|first| first.client_id = "you".to_owned()).await;
    stranger.nothing().await;
    let mut again = world.stream(|first| first.client_id = "me".to_owned()).await;
    assert_eq!(texts(&again.take(1).await), ["2"]);
    again.ack(&got).await;
    stranger.nothing().await;
}

#[tokio::test]
async fn used_up_attempts_make_a_dead_letter() {
    let letters = "projects/p/topics/letters";
    let mut world = World::new(|_| ()).await;
    world.topic(letters).await;
    let name = "projects/p/subscriptions/strict";
    world
        .subscribe(|subscription| {
            subscription.name = name.to_owned();
            subscription.enable_message_ordering = true;
            subscription.dead_letter_policy =
                Some(DeadLetterPolicy { dead_letter_topic: letters.to_owned(), max_delivery_attempts: 5 });
        })
        .await;
    let dead = "projects/p/subscriptions/dead";
    world
        .subscribe(|subscription| {
            subscription.name = dead.to_owned();
            subscription.topic = letters.to_owned();
        })
        .await;
    world.publish_keyed("k", &["bad", "good"]).await;
    for attempt in 1..=5 {
        let got = world.pull_of(name, 1).await;
        assert_eq!(texts(&got), ["bad"]);
        assert_eq!(got[0].delivery_attempt, attempt);
        if attempt % 2 == 0 {
            world.advance(11).await;
        } else {
            let request = ModifyAckDeadlineRequest {
                subscription: name.to_owned(),
                ack_ids: vec![got[0].ack_id.clone()],
                ack_deadline_seconds: 0,
            };
            world.subscriber.modify_ack_deadline(request).await.unwrap();
        }
    }
    assert_eq!(texts(&world.pull_of(name, 10).await), ["good"]);
    let letter = world.pull_of(dead, 10).await.remove(0).message.unwrap();
    assert_eq!((&letter.data[..], letter.ordering_key.as_str()), (&b"bad"[..], "k"));
    let attribute = |name: &str| letter.attributes[&format!("CloudPubSubDeadLetterSource{name}")].clone();
    assert_eq!(attribute("Subscription"), "strict");
    assert_eq!(attribute("SubscriptionProject"), "p");
    assert_eq!(attribute("DeliveryCount"), "5");
    assert!(attribute("TopicPublishTime").starts_with("20"));
    assert_eq!(world.counts().subscriptions[name].forwarded, 1);
}

#[tokio::test]
async fn letters_without_a_topic_stay() {
    let mut world = World::new(|subscription| {
        subscription.dead_letter_policy = Some(DeadLetterPolicy {
            dead_letter_topic: "projects/p/topics/nowhere".to_owned(),
            max_delivery_attempts: 5,
        });
    })
    .await;
    world.publish(&["bad"]).await;
    for _ in 0..5 {
        let got = world.pull(1).await;
        world.modify(&got, 0).await.unwrap();
    }
    assert!(world.pull(1).await.is_empty(), "it waits a while");
    world.advance(11).await;
    assert_eq!(texts(&world.pull(1).await), ["bad"]);
}

#[tokio::test]
async fn what_is_given_back_waits_for_its_backoff() {
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let mut world = World::new(|subscription| {
        subscription.enable_message_ordering = true;
        subscription.retry_policy =
            Some(RetryPolicy { minimum_backoff: seconds(10), maximum_backoff: seconds(25) });
    })
    .await;
    world.publish_keyed("k", &["1", "2"]).await;
    world.publish(&["free"]).await;
    for backoff in [10, 20, 25, 25] {
        let got = world.pull(10).await;
        let first = got.iter().find(|got| texts(std::slice::from_ref(got)) == ["1"]).unwrap().clone();
        let free: Vec<_> =
            got.iter().filter(|got| got.message.as_ref().unwrap().ordering_key.is_empty()).cloned().collect();
        if !free.is_empty() {
            world.ack(&free).await;
        }
        world.modify(&[first], 0).await.unwrap();
        assert!(world.pull(10).await.is_empty(), "the key waits");
        world.advance(backoff - 1).await;
        assert!(world.pull(10).await.is_empty(), "{backoff}");
        world.advance(2).await;
    }
    assert_eq!(texts(&world.pull(10).await), ["1", "2"]);
}

fn exactly_once(subscription: &mut Subscription) {
    subscription.enable_exactly_once_delivery = true;
}

#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, repeated, tag = "3")]
    details: Vec<prost_types::Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ErrorInfo {
    #[prost(map = "string, string", tag = "3")]
    metadata: std::collections::HashMap<String, String>,
}

fn failures(status: &Status) -> std::collections::HashMap<String, String> {
    let details = RpcStatus::decode(status.details()).unwrap();
    assert_eq!(details.code, status.code() as i32);
    ErrorInfo::decode(&details.details[0].value[..]).unwrap().metadata
}

#[tokio::test]
async fn with_exactly_once_only_the_latest_ack_id_works() {
    let mut world = World::new(exactly_once).await;
    world.publish(&["a", "b"]).await;
    let first = world.pull(10).await;
    world.advance(11).await;
    let second = world.pull(10).await;
    assert_eq!(texts(&second).len(), 2);
    let status = world.try_ack(&first).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    for old in &first {
        assert_eq!(failures(&status)[&old.ack_id], "PERMANENT_FAILURE_INVALID_ACK_ID");
    }
    let status = world.modify(&first[..1], 30).await.unwrap_err();
    assert_eq!(failures(&status).len(), 1);
    // One good, one bad: the good one counts.
    let mixed = [second[0].clone(), first[1].clone()];
    assert_eq!(failures(&world.try_ack(&mixed).await.unwrap_err()).len(), 1);
    assert_eq!(world.counts().backlog, 1);
    world.ack(&second[..1]).await;
    world.ack(&second[1..]).await;
    world.advance(700).await;
    assert!(world.pull(10).await.is_empty());
}

#[tokio::test]
async fn streams_confirm_acks_with_exactly_once() {
    let mut world = World::new(|subscription| {
        exactly_once(subscription);
        ordered(subscription);
    })
    .await;
    let mut stream = world.stream(|_| ()).await;
    world.publish_keyed("k", &["1", "2"]).await;
    let got = stream.take(2).await;
    let properties = stream.properties.unwrap();
    assert!(properties.exactly_once_delivery_enabled && properties.message_ordering_enabled);
    stream.ack(&got[1..]).await;
    stream.ack(&got).await;
    stream.modify(&got[..1], 20).await;
    stream
        .send(StreamingPullRequest {
            ack_ids: vec!["nonsense".to_owned()],
            ..StreamingPullRequest::default()
        })
        .await;
    while stream.acks.len() < 3 || stream.modifications.is_empty() {
        let response = stream.response().await.unwrap().unwrap();
        assert!(stream.note(response).is_empty());
    }
    assert_eq!(stream.acks[0].unordered_ack_ids, [got[1].ack_id.clone()]);
    assert_eq!(stream.acks[1].ack_ids, [got[0].ack_id.clone(), got[1].ack_id.clone()]);
    assert_eq!(stream.modifications[0].invalid_ack_ids, [got[0].ack_id.clone()]);
    assert_eq!(stream.acks[2].invalid_ack_ids, ["nonsense"]);
    // The property can be changed while streams are open, and they are told.
    let subscription = Subscription { name: SUBSCRIPTION.to_owned(), ..Subscription::default() };
    let update_mask = Some(prost_types::FieldMask { paths: vec!["enable_exactly_once_delivery".to_owned()] });
    let request = UpdateSubscriptionRequest { subscription: Some(subscription), update_mask };
    world.subscriber.update_subscription(request).await.unwrap();
    while stream.properties.unwrap().exactly_once_delivery_enabled {
        let response = stream.response().await.unwrap().unwrap();
        stream.note(response);
    }
}

#[tokio::test]
async fn filters_leave_messages_out() {
    let mut world =
        World::new(|subscription| subscription.filter = "attributes.kind = \"a\"".to_owned()).await;
    let with = |kind: &str| PubsubMessage {
        attributes: [("kind".to_owned(), kind.to_owned())].into(),
        ..message("", kind)
    };
    world.try_publish(vec![with("a"), with("b"), message("", "c")]).await.unwrap();
    assert_eq!(texts(&world.pull(10).await), ["a"]);
    assert_eq!(world.counts().subscriptions[SUBSCRIPTION].filtered, 2);
    let wrong = Subscription {
        name: "projects/p/subscriptions/wrong".to_owned(),
        topic: TOPIC.to_owned(),
        filter: "kind = a".to_owned(),
        ..Subscription::default()
    };
    assert_eq!(world.subscriber.create_subscription(wrong).await.unwrap_err().code(), Code::InvalidArgument);
}
