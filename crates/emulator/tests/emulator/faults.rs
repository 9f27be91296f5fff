//! Every fault, at a rate of one or by script, so that nothing depends on luck.

use std::collections::BTreeMap;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::*;
use tonic::Code;

use crate::world::{SUBSCRIPTION, TOPIC, World, ids, message, texts};

#[tokio::test]
async fn calls_fail_before_or_after_they_did_something() {
    let mut world = World::new(|_| ()).await;
    world.faults("unavailable=1");
    let failed = world.try_publish(vec![message("", "a")]).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    let mut stream = world.stream(|_| ()).await;
    assert_eq!(stream.end().await.code(), Code::Unavailable);
    world.faults("lost_answer=1");
    let failed = world.try_publish(vec![message("", "b")]).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    world.faults("script=Publish@2:ABORTED");
    world.publish(&["c"]).await;
    assert_eq!(world.try_publish(vec![message("", "d")]).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(texts(&world.pull(10).await), ["b", "c"]);
    assert_eq!(world.counts().faults, 4);
}

#[tokio::test]
async fn resources_are_refused() {
    let mut world = World::new(|_| ()).await;
    world.faults(
        "deny=projects/p/topics/*:PERMISSION_DENIED,deny=projects/p/subscriptions/orders:UNAUTHENTICATED",
    );
    let failed = world.try_publish(vec![message("", "a")]).await.unwrap_err();
    assert_eq!(failed.code(), Code::PermissionDenied);
    let mut stream = world.stream(|_| ()).await;
    assert_eq!(stream.end().await.code(), Code::Unauthenticated);
    let request = GetTopicRequest { topic: TOPIC.to_owned() };
    assert_eq!(world.publisher.get_topic(request).await.unwrap_err().code(), Code::PermissionDenied);
}

#[tokio::test]
async fn streams_are_cut_and_lose_nothing() {
    let mut world = World::new(|_| ()).await;
    world.publish(&["a"]).await;
    world.faults("cut=1");
    let mut stream = world.stream(|_| ()).await;
    assert_eq!(texts(&stream.take(1).await), ["a"]);
    assert_eq!(stream.end().await.code(), Code::Unavailable);
    world.faults("script=StreamingPull@1:cut:1");
    world.advance(11).await;
    let mut stream = world.stream(|_| ()).await;
    assert_eq!(texts(&stream.take(1).await), ["a"]);
    assert_eq!(stream.end().await.code(), Code::Unavailable);
    world.advance(11).await;
    let mut stream = world.stream(|_| ()).await;
    assert_eq!(texts(&stream.take(1).await), ["a"]);
}

#[tokio::test]
async fn deliveries_come_twice_though_acknowledged() {
    let mut world = World::new(|_| ()).await;
    world.publish(&["a", "b"]).await;
    world.faults("duplicate=1");
    let got = world.pull(10).await;
    world.faults("");
    world.ack(&got).await;
    assert_eq!(texts(&world.pull(10).await), ["a", "b"]);
}

#[tokio::test]
async fn unordered_messages_are_shuffled_and_keys_are_not() {
    let names: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for ordered in [false, true] {
        let mut world = World::new(|subscription| subscription.enable_message_ordering = ordered).await;
        world.publish_keyed("k", &names).await;
        world.faults("reorder=1,seed=5");
        let got = texts(&world.pull(1000).await);
        assert_eq!(got == names, ordered);
        let mut sorted = got;
        sorted.sort_by_key(|name| name.parse::<u32>().unwrap());
        assert_eq!(sorted, names);
    }
}

#[tokio::test]
async fn acks_are_lost_and_slow_and_leases_short() {
    let mut world = World::new(|_| ()).await;
    world.publish(&["a"]).await;
    world.faults("lost_ack=1");
    let got = world.pull(10).await;
    world.ack(&got).await;
    world.faults("slow_ack=1,slow_ack_millis=300");
    world.advance(11).await;
    let got = world.pull(10).await;
    assert_eq!(texts(&got), ["a"]);
    let before = std::time::Instant::now();
    world.ack(&got).await;
    assert!(before.elapsed().as_millis() >= 300);
    assert_eq!(world.counts().backlog, 0);
    world.publish(&["b"]).await;
    world.faults("early_expiry=1");
    world.pull(10).await;
    world.advance(1).await;
    assert_eq!(texts(&world.pull(10).await), ["b"]);
}

/// At-least-once delivery under all faults at once: every message is acknowledged in the end, and each key's messages
/// are first seen in their order.
#[tokio::test]
async fn under_all_faults_nothing_is_lost_and_keys_keep_their_order() {
    let mut world = World::new(|subscription| subscription.enable_message_ordering = true).await;
    world.faults(
        "seed=11,unavailable=0.05,lost_answer=0.05,cut=0.2,duplicate=0.05,reorder=0.5,lost_ack=0.05,early_expiry=0.02",
    );
    let mut wanted: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for n in 0..400u32 {
        let key = format!("k{}", n % 7);
        while world.try_publish(vec![message(&key, &n.to_string())]).await.is_err() {}
        wanted.entry(key).or_default().push(n);
    }
    let mut seen: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    while world.counts().subscriptions[SUBSCRIPTION].backlog > 0 {
        let mut stream = world.stream(|first| first.client_id = "me".to_owned()).await;
        while let Ok(Ok(Some(response))) =
            tokio::time::timeout(std::time::Duration::from_millis(60), stream.responses.message()).await
        {
            for received in &response.received_messages {
                let message = received.message.clone().unwrap();
                let n: u32 = std::str::from_utf8(&message.data).unwrap().parse().unwrap();
                let of_key = seen.entry(message.ordering_key).or_default();
                if !of_key.contains(&n) {
                    of_key.push(n);
                }
            }
            let acks =
                StreamingPullRequest { ack_ids: ids(&response.received_messages), ..Default::default() };
            // A stream that was cut takes none.
            let _ = stream.requests.send(acks).await;
        }
        drop(stream);
        world.advance(11).await;
    }
    assert_eq!(seen, wanted);
    assert!(world.counts().faults > 50);
}
