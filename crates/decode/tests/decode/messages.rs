//! Logical messages as rows of a table.

use std::sync::Arc;

use base64::Engine as _;
use millstream_core::decoder::ControlKind;
use millstream_core::{Decoded, Event, Op, TableName, Value};
use millstream_decode::{Modes, Options, debezium, debezium_flat};

use crate::corpus::{batch, decode, one, show_value};

fn options() -> Options {
    Options { messages: Some(TableName::new("", "public", "messages")), ..Options::default() }
}

/// LSN, prefix and content of each message, as the lines themselves have it.
fn told(file: &str) -> Vec<(i64, String, Vec<u8>)> {
    let text = std::fs::read_to_string(crate::corpus::path(file)).unwrap();
    let mut told = Vec::new();
    for line in text.lines() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let Some(value) = record["value"].as_str() else { continue };
        let value: serde_json::Value = serde_json::from_str(value).unwrap();
        let value = value.get("payload").unwrap_or(&value);
        if value["op"] != "m" {
            continue;
        }
        let message = &value["message"];
        told.push((
            value["source"]["lsn"].as_i64().unwrap(),
            message["prefix"].as_str().unwrap().to_owned(),
            base64::engine::general_purpose::STANDARD.decode(message["content"].as_str().unwrap()).unwrap(),
        ));
    }
    told
}

fn row(event: &Event) -> (i64, String, Vec<u8>) {
    match (event.row.get(0), event.row.get(1), event.row.get(2)) {
        (Value::Int(lsn), Value::Text(prefix), Value::Bytes(content)) => {
            (lsn, prefix.to_owned(), content.to_owned())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_message_of_the_corpus_is_a_row() {
    for (file, flat) in [
        ("shop.plain.jsonl", false),
        ("shop.schema.jsonl", false),
        ("unwrap.rewrite.plain.jsonl", true),
        ("unwrap.rewrite.schema.jsonl", true),
    ] {
        let make = if flat { debezium_flat } else { debezium };
        let items = decode(&mut *make(Arc::new(options())), &batch(file));
        let mut rows = Vec::new();
        for item in &items {
            match item {
                Decoded::Event(event) if &*event.schema.table.table == "messages" => {
                    let db = if flat { "unwrap" } else { "shop" };
                    assert_eq!((event.op, &*event.schema.table.db), (Op::Create, db), "{file}");
                    let key = event.key.as_ref().unwrap().values().unwrap();
                    assert_eq!(key.get(0), event.row.get(0), "{file}");
                    rows.push(row(event));
                }
                Decoded::Control(control) => assert_ne!(control.kind, ControlKind::Message, "{file}"),
                _ => {}
            }
        }
        assert!(!rows.is_empty(), "{file}");
        assert_eq!(rows, told(file), "{file}");
    }
}

fn message(message: &str) -> String {
    format!(
        r#"{{"op":"m","ts_ms":4,"source":{{"connector":"postgresql","ts_ms":3,"db":"d","schema":"","table":"","lsn":80,"txId":7}},"message":{message}}}"#
    )
}

#[test]
fn what_a_message_may_be() {
    let of =
        |options: Options, text: &str| one(&mut *debezium(Arc::new(options)), None, message(text).as_bytes());
    let shown = |decoded| match decoded {
        Decoded::Event(event) => {
            assert_eq!(event.facts.transaction_id.as_deref(), Some("7"));
            event.row.iter().map(show_value).collect::<Vec<_>>().join(" ")
        }
        Decoded::Dead(dead) => format!("{}: {} [{}]", dead.cause.code, dead.cause.text, dead.table.unwrap()),
        Decoded::Control(control) => control.kind.name().to_owned(),
        Decoded::Several(_) => "several".to_owned(),
    };
    let plain = |text| shown(of(options(), text));
    insta::assert_snapshot!(
        [
            r#"{"prefix":"p","content":"aGk="}"#,
            r#"{"content":"","prefix":"","more":[{}]}"#,
            r#"{"prefix":"p","content":null}"#,
            r#"{"prefix":"p"}"#,
            r#"{"content":"aGk="}"#,
            r#"{"prefix":null,"content":"aGk="}"#,
            r#"{"prefix":1,"content":"aGk="}"#,
            r#"{"prefix":"p","content":{}}"#,
            r#"{"prefix":"p","content":"*"}"#,
            r#"{"prefix":"p","prefix":"q","content":""}"#,
            r#"null"#,
            r#""text""#,
        ]
        .map(|text| format!("{text} -> {}", plain(text)))
        .join("\n"),
        @r#"
    {"prefix":"p","content":"aGk="} -> 80 "p" x6869
    {"content":"","prefix":"","more":[{}]} -> 80 "" x
    {"prefix":"p","content":null} -> 80 "p" ∅
    {"prefix":"p"} -> 80 "p" ∅
    {"content":"aGk="} -> missing_field: message.prefix is missing [public.messages]
    {"prefix":null,"content":"aGk="} -> missing_field: message.prefix is missing [public.messages]
    {"prefix":1,"content":"aGk="} -> wrong_type: message.prefix must be a text [public.messages]
    {"prefix":"p","content":{}} -> wrong_type: message.content must be a text [public.messages]
    {"prefix":"p","content":"*"} -> invalid_value: message.content is not base64; see binary_handling_mode [public.messages]
    {"prefix":"p","prefix":"q","content":""} -> duplicate_field: message has prefix twice [public.messages]
    null -> missing_field: message is missing [public.messages]
    "text" -> missing_field: message is missing [public.messages]
    "#
    );
    let hex = Modes { binary: millstream_decode::BinaryMode::Hex, ..Modes::default() };
    assert_eq!(
        shown(of(Options { modes: hex, ..options() }, r#"{"prefix":"p","content":"6869"}"#)),
        plain(r#"{"prefix":"p","content":"aGk="}"#)
    );
    // As any table, it can be left out.
    let excluded = Options { exclude: ["public.messages".to_owned()].into(), ..options() };
    assert_eq!(shown(of(excluded, r#"{"prefix":"p"}"#)), "filtered");
}

/// A message without a position has no place among others.
#[test]
fn a_message_needs_a_position() {
    let text = message(r#"{"prefix":"p"}"#).replace(r#""lsn":80,"#, "");
    match one(&mut *debezium(Arc::new(options())), None, text.as_bytes()) {
        Decoded::Dead(dead) => assert_eq!(dead.cause.code, "missing_field"),
        other => panic!("{other:?}"),
    }
}
