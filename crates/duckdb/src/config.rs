//! What can be set on a DuckDB sink.

use std::path::PathBuf;

use millstream_core::evolution::ChangePolicy;

/// One DuckDB sink. Several sinks may name one file: within a process they share the open database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuckConfig {
    /// The sink's name, unique in the pipeline and stable across restarts, e.g. `duckdb`.
    pub name: String,
    /// The database file; created with its folder if it is missing.
    pub path: PathBuf,
    /// The DuckDB schema that holds the tables; created if it is missing.
    pub dataset: String,
    /// The pipeline's name: what another pipeline wrote is never taken for its own.
    pub pipeline: String,
    /// The shape in which events land.
    pub layout: Layout,
    /// Template of table names over `{db}`, `{schema}` and `{table}`.
    pub table_name: String,
    /// What becomes of type changes that are no widening.
    pub on_type_change: ChangePolicy,
    /// How exact decimals are kept.
    pub decimals: Decimals,
    /// Whether the append layout keeps a `T_latest` view beside each `T_raw`.
    pub latest_view: bool,
    /// Whether the history may hold one event twice, nothing being deduplicated before it; the latest view then costs more.
    pub history_repeats: bool,
    /// DuckDB's own memory bound, e.g. `512MiB`. `None` grows with the columns of the file's tables, from 128 MiB. The first sink
    /// that opens the file decides.
    pub memory_limit: Option<String>,
    /// DuckDB's worker threads; 0 leaves it to DuckDB (one per core), 1 by default: a sink has a thread of its own, and
    /// handing parts of so little work to others costs more than it saves. The first sink that opens the file decides.
    pub threads: u32,
}

impl DuckConfig {
    /// A sink with every default.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>, layout: Layout) -> Self {
        Self {
            name: name.into(),
            path: path.into(),
            dataset: "main".to_owned(),
            pipeline: String::new(),
            layout,
            table_name: "{table}".to_owned(),
            on_type_change: ChangePolicy::default(),
            decimals: Decimals::default(),
            latest_view: true,
            history_repeats: false,
            memory_limit: None,
            threads: 1,
        }
    }
}

/// The shape in which events land.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `T_raw` with every distinct event, and the view `T_latest`.
    Append,
    /// `T_changelog` with every distinct event as before and after structs.
    Changelog,
    /// The view `T` of plain rows with the columns that are declared, on `T_rows`, which has a mark beside them.
    Rows,
    /// `T` with the current state.
    Replica {
        /// What a delete leaves behind.
        delete: DeleteMode,
    },
}

impl Layout {
    /// Its name in config and metadata.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Append => "append",
            Layout::Changelog => "changelog",
            Layout::Rows => "rows",
            Layout::Replica { .. } => "replica",
        }
    }
}

/// What a delete leaves in a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeleteMode {
    /// The row with its last known values, and `_metadata_deleted = true`.
    #[default]
    Soft,
    /// Nothing.
    Hard,
}

/// How exact decimals are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Decimals {
    /// `DECIMAL(p,s)` up to 38 digits, exact text in `VARCHAR` beyond and where the precision is unbounded.
    #[default]
    Exact,
    /// Exact text in `VARCHAR`, always.
    Text,
}

impl Decimals {
    /// Most digits of a `DECIMAL` column.
    pub(crate) fn precision_max(self) -> u16 {
        match self {
            Decimals::Exact => 38,
            Decimals::Text => 0,
        }
    }
}
