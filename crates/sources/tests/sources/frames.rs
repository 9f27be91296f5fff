//! `lines: record`: the corpus' form, and everything that is not it.

use std::fs;
use std::path::Path;

use millstream_core::{Body, Budget, Record};
use millstream_sources::files::{FilesConfig, Lines};
use serde_json::Value;

use super::harness::{BUDGET, World, records, text};

fn record_lines(dir: &Path) -> FilesConfig {
    FilesConfig { lines: Lines::Record, ..super::harness::bounded(dir, "*.jsonl") }
}

/// What serde_json makes of a member that holds a string, null, or other JSON.
fn expected(member: &Value) -> Option<Vec<u8>> {
    match member {
        Value::Null => None,
        Value::String(s) => Some(s.clone().into_bytes()),
        other => Some(other.to_string().into_bytes()),
    }
}

fn same(record: &Record<'_>, line: &Value) {
    let value = match record.body() {
        Body::Value(bytes) => Some(bytes.to_vec()),
        Body::Tombstone => None,
        Body::Broken(_, cause) => panic!("{cause}"),
    };
    assert_eq!(value, expected(&line["value"]));
    assert_eq!(record.key().map(<[u8]>::to_vec), expected(&line["key"]));
    assert_eq!(record.topic().map(<[u8]>::to_vec), expected(&line["topic"]));
    let headers: Vec<_> = record.headers().map(|h| (h.name.to_vec(), h.value.to_vec())).collect();
    let lines = line["headers"].as_array().cloned().unwrap_or_default();
    let want: Vec<_> = lines
        .iter()
        .map(|h| (expected(&h["key"]).unwrap(), expected(&h["value"]).unwrap_or_default()))
        .collect();
    assert_eq!(headers, want);
}

#[test]
fn every_frame_of_the_corpus_is_read_as_it_was_written() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    let mut files: Vec<_> = fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "jsonl") && !p.to_str().unwrap().contains(".final."))
        .collect();
    files.sort();
    assert!(files.len() > 40, "{} files", files.len());
    for file in files {
        let content = fs::read(&file).unwrap();
        let mut world = World::new(record_lines, &[("a.jsonl", &content)]);
        let batches = world.batches(Budget { records: 50, bytes: 1 << 20 });
        let mut lines = content.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        for record in batches.iter().flat_map(|b| b.records()) {
            same(&record, &serde_json::from_slice(lines.next().unwrap()).unwrap());
        }
        assert_eq!(lines.next(), None, "{}", file.display());
    }
}

#[test]
fn members_may_be_null_absent_objects_or_escaped() {
    let lines: &[&str] = &[
        r#"{"topic":"t","key":null,"value":null}"#,
        r#"{"value":{"a":[1.0, 2]},"key":{"id":1},"other":{"value":3},"headers":null}"#,
        r#" { "value" : "\u00e4\ud83d\ude00\"\\\/\b\f\n\r\t\u0000" , "headers" : [ {"key":"k","value":null}, {"key":"\u006b","x":1,"value":"v"} ] } "#,
        r#"{"value":[1,"two"],"topic":null}"#,
        r#"{"value":5,"key":""}"#,
    ];
    let mut world = World::new(record_lines, &[("a.jsonl", lines.join("\n").as_bytes())]);
    let batches = world.batches(BUDGET);
    let read: Vec<_> = batches.iter().flat_map(|b| b.records()).collect();
    assert_eq!(read.len(), lines.len());
    assert_eq!(read[0].body(), Body::Tombstone);
    assert_eq!(read[0].key(), None);
    assert_eq!(read[1].body(), Body::Value(br#"{"a":[1.0, 2]}"#));
    assert_eq!(read[1].key(), Some(&br#"{"id":1}"#[..]));
    assert_eq!(read[2].body(), Body::Value("ä😀\"\\/\u{8}\u{c}\n\r\t\0".as_bytes()));
    let headers: Vec<_> = read[2].headers().map(|h| (h.name, h.value)).collect();
    assert_eq!(headers, [(&b"k"[..], &b""[..]), (b"k", b"v")]);
    assert_eq!(read[3].body(), Body::Value(br#"[1,"two"]"#));
    assert_eq!(read[4].key(), Some(&b""[..]));
    assert_eq!(world.batches(BUDGET).len(), 0);
}

#[test]
fn what_is_no_frame_is_kept_whole_with_its_cause() {
    let lines: &[&[u8]] = &[
        b"",
        b"{",
        b"null",
        b"[\"t\",\"k\",\"v\",[]]",
        b"{\"a\":1}",
        b"{\"value\":\"x\"} {\"value\":\"y\"}",
        b"{\"value\":\"x\",\"value\":\"y\"}",
        b"{\"value\":\"\xff\"}",
        b"{\"value\":\"\\ud800\"}",
        b"{\"value\":\"\\ud800\\u0041\"}",
        b"{\"value\":\"\\udc00\"}",
        b"{\"value\":\"\\x\"}",
        b"{\"value\":\"x\",\"topic\":3}",
        b"{\"value\":\"x\",\"headers\":[{\"key\":1}]}",
        b"{\"value\":\"x\",\"headers\":{}}",
        b"{\"value\":\"a\0b\"}",
    ];
    let mut world = World::new(record_lines, &[("a.jsonl", &lines.join(&b'\n'))]);
    let got = world.drain();
    for (got, line) in got.iter().zip(lines) {
        assert_eq!(got.broken, Some("invalid_frame"), "{}", text(got));
        assert_eq!(got.value.as_deref(), Some(*line));
    }
    assert_eq!(got.len(), lines.len());
}

#[test]
fn causes_hold_no_values() {
    let lines = br#"{"value":"x","headers":"secret-1"}
{"value":"x","topic":true,"headers":[{"key":77777}]}
{"value":"secret-2\q"}"#;
    let mut world = World::new(record_lines, &[("a.jsonl", lines)]);
    for batch in world.batches(BUDGET) {
        for slot in &batch.slots {
            let text = slot.broken.as_ref().unwrap().to_string();
            assert!(!text.contains("secret") && !text.contains("77777"), "{text}");
        }
        assert!(!records(&batch).is_empty());
    }
}
