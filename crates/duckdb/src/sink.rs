//! The sink: routes events to tables, evolves these, and makes an epoch one DuckDB transaction.
//!
//! DuckDB's calls block, and so do the futures made here: poll them on a thread that may wait.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use millstream_core::evolution::ChangePolicy;
use millstream_core::sink::{Rejection, SinkNotice, WriteReport};
use millstream_core::{
    Cause, CommitToken, Epoch, Error, Fut, Judged, Op, Order, Output, OutputBatch, Patch, Result, RowSchema,
    Sink,
};
use millstream_layout::rows::Trouble;

use crate::catalog::{Catalog, Mark};
use crate::config::{DuckConfig, Layout};
use crate::database::{Database, Settings, create_dataset};
use crate::error::Explain;
use crate::inserter::Inserter;
use crate::recovery;
use crate::replica::Taken;
use crate::session::Session;
use crate::table::Table;
use crate::token;

/// A DuckDB sink of one layout. Exactly once: an epoch's rows, its schema changes and its number are one transaction,
/// committed in `prepare`; `recover` takes back what no checkpoint names.
pub struct DuckSink {
    session: Session,
    tables: Vec<Table>,
    /// Where rows of a schema go, by the schema's address; the `Arc` keeps the address from being used again.
    routes: HashMap<usize, Route>,
    /// The last epoch that was prepared since the sink was opened.
    prepared: Option<Mark>,
    in_transaction: bool,
    notices: Vec<SinkNotice>,
}

struct Route {
    _schema: Arc<RowSchema>,
    table: usize,
    binding: usize,
}

/// Bytes of rows that wait in memory, of all tables together.
const PENDING_BYTES_MAX: usize = 128 << 20;

/// Schemas are few; more than this means that a decoder makes a new one for each batch.
const ROUTES_MAX: usize = 4096;

impl DuckSink {
    /// Opens the file and reads what this sink wrote before.
    pub fn open(config: DuckConfig) -> Result<Self> {
        let settings = Settings { memory_limit: config.memory_limit.clone(), threads: config.threads };
        let database = Database::open(&config.path, &settings)?;
        let connection = database.connect()?;
        let catalog = Catalog::of(&config);
        database.alone(|| {
            create_dataset(&connection, &config.dataset)?;
            catalog.create(&connection)
        })?;
        let mark = Mark { epoch: 0, ingested_at_us: 0 };
        let mut sink = Self {
            session: Session {
                config,
                database,
                inserter: Inserter::new(connection),
                catalog,
                mark,
                taken: RefCell::default(),
                transaction: Cell::new(0),
            },
            tables: Vec::new(),
            routes: HashMap::new(),
            prepared: None,
            in_transaction: false,
            notices: Vec::new(),
        };
        sink.load_tables()?;
        Ok(sink)
    }

    /// The open database, for queries beside the running pipeline.
    pub fn database(&self) -> Database {
        self.session.database.clone()
    }

    fn load_tables(&mut self) -> Result<()> {
        self.routes.clear();
        self.session.taken.replace(None);
        let layout = self.session.config.layout;
        let stored = self.session.catalog.load(&*self.session.connection()?)?;
        if let Some(other) = stored.iter().find(|t| t.layout != layout.name()) {
            return Err(Error::fatal(format!(
                "sink {} wrote table {} in layout {}, but is now {}; give the sink another name or dataset",
                self.session.config.name,
                other.name,
                other.layout,
                layout.name()
            )));
        }
        self.tables = stored.into_iter().map(|t| Table::load(&self.session, t)).collect::<Result<_>>()?;
        self.make_room()
    }

    /// Lets DuckDB have the memory that as many columns need.
    fn make_room(&self) -> Result<()> {
        let columns = self.tables.iter().map(Table::columns).sum();
        self.session.database.make_room(&self.session.config.name, columns)
    }

    fn begin_transaction(&mut self) -> Result<()> {
        if !self.in_transaction {
            self.session.begin()?;
            self.in_transaction = true;
        }
        Ok(())
    }

    fn write_batch(&mut self, batch: &OutputBatch) -> Result<WriteReport> {
        let mut report = WriteReport::default();
        for (index, output) in batch.outputs.iter().enumerate() {
            match output {
                Output::Event(judged) => self.write_event(index, judged, &mut report)?,
                Output::Patch(patch) => self.write_patch(patch)?,
            }
        }
        self.relieve()?;
        Ok(report)
    }

    /// Hands waiting rows to DuckDB, the largest tables' first, until little enough waits. Each table has a bound of its own;
    /// there may be thousands of tables.
    fn relieve(&mut self) -> Result<()> {
        let mut waiting: usize = self.tables.iter().map(Table::pending_bytes).sum();
        while waiting > PENDING_BYTES_MAX {
            let largest = self.tables.iter_mut().max_by_key(|table| table.pending_bytes());
            let Some(largest) = largest.filter(|table| table.pending_bytes() > 0) else { break };
            let bytes = largest.pending_bytes();
            largest.flush(&self.session)?;
            waiting -= bytes;
        }
        Ok(())
    }

    fn write_patch(&mut self, patch: &Patch) -> Result<()> {
        if !matches!(self.session.config.layout, Layout::Replica { .. }) {
            return Ok(());
        }
        self.begin_transaction()?;
        let (table, binding) = self.route(&patch.schema, patch.order)?;
        if let Err(trouble) = self.tables[table].patch(binding, patch) {
            let text = self.tables[table].cause(binding, trouble).text;
            self.notices.push(SinkNotice { code: "late_value_refused", text, count: 1 });
        }
        Ok(())
    }

    fn write_event(&mut self, index: usize, judged: &Judged, report: &mut WriteReport) -> Result<()> {
        match self.session.config.layout {
            Layout::Append | Layout::Changelog | Layout::Rows if !judged.distinct => report.duplicates += 1,
            // A sweep: plain rows have no current state.
            Layout::Rows if judged.event.op == Op::Truncate => report.filtered += 1,
            Layout::Replica { .. } if judged.event.key.is_none() && judged.event.op != Op::Truncate => {
                report.filtered += 1;
            }
            Layout::Replica { .. } if !judged.newest && judged.distinct => report.superseded += 1,
            Layout::Replica { .. } if !judged.newest => report.duplicates += 1,
            _ => {
                self.begin_transaction()?;
                match self.place(judged)? {
                    Ok(Taken::Written) => report.written += 1,
                    Ok(Taken::Superseded) => report.superseded += 1,
                    Err(cause) => report.rejected.push(Rejection { output: index, cause }),
                }
            }
        }
        Ok(())
    }

    /// Puts an event into its table, evolving that if need be.
    fn place(&mut self, judged: &Judged) -> Result<Result<Taken, Cause>> {
        // Each round makes room for one column or object, so that there can't be many more rounds than columns.
        for _ in 0..2 * judged.event.schema.columns.len() + 4 {
            let (table, binding) = self.route(&judged.event.schema, judged.event.order)?;
            let pushed = self.tables[table].push(&self.session, binding, judged, &mut self.notices)?;
            let trouble = match pushed {
                Ok(taken) => return Ok(Ok(taken)),
                Err(Trouble::Mended) => continue,
                Err(trouble) => trouble,
            };
            if let Some(cause) = self.mend(table, binding, judged, trouble)? {
                return Ok(Err(cause));
            }
        }
        Err(Error::fatal(format!(
            "invariant: table {} has a column for every value",
            judged.event.schema.table
        )))
    }

    /// Makes room for a value that has no place, or says why the row is refused.
    fn mend(
        &mut self,
        table: usize,
        binding: usize,
        judged: &Judged,
        trouble: Trouble,
    ) -> Result<Option<Cause>> {
        let rules = self.session.rules();
        let target = &mut self.tables[table];
        let cause = target.cause(binding, trouble);
        let change = match trouble {
            Trouble::Refused { .. } | Trouble::Mended => return Ok(Some(cause)),
            Trouble::Untyped { source } => target.learn(binding, source, judged, rules),
            Trouble::Misfit { column, .. } => match rules.policy {
                _ if !target.may_spill(binding, column, judged) => return Ok(Some(cause)),
                ChangePolicy::NewColumn => Some(target.spill(column)),
                ChangePolicy::DeadLetter => return Ok(Some(cause)),
                ChangePolicy::Stop => {
                    return Err(Error::fatal(format!(
                        "{}; the config says `stop`: set `on_type_change: new-column` or `dead-letter`, or mend the table",
                        cause.text
                    )));
                }
            },
        };
        let Some(change) = change else { return Ok(Some(cause)) };
        self.evolve(table, &[change])?;
        Ok(None)
    }

    fn evolve(&mut self, table: usize, changes: &[millstream_layout::shape::Change]) -> Result<()> {
        self.routes.retain(|_, route| route.table != table);
        self.tables[table].evolve(&self.session, changes, &mut self.notices)?;
        self.make_room()
    }

    /// The table and binding for rows of `schema`, made if they are missing. `order` is one row's.
    fn route(&mut self, schema: &Arc<RowSchema>, order: Order) -> Result<(usize, usize)> {
        let address = Arc::as_ptr(schema) as usize;
        if let Some(route) = self.routes.get(&address) {
            return Ok((route.table, route.binding));
        }
        if self.routes.len() >= ROUTES_MAX {
            self.routes.clear();
            self.tables.iter_mut().for_each(Table::forget_bindings);
        }
        let table = match self.tables.iter().position(|t| t.is_of(&schema.table)) {
            Some(table) => table,
            None => {
                self.tables.push(Table::create(&self.session, schema, order, &mut self.notices)?);
                self.make_room()?;
                self.tables.len() - 1
            }
        };
        let (binding, changes) = self.tables[table].bind(&self.session, schema, order, &mut self.notices)?;
        if !changes.is_empty() {
            self.evolve(table, &changes)?;
            return self.route(schema, order);
        }
        if binding == 0 {
            // The table began its bindings anew (its key changed, or this is the first): routes to others are void.
            self.routes.retain(|_, route| route.table != table);
        }
        self.routes.insert(address, Route { _schema: schema.clone(), table, binding });
        Ok((table, binding))
    }

    fn prepare_epoch(&mut self) -> Result<Option<CommitToken>> {
        if !self.in_transaction {
            return Ok(None);
        }
        for i in 0..self.tables.len() {
            self.tables[i].flush(&self.session)?;
        }
        self.session.catalog.set_mark(&*self.session.connection()?, Some(self.session.mark))?;
        self.session
            .connection()?
            .execute_batch("COMMIT")
            .explain(|| format!("committing epoch {}", self.session.mark.epoch))?;
        self.in_transaction = false;
        self.prepared = Some(self.session.mark);
        Ok(Some(token::encode(self.session.mark)))
    }

    fn check_commit(&mut self, token: &CommitToken) -> Result<()> {
        let wanted = token::decode(token)?;
        if self.prepared.is_some_and(|mark| mark.epoch >= wanted.epoch) {
            return Ok(());
        }
        match self.session.catalog.mark(&*self.session.connection()?)? {
            Some(mark) if mark.epoch >= wanted.epoch => Ok(()),
            other => Err(recovery::lost(&self.session.config, wanted, other)),
        }
    }

    fn recover_to(&mut self, last: Option<&CommitToken>) -> Result<()> {
        // Rows that were being inserted are rolled back with the rest, however their insertion ended.
        let _ = self.session.connection();
        if self.in_transaction {
            self.session
                .connection()?
                .execute_batch("ROLLBACK")
                .explain(|| "rolling back an epoch".to_owned())?;
            self.in_transaction = false;
        }
        let last = last.map(token::decode).transpose()?;
        self.session.catalog.check(&*self.session.connection()?)?;
        // What the rolled-back epoch changed of the tables is read again.
        self.load_tables()?;
        self.notices.extend(recovery::recover(
            &self.session.config,
            &self.session.catalog,
            &*self.session.connection()?,
            last,
        )?);
        let Session { config, catalog, .. } = &self.session;
        self.notices.extend(recovery::drop_marked(config, catalog, &*self.session.connection()?)?);
        self.load_tables()
    }
}

impl Sink for DuckSink {
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.recover_to(last).map_err(|e| e.at(format!("sink {}", self.session.config.name)))
        })
    }

    fn begin(&mut self, epoch: Epoch, ingested_at_us: i64) -> Fut<'_, Result<()>> {
        self.session.mark = Mark { epoch: epoch.0, ingested_at_us };
        Box::pin(std::future::ready(Ok(())))
    }

    fn write<'a>(&'a mut self, batch: &'a OutputBatch) -> Fut<'a, Result<WriteReport>> {
        Box::pin(async move {
            self.write_batch(batch).map_err(|e| e.at(format!("sink {}", self.session.config.name)))
        })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async move {
            self.prepare_epoch().map_err(|e| e.at(format!("sink {}", self.session.config.name)))
        })
    }

    fn commit<'a>(&'a mut self, token: &'a CommitToken) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.check_commit(token).map_err(|e| e.at(format!("sink {}", self.session.config.name)))
        })
    }

    fn notices(&mut self) -> Vec<SinkNotice> {
        std::mem::take(&mut self.notices)
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use millstream_core::{
        Column, Event, EventId, Facts, Incarnation, Key, PartitionId, Position, RecordBatch, RowBuilder,
        TableName, Type, Value,
    };

    use super::*;

    fn now<T>(mut work: Fut<'_, Result<T>>) -> T {
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => done.unwrap(),
            Poll::Pending => panic!("the sink's futures block instead of waiting"),
        }
    }

    /// An event with `columns` integer columns, the first one its key.
    fn event(n: u64, columns: usize) -> OutputBatch {
        let column =
            |i| Column { name: format!("c{i}").into(), ty: Type::Int64, nullable: true, guessed: false };
        let table = Arc::new(TableName::new("shop", "public", "t"));
        let schema = RowSchema { table, columns: (0..columns).map(column).collect(), key: vec![0] };
        let mut row = RowBuilder::new();
        (0..columns).for_each(|_| row.push(Value::Int(1)));
        let event = Event {
            schema: Arc::new(schema),
            op: Op::Update,
            key: Some(Key::from_values([Value::Int(1)])),
            old_key: None,
            new_key: None,
            order: Order::postgres(Incarnation(0), n, n),
            p_known: true,
            id: EventId::postgres(Incarnation(0), n, false),
            row: row.finish(),
            before: None,
            full_before: false,
            facts: Facts::default(),
            origin: Default::default(),
            record: 0,
        };
        let judged =
            Judged { event: Box::new(event), distinct: true, newest: true, late: false, filled: None };
        let records = RecordBatch {
            partition: PartitionId::new("p"),
            buffer: Vec::new(),
            slots: Vec::new(),
            position: Position::default(),
        };
        OutputBatch { outputs: vec![Output::Event(judged)], records: Arc::new(records) }
    }

    /// A changelog altered its two structs once for each new column of an event, and each of these rewrites the whole table.
    #[test]
    fn a_changelog_is_altered_once_however_many_columns_are_new() {
        let folder = tempfile::tempdir().unwrap();
        let config = DuckConfig::new("duckdb", folder.path().join("w.duckdb"), Layout::Changelog);
        let mut sink = DuckSink::open(config).unwrap();
        now(sink.recover(None));
        now(sink.begin(Epoch(1), 1_000_000));
        now(sink.write(&event(1, 2)));
        let log = sink.database().connect().unwrap();
        log.execute_batch("CALL enable_logging('QueryLog')").unwrap();
        now(sink.write(&event(2, 9)));
        now(sink.prepare());
        let altered =
            "SELECT message FROM duckdb_logs WHERE type = 'QueryLog' AND message LIKE 'ALTER TABLE%'";
        let altered: Vec<String> = log
            .prepare(altered)
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(altered.len(), 2, "before and after, once each: {altered:?}");
        assert!(altered.iter().all(|sql| sql.contains("\"c8\" BIGINT")), "{altered:?}");
        let columns = "SELECT count(*) FROM _schema_changes WHERE change = 'add' AND \"column\" LIKE 'c_'";
        assert_eq!(
            log.query_row(columns, [], |row| row.get::<_, i64>(0)).unwrap(),
            7,
            "each is written down"
        );
    }
}
