//! BigQuery as a sink.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{DeleteMode, OnTypeChange, Span};

/// Tables of a BigQuery dataset. `BIGQUERY_EMULATOR_HOST` (REST), `BIGQUERY_STORAGE_EMULATOR_HOST` (gRPC) and `STORAGE_EMULATOR_HOST` (Cloud
/// Storage) are honoured.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BigqueryConfig {
    /// The sink's name in checkpoints, tables' labels and summaries. `bigquery` by default; needed if there are several of them.
    pub(crate) name: Option<String>,
    /// The project of the dataset.
    pub(crate) project: String,
    /// The dataset.
    pub(crate) dataset: String,
    /// Where the dataset is: checked where it exists, used where it is made. `US` by default for one that is made.
    pub(crate) location: Option<String>,
    /// The shape in which events land. `append` by default.
    #[serde(default)]
    pub(crate) layout: BigqueryLayout,
    /// How rows are written. `exactly-once` by default for histories, `upsert` for replicas.
    pub(crate) delivery: Option<Delivery>,
    /// With `delivery: load`: where files go, and how often they are loaded.
    pub(crate) load: Option<Load>,
    /// Of a replica with `delivery: merge`: the tables that it is merged from.
    pub(crate) staging: Option<Staging>,
    /// Of a replica with `delivery: merge`: when it is merged.
    pub(crate) apply: Option<Apply>,
    /// How old what a replica's readers see may be (`max_staleness`). `15m` by default; less costs more for each query.
    pub(crate) freshness: Option<Span>,
    /// What a replica does with deleted rows. `hard` by default.
    pub(crate) delete: Option<DeleteMode>,
    /// Make datasets and tables that do not exist, or never. `if-needed` by default.
    pub(crate) create: Option<CreateMode>,
    /// What becomes of a value whose type the column cannot take and widening cannot help. `new-column` by default.
    pub(crate) on_type_change: Option<OnTypeChange>,
    /// Names of tables, of `{db}`, `{schema}` and `{table}`. `{table}` by default.
    pub(crate) table_name: Option<String>,
    /// How long partitions of histories and of plain rows are kept; for ever by default. A latest view loses rows that are older and were
    /// not written again.
    pub(crate) partition_expiration: Option<Span>,
    /// Views of its tables, for dashboards: made with the tables, and anew when columns change.
    #[serde(default)]
    pub(crate) views: Vec<View>,
    /// Labels of its tables, beside those that somebody else gave them.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// Other places than the service, such as an emulator's.
    pub(crate) endpoints: Option<BigqueryEndpoints>,
    /// A credentials file; Application Default Credentials by default.
    pub(crate) credentials: Option<PathBuf>,
}

/// The shape in which events land in BigQuery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BigqueryLayout {
    /// Every event as a row of `T_raw`, and a view `T_latest` of the current rows.
    #[default]
    Append,
    /// Every event in `T_changelog`, with the row before and after.
    Changelog,
    /// The current rows in `T`.
    Replica,
    /// Every event as it came in one table `cdc_events`, as JSON text.
    Envelope,
    /// Plain rows in `T`, with the columns that are declared and nothing else. With `format: json`.
    Rows,
}

/// How rows reach BigQuery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Delivery {
    /// Buffered streams: rows are seen once an epoch, each of them once.
    ExactlyOnce,
    /// The default stream: rows are seen at once; after a crash some come twice.
    AtLeastOnce,
    /// Files in Cloud Storage that load jobs take in: each row once, minutes later, without the cost of streaming. For histories.
    Load,
    /// Native upserts and deletes by primary key, for replicas.
    Upsert,
    /// A `MERGE` of what was staged, now and then, for replicas.
    Merge,
}

/// The tables from which a replica is merged, called like the replica's with `__staging` behind.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Staging {
    /// Their dataset, where the sink's `dataset` is. The sink's own by default.
    pub(crate) dataset: Option<String>,
    /// How rows get there: `exactly-once` (default) or `at-least-once`. The replica is the same; the latter needs fewer connections and no
    /// flushes.
    pub(crate) delivery: Option<Delivery>,
    /// How long they are kept after they were merged, and how long deletes are remembered, in whole days. `1d` by default.
    pub(crate) keep: Option<Span>,
}

/// When a replica is merged. It is so at the end of a run and after a crash, too.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Apply {
    /// How often. `60s` by default: what is not merged is not seen, and each merge costs a query.
    pub(crate) interval: Option<Span>,
}

/// A query with a name in the sink's dataset.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct View {
    /// What it is called.
    pub(crate) name: String,
    /// How its result is kept. `view` by default.
    #[serde(default)]
    pub(crate) kind: ViewKind,
    /// The query; `{project}` and `{dataset}` stand for the sink's.
    pub(crate) sql: Option<String>,
    /// A file with the query, in place of `sql`.
    pub(crate) file: Option<PathBuf>,
    /// Of a `scheduled-query`: when it runs, in the words of the Data Transfer Service, such as `every 24 hours`.
    pub(crate) schedule: Option<String>,
}

/// How the result of a view's query is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ViewKind {
    /// Not at all.
    #[default]
    View,
    /// By BigQuery, which keeps it up to date.
    MaterializedView,
    /// As a table that a scheduled query writes anew.
    ScheduledQuery,
}

/// Files that are loaded.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Load {
    /// The bucket, in the dataset's location.
    pub(crate) bucket: String,
    /// What the names of files begin with, before the pipeline's name; nothing by default.
    pub(crate) prefix: Option<String>,
    /// How often files are loaded: `5m` by default, at least `58s`, since BigQuery runs 1,500 loads a day for a table. A start and the end of
    /// a run load what waits, too.
    pub(crate) triggering_frequency: Option<Span>,
    /// Files of a table that are written side by side. `1` by default; more for tables with many rows.
    pub(crate) shards: Option<u32>,
}

/// Whether things are made that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CreateMode {
    /// When they are first needed.
    IfNeeded,
    /// They have to be there.
    Never,
}

/// Where BigQuery's interfaces are.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BigqueryEndpoints {
    /// The REST API: `http://…` of an emulator (no credentials) or `https://…`.
    pub(crate) rest: String,
    /// The Storage Write API, by gRPC.
    pub(crate) grpc: String,
    /// Cloud Storage, with `delivery: load`.
    pub(crate) gcs: Option<String>,
}
