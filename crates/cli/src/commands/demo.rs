//! `demo`: a pipeline over shipped events of a real database, and what came out of it.
//!
//! The events are the corpus' steady workload. Live, they come over an emulated Pub/Sub for as long as one likes; from files, once, then
//! a stretch of them once more, as a connector redelivers after a crash, and a few lines that are damaged, as disks and people damage
//! them.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millstream_duckdb::query;

use super::run::Until;
use super::{Failure, plan, run};
use crate::arguments::Demo;
use crate::dead_letters::Desk;
use crate::demo::{PROJECT, Shop, Stage};
use crate::output::{Table, bytes, count, plural, print};
use crate::plan::Plan;
use crate::progress::quantiles;
use crate::world::PlanWorld;
use millstream_duckdb::quote;

/// The shipped events that the demo runs over.
const EVENTS: &str = "bench.plain.jsonl.gz";
const ORDERS_SCHEMA: &str = include_str!("../../../../examples/orders.schema.json");
const CUSTOMERS_SCHEMA: &str = include_str!("../../../../examples/customers.schema.json");
/// The first line of a demo's config, by which its folder is known.
const WRITTEN_BY: &str = "# Written by `millstream demo`.";
const REST_OF_CONFIG: &str = "\
tables:
  public.orders: { schema: orders.schema.json }
  public.customers: { schema: customers.schema.json, replica_identity: full }
sinks:
  - { type: duckdb, name: history, path: demo.duckdb, layout: append }
  - { type: duckdb, name: replica, path: demo.duckdb, layout: replica }
";
/// Events that come twice.
const REDELIVERED: usize = 500;

/// Runs the demo.
pub(crate) fn demo(arguments: &Demo) -> Result<(), Failure> {
    let packed = shipped(arguments)?;
    let folder = Folder::make(arguments)?;
    let (_stage, mut until) = if arguments.files {
        folder.files(&packed)?;
        folder.config(&arguments.interval, "source: { type: files, path: in/*, lines: record }")?;
        (None, Until::default())
    } else {
        let shop = Shop::read(&packed)?;
        let stage = Stage::start(&shop)?;
        let subscriptions = stage.subscriptions().join(", ");
        let source = format!(
            "source: {{ type: pubsub, project: {PROJECT}, subscriptions: [{subscriptions}], endpoint: \"{}\" }}",
            stage.endpoint()
        );
        folder.config(&arguments.interval, &source)?;
        stage.play(shop, arguments.rate)?;
        tracing::info!(
            "a shop's changes come over Pub/Sub at {}, {} a second; end with Ctrl-C",
            stage.endpoint(),
            arguments.rate
        );
        (Some(stage), Until { limit: arguments.seconds.map(Duration::from_secs), ..Until::default() })
    };
    until.tables = true;
    let config = folder.config;
    let plan = Arc::new(plan(&config)?);
    let desk = Arc::new(Desk::new(&plan.dead_letters));
    let world = PlanWorld::new(plan.clone(), desk.clone())?;
    let ended = run::drive(&plan, world, desk, until)?;
    let mut out = String::new();
    show(&plan, &config, &ended, &mut out)?;
    print(&out);
    ended.verdict()
}

/// The shipped events, gzipped.
fn shipped(arguments: &Demo) -> Result<Vec<u8>, Failure> {
    let events = arguments.events.join(EVENTS);
    fs::read(&events).map_err(|e| {
        Failure::Usage(format!(
            "cannot read the shipped events {}: {e}; run the demo in Millstream's source folder, or name theirs with --events",
            events.display()
        ))
    })
}

/// The demo's folder.
struct Folder {
    path: PathBuf,
    config: PathBuf,
}

impl Folder {
    /// Makes it anew. Only a folder that a demo made is replaced.
    fn make(arguments: &Demo) -> Result<Self, Failure> {
        let folder =
            Self { path: arguments.directory.clone(), config: arguments.directory.join("demo.yaml") };
        let is_used = fs::read_dir(&folder.path).is_ok_and(|mut entries| entries.next().is_some());
        // By what is in the file: someone's own config may have that name.
        let is_ours = fs::read_to_string(&folder.config).is_ok_and(|text| text.starts_with(WRITTEN_BY));
        if is_used && !is_ours {
            let message = format!(
                "{} is not empty and no demo made it; choose another --directory",
                folder.path.display()
            );
            return Err(Failure::Usage(message));
        }
        let make = || {
            if folder.path.exists() {
                fs::remove_dir_all(&folder.path)?;
            }
            fs::create_dir_all(&folder.path)?;
            fs::write(folder.path.join("orders.schema.json"), ORDERS_SCHEMA)?;
            fs::write(folder.path.join("customers.schema.json"), CUSTOMERS_SCHEMA)
        };
        make().map_err(|e| folder.failed(e))?;
        Ok(folder)
    }

    fn config(&self, interval: &Duration, source: &str) -> Result<(), Failure> {
        let text = format!(
            "{WRITTEN_BY}\npipeline: demo\n{source}\ncheckpoint: {{ interval: {}ms, directory: state }}\n{REST_OF_CONFIG}",
            interval.as_millis()
        );
        fs::write(&self.config, text).map_err(|e| self.failed(e))
    }

    /// The shipped events as files, some of them twice, and damaged ones.
    fn files(&self, packed: &[u8]) -> Result<(), Failure> {
        let files = self.path.join("in");
        let write = || {
            fs::create_dir_all(&files)?;
            fs::write(files.join("1-shop.jsonl.gz"), packed)?;
            let mut text = Vec::new();
            flate2::read::MultiGzDecoder::new(packed).read_to_end(&mut text)?;
            let lines: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
            let again = lines[lines.len().saturating_sub(REDELIVERED)..].concat();
            fs::write(files.join("2-redelivered.jsonl"), again)?;
            fs::write(files.join("3-damaged.jsonl"), damaged(&lines))
        };
        write().map_err(|e| self.failed(e))
    }

    fn failed(&self, error: std::io::Error) -> Failure {
        Failure::Failed(format!("cannot prepare {}: {error}", self.path.display()))
    }
}

/// Real lines, damaged.
fn damaged(lines: &[&[u8]]) -> Vec<u8> {
    let whole = lines.iter().find(|line| line.len() > 200).copied().unwrap_or_default();
    let text = String::from_utf8_lossy(whole);
    let mut not_utf8 = whole.to_vec();
    if let Some(at) = not_utf8.windows(8).position(|w| w == b"Customer") {
        not_utf8[at] = 0xe4;
    }
    let mut out = Vec::new();
    // Cut in the middle, as by a full disk.
    out.extend_from_slice(&whole[..whole.len() / 2]);
    out.push(b'\n');
    // In Latin-1 instead of UTF-8.
    out.extend_from_slice(&not_utf8);
    // Not a change event: the operation is missing, then unknown.
    out.extend_from_slice(text.replace(r#"\"op\":\"r\","#, "").as_bytes());
    out.extend_from_slice(text.replace(r#"\"op\":\"r\""#, r#"\"op\":\"z\""#).as_bytes());
    out
}

fn show(plan: &Plan, config: &Path, ended: &run::Ended, out: &mut String) -> Result<(), Failure> {
    let status = &ended.summary.status;
    let counters = &status.counters;
    let seconds = ended.summary.took.as_secs_f64().max(0.001);
    // Writing into a String does not fail, here and below.
    let _ = writeln!(
        out,
        "{} of {} read in {seconds:.2} s: {} events/s, {} decoded, {} control, {} dead\n",
        plural(counters.records, "record"),
        bytes(counters.bytes),
        count((counters.events() as f64 / seconds) as u64),
        count(counters.decoded),
        count(counters.control.iter().sum()),
        count(counters.dead.values().sum()),
    );
    if let Some(quantiles) = quantiles(&status.latencies.broker_to_warehouse) {
        let _ = writeln!(out, "from published to visible: {quantiles}\n");
    }
    let Some((_, duckdb)) = plan.duckdb_sinks().next() else { return Ok(()) };
    tables(&duckdb.path, out)?;
    newest(&duckdb.path, out);
    decided(ended, out);
    let database = duckdb.path.display();
    let folder = config.display();
    let _ = writeln!(out, "open it         duckdb {database}");
    let _ = writeln!(
        out,
        "ask it          millstream query {folder} 'SELECT status, count(*) FROM orders GROUP BY ALL'"
    );
    let _ = writeln!(out, "why is it so    millstream explain {folder} public.orders 1");
    let _ = writeln!(out, "what failed     millstream dead-letters list {folder}");
    Ok(())
}

/// The newest rows of a view, once there are any.
fn newest(file: &Path, out: &mut String) {
    let sample = "SELECT order_id, customer_id, order_date, status, total_amount, shipping_address FROM orders_latest \
                  ORDER BY order_id DESC LIMIT 5";
    // Without an order there is no view yet.
    let Ok(answer) = query(file, sample, true) else { return };
    let _ = writeln!(out, "the newest five of orders_latest\n");
    let mut table = Table::new(answer.columns.iter().map(String::as_str));
    for row in answer.rows {
        table.row(row.into_iter().map(|cell| cell.unwrap_or_else(|| "NULL".to_owned())));
    }
    out.push_str(&table.render(2));
    out.push('\n');
}

/// Tables and views with their row counts.
fn tables(file: &Path, out: &mut String) -> Result<(), Failure> {
    let names = query(
        file,
        "SELECT schema_name, table_name, 'table' FROM duckdb_tables() WHERE table_name NOT LIKE '\\_%' ESCAPE '\\' \
         UNION ALL SELECT schema_name, view_name, 'view' FROM duckdb_views() WHERE NOT internal ORDER BY ALL",
        true,
    )?;
    let mut table = Table::new(["table", "rows", "what"]);
    for row in names.rows {
        let [Some(schema), Some(name), Some(kind)] = row.as_slice() else { continue };
        let rows = query(file, &format!("SELECT count(*) FROM {}.{}", quote(schema), quote(name)), true)?;
        let rows = rows.rows.first().and_then(|row| row.first().cloned().flatten());
        let rows = rows.and_then(|n| n.parse().ok()).unwrap_or(0);
        let what = match (&**kind, name.strip_suffix("_raw")) {
            ("view", _) => "every row's newest state, from the history",
            (_, Some(_)) => "the history: every distinct event",
            _ => "replica: the current rows",
        };
        table.row([name.clone(), count(rows), what.to_owned()]);
    }
    out.push_str(&table.render(0));
    out.push('\n');
    Ok(())
}

/// What was a duplicate, late or dead.
fn decided(ended: &run::Ended, out: &mut String) {
    let counters = &ended.summary.status.counters;
    for (name, t) in &counters.tables {
        let _ = writeln!(
            out,
            "{name}: {} = {} distinct + {} duplicates; {} late",
            plural(t.events, "event"),
            count(t.distinct),
            count(t.duplicates),
            count(t.late)
        );
    }
    for (code, n) in &counters.dead {
        let _ = writeln!(out, "dead letters: {} {code}", count(*n));
    }
    let balance = match ended.summary.residues.first() {
        None => "every record and event is accounted for".to_owned(),
        Some(residue) => format!("does not balance: {residue}"),
    };
    let _ = writeln!(out, "{balance}\n");
}
