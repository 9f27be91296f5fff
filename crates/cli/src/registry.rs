//! Name → connector: the one place where connectors are named. Adding one is its folder and a line here.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_bigquery::{BigquerySink, given_schema};
use millstream_core::evolution::ChangePolicy;
use millstream_core::{DeadLetters, Decoder, Error, Incarnation, Result, Sink, Source, TableName};
use millstream_decode::{
    self as decode, BareNumeric, ColumnHint, FlatOptions, JsonOptions, Modes, Options, TableHints,
    parse_schema_file,
};
use millstream_duckdb::{self as duckdb, DuckConfig, DuckSink};
use millstream_pubsub::{LetterTopic, PubsubConfig, PubsubSink, PubsubSource};
use millstream_sources::files::{self, FileSource};

use crate::config::{
    BinaryMode, DecimalMode, DeleteMode, FlatConfig, Format, HstoreMode, IntervalMode, JsonConfig, Layout,
    Lines, NotFinite, OnTypeChange, OutOfRange, ReplicaIdentity, TimeMode, UnknownFields,
};
use crate::dead_letters::TopicSource;
use crate::discard::Discard;
use crate::plan::{DuckdbPlan, LetterTopicPlan, Plan, SinkKind, SinkPlan, SourcePlan};

/// The plan's source, not yet opened.
pub(crate) fn source(plan: &SourcePlan) -> Result<Box<dyn Source>> {
    match plan {
        SourcePlan::Files(plan) => {
            let (first, more) = plan.paths.split_first().expect("invariant: a plan names a file");
            let mut config = files::FilesConfig::new(first);
            config.more_paths = more.to_vec();
            config.follow = plan.follow;
            config.lines = match plan.lines {
                Lines::Value => files::Lines::Value,
                Lines::Record => files::Lines::Record,
            };
            config.poll_interval = plan.poll_interval;
            config.discovery_interval = plan.discovery_interval;
            config.max_record_bytes = plan.record_bytes_max as usize;
            Ok(Box::new(FileSource::new(config)?))
        }
        SourcePlan::Pubsub(config) => Ok(Box::new(PubsubSource::new(PubsubConfig::clone(config))?)),
    }
}

/// A decoder of the plan's format.
pub(crate) fn decoder(format: Format, options: Arc<Options>) -> Result<Box<dyn Decoder>> {
    match format {
        Format::Debezium => Ok(decode::debezium(options)),
        Format::DebeziumFlat => Ok(decode::debezium_flat(options)),
        Format::Json => decode::json(options),
    }
}

/// A sink of the plan, open.
pub(crate) fn sink(plan: &SinkPlan) -> Result<Box<dyn Sink>> {
    match &plan.kind {
        SinkKind::Duckdb(duckdb) => Ok(Box::new(DuckSink::open(duckdb_config(&plan.name, duckdb))?)),
        SinkKind::Bigquery(config) => Ok(Box::new(BigquerySink::new((**config).clone())?)),
        SinkKind::Pubsub(config) => Ok(Box::new(PubsubSink::new(config.clone())?)),
        SinkKind::Discard => Ok(Box::new(Discard::new())),
    }
}

/// The plan's topic of dead letters, beside the place for those that no message can hold.
pub(crate) fn letter_topic(plan: &LetterTopicPlan, others: Box<dyn DeadLetters>) -> Result<LetterTopic> {
    LetterTopic::new(&plan.connection, plan.topic.clone(), plan.subscription.clone(), plan.create, others)
}

/// What makes a source of the topic's letters; `None` without a subscription.
pub(crate) fn topic_letters(plan: LetterTopicPlan) -> Option<TopicSource> {
    let subscription = plan.subscription?;
    Some(Box::new(move |before_ms| {
        let mut config = PubsubConfig::new(plan.connection.clone(), vec![subscription.clone()]);
        config.streams = 1;
        config.published_before_ms = Some(before_ms);
        Ok(Box::new(PubsubSource::new(config)?))
    }))
}

/// What a DuckDB sink is told.
pub(crate) fn duckdb_config(name: &str, plan: &DuckdbPlan) -> DuckConfig {
    let layout = match plan.layout {
        Layout::Append => duckdb::Layout::Append,
        Layout::Changelog => duckdb::Layout::Changelog,
        Layout::Rows => duckdb::Layout::Rows,
        Layout::Replica => duckdb::Layout::Replica {
            delete: match plan.delete {
                DeleteMode::Soft => duckdb::DeleteMode::Soft,
                DeleteMode::Hard => duckdb::DeleteMode::Hard,
            },
        },
    };
    let mut config = DuckConfig::new(name, &plan.path, layout);
    config.dataset.clone_from(&plan.dataset);
    config.table_name.clone_from(&plan.table_name);
    config.history_repeats = plan.history_repeats;
    config.memory_limit = plan.memory.map(|bytes| format!("{}MiB", bytes >> 20));
    config.threads = plan.threads as u32;
    config.pipeline.clone_from(&plan.pipeline);
    config.on_type_change = match plan.on_type_change {
        OnTypeChange::NewColumn => ChangePolicy::NewColumn,
        OnTypeChange::DeadLetter => ChangePolicy::DeadLetter,
        OnTypeChange::Stop => ChangePolicy::Stop,
    };
    config
}

/// What the decoders are told. Reads the tables' schema files, and asks the warehouse for columns that nobody declared.
pub(crate) async fn decoder_options(plan: &Plan) -> Result<Options> {
    let mut tables = HashMap::new();
    let mut exclude: std::collections::HashSet<String> = plan.decode.exclude.iter().cloned().collect();
    for (name, table) in &plan.tables {
        if table.exclude {
            exclude.insert(name.clone());
        }
        let mut columns = crate::plan::columns(table, plan.decode.format)?;
        if columns.is_empty() && plan.decode.format == Format::Json && !table.exclude {
            columns = given_columns(plan, name).await?;
        }
        let columns = columns.into_iter().collect();
        let full_identity = table.replica_identity == Some(ReplicaIdentity::Full);
        tables.insert(name.clone(), TableHints { key: table.key.clone(), columns, full_identity });
    }
    let changelog = plan.has_changelog();
    let is_json = plan.decode.format == Format::Json;
    let record_bytes_max = match &plan.source {
        SourcePlan::Files(files) => files.record_bytes_max,
        // The service takes no larger message.
        SourcePlan::Pubsub(_) => 10 << 20,
    };
    let mut options = Options {
        incarnation: Incarnation(plan.incarnation),
        tables,
        include: plan.decode.include.as_ref().map(|names| names.iter().cloned().collect()),
        exclude,
        messages: plan.decode.messages.as_deref().map(table_named),
        modes: modes(plan),
        out_of_range: match plan.decode.out_of_range {
            // What does not fit a declared column is refused.
            None if is_json => decode::RangePolicy::DeadLetter,
            None | Some(OutOfRange::Null) => decode::RangePolicy::Null,
            Some(OutOfRange::Clamp) => decode::RangePolicy::Clamp,
            Some(OutOfRange::DeadLetter) => decode::RangePolicy::DeadLetter,
        },
        not_finite: match plan.decode.not_finite {
            None if is_json => decode::NotFinitePolicy::DeadLetter,
            None | Some(NotFinite::Null) => decode::NotFinitePolicy::Null,
            Some(NotFinite::Clamp) => decode::NotFinitePolicy::Clamp,
            Some(NotFinite::DeadLetter) => decode::NotFinitePolicy::DeadLetter,
            Some(NotFinite::String) => decode::NotFinitePolicy::String,
        },
        keep_before: changelog,
        keep_source: changelog,
        datetime_as_timestamp: plan.decode.datetime_as_timestamp,
        record_bytes_max: record_bytes_max as usize,
        flat: plan.decode.flat.as_ref().map(flat).unwrap_or_default(),
        json: plan.decode.json.as_ref().map(json).unwrap_or_default(),
        ..Options::default()
    };
    if let Some(placeholder) = &plan.decode.unavailable_value_placeholder {
        options.placeholder.clone_from(placeholder);
    }
    Ok(options)
}

/// The columns that a table of plain messages has in BigQuery.
async fn given_columns(plan: &Plan, table: &str) -> Result<Vec<(String, ColumnHint)>> {
    for sink in &plan.sinks {
        if let SinkKind::Bigquery(config) = &sink.kind
            && config.layout == millstream_bigquery::Layout::Rows
            && let Some(schema) = given_schema(config, &table_named(table)).await?
        {
            let whose = || format!("the columns of {table} in the dataset {}", config.dataset);
            return parse_schema_file(&schema, BareNumeric::OfWarehouse).map_err(|e| e.at(whose()));
        }
    }
    Err(Error::fatal(format!(
        "the config declares no columns of {table}, and there is no such table in BigQuery: declare them (`columns` or `schema`), or make the table"
    )))
}

fn modes(plan: &Plan) -> Modes {
    let mut modes = Modes::default();
    if let Some(time) = plan.decode.time_precision_mode {
        modes.time = match time {
            TimeMode::Adaptive => decode::TimeMode::Adaptive,
            TimeMode::AdaptiveTimeMicroseconds => decode::TimeMode::AdaptiveTimeMicroseconds,
            TimeMode::Connect => decode::TimeMode::Connect,
            TimeMode::Isostring => decode::TimeMode::IsoString,
            TimeMode::Microseconds => decode::TimeMode::Microseconds,
            TimeMode::Nanoseconds => decode::TimeMode::Nanoseconds,
        };
    }
    if let Some(decimal) = plan.decode.decimal_handling_mode {
        modes.decimal = match decimal {
            DecimalMode::Precise => decode::DecimalMode::Precise,
            DecimalMode::String => decode::DecimalMode::String,
            DecimalMode::Double => decode::DecimalMode::Double,
        };
    }
    if let Some(binary) = plan.decode.binary_handling_mode {
        modes.binary = match binary {
            BinaryMode::Bytes => decode::BinaryMode::Bytes,
            BinaryMode::Base64 => decode::BinaryMode::Base64,
            BinaryMode::Base64UrlSafe => decode::BinaryMode::Base64UrlSafe,
            BinaryMode::Hex => decode::BinaryMode::Hex,
        };
    }
    if let Some(interval) = plan.decode.interval_handling_mode {
        modes.interval = match interval {
            IntervalMode::Numeric => decode::IntervalMode::Numeric,
            IntervalMode::String => decode::IntervalMode::String,
        };
    }
    if let Some(hstore) = plan.decode.hstore_handling_mode {
        modes.hstore = match hstore {
            HstoreMode::Json => decode::HstoreMode::Json,
            HstoreMode::Map => decode::HstoreMode::Map,
        };
    }
    modes
}

fn flat(config: &FlatConfig) -> FlatOptions {
    let mut options = FlatOptions::default();
    let names = [
        (&mut options.op, &config.op),
        (&mut options.deleted, &config.deleted),
        (&mut options.table, &config.table),
        (&mut options.schema, &config.schema),
        (&mut options.db, &config.db),
        (&mut options.lsn, &config.lsn),
        (&mut options.ts_ms, &config.source_ts_ms),
        (&mut options.ts_us, &config.source_ts_us),
        (&mut options.transaction_id, &config.transaction_id),
        (&mut options.snapshot, &config.snapshot),
        (&mut options.file, &config.file),
        (&mut options.pos, &config.pos),
        (&mut options.row, &config.row),
    ];
    for (option, given) in names {
        if let Some(given) = given {
            option.clone_from(given);
        }
    }
    options.default_table = config.default_table.as_deref().map(table_named);
    options
}

fn json(config: &JsonConfig) -> JsonOptions {
    JsonOptions {
        table: config.table.clone(),
        table_field: config.table_field.clone(),
        table_attribute: config.table_attribute.clone(),
        unknown_fields: match config.unknown_fields {
            None | Some(UnknownFields::DeadLetter) => decode::UnknownFields::DeadLetter,
            Some(UnknownFields::Ignore) => decode::UnknownFields::Ignore,
        },
    }
}

/// `schema.table`, or a table alone.
fn table_named(name: &str) -> TableName {
    let (schema, table) = name.split_once('.').unwrap_or(("", name));
    TableName::new("", schema, table)
}
