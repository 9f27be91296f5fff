//! The corpus: which files there are, and what a config must say about the connector that emitted them.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use crate::declared;

/// Where column types come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Types {
    /// The schema in each event.
    Embedded,
    /// The schema files of the corpus.
    Files,
    /// Inference from values.
    Guessed,
}

/// One file of events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    pub(crate) scenario: &'static str,
    pub(crate) name: &'static str,
    /// Settings of the connector, as keys of `decode:`.
    pub(crate) decode: &'static [(&'static str, &'static str)],
}

const NONE: &[(&str, &str)] = &[];
const MYSQL: &[(&str, &str)] = &[("time_precision_mode", "adaptive_time_microseconds")];
const FLAT: &[(&str, &str)] = &[("format", "debezium-flat")];
const PLACEHOLDER: &[(&str, &str)] = &[("unavailable_value_placeholder", "@@gone@@")];
const DECIMAL_STRING: &[(&str, &str)] = &[("decimal_handling_mode", "string")];
const DECIMAL_DOUBLE: &[(&str, &str)] = &[("decimal_handling_mode", "double")];
const MICROS: &[(&str, &str)] = &[("time_precision_mode", "microseconds")];
const MICRO_TIMES: &[(&str, &str)] = &[("time_precision_mode", "adaptive_time_microseconds")];
const STRING_CONNECT: &[(&str, &str)] = &[
    ("decimal_handling_mode", "string"),
    ("time_precision_mode", "connect"),
    ("binary_handling_mode", "base64"),
    ("interval_handling_mode", "string"),
    ("hstore_handling_mode", "map"),
];
const DOUBLE_ISO: &[(&str, &str)] = &[
    ("decimal_handling_mode", "double"),
    ("time_precision_mode", "isostring"),
    ("binary_handling_mode", "hex"),
];
const NANOS: &[(&str, &str)] = &[
    ("time_precision_mode", "nanoseconds"),
    ("binary_handling_mode", "base64-url-safe"),
    ("interval_handling_mode", "string"),
];

/// Scenario, its variants, and the connector's settings that all but the wrapped ones need.
const FILES: &[(&str, &[(&str, &[(&str, &str)])])] = &[
    (
        "shop",
        &[("plain", NONE), ("schema", NONE), ("txmeta", NONE), ("heartbeat", NONE), ("keep_nulls", NONE)],
    ),
    (
        "unwrap",
        &[
            ("rewrite.plain", FLAT),
            ("rewrite.schema", FLAT),
            ("rewrite_with_tombstone", FLAT),
            ("tombstone", FLAT),
            ("rewrite_txmeta", FLAT),
        ],
    ),
    (
        "all_types",
        &[
            ("default.plain", NONE),
            ("default.schema", NONE),
            ("b_string_connect_base64.plain", STRING_CONNECT),
            ("b_string_connect_base64.schema", STRING_CONNECT),
            ("c_double_isostring_hex.plain", DOUBLE_ISO),
            ("c_double_isostring_hex.schema", DOUBLE_ISO),
            ("d_precise_nanos_base64url.plain", NANOS),
            ("f_adaptive_time_micros_nulls.plain", MICRO_TIMES),
        ],
    ),
    (
        "special_values",
        &[
            ("default.plain", NONE),
            ("default.schema", NONE),
            ("string_connect.plain", STRING_CONNECT),
            ("double_isostring.plain", DOUBLE_ISO),
            ("micros_unknown.plain", MICROS),
        ],
    ),
    (
        "special_numeric",
        &[
            ("precise.plain", NONE),
            ("precise.schema", NONE),
            ("string.plain", DECIMAL_STRING),
            ("string.schema", DECIMAL_STRING),
            ("double.plain", DECIMAL_DOUBLE),
            ("double.schema", DECIMAL_DOUBLE),
        ],
    ),
    ("schema_evolution", &[("plain", NONE), ("schema", NONE)]),
    ("toast", &[("plain", NONE), ("schema", NONE), ("placeholder", PLACEHOLDER), ("unwrap", FLAT)]),
    ("no_pk", &[("plain", NONE), ("schema", NONE), ("message_key", NONE)]),
    ("names", &[("plain", NONE), ("schema", NONE)]),
    ("restart", &[("plain", NONE)]),
    ("bench", &[("plain", NONE)]),
    ("mysql", &[("plain", MYSQL), ("schema", MYSQL)]),
    ("incremental", &[("plain", NONE), ("schema", NONE)]),
    ("incremental_again", &[("plain", NONE), ("schema", NONE)]),
    ("incremental_busy", &[("plain", NONE), ("schema", NONE), ("insert_delete", NONE), ("read_only", NONE)]),
    ("incremental_readonly", &[("plain", NONE), ("schema", NONE)]),
    ("incremental_restart", &[("plain", NONE), ("schema", NONE)]),
    ("adhoc_blocking", &[("plain", NONE), ("schema", NONE)]),
    ("adhoc_blocking_file", &[("plain", NONE), ("schema", NONE)]),
    ("inflight", &[("plain", NONE), ("schema", NONE)]),
    ("inflight_early", &[("plain", NONE), ("schema", NONE)]),
    ("inflight_tie", &[("plain", NONE)]),
    ("inflight_slot", &[("plain", NONE), ("schema", NONE)]),
    ("inflight_always", &[("plain", NONE), ("schema", NONE), ("headers", NONE)]),
    ("mysql_incremental", &[("plain", MYSQL), ("schema", MYSQL)]),
    ("mysql_adhoc_blocking", &[("plain", MYSQL), ("schema", MYSQL)]),
];

/// The corpus' folder.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus").canonicalize().unwrap()
}

/// Every variant of every scenario. `TRUTH_ONLY` keeps those whose `scenario.variant` contains it.
pub(crate) fn variants() -> Vec<Variant> {
    let only = std::env::var("TRUTH_ONLY").unwrap_or_default();
    FILES
        .iter()
        .flat_map(|&(scenario, variants)| {
            variants.iter().map(move |&(name, decode)| Variant { scenario, name, decode })
        })
        .filter(|v| v.label().contains(&only))
        .collect()
}

impl Variant {
    /// `scenario.variant`.
    pub(crate) fn label(&self) -> String {
        format!("{}.{}", self.scenario, self.name)
    }

    /// Whether its events carry their schema.
    pub(crate) fn is_wrapped(&self) -> bool {
        self.name.ends_with("schema")
    }

    /// Whether rows were flattened.
    pub(crate) fn is_flat(&self) -> bool {
        self.decode == FLAT
    }

    /// Whether the source is MySQL.
    pub(crate) fn is_mysql(&self) -> bool {
        self.scenario.starts_with("mysql")
    }

    /// The best source of types that it has.
    pub(crate) fn types(&self) -> Types {
        if self.is_wrapped() { Types::Embedded } else { Types::Files }
    }

    /// The file of its events.
    pub(crate) fn file(&self) -> PathBuf {
        let plain = folder().join(format!("{}.jsonl", self.label()));
        if plain.exists() { plain } else { folder().join(format!("{}.jsonl.gz", self.label())) }
    }

    /// Its events, one line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        lines_of(&self.file())
    }

    /// The final rows of its scenario, by table.
    pub(crate) fn final_rows(&self) -> Vec<(String, Vec<Json>)> {
        let plain = folder().join(format!("{}.final.jsonl", self.scenario));
        let file =
            if plain.exists() { plain } else { folder().join(format!("{}.final.jsonl.gz", self.scenario)) };
        let mut tables: Vec<(String, Vec<Json>)> = declared::tables(self.scenario)
            .into_iter()
            .filter(|t| !is_signal(t))
            .map(|t| (t, Vec::new()))
            .collect();
        for line in lines_of(&file) {
            let mut entry: Json = serde_json::from_str(&line).unwrap();
            let table = entry["table"].as_str().unwrap().to_owned();
            let row = entry["row"].take();
            match tables.iter_mut().find(|(name, _)| *name == table) {
                Some((_, rows)) => rows.push(row),
                None => tables.push((table, vec![row])),
            }
        }
        tables
    }

    /// The key that its events of a table have: the declared one, or the connector's `message.key.columns`.
    pub(crate) fn key(&self, table: &str) -> Vec<String> {
        if self.label() == "no_pk.message_key" && table == "public.nopk_full" {
            return vec!["a".to_owned(), "b".to_owned()];
        }
        declared::table(self.scenario, table).key
    }

    /// The `decode:` part of its config.
    pub(crate) fn decode_config(&self) -> Json {
        let mut decode: Map<String, Json> =
            self.decode.iter().map(|&(k, v)| (k.to_owned(), v.into())).collect();
        let signals: Vec<String> =
            declared::tables(self.scenario).into_iter().filter(|t| is_signal(t)).collect();
        if !signals.is_empty() {
            decode.insert("exclude".to_owned(), signals.into());
        }
        decode.into()
    }

    /// The `tables:` part of its config.
    pub(crate) fn tables_config(&self, types: Types) -> Json {
        let mut tables = Map::new();
        if types == Types::Files {
            let text_intervals = self.decode.contains(&("interval_handling_mode", "string"));
            for table in declared::tables(self.scenario) {
                let base = folder().join("schemas").join(self.scenario).join(slug(&table));
                let special = base.with_file_name(format!("{}.interval-text.json", slug(&table)));
                let plain = base.with_file_name(format!("{}.json", slug(&table)));
                let file = if text_intervals && special.exists() { special } else { plain };
                if file.exists() {
                    tables.insert(table, json!({ "schema": file }));
                }
            }
        }
        tables.into()
    }
}

fn is_signal(table: &str) -> bool {
    table.contains(".dbz_signal")
}

/// A table's name as a file name that differs from all others on every file system.
fn slug(table: &str) -> String {
    let keep = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    table.chars().map(|c| if keep(c) { c.to_string() } else { format!("~{:x}", u32::from(c)) }).collect()
}

/// The lines of a file, unpacked where its name ends in `.gz`. JSON text may hold U+2028: only `\n` ends a line.
pub(crate) fn lines_of(file: &Path) -> Vec<String> {
    let bytes = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut text = String::new();
    if file.extension().is_some_and(|e| e == "gz") {
        flate2::read::MultiGzDecoder::new(&*bytes).read_to_string(&mut text).unwrap();
    } else {
        text = String::from_utf8(bytes).unwrap();
    }
    text.split('\n').filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn every_file_of_the_corpus_is_a_variant() {
    let known: Vec<PathBuf> = FILES
        .iter()
        .flat_map(|&(scenario, variants)| {
            variants.iter().map(move |&(name, decode)| Variant { scenario, name, decode })
        })
        .map(|v| v.file())
        .collect();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.contains(".jsonl") && !name.contains(".final.") {
            assert!(known.contains(&path), "{name} is no variant of this test");
        }
    }
    assert!(known.iter().all(|file| file.exists()));
}
