//! The config file as written: names, shapes and units are checked here, sense is checked by the plan.
//!
//! The doc comments of these structs are the config's reference: the JSON Schema and the README's tables come from them.

mod bigquery;
mod document;
mod http;
mod problem;
mod pubsub;
mod quantities;
mod reader;
#[cfg(test)]
mod reference;
mod sinks;
mod tables;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

pub(crate) use bigquery::{BigqueryConfig, BigqueryLayout, CreateMode, Delivery, ViewKind};
pub(crate) use document::{Node, Step, locate};
pub(crate) use http::{HttpConfig, MetricsConfig};
pub(crate) use problem::{Problem, Problems};
pub(crate) use pubsub::{DeadLetterTopicConfig, MessageFormat, PubsubConfig, PubsubSinkConfig};
pub(crate) use quantities::{Bytes, OneOrMany, Span};
pub(crate) use reader::nearest;
pub(crate) use sinks::{DeleteMode, DuckdbConfig, Layout, OnTypeChange, SinkConfig};
pub(crate) use tables::{JsonConfig, PartitionUnit, ReplicaIdentity, TableConfig, UnknownFields};

/// A pipeline: a source, a decoder, dedupe, and one or more sinks. `${NAME}` and `${NAME:-default}` are filled in from
/// the environment. Relative paths are relative to this file.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Millstream pipeline", inline)]
pub(crate) struct Config {
    /// The pipeline's name: letters, digits, `-` and `_`. The file's name without extension by default.
    pub(crate) pipeline: Option<String>,
    /// Where records come from.
    pub(crate) source: SourceConfig,
    /// How records become events.
    #[serde(default)]
    pub(crate) decode: DecodeConfig,
    /// What is known about tables, by `schema.table` (MySQL: `db.table`).
    #[serde(default)]
    pub(crate) tables: BTreeMap<String, TableConfig>,
    /// What is a duplicate. `exact` by default.
    #[serde(default)]
    pub(crate) dedupe: DedupeConfig,
    /// When progress becomes durable, and where.
    #[serde(default)]
    pub(crate) checkpoint: CheckpointConfig,
    /// Where events go; each sink gets every event.
    pub(crate) sinks: Vec<SinkConfig>,
    /// Where records and rows go that could not be processed.
    pub(crate) dead_letters: Option<DeadLettersConfig>,
    /// What to do when something fails that may work later.
    #[serde(default)]
    pub(crate) restart: RestartConfig,
    /// How late events may come.
    #[serde(default)]
    pub(crate) watermark: WatermarkConfig,
    /// The HTTP API of the running pipeline; none without this key. `http: {}` is enough.
    pub(crate) http: Option<HttpConfig>,
    /// Metrics for Prometheus at `/metrics`; none without this key. `metrics: {}` is enough.
    pub(crate) metrics: Option<MetricsConfig>,
    /// Parallel keyed shards; may change between runs. The number of cores by default.
    pub(crate) shards: Option<usize>,
    /// Parallel decoders. The number of cores by default.
    pub(crate) threads: Option<usize>,
    /// Raise by one when the source's positions start anew (a failover, a restored backup): everything that comes then
    /// is newer than everything before. `millstream sweep` deletes what a new snapshot did not write again. 0 to 32767.
    #[serde(default)]
    pub(crate) incarnation: u16,
}

/// Where records come from.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(tag = "type")]
pub(crate) enum SourceConfig {
    /// Lines of local files.
    Files(FilesConfig),
    /// Messages of Pub/Sub subscriptions.
    Pubsub(PubsubConfig),
}

/// Lines of local files, also gzipped ones (`.gz`). Each line counts once, across restarts, renames and appends.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilesConfig {
    /// A file, a folder (its `.jsonl`, `.ndjson` and `.json` files at any depth), a glob such as `in/**/*.jsonl`, or a
    /// list of these.
    pub(crate) path: OneOrMany,
    /// What a line is. `value` by default.
    #[serde(default)]
    pub(crate) lines: Lines,
    /// Wait for more lines and files, or end when all are read. `false` by default.
    #[serde(default)]
    pub(crate) follow: bool,
    /// How often known files are looked at while following. `1s` by default.
    pub(crate) poll_interval: Option<Span>,
    /// How often new files are looked for while following. `60s` by default.
    pub(crate) discovery_interval: Option<Span>,
    /// A longer line becomes a dead letter. `64MiB` by default and at most.
    pub(crate) max_record_size: Option<Bytes>,
}

/// What a line of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Lines {
    /// The record's value itself.
    #[default]
    Value,
    /// A JSON object with `topic`, `key`, `value` and `headers`, each a text as the connector emitted it.
    Record,
}

/// How records become events. The names of modes are those of Debezium's properties and tell what the connector was
/// told; they matter only for events without an embedded schema, which says these things itself.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecodeConfig {
    /// The form of the events. `debezium` by default.
    #[serde(default)]
    pub(crate) format: Format,
    /// `decimal.handling.mode` of the connector.
    pub(crate) decimal_handling_mode: Option<DecimalMode>,
    /// `time.precision.mode` of the connector.
    pub(crate) time_precision_mode: Option<TimeMode>,
    /// `binary.handling.mode` of the connector.
    pub(crate) binary_handling_mode: Option<BinaryMode>,
    /// `interval.handling.mode` of the connector.
    pub(crate) interval_handling_mode: Option<IntervalMode>,
    /// `unavailable.value.placeholder` of the connector: the text that stands for an unchanged large value.
    /// `__debezium_unavailable_value` by default.
    pub(crate) unavailable_value_placeholder: Option<String>,
    /// `hstore.handling.mode` of the connector.
    pub(crate) hstore_handling_mode: Option<HstoreMode>,
    /// What becomes of dates and times outside the years 1 to 9999, and of infinite ones, in rows and in `ts_ms`. `null` by
    /// default, `dead-letter` with `format: json`.
    pub(crate) out_of_range: Option<OutOfRange>,
    /// What becomes of decimals that are NaN or infinite. `null` by default, `dead-letter` with `format: json`.
    pub(crate) not_finite: Option<NotFinite>,
    /// Take timestamps without zone for instants in UTC. `false` by default.
    #[serde(default)]
    pub(crate) datetime_as_timestamp: bool,
    /// Take only these tables (`schema.table`); events of others are counted and left out.
    pub(crate) include: Option<Vec<String>>,
    /// Leave these tables out, such as the signal table of incremental snapshots; their events are counted.
    #[serde(default)]
    pub(crate) exclude: Vec<String>,
    /// The table (`schema.table`) whose rows PostgreSQL's logical messages become, with the columns `lsn` (its key),
    /// `prefix` and `content`. Without it they are counted and left out.
    pub(crate) messages: Option<String>,
    /// Names of the added fields in flattened events; only with `format: debezium-flat`.
    pub(crate) flat: Option<FlatConfig>,
    /// Which table plain messages are for; only with `format: json`.
    pub(crate) json: Option<JsonConfig>,
}

/// The form of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    /// Debezium's envelope, bare or with its schema.
    #[default]
    Debezium,
    /// Rows flattened by Debezium's ExtractNewRecordState.
    DebeziumFlat,
    /// Plain JSON: an object is a row of a table whose columns `tables` declares, an array one for each element. For sinks with
    /// `layout: rows` or `append`.
    Json,
}

/// `decimal.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DecimalMode {
    /// Base64 of the unscaled value.
    Precise,
    /// Decimal text.
    String,
    /// JSON numbers that lost digits.
    Double,
}

/// `time.precision.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TimeMode {
    /// By the column's precision.
    Adaptive,
    /// By the column's precision; times of day always in microseconds.
    AdaptiveTimeMicroseconds,
    /// Kafka Connect's milliseconds.
    Connect,
    /// ISO 8601 text.
    Isostring,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

/// `binary.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BinaryMode {
    /// Bytes, which JSON shows as base64.
    Bytes,
    /// Base64 text.
    Base64,
    /// URL-safe base64 text.
    Base64UrlSafe,
    /// Hexadecimal text.
    Hex,
}

/// `interval.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum IntervalMode {
    /// Microseconds, a month counted as 30.4375 days.
    Numeric,
    /// ISO 8601 text.
    String,
}

/// `hstore.handling.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum HstoreMode {
    /// Text of a JSON object.
    Json,
    /// A JSON object.
    Map,
}

/// What becomes of a date or time that no warehouse column can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OutOfRange {
    /// NULL, counted.
    Null,
    /// The nearest value in range, counted.
    Clamp,
    /// The whole record becomes a dead letter.
    DeadLetter,
}

/// What becomes of a decimal that is not a finite number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum NotFinite {
    /// NULL, counted.
    Null,
    /// An infinity becomes the nearest value that the column's precision allows; NaN becomes NULL. Counted.
    Clamp,
    /// The whole record becomes a dead letter.
    DeadLetter,
    /// The column becomes text from the first such value on.
    String,
}

/// Names of what ExtractNewRecordState was told to add, as fields or headers.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FlatConfig {
    /// The operation. `__op` by default.
    pub(crate) op: Option<String>,
    /// Whether the row was deleted. `__deleted` by default.
    pub(crate) deleted: Option<String>,
    /// The table. `__table` by default.
    pub(crate) table: Option<String>,
    /// The schema. `__schema` by default.
    pub(crate) schema: Option<String>,
    /// The database. `__db` by default.
    pub(crate) db: Option<String>,
    /// PostgreSQL's log position. `__lsn` by default.
    pub(crate) lsn: Option<String>,
    /// The source's time, ms. `__source_ts_ms` by default.
    pub(crate) source_ts_ms: Option<String>,
    /// The source's time, µs. `__source_ts_us` by default.
    pub(crate) source_ts_us: Option<String>,
    /// The transaction. `__txId` by default.
    pub(crate) transaction_id: Option<String>,
    /// `source.snapshot`. `__snapshot` by default.
    pub(crate) snapshot: Option<String>,
    /// MySQL's binlog file. `__file` by default.
    pub(crate) file: Option<String>,
    /// MySQL's binlog position. `__pos` by default.
    pub(crate) pos: Option<String>,
    /// MySQL's row within the binlog event. `__row` by default.
    pub(crate) row: Option<String>,
    /// The table (`schema.table`) where neither fields nor headers nor the topic tell it.
    pub(crate) default_table: Option<String>,
}

/// What is a duplicate: a mode, or a mapping with more.
#[derive(Debug, Clone, Default)]
pub(crate) struct DedupeConfig {
    pub(crate) mode: DedupeMode,
    pub(crate) keep: Option<Span>,
    pub(crate) keep_per_key: Option<usize>,
    pub(crate) keep_keyless: Option<Span>,
}

/// What is a duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DedupeMode {
    /// An event whose id was seen; a late but unseen one is kept in histories.
    #[default]
    Exact,
    /// Whatever is not newer than its key's newest; for replicas only.
    Latest,
    /// Nothing.
    Off,
}

/// What is a duplicate, with what is remembered for it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
struct DedupeFull {
    /// The mode.
    #[serde(default)]
    mode: DedupeMode,
    /// How long the ids of a key's recent events are remembered at least. `10m` by default.
    keep: Option<Span>,
    /// How many ids a key remembers at least. 256 by default.
    keep_per_key: Option<usize>,
    /// How long the ids of events without a key are remembered. `1h` by default.
    keep_keyless: Option<Span>,
}

impl<'de> Deserialize<'de> for DedupeConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = DedupeConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`exact`, `latest`, `off`, or a mapping with `mode`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DedupeConfig, E> {
                let mode = DedupeMode::deserialize(serde::de::value::StrDeserializer::new(text))?;
                Ok(DedupeConfig { mode, ..DedupeConfig::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DedupeConfig, A::Error> {
                let full = DedupeFull::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                let DedupeFull { mode, keep, keep_per_key, keep_keyless } = full;
                Ok(DedupeConfig { mode, keep, keep_per_key, keep_keyless })
            }
        }
        deserializer.deserialize_any(Reading)
    }
}

impl JsonSchema for DedupeConfig {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DedupeConfig".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mode = generator.subschema_for::<DedupeMode>();
        let full = generator.subschema_for::<DedupeFull>();
        json_schema!({ "anyOf": [mode, full] })
    }
}

/// When progress becomes durable, and where.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckpointConfig {
    /// Time between checkpoints. `1s` by default.
    pub(crate) interval: Option<Span>,
    /// The folder of checkpoints and keyed state. `.millstream/<pipeline>` by default.
    pub(crate) directory: Option<PathBuf>,
    /// A checkpoint that takes longer fails. `10m` by default.
    pub(crate) timeout: Option<Span>,
}

/// Where records and rows go that could not be processed.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(tag = "type")]
pub(crate) enum DeadLettersConfig {
    /// Local JSON lines, one file a stage.
    Files(DeadLetterFilesConfig),
    /// Messages of a Pub/Sub topic.
    Pubsub(DeadLetterTopicConfig),
}

/// Dead letters as local JSON lines, one file a stage.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeadLetterFilesConfig {
    /// Their folder. `dead-letters` in the checkpoint's folder by default.
    pub(crate) directory: Option<PathBuf>,
}

/// What to do when something fails that may work later.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestartConfig {
    /// Restarts before the pipeline fails. 5 by default.
    pub(crate) attempts: Option<u32>,
    /// Wait before each. `30s` by default.
    pub(crate) delay: Option<Span>,
    /// Restarts are forgotten after so long without a failure. `10m` by default.
    pub(crate) stable_after: Option<Span>,
}

/// How late events may come.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WatermarkConfig {
    /// An event that is this much older than the newest of its file counts as late; it is processed all the same.
    /// `30s` by default.
    pub(crate) delay: Option<Span>,
}

/// A config file that was read: its text, its tree for places, and its typed form.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) file: PathBuf,
    pub(crate) text: String,
    pub(crate) root: Node,
    pub(crate) config: Config,
    /// `PUBSUB_EMULATOR_HOST`, which every Pub/Sub client honours.
    pub(crate) pubsub_emulator: Option<String>,
    /// `BIGQUERY_EMULATOR_HOST` and `BIGQUERY_STORAGE_EMULATOR_HOST`: an emulator's REST and gRPC endpoints.
    pub(crate) bigquery_emulator: [Option<String>; 2],
    /// `STORAGE_EMULATOR_HOST`: an emulator of Cloud Storage.
    pub(crate) storage_emulator: Option<String>,
}

impl Loaded {
    /// Reads a config file; `environment` answers for `${NAME}`.
    pub(crate) fn read(file: &Path, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problems> {
        let shown = file.display().to_string();
        let text = std::fs::read_to_string(file).map_err(|e| Problems::unreadable(&shown, e))?;
        let parsed = document::parse(&text, environment)
            .and_then(|root| reader::read::<Config>(&root).map(|config| (root, config)));
        match parsed {
            Ok((root, config)) => {
                let host = |name: &str| environment(name).filter(|host| !host.is_empty());
                let pubsub_emulator = host("PUBSUB_EMULATOR_HOST");
                let bigquery_emulator =
                    ["BIGQUERY_EMULATOR_HOST", "BIGQUERY_STORAGE_EMULATOR_HOST"].map(host);
                let storage_emulator = host("STORAGE_EMULATOR_HOST");
                let file = file.to_owned();
                Ok(Self { file, text, root, config, pubsub_emulator, bigquery_emulator, storage_emulator })
            }
            Err(problem) => Err(Problems { file: shown, text, problems: vec![problem] }),
        }
    }

    /// Problems of this file.
    pub(crate) fn problems(&self, problems: Vec<Problem>) -> Problems {
        Problems { file: self.file.display().to_string(), text: self.text.clone(), problems }
    }
}

/// The config's JSON Schema, as kept in `config.schema.json`.
pub(crate) fn json_schema_text() -> String {
    let schema = schemars::schema_for!(Config);
    let mut text = serde_json::to_string_pretty(&schema).expect("invariant: a JSON schema is JSON");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    /// `make schema` writes it.
    #[test]
    fn the_json_schema_in_the_tree_is_current() {
        let kept = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../config.schema.json"))
            .unwrap();
        assert!(kept == super::json_schema_text(), "run `make schema`");
    }
}
