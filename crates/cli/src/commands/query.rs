//! `query`: SQL for the DuckDB file of a pipeline, through the running pipeline where it holds the file.

use std::fmt::Write as _;

use millstream_core::{Error, Result};
use millstream_duckdb::Answer;
use serde::{Deserialize, Serialize};

use super::{Failure, plan};
use crate::arguments::Query;
use crate::control::{self, Request};
use crate::output::print;
use crate::plan::{DuckdbPlan, Plan};

/// How an answer is written.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// A table for people.
    Text,
    /// An array of objects.
    Json,
    /// RFC 4180, with a line of names; NULL is nothing, an empty text is `""`.
    Csv,
}

/// Asks and prints.
pub(crate) fn command(arguments: &Query) -> Result<(), Failure> {
    let plan = plan(&arguments.on.config)?;
    let form = match (arguments.on.json, arguments.csv) {
        (true, _) => Form::Json,
        (_, true) => Form::Csv,
        _ => Form::Text,
    };
    // A wrong name is the user's, whoever would answer.
    sink(&plan, arguments.sink.as_deref()).map_err(|e| Failure::Usage(e.to_string()))?;
    let request = Request::Query { sql: arguments.sql.clone(), sink: arguments.sink.clone(), form };
    let text = match control::ask(&plan.checkpoint.directory, &request)? {
        Some(answer) => answer.as_str().unwrap_or_default().to_owned(),
        None => ask(&plan, arguments.sink.as_deref(), &arguments.sql, form)?,
    };
    print(&text);
    Ok(())
}

/// Asks the file of `sink`, in this process, read-only.
pub(crate) fn ask(plan: &Plan, sink: Option<&str>, sql: &str, form: Form) -> Result<String> {
    // Beside a running pipeline the file is open for writing, and only the statement's transaction is read-only: a second
    // statement could leave it. No `;` at all is a rule that no way of quoting gets around.
    let sql = sql.trim().trim_end_matches([';', ' ', '\n']);
    if sql.contains(';') {
        return Err(Error::fatal(
            "a query is one statement and holds no `;` (write chr(59) for one in a text)",
        ));
    }
    let (_, duckdb) = self::sink(plan, sink)?;
    let answer = millstream_duckdb::query(&duckdb.path, sql, true)?;
    Ok(match form {
        Form::Text => answer.text(),
        Form::Json => answer.json(),
        Form::Csv => csv(&answer),
    })
}

/// The sink that is meant: the named one, or any if all write into one file.
fn sink<'a>(plan: &'a Plan, name: Option<&str>) -> Result<(&'a str, &'a DuckdbPlan)> {
    let mut sinks = plan.duckdb_sinks();
    if let Some(name) = name {
        let names: Vec<&str> = plan.duckdb_sinks().map(|(name, _)| name).collect();
        return sinks.find(|(known, _)| *known == name).ok_or_else(|| {
            Error::fatal(format!("there is no DuckDB sink `{name}`; there are: {}", names.join(", ")))
        });
    }
    let first = sinks.next().ok_or_else(|| Error::fatal("the config has no DuckDB sink to ask"))?;
    match sinks.find(|(_, duckdb)| duckdb.path != first.1.path) {
        None => Ok(first),
        Some((other, _)) => Err(Error::fatal(format!(
            "sinks `{}` and `{other}` write into different files: say which with --sink",
            first.0
        ))),
    }
}

fn csv(answer: &Answer) -> String {
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = Option<&str>>| {
        for (i, cell) in cells.enumerate() {
            if i > 0 {
                out.push(',');
            }
            match cell {
                None => {}
                Some(text) if !text.is_empty() && !text.contains(['"', ',', '\n', '\r']) => {
                    out.push_str(text)
                }
                // Writing into a String does not fail.
                Some(text) => drop(write!(out, "\"{}\"", text.replace('"', "\"\""))),
            }
        }
        out.push_str("\r\n");
    };
    line(&mut answer.columns.iter().map(|name| Some(&**name)));
    for row in &answer.rows {
        line(&mut row.iter().map(Option::as_deref));
    }
    out
}
