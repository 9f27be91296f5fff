//! Dead letters to a topic, and back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::{Body, Cause, CommitToken, DeadLetter, DeadLetters, Fut, Kind, Result, Source, Stage};
use millstream_pubsub::letters::restore;
use millstream_pubsub::{LetterTopic, PubsubSource};

use crate::world::{SUBSCRIPTION, TOPIC, World, batches, name, release, texts, topic};

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

/// A place for letters that keeps them in memory.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Vec<DeadLetter>>>);

impl DeadLetters for Shelf {
    fn recover<'a>(&'a mut self, _last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(&'a mut self, letters: &'a [DeadLetter]) -> Fut<'a, Result<()>> {
        self.0.lock().unwrap().extend_from_slice(letters);
        Box::pin(async { Ok(()) })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        let written = self.0.lock().unwrap().len() as u8;
        Box::pin(async move { Ok((written > 0).then(|| CommitToken(vec![written]))) })
    }
}

/// Whether a letter fits was asked in another place than where it is published; there one that does not was passed over in silence.
#[tokio::test]
async fn a_letter_that_no_message_can_hold_goes_elsewhere() {
    let world = World::new(|_| {}).await;
    let (dead, shelf) = (topic("projects/p/topics/dead"), Shelf::default());
    let mut out = LetterTopic::new(&world.connection(), dead, None, true, Box::new(shelf.clone())).unwrap();
    out.recover(None).await.unwrap();
    let large = DeadLetter { value: Some(vec![b'x'; 10_000_000]), ..letter(b"", 2) };
    let strange = DeadLetter { headers: vec![(b"goog-x".to_vec(), vec![])], ..letter(b"{", 3) };
    out.write(&[letter(b"{", 1), large, strange, letter(b"{", 4)]).await.unwrap();
    assert_eq!(out.prepare().await.unwrap(), Some(CommitToken(vec![2])), "the token is that of the others");
    assert_eq!(world.server.counts().published, 2);
    assert_eq!(shelf.0.lock().unwrap().iter().map(|letter| letter.offset).collect::<Vec<_>>(), [2, 3]);
}

#[tokio::test]
async fn letters_are_published_before_the_checkpoint_and_come_back_as_records() {
    let world = World::new(|_| {}).await;
    let (dead, subscription) = ("projects/p/topics/dead", "projects/p/subscriptions/dead-sub");
    let others = Box::new(Shelf::default());
    let mut out =
        LetterTopic::new(&world.connection(), topic(dead), Some(name(subscription)), true, others).unwrap();
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
        let mut out = LetterTopic::new(
            &world.connection(),
            topic(of),
            Some(name(subscription)),
            false,
            Box::new(Shelf::default()),
        )
        .unwrap();
        let error = out.recover(None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Fatal);
        let text = error.to_string();
        assert!(text.starts_with("dead letters: ") && text.contains(named), "{text}");
        assert!(text.contains("let `create` make it"), "{text}");
    }
    let mut out = LetterTopic::new(
        &world.connection(),
        topic(TOPIC),
        Some(name(SUBSCRIPTION)),
        false,
        Box::new(Shelf::default()),
    )
    .unwrap();
    out.recover(None).await.unwrap();
}

/// Letters that came back during a replay stayed leased, and filled what the stream may have outstanding: older ones did not come until
/// those leases were over, and the replay had ended by then.
#[tokio::test]
async fn newer_letters_do_not_starve_older_ones() {
    let mut world = World::new(|_| {}).await;
    let text = |of: &str, n: u32| format!("{of} {n}");
    world.publish("", (0..20).map(|n| text("old", n))).await;
    // Someone holds the older ones, so that the newer ones come first.
    let request = pb::PullRequest {
        subscription: SUBSCRIPTION.into(),
        max_messages: 100,
        ..pb::PullRequest::default()
    };
    let held = world.subscriber.pull(request).await.unwrap().into_inner().received_messages;
    assert_eq!(held.len(), 20);
    let newest = held.iter().filter_map(|m| m.message.as_ref()?.publish_time.as_ref());
    let newest = newest.map(|time| time.seconds * 1000 + i64::from(time.nanos) / 1_000_000).max().unwrap();
    world.server.advance(Duration::from_millis(10)).await;
    world.publish("", (0..500).map(|n| text("new", n))).await;

    let change = |config: &mut millstream_pubsub::PubsubConfig| {
        config.streams = 1;
        config.outstanding_messages_max = 100;
        config.published_before_ms = Some(newest + 1);
    };
    let mut source = world.open(change).await;
    world.until("delivered", |c| c.delivered >= 20 + 50).await;
    let give_back = pb::ModifyAckDeadlineRequest {
        subscription: SUBSCRIPTION.into(),
        ack_ids: held.into_iter().map(|m| m.ack_id).collect(),
        ack_deadline_seconds: 0,
    };
    world.subscriber.modify_ack_deadline(give_back).await.unwrap();
    let taken = batches(&mut source, 20).await;
    assert!(texts(&taken).iter().all(|text| text.starts_with("old")));
    assert_eq!(world.server.counts().expired, 0, "no lease had to end for that");
    release(&mut source, taken.last().unwrap()).await;
    source.close(false).await.unwrap();
    let counts = world.until("given back", |c| c.outstanding == 0).await;
    assert_eq!((counts.acked, counts.backlog), (20, 500), "{counts:?}");
}
