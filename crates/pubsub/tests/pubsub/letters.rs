//! Dead letters to a topic, and back.

use millstream_core::{Body, Cause, DeadLetter, DeadLetters, Kind, Source, Stage};
use millstream_pubsub::letters::restore;
use millstream_pubsub::{LetterTopic, PubsubSource};

use crate::world::{SUBSCRIPTION, TOPIC, World, batches, name, release, topic};

fn letter(value: &[u8], n: u64) -> DeadLetter {
    DeadLetter {
        stage: Stage::Parse,
        cause: Cause::new("invalid_json", "expected a value at byte 0"),
        table: None,
        sink: None,
        value: Some(value.to_vec()),
        key: Some(b"{\"id\":7}".to_vec()),
        headers: vec![(b"h".to_vec(), b"v".to_vec())],
        topic: None,
        partition: "projects/p/subscriptions/s".into(),
        offset: n,
        message_id: Some(n.to_string().into_bytes()),
        publish_ts_ms: Some(1),
        attempt: 1,
    }
}

#[tokio::test]
async fn letters_are_published_before_the_checkpoint_and_come_back_as_records() {
    let world = World::new(|_| {}).await;
    let (dead, subscription) = ("projects/p/topics/dead", "projects/p/subscriptions/dead-sub");
    let mut out = LetterTopic::new(&world.connection(), topic(dead), Some(name(subscription)), true).unwrap();
    out.recover(None).await.unwrap();
    out.recover(None).await.unwrap();
    out.write(&[letter(b"\xff\x00{", 1), letter(b"{", 2)]).await.unwrap();
    assert_eq!(out.prepare().await.unwrap(), None);
    assert_eq!(world.server.counts().published, 2, "prepare waits until they are published");

    let mut config = world.config();
    config.subscriptions = vec![name(subscription)];
    let mut source = PubsubSource::new(config.clone()).unwrap();
    source.open(&[]).await.unwrap();
    let mut taken = batches(&mut source, 2).await;
    for batch in &mut taken {
        restore(&mut batch.slots, &mut batch.buffer);
    }
    let records: Vec<_> = taken.iter().flat_map(|b| b.records()).collect();
    assert!(records.iter().any(|r| r.body() == Body::Value(b"\xff\x00{")));
    assert!(records.iter().all(|r| r.key() == Some(b"{\"id\":7}") && r.headers().len() == 1));
    assert!(taken.iter().flat_map(|b| &b.slots).all(|slot| slot.failures == 1));
    release(&mut source, taken.last().unwrap()).await;
    source.close(false).await.unwrap();

    // What fails again is published again, and is not taken by the same replay.
    config.published_before_ms = Some(0);
    out.write(&[letter(b"{", 2)]).await.unwrap();
    out.prepare().await.unwrap();
    let mut source = PubsubSource::new(config).unwrap();
    source.open(&[]).await.unwrap();
    world.until("delivered", |c| c.delivered == 3).await;
    for _ in 0..5 {
        assert!(matches!(source.next(crate::world::BUDGET).await.unwrap(), millstream_core::Next::Idle));
    }
    assert_eq!(world.server.counts().acked, 2);
}

/// A topic that does not exist was found out with the first bad record, perhaps after months; and letters that are published before
/// their subscription is made are in none.
#[tokio::test]
async fn a_topic_or_subscription_that_does_not_exist_fails_the_start() {
    let world = World::new(|_| {}).await;
    let (missing, missing_sub) = ("projects/p/topics/missing", "projects/p/subscriptions/missing-sub");
    for (of, subscription, named) in [(missing, SUBSCRIPTION, missing), (TOPIC, missing_sub, missing_sub)] {
        let mut out =
            LetterTopic::new(&world.connection(), topic(of), Some(name(subscription)), false).unwrap();
        let error = out.recover(None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Fatal);
        let text = error.to_string();
        assert!(text.starts_with("dead letters: ") && text.contains(named), "{text}");
        assert!(text.contains("let `create` make it"), "{text}");
    }
    let mut out =
        LetterTopic::new(&world.connection(), topic(TOPIC), Some(name(SUBSCRIPTION)), false).unwrap();
    out.recover(None).await.unwrap();
}
