//! `status`, `savepoint`, `drain`, `cancel`, `pause`, `resume`: asked of the running pipeline, or of its files.

use std::fmt::Write as _;

use millstream_core::Store;
use millstream_state::LocalStore;
use serde_json::{Value, json};

use super::{Failure, plan};
use crate::arguments::{OnPipeline, Savepoint};
use crate::control::{self, Request};
use crate::output::{bytes, print, print_json};
use crate::plan::Plan;
use crate::remote::Remote;

/// What a running pipeline may be told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Drain,
    Cancel,
    Pause,
    Resume,
}

/// Where a command finds its pipeline.
enum Place {
    /// On this machine.
    Here(Box<Plan>),
    /// Behind its HTTP API.
    There(Remote),
}

impl Place {
    fn of(on: &OnPipeline) -> Result<Self, Failure> {
        match (&on.url, &on.config) {
            (Some(url), _) => {
                let token = on.token.clone().or_else(|| std::env::var("MILLSTREAM_TOKEN").ok());
                let token = token.filter(|token| !token.is_empty());
                Remote::new(url, token.as_deref()).map(Place::There).map_err(Failure::Usage)
            }
            (None, Some(config)) => Ok(Place::Here(Box::new(plan(config)?))),
            (None, None) => Err(Failure::Usage("name a config file, or give `--url`".to_owned())),
        }
    }
}

/// Tells the running pipeline to do something.
pub(crate) fn order(on: &OnPipeline, order: Order) -> Result<(), Failure> {
    let (request, path, done) = match order {
        Order::Drain => (Request::Drain, "drain", "finishing what is in flight"),
        Order::Cancel => (Request::Cancel, "cancel", "ending now"),
        Order::Pause => (Request::Pause, "pause", "pausing"),
        Order::Resume => (Request::Resume, "resume", "going on"),
    };
    let pipeline = match Place::of(on)? {
        Place::Here(plan) => {
            control::ask(&plan.checkpoint.directory, &request)?.ok_or_else(|| not_running(&plan))?;
            plan.pipeline
        }
        Place::There(remote) => word(&remote.post(path, None)?, "pipeline"),
    };
    if on.json {
        print_json(&json!({ "pipeline": pipeline, "asked": done }));
    } else {
        print(&format!("{pipeline}: {done}\n"));
    }
    Ok(())
}

/// How the pipeline stands: from the running one, else from its last checkpoint.
pub(crate) fn status(on: &OnPipeline) -> Result<(), Failure> {
    let value = match Place::of(on)? {
        Place::Here(plan) => match control::ask(&plan.checkpoint.directory, &Request::Status)? {
            Some(status) => status,
            None => stopped(&plan)?,
        },
        Place::There(remote) => remote.get("pipeline")?,
    };
    if on.json {
        print_json(&value);
    } else {
        print(&text(&value));
    }
    Ok(())
}

fn word(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// The status of a pipeline that does not run.
fn stopped(plan: &Plan) -> Result<Value, Failure> {
    let directory = &plan.checkpoint.directory;
    if !LocalStore::exists(directory) {
        return Ok(json!({ "pipeline": plan.pipeline, "phase": "never started" }));
    }
    let mut store = LocalStore::open(directory, millstream_state::Options::default())?;
    let bytes = store.disk_bytes();
    let last = super::run::runtime(plan)?.block_on(store.latest())?;
    Ok(match last {
        Some(last) => json!({
            "pipeline": plan.pipeline,
            "phase": "stopped",
            "epoch": last.epoch.0,
            "state_bytes": bytes,
            "counters": millstream_server::counters_json(&last.counters),
        }),
        None => json!({ "pipeline": plan.pipeline, "phase": "never started", "state_bytes": bytes }),
    })
}

fn text(status: &Value) -> String {
    let mut out = String::new();
    // Writing into a String does not fail, here and below.
    let _ = writeln!(out, "{}: {}", word(status, "pipeline"), word(status, "phase"));
    for (key, name) in [
        ("epoch", "epoch"),
        ("checkpoints", "checkpoints"),
        ("checkpoints_failed", "failed checkpoints"),
        ("restarts", "restarts"),
    ] {
        if let Some(n) = status[key].as_u64() {
            let _ = writeln!(out, "  {name}: {n}");
        }
    }
    if let Some(n) = status["state_bytes"].as_u64() {
        let _ = writeln!(out, "  state: {}", bytes(n));
    }
    for (key, name) in [("http", "HTTP API"), ("metrics", "metrics")] {
        if let Some(address) = status[key].as_str() {
            let _ = writeln!(out, "  {name}: {address}");
        }
    }
    if let Some(failure) = status["failure"].as_str() {
        let _ = writeln!(out, "  failure: {failure}");
    }
    let counters = &status["counters"];
    for key in ["records", "decoded", "events"] {
        if let Some(n) = counters[key].as_u64() {
            let _ = writeln!(out, "  {key}: {n}");
        }
    }
    for key in ["control", "dead", "notices", "tables", "sinks"] {
        for (name, value) in counters[key].as_object().into_iter().flatten() {
            let _ = writeln!(out, "  {key} {name}: {}", inline(value));
        }
    }
    for residue in counters["residues"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "  does not balance: {}", residue.as_str().unwrap_or_default());
    }
    out
}

/// A number, or the non-zero members of an object of numbers.
fn inline(value: &Value) -> String {
    let Some(members) = value.as_object() else { return value.to_string() };
    let shown: Vec<String> = members
        .iter()
        .filter(|(_, v)| v.as_u64() != Some(0))
        .map(|(name, v)| format!("{v} {name}"))
        .collect();
    shown.join(", ")
}

/// A named copy of the last checkpoint; of the next one, where the pipeline runs.
pub(crate) fn savepoint(arguments: &Savepoint) -> Result<(), Failure> {
    let (pipeline, savepoint) = match Place::of(&arguments.on)? {
        Place::Here(plan) => {
            let place = savepoint_here(&plan, &arguments.name)?;
            (plan.pipeline, place)
        }
        Place::There(remote) => {
            let answer = remote.post("savepoint", Some(&json!({ "name": arguments.name })))?;
            (word(&answer, "pipeline"), word(&answer, "savepoint"))
        }
    };
    if arguments.on.json {
        print_json(&json!({ "pipeline": pipeline, "savepoint": savepoint }));
    } else {
        print(&format!("{savepoint}\n"));
    }
    Ok(())
}

fn savepoint_here(plan: &Plan, name: &str) -> Result<String, Failure> {
    let directory = &plan.checkpoint.directory;
    let request = Request::Savepoint { name: name.to_owned() };
    match control::ask(directory, &request)? {
        Some(answer) => Ok(word(&answer, "savepoint")),
        None if LocalStore::exists(directory) => {
            let mut store = LocalStore::open(directory, millstream_state::Options::default())?;
            Ok(super::run::runtime(plan)?.block_on(store.savepoint(name))?)
        }
        None => {
            let message =
                format!("{} never started: there is no checkpoint in {}", plan.pipeline, directory.display());
            Err(Failure::Failed(message))
        }
    }
}

fn not_running(plan: &Plan) -> Failure {
    Failure::Failed(format!(
        "{} does not run: nothing answers at {}",
        plan.pipeline,
        control::socket_path(&plan.checkpoint.directory).display()
    ))
}
