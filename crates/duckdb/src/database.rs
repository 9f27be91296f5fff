//! Open database files. DuckDB lets one process open a file once, so all sinks of a process share it, each with its own
//! connection; transactions of different sinks run side by side.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use duckdb::{Config, Connection};
use millstream_core::{Error, Result};

use crate::error::Explain;
use crate::handover;
use crate::ident::literal;

/// A database file that this process has open. Cloning shares it; it closes with the last clone.
#[derive(Clone)]
pub struct Database(Arc<Inner>);

struct Inner {
    path: PathBuf,
    root: Mutex<Connection>,
    /// Who owns a name (dataset, folded name): two sinks that create tables at the same time don't see each other's.
    reserved: Mutex<HashMap<(String, String), String>>,
    room: Mutex<Room>,
}

static OPEN: Mutex<Vec<(PathBuf, Weak<Inner>)>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves these maps whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Settings of a database, taken when it is first opened.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `None` grows with the tables.
    pub(crate) memory_limit: Option<String>,
    pub(crate) threads: u32,
}

impl Database {
    /// The database at `path`, shared if this process has it open already.
    pub(crate) fn open(path: &Path, settings: &Settings) -> Result<Self> {
        let path = absolute(path)?;
        let mut open = lock(&OPEN);
        open.retain(|(_, weak)| weak.strong_count() > 0);
        if let Some(inner) = open.iter().find(|(p, _)| *p == path).and_then(|(_, weak)| weak.upgrade()) {
            return Ok(Self(inner));
        }
        clear_the_way(&path)?;
        let root = attach(&path, Access::Write, config(settings)?)?;
        let room = Room::new(settings.memory_limit.is_some());
        set(&root, "checkpoint_threshold", room.log_mib)?;
        handover::register(&root)?;
        let inner = Arc::new(Inner {
            path: path.clone(),
            root: Mutex::new(root),
            reserved: Mutex::default(),
            room: Mutex::new(room),
        });
        open.push((path, Arc::downgrade(&inner)));
        Ok(Self(inner))
    }

    /// The database at `path` if this process has it open.
    pub(crate) fn opened(path: &Path) -> Option<Self> {
        let path = absolute(path).ok()?;
        let open = lock(&OPEN);
        open.iter().find(|(p, _)| *p == path).and_then(|(_, weak)| weak.upgrade()).map(Self)
    }

    /// A connection of its own.
    pub(crate) fn connect(&self) -> Result<Connection> {
        let connection =
            lock(&self.0.root).try_clone().explain(|| format!("connecting to {}", self.path().display()))?;
        prepare(&connection)?;
        Ok(connection)
    }

    /// Runs `work` alone among those of this database that ask here: for statements that must not meet, like creating
    /// the metadata tables.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _guard = lock(&self.0.root);
        work()
    }

    /// Reserves a name for `owner`; false if another owner has it.
    pub(crate) fn reserve(&self, dataset: &str, folded: &str, owner: &str) -> bool {
        let mut reserved = lock(&self.0.reserved);
        let holder =
            reserved.entry((dataset.to_owned(), folded.to_owned())).or_insert_with(|| owner.to_owned());
        holder == owner
    }

    /// Says that the tables of `owner`, a sink, have `columns` columns. What DuckDB may take grows with all of them.
    pub(crate) fn make_room(&self, owner: &str, columns: usize) -> Result<()> {
        let mut room = lock(&self.0.room);
        room.columns.insert(owner.to_owned(), columns);
        let memory_mib = memory_mib(room.columns());
        if memory_mib > room.memory_mib && !room.is_memory_given {
            set(&lock(&self.0.root), "memory_limit", memory_mib)?;
            room.memory_mib = memory_mib;
        }
        let log_mib = log_mib(room.columns());
        if log_mib > room.log_mib {
            set(&lock(&self.0.root), "checkpoint_threshold", log_mib)?;
            room.log_mib = log_mib;
        }
        Ok(())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }
}

/// The least that may be set. More, up to a gigabyte, made no history faster: DuckDB filled it with blocks that nobody read again.
pub const MEMORY_MIB: usize = 128;
/// A block of DuckDB's for each column, which a commit may hold of all tables at once. Four tables of every type of column ran out of
/// 128 MiB, and 2,000 tables of 35 columns out of 48 KiB a column.
const COLUMN_KIB: usize = 256;

/// The log that is taken into the tables, as DuckDB's checkpoint does: a crash replays at most this. Its rows lie in memory too. DuckDB's
/// own 16 MB would compress a busy table's last rows again every second; 64 cost no more than 256 with two tables (ratio of
/// the CPU 0.99, two runs by turns).
const LOG_MIB: usize = 64;
/// A checkpoint makes a block of every column that has new rows, so that many of them want fewer.
const LOG_COLUMN_KIB: usize = 192;
const LOG_MIB_MAX: usize = 256;

fn memory_mib(columns: usize) -> usize {
    MEMORY_MIB + columns * COLUMN_KIB / 1024
}

fn log_mib(columns: usize) -> usize {
    (LOG_MIB + columns * LOG_COLUMN_KIB / 1024).min(LOG_MIB_MAX)
}

/// What DuckDB may take, which grows with the tables.
struct Room {
    /// By the config; then it does not grow.
    is_memory_given: bool,
    memory_mib: usize,
    log_mib: usize,
    /// The columns of each sink's tables.
    columns: HashMap<String, usize>,
}

impl Room {
    fn new(is_memory_given: bool) -> Self {
        Self { is_memory_given, memory_mib: memory_mib(0), log_mib: log_mib(0), columns: HashMap::new() }
    }

    fn columns(&self) -> usize {
        self.columns.values().sum()
    }
}

fn set(root: &Connection, setting: &str, mib: usize) -> Result<()> {
    let sql = format!("SET GLOBAL {setting} = '{mib}MiB'");
    root.execute_batch(&sql).explain(|| format!("setting {setting} to {mib}MiB"))
}

/// How a file is called among a connection's databases. A name that no dataset has: where a dataset and a database are
/// called alike, DuckDB takes `dataset.table` for ambiguous.
const CATALOG: &str = "\"millstream file\"";

/// What is done with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
}

/// Opens the file at `path` in a DuckDB instance of its own, attached and not as the main database:
///
/// - Only `ATTACH` takes a row group's size. DuckDB compresses a row group as soon as a transaction fills it, without a copy
///   in its write-ahead log; what stays below goes through the log and is compressed again with each checkpoint. Groups of
///   a quarter of the usual size are filled by an epoch of a busy table.
/// - After a crash, DuckDB 1.5 cannot open a file as the main database if its log holds a change of a column's type that
///   names a function or the JSON type: it looks these up in a default database that is not there yet ("Calling
///   DatabaseManager::GetDefaultDatabase with no default database set").
///
/// The type is named, or DuckDB would read a file called `x.csv` into memory. Once the file is open nothing else may be: a
/// query could otherwise write files, this one among them.
///
/// New files are in the format of DuckDB 1.4, whose texts compress at two thirds of the cost of the format before.
pub(crate) fn attach(path: &Path, access: Access, config: Config) -> Result<Connection> {
    let connection =
        Connection::open_in_memory_with_flags(config).explain(|| "starting DuckDB".to_owned())?;
    let file = literal(&path.display().to_string());
    let options = match access {
        Access::Write => "TYPE duckdb, ROW_GROUP_SIZE 30720, STORAGE_VERSION 'v1.4.0'",
        Access::Read => "TYPE duckdb, READ_ONLY",
    };
    let spilled = literal(&format!("{}.tmp", path.display()));
    connection
        .execute_batch(&format!(
            "SET temp_directory = {spilled}; ATTACH {file} AS {CATALOG} ({options}); \
                 SET enable_external_access = false"
        ))
        .explain(|| format!("opening {}", path.display()))?;
    prepare(&connection)?;
    Ok(connection)
}

/// What each connection to a file needs.
fn prepare(connection: &Connection) -> Result<()> {
    connection.execute_batch(&format!("USE {CATALOG}")).explain(|| "using the opened file".to_owned())?;
    // Text forms of instants must not depend on the machine. A DuckDB built without ICU has no zones and writes UTC.
    let _ = connection.execute_batch("SET TimeZone = 'UTC'");
    Ok(())
}

fn config(settings: &Settings) -> Result<Config> {
    let memory = settings.memory_limit.clone().unwrap_or_else(|| format!("{MEMORY_MIB}MiB"));
    let config =
        Config::default().max_memory(&memory).explain(|| format!("setting memory_limit to {memory}"))?;
    match settings.threads {
        0 => Ok(config),
        threads => config.threads(threads.into()).explain(|| "setting threads".to_owned()),
    }
}

/// Removes a file without content, as `mktemp` and `touch` make them: DuckDB makes a file of its own, and does not take an
/// empty one for a database. With a log beside it, it is the rest of something.
fn clear_the_way(path: &Path) -> Result<()> {
    if !std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == 0) {
        return Ok(());
    }
    let log = PathBuf::from(format!("{}.wal", path.display()));
    if log.exists() {
        return Err(Error::fatal(format!(
            "{} is empty, but its log {} is there: put the database back, or move both away to start with a new one",
            path.display(),
            log.display()
        )));
    }
    std::fs::remove_file(path).map_err(|e| {
        Error::fatal(format!("{} is an empty file and cannot be replaced by a database", path.display()))
            .with_source(e)
    })
}

/// An absolute path whose folder exists, through links: a file has one instance of DuckDB, by whatever name.
fn absolute(path: &Path) -> Result<PathBuf> {
    let mut path = in_folder(path)?;
    // As many as the system follows.
    for _ in 0..40 {
        let Ok(target) = std::fs::read_link(&path) else { return Ok(path) };
        path = in_folder(&path.parent().unwrap_or(Path::new(".")).join(target))?;
    }
    Err(Error::fatal(format!("{} is a link that leads in a circle", path.display())))
}

fn in_folder(path: &Path) -> Result<PathBuf> {
    let file = path.file_name().ok_or_else(|| Error::fatal(format!("{} names no file", path.display())))?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let explain = |e: std::io::Error| {
        Error::fatal(format!("the folder of {} can't be used", path.display())).with_source(e)
    };
    std::fs::create_dir_all(folder).map_err(explain)?;
    Ok(folder.canonicalize().map_err(explain)?.join(file))
}

/// Creates the dataset's schema if it is missing.
pub(crate) fn create_dataset(connection: &Connection, dataset: &str) -> Result<()> {
    let exists: bool = connection
        .query_row(
            &format!("SELECT count(*) > 0 FROM duckdb_schemas() WHERE schema_name = {} AND database_name = current_database()", literal(dataset)),
            [],
            |row| row.get(0),
        )
        .explain(|| format!("looking for schema {dataset}"))?;
    if exists {
        return Ok(());
    }
    connection
        .execute_batch(&format!("CREATE SCHEMA IF NOT EXISTS {}", crate::ident::quote(dataset)))
        .explain(|| format!("creating schema {dataset}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { memory_limit: Some("256MB".to_owned()), threads: 1 }
    }

    /// Two thousand tables in one epoch, and four wide ones, ran out of the memory that is enough for a few columns. What the config says
    /// is kept to, though.
    #[test]
    fn memory_and_log_grow_with_the_columns_and_set_memory_stays() {
        let limits = |database: &Database| -> [String; 2] {
            ["memory_limit", "checkpoint_threshold"].map(|setting| {
                let sql = format!("SELECT current_setting('{setting}') AS v");
                database.query(&sql, true).unwrap().rows[0][0].clone().unwrap()
            })
        };
        let dir = tempfile::tempdir().unwrap();
        let growing = Settings { memory_limit: None, threads: 1 };
        let database = Database::open(&dir.path().join("growing.duckdb"), &growing).unwrap();
        assert_eq!(limits(&database), ["128.0 MiB", "64.0 MiB"]);
        database.make_room("history", 64).unwrap();
        assert_eq!(limits(&database), ["144.0 MiB", "76.0 MiB"]);
        database.make_room("replica", 3520).unwrap();
        assert_eq!(limits(&database), ["1.0 GiB", "256.0 MiB"]);
        database.make_room("replica", 10).unwrap();
        assert_eq!(limits(&database), ["1.0 GiB", "256.0 MiB"], "rows may be in flight");

        let database = Database::open(&dir.path().join("set.duckdb"), &settings()).unwrap();
        let [memory, _] = limits(&database);
        database.make_room("history", 70_000).unwrap();
        assert_eq!(limits(&database), [memory, "256.0 MiB".to_owned()]);
    }

    /// Of two sinks on one file, one through a link to a file that was not there yet, one lost its tables.
    #[test]
    fn a_file_has_one_instance_by_whatever_name() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("out.duckdb"), dir.path().join("link.duckdb"));
        std::os::unix::fs::symlink("out.duckdb", &link).unwrap();
        let first = Database::open(&link, &settings()).unwrap();
        let second = Database::open(&file, &settings()).unwrap();
        assert_eq!(first.path(), second.path());
        assert!(Database::opened(&link).is_some());
        std::os::unix::fs::symlink("a", dir.path().join("b")).unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a")).unwrap();
        assert!(absolute(&dir.path().join("a")).unwrap_err().to_string().contains("in a circle"));
    }

    /// DuckDB takes an existing file called `.csv` or `.json` for one to read, and held the tables in memory.
    #[test]
    fn a_file_that_is_no_database_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        std::fs::write(&path, "{}\n").unwrap();
        assert!(Database::open(&path, &settings()).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}\n");
    }

    /// An empty file, which a deployment had made for its permissions, was refused as "not a valid DuckDB database file".
    #[test]
    fn an_empty_file_becomes_a_database() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.duckdb");
        std::fs::write(&path, "").unwrap();
        let database = Database::open(&path, &settings()).unwrap();
        database.connect().unwrap().execute_batch("CREATE TABLE t (a INT)").unwrap();
        drop(database);
        assert!(std::fs::metadata(&path).unwrap().len() > 0);
        let (rest, log) = (dir.path().join("rest.duckdb"), dir.path().join("rest.duckdb.wal"));
        std::fs::write(&rest, "").unwrap();
        std::fs::write(&log, "x").unwrap();
        let error = Database::open(&rest, &settings()).err().unwrap().to_string();
        assert!(error.contains("rest.duckdb.wal is there"), "{error}");
        assert!(rest.exists() && log.exists(), "nothing is thrown away");
    }

    /// A crash right after a column became JSON left a file that nobody could open: DuckDB fails to replay that change of
    /// type when the file is its main database. Found by killing a pipeline whose table widened.
    #[test]
    fn a_logged_change_of_type_does_not_lock_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (live, crashed) = (dir.path().join("live.duckdb"), dir.path().join("crashed.duckdb"));
        let connection = Connection::open(&live).unwrap();
        connection
            .execute_batch("CREATE TABLE t (a INT, c BIGINT); INSERT INTO t VALUES (1, 2); CHECKPOINT")
            .unwrap();
        connection
            .execute_batch(
                "SET checkpoint_threshold = '1GB'; ALTER TABLE t ALTER COLUMN c SET DATA TYPE VARCHAR USING to_json(c)::VARCHAR",
            )
            .unwrap();
        // What a crash leaves behind: the file and its log.
        std::fs::copy(&live, &crashed).unwrap();
        std::fs::copy(dir.path().join("live.duckdb.wal"), dir.path().join("crashed.duckdb.wal")).unwrap();

        let database = Database::open(&crashed, &settings()).unwrap();
        let value: String =
            database.connect().unwrap().query_row("SELECT c FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(value, "2");
    }
}
