//! Queries on a file, for people: beside a running pipeline of this process, or on a file that nobody has open.

use std::path::Path;

use duckdb::arrow::array::{Array, ArrayRef};
use duckdb::arrow::util::display::{ArrayFormatter, FormatOptions};
use duckdb::{Config, Connection};
use millstream_core::{Error, Result};
use millstream_layout::cell::write_json_text;

use crate::database::{Access, Database, attach};
use crate::error::Explain;

/// The rows that a query gave, as text: `None` is NULL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// Column names.
    pub columns: Vec<String>,
    /// Rows of as many values as there are columns.
    pub rows: Vec<Vec<Option<String>>>,
    /// For each column, whether its values are JSON as they stand (numbers, booleans).
    plain: Vec<bool>,
}

impl Answer {
    /// A table for a terminal, with a line that counts the rows.
    pub fn text(&self) -> String {
        let cell =
            |value: &Option<String>| value.as_deref().unwrap_or("NULL").replace(['\n', '\r', '\t'], " ");
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
        let width = |i: usize| {
            let widest = rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
            widest.max(self.columns[i].chars().count())
        };
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        let mut out = String::new();
        let mut line = |cells: &[String]| {
            let padded = cells.iter().zip(&widths).map(|(cell, &width)| {
                format!("{cell}{}", " ".repeat(width.saturating_sub(cell.chars().count())))
            });
            out.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        };
        line(&self.columns);
        line(&widths.iter().map(|&w| "-".repeat(w)).collect::<Vec<_>>());
        rows.iter().for_each(|row| line(row));
        out.push_str(&format!("({} row{})\n", rows.len(), if rows.len() == 1 { "" } else { "s" }));
        out
    }

    /// One JSON object a row, in an array. Numbers and booleans are such; everything else is a string, so that no digit
    /// is lost.
    pub fn json(&self) -> String {
        let mut out = String::from("[");
        for (r, row) in self.rows.iter().enumerate() {
            out.push_str(if r == 0 { "\n{" } else { ",\n{" });
            for (i, value) in row.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_json_text(&mut out, &self.columns[i]);
                out.push(':');
                match value {
                    None => out.push_str("null"),
                    Some(v) if self.plain[i] && is_json(v) => out.push_str(v),
                    Some(v) => write_json_text(&mut out, v),
                }
            }
            out.push('}');
        }
        out.push_str("\n]\n");
        out
    }
}

/// Whether the text of a number or boolean is JSON: `nan` and `inf` are not.
fn is_json(text: &str) -> bool {
    text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()) || matches!(text, "true" | "false")
}

/// Runs one statement on the file at `path`. If this process has the file open (a pipeline runs), on that database. With
/// `read_only` nothing can be changed; a file that does not exist is an error then.
pub fn query(path: &Path, sql: &str, read_only: bool) -> Result<Answer> {
    if let Some(database) = Database::opened(path) {
        return database.query(sql, read_only);
    }
    run(&connect_file(path, read_only)?, sql, read_only)
}

/// A connection to the file, beside the pipeline if this process runs one on it.
pub(crate) fn connect(path: &Path, read_only: bool) -> Result<Connection> {
    match Database::opened(path) {
        Some(database) => database.connect(),
        None => connect_file(path, read_only),
    }
}

fn connect_file(path: &Path, read_only: bool) -> Result<Connection> {
    if read_only && !path.exists() {
        return Err(Error::fatal(format!("there is no file {}", path.display())));
    }
    attach(path, if read_only { Access::Read } else { Access::Write }, Config::default())
}

impl Database {
    /// Runs one statement beside the pipeline. With `read_only` in a transaction that can't write.
    pub fn query(&self, sql: &str, read_only: bool) -> Result<Answer> {
        let connection = self.connect()?;
        if !read_only {
            return run(&connection, sql, false);
        }
        let doing = || "beginning a read-only query".to_owned();
        connection.execute_batch("BEGIN TRANSACTION READ ONLY").explain(doing)?;
        let answer = run(&connection, sql, true);
        // The connection ends here, and what is left of the transaction with it.
        let _ = connection.execute_batch("ROLLBACK");
        answer
    }
}

/// An answer is held whole, beside a pipeline that runs: it must leave that its memory.
const ROWS_MAX: usize = 100_000;
const BYTES_MAX: usize = 256 << 20;

fn too_large(what: &str) -> Error {
    Error::fatal(format!(
        "the answer has {what}: add a LIMIT, or end the pipeline and write it to a file with COPY in DuckDB"
    ))
}

/// The user asked for this text, so unlike elsewhere DuckDB's message is shown whole.
fn failed(error: duckdb::Error) -> Error {
    Error::fatal(format!("the query failed: {error}"))
}

fn run(connection: &Connection, sql: &str, read_only: bool) -> Result<Answer> {
    let sql = sql.trim().trim_end_matches(';');
    // DuckDB knows the text of all its types; what can't be described is no query but a statement, which is run as it is.
    let plain = match describe(connection, sql) {
        Ok(plain) => plain,
        Err(error) if read_only => {
            return Err(failed(error).at("only queries are answered here, and the file is read-only"));
        }
        Err(_) => return collect(connection, sql),
    };
    let rows = ROWS_MAX + 1;
    let answer = collect(connection, &format!("SELECT COLUMNS(*)::VARCHAR FROM (\n{sql}\n) LIMIT {rows}"))?;
    if answer.rows.len() > ROWS_MAX {
        return Err(too_large(&format!("more than {ROWS_MAX} rows")));
    }
    Ok(Answer { plain, ..answer })
}

/// For each column of a query, whether its values are JSON as they stand.
fn describe(connection: &Connection, sql: &str) -> duckdb::Result<Vec<bool>> {
    let mut statement = connection.prepare(&format!("DESCRIBE {sql}"))?;
    let types = statement.query_map([], |row| row.get::<_, String>(1))?;
    // Not decimals: readers of JSON make doubles of them.
    let is_plain = |ty: String| {
        matches!(&*ty, "BOOLEAN" | "TINYINT" | "SMALLINT" | "INTEGER" | "BIGINT" | "FLOAT" | "DOUBLE")
    };
    types.map(|ty| ty.map(is_plain)).collect()
}

fn collect(connection: &Connection, sql: &str) -> Result<Answer> {
    let mut statement = connection.prepare(sql).map_err(failed)?;
    let batches: Vec<_> = statement.query_arrow([]).map_err(failed)?.collect();
    let columns: Vec<_> = statement.schema().fields().iter().map(|f| f.name().clone()).collect();
    let mut answer = Answer { plain: vec![false; columns.len()], columns, rows: Vec::new() };
    let mut bytes = 0;
    for batch in batches {
        bytes += batch.get_array_memory_size();
        if bytes > BYTES_MAX {
            return Err(too_large(&format!("more than {} MB", BYTES_MAX >> 20)));
        }
        let columns = batch.columns().iter().map(texts).collect::<Result<Vec<_>>>()?;
        let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
        for _ in 0..batch.num_rows() {
            answer.rows.push(columns.iter_mut().map(|column| column.next().flatten()).collect());
        }
    }
    Ok(answer)
}

fn texts(column: &ArrayRef) -> Result<Vec<Option<String>>> {
    let options = FormatOptions::default();
    let explain = |e| Error::fatal("a column of the answer has no text form").with_source(e);
    let formatter = ArrayFormatter::try_new(column.as_ref(), &options).map_err(explain)?;
    let text = |i| (!column.is_null(i)).then(|| formatter.value(i).to_string());
    Ok((0..column.len()).map(text).collect())
}
