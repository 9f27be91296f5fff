//! The sinks' part of the config file.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::bigquery::BigqueryConfig;
use super::pubsub::PubsubSinkConfig;
use super::quantities::Bytes;

/// Where events go.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(tag = "type")]
pub(crate) enum SinkConfig {
    /// Tables of a DuckDB file.
    Duckdb(DuckdbConfig),
    /// Tables of a BigQuery dataset.
    Bigquery(Box<BigqueryConfig>),
    /// Messages of a Pub/Sub topic.
    Pubsub(PubsubSinkConfig),
    /// Counts and drops, for measuring.
    Discard(DiscardConfig),
}

impl SinkConfig {
    /// The name that the config gives it.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            SinkConfig::Duckdb(duckdb) => duckdb.name.as_deref(),
            SinkConfig::Bigquery(bigquery) => bigquery.name.as_deref(),
            SinkConfig::Pubsub(topic) => topic.name.as_deref(),
            SinkConfig::Discard(discard) => discard.name.as_deref(),
        }
    }

    /// Its `type`.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            SinkConfig::Duckdb(_) => "duckdb",
            SinkConfig::Bigquery(_) => "bigquery",
            SinkConfig::Pubsub(_) => "pubsub",
            SinkConfig::Discard(_) => "discard",
        }
    }
}

/// Tables of a DuckDB file.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DuckdbConfig {
    /// The sink's name in checkpoints, tables' metadata and summaries. `duckdb` by default; needed if there are several of them.
    pub(crate) name: Option<String>,
    /// The DuckDB file; made if it is not there. Several sinks may share it.
    pub(crate) path: PathBuf,
    /// The schema in the file. `main` by default.
    pub(crate) dataset: Option<String>,
    /// The shape in which events land. `append` by default.
    #[serde(default)]
    pub(crate) layout: Layout,
    /// What a replica does with deleted rows. `hard` by default, which also removes rows that `soft` kept before.
    pub(crate) delete: Option<DeleteMode>,
    /// What becomes of a value whose type the column cannot take and widening cannot help. `new-column` by default.
    pub(crate) on_type_change: Option<OnTypeChange>,
    /// Names of tables, of `{db}`, `{schema}` and `{table}`. `{table}` by default.
    pub(crate) table_name: Option<String>,
    /// Memory that DuckDB may take before it uses the disk, for all sinks on the file. By default 128 MiB, and
    /// 256 KiB for each column of its tables.
    pub(crate) memory: Option<Bytes>,
    /// DuckDB's worker threads, for all sinks on the file and for queries of a running pipeline. `1` by default, which writes at the
    /// least cost; more help queries of large tables.
    pub(crate) threads: Option<usize>,
}

/// The shape in which events land in a warehouse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Layout {
    /// Every event as a row of `T_raw`, and a view `T_latest` of the current rows.
    #[default]
    Append,
    /// Every event in `T_changelog`, with the row before and after.
    Changelog,
    /// The current rows in `T`.
    Replica,
    /// Plain rows with the columns that are declared and nothing else: the view `T`, on `T_rows`. With `format: json`.
    Rows,
}

/// What a replica does with deleted rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DeleteMode {
    /// Keeps them, marked by `_metadata_deleted`.
    Soft,
    /// Removes them.
    Hard,
}

/// What becomes of a value whose type its column cannot take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OnTypeChange {
    /// It lands in a new column `name__type`.
    NewColumn,
    /// The event becomes a dead letter.
    DeadLetter,
    /// The pipeline stops.
    Stop,
}

/// Counts and drops, for measuring.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DiscardConfig {
    /// The sink's name in summaries. `discard` by default; needed if there are several of them.
    pub(crate) name: Option<String>,
}
