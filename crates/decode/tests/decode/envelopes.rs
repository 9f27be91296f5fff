//! What envelopes, keys and sources mean.

use std::sync::Arc;

use millstream_core::decoder::ControlKind;
use millstream_core::{Decoded, Event, Key, Op, Snapshot, Value};
use millstream_decode::{Options, TableHints, debezium};

use crate::corpus::{decode, empty_batch, one, push, show_value};

fn source(more: &str) -> String {
    format!(r#"{{"connector":"postgresql","ts_ms":5,"db":"d","schema":"s","table":"t"{more}}}"#)
}

fn envelope(op: &str, before: &str, after: &str, source: &str) -> String {
    format!(r#"{{"before":{before},"after":{after},"source":{source},"op":"{op}","ts_ms":9}}"#)
}

const PLACE: &str = r#","lsn":80,"sequence":"[\"70\",\"80\"]""#;

fn event(options: Options, key: Option<&str>, value: &str) -> Event {
    match one(&mut *debezium(Arc::new(options)), key, value.as_bytes()) {
        Decoded::Event(event) => *event,
        other => panic!("{other:?}"),
    }
}

fn dead(options: Options, key: Option<&str>, value: &str) -> (&'static str, String) {
    match one(&mut *debezium(Arc::new(options)), key, value.as_bytes()) {
        Decoded::Dead(dead) => (dead.cause.code, dead.cause.text),
        other => panic!("{other:?}"),
    }
}

fn keyed(columns: &[&str]) -> Options {
    let key = Some(columns.iter().map(|c| (*c).to_owned()).collect());
    let hints = TableHints { key, ..TableHints::default() };
    Options { tables: [("s.t".to_owned(), hints)].into(), ..Options::default() }
}

fn row(event: &Event) -> String {
    event.row.iter().map(show_value).collect::<Vec<_>>().join(" ")
}

#[test]
fn order_and_identity() {
    let at = |op: &str, more: &str| {
        let e = event(Options::default(), None, &envelope(op, "null", r#"{"id":1}"#, &source(more)));
        (e.order.sections().to_vec(), e.p_known, e.id.is_read(), e.facts.lsn)
    };
    assert_eq!(at("c", PLACE), (vec![0, 70, 80], true, false, Some(80)));
    // A read sorts just below a change at its own position.
    assert_eq!(at("r", PLACE), (vec![0, 70, 79], true, true, Some(80)));
    assert_eq!(at("c", r#","lsn":80,"sequence":"[null,\"80\"]""#), (vec![0, 80, 80], false, false, Some(80)));
    assert_eq!(at("c", r#","lsn":80,"sequence":null"#), (vec![0, 80, 80], false, false, Some(80)));
    assert_eq!(at("c", r#","lsn":80"#), (vec![0, 80, 80], false, false, Some(80)));
    let incremental = r#","snapshot":"incremental","lsn":null,"sequence":"[\"70\",\"80\"]""#;
    assert_eq!(at("r", incremental), (vec![0, 70, 79], true, true, Some(80)));
    let mysql = |file: &str| {
        let source = format!(
            r#"{{"connector":"mariadb","ts_ms":5,"db":"d","table":"t","file":"{file}","pos":4,"row":2,"gtid":"0-1-7:9"}}"#
        );
        envelope("u", r#"{"id":1}"#, r#"{"id":2}"#, &source)
    };
    let e = event(Options::default(), None, &mysql("mysql-bin.000003"));
    assert_eq!((e.order.sections(), e.p_known, e.full_before), (&[0, 3, 4, 2][..], true, true));
    assert_eq!(e.facts.transaction_id.as_deref(), Some("0-1-7:9"));
    assert_eq!(dead(Options::default(), None, &mysql("binlog")).0, "wrong_type");
}

#[test]
fn facts_of_the_source() {
    let source = source(&format!(r#"{PLACE},"ts_us":5001,"txId":null,"snapshot":"last""#));
    let value = format!(
        r#"{{"before":null,"after":{{"id":1}},"source":{source},"transaction":{{"id":"77:99","total_order":1}},"op":"r","ts_ms":9,"ts_us":9001}}"#
    );
    let e = event(Options { keep_source: true, ..Options::default() }, None, &value);
    assert_eq!((e.facts.ts_ms, e.facts.ts_us), (Some(5), Some(5001)));
    assert_eq!((e.facts.processed_ts_ms, e.facts.processed_ts_us), (Some(9), Some(9001)));
    assert_eq!(e.facts.transaction_id.as_deref(), Some("77"));
    assert_eq!(e.facts.snapshot, Snapshot::Yes);
    assert_eq!(e.facts.source_json.as_deref(), Some(&*source));
    assert_eq!(e.facts.transaction_json.as_deref(), Some(r#"{"id":"77:99","total_order":1}"#));
}

#[test]
fn keys_come_from_config_then_message() {
    let value = envelope("c", "null", r#"{"id":1,"code":"x"}"#, &source(PLACE));
    let names = |e: &Event| e.schema.key_names().map(str::to_owned).collect::<Vec<_>>();
    let bare = event(Options::default(), Some(r#"{"code":"x","id":1}"#), &value);
    assert_eq!(names(&bare), ["code", "id"]);
    assert_eq!(bare.key, Some(Key::from_values([Value::Text("x"), Value::Int(1)])));
    let wrapped = r#"{"schema":{"type":"struct","fields":[]},"payload":{"id":1}}"#;
    assert_eq!(names(&event(Options::default(), Some(wrapped), &value)), ["id"]);
    let config = event(keyed(&["code"]), Some(r#"{"id":1}"#), &value);
    assert_eq!(
        (names(&config), config.key),
        (vec!["code".to_owned()], Some(Key::from_values([Value::Text("x")])))
    );
    for none in ["default", "12", "[1]", "{", "null", "{}", r#"{"id":1} x"#] {
        assert_eq!(event(Options::default(), Some(none), &value).key, None, "{none}");
    }
    assert_eq!(event(keyed(&[]), Some(r#"{"id":1}"#), &value).key, None);
    // A key column that the row lacks is a column all the same.
    let routed = event(Options::default(), Some(r#"{"id":1,"shard":"a"}"#), &value);
    assert_eq!(
        (row(&routed), names(&routed)),
        (r#"1 "x" "a""#.to_owned(), vec!["id".to_owned(), "shard".to_owned()])
    );
}

#[test]
fn a_configured_key_must_be_there() {
    let dead = |after: &str| dead(keyed(&["id"]), None, &envelope("c", "null", after, &source(PLACE))).0;
    assert_eq!(dead(r#"{"no_pk":1}"#), "missing_key");
    assert_eq!(dead(r#"{"id":null}"#), "missing_key");
}

/// PostgreSQL's default identity invents values in a delete's before-image: only the key is true.
#[test]
fn deletes_carry_what_is_known() {
    let value = envelope("d", r#"{"id":7,"n":0,"s":""}"#, "null", &source(PLACE));
    let key = Some(r#"{"id":7}"#);
    let partial = event(Options { keep_before: true, ..Options::default() }, key, &value);
    assert_eq!((row(&partial), partial.full_before), ("7 ∅ ∅".to_owned(), false));
    assert_eq!(partial.before.as_deref(), Some(&partial.row));
    let config = event(keyed(&["id"]), None, &value);
    assert_eq!((row(&config), config.key), ("7 ∅ ∅".to_owned(), partial.key));
    let mut options = keyed(&["id"]);
    options.tables.get_mut("s.t").unwrap().full_identity = true;
    let full = event(options, None, &value);
    assert_eq!((row(&full), full.full_before), (r#"7 0 """#.to_owned(), true));
    // Rows of a table without a key can only be deleted under a full identity.
    let keyless = event(Options::default(), None, &value);
    assert_eq!((row(&keyless), keyless.full_before, keyless.key), (r#"7 0 """#.to_owned(), true, None));
    let bare = event(Options::default(), key, &envelope("d", "null", "null", &source(PLACE)));
    assert_eq!(row(&bare), "7");
}

/// A delete that follows rows of the same shape takes another way than the first one, to the same result.
#[test]
fn deletes_are_the_same_with_and_without_a_known_shape() {
    let create = envelope("c", "null", r#"{"id":1,"n":2,"s":"x"}"#, &source(PLACE));
    let delete = envelope("d", r#"{"id":7,"n":0,"s":""}"#, "null", &source(PLACE));
    for keep_before in [false, true] {
        for full_identity in [false, true] {
            let mut options = Options { keep_before, ..keyed(&["id"]) };
            options.tables.get_mut("s.t").unwrap().full_identity = full_identity;
            let mut decoder = debezium(Arc::new(options));
            let mut shown = Vec::new();
            for value in [&delete, &create, &delete] {
                match one(&mut *decoder, None, value.as_bytes()) {
                    Decoded::Event(e) => {
                        shown.push((row(&e), e.before.clone(), e.key.clone(), e.full_before))
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(shown[0], shown[2]);
            assert_eq!(shown[0].1.is_some(), keep_before);
        }
    }
}

/// The before-image of one event was once handed to the next event that had none.
#[test]
fn a_before_image_stays_with_its_event() {
    let options = Options { keep_before: true, ..keyed(&["id"]) };
    let mut decoder = debezium(Arc::new(options));
    let update = envelope("u", r#"{"id":1,"n":1}"#, r#"{"id":1,"n":2}"#, &source(PLACE));
    let delete = envelope("d", r#"{"id":1,"n":1}"#, "null", &source(PLACE));
    let create = envelope("c", "null", r#"{"id":1,"n":2}"#, &source(PLACE));
    for (value, has) in [
        (&update, true),
        (&update, true),
        (&create, false),
        (&delete, true),
        (&create, false),
        (&update, true),
    ] {
        match one(&mut *decoder, None, value.as_bytes()) {
            Decoded::Event(e) => assert_eq!(e.before.is_some(), has),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn key_changes_name_the_other_key() {
    let mut batch = empty_batch();
    let value = envelope("c", "null", r#"{"id":2}"#, &source(PLACE)).into_bytes();
    let old = r#"{"schema":{"type":"struct"},"payload":{"id":1}}"#;
    let headers = [
        (b"__debezium.oldkey".to_vec(), old.into()),
        (b"__debezium.context.taskId".to_vec(), b"\"0\"".to_vec()),
    ];
    push(&mut batch, None, Some(br#"{"id":2}"#.to_vec()), Some(value), &headers);
    for options in [Options::default(), keyed(&["id"])] {
        match &decode(&mut *debezium(Arc::new(options)), &batch)[0] {
            Decoded::Event(e) => {
                assert_eq!(e.key, Some(Key::from_values([Value::Int(2)])));
                assert_eq!(e.old_key, Some(Key::from_values([Value::Int(1)])));
                assert_eq!(e.new_key, None);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn control_records() {
    let schema = r#"{"type":"struct","fields":[]}"#;
    for (value, kind, ts_ms) in [
        ("", ControlKind::Empty, None),
        (" \t\r\n", ControlKind::Empty, None),
        ("null", ControlKind::Tombstone, None),
        (r#"{"ts_ms":4}"#, ControlKind::Heartbeat, Some(4)),
        (
            r#"{"status":"BEGIN","id":"1:2","event_count":null,"data_collections":null,"ts_ms":4}"#,
            ControlKind::Transaction,
            Some(4),
        ),
        (
            r#"{"source":{"connector":"mysql","ts_ms":3},"ts_ms":4,"databaseName":"d","schemaName":null,"ddl":"x","tableChanges":[]}"#,
            ControlKind::SchemaChange,
            Some(3),
        ),
        (
            r#"{"op":"m","ts_ms":4,"source":{"ts_ms":3,"table":""},"message":{"prefix":"p","content":""}}"#,
            ControlKind::Message,
            Some(3),
        ),
    ] {
        let mut values = vec![value.to_owned()];
        if value.starts_with('{') || value == "null" {
            values.push(format!(r#"{{"schema":{schema},"payload":{value}}}"#));
            values.push(format!(r#"{{"payload":{value},"schema":{schema}}}"#));
        }
        for value in values {
            match one(&mut *debezium(Arc::new(Options::default())), None, value.as_bytes()) {
                Decoded::Control(control) => {
                    assert_eq!((control.kind, control.ts_ms), (kind, ts_ms), "{value}")
                }
                other => panic!("{value}: {other:?}"),
            }
        }
    }
    let filtered = Options { exclude: ["s.t".to_owned()].into(), ..Options::default() };
    let value = envelope("c", "null", r#"{"id":1}"#, &source(PLACE));
    match one(&mut *debezium(Arc::new(filtered)), None, value.as_bytes()) {
        Decoded::Control(control) => assert_eq!(control.kind, ControlKind::Filtered),
        other => panic!("{other:?}"),
    }
}

#[test]
fn truncates_have_neither_key_nor_row() {
    let e = event(keyed(&["id"]), Some("null"), &envelope("t", "null", "null", &source(PLACE)));
    assert_eq!((e.op, e.key, e.row.len(), e.schema.columns.len()), (Op::Truncate, None, 0, 0));
}
