//! What a config's sinks mean.

use std::path::PathBuf;

use millstream_bigquery::BigqueryConfig;
use millstream_duckdb::MEMORY_MIB;
use millstream_pubsub::sink::SinkConfig as TopicConfig;

use super::{Checker, PARALLEL_MAX};
use crate::config::{self, Config, DedupeMode, Format, Layout, SinkConfig, Step};

/// Of `on_type_change` with `layout: rows`.
pub(super) const DECLARED: &str =
    "`layout: rows` has the columns that are declared: a value that does not fit is a dead letter";

/// A sink with its stable name.
#[derive(Debug, Clone)]
pub(crate) struct SinkPlan {
    pub(crate) name: String,
    pub(crate) kind: SinkKind,
}

/// What a sink is.
#[derive(Debug, Clone)]
pub(crate) enum SinkKind {
    Duckdb(DuckdbPlan),
    Bigquery(Box<BigqueryConfig>),
    Pubsub(TopicConfig),
    Discard,
}

/// Tables of a DuckDB file.
#[derive(Debug, Clone)]
pub(crate) struct DuckdbPlan {
    pub(crate) path: PathBuf,
    pub(crate) dataset: String,
    pub(crate) layout: Layout,
    pub(crate) delete: config::DeleteMode,
    pub(crate) on_type_change: config::OnTypeChange,
    pub(crate) table_name: String,
    /// Bytes of memory for DuckDB; `None` grows with the tables.
    pub(crate) memory: Option<u64>,
    /// DuckDB's worker threads.
    pub(crate) threads: usize,
    /// The pipeline's name.
    pub(crate) pipeline: String,
    /// Whether the history can hold an event twice.
    pub(crate) history_repeats: bool,
}

impl Checker<'_> {
    pub(super) fn sinks(&mut self, config: &Config, pipeline: &str) -> Vec<SinkPlan> {
        if config.sinks.is_empty() {
            let help = "for example: sinks: [{ type: duckdb, path: out.duckdb }]";
            self.problem(&["sinks".into()], "there is no sink", help);
        }
        let mut sinks: Vec<SinkPlan> = Vec::new();
        for (index, sink) in config.sinks.iter().enumerate() {
            let name = self.sink_name(index, &config.sinks);
            let kind = match sink {
                SinkConfig::Duckdb(duckdb) => SinkKind::Duckdb(self.duckdb(index, duckdb, config, pipeline)),
                SinkConfig::Bigquery(given) => {
                    SinkKind::Bigquery(Box::new(self.bigquery(index, given, config, (pipeline, &name))))
                }
                SinkConfig::Pubsub(topic) => {
                    if config.decode.format == Format::Json {
                        let message =
                            "a Pub/Sub sink publishes changes of rows, and `format: json` has rows alone";
                        self.problem(&["sinks".into(), index.into()], message, "");
                    }
                    // Of a name that makes no sense the plan is never used.
                    self.pubsub_sink(index, topic).map_or(SinkKind::Discard, SinkKind::Pubsub)
                }
                SinkConfig::Discard(_) => SinkKind::Discard,
            };
            if sinks.iter().any(|s| s.name == name) {
                let message = format!("two sinks are called `{name}`");
                self.problem(
                    &["sinks".into(), index.into(), "name".into()],
                    message,
                    "names tell sinks apart in checkpoints",
                );
            }
            if matches!(kind, SinkKind::Bigquery(_)) && name.ends_with(" (files)") {
                let message = format!("a BigQuery sink is called `{name}`");
                self.problem(
                    &["sinks".into(), index.into(), "name".into()],
                    message,
                    "the files of a sink that loads are written down under its name with ` (files)`: end it otherwise",
                );
            }
            if let Some(other) = sinks.iter().position(|s| same_tables(&s.kind, &kind)) {
                let message = format!("sinks {other} and {index} would write the same tables");
                self.problem(
                    &["sinks".into(), index.into()],
                    message,
                    "give one of them another `dataset`, `path` or `layout`",
                );
            }
            sinks.push(SinkPlan { name, kind });
        }
        sinks
    }

    /// A name that does not change when sinks are listed in another order or some come or go beside.
    fn sink_name(&mut self, index: usize, sinks: &[SinkConfig]) -> String {
        let sink = &sinks[index];
        if let Some(name) = sink.name() {
            return name.to_owned();
        }
        let of_type = sink.type_name();
        if sinks.iter().filter(|other| other.type_name() == of_type).count() > 1 {
            let help = format!(
                "for example: {{ type: {of_type}, name: history, … }}; checkpoints and tables know a sink by it"
            );
            let message = format!("there are several sinks of type `{of_type}`, so this one needs a `name`");
            self.problem(&["sinks".into(), index.into()], message, help);
            // Nobody's name.
            return format!("sinks[{index}]");
        }
        of_type.to_owned()
    }

    /// Whether a layout makes sense with what is remembered of events.
    pub(super) fn layout(
        &mut self,
        index: usize,
        (layout, is_replica): (&str, bool),
        delete: Option<config::DeleteMode>,
        mode: DedupeMode,
    ) {
        let at = |key: &str| [Step::from("sinks"), Step::from(index), Step::from(key)];
        if mode == DedupeMode::Latest && !is_replica {
            self.problem(
                &at("layout"),
                format!("`dedupe: latest` drops late events, which the history of `layout: {layout}` needs"),
                "use `dedupe: exact`, or `layout: replica` for this sink",
            );
        }
        if mode == DedupeMode::Off && is_replica {
            self.problem(
                &at("layout"),
                "`dedupe: off` keeps no order of a key's events, which `layout: replica` needs",
                "use `dedupe: exact` or `dedupe: latest`, or `layout: append` with its latest view",
            );
        }
        if delete.is_some() && !is_replica {
            self.problem(
                &at("delete"),
                "`delete` is only for `layout: replica`",
                "histories keep deletes as rows",
            );
        }
    }

    /// The template of tables' names.
    pub(super) fn table_name(&mut self, index: usize, given: Option<&String>) -> String {
        let table_name = given.cloned().unwrap_or_else(|| "{table}".to_owned());
        let literal = table_name.replace("{db}", "").replace("{schema}", "").replace("{table}", "");
        if !table_name.contains("{table}") || literal.contains(['{', '}']) {
            let at = [Step::from("sinks"), Step::from(index), Step::from("table_name")];
            let help = "`{db}`, `{schema}` and `{table}` are filled in";
            self.problem(&at, "`table_name` must contain `{table}` and no other braces", help);
        }
        table_name
    }

    fn duckdb(
        &mut self,
        index: usize,
        duckdb: &config::DuckdbConfig,
        config: &Config,
        pipeline: &str,
    ) -> DuckdbPlan {
        let (mode, format) = (config.dedupe.mode, config.decode.format);
        let at = |key: &str| [Step::from("sinks"), Step::from(index), Step::from(key)];
        let layout = match duckdb.layout {
            Layout::Append => "append",
            Layout::Changelog => "changelog",
            Layout::Replica => "replica",
            Layout::Rows => "rows",
        };
        self.layout_of_format(index, layout, format);
        if duckdb.layout == Layout::Rows && duckdb.on_type_change.is_some() {
            self.problem(&at("on_type_change"), DECLARED, "");
        }
        self.layout(index, (layout, duckdb.layout == Layout::Replica), duckdb.delete, mode);
        let table_name = self.table_name(index, duckdb.table_name.as_ref());
        let own = ["temp", "system", "information_schema", "pg_catalog"];
        if duckdb.dataset.as_ref().is_some_and(|dataset| own.contains(&&*dataset.to_lowercase())) {
            self.problem(&at("dataset"), "DuckDB keeps this schema for itself", "choose another name");
        }
        if duckdb.path.as_os_str().is_empty() {
            self.problem(&at("path"), "`path` names no file", "");
        }
        let memory = duckdb.memory.map(|bytes| bytes.0);
        if memory.is_some_and(|bytes| bytes >> 20 < MEMORY_MIB as u64) {
            self.problem(&at("memory"), format!("DuckDB needs at least {MEMORY_MIB}MiB of memory"), "");
        }
        let threads = duckdb.threads.unwrap_or(1);
        if !(1..=PARALLEL_MAX).contains(&threads) {
            self.problem(&at("threads"), format!("`threads` must be 1 to {PARALLEL_MAX}"), "");
        }
        DuckdbPlan {
            memory,
            threads,
            path: self.base.join(&duckdb.path),
            dataset: duckdb.dataset.clone().filter(|d| !d.is_empty()).unwrap_or_else(|| "main".to_owned()),
            layout: duckdb.layout,
            delete: duckdb.delete.unwrap_or(config::DeleteMode::Hard),
            on_type_change: duckdb.on_type_change.unwrap_or(config::OnTypeChange::NewColumn),
            table_name,
            pipeline: pipeline.to_owned(),
            history_repeats: mode == DedupeMode::Off,
        }
    }
}

/// Whether two sinks would write into the same tables.
fn same_tables(a: &SinkKind, b: &SinkKind) -> bool {
    let (a, b) = match (a, b) {
        (SinkKind::Duckdb(a), SinkKind::Duckdb(b)) => (a, b),
        (SinkKind::Bigquery(a), SinkKind::Bigquery(b)) => {
            return a.project == b.project
                && a.dataset == b.dataset
                && a.layout.name() == b.layout.name()
                && a.table_name == b.table_name;
        }
        _ => return false,
    };
    a.path == b.path
        && a.dataset.eq_ignore_ascii_case(&b.dataset)
        && a.layout == b.layout
        && a.table_name == b.table_name
}
