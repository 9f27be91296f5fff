//! DuckDB, which holds the rows and runs the queries. One statement runs at a time.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use duckdb::Connection;
use duckdb::arrow::array::RecordBatch;

use crate::failure::Failure;

/// The schema of what the emulator itself keeps.
pub(crate) const OWN: &str = "__emulator";
/// The schema of what is known of the keys of tables with native change data capture.
pub(crate) const KEYS: &str = "__keys";

/// The database.
#[derive(Debug)]
pub(crate) struct Engine {
    connection: Mutex<Connection>,
    /// Whether it is in a file, so that what is answered has to be in it.
    pub(crate) durable: bool,
}

impl Engine {
    /// Opens it, in a file of the directory or in memory.
    pub(crate) fn open(directory: Option<&Path>) -> Result<Self, Failure> {
        let connection = match directory {
            Some(directory) => {
                std::fs::create_dir_all(directory)
                    .map_err(|e| Failure::invalid(format!("{}: {e}", directory.display())))?;
                Connection::open(directory.join("warehouse.duckdb"))?
            }
            None => Connection::open_in_memory()?,
        };
        // As in BigQuery, NULL is the smallest of all.
        let mut setup =
            "SET TimeZone = 'UTC'; SET default_null_order = 'nulls_first_on_asc_last_on_desc';".to_owned();
        for schema in [OWN, KEYS] {
            setup += &format!("CREATE SCHEMA IF NOT EXISTS {schema};");
        }
        connection.execute_batch(&setup)?;
        Ok(Self { connection: Mutex::new(connection), durable: directory.is_some() })
    }

    /// The connection, for one who waits for it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs several statements, all or none of them.
pub(crate) fn atomically<T>(
    connection: &Connection,
    run: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    connection.execute_batch("BEGIN TRANSACTION")?;
    match run() {
        Ok(value) => {
            connection.execute_batch("COMMIT")?;
            Ok(value)
        }
        Err(failure) => {
            // The failure says more than a failing ROLLBACK would.
            let _ = connection.execute_batch("ROLLBACK");
            Err(failure)
        }
    }
}

/// Inserts batches into a table, given by its schema and name.
pub(crate) fn append(
    connection: &Connection,
    schema: &str,
    table: &str,
    batches: impl IntoIterator<Item = RecordBatch>,
) -> Result<(), Failure> {
    let mut appender = connection.appender_to_db(table, schema)?;
    for batch in batches {
        appender.append_record_batch(batch)?;
    }
    appender.flush()?;
    Ok(())
}

/// Runs a query.
pub(crate) fn query(connection: &Connection, sql: &str) -> Result<Vec<RecordBatch>, Failure> {
    let mut statement = connection.prepare(sql)?;
    Ok(statement.query_arrow([])?.collect())
}
