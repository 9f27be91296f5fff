//! Bare envelopes with a schema file give the same typed values as envelopes with their embedded schema.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_core::{Decoded, Event, Type, Value};
use millstream_decode::{
    BareNumeric, BinaryMode, DecimalMode, HstoreMode, IntervalMode, Modes, Options, TableHints, TimeMode,
    debezium, debezium_flat, parse_schema_file,
};

use crate::corpus;

/// Tables that their scenario renames and drops; the files describe tables as they are at its end.
const UNDESCRIBED: [&str; 2] = ["SampleDB_Students.Courses", "SampleDB_Students.Classes"];

/// A column whose scale its scenario changes: bare base64 cannot be read at two scales.
const RESCALED: &str = "GPA";

/// Hints for the tables of a file's events, from the schema files of its scenario; the `.interval-text` ones where the
/// connector wrote intervals as text. Every table must have one.
fn hints(scenario: &str, file: &str, modes: Modes) -> HashMap<String, TableHints> {
    let mut tables = HashMap::new();
    for event in events(file, Options::default()) {
        let table = event.schema.table.qualified();
        if tables.contains_key(&table) {
            continue;
        }
        // Characters that file names do not hold everywhere are written as `~hex`.
        let escaped: String = table
            .chars()
            .map(|c| match c {
                'a'..='z' | '0'..='9' | '.' | '_' | '-' => c.to_string(),
                _ => format!("~{:x}", u32::from(c)),
            })
            .collect();
        let folder = corpus::path("schemas").join(scenario);
        let mut path = folder.join(format!("{escaped}.json"));
        let text_form = folder.join(format!("{escaped}.interval-text.json"));
        if modes.interval == IntervalMode::String && text_form.exists() {
            path = text_form;
        }
        if UNDESCRIBED.contains(&&*table) {
            continue;
        }
        let json = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let columns = parse_schema_file(&json, BareNumeric::OfSource).unwrap().into_iter().collect();
        tables.insert(table, TableHints { columns, ..TableHints::default() });
    }
    tables
}

fn events(name: &str, options: Options) -> Vec<Event> {
    let flat = name.contains("unwrap");
    let options = Arc::new(options);
    let mut decoder = if flat { debezium_flat(options) } else { debezium(options) };
    let items = corpus::decode(&mut *decoder, &corpus::batch(name));
    let events = items.into_iter().filter_map(|item| match item {
        Decoded::Event(event) => Some(*event),
        Decoded::Control(_) | Decoded::Several(_) => None,
        Decoded::Dead(dead) => panic!("{name}: {dead:?}"),
    });
    events.collect()
}

/// What must be equal: everything but times of handling, positions (the variants have their own slots) and flags.
fn assert_equal(name: &str, schema: &[Event], plain: &[Event]) {
    assert_eq!(schema.len(), plain.len(), "{name}");
    for (at, (a, b)) in schema.iter().zip(plain).enumerate() {
        let place = format!("{name}, event {at}, table {}", a.schema.table);
        assert_eq!((a.op, &a.key, &a.old_key, &a.new_key), (b.op, &b.key, &b.old_key, &b.new_key), "{place}");
        assert_eq!(a.row.len(), b.row.len(), "{place}");
        if UNDESCRIBED.contains(&&*a.schema.table.qualified()) {
            continue;
        }
        for (i, column) in a.schema.columns.iter().enumerate() {
            let other = &b.schema.columns[i];
            assert_eq!(column.name, other.name, "{place}");
            let (left, right) = (corpus::show_value(a.row.get(i)), corpus::show_value(b.row.get(i)));
            // Addresses of Java objects, which are all that is left of some two-dimensional arrays.
            if left.contains("[Ljava.lang") || &*column.name == RESCALED {
                continue;
            }
            assert_eq!(left, right, "{place}, column {}", column.name);
            let learned = other.ty == Type::Null || matches!(b.row.get(i), Value::Null);
            assert!(
                learned || column.ty == other.ty,
                "{place}, column {}: {:?} {:?}",
                column.name,
                column.ty,
                other.ty
            );
        }
    }
}

#[test]
fn schema_files_stand_in_for_embedded_schemas() {
    let default = Modes::default();
    let b = Modes {
        decimal: DecimalMode::String,
        time: TimeMode::Connect,
        binary: BinaryMode::Base64,
        interval: IntervalMode::String,
        hstore: HstoreMode::Map,
    };
    let c =
        Modes { decimal: DecimalMode::Double, time: TimeMode::IsoString, binary: BinaryMode::Hex, ..default };
    let numeric = |decimal| Modes { decimal, ..default };
    for (scenario, schema, plain, modes) in [
        ("all_types", "all_types.default.schema", "all_types.default.plain", default),
        (
            "all_types",
            "all_types.b_string_connect_base64.schema",
            "all_types.b_string_connect_base64.plain",
            b,
        ),
        ("all_types", "all_types.c_double_isostring_hex.schema", "all_types.c_double_isostring_hex.plain", c),
        ("special_values", "special_values.default.schema", "special_values.default.plain", default),
        ("special_numeric", "special_numeric.precise.schema", "special_numeric.precise.plain", default),
        (
            "special_numeric",
            "special_numeric.string.schema",
            "special_numeric.string.plain",
            numeric(DecimalMode::String),
        ),
        (
            "special_numeric",
            "special_numeric.double.schema",
            "special_numeric.double.plain",
            numeric(DecimalMode::Double),
        ),
        ("toast", "toast.schema", "toast.plain", default),
        ("shop", "shop.schema", "shop.plain", default),
        ("unwrap", "unwrap.rewrite.schema", "unwrap.rewrite.plain", default),
        ("names", "names.schema", "names.plain", default),
        ("no_pk", "no_pk.schema", "no_pk.plain", default),
        ("mysql", "mysql.schema", "mysql.plain", default),
        ("inflight", "inflight.schema", "inflight.plain", default),
        ("adhoc_blocking_file", "adhoc_blocking_file.schema", "adhoc_blocking_file.plain", default),
    ] {
        let tables = hints(scenario, &format!("{plain}.jsonl"), modes);
        // Where an embedded schema only says `string`, the hint tells what the string holds, in both variants.
        let options = Options { tables, modes, ..Options::default() };
        let left = events(&format!("{schema}.jsonl"), options.clone());
        let right = events(&format!("{plain}.jsonl"), options);
        assert_equal(plain, &left, &right);
    }
}

/// Six connectors watched one run of `all_types` in different modes. What their encodings do not lose is equal.
#[test]
fn modes_are_spellings_of_the_same_values() {
    let reference = events("all_types.default.schema.jsonl", Options::default());
    let modes = Modes {
        time: TimeMode::Nanoseconds,
        binary: BinaryMode::Base64UrlSafe,
        interval: IntervalMode::String,
        ..Modes::default()
    };
    let d = events(
        "all_types.d_precise_nanos_base64url.plain.jsonl",
        Options {
            tables: hints("all_types", "all_types.default.plain.jsonl", modes),
            modes,
            ..Options::default()
        },
    );
    let modes = Modes { time: TimeMode::AdaptiveTimeMicroseconds, ..Modes::default() };
    let f = events(
        "all_types.f_adaptive_time_micros_nulls.plain.jsonl",
        Options {
            tables: hints("all_types", "all_types.default.plain.jsonl", modes),
            modes,
            ..Options::default()
        },
    );
    // Column: why it may differ.
    let lossy_d = ["c_interval", "c_ts", "c_ts0", "c_ts1", "c_ts3", "c_ts4", "c_ts6", "a_ts", "d_ts"];
    let lossy_f = ["d_text", "d_bool", "d_tstz"];
    for (events, lossy) in [(&d, &lossy_d[..]), (&f, &lossy_f[..])] {
        assert_eq!(events.len(), reference.len());
        for (a, b) in reference.iter().zip(events) {
            assert_eq!((a.op, &a.key), (b.op, &b.key));
            for (i, column) in a.schema.columns.iter().enumerate().filter(|(_, c)| !lossy.contains(&&*c.name))
            {
                let (left, right) = (a.row.get(i), b.row.get(i));
                assert_eq!(corpus::show_value(left), corpus::show_value(right), "{}", column.name);
            }
        }
    }
}
