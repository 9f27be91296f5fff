//! `status`, `savepoint`, `drain`, `cancel`, `pause`, `resume`: asked of the running pipeline, or of its files.

use std::fmt::Write as _;

use millstream_core::Store;
use millstream_state::LocalStore;
use serde_json::{Value, json};

use super::{Failure, plan};
use crate::arguments::{OnConfig, Savepoint};
use crate::control::{self, Request};
use crate::output::{bytes, print, print_json};
use crate::plan::Plan;
use crate::report;

/// What a running pipeline may be told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Drain,
    Cancel,
    Pause,
    Resume,
}

/// Tells the running pipeline to do something.
pub(crate) fn order(on: &OnConfig, order: Order) -> Result<(), Failure> {
    let plan = plan(&on.config)?;
    let (request, done) = match order {
        Order::Drain => (Request::Drain, "finishing what is in flight"),
        Order::Cancel => (Request::Cancel, "ending now"),
        Order::Pause => (Request::Pause, "pausing"),
        Order::Resume => (Request::Resume, "going on"),
    };
    control::ask(&plan.checkpoint.directory, &request)?.ok_or_else(|| not_running(&plan))?;
    if on.json {
        print_json(&json!({ "pipeline": plan.pipeline, "asked": done }));
    } else {
        print(&format!("{}: {done}\n", plan.pipeline));
    }
    Ok(())
}

/// How the pipeline stands: from the running one, else from its last checkpoint.
pub(crate) fn status(on: &OnConfig) -> Result<(), Failure> {
    let plan = plan(&on.config)?;
    let running = control::ask(&plan.checkpoint.directory, &Request::Status)?;
    let value = match running {
        Some(status) => status,
        None => stopped(&plan)?,
    };
    if on.json {
        print_json(&value);
    } else {
        print(&text(&value));
    }
    Ok(())
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
            "counters": report::counters_json(&last.counters),
        }),
        None => json!({ "pipeline": plan.pipeline, "phase": "never started", "state_bytes": bytes }),
    })
}

fn text(status: &Value) -> String {
    let mut out = String::new();
    let word = |key: &str| status[key].as_str().unwrap_or_default().to_owned();
    // Writing into a String does not fail, here and below.
    let _ = writeln!(out, "{}: {}", word("pipeline"), word("phase"));
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
    let plan = plan(&arguments.on.config)?;
    let directory = &plan.checkpoint.directory;
    let request = Request::Savepoint { name: arguments.name.clone() };
    let place = match control::ask(directory, &request)? {
        Some(answer) => answer["savepoint"].as_str().unwrap_or_default().to_owned(),
        None if LocalStore::exists(directory) => {
            let mut store = LocalStore::open(directory, millstream_state::Options::default())?;
            super::run::runtime(&plan)?.block_on(store.savepoint(&arguments.name))?
        }
        None => {
            let message =
                format!("{} never started: there is no checkpoint in {}", plan.pipeline, directory.display());
            return Err(Failure::Failed(message));
        }
    };
    if arguments.on.json {
        print_json(&json!({ "pipeline": plan.pipeline, "savepoint": place }));
    } else {
        print(&format!("{place}\n"));
    }
    Ok(())
}

fn not_running(plan: &Plan) -> Failure {
    Failure::Failed(format!(
        "{} does not run: nothing answers at {}",
        plan.pipeline,
        control::socket_path(&plan.checkpoint.directory).display()
    ))
}
