//! Flattened events.

use std::sync::Arc;

use millstream_core::decoder::ControlKind;
use millstream_core::{Decoded, Event, Key, Op, TableName, Value};
use millstream_decode::{FlatOptions, Options, debezium_flat};

use crate::corpus::{decode, empty_batch, push, show_value};

fn flat(
    options: Options,
    topic: Option<&str>,
    key: Option<&str>,
    value: Option<&str>,
    headers: &[(&str, &str)],
) -> Decoded {
    let mut batch = empty_batch();
    let bytes = |t: &str| t.as_bytes().to_vec();
    let headers: Vec<_> = headers.iter().map(|(n, v)| (bytes(n), bytes(v))).collect();
    push(&mut batch, topic.map(bytes), key.map(bytes), value.map(bytes), &headers);
    decode(&mut *debezium_flat(Arc::new(options)), &batch).remove(0)
}

fn event(item: Decoded) -> Event {
    match item {
        Decoded::Event(event) => *event,
        other => panic!("{other:?}"),
    }
}

const TOPIC: Option<&str> = Some("prefix.public.orders");
const KEY: Option<&str> = Some(r#"{"id":1}"#);

#[test]
fn added_fields_tell_op_table_and_order() {
    let value =
        r#"{"id":1,"n":2,"__deleted":"false","__op":"c","__table":"orders","__lsn":80,"__source_ts_ms":5}"#;
    let e = event(flat(Options::default(), TOPIC, KEY, Some(value), &[]));
    assert_eq!((e.op, e.order.sections(), e.p_known), (Op::Create, &[0, 80, 80][..], true));
    assert_eq!(*e.schema.table, TableName::new("", "public", "orders"));
    assert_eq!(e.row.iter().map(show_value).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!((e.facts.ts_ms, e.facts.ts_us, e.facts.lsn), (Some(5), Some(5000), Some(80)));
    assert_eq!(e.key, Some(Key::from_values([Value::Int(1)])));
}

#[test]
fn headers_serve_as_well_and_names_are_free() {
    let names = FlatOptions { op: "op".into(), lsn: "pos".into(), ..FlatOptions::default() };
    let options = Options { flat: names, ..Options::default() };
    let wrapped = r#"{"schema":{"type":"int64"},"payload":80}"#;
    let e = event(flat(options, TOPIC, KEY, Some(r#"{"id":1,"op":"u"}"#), &[("pos", wrapped)]));
    assert_eq!((e.op, e.order.sections()), (Op::Update, &[0, 80, 80][..]));
}

#[test]
fn deletes_in_every_handling_mode() {
    let rewrite = r#"{"id":1,"n":0,"__deleted":"true","__op":"d","__lsn":80}"#;
    let e = event(flat(Options::default(), TOPIC, KEY, Some(rewrite), &[]));
    assert_eq!(
        (e.op, e.row.iter().map(show_value).collect::<Vec<_>>()),
        (Op::Delete, vec!["1".into(), "∅".into()])
    );
    // In tombstone mode the headers are all there is of a delete.
    let headers = [("__op", r#""d""#), ("__lsn", "80"), ("__table", r#""orders""#)];
    for value in [None, Some("null"), Some(r#"{"schema":null,"payload":null}"#)] {
        let e = event(flat(Options::default(), TOPIC, KEY, value, &headers));
        assert_eq!((e.op, e.order.sections(), e.row.len()), (Op::Delete, &[0, 80, 80][..], 1));
    }
    // After a rewritten delete comes a tombstone without them.
    for value in [None, Some("null")] {
        match flat(Options::default(), TOPIC, KEY, value, &[]) {
            Decoded::Control(control) => assert_eq!(control.kind, ControlKind::Tombstone),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_missing_is_said() {
    let code = |value: &str, topic| match flat(Options::default(), topic, KEY, Some(value), &[]) {
        Decoded::Dead(dead) => dead.cause.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(r#"{"id":1,"__op":"c"}"#, TOPIC), "missing_field");
    assert_eq!(code(r#"{"id":1,"__op":"c","__lsn":"x"}"#, TOPIC), "wrong_type");
    assert_eq!(code(r#"{"id":1,"__op":"x","__lsn":1}"#, TOPIC), "unknown_op");
    assert_eq!(code(r#"{"id":1,"__op":"c","__lsn":1}"#, None), "missing_field");
    assert_eq!(code(r#"{"id":1,"id":1,"__op":"c","__lsn":1}"#, TOPIC), "duplicate_field");
    assert_eq!(code(r#"{"id":1,"__op":"c","__op":"c","__lsn":1}"#, TOPIC), "duplicate_field");
    assert_eq!(code(r#"{"id":1,"__op":"c","__lsn":1"#, TOPIC), "invalid_json");
}

#[test]
fn the_table_may_be_configured() {
    let table = TableName::new("d", "s", "t");
    let names = FlatOptions { default_table: Some(table.clone()), ..FlatOptions::default() };
    let options = Options { flat: names, ..Options::default() };
    let e = event(flat(options, None, KEY, Some(r#"{"id":1,"__op":"c","__lsn":1}"#), &[]));
    assert_eq!(*e.schema.table, table);
}

#[test]
fn records_that_pass_the_transform_unchanged() {
    for (topic, value, kind) in [
        ("__debezium-heartbeat.p", r#"{"ts_ms":4}"#, ControlKind::Heartbeat),
        (
            "p.transaction",
            r#"{"status":"END","id":"1:2","event_count":1,"data_collections":[],"ts_ms":4}"#,
            ControlKind::Transaction,
        ),
        ("p.message", r#"{"op":"m","ts_ms":4,"source":{"ts_ms":3},"message":{}}"#, ControlKind::Message),
    ] {
        match flat(Options::default(), Some(topic), None, Some(value), &[]) {
            Decoded::Control(control) => assert_eq!(control.kind, kind),
            other => panic!("{other:?}"),
        }
    }
}
