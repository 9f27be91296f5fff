//! All that the emulator holds: datasets with their tables, write streams, jobs, and the database with the rows.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use duckdb::Connection;
use serde_json::{Map, Value};

use crate::clock::{self, Clock};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::faults::{Dice, Faults};
use crate::gcs;
use crate::job::Job;
use crate::landing;
use crate::stream::Stream;
use crate::table::{Shared, TableId, TableState};

/// How much of a table waits in memory before it is put into the database.
const LAND_BYTES: usize = 32 << 20;
/// How many jobs are remembered with their results.
const JOBS_MAX: usize = 2_000;

/// How the emulator behaves where the service varies.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The largest AppendRows request.
    pub(crate) request_bytes: usize,
    /// Whether `x-goog-request-params` has to be sent.
    pub(crate) require_routing: bool,
    /// How much later than a table the Storage Write API knows its new columns.
    pub(crate) schema_delay: Duration,
    /// How much later changes are applied to tables with `maxStaleness`.
    pub(crate) apply_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            request_bytes: 20 << 20,
            require_routing: true,
            schema_delay: Duration::ZERO,
            apply_delay: Duration::ZERO,
        }
    }
}

/// A dataset.
#[derive(Debug, Clone)]
pub(crate) struct Dataset {
    pub(crate) location: String,
    /// What its resource says beside the location.
    pub(crate) resource: Map<String, Value>,
    pub(crate) created: i64,
    pub(crate) modified: i64,
    pub(crate) version: u64,
    pub(crate) tables: BTreeMap<String, Shared>,
}

/// A project and a dataset's name.
pub(crate) type DatasetId = (String, String);

/// Jobs by project, location and id, and the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) by_id: HashMap<(String, String, String), Arc<Job>>,
    order: std::collections::VecDeque<(String, String, String)>,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct Warehouse {
    pub(crate) clock: Clock,
    pub(crate) settings: Settings,
    pub(crate) engine: Engine,
    dice: RwLock<Arc<Dice>>,
    datasets: Mutex<BTreeMap<DatasetId, Dataset>>,
    streams: Mutex<HashMap<String, Arc<Stream>>>,
    jobs: Mutex<Jobs>,
    /// Taken by whoever runs a load job.
    loads: Mutex<()>,
    /// Those of Cloud Storage.
    pub(crate) buckets: gcs::Buckets,
    transfers: Mutex<BTreeMap<String, Value>>,
    serial: std::sync::atomic::AtomicU64,
}

impl Warehouse {
    /// An empty one over a database.
    pub(crate) fn new(
        engine: Engine,
        settings: Settings,
        faults: Faults,
        clock: Clock,
        buckets: gcs::Buckets,
    ) -> Self {
        Self {
            clock,
            settings,
            engine,
            dice: RwLock::new(Arc::new(Dice::new(faults))),
            datasets: Mutex::default(),
            streams: Mutex::default(),
            jobs: Mutex::default(),
            loads: Mutex::default(),
            buckets,
            transfers: Mutex::default(),
            serial: std::sync::atomic::AtomicU64::new(1),
        }
    }

    /// Configurations of the Data Transfer Service, by their names. In memory, with data on disk too.
    pub(crate) fn transfers(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Value>> {
        self.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The faults at work.
    pub(crate) fn dice(&self) -> Arc<Dice> {
        self.dice.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces them.
    pub(crate) fn set_faults(&self, faults: Faults) {
        *self.dice.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Dice::new(faults));
    }

    /// The datasets.
    pub(crate) fn datasets(&self) -> MutexGuard<'_, BTreeMap<DatasetId, Dataset>> {
        self.datasets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The streams.
    pub(crate) fn streams(&self) -> MutexGuard<'_, HashMap<String, Arc<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The jobs.
    pub(crate) fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The right to run a load job.
    pub(crate) fn loads(&self) -> MutexGuard<'_, ()> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other call got, also not of an earlier run.
    pub(crate) fn serial(&self) -> u64 {
        let n = self.serial.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.clock.micros().cast_unsigned().wrapping_mul(1000).wrapping_add(n % 1000)
    }

    /// A table.
    pub(crate) fn table(&self, id: &TableId) -> Result<Shared, Failure> {
        let datasets = self.datasets();
        let dataset = datasets.get(&(id.project.clone(), id.dataset.clone()));
        let dataset = dataset
            .ok_or_else(|| Failure::not_found(format!("Not found: Dataset {}:{}", id.project, id.dataset)))?;
        let table = dataset.tables.get(&id.table);
        table.cloned().ok_or_else(|| Failure::not_found(format!("Not found: Table {id}")))
    }

    /// A dataset's location.
    pub(crate) fn location(&self, project: &str, dataset: &str) -> Option<String> {
        self.datasets().get(&(project.to_owned(), dataset.to_owned())).map(|d| d.location.clone())
    }

    /// Up to when changes of a table are to be seen now, in microseconds.
    fn changes_until(&self, state: &TableState, now: i64) -> i64 {
        let delay = clock::micros(self.settings.apply_delay);
        match state.resource.get("maxStaleness").and_then(Value::as_str).and_then(staleness) {
            // Beyond the staleness that is allowed a query merges what is not applied yet.
            Some(staleness) if staleness > 0 => now - delay.min(staleness),
            _ => now,
        }
    }

    /// Puts all that a reader may see of a table into the database.
    pub(crate) fn land(&self, connection: &Connection, table: &Shared) -> Result<(), Failure> {
        let now = self.clock.micros();
        let until = {
            let mut state = table.lock();
            let until = self.changes_until(&state, now);
            if state.upserted {
                state.watermark = Some(until);
            }
            until
        };
        landing::land(&self.engine, connection, table, until, now)
    }

    /// Puts what a table accepted into the database if it is much, or at once where it has to be durable. Who has to be
    /// durable also waits for another that has taken his rows and not committed them yet.
    pub(crate) fn settle(&self, table: &Shared) -> Result<(), Failure> {
        if self.engine.durable || table.lock().pending_bytes > LAND_BYTES {
            let connection = self.engine.lock();
            self.land(&connection, table)?;
        }
        Ok(())
    }

    /// Puts everything into the database.
    pub(crate) fn land_all(&self, connection: &Connection) -> Result<(), Failure> {
        let tables: Vec<_> = self.datasets().values().flat_map(|d| d.tables.values().cloned()).collect();
        tables.iter().try_for_each(|table| self.land(connection, table))
    }

    /// Forgets the streams of a table.
    pub(crate) fn drop_streams(&self, id: &TableId) {
        self.streams().retain(|_, stream| stream.table.id != *id);
    }
}

impl Jobs {
    /// Adds a job whose id is not taken.
    pub(crate) fn add(&mut self, job: Arc<Job>) -> Result<(), Failure> {
        let key = (job.project.clone(), job.location.to_ascii_lowercase(), job.id.clone());
        if self.by_id.contains_key(&key) {
            return Err(Failure::duplicate(format!(
                "Already Exists: Job {}:{}.{}",
                key.0, job.location, key.2
            )));
        }
        if self.order.len() >= JOBS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(job) = self.by_id.get(&oldest)
        {
            // The job stays known, as its id stays taken.
            job.forget_result();
        }
        self.order.push_back(key.clone());
        self.by_id.insert(key, job);
        Ok(())
    }
}

/// Microseconds of an interval such as `0-0 0 0:10:0`; months have thirty days.
pub(crate) fn staleness(text: &str) -> Option<i64> {
    let parts: Vec<_> = text.split_whitespace().collect();
    let [months, days, clock] = parts.as_slice() else { return None };
    let (years, months) = months.split_once('-')?;
    let mut clock = clock.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (clock.next()??, clock.next()??, clock.next()??);
    let days =
        years.parse::<f64>().ok()? * 365.0 + months.parse::<f64>().ok()? * 30.0 + days.parse::<f64>().ok()?;
    Some((((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds).mul_add(1e6, 0.0) as i64)
}
