//! `sweep`: what a new snapshot of the source did not write again is deleted.

use std::sync::Arc;

use millstream_core::Store;
use millstream_core::error::Kind;
use millstream_state::LocalStore;
use serde_json::{Value, json};

use super::{Failure, plan, run};
use crate::arguments::Sweep;
use crate::control::{self, Request};
use crate::dead_letters::Desk;
use crate::output::{plural, print, print_json};
use crate::plan::Plan;
use crate::report;
use crate::sweeps::{self, Chosen};
use crate::world::PlanWorld;

/// Asks the running pipeline, or runs the sweep alone.
pub(crate) fn command(arguments: &Sweep) -> Result<(), Failure> {
    if arguments.tables.is_empty() && !arguments.all {
        let message = "name the tables to sweep, as `schema.table`, or give --all";
        return Err(Failure::Usage(message.to_owned()));
    }
    let plan = Arc::new(plan(&arguments.on.config)?);
    sweeps::refuse_needless(&plan).map_err(|e| Failure::Usage(e.to_string()))?;
    if let Some(swept) = ask_the_running(&plan, &arguments.tables)? {
        show(arguments, &plan, &swept, None);
        return Ok(());
    }
    let Chosen { tables, names } = choose(&plan, &arguments.tables)?;
    let desk = Arc::new(Desk::new(&plan.dead_letters));
    desk.sweeps.ask(&tables);
    let world = PlanWorld::of_desk(plan.clone(), desk.clone())?;
    let ended = run::drive(&plan, world, desk.clone(), run::Until::default())?;
    ended.verdict()?;
    if !desk.sweeps.is_done(&tables) {
        return Err(Failure::Failed(
            "the sweep was ended before it was durable: ask for it again".to_owned(),
        ));
    }
    show(arguments, &plan, &names, Some(&ended));
    Ok(())
}

/// Asks the pipeline, if it runs, and waits until it has swept; `None` if it does not run.
fn ask_the_running(plan: &Plan, tables: &[String]) -> Result<Option<Vec<String>>, Failure> {
    let request = Request::Sweep { tables: tables.to_vec(), incarnation: plan.incarnation };
    match control::ask(&plan.checkpoint.directory, &request) {
        Ok(answer) => Ok(answer.map(|answer| texts(&answer["swept"]))),
        // The pipeline went away while it was waited for.
        Err(e) if e.kind() == Kind::Transient => Err(Failure::Failed(format!(
            "{e}; whether the rows are deleted is not known: ask again, a second sweep changes nothing"
        ))),
        Err(e) => Err(e.into()),
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The tables of a pipeline that does not run.
fn choose(plan: &Plan, wanted: &[String]) -> Result<Chosen, Failure> {
    let directory = &plan.checkpoint.directory;
    let never = || {
        Failure::Failed(format!(
            "{} never started: there is no checkpoint in {}",
            plan.pipeline,
            directory.display()
        ))
    };
    if !LocalStore::exists(directory) {
        return Err(never());
    }
    let mut store = LocalStore::open(directory, millstream_state::Options::default())?;
    let last = run::runtime(plan)?.block_on(store.latest())?.ok_or_else(never)?;
    if last.incarnation.0 < plan.incarnation {
        return Err(Failure::Failed(format!(
            "nothing was read with `incarnation: {}` yet, the last checkpoint was made with {}: a sweep would delete every row. \
             Run {} over the new snapshot first",
            plan.incarnation, last.incarnation.0, plan.pipeline
        )));
    }
    Ok(sweeps::choose(plan, &*store.view(), wanted)?)
}

/// `ended`: how the run went that swept, if it was this command's own.
fn show(arguments: &Sweep, plan: &Plan, swept: &[String], ended: Option<&run::Ended>) {
    if arguments.on.json {
        let summary = ended.map(|ended| report::summary_json(&plan.pipeline, &ended.summary));
        print_json(&json!({
            "pipeline": plan.pipeline,
            "incarnation": plan.incarnation,
            "swept": swept,
            "by_running_pipeline": ended.is_none(),
            "summary": summary,
        }));
        return;
    }
    let tables = plural(swept.len() as u64, "table");
    print(&format!("swept {tables}: rows that incarnation {} did not write are deleted\n", plan.incarnation));
    swept.iter().for_each(|table| print(&format!("  {table}\n")));
    if let Some(ended) = ended {
        print(&format!("\n{}", report::summary_text(&plan.pipeline, &ended.summary)));
    }
}
