//! The source: leases, acknowledgements, flow control, streams that end.

use std::collections::BTreeSet;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::{Budget, Next, Source};
use millstream_pubsub::admin::{look_at, resolve, seek};
use millstream_pubsub::{Client, Create, SeekTo};

use crate::world::{BUDGET, SUBSCRIPTION, TOPIC, World, batch, batches, name, release, texts, topic};

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| n.to_string()).collect()
}

#[tokio::test]
async fn nothing_is_acknowledged_before_it_is_released_and_then_all_of_it() {
    let mut world = World::new(|_| {}).await;
    world.publish(r#"{"id":1}"#, numbers(0..5)).await;
    let mut source = world.open(|_| {}).await;
    let taken = batches(&mut source, 5).await;
    assert_eq!(texts(&taken), numbers(0..5));
    let record = taken[0].records().next().unwrap();
    assert_eq!(record.key(), Some(&br#"{"id":1}"#[..]));
    assert!(record.message_id().is_some() && record.publish_ts_ms().is_some());
    assert_eq!(&*taken[0].partition.0, SUBSCRIPTION);
    assert_eq!(world.server.counts().acked, 0);
    let tell = source.figures().unwrap();
    let held = tell();
    assert_eq!((held.outstanding_messages, held.redelivered), (Some(5), Some(0)));
    assert!(held.outstanding_bytes > Some(0) && held.open_streams > Some(0), "{held:?}");
    assert_eq!(held.outstanding_messages_max, Some(200_000));
    assert_eq!((held.outstanding_bytes_max, held.held_ms), (Some(256 << 20), Some(0)));
    let last = taken.last().unwrap();
    release(&mut source, last).await;
    let left = tell();
    assert_eq!((left.outstanding_messages, left.outstanding_bytes), (Some(0), Some(0)));
    assert_eq!(left.oldest_outstanding_ms, Some(0));
    release(&mut source, last).await;
    let counts = world.until("acknowledged", |c| c.acked == 5).await;
    assert_eq!((counts.outstanding, counts.backlog), (0, 0));
}

#[tokio::test]
async fn a_batch_within_a_response_acknowledges_nothing_and_the_last_one_all() {
    let mut world = World::new(|_| {}).await;
    world.publish("", numbers(0..10)).await;
    let mut source = world.open(|config| config.streams = 1).await;
    let small = Budget { records: 3, bytes: 1 << 20 };
    let mut taken = Vec::new();
    while texts(&taken).len() < 10 {
        if let Next::Batch(batch) = source.next(small).await.unwrap() {
            assert!(batch.slots.len() <= 3);
            taken.push(batch);
        }
    }
    assert_eq!(texts(&taken), numbers(0..10));
    release(&mut source, &taken[1]).await;
    source.close(false).await.unwrap();
    assert_eq!(world.server.counts().acked, 0, "a response is acknowledged as a whole");
    let mut source = world.open(|_| {}).await;
    // The lease of the first source ends.
    world.server.advance(Duration::from_secs(31)).await;
    let again = batches(&mut source, 10).await;
    release(&mut source, again.last().unwrap()).await;
    world.until("acknowledged", |c| c.acked == 10).await;
}

#[tokio::test]
async fn positions_of_another_run_acknowledge_nothing() {
    let mut world = World::new(|_| {}).await;
    world.publish("", numbers(0..3)).await;
    let mut first = world.open(|_| {}).await;
    let taken = batches(&mut first, 3).await;
    drop(first);
    world.until("left", |c| c.streams == 0).await;
    world.server.advance(Duration::from_secs(31)).await;
    let mut second = world.open(|_| {}).await;
    assert_eq!(batches(&mut second, 3).await.iter().map(|b| b.slots.len()).sum::<usize>(), 3);
    release(&mut second, taken.last().unwrap()).await;
    second.close(false).await.unwrap();
    assert_eq!(world.server.counts().acked, 0);
}

#[tokio::test]
async fn leases_live_as_long_as_their_messages_are_held() {
    let mut world = World::new(|s| s.ack_deadline_seconds = 10).await;
    world.publish("", numbers(0..20)).await;
    let mut source = world.open(|config| config.lease = Duration::from_secs(10)).await;
    let taken = batches(&mut source, 20).await;
    // Longer than a lease, in the time of both sides.
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert!(matches!(source.next(BUDGET).await.unwrap(), Next::Idle));
    let counts = world.server.counts();
    assert_eq!((counts.expired, counts.delivered), (0, 20), "{counts:?}");
    release(&mut source, taken.last().unwrap()).await;
    world.until("acknowledged", |c| c.acked == 20).await;
}

#[tokio::test]
async fn a_message_that_is_held_too_long_is_given_up_and_said_so() {
    let mut world = World::new(|_| {}).await;
    world.publish("", numbers(0..2)).await;
    let change = |config: &mut millstream_pubsub::PubsubConfig| {
        config.lease = Duration::from_secs(10);
        config.lease_max = Duration::from_secs(1);
    };
    let mut source = world.open(change).await;
    let taken = batches(&mut source, 2).await;
    let notices = loop {
        let notices = source.notices();
        if !notices.is_empty() {
            break notices;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(notices[0].code, "lease_given_up");
    assert!(notices[0].text.starts_with("2 messages"), "{}", notices[0].text);
    release(&mut source, taken.last().unwrap()).await;
    source.close(false).await.unwrap();
    assert_eq!(world.server.counts().acked, 0);
}

/// With a sink that does not get on, nothing is released: the service keeps the backlog, and the pull goes on by itself afterwards.
#[tokio::test]
async fn what_is_outstanding_never_passes_the_budget() {
    let mut world = World::new(|_| {}).await;
    world.publish("", numbers(0..1000)).await;
    let mut source = world.open(|config| config.outstanding_messages_max = 200).await;
    let mut taken = Vec::new();
    let mut held = 0;
    while texts(&taken).len() < 1000 {
        match source.next(BUDGET).await.unwrap() {
            Next::Batch(batch) => taken.push(batch),
            Next::Held => {
                held += 1;
                let counts = world.server.counts();
                assert!(counts.outstanding <= 200, "{counts:?}");
                assert_eq!(texts(&taken).len() as u64, counts.outstanding + counts.acked, "{counts:?}");
                release(&mut source, taken.last().unwrap()).await;
            }
            Next::Idle | Next::Waiting => assert!(world.server.counts().outstanding <= 200),
            Next::End => panic!("a subscription has no end"),
        }
    }
    assert!(held >= 4, "{held}");
    assert!(source.figures().unwrap()().held_ms.is_some());
    assert_eq!(texts(&taken).into_iter().collect::<BTreeSet<_>>().len(), 1000);
}

#[tokio::test]
async fn large_messages_are_bounded_by_bytes() {
    let mut world = World::new(|_| {}).await;
    for _ in 0..6 {
        world.publish("", ["x".repeat(9 << 20)]).await;
    }
    let change = |config: &mut millstream_pubsub::PubsubConfig| {
        config.outstanding_bytes_max = 20 << 20;
        config.streams = 1;
    };
    let mut source = world.open(change).await;
    let mut seen = 0;
    while seen < 6 {
        match source.next(BUDGET).await.unwrap() {
            Next::Batch(batch) => {
                seen += batch.slots.len();
                assert_eq!(batch.slots.len(), 1, "a large record comes alone");
                // The limit may be passed by the last message.
                assert!(world.server.counts().outstanding <= 3);
                release(&mut source, &batch).await;
            }
            Next::Idle | Next::Held | Next::Waiting => {}
            Next::End => panic!("a subscription has no end"),
        }
    }
}

#[tokio::test]
async fn a_cancelled_source_gives_its_messages_back_and_a_drained_one_acknowledges() {
    let mut world = World::new(|_| {}).await;
    world.publish("", numbers(0..50)).await;
    let mut source = world.open(|_| {}).await;
    batches(&mut source, 50).await;
    source.close(true).await.unwrap();
    let counts = world.until("given back", |c| c.nacked == 50).await;
    assert_eq!(counts.acked, 0);
    // At once, without any lease having ended.
    let mut source = world.open(|_| {}).await;
    let taken = batches(&mut source, 50).await;
    release(&mut source, taken.last().unwrap()).await;
    source.close(false).await.unwrap();
    assert_eq!(world.server.counts().acked, 50, "close waits for acknowledgements");
}

#[tokio::test]
async fn streams_that_are_cut_are_opened_again_and_nothing_is_lost() {
    let mut world = World::new(|_| {}).await;
    world.faults("seed=7,cut=0.3,unavailable=0.2,lost_ack=0.1,duplicate=0.1,reorder=0.2");
    for round in 0..20 {
        let mut tries = 0;
        loop {
            let messages = numbers(round * 50..round * 50 + 50)
                .into_iter()
                .map(|n| pb::PubsubMessage { data: n.into_bytes().into(), ..pb::PubsubMessage::default() })
                .collect();
            let request = pb::PublishRequest { topic: TOPIC.to_owned(), messages };
            if world.publisher.publish(request).await.is_ok() {
                break;
            }
            tries += 1;
            assert!(tries < 100);
        }
    }
    let mut source = world.open(|_| {}).await;
    let mut seen = BTreeSet::new();
    while seen.len() < 1000 {
        let batch = batch(&mut source).await;
        seen.extend(texts([&batch]));
        release(&mut source, &batch).await;
        world.server.advance(Duration::from_secs(5)).await;
    }
    assert!(world.server.counts().faults > 10);
}

#[tokio::test]
async fn exactly_once_delivery_confirms_acknowledgements() {
    let mut world = World::new(|s| {
        s.enable_exactly_once_delivery = true;
        s.enable_message_ordering = true;
    })
    .await;
    for key in ["a", "b"] {
        world.publish(key, numbers(0..100)).await;
    }
    let mut source = world.open(|_| {}).await;
    let taken = batches(&mut source, 200).await;
    let last = taken.last().unwrap();
    // Leases end on the server's side: their acknowledgements fail for good, and the messages come again.
    world.server.advance(Duration::from_secs(31)).await;
    let again = batches(&mut source, 200).await;
    release(&mut source, last).await;
    release(&mut source, again.last().unwrap()).await;
    source.close(false).await.unwrap();
    let counts = world.server.counts();
    assert_eq!((counts.acked, counts.backlog), (200, 0), "{counts:?}");
}

#[tokio::test]
async fn permanently_failed_acknowledgements_are_told() {
    let mut world = World::new(|s| s.enable_exactly_once_delivery = true).await;
    world.publish("", numbers(0..3)).await;
    let mut source = world.open(|_| {}).await;
    let taken = batches(&mut source, 3).await;
    world.server.advance(Duration::from_secs(31)).await;
    release(&mut source, taken.last().unwrap()).await;
    let notice = loop {
        if let Some(notice) = source.notices().pop() {
            break notice;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(notice.code, "ack_lost");
    assert!(notice.text.contains(SUBSCRIPTION), "{}", notice.text);
}

#[tokio::test]
async fn subscriptions_are_made_found_by_prefix_looked_at_and_sought() {
    let mut world = World::new(|_| {}).await;
    let made = ["cdc.a-sub", "cdc.b-sub"].map(|id| name(&format!("projects/p/subscriptions/{id}")));
    let create = Create {
        topics: vec![topic("projects/p/topics/cdc.a"), topic("projects/p/topics/cdc.b")],
        ack_deadline: Duration::from_secs(90),
        ordering: true,
        exactly_once: true,
        dead_letter_topic: Some(topic("projects/p/topics/dead")),
        delivery_attempts_max: 50,
    };
    for _ in 0..2 {
        let change = |config: &mut millstream_pubsub::PubsubConfig| {
            config.subscriptions = made.to_vec();
            config.create = Some(create.clone());
        };
        drop(world.open(change).await);
    }
    let client = Client::new(&world.connection(), 1).unwrap();
    let facts = look_at(&client, &made[1]).await.unwrap();
    assert_eq!(facts.ack_deadline, Duration::from_secs(90));
    assert_eq!((facts.ordering, facts.exactly_once, facts.delivery_attempts_max), (true, true, Some(50)));
    assert_eq!(facts.topic, "projects/p/topics/cdc.b");
    let mut by_prefix = world.config();
    by_prefix.subscriptions.clear();
    by_prefix.prefix = Some(("projects/p".into(), "cdc.".into()));
    assert_eq!(resolve(&client, &by_prefix).await.unwrap(), made);
    by_prefix.prefix = Some(("projects/p".into(), "none".into()));
    let error = resolve(&client, &by_prefix).await.unwrap_err().to_string();
    assert!(error.contains("`none`"), "{error}");

    world.publish("", numbers(0..4)).await;
    seek(&client, &name(SUBSCRIPTION), &SeekTo::TimeMs(4_000_000_000_000)).await.unwrap();
    world.until("skipped", |c| c.backlog == 0).await;
}

#[tokio::test]
async fn several_subscriptions_are_partitions_of_their_own() {
    let mut world = World::new(|_| {}).await;
    let other = "projects/p/subscriptions/other";
    let subscription =
        pb::Subscription { name: other.into(), topic: TOPIC.into(), ..pb::Subscription::default() };
    world.subscriber.create_subscription(subscription).await.unwrap();
    world.publish("", numbers(0..10)).await;
    let mut source = world.open(|config| config.subscriptions.push(name(other))).await;
    let taken = batches(&mut source, 20).await;
    for partition in [SUBSCRIPTION, other] {
        let of: Vec<_> = taken.iter().filter(|b| &*b.partition.0 == partition).collect();
        assert_eq!(texts(of.iter().copied()).into_iter().collect::<BTreeSet<_>>().len(), 10);
        release(&mut source, of.last().unwrap()).await;
        let acked = if partition == SUBSCRIPTION { 10 } else { 20 };
        world.until("acknowledged", |c| c.acked == acked).await;
    }
}

/// A subscription rested only once all were silent: a busy one let the watermark wait for those that have a message an hour.
#[tokio::test]
async fn a_silent_subscription_rests_beside_a_busy_one() {
    let mut world = World::new(|_| {}).await;
    let (quiet_topic, quiet) = ("projects/p/topics/quiet", "projects/p/subscriptions/quiet-sub");
    world
        .publisher
        .create_topic(pb::Topic { name: quiet_topic.into(), ..pb::Topic::default() })
        .await
        .unwrap();
    let subscription =
        pb::Subscription { name: quiet.into(), topic: quiet_topic.into(), ..pb::Subscription::default() };
    world.subscriber.create_subscription(subscription).await.unwrap();
    let message = pb::PubsubMessage { data: b"one".to_vec().into(), ..pb::PubsubMessage::default() };
    let request = pb::PublishRequest { topic: quiet_topic.into(), messages: vec![message] };
    world.publisher.publish(request).await.unwrap();
    let mut source = world.open(|config| config.subscriptions.push(name(quiet))).await;
    assert_eq!(&*batch(&mut source).await.partition.0, quiet);

    // Far more than is taken until the other one was silent for a poll.
    for _ in 0..20 {
        world.publish("", numbers(0..1000)).await;
    }
    let one = Budget { records: 1, bytes: 1 << 20 };
    for _ in 0..20_000 {
        let next = source.next(one).await.unwrap();
        let resting = source.resting();
        assert!(resting.iter().all(|partition| &*partition.0 == quiet), "the busy one does not rest");
        if !resting.is_empty() {
            return assert!(matches!(next, Next::Batch(_)), "while the other gives");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never rested");
}
