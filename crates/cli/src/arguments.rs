//! The command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::config::Span;

/// Moves database changes into an analytics warehouse, exactly once.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, arg_required_else_help = true, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a pipeline
    Run(Run),
    /// Validate a config and look at the first records, without side effects
    Check(Check),
    /// Run a pipeline over shipped real events and show what came out
    Demo(Demo),
    /// Show every event of one key and which rule decided it
    Explain(Explain),
    /// Ask the warehouse with SQL, read-only, also while the pipeline runs
    Query(Query),
    /// Print the SQL of the views
    Views(Views),
    /// Print the config's JSON Schema
    Schema,
    /// List, show or replay what could not be processed
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// Delete the rows that were not written again since `incarnation` was raised
    ///
    /// For after the end of a new snapshot of the source: rows that it has not read yet would be missing until it reads them.
    /// Histories keep everything. A second sweep changes nothing.
    Sweep(Sweep),
    /// Keep a named copy of the last checkpoint
    Savepoint(Savepoint),
    /// Show how a pipeline stands
    Status(OnPipeline),
    /// Ask a running pipeline to finish what is in flight, take a last checkpoint, and end
    Drain(OnPipeline),
    /// Ask a running pipeline to end now; the next run goes on from the last checkpoint
    Cancel(OnPipeline),
    /// Ask a running pipeline to stop taking records in
    Pause(OnPipeline),
    /// Ask a paused pipeline to go on
    Resume(OnPipeline),
    /// Run an emulator of a cloud service, to test against
    #[command(subcommand)]
    Emulator(Emulator),
}

/// `emulator`.
#[derive(Debug, Subcommand)]
pub(crate) enum Emulator {
    /// Google Cloud Pub/Sub, over gRPC
    Pubsub(PubsubEmulator),
    /// BigQuery: REST, SQL and the Storage Write API
    Bigquery(BigqueryEmulator),
}

const fn local(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

const REST: SocketAddr = local(9050);
const GRPC: SocketAddr = local(9060);
const GCS: SocketAddr = local(9070);

/// `emulator bigquery`.
#[derive(Debug, Args)]
pub(crate) struct BigqueryEmulator {
    /// Where the REST API listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value_t = REST)]
    pub(crate) rest: SocketAddr,
    /// Where the Storage Write API (gRPC) listens; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value_t = GRPC)]
    pub(crate) grpc: SocketAddr,
    /// Where Cloud Storage listens, from which load jobs read; port 0 takes a free one [default: 127.0.0.1:9070, or a free port where
    /// the others are not at their defaults]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gcs: Option<SocketAddr>,
    /// Keep tables, rows, streams and objects here, so that the next start finds them
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// What goes wrong: `lost_answer=0.01,cut=0.001,…`, or a JSON file
    #[arg(long, value_name = "FAULTS")]
    pub(crate) faults: Option<String>,
    /// The project of datasets that are given without one
    #[arg(long, value_name = "PROJECT", default_value = "local")]
    pub(crate) project: String,
    /// A dataset that is there from the start, `DATASET` or `PROJECT:DATASET`, with `@LOCATION` if not US; repeatable
    #[arg(long = "dataset", value_name = "DATASET")]
    pub(crate) datasets: Vec<String>,
    /// A bucket of Cloud Storage that is there from the start, with `@LOCATION` if not US; repeatable
    #[arg(long = "bucket", value_name = "BUCKET")]
    pub(crate) buckets: Vec<String>,
    /// The largest AppendRows request
    #[arg(long, value_name = "BYTES", default_value_t = 20 << 20)]
    pub(crate) request_bytes: usize,
    /// How long after a change of a table the Storage Write API does not know its new columns
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub(crate) schema_delay: Duration,
    /// How much later changes (CDC) are applied to tables with a maximal staleness
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub(crate) apply_delay: Duration,
    /// Take calls that lack the metadata x-goog-request-params
    #[arg(long)]
    pub(crate) no_routing: bool,
    /// Write the three ports into this file, of REST, gRPC and Cloud Storage, once all listen
    #[arg(long, value_name = "FILE")]
    pub(crate) port_file: Option<PathBuf>,
}

/// `emulator pubsub`.
#[derive(Debug, Args)]
pub(crate) struct PubsubEmulator {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8085")]
    pub(crate) listen: std::net::SocketAddr,
    /// Keep topics, subscriptions and messages here, so that the next start finds them
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// What goes wrong: `duplicate=0.01,cut=0.001,…`, or a JSON file
    #[arg(long, value_name = "FAULTS")]
    pub(crate) faults: Option<String>,
    /// The project of names that are not full
    #[arg(long, value_name = "PROJECT", default_value = "local")]
    pub(crate) project: String,
    /// A topic that is there from the start; repeatable
    #[arg(long = "topic", value_name = "TOPIC")]
    pub(crate) topics: Vec<String>,
    /// A subscription that is there from the start; repeatable
    #[arg(long = "subscription", value_name = "SUBSCRIPTION:TOPIC")]
    pub(crate) subscriptions: Vec<String>,
    /// Write the port into this file once it listens
    #[arg(long, value_name = "FILE")]
    pub(crate) port_file: Option<PathBuf>,
}

/// A config file, and whether to answer in JSON.
#[derive(Debug, Args)]
pub(crate) struct OnConfig {
    /// The pipeline's config file
    pub(crate) config: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A pipeline: its config file, or where its HTTP API is.
#[derive(Debug, Args)]
pub(crate) struct OnPipeline {
    /// The pipeline's config file; it runs on this machine
    #[arg(required_unless_present = "url")]
    pub(crate) config: Option<PathBuf>,
    /// The HTTP API of a pipeline that runs elsewhere, such as http://host:8080
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub(crate) url: Option<String>,
    /// The API's token; the environment's MILLSTREAM_TOKEN by default
    #[arg(long, value_name = "TOKEN", requires = "url")]
    pub(crate) token: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) on: OnConfig,
    /// End, after a last checkpoint, when there is nothing more to read
    #[arg(long)]
    pub(crate) until_idle: bool,
    /// How long a followed source must have been silent for --until-idle
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) idle: Duration,
    /// Start from a savepoint: its name or path. The checkpoint directory must be empty
    #[arg(long, value_name = "SAVEPOINT")]
    pub(crate) from: Option<String>,
    /// First put the Pub/Sub subscriptions back (or forward) to a time, such as `2026-05-01T00:00:00Z`, or to a snapshot's
    /// name
    #[arg(long, value_name = "TIME|SNAPSHOT")]
    pub(crate) seek: Option<String>,
}

/// `check`.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) on: OnConfig,
    /// How many records to look at
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub(crate) records: usize,
}

/// `demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Where to put the DuckDB file and the pipeline's state; replaced if a demo made it
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    pub(crate) directory: PathBuf,
    /// The folder of shipped events
    #[arg(long, value_name = "DIR", default_value = "corpus")]
    pub(crate) events: PathBuf,
    /// End after so many seconds of events; otherwise with Ctrl-C
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u64>,
    /// Events that are published a second
    #[arg(long, value_name = "N", default_value_t = 3000)]
    pub(crate) rate: u64,
    /// Time between checkpoints, after which rows are visible
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub(crate) interval: Duration,
    /// Read the shipped events from files, once, instead of over an emulated Pub/Sub
    #[arg(long)]
    pub(crate) files: bool,
}

/// `explain`.
#[derive(Debug, Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) on: OnConfig,
    /// The table, as `schema.table`
    pub(crate) table: String,
    /// The key, as JSON (`{"order_id": 1}`), or the bare value of a single column
    pub(crate) key: String,
}

/// `query`.
#[derive(Debug, Args)]
pub(crate) struct Query {
    #[command(flatten)]
    pub(crate) on: OnConfig,
    /// The query
    pub(crate) sql: String,
    /// Answer in CSV
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
    /// The sink whose file is asked, if the config names several files
    #[arg(long, value_name = "NAME")]
    pub(crate) sink: Option<String>,
}

/// `views`.
#[derive(Debug, Args)]
pub(crate) struct Views {
    #[command(flatten)]
    pub(crate) on: OnConfig,
}

/// `dead-letters`.
#[derive(Debug, Subcommand)]
pub(crate) enum DeadLetters {
    /// Count them by cause, table and file
    List(OnConfig),
    /// Print letters whole
    Show(Letters),
    /// Send letters through the pipeline again; each at most once
    Replay(Replay),
}

/// `dead-letters show`.
#[derive(Debug, Args)]
pub(crate) struct Letters {
    #[command(flatten)]
    pub(crate) on: OnConfig,
    /// The letters' ids, such as `parse-17`; the newest 10 by default
    pub(crate) ids: Vec<String>,
}

/// `dead-letters replay`.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) on: OnConfig,
    /// The letters' ids, such as `parse-17`; all that were not replayed yet by default
    pub(crate) ids: Vec<String>,
    /// Only letters of this cause, such as `invalid_json`
    #[arg(long, value_name = "CODE")]
    pub(crate) cause: Option<String>,
    /// Only letters of this table, as `schema.table`
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: Option<String>,
}

/// `sweep`.
#[derive(Debug, Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    pub(crate) on: OnConfig,
    /// The tables, as `schema.table`, or `db.schema.table` where databases share a name
    pub(crate) tables: Vec<String>,
    /// All tables that the pipeline has seen
    #[arg(long, conflicts_with = "tables")]
    pub(crate) all: bool,
}

/// `savepoint`.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
pub(crate) struct Savepoint {
    #[command(flatten)]
    pub(crate) on: OnPipeline,
    /// The savepoint's name: letters, digits, `-`, `_` and `.`
    pub(crate) name: String,
}

impl BigqueryEmulator {
    /// Where Cloud Storage listens. A second emulator, which is elsewhere, does not take the first one's port.
    pub(crate) fn gcs(&self) -> SocketAddr {
        let beside =
            if (self.rest, self.grpc) == (REST, GRPC) { GCS } else { SocketAddr::new(self.rest.ip(), 0) };
        self.gcs.unwrap_or(beside)
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    Span::parse(text).map(|span| span.0).ok_or_else(|| "write a duration such as `5s` or `500ms`".to_owned())
}
