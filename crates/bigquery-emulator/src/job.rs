//! Jobs: a query or a load, run at once, and remembered by its id.

use std::sync::{Arc, Mutex, PoisonError};

use duckdb::Connection;
use duckdb::arrow::array::RecordBatch;
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::failure::Failure;
use crate::schema::Column;

/// A finished job.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) project: String,
    pub(crate) location: String,
    pub(crate) id: String,
    /// As the REST API shows it.
    pub(crate) resource: Value,
    result: Mutex<Option<Arc<Rows>>>,
    pub(crate) failure: Option<Failure>,
}

/// A query's rows.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) columns: Vec<Column>,
    pub(crate) batches: Vec<RecordBatch>,
    pub(crate) total: usize,
    pub(crate) affected: Option<u64>,
}

impl Job {
    /// A job with its result.
    pub(crate) fn new(
        (project, location, id): (String, String, String),
        resource: Value,
        result: Option<Rows>,
        failure: Option<Failure>,
    ) -> Self {
        Self { project, location, id, resource, result: Mutex::new(result.map(Arc::new)), failure }
    }

    /// Keeps it, where what is answered has to be durable.
    pub(crate) fn save(&self, connection: &Connection, engine: &Engine) -> Result<(), Failure> {
        if engine.durable {
            connection.execute(
                "INSERT OR REPLACE INTO __emulator.jobs VALUES (?, ?, ?, ?)",
                duckdb::params![self.project, self.location, self.id, self.resource.to_string()],
            )?;
        }
        Ok(())
    }

    /// Its rows, if they are still there.
    pub(crate) fn rows(&self) -> Option<Arc<Rows>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets its rows.
    pub(crate) fn forget_result(&self) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// As the REST API refers to it.
    pub(crate) fn reference(&self) -> Value {
        json!({"projectId": self.project, "location": self.location, "jobId": self.id})
    }
}
