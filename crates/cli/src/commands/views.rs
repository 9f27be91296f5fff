//! `views`: the SQL of the views that the sinks keep.

use std::fmt::Write as _;

use millstream_core::Result;
use serde_json::{Value, json};

use super::{Failure, plan};
use crate::arguments::Views;
use crate::control::{self, Request};
use crate::output::{print, print_json};
use crate::plan::{Plan, SinkKind};
use crate::registry;

/// Prints the views that DuckDB sinks keep, and those that BigQuery sinks were told to.
pub(crate) fn command(arguments: &Views) -> Result<(), Failure> {
    let plan = plan(&arguments.on.config)?;
    let list = match control::ask(&plan.checkpoint.directory, &Request::Views)? {
        Some(answer) => answer,
        None => list(&plan)?,
    };
    if arguments.on.json {
        print_json(&list);
        return Ok(());
    }
    let mut text = String::new();
    for view in list.as_array().into_iter().flatten() {
        let member = |name: &str| view[name].as_str().unwrap_or_default();
        // Writing into a String does not fail.
        let _ = writeln!(text, "-- {}, kept by sink {}\n{}\n", member("view"), member("sink"), member("sql"));
    }
    if text.is_empty() {
        text.push_str("no views yet: they are made with the first event of a table that has a key\n");
    }
    print(&text);
    Ok(())
}

/// Sink, name and SQL of the views; of none before a sink's first run.
pub(crate) fn list(plan: &Plan) -> Result<Value> {
    let mut list = Vec::new();
    for (sink, duckdb) in plan.duckdb_sinks().filter(|(_, duckdb)| duckdb.path.exists()) {
        for (view, sql) in millstream_duckdb::views(&registry::duckdb_config(sink, duckdb))? {
            list.push(json!({ "sink": sink, "view": view, "sql": sql }));
        }
    }
    for sink in &plan.sinks {
        if let SinkKind::Bigquery(config) = &sink.kind {
            for view in &config.views {
                list.push(json!({ "sink": sink.name, "view": view.name, "sql": view.sql(config) }));
            }
        }
    }
    Ok(Value::Array(list))
}
