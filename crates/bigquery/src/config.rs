//! What can be set on a BigQuery sink.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::evolution::ChangePolicy;

use crate::connection::Connection;
use crate::dashboard::DashboardView;
use crate::table_resource::PartitionUnit;

/// The shape in which events land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Every distinct event in `T_raw`, and a view `T_latest` of the current rows.
    Append,
    /// Every distinct event in `T_changelog`, with the row before and after.
    Changelog,
    /// The current rows in `T`: by native upserts, or merged where [`BigqueryConfig::merge`] says so.
    Replica {
        /// What becomes of deleted rows.
        delete: DeleteMode,
    },
    /// Every distinct event as it came, in the table `cdc_events` for all tables.
    Envelope,
    /// Plain rows in `T`, with the columns that are declared and nothing else.
    Rows,
    /// What a merged replica is merged from, in `T__staging`. No layout that is chosen: the sink has it beside the replica.
    Staging {
        /// What becomes of deleted rows in the replica.
        delete: DeleteMode,
    },
}

impl Layout {
    /// Whether its rows are about the current state of a key, so that only what is newest goes there.
    pub(crate) fn is_current(self) -> bool {
        matches!(self, Layout::Replica { .. } | Layout::Staging { .. })
    }

    /// Its name in labels.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Append => "append",
            Layout::Changelog => "changelog",
            Layout::Replica { .. } => "replica",
            Layout::Envelope => "envelope",
            Layout::Rows => "rows",
            Layout::Staging { .. } => "staging",
        }
    }
}

/// What a replica does with deleted rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteMode {
    /// Removes them.
    Hard,
    /// Keeps them, marked by `_metadata_deleted`.
    Soft,
}

/// How the rows of a history, or of a merged replica's staging, are written. Other replicas have native upserts, which a repeated row
/// does not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// Buffered streams with offsets, flushed after the checkpoint.
    ExactlyOnce,
    /// The default stream: rows are visible at once, and some come twice after a crash.
    AtLeastOnce,
    /// Files in Cloud Storage, which load jobs take in now and then: each row once, without the cost of streaming.
    Load(LoadOptions),
}

/// How files are written and loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadOptions {
    /// The bucket.
    pub bucket: String,
    /// What the names of files begin with: parts of letters, digits, `_`, `-` and `.`, with `/` between them.
    pub prefix: String,
    /// How often files are loaded.
    pub triggering_frequency: Duration,
    /// Files of a table and epoch that are written side by side.
    pub shards: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            bucket: String::new(),
            prefix: String::new(),
            triggering_frequency: Duration::from_secs(300),
            shards: 1,
        }
    }
}

/// How a replica is merged: by a statement now and then, from a table in which changes are staged. Readers need no `max_staleness`,
/// and anything may be done to the table that DML can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The dataset of the staging tables, in the sink's project and location. They are called like the replica's with `__staging` behind.
    pub dataset: String,
    /// How often what was staged is merged.
    pub interval: Duration,
    /// How long staged rows are kept: at least a day, in whole days. So long a delete that was merged keeps an older change, should one
    /// be staged after it, from bringing its row back.
    pub kept: Duration,
}

/// How a table of plain rows is made. One that is there stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableDesign {
    /// The column by whose times it is partitioned, and what a partition is.
    pub partition_by: Option<(String, PartitionUnit)>,
    /// The columns by which it is clustered.
    pub cluster_by: Vec<String>,
}

/// One BigQuery sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BigqueryConfig {
    /// The sink's name, unique in the pipeline and stable across restarts, e.g. `bigquery`.
    pub name: String,
    /// The pipeline's name: what another pipeline wrote is never taken for its own.
    pub pipeline: String,
    /// Where and as whom.
    pub connection: Connection,
    /// The project of the dataset, which also pays for queries.
    pub project: String,
    /// The dataset that holds the tables.
    pub dataset: String,
    /// Where the dataset is or is made; `None`: wherever it is, and `US` for a new one.
    pub location: Option<String>,
    /// The shape in which events land.
    pub layout: Layout,
    /// How histories are written.
    pub delivery: Delivery,
    /// Whether the dataset and tables are made when they are first needed.
    pub create: bool,
    /// Template of table names over `{db}`, `{schema}` and `{table}`.
    pub table_name: String,
    /// What becomes of type changes that are no widening.
    pub on_type_change: ChangePolicy,
    /// Whether the history may hold one event twice: at least once, or nothing deduplicated before it.
    pub history_repeats: bool,
    /// How old what readers of a replica see may be: the table's `max_staleness`.
    pub freshness: Duration,
    /// How long partitions of histories are kept; `None`: for ever.
    pub partition_expiration: Option<Duration>,
    /// A replica is merged, and not written by native upserts.
    pub merge: Option<Merge>,
    /// How tables of plain rows are made, by `schema.table`.
    pub designs: BTreeMap<String, TableDesign>,
    /// Views for dashboards.
    pub views: Vec<DashboardView>,
    /// Labels of tables that are made, beside Millstream's own.
    pub labels: BTreeMap<String, String>,
}

impl BigqueryConfig {
    /// A sink with every default.
    pub fn new(name: &str, project: &str, dataset: &str, layout: Layout) -> Self {
        Self {
            name: name.to_owned(),
            pipeline: String::new(),
            connection: Connection::default(),
            project: project.to_owned(),
            dataset: dataset.to_owned(),
            location: None,
            layout,
            delivery: Delivery::ExactlyOnce,
            create: true,
            table_name: "{table}".to_owned(),
            on_type_change: ChangePolicy::default(),
            history_repeats: false,
            freshness: Duration::from_secs(15 * 60),
            partition_expiration: None,
            merge: None,
            designs: BTreeMap::new(),
            views: Vec::new(),
            labels: BTreeMap::new(),
        }
    }
}
