//! Plain messages as rows of declared tables.

use std::sync::Arc;

use millstream_core::decoder::ControlKind;
use millstream_core::{Decoded, Decoder, Event, RecordBatch, Stage, Value};
use millstream_decode::{
    BareNumeric, JsonOptions, NotFinitePolicy, Options, RangePolicy, TableHints, UnknownFields, json,
    parse_schema_file,
};
use proptest::prelude::*;

use crate::corpus::{empty_batch, one, push, show_value};

/// One column of each type, of which `id` must have a value.
const COLUMNS: &str = r#"[
    {"name":"id","type":"INT64","mode":"REQUIRED"},
    {"name":"text","type":"STRING"},
    {"name":"price","type":"FLOAT64"},
    {"name":"exact","type":"NUMERIC(6,2)"},
    {"name":"large","type":"BIGNUMERIC"},
    {"name":"flag","type":"BOOL"},
    {"name":"day","type":"DATE"},
    {"name":"clock","type":"TIME"},
    {"name":"local","type":"DATETIME"},
    {"name":"at","type":"TIMESTAMP"},
    {"name":"at_ms","type":"TIMESTAMP","unit":"ms"},
    {"name":"at_s","type":"TIMESTAMP","unit":"s"},
    {"name":"raw","type":"BYTES"},
    {"name":"doc","type":"JSON"},
    {"name":"tags","type":"STRING","mode":"REPEATED"},
    {"name":"place","type":"RECORD","fields":[{"name":"x","type":"INT64"},{"name":"at","type":"TIMESTAMP"}]}]"#;

fn options(key: Option<&[&str]>, more: JsonOptions) -> Options {
    let columns = parse_schema_file(COLUMNS, BareNumeric::OfWarehouse).unwrap().into_iter().collect();
    let key = key.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
    let quotes = TableHints { key, columns, ..TableHints::default() };
    let plain = parse_schema_file(r#"[{"name":"a","type":"INT64"}]"#, BareNumeric::OfWarehouse).unwrap();
    let other = TableHints { columns: plain.into_iter().collect(), ..TableHints::default() };
    Options {
        tables: [("market.quotes".to_owned(), quotes), ("other".to_owned(), other)].into(),
        exclude: ["left.out".to_owned()].into(),
        out_of_range: RangePolicy::DeadLetter,
        not_finite: NotFinitePolicy::DeadLetter,
        json: JsonOptions { table: more.table.or(Some("market.quotes".to_owned())), ..more },
        ..Options::default()
    }
}

fn decoder(options: Options) -> Box<dyn Decoder> {
    json(Arc::new(options)).unwrap()
}

fn plain() -> Box<dyn Decoder> {
    decoder(options(None, JsonOptions::default()))
}

fn event(item: Decoded) -> Event {
    match item {
        Decoded::Event(event) => *event,
        other => panic!("{other:?}"),
    }
}

/// The values that are not NULL by name; of a refusal stage, code and text.
fn shown(item: Decoded) -> String {
    match item {
        Decoded::Event(event) => {
            let cells = event.schema.columns.iter().zip(event.row.iter()).filter(|(_, v)| !v.is_null());
            cells.map(|(c, v)| format!("{}={}", c.name, show_value(v))).collect::<Vec<_>>().join(" ")
        }
        Decoded::Control(control) => control.kind.name().to_owned(),
        Decoded::Dead(dead) => {
            let table = dead.table.map_or(String::new(), |table| format!(" [{table}]"));
            format!("{}{table} {}", dead.stage.name(), dead.cause)
        }
        Decoded::Several(parts) => format!("{} parts", parts.len()),
    }
}

/// What a value of a column becomes.
fn value(column: &str, json: &str) -> String {
    let text = shown(one(&mut *plain(), None, format!(r#"{{"id":1,"{column}":{json}}}"#).as_bytes()));
    let text = text.strip_prefix("id=1").unwrap_or(&text).trim_start();
    text.strip_prefix(&format!("{column}=")).unwrap_or(text).to_owned()
}

#[test]
fn values_become_what_their_columns_declare() {
    let cases = [
        ("text", r#""a\"b""#, r#""a\"b""#),
        ("text", "17", r#""17""#),
        ("text", "null", ""),
        ("price", "43.13057", "43.13057f"),
        ("price", "1e3", "1000.0f"),
        ("price", r#""NaN""#, "NaNf"),
        ("exact", "12.5", "12.50d"),
        ("exact", r#""-9999.99""#, "-9999.99d"),
        ("exact", "1e3", "1000.00d"),
        ("flag", "true", "true"),
        ("day", r#""2020-06-07""#, "2020-06-07"),
        ("day", "18420", "2020-06-07"),
        ("at", r#""2020-06-07T22:58:00.5+02:00""#, "2020-06-07T20:58:00.500000Z"),
        ("at_ms", "1591563480500", "2020-06-07T20:58:00.500000Z"),
        ("at_s", "1591563480", "2020-06-07T20:58:00.000000Z"),
        ("raw", r#""AP8=""#, "x00ff"),
        ("doc", r#"{"b":1.10,"a":[null]}"#, r#"json "{\"b\":1.10,\"a\":[null]}""#),
        ("doc", r#""a text""#, r#"json "\"a text\"""#),
        ("tags", r#"["a","b"]"#, r#"["a", "b"]"#),
        ("tags", "[]", "[]"),
        ("place", r#"{"at":"2020-06-07T00:00:00Z","x":1}"#, "{1, 2020-06-07T00:00:00.000000Z}"),
        ("place", r#"{}"#, "{∅, ∅}"),
    ];
    for (column, json, expected) in cases {
        assert_eq!(value(column, json), expected, "{column} {json}");
    }
    // All of the 76 digits are kept.
    let (whole, fraction) = ("9".repeat(38), "1".repeat(38));
    let read =
        event(one(&mut *plain(), None, format!(r#"{{"id":1,"large":{whole}.{fraction}}}"#).as_bytes()));
    assert_eq!(read.row.get(4), Value::Digits(&format!("{whole}.{fraction}")));
}

/// A declared type stays: what does not fit is a dead letter, which says what was expected and not what came.
#[test]
fn what_does_not_fit_says_what_was_expected() {
    let cases = [
        ("id", r#""hunter2""#, "wrong_type: column id: expected an integer of 64 bits"),
        ("id", "9223372036854775808", "wrong_type: column id: expected an integer of 64 bits"),
        (
            "exact",
            "1.234",
            "out_of_range: column exact: expected 4 digits before the point and 2 after it at most",
        ),
        (
            "exact",
            "10000",
            "out_of_range: column exact: expected 4 digits before the point and 2 after it at most",
        ),
        ("exact", r#""NaN""#, "not_finite: column exact: expected a finite decimal"),
        ("exact", r#""hunter2""#, "invalid_value: column exact: expected a decimal's digits"),
        ("day", r#""hunter2""#, "invalid_value: column day: expected an ISO 8601 date"),
        (
            "at",
            "1591563480",
            "wrong_type: column at: expected an ISO 8601 text: the column declares no `unit` for numbers",
        ),
        (
            "at_ms",
            "9223372036854775807",
            "out_of_range: column at_ms: expected a date or time within the years 0001 to 9999, or within a day",
        ),
        ("raw", r#""hunter2!""#, "invalid_value: column raw: expected base64 or hexadecimal text"),
        ("flag", r#""hunter2""#, "wrong_type: column flag: expected a boolean"),
        ("tags", r#""hunter2""#, "wrong_type: column tags: expected an array"),
        ("place", r#"[1]"#, "wrong_type: column place: expected an object"),
        ("place", r#"{"x":"hunter2"}"#, "wrong_type: column place: expected an integer of 64 bits"),
        (
            "place",
            r#"{"y":1}"#,
            "unknown_field: column place: expected only members that the column's type declares",
        ),
        (
            "place",
            r#"{"x":1,"x":2}"#,
            "duplicate_field: column place: expected each member of the object once",
        ),
        ("text\":1,\"text", "2", "duplicate_field: the object has text twice"),
    ];
    for (column, json, expected) in cases {
        let json = if column == "id" {
            format!(r#"{{"id":{json}}}"#)
        } else {
            format!(r#"{{"id":1,"{column}":{json}}}"#)
        };
        let text = shown(one(&mut *plain(), None, json.as_bytes()));
        assert_eq!(text, format!("validate [market.quotes] {expected}"), "{json}");
    }
    for json in [r#"{"text":"a"}"#, r#"{"id":null}"#] {
        let text = shown(one(&mut *plain(), None, json.as_bytes()));
        assert_eq!(text, "validate [market.quotes] missing_field: column id is required, and has no value");
    }
}

#[test]
fn unknown_members_follow_the_policy() {
    let message = br#"{"id":1,"more":2,"place":{"x":1,"z":3}}"#;
    let text = shown(one(&mut *plain(), None, message));
    let refused = "unknown_field: the table has no column more: declare it, or set `unknown_fields: ignore`";
    assert_eq!(text, format!("validate [market.quotes] {refused}"));
    let more = JsonOptions { unknown_fields: UnknownFields::Ignore, ..JsonOptions::default() };
    let mut decoder = decoder(options(None, more));
    for _ in 0..2 {
        assert_eq!(shown(one(&mut *decoder, None, message)), "id=1 place={1, ∅}");
    }
    let counted: Vec<_> = decoder.notices().into_iter().map(|n| (n.code, n.column, n.count)).collect();
    assert_eq!(counted, [("unknown_field", "more".to_owned(), 2), ("unknown_field", "place".to_owned(), 2)]);
    // Names without end are counted, and not remembered one by one.
    for n in 0..1_000 {
        one(&mut *decoder, None, format!(r#"{{"id":1,"n{n}":1}}"#).as_bytes());
    }
    let notices = decoder.notices();
    assert!(notices.len() <= 101, "{}", notices.len());
    assert_eq!(notices.iter().map(|n| n.count).sum::<u64>(), 1_000);
}

#[test]
fn a_member_or_an_attribute_tells_the_table() {
    let with = |attribute: Option<&[u8]>, message: &str, more: JsonOptions| {
        let mut batch = empty_batch();
        let headers: Vec<_> = attribute.map(|v| (b"kind".to_vec(), v.to_vec())).into_iter().collect();
        push(&mut batch, None, None, Some(message.as_bytes().to_vec()), &headers);
        let mut out = Vec::new();
        decoder(options(None, more)).decode(&batch.record(0).unwrap(), &mut out);
        match out.remove(0) {
            Decoded::Event(event) => event.schema.table.qualified(),
            other => shown(other),
        }
    };
    let member = || JsonOptions { table_field: Some("kind".to_owned()), ..JsonOptions::default() };
    let attribute = || JsonOptions { table_attribute: Some("kind".to_owned()), ..JsonOptions::default() };
    let unknown =
        "validate unknown_table: the message is for a table of which the config declares no columns";
    assert_eq!(with(None, r#"{"kind":"other","a":1}"#, member()), "other");
    assert_eq!(with(None, r#"{"kind":null,"id":1}"#, member()), "market.quotes");
    assert_eq!(with(None, r#"{"id":1}"#, member()), "market.quotes");
    assert_eq!(with(None, r#"{"kind":"hunter2"}"#, member()), unknown);
    assert_eq!(with(None, r#"{"kind":"left.out"}"#, member()), "filtered");
    let wrong = "validate wrong_type: the member that tells the table is no text";
    assert_eq!(with(None, r#"{"kind":1}"#, member()), wrong);
    assert_eq!(with(Some(b"other"), r#"{"a":1}"#, attribute()), "other");
    assert_eq!(with(Some(b"\xff"), r#"{"a":1}"#, attribute()), unknown);
    assert_eq!(with(None, r#"{"id":1}"#, attribute()), "market.quotes");
    // A message that is no JSON is that before anything else.
    let broken = with(Some(b"hunter2"), r#"{"a":"#, attribute());
    assert!(broken.starts_with("parse invalid_json"), "{broken}");

    let none = Options {
        json: JsonOptions { table: None, table_field: Some("kind".to_owned()), ..JsonOptions::default() },
        ..options(None, JsonOptions::default())
    };
    let text = shown(one(&mut *decoder(none), None, br#"{"a":1}"#));
    assert_eq!(text, "validate missing_field: the member kind, which tells the table, is missing");
}

/// What the engine does with the parts of a record.
fn all(decoder: &mut dyn Decoder, batch: &mut RecordBatch) -> Vec<Decoded> {
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(record) = batch.record(at) {
        let mut out = Vec::new();
        decoder.decode(&record, &mut out);
        assert_eq!(out.len(), 1);
        if let Decoded::Several(parts) = &out[0] {
            batch.split(at, parts);
        }
        all.append(&mut out);
        at += 1;
    }
    all
}

fn batch(messages: &[&str]) -> RecordBatch {
    let mut batch = empty_batch();
    for message in messages {
        push(&mut batch, None, None, Some(message.as_bytes().to_vec()), &[]);
    }
    batch
}

#[test]
fn elements_of_an_array_are_messages_of_their_own() {
    let mut batch = batch(&[r#" [{"id":1}, {"id":"x"} ,[{"id":3}],{"id":4}] "#, "[]", "[{}"]);
    let items = all(&mut *plain(), &mut batch);
    let origins: Vec<_> = items
        .iter()
        .filter_map(|i| if let Decoded::Event(e) = i { Some(e.origin.index) } else { None })
        .collect();
    assert_eq!(origins, [1, 4], "each has an identity of its own");
    let texts: Vec<_> = items.into_iter().map(shown).collect();
    assert_eq!(
        texts,
        [
            "4 parts",
            "empty",
            "parse invalid_json: byte 3: the text ends within a value",
            "id=1",
            "validate [market.quotes] wrong_type: column id: expected an integer of 64 bits",
            "validate not_an_object: the value is JSON, but not an object, as an element of an array",
            "id=4",
        ]
    );
    let letter = batch.record(4).unwrap();
    assert_eq!(letter.body(), millstream_core::Body::Value(br#"{"id":"x"}"#));
}

/// A row's key is all that tells it: wherever and however often it comes, the gate sees one event.
#[test]
fn a_row_with_a_key_is_one_event() {
    let mut decoder = decoder(options(Some(&["id", "text"]), JsonOptions::default()));
    let mut of = |message: &str| event(one(&mut *decoder, None, message.as_bytes()));
    let (a, b) = (of(r#"{"id":1,"text":"a","price":1}"#), of(r#"{"text":"a","price":2,"id":1.0}"#));
    assert_eq!((&a.key, a.id), (&b.key, b.id));
    assert!(a.key.is_some() && a.key != of(r#"{"id":2,"text":"a"}"#).key);
    assert_eq!(a.schema.key_names().collect::<Vec<_>>(), ["id", "text"]);
    assert!(event(one(&mut *plain(), None, br#"{"id":1}"#)).key.is_none());
    let undeclared = options(Some(&["nope"]), JsonOptions::default());
    let error = json(Arc::new(undeclared)).map(drop).unwrap_err().to_string();
    assert!(error.contains("its key names the column nope, which is not declared"), "{error}");
}

#[test]
fn what_is_no_row_is_counted_as_what_it_is() {
    let cases = [
        ("", "empty"),
        ("null", "tombstone"),
        ("1", "validate not_an_object: the value is JSON, but not an object or an array of objects"),
        (r#"{"id":1}x"#, "parse trailing_data: byte 8: more text after the value"),
        (r#"{"id":1,"text":"#, "parse invalid_json: byte 15: the text ends within a value"),
        (r#"{"id":"bad","text":"#, "parse invalid_json: byte 19: the text ends within a value"),
    ];
    for (message, expected) in cases {
        assert_eq!(shown(one(&mut *plain(), None, message.as_bytes())), expected, "{message}");
    }
    let many = format!("[{}]", vec!["{}"; (1 << 16) + 1].join(","));
    let text = shown(one(&mut *plain(), None, many.as_bytes()));
    assert_eq!(text, "parse too_large: the array has more than 65536 elements");
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".{0,12}".prop_map(Into::into),
        "[0-9]{1,40}(\\.[0-9]{0,20})?".prop_map(Into::into),
        "[0-9]{4}-[0-1][0-9]-[0-3][0-9](T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]Z)?".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(member(), inner, 0..6)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

fn member() -> impl Strategy<Value = String> {
    let names: Vec<String> = serde_json::from_str::<Vec<serde_json::Value>>(COLUMNS)
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap().to_owned())
        .chain(["x".to_owned()])
        .collect();
    prop_oneof![8 => prop::sample::select(names), 1 => ".{0,6}"]
}

proptest! {
    /// Nothing panics, and each record is one thing or its parts are; what the fast way reads, the slow one reads alike.
    #[test]
    fn every_message_is_accounted_for(
        messages in prop::collection::vec(any_json(), 1..6),
        ignore in any::<bool>(),
        broken in any::<prop::sample::Index>(),
    ) {
        let unknown_fields = if ignore { UnknownFields::Ignore } else { UnknownFields::DeadLetter };
        let more = || JsonOptions { unknown_fields, ..JsonOptions::default() };
        let mut texts: Vec<_> = messages.iter().map(ToString::to_string).collect();
        let cut = &texts[broken.index(texts.len())];
        texts.push(cut.chars().take(cut.chars().count() / 2).collect());
        let mut records = batch(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let items = all(&mut *decoder(options(None, more())), &mut records);
        prop_assert_eq!(items.len(), records.slots.len());
        for (item, record) in items.iter().zip(records.records()) {
            let millstream_core::Body::Value(bytes) = record.body() else { continue };
            let valid = serde_json::from_slice::<serde_json::Value>(bytes).is_ok();
            match item {
                Decoded::Dead(dead) => prop_assert_eq!(dead.stage == Stage::Parse, !valid, "{}", dead.cause),
                Decoded::Control(control) => {
                    prop_assert!(matches!(control.kind, ControlKind::Empty | ControlKind::Tombstone));
                }
                Decoded::Event(_) | Decoded::Several(_) => prop_assert!(valid),
            }
        }
        // Members in another order, and with white space, are the same row.
        for (item, record) in items.into_iter().zip(records.records()) {
            let millstream_core::Body::Value(bytes) = record.body() else { continue };
            let Ok(serde_json::Value::Object(object)) = serde_json::from_slice(bytes) else { continue };
            let members: Vec<_> = object.iter().rev().map(|(k, v)| format!(" {} : {v}", serde_json::json!(k))).collect();
            let again = format!("{{{} }}", members.join(","));
            let again = shown(one(&mut *decoder(options(None, more())), None, again.as_bytes()));
            let item = shown(item);
            // Which of several faults is told goes by the order.
            prop_assert!(item == again || (item.starts_with("validate") && again.starts_with("validate")), "{} {}", item, again);
        }
    }
}
