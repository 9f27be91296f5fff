//! `views`: the SQL of the views that the sinks keep.

use std::fmt::Write as _;
use std::path::Path;

use millstream_core::Result;
use millstream_duckdb::query;
use serde_json::{Value, json};

use super::{Failure, plan};
use crate::arguments::Views;
use crate::output::{print, print_json};
use crate::sql::{literal, qualify};

/// Prints the views of every DuckDB sink.
pub(crate) fn command(arguments: &Views) -> Result<(), Failure> {
    let plan = plan(&arguments.on.config)?;
    let mut text = String::new();
    let mut list = Vec::new();
    for (name, duckdb) in plan.duckdb_sinks() {
        for (view, sql) in views(&duckdb.path, &duckdb.dataset, name)? {
            // Writing into a String does not fail.
            let _ = writeln!(text, "-- {view}, kept by sink {name}\n{sql}\n");
            list.push(json!({ "sink": name, "view": view, "sql": sql }));
        }
    }
    if arguments.on.json {
        print_json(&Value::Array(list));
    } else if text.is_empty() {
        print("no views yet: they are made with the first event of a table that has a key\n");
    } else {
        print(&text);
    }
    Ok(())
}

/// Names and SQL of the views that a sink keeps; none before its first run.
fn views(file: &Path, dataset: &str, sink: &str) -> Result<Vec<(String, String)>> {
    let metadata = format!(
        "SELECT 1 FROM duckdb_tables() WHERE schema_name = {} AND table_name = '_millstream_tables'",
        literal(dataset)
    );
    if !file.exists() || query(file, &metadata, true)?.rows.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT v.view_name, v.sql FROM duckdb_views() v JOIN {} t ON t.view = v.view_name \
         WHERE v.schema_name = {} AND t.sink = {} ORDER BY ALL",
        qualify(dataset, "_millstream_tables"),
        literal(dataset),
        literal(sink)
    );
    let text = |cell: Option<String>| cell.unwrap_or_default();
    let rows = query(file, &sql, true)?.rows.into_iter();
    Ok(rows
        .map(|row| row.into_iter().map(text))
        .filter_map(|mut row| Some((row.next()?, row.next()?)))
        .collect())
}
