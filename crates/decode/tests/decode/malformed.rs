//! Bad input is data: every kind of it gets its code, and none stops or panics a decoder.

use std::sync::Arc;

use millstream_core::{Decoded, Decoder};
use millstream_decode::{Options, RangePolicy, TableHints, debezium, debezium_flat};
use proptest::prelude::*;

use crate::corpus::{batch, decode, empty_batch, one, push, show};

const GOOD: &str = r#"{"before":null,"after":{"id":1,"n":2.5,"s":"x"},"source":{"connector":"postgresql","ts_ms":5,"db":"d","schema":"s","table":"t","lsn":80,"sequence":"[\"70\",\"80\"]"},"transaction":null,"op":"c","ts_ms":9}"#;

fn options() -> Arc<Options> {
    let hints = TableHints { key: Some(vec!["id".to_owned()]), ..TableHints::default() };
    let tables = [("s.t".to_owned(), hints)].into();
    Arc::new(Options { tables, record_bytes_max: 11 << 20, ..Options::default() })
}

fn code(decoder: &mut dyn Decoder, value: &[u8]) -> String {
    match one(decoder, None, value) {
        Decoded::Dead(dead) => format!("{} {}", dead.stage.name(), dead.cause.code),
        Decoded::Event(_) => "event".to_owned(),
        Decoded::Control(control) => control.kind.name().to_owned(),
        Decoded::Several(_) => "several".to_owned(),
    }
}

#[test]
fn every_kind_of_malformed_record_has_its_code() {
    let deep = |n: usize| GOOD.replace("2.5", &("[".repeat(n) + &"]".repeat(n)));
    let with = |from: &str, to: &str| {
        assert!(GOOD.contains(from));
        GOOD.replace(from, to).into_bytes()
    };
    let huge = GOOD.replace(r#""x""#, &format!("\"{}\"", "y".repeat(10 << 20)));
    let over = GOOD.replace(r#""x""#, &format!("\"{}\"", "y".repeat(12 << 20)));
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("event", GOOD.into()),
        ("event", format!("  {GOOD}\r\n").into()),
        ("event", huge.into()),
        ("event", deep(126).into()),
        ("event", with("2.5", &"9".repeat(5000))),
        ("event", with("2.5", "1e308")),
        ("event", with("2.5", "1e99999")),
        ("parse too_large", over.into()),
        ("parse invalid_json", GOOD[..GOOD.len() * 2 / 3].into()),
        ("parse invalid_json", b"ERROR 2024-06-01 connector restarted".to_vec()),
        ("parse invalid_json", b"{\"before\":null,}".to_vec()),
        ("parse invalid_json", b"\0\0\0".to_vec()),
        ("parse invalid_json", with("\"x\"", "\"a\u{0}b\"")),
        ("parse invalid_json", with("\"x\"", "\"a\nb\"")),
        ("parse invalid_json", with("\"x\"", r#""\ud800""#)),
        ("parse invalid_json", with("\"x\"", r#""\q""#)),
        ("parse invalid_json", with("2.5", "02")),
        ("parse invalid_json", with("2.5", "NaN")),
        ("parse invalid_json", with("\"transaction\":null", "\"transaction\":nil")),
        ("parse invalid_json", with("\"transaction\":null", r#""other":{"a":[1,{"b":tru}]}"#)),
        ("parse invalid_json", with("\"db\":\"d\"", "\"db\":\"d\",\"version\":1.")),
        (
            "parse invalid_utf8",
            with("\"x\"", "\"x\"").iter().map(|&b| if b == b'x' { 0xff } else { b }).collect(),
        ),
        ("parse too_deep", deep(127).into()),
        ("parse too_deep", deep(100_000).into()),
        ("parse trailing_data", format!("{GOOD}{GOOD}").into()),
        ("parse trailing_data", format!("{GOOD} x").into()),
        ("parse trailing_data", b"null null".to_vec()),
        ("validate not_an_object", b"12".to_vec()),
        ("validate not_an_object", b"[{}]".to_vec()),
        ("validate not_an_object", br#"{"schema":{},"payload":7}"#.to_vec()),
        ("validate missing_field", b"{}".to_vec()),
        ("validate missing_field", br#"{"schema":{}}"#.to_vec()),
        ("validate missing_field", with("\"op\":\"c\",", "")),
        ("validate missing_field", with(r#""op":"c""#, r#""op":null"#)),
        ("validate missing_field", with("\"source\"", "\"sauce\"")),
        ("validate missing_field", with("\"table\":\"t\"", "\"table\":null")),
        (
            "validate missing_field",
            with("\"source\":{\"connector\":\"postgresql\",\"ts_ms\":5,", "\"source\":{"),
        ),
        ("validate missing_field", with(r#""lsn":80,"sequence":"[\"70\",\"80\"]""#, r#""lsn":null"#)),
        ("validate missing_field", with("\"after\":{\"id\":1,\"n\":2.5,\"s\":\"x\"}", "\"after\":null")),
        ("validate wrong_type", with("\"lsn\":80", "\"lsn\":\"n/a\"")),
        ("validate wrong_type", with("\"lsn\":80", "\"lsn\":-1")),
        ("validate wrong_type", with("\"op\":\"c\"", "\"op\":7")),
        ("validate wrong_type", with("\"table\":\"t\"", "\"table\":{}")),
        ("validate wrong_type", with("\"ts_ms\":5", "\"ts_ms\":\"5\"")),
        ("validate wrong_type", with("\"ts_ms\":9", "\"ts_ms\":1.5")),
        ("validate wrong_type", with(r#"[\"70\",\"80\"]"#, "70")),
        ("validate wrong_type", with("{\"id\":1,\"n\":2.5,\"s\":\"x\"}", "[1]")),
        ("validate unknown_op", with("\"op\":\"c\"", "\"op\":\"x\"")),
        ("validate unsupported_connector", with("postgresql", "db2")),
        ("validate duplicate_field", with("\"op\":\"c\"", "\"op\":\"c\",\"op\":\"c\"")),
        ("validate duplicate_field", with("\"op\":\"c\"", "\"op\":\"c\",\"\\u006fp\":\"c\"")),
        ("validate duplicate_field", with("\"op\":\"c\"", "\"op\":\"c\",\"x\":1,\"x\":1")),
        ("validate duplicate_field", with("\"before\":null", "\"before\":null,\"before\":null")),
        ("validate duplicate_field", with("\"db\":\"d\"", "\"db\":\"d\",\"db\":\"d\"")),
        ("validate duplicate_field", with("\"n\":2.5", "\"n\":2.5,\"n\":2.5")),
        ("validate duplicate_field", with("\"before\":null", "\"before\":{\"id\":1,\"id\":1}")),
        ("validate missing_key", with("\"id\":1", "\"no_pk\":1")),
        ("empty", b"".to_vec()),
    ];
    // Once with a fresh decoder, once with one that knows how good records look: the fast way must be as strict.
    let mut warm = debezium(options());
    for (expected, value) in &cases {
        let start = String::from_utf8_lossy(&value[..value.len().min(300)]);
        assert_eq!(code(&mut *debezium(options()), value), *expected, "{start}");
        assert_eq!(code(&mut *warm, GOOD.as_bytes()), "event");
        assert_eq!(code(&mut *warm, value), *expected, "warm: {start}");
    }
}

/// Records that ask for much work or memory in few bytes are refused or bounded.
#[test]
fn greedy_records_are_bounded() {
    let columns = |n: usize, value: &dyn Fn(usize) -> String| {
        let columns: Vec<_> = (0..n).map(|i| format!("\"c{i}\":{}", value(i))).collect();
        GOOD.replace("\"s\":\"x\"", &columns.join(","))
    };
    let mut decoder = debezium(options());
    assert_eq!(code(&mut *decoder, columns(9_000, &|i| i.to_string()).as_bytes()), "event");
    assert_eq!(code(&mut *decoder, columns(20_000, &|i| i.to_string()).as_bytes()), "validate too_large");
    // Doubles, then integers that no double holds: all columns widen together.
    assert_eq!(code(&mut *decoder, columns(9_000, &|_| "1.5".to_owned()).as_bytes()), "event");
    assert_eq!(code(&mut *decoder, columns(9_000, &|_| "9007199254740993".to_owned()).as_bytes()), "event");
    // Each of these numbers may be written out, all of them together may not.
    let mut decoder = debezium(options());
    assert_eq!(
        code(&mut *decoder, columns(9_000, &|_| "1e19000".to_owned()).as_bytes()),
        "validate too_large"
    );
    let unknown: Vec<_> = (0..30_000).map(|i| format!("\"u{i}\":1")).collect();
    let unknown = GOOD.replace("\"transaction\":null", &unknown.join(","));
    assert_eq!(code(&mut *decoder, unknown.as_bytes()), "validate too_large");
    let key: Vec<_> = (0..1_000).map(|i| format!("\"k{i}\":1")).collect();
    let mut batch = empty_batch();
    let key = format!("{{{}}}", key.join(","));
    push(&mut batch, None, Some(key.into()), Some(GOOD.into()), &[]);
    match &decode(&mut *debezium(Arc::default()), &batch)[0] {
        Decoded::Event(event) => assert_eq!(event.key, None),
        other => panic!("{other:?}"),
    }
}

/// A key of more than 64 KiB was more than the store takes: it panicked, and the pipeline stood still for good.
#[test]
fn a_key_that_state_cannot_hold_is_refused() {
    let long = |len: usize| GOOD.replace("\"id\":1", &format!("\"id\":\"{}\"", "k".repeat(len)));
    let mut decoder = debezium(options());
    assert_eq!(code(&mut *decoder, long(30_000).as_bytes()), "event");
    assert_eq!(code(&mut *decoder, long(70_000).as_bytes()), "validate key_too_long");
    let mut flat = debezium_flat(options());
    let row = format!(
        r#"{{"id":"{}","__op":"c","__table":"t","__schema":"s","__db":"d","__lsn":5,"__source_ts_ms":5}}"#,
        "k".repeat(70_000)
    );
    assert_eq!(code(&mut *flat, row.as_bytes()), "validate key_too_long");
}

/// Refusals say what and where, never the values.
#[test]
fn refusals_hold_no_values() {
    let mut decoder = debezium(options());
    for value in [
        GOOD.replace("\"id\":1", "\"id\":null,\"secret\":\"hunter2\""),
        GOOD.replace("\"lsn\":80", "\"lsn\":\"hunter2\""),
        GOOD.replace("\"op\":\"c\"", "\"op\":\"hunter2\""),
        GOOD.replace("\"x\"", "\"hunter2"),
    ] {
        match one(&mut *decoder, None, value.as_bytes()) {
            Decoded::Dead(dead) => assert!(!dead.cause.to_string().contains("hunter2"), "{dead:?}"),
            other => panic!("{other:?}"),
        }
    }
}

fn decoders() -> [Box<dyn Decoder>; 3] {
    let keep = Options { keep_before: true, keep_source: true, ..Options::default() };
    [debezium(options()), debezium(Arc::new(keep)), debezium_flat(options())]
}

/// Real records, one of each file.
fn samples() -> Vec<(Option<Vec<u8>>, Vec<u8>)> {
    let files = [
        "all_types.default.plain.jsonl",
        "mysql.schema.jsonl",
        "shop.schema.jsonl",
        "unwrap.rewrite.plain.jsonl",
    ];
    let mut samples = Vec::new();
    for file in files {
        let batch = batch(file);
        for record in batch.records().step_by(5).take(12) {
            if let millstream_core::Body::Value(value) = record.body() {
                samples.push((record.key().map(<[u8]>::to_vec), value.to_vec()));
            }
        }
    }
    samples
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), key in prop::collection::vec(any::<u8>(), 0..40)) {
        let mut batch = empty_batch();
        push(&mut batch, None, Some(key), Some(bytes), &[]);
        for mut decoder in decoders() {
            prop_assert_eq!(decode(&mut *decoder, &batch).len(), 1);
        }
    }

    #[test]
    fn arbitrary_json_never_panics(text in "[\\[\\]{}:,\"a-e0-9.\\\\null true]{0,120}") {
        for mut decoder in decoders() {
            code(&mut *decoder, text.as_bytes());
            code(&mut *decoder, GOOD.replace("2.5", &text).as_bytes());
            code(&mut *decoder, GOOD.replace("{\"id\":1", &format!("{{\"id\":1,{text}")).as_bytes());
        }
    }

    /// Damaged real records, and what a decoder makes of good ones after them: exactly what it makes of them without.
    #[test]
    fn damaged_records_never_panic_and_leave_no_trace(
        pick in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..4),
    ) {
        let samples = samples();
        let (key, value) = pick.get(&samples).clone();
        let mut damaged = value.clone();
        for (at, byte, kind) in edits {
            if damaged.is_empty() {
                break;
            }
            let at = at.index(damaged.len());
            match kind {
                0 => damaged[at] = byte,
                1 => { damaged.remove(at); }
                _ => damaged.truncate(at),
            }
        }
        let good = |decoder: &mut dyn Decoder| {
            let mut batch = empty_batch();
            push(&mut batch, None, key.clone(), Some(value.clone()), &[]);
            let mut schemas = Vec::new();
            decode(decoder, &batch).iter().map(|i| show(i, &mut schemas)).collect::<Vec<_>>()
        };
        for (mut used, mut fresh) in decoders().into_iter().zip(decoders()) {
            let expected = good(&mut *fresh);
            prop_assert_eq!(&good(&mut *used), &expected);
            let mut batch = empty_batch();
            push(&mut batch, None, key.clone(), Some(damaged.clone()), &[]);
            let valid = serde_json::from_slice::<serde_json::Value>(&damaged).is_ok();
            for item in decode(&mut *used, &batch) {
                if !valid {
                    prop_assert!(matches!(item, Decoded::Dead(_) | Decoded::Control(_)));
                }
            }
            if !valid {
                prop_assert_eq!(&good(&mut *used), &expected);
            }
        }
    }

    /// Splitting a stream into batches changes nothing.
    #[test]
    fn batches_do_not_matter(cuts in prop::collection::vec(1usize..20, 1..30)) {
        let whole = batch("shop.plain.jsonl");
        let mut schemas = Vec::new();
        let expected: Vec<_> =
            decode(&mut *debezium(options()), &whole).iter().map(|i| show(i, &mut schemas)).collect();
        let mut decoder = debezium(options());
        let mut records = whole.records();
        let mut found = Vec::new();
        let mut schemas = Vec::new();
        for cut in cuts.iter().cycle() {
            let part: Vec<_> = records.by_ref().take(*cut).collect();
            if part.is_empty() {
                break;
            }
            let mut out = Vec::new();
            for record in &part {
                decoder.decode(record, &mut out);
            }
            found.extend(out.iter().map(|i| show(i, &mut schemas)));
        }
        prop_assert_eq!(found, expected);
    }
}

/// A `source.ts_ms` of 2^63 - 1 passed as it was: DuckDB showed it as "infinity", and the watermark stood there for good, so
/// that every later event was late.
#[test]
fn times_of_events_follow_the_policy_too() {
    let wild = GOOD.replace("\"ts_ms\":5", &format!("\"ts_ms\":{}", i64::MAX));
    let heartbeat = format!(r#"{{"ts_ms":{}}}"#, i64::MAX);
    let flat = format!(r#"{{"id":1,"__op":"c","__table":"t","__lsn":80,"__source_ts_ms":{}}}"#, i64::MAX);
    let top = (Some(253_402_300_799_999), Some(253_402_300_799_999_999));
    for (policy, expected) in [
        (RangePolicy::Null, Some((None, None))),
        (RangePolicy::Clamp, Some(top)),
        (RangePolicy::DeadLetter, None),
    ] {
        let options = Arc::new(Options { out_of_range: policy, ..(*options()).clone() });
        for (mut decoder, value) in
            [(debezium(options.clone()), &wild), (debezium_flat(options.clone()), &flat)]
        {
            let times = match one(decoder.as_mut(), None, value.as_bytes()) {
                Decoded::Event(event) => Some((event.facts.ts_ms, event.facts.ts_us)),
                Decoded::Dead(dead) => {
                    assert_eq!(dead.cause.code, "out_of_range");
                    None
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(times, expected, "{policy:?}");
            let notices = decoder.notices();
            assert_eq!(notices.len(), usize::from(expected.is_some()), "{policy:?}");
            assert!(
                notices.iter().all(|n| (n.code, &*n.column) == ("timestamp_out_of_range", "source.ts_ms"))
            );
        }
        let Decoded::Control(control) = one(debezium(options).as_mut(), None, heartbeat.as_bytes()) else {
            panic!("a heartbeat is a control record")
        };
        assert_eq!(control.ts_ms, None);
    }
}
