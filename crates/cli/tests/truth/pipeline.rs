//! A pipeline as a person runs it: a config file and the `millstream` command.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value as Json, json};

use crate::corpus::{Types, Variant};

/// A pipeline in a folder of its own.
#[derive(Debug)]
pub(crate) struct Pipeline {
    folder: tempfile::TempDir,
    config: Json,
}

impl Pipeline {
    /// A pipeline that reads `input` (files or globs) as `variant` wants it, into every layout.
    pub(crate) fn new(variant: &Variant, types: Types, input: &Path) -> Self {
        let sinks = json!([
            { "type": "duckdb", "name": "soft", "path": "out.duckdb", "dataset": "soft", "layout": "replica", "delete": "soft" },
            { "type": "duckdb", "name": "hard", "path": "out.duckdb", "dataset": "hard", "layout": "replica", "delete": "hard" },
            { "type": "duckdb", "name": "history", "path": "out.duckdb", "dataset": "history", "layout": "append" },
            { "type": "duckdb", "name": "changelog", "path": "out.duckdb", "dataset": "changelog", "layout": "changelog" },
        ]);
        Self::with(json!({
            "pipeline": "truth",
            "source": { "type": "files", "path": input, "lines": "record" },
            "decode": variant.decode_config(),
            "tables": variant.tables_config(types),
            "checkpoint": { "directory": "state" },
            "restart": { "attempts": 0 },
            "sinks": sinks,
            "shards": 2,
            "threads": 2,
        }))
    }

    /// A pipeline of this config.
    pub(crate) fn with(config: Json) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), config }
    }

    /// Sets a key of the config, e.g. `/shards`.
    pub(crate) fn set(&mut self, pointer: &str, value: Json) {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        self.config.pointer_mut(parent).unwrap()[key] = value;
    }

    /// A file in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command with its config, which is written anew.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let config = self.path("pipeline.yaml");
        // Renamed into place: a pipeline that was just started may be reading it, and must never see half of one.
        let half = self.path("pipeline.yaml.half");
        std::fs::write(&half, serde_json::to_string_pretty(&self.config).unwrap()).unwrap();
        std::fs::rename(&half, &config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_millstream"));
        let at = words.iter().position(|w| *w == "CONFIG");
        for (i, word) in words.iter().enumerate() {
            if Some(i) == at {
                command.arg(&config)
            } else {
                command.arg(word)
            };
        }
        command.env("RUST_BACKTRACE", "1").current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// Runs the command to its end; everything that it wrote if it fails.
    fn attempt(&self, words: &[&str]) -> Result<Output, String> {
        let output = self.command(words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            return Ok(output);
        }
        Err(format!(
            "{words:?} ended with {}\n{}\n{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        ))
    }

    /// Runs the command to its end; it must succeed.
    pub(crate) fn execute(&self, words: &[&str]) -> Output {
        self.attempt(words).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Runs the pipeline until its input is exhausted; its summary, or how it failed.
    pub(crate) fn run(&self) -> Result<Summary, String> {
        self.run_with(&[])
    }

    /// The same with more arguments.
    pub(crate) fn run_with(&self, more: &[&str]) -> Result<Summary, String> {
        let output = self.attempt(&[&["run", "CONFIG", "--until-idle", "--json"], more].concat())?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).map(Summary).map_err(|e| format!("no summary ({e}) in:\n{text}"))
    }

    /// Starts the pipeline and leaves it running.
    pub(crate) fn start(&self) -> Child {
        let log = std::fs::File::create(self.path("log.txt")).unwrap();
        let mut command = self.command(&["run", "CONFIG"]);
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// The same; its summary goes to `out.txt`.
    pub(crate) fn start_for_summary(&self) -> Child {
        let log = std::fs::File::create(self.path("log.txt")).unwrap();
        let out = std::fs::File::create(self.path("out.txt")).unwrap();
        self.command(&["run", "CONFIG", "--json"]).stdout(out).stderr(log).spawn().unwrap()
    }

    /// Whether the pipeline, running, has made a checkpoint since it was started.
    pub(crate) fn has_checkpoint(&self) -> bool {
        let answer = self.attempt(&["status", "CONFIG", "--json"]);
        let status: Option<Json> = answer.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok());
        status.is_some_and(|status| status["phase"] == "running" && status["checkpoints"].as_u64() > Some(0))
    }

    /// What it wrote.
    pub(crate) fn open(&self) -> duckdb::Connection {
        let config = duckdb::Config::default().access_mode(duckdb::AccessMode::ReadOnly).unwrap();
        duckdb::Connection::open_with_flags(self.path("out.duckdb"), config).unwrap()
    }
}

/// The summary of a run.
#[derive(Debug, Clone)]
pub(crate) struct Summary(pub(crate) Json);
