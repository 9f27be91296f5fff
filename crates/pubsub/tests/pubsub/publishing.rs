//! The publishing sink.

use std::sync::Arc;
use std::task::{Context, Waker};

use millstream_core::record::{Range, Slot};
use millstream_core::sink::Judged;
use millstream_core::{
    Column, Error, Event, EventId, Facts, Incarnation, Key, Kind, Op, Order, Output, OutputBatch,
    PartitionId, Position, RecordBatch, RowBuilder, RowSchema, Sink, TableName, Type, Value,
};
use millstream_pubsub::sink::{Format, SinkConfig};
use millstream_pubsub::{Client, Message, Publisher, PubsubSink};

use crate::world::{TOPIC, World, batches, texts, topic};

/// Events of keys 0, 1 and 2 in turn; event 3 came twice, and record 4 has a key that is too long.
fn output() -> OutputBatch {
    let schema = Arc::new(RowSchema {
        table: TableName::new("db", "public", "orders").into(),
        columns: vec![Column { name: "id".into(), ty: Type::Int64, nullable: false, guessed: false }],
        key: vec![0],
    });
    let mut buffer = Vec::new();
    let mut put = |text: &str| {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(text.as_bytes());
        Some(Range { start, len: text.len() as u32 })
    };
    let mut slots = Vec::new();
    let mut outputs = Vec::new();
    for n in 0..9u32 {
        let key = if n == 4 { "k".repeat(1025) } else { format!(r#"{{"id":{}}}"#, n % 3) };
        slots.push(Slot { value: put(&n.to_string()), key: put(&key), ..Slot::default() });
        let mut row = RowBuilder::new();
        row.push(Value::Int(i64::from(n % 3)));
        let event = Event {
            schema: schema.clone(),
            op: Op::Create,
            key: Some(Key::from_values([Value::Int(i64::from(n % 3))])),
            old_key: None,
            new_key: None,
            order: Order::from_sections(&[u64::from(n)]),
            p_known: true,
            id: EventId::new(Incarnation(0), u128::from(n), false),
            row: row.finish(),
            before: None,
            full_before: false,
            facts: Facts::default(),
            origin: Default::default(),
            record: n,
        };
        let distinct = n != 3;
        outputs.push(Output::Event(Judged {
            event: Box::new(event),
            distinct,
            newest: distinct,
            late: false,
            filled: None,
        }));
    }
    let records =
        RecordBatch { partition: PartitionId::new("p"), buffer, slots, position: Position::default() };
    OutputBatch { outputs, records: Arc::new(records) }
}

async fn publish(world: &World, format: Format, ordering_keys: bool) {
    let config = SinkConfig {
        connection: world.connection(),
        topic: topic(TOPIC),
        format,
        ordering_keys,
        create: true,
    };
    let mut sink = PubsubSink::new(config).unwrap();
    sink.recover(None).await.unwrap();
    let report = sink.write(&output()).await.unwrap();
    let refused: Vec<_> = report.rejected.iter().map(|r| (r.output, r.cause.code)).collect();
    let expected: &[(usize, &str)] =
        if format == Format::Record { &[(4, "ordering_key_too_long")] } else { &[] };
    assert_eq!(refused, expected);
    assert_eq!((report.written, report.duplicates), (8 - expected.len() as u64, 1));
    assert_eq!(sink.prepare().await.unwrap(), None);
    assert_eq!(world.server.counts().published, report.written, "prepare waits until all is published");
}

#[tokio::test]
async fn records_are_published_as_they_came_in_the_order_of_their_keys() {
    let world = World::new(|s| s.enable_message_ordering = true).await;
    // Answers are lost, and requests sent again; within a key the order stays.
    world.faults("seed=3,unavailable=0.3");
    publish(&world, Format::Record, true).await;
    world.faults("");
    let mut source = world.open(|_| {}).await;
    let taken = batches(&mut source, 7).await;
    for (key, expected) in [(0, vec!["0", "6"]), (1, vec!["1", "7"]), (2, vec!["2", "5", "8"])] {
        let key = format!(r#"{{"id":{key}}}"#);
        let of: Vec<String> = taken
            .iter()
            .flat_map(|b| b.records().zip(texts([b])))
            .filter(|(record, _)| record.key() == Some(key.as_bytes()))
            .map(|(_, text)| text)
            .collect();
        assert_eq!(of, expected);
    }
}

#[tokio::test]
async fn events_are_published_as_json() {
    let world = World::new(|_| {}).await;
    publish(&world, Format::Event, false).await;
    let mut source = world.open(|_| {}).await;
    let taken = batches(&mut source, 8).await;
    let first = texts(&taken).remove(0);
    assert!(
        first.starts_with(r#"{"table":"public.orders","op":"c","order":"0000000000000000","key":{"id":0}"#),
        "{first}"
    );
    assert!(taken.iter().flat_map(|b| b.records()).all(|record| record.key().is_none()));
    let names: Vec<_> = taken[0].records().next().unwrap().headers().map(|h| h.name.to_vec()).collect();
    assert_eq!(names, [&b"op"[..], b"order", b"table"]);
}

/// There is no record behind a sweep that could be published as it came: it became a dead letter, as an empty message.
#[tokio::test]
async fn a_sweep_is_published_as_an_event_only() {
    for (format, expected) in [(Format::Record, (0, 1)), (Format::Event, (1, 0))] {
        let world = World::new(|_| {}).await;
        let config = SinkConfig {
            connection: world.connection(),
            topic: topic(TOPIC),
            format,
            ordering_keys: true,
            create: true,
        };
        let mut sink = PubsubSink::new(config).unwrap();
        sink.recover(None).await.unwrap();
        let table = TableName::new("db", "public", "orders");
        let event = Box::new(Event::sweep(table.clone(), Incarnation(1)));
        let judged = Judged { event, distinct: true, newest: true, late: false, filled: None };
        let records = RecordBatch {
            partition: PartitionId::new("p"),
            buffer: Vec::new(),
            slots: vec![Slot { sweep: Some(Box::new(table)), ..Slot::default() }],
            position: Position::default(),
        };
        let batch = OutputBatch { outputs: vec![Output::Event(judged)], records: Arc::new(records) };
        let report = sink.write(&batch).await.unwrap();
        assert_eq!(report.rejected, []);
        assert_eq!((report.written, report.filtered), expected);
        sink.prepare().await.unwrap();
        assert_eq!(world.server.counts().published, expected.0);
    }
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_named() {
    let world = World::new(|_| {}).await;
    let missing = topic("projects/p/topics/missing");
    let config = SinkConfig {
        connection: world.connection(),
        topic: missing,
        format: Format::Record,
        ordering_keys: true,
        create: false,
    };
    let mut sink = PubsubSink::new(config).unwrap();
    let says = |error: Error| {
        let text = error.to_string();
        assert!(text.contains("projects/p/topics/missing") && text.contains("does not exist"), "{text}");
        assert_eq!(error.kind(), Kind::Fatal);
    };
    says(sink.recover(None).await.unwrap_err());
    // One that is deleted while the pipeline runs.
    sink.write(&output()).await.unwrap();
    says(sink.prepare().await.unwrap_err());
}

/// An account that publishes need not be allowed to look, and a service that is away at the start may come back.
#[tokio::test]
async fn a_topic_that_cannot_be_seen_may_be_there() {
    let world = World::new(|_| {}).await;
    for faults in ["script=GetTopic@1*9:PERMISSION_DENIED", "script=GetTopic@1*9:UNAVAILABLE"] {
        world.faults(faults);
        let config = SinkConfig {
            connection: world.connection(),
            topic: topic(TOPIC),
            format: Format::Record,
            ordering_keys: true,
            create: false,
        };
        PubsubSink::new(config).unwrap().recover(None).await.unwrap();
    }
}

/// After a request that failed, the requests of other keys were cut off on their way, and what was added later was published over the
/// gap: messages were gone, and a key's newer ones came before its older ones.
#[tokio::test]
async fn a_round_that_fails_leaves_no_gap() {
    let world = World::new(|s| s.enable_message_ordering = true).await;
    let publisher = || Publisher::new(Client::new(&world.connection(), 1).unwrap(), topic(TOPIC));
    let message = |n: u32| Message {
        data: n.to_string().into_bytes(),
        ordering_key: r#"{"id":1}"#.to_owned(),
        ..Message::default()
    };
    // Three requests, which follow each other.
    world.faults("script=Publish@2:PERMISSION_DENIED");
    let mut failing = publisher();
    for n in 0..2500 {
        failing.add(message(n)).await.unwrap();
    }
    let error = failing.publish().await.unwrap_err().to_string();
    assert!(error.contains("permission denied"), "{error}");
    assert_eq!(world.server.counts().published, 1000, "the third does not overtake the second");
    let error = failing.add(message(2500)).await.unwrap_err().to_string();
    assert!(error.contains("failed before") && error.contains(TOPIC), "{error}");
    assert!(failing.publish().await.is_err(), "what it had is not published, and not forgotten either");

    // All of it comes again from the last checkpoint.
    let mut again = publisher();
    for n in 0..2500 {
        again.add(message(n)).await.unwrap();
    }
    again.publish().await.unwrap();
    let mut source = world.open(|_| {}).await;
    let taken = texts(&batches(&mut source, 3500).await);
    let expected: Vec<_> = (0..1000).chain(0..2500).map(|n: u32| n.to_string()).collect();
    assert_eq!(taken, expected);
}

/// A publisher whose wait was given up counted as one that had published everything.
#[tokio::test]
async fn a_round_that_nobody_waits_for_is_not_a_good_one() {
    let world = World::new(|_| {}).await;
    let mut publisher = Publisher::new(Client::new(&world.connection(), 1).unwrap(), topic(TOPIC));
    publisher.add(Message { data: b"1".to_vec(), ..Message::default() }).await.unwrap();
    let mut round = Box::pin(publisher.publish());
    assert!(round.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(round);
    assert!(publisher.publish().await.is_err());
}
