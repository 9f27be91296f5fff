//! A sink's connection, and the thread that inserts rows by it while the next ones are made columns.
//!
//! One insertion is under way at a time, and nothing else uses the connection meanwhile: who asks for it waits. So
//! statements run in the order in which they were asked for, as without the thread.

use std::cell::{Ref, RefCell};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use duckdb::Connection;
use millstream_core::{Error, Field, Result};

use crate::batch::{self, Chunk, Inserted, Place};

/// The connection, here or away with an insertion.
pub(crate) struct Inserter {
    seat: RefCell<Seat>,
    thread: RefCell<Option<Thread>>,
}

enum Seat {
    Here(Connection),
    /// With the thread, which gives it back.
    Away,
    /// The thread panicked with it.
    Lost,
}

struct Thread {
    jobs: Sender<Job>,
    done: Receiver<(Connection, Result<()>)>,
    handle: JoinHandle<()>,
}

struct Job {
    connection: Connection,
    table: TableName,
    fields: Arc<[Field]>,
    chunks: Vec<Chunk>,
    back: Sender<Inserted>,
}

/// A [`Place`] that the thread can keep.
struct TableName {
    catalog: Option<String>,
    dataset: String,
    table: String,
}

impl Inserter {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { seat: RefCell::new(Seat::Here(connection)), thread: RefCell::default() }
    }

    /// The connection, once nothing is being inserted. Fails as the last insertion did, once.
    pub(crate) fn connection(&self) -> Result<Ref<'_, Connection>> {
        self.wait()?;
        Ref::filter_map(self.seat.borrow(), |seat| match seat {
            Seat::Here(connection) => Some(connection),
            Seat::Away | Seat::Lost => None,
        })
        .map_err(|_| lost())
    }

    /// Inserts chunks into a table whose columns the fields are, in order, after what was asked for before; then sends
    /// the chunks `back` for their memory. Returns as soon as the insertion begins: if it fails, the next call says so.
    pub(crate) fn insert(
        &self,
        place: Place<'_>,
        fields: &Arc<[Field]>,
        chunks: Vec<Chunk>,
        back: &Sender<Inserted>,
    ) -> Result<()> {
        self.wait()?;
        let mut thread = self.thread.borrow_mut();
        let thread = match &mut *thread {
            Some(thread) => thread,
            none => none.insert(Thread::start()?),
        };
        let connection = match self.seat.replace(Seat::Away) {
            Seat::Here(connection) => connection,
            Seat::Away | Seat::Lost => return Err(self.lose()),
        };
        let table = TableName {
            catalog: place.catalog.map(str::to_owned),
            dataset: place.dataset.to_owned(),
            table: place.table.to_owned(),
        };
        let job = Job { connection, table, fields: fields.clone(), chunks, back: back.clone() };
        thread.jobs.send(job).map_err(|_| self.lose())
    }

    /// Waits for the insertion that is under way.
    fn wait(&self) -> Result<()> {
        let mut seat = self.seat.borrow_mut();
        if !matches!(*seat, Seat::Away) {
            return Ok(());
        }
        let done = self.thread.borrow().as_ref().and_then(|thread| thread.done.recv().ok());
        match done {
            Some((connection, inserted)) => {
                *seat = Seat::Here(connection);
                inserted
            }
            None => {
                *seat = Seat::Lost;
                Err(lost())
            }
        }
    }

    fn lose(&self) -> Error {
        self.seat.replace(Seat::Lost);
        lost()
    }
}

impl Drop for Inserter {
    /// A sink that is gone does not write any more.
    fn drop(&mut self) {
        if let Some(Thread { jobs, handle, .. }) = self.thread.take() {
            drop(jobs);
            // A panic was told to whoever waited for the insertion.
            let _ = handle.join();
        }
    }
}

impl Thread {
    fn start() -> Result<Self> {
        let (jobs, asked) = channel::<Job>();
        let (tell, done) = channel();
        let work = move || {
            for Job { connection, table, fields, chunks, back } in asked {
                let bytes = chunks.iter().map(Chunk::bytes).sum();
                let TableName { catalog, dataset, table } = &table;
                let place = Place { catalog: catalog.as_deref(), dataset, table };
                let inserted = batch::insert(&connection, place, &fields, chunks).map(|chunks| {
                    // Nobody wants the memory where the table was flushed meanwhile.
                    let _ = back.send(Inserted { chunks, bytes });
                });
                if tell.send((connection, inserted)).is_err() {
                    return;
                }
            }
        };
        let handle = std::thread::Builder::new()
            .name("duckdb-insert".to_owned())
            .spawn(work)
            .map_err(|e| Error::transient("no thread could be started to insert rows").with_source(e))?;
        Ok(Self { jobs, done, handle })
    }
}

fn lost() -> Error {
    Error::fatal("the connection to DuckDB was lost by a panic while rows were inserted; the log has it")
}

#[cfg(test)]
mod tests {
    use millstream_core::Type;

    use super::*;
    use crate::column_data::ColumnData;
    use crate::handover;

    const PLACE: Place<'static> = Place { catalog: None, dataset: "main", table: "t" };

    fn inserter() -> (Inserter, Arc<[Field]>) {
        let connection = Connection::open_in_memory().unwrap();
        handover::register(&connection).unwrap();
        (Inserter::new(connection), [Field { name: "n".into(), ty: Type::Int64 }].into())
    }

    fn chunk(numbers: std::ops::Range<i64>) -> Vec<Chunk> {
        let mut column = ColumnData::new(&Type::Int64);
        numbers.for_each(|n| column.push_int(n));
        vec![Chunk { columns: vec![column], kept: None }]
    }

    fn count(inserter: &Inserter) -> i64 {
        inserter.connection().unwrap().query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_statement_sees_what_was_handed_over_before_it() {
        let (inserter, fields) = inserter();
        inserter.connection().unwrap().execute_batch("CREATE TABLE t (n BIGINT)").unwrap();
        let (back, memory) = channel();
        for round in 0..20 {
            inserter.insert(PLACE, &fields, chunk(0..2000), &back).unwrap();
            inserter.insert(PLACE, &fields, chunk(0..100), &back).unwrap();
            assert_eq!(count(&inserter), (round + 1) * 2100);
        }
        let rows: Vec<_> = memory.try_iter().map(|inserted| inserted.chunks[0].rows()).collect();
        assert_eq!(rows, [2000, 100].repeat(20), "every chunk comes back for its memory");
    }

    /// An insertion that fails has nobody to tell at that moment: whoever comes next must hear of it, be it another insertion.
    #[test]
    fn who_comes_next_hears_of_a_failed_insertion() {
        let (inserter, fields) = inserter();
        let (back, memory) = channel();
        inserter.insert(PLACE, &fields, chunk(0..3), &back).unwrap();
        let error = inserter.insert(PLACE, &fields, chunk(0..3), &back).unwrap_err();
        assert!(error.to_string().contains("inserting into main.t"), "{error}");
        inserter.connection().unwrap().execute_batch("CREATE TABLE t (n BIGINT)").unwrap();
        assert_eq!(count(&inserter), 0, "neither was inserted");
        assert_eq!(memory.try_iter().count(), 0);
        inserter.insert(PLACE, &fields, chunk(0..3), &back).unwrap();
        assert_eq!(count(&inserter), 3);
    }
}
