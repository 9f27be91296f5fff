//! The validated plan: what a config means, with every default filled in and every path resolved.
//!
//! Whoever holds a [`Plan`] need not check it again. Nothing here touches the disk but the check that schema files can
//! be read, of plain messages also what they declare; what depends on data or on the warehouse is `check`'s and the connectors'.

mod bigquery;
mod http;
mod load;
mod pubsub;
mod sinks;
mod tables;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use millstream_pubsub::PubsubConfig;

pub(crate) use http::HttpPlan;
pub(crate) use pubsub::LetterTopicPlan;
pub(crate) use sinks::{DuckdbPlan, SinkKind, SinkPlan};
pub(crate) use tables::columns;

use crate::config::{
    self, Bytes, Config, DeadLettersConfig, DecodeConfig, DedupeMode, Loaded, Problem, Problems,
    SourceConfig, Span, Step, TableConfig,
};

const RECORD_BYTES_MAX: u64 = 64 << 20;
const PARALLEL_MAX: usize = 256;

/// A pipeline that makes sense.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) pipeline: String,
    pub(crate) source: SourcePlan,
    pub(crate) decode: DecodeConfig,
    /// By name; paths of schema files are resolved.
    pub(crate) tables: BTreeMap<String, TableConfig>,
    pub(crate) dedupe: DedupePlan,
    pub(crate) checkpoint: CheckpointPlan,
    /// In the config's order.
    pub(crate) sinks: Vec<SinkPlan>,
    /// The folder of dead letters; with a topic, of those that it cannot take.
    pub(crate) dead_letters: PathBuf,
    pub(crate) letter_topic: Option<LetterTopicPlan>,
    pub(crate) restart: RestartPlan,
    /// `None`: no HTTP API.
    pub(crate) http: Option<HttpPlan>,
    /// Where metrics are; `None`: nowhere of their own.
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) watermark_delay: Duration,
    pub(crate) shards: usize,
    pub(crate) threads: usize,
    pub(crate) incarnation: u16,
}

/// Where records come from.
#[derive(Debug, Clone)]
pub(crate) enum SourcePlan {
    Files(FilesPlan),
    Pubsub(Box<PubsubConfig>),
}

/// Files to read.
#[derive(Debug, Clone)]
pub(crate) struct FilesPlan {
    /// Absolute paths and globs; at least one.
    pub(crate) paths: Vec<String>,
    pub(crate) lines: config::Lines,
    pub(crate) follow: bool,
    pub(crate) poll_interval: Duration,
    pub(crate) discovery_interval: Duration,
    pub(crate) record_bytes_max: u64,
}

/// What is a duplicate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DedupePlan {
    pub(crate) mode: DedupeMode,
    pub(crate) keep: Duration,
    pub(crate) keep_per_key: usize,
    pub(crate) keep_keyless: Duration,
}

/// When and where progress becomes durable.
#[derive(Debug, Clone)]
pub(crate) struct CheckpointPlan {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
    pub(crate) directory: PathBuf,
}

/// Restart strategy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RestartPlan {
    pub(crate) attempts: u32,
    pub(crate) delay: Duration,
    pub(crate) stable_after: Duration,
}

impl Plan {
    /// Reads and validates a config file; `environment` answers for `${NAME}`.
    pub(crate) fn read(file: &Path, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, Problems> {
        let loaded = Loaded::read(file, environment)?;
        Self::of(&loaded)
    }

    /// What `loaded` means, or everything in it that makes no sense.
    pub(crate) fn of(loaded: &Loaded) -> Result<Self, Problems> {
        let mut checker = Checker { loaded, base: base_of(&loaded.file), problems: Vec::new() };
        let plan = checker.plan();
        checker.circles(&plan);
        checker.problems.sort_by_key(|problem| problem.place.start);
        if checker.problems.is_empty() { Ok(plan) } else { Err(loaded.problems(checker.problems)) }
    }

    /// The DuckDB sinks, in the config's order.
    pub(crate) fn duckdb_sinks(&self) -> impl Iterator<Item = (&str, &DuckdbPlan)> {
        self.sinks.iter().filter_map(|sink| match &sink.kind {
            SinkKind::Duckdb(duckdb) => Some((&*sink.name, duckdb)),
            SinkKind::Bigquery(_) | SinkKind::Pubsub(_) | SinkKind::Discard => None,
        })
    }

    /// Whether some sink writes before-images and source blocks.
    pub(crate) fn has_changelog(&self) -> bool {
        self.sinks.iter().any(|sink| match &sink.kind {
            SinkKind::Duckdb(duckdb) => duckdb.layout == config::Layout::Changelog,
            SinkKind::Bigquery(bigquery) => bigquery.layout == millstream_bigquery::Layout::Changelog,
            SinkKind::Pubsub(_) | SinkKind::Discard => false,
        })
    }
}

/// The folder that relative paths of a config are relative to, absolute where the current folder is known.
fn base_of(file: &Path) -> PathBuf {
    let parent = file.parent().unwrap_or(Path::new(""));
    std::path::absolute(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
        .unwrap_or_else(|_| parent.to_owned())
}

struct Checker<'a> {
    loaded: &'a Loaded,
    base: PathBuf,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn problem(&mut self, path: &[Step], message: impl Into<String>, help: impl Into<String>) {
        let problem = Problem::new(config::locate(&self.loaded.root, path), message);
        let help = help.into();
        self.problems.push(if help.is_empty() { problem } else { problem.help(help) });
    }

    fn plan(&mut self) -> Plan {
        let mut config = self.loaded.config.clone();
        let pipeline = self.pipeline(&config);
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let directory = match &config.checkpoint.directory {
            Some(directory) => self.base.join(directory),
            None => self.base.join(".millstream").join(&pipeline),
        };
        let (dead_letters, letter_topic) = match &config.dead_letters {
            Some(DeadLettersConfig::Files(files)) => (files.directory.clone(), None),
            Some(DeadLettersConfig::Pubsub(topic)) => (topic.directory.clone(), self.letter_topic(topic)),
            None => (None, None),
        };
        let dead_letters = dead_letters.map(|directory| self.base.join(directory));
        let http = config.http.as_ref().map(|http| self.http(http));
        if config.incarnation > 32_767 {
            self.problem(&["incarnation".into()], "an incarnation is at most 32767", "");
        }
        let named = |name: &String| name.split('.').all(|part| !part.is_empty());
        if config.decode.messages.as_ref().is_some_and(|name| !named(name)) {
            let help = "write it as `schema.table`";
            self.problem(&["decode".into(), "messages".into()], "this names no table", help);
        }
        if config.decode.flat.is_some() && config.decode.format != config::Format::DebeziumFlat {
            let help = "add `format: debezium-flat`, or remove `flat`";
            self.problem(
                &["decode".into(), "flat".into()],
                "`flat` is only for `format: debezium-flat`",
                help,
            );
        }
        config.decode.json = self.json(&config);
        Plan {
            source: self.source(&config.source),
            tables: self.tables(&config),
            dedupe: self.dedupe(&config),
            sinks: self.sinks(&config, &pipeline),
            restart: self.restart(&config),
            metrics: config.metrics.as_ref().map(|metrics| self.metrics(metrics, http.as_ref())),
            http,
            watermark_delay: config.watermark.delay.map_or(Duration::from_secs(30), |d| d.0),
            shards: self.parallel("shards", config.shards, cores),
            threads: self.parallel("threads", config.threads, cores),
            dead_letters: dead_letters.unwrap_or_else(|| directory.join("dead-letters")),
            letter_topic,
            checkpoint: self.checkpoint(&config, directory),
            decode: config.decode,
            incarnation: config.incarnation,
            pipeline,
        }
    }

    fn pipeline(&mut self, config: &Config) -> String {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match &config.pipeline {
            Some(name) if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) => {
                let message = "a pipeline's name is 1 to 64 letters, digits, `-` and `_`";
                self.problem(&["pipeline".into()], message, "");
                String::new()
            }
            Some(name) => name.clone(),
            None => {
                let stem = self.loaded.file.file_stem().unwrap_or_default().to_string_lossy();
                let name: String = stem.chars().map(|c| if allowed(c) { c } else { '_' }).take(64).collect();
                if name.is_empty() { "pipeline".to_owned() } else { name }
            }
        }
    }

    fn source(&mut self, source: &SourceConfig) -> SourcePlan {
        let files = match source {
            SourceConfig::Files(files) => files,
            SourceConfig::Pubsub(pubsub) => return SourcePlan::Pubsub(Box::new(self.pubsub_source(pubsub))),
        };
        let at = |key: &str| [Step::from("source"), Step::from(key)];
        if files.path.0.is_empty() || files.path.0.iter().any(String::is_empty) {
            self.problem(&at("path"), "`path` names no file", "give a file or a glob such as `in/*.jsonl`");
        }
        let schemes = files.path.0.iter().filter_map(|path| path.split_once("://"));
        if let Some((scheme, _)) = schemes.into_iter().find(|(scheme, _)| is_scheme(scheme)) {
            let message = format!("`{scheme}://` is not supported by this version: files are local");
            self.problem(&at("path"), message, "");
        }
        let size = files.max_record_size.unwrap_or(Bytes(RECORD_BYTES_MAX)).0;
        if size == 0 || size > RECORD_BYTES_MAX {
            self.problem(&at("max_record_size"), "a record is at least 1 byte and at most 64MiB", "");
        }
        SourcePlan::Files(FilesPlan {
            paths: files.path.0.iter().map(|p| self.base.join(p).to_string_lossy().into_owned()).collect(),
            lines: files.lines,
            follow: files.follow,
            poll_interval: self.positive(&at("poll_interval"), files.poll_interval, Duration::from_secs(1)),
            discovery_interval: self.positive(
                &at("discovery_interval"),
                files.discovery_interval,
                Duration::from_secs(60),
            ),
            record_bytes_max: size,
        })
    }

    fn dedupe(&mut self, config: &Config) -> DedupePlan {
        let at = |key: &str| [Step::from("dedupe"), Step::from(key)];
        let keep_per_key = config.dedupe.keep_per_key.unwrap_or(256);
        if !(1..=1_000_000).contains(&keep_per_key) {
            self.problem(&at("keep_per_key"), "`keep_per_key` is 1 to 1000000", "");
        }
        DedupePlan {
            mode: config.dedupe.mode,
            keep: config.dedupe.keep.map_or(Duration::from_secs(600), |s| s.0),
            keep_per_key,
            keep_keyless: config.dedupe.keep_keyless.map_or(Duration::from_secs(3600), |s| s.0),
        }
    }

    fn checkpoint(&mut self, config: &Config, directory: PathBuf) -> CheckpointPlan {
        let at = |key: &str| [Step::from("checkpoint"), Step::from(key)];
        let interval = self.positive(&at("interval"), config.checkpoint.interval, Duration::from_secs(1));
        let timeout = self.positive(&at("timeout"), config.checkpoint.timeout, Duration::from_secs(600));
        if timeout < interval {
            self.problem(&at("timeout"), "`timeout` is shorter than `interval`", "");
        }
        CheckpointPlan { interval, timeout, directory }
    }

    fn restart(&mut self, config: &Config) -> RestartPlan {
        RestartPlan {
            attempts: config.restart.attempts.unwrap_or(5),
            delay: config.restart.delay.map_or(Duration::from_secs(30), |d| d.0),
            stable_after: config.restart.stable_after.map_or(Duration::from_secs(600), |d| d.0),
        }
    }

    fn positive(&mut self, path: &[Step], span: Option<Span>, default: Duration) -> Duration {
        let value = span.map_or(default, |s| s.0);
        if value < Duration::from_millis(1) {
            self.problem(path, "must be at least 1ms", "");
        }
        value
    }

    fn parallel(&mut self, key: &str, given: Option<usize>, default: usize) -> usize {
        let value = given.unwrap_or(default);
        if !(1..=PARALLEL_MAX).contains(&value) {
            self.problem(&[key.into()], format!("`{key}` is 1 to {PARALLEL_MAX}"), "");
        }
        value
    }
}

/// Only known schemes are refused by name: `a://b` is a valid path elsewhere, and a substituted one may be secret.
fn is_scheme(text: &str) -> bool {
    ["gs", "s3", "http", "https", "file", "az", "abfs"].contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rendered problems of a config, or of a plan made of it.
    fn problems(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.yaml");
        std::fs::write(&file, text).unwrap();
        let environment = |name: &str| (name == "TOKEN").then(|| "hunter2".to_owned());
        let rendered = Plan::read(&file, &environment).unwrap_err().render(false);
        rendered.replace(&dir.path().display().to_string(), "")
    }

    const SINK: &str = "sinks:\n  - { type: duckdb, path: out.duckdb }\n";

    #[test]
    fn a_minimal_config_names_a_source_and_a_sink() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shop orders.yaml");
        std::fs::write(&file, format!("source: {{ type: files, path: in.jsonl }}\n{SINK}")).unwrap();
        let plan = Plan::read(&file, &|_| None).unwrap();
        assert_eq!(plan.pipeline, "shop_orders");
        assert_eq!(plan.checkpoint.directory, dir.path().join(".millstream/shop_orders"));
        assert_eq!(plan.dead_letters, dir.path().join(".millstream/shop_orders/dead-letters"));
        assert_eq!(plan.sinks[0].name, "duckdb");
        let SourcePlan::Files(files) = &plan.source else { panic!("not files") };
        assert_eq!(files.paths, [dir.path().join("in.jsonl").to_string_lossy()]);
    }

    #[test]
    fn unknown_keys_show_the_nearest_known_one() {
        insta::assert_snapshot!(
            "unknown_key",
            problems(&format!("source:\n  type: files\n  path: in.jsonl\n  folow: true\n{SINK}"))
        );
        insta::assert_snapshot!(
            "unknown_type",
            problems(&format!("source: {{ type: file, path: in.jsonl }}\n{SINK}"))
        );
        insta::assert_snapshot!("unknown_top_level", problems("sorce: 1\nsinks: []\n"));
        insta::assert_snapshot!(
            "unknown_mode",
            problems(&format!("source: {{ type: files, path: a }}\ndedupe: {{ mode: exactly }}\n{SINK}"))
        );
    }

    #[test]
    fn missing_and_mistyped_values_have_their_place() {
        insta::assert_snapshot!("missing_sinks", problems("source: { type: files, path: in.jsonl }\n"));
        insta::assert_snapshot!("missing_type", problems(&format!("source:\n  path: in.jsonl\n{SINK}")));
        insta::assert_snapshot!(
            "bad_duration",
            problems(&format!("source: {{ type: files, path: a }}\ncheckpoint:\n  interval: 1 week\n{SINK}"))
        );
        insta::assert_snapshot!(
            "not_a_list",
            problems("source: { type: files, path: a }\nsinks: { type: discard }\n")
        );
        insta::assert_snapshot!("bad_yaml", problems("source: { type: files\nsinks: x\n"));
        insta::assert_snapshot!(
            "duplicate_key",
            problems(&format!("source: {{ type: files, path: a }}\n{SINK}{SINK}"))
        );
    }

    /// What comes from the environment may be a secret: an error shows the reference and never the value.
    #[test]
    fn values_of_the_environment_are_never_shown() {
        for text in [
            format!("source: {{ type: '${{TOKEN}}', path: a }}\n{SINK}"),
            format!("source: {{ type: files, path: a }}\ndedupe: '${{TOKEN}}'\n{SINK}"),
            format!("source: {{ type: files, path: a }}\ndedupe: {{ mode: '${{TOKEN}}' }}\n{SINK}"),
            format!("source: {{ type: files, path: a }}\nshards: '${{TOKEN}}'\n{SINK}"),
            format!("source: {{ type: files, path: a }}\nshards: ${{TOKEN}}\n{SINK}"),
            format!("source: {{ type: files, path: a, follow: '${{TOKEN}}' }}\n{SINK}"),
            format!("source: {{ type: files, path: a, '${{TOKEN}}': 1 }}\n{SINK}"),
            format!("source: {{ type: files, path: a }}\ncheckpoint: {{ interval: '${{TOKEN}}' }}\n{SINK}"),
            format!("source: {{ type: files, path: a }}\npipeline: '${{TOKEN}} {{}}'\n{SINK}"),
            "source: { type: files, path: a }\nsinks: [ '${TOKEN}' ]\n".to_owned(),
        ] {
            let shown = problems(&text);
            assert!(!shown.contains("hunter2"), "{text}\n{shown}");
            assert!(shown.contains("TOKEN"), "{text}\n{shown}");
        }
        insta::assert_snapshot!(
            "unset_variable",
            problems(&format!("source: {{ type: files, path: '${{NO_SUCH}}/a' }}\n{SINK}"))
        );
        insta::assert_snapshot!(
            "secret_manager",
            problems(&format!(
                "source: {{ type: files, path: '${{secret:projects/p/secrets/s/versions/1}}' }}\n{SINK}"
            ))
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_all_at_once() {
        insta::assert_snapshot!(
            "nonsense",
            problems(
                "pipeline: a b
source: { type: files, path: gs://bucket/x, max_record_size: 1GiB }
decode:
  flat: { op: _op }
tables:
  public.orders: { key: [a, a], schema: nowhere.json }
dedupe: latest
checkpoint: { interval: 10s, timeout: 1s }
sinks:
  - { type: duckdb, path: out.duckdb, delete: soft }
  - { type: duckdb, path: out.duckdb, name: duckdb, table_name: '{tabel}', dataset: Temp, memory: 1MiB }
  - { type: duckdb, path: out.duckdb, name: duckdb }
shards: 0
incarnation: 40000
"
            )
        );
    }
}
