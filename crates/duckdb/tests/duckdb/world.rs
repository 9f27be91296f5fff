//! What the tests share: schemas, events, and a sink that is driven by hand.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use millstream_core::sink::{SinkNotice, WriteReport};
use millstream_core::{
    Column, CommitToken, Epoch, Event, EventId, Facts, Incarnation, Judged, Key, Op, Order, Output,
    OutputBatch, PartitionId, Position, RecordBatch, Result, Row, RowBuilder, RowSchema, Sink, TableName,
    Type, Value,
};
use millstream_duckdb::{Answer, DuckConfig, DuckSink, Layout, query};
use tempfile::TempDir;

/// Polls a future that never waits.
pub(crate) fn now<T>(mut future: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the sink's futures block instead of waiting"),
    }
}

/// A schema of columns whose types are known; the first `keys` columns are the key.
pub(crate) fn schema(table: &str, keys: usize, columns: &[(&str, Type)]) -> Arc<RowSchema> {
    schema_with(TableName::new("shop", "public", table), keys, columns, false)
}

pub(crate) fn schema_with(
    table: TableName,
    keys: usize,
    columns: &[(&str, Type)],
    guessed: bool,
) -> Arc<RowSchema> {
    let column =
        |(name, ty): &(&str, Type)| Column { name: (*name).into(), ty: ty.clone(), nullable: true, guessed };
    Arc::new(RowSchema {
        table: Arc::new(table),
        columns: columns.iter().map(column).collect(),
        key: (0..keys).collect(),
    })
}

pub(crate) fn row(values: &[Value<'_>]) -> Row {
    let mut builder = RowBuilder::new();
    values.iter().for_each(|&v| builder.push(v));
    builder.finish()
}

pub(crate) fn order(n: u64) -> Order {
    Order::postgres(Incarnation(0), n, n)
}

/// An event that is distinct and newest.
pub(crate) fn event(schema: &Arc<RowSchema>, op: Op, n: u64, values: &[Value<'_>]) -> Judged {
    let row = row(values);
    let has_key = op != Op::Truncate && !schema.key.is_empty();
    let key = has_key.then(|| Key::from_values(schema.key.iter().map(|&i| row.get(i))));
    let facts = Facts {
        ts_ms: Some(1_700_000_000_000 + n as i64),
        lsn: Some(n as i64),
        transaction_id: Some(n.to_string().into()),
        ..Facts::default()
    };
    let event = Event {
        schema: schema.clone(),
        op,
        key,
        old_key: None,
        new_key: None,
        order: order(n),
        id: EventId::postgres(Incarnation(0), n, op == Op::Read),
        row,
        before: None,
        full_before: false,
        p_known: true,
        facts,
        origin: Default::default(),
        record: 0,
    };
    Judged { event: Box::new(event), distinct: true, newest: true, late: false, filled: None }
}

pub(crate) fn batch(outputs: Vec<Output>) -> OutputBatch {
    OutputBatch { outputs, records: no_records() }
}

fn no_records() -> Arc<RecordBatch> {
    let partition = PartitionId::new("test");
    Arc::new(RecordBatch { partition, buffer: Vec::new(), slots: Vec::new(), position: Position::default() })
}

/// A sink over a file in a folder of its own.
pub(crate) struct World {
    pub(crate) folder: TempDir,
    pub(crate) config: DuckConfig,
    pub(crate) sink: DuckSink,
    pub(crate) epoch: u64,
}

impl World {
    pub(crate) fn new(layout: Layout) -> Self {
        Self::with(layout, |_| ())
    }

    pub(crate) fn with(layout: Layout, set: impl FnOnce(&mut DuckConfig)) -> Self {
        let folder = TempDir::new().unwrap();
        let mut config = DuckConfig::new("duckdb", folder.path().join("w.duckdb"), layout);
        set(&mut config);
        let mut sink = DuckSink::open(config.clone()).unwrap();
        now(sink.recover(None)).unwrap();
        Self { folder, config, sink, epoch: 0 }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.config.path.clone()
    }

    /// Begins the next epoch.
    pub(crate) fn begin(&mut self) {
        self.epoch += 1;
        now(self.sink.begin(Epoch(self.epoch), self.epoch as i64 * 1_000_000)).unwrap();
    }

    pub(crate) fn write(&mut self, events: Vec<Judged>) -> WriteReport {
        self.write_outputs(events.into_iter().map(Output::Event).collect())
    }

    pub(crate) fn write_outputs(&mut self, outputs: Vec<Output>) -> WriteReport {
        now(self.sink.write(&batch(outputs))).unwrap()
    }

    pub(crate) fn prepare(&mut self) -> Option<CommitToken> {
        now(self.sink.prepare()).unwrap()
    }

    /// A whole epoch.
    pub(crate) fn epoch(&mut self, events: Vec<Judged>) -> CommitToken {
        self.begin();
        self.write(events);
        let token = self.prepare().unwrap();
        now(self.sink.commit(&token)).unwrap();
        token
    }

    /// Drops the sink as a crash would, opens the file again and recovers to `last`.
    pub(crate) fn crash(self, last: Option<&CommitToken>) -> Result<Self> {
        let Self { folder, config, sink, epoch } = self;
        drop(sink);
        let mut sink = DuckSink::open(config.clone())?;
        now(sink.recover(last))?;
        Ok(Self { folder, config, sink, epoch })
    }

    /// Goes on with a copy of the file and its log as they are on disk, as after a power cut: nothing is closed, rolled
    /// back or checkpointed first.
    pub(crate) fn power_cut(self, last: Option<&CommitToken>) -> Result<Self> {
        let folder = TempDir::new().unwrap();
        let mut config = self.config.clone();
        config.path = folder.path().join("w.duckdb");
        std::fs::copy(self.path(), &config.path).unwrap();
        let log = self.folder.path().join("w.duckdb.wal");
        if log.exists() {
            std::fs::copy(log, folder.path().join("w.duckdb.wal")).unwrap();
        }
        let mut sink = DuckSink::open(config.clone())?;
        now(sink.recover(last))?;
        Ok(Self { folder, config, sink, epoch: self.epoch })
    }

    pub(crate) fn notices(&mut self) -> Vec<SinkNotice> {
        self.sink.notices()
    }

    pub(crate) fn query(&self, sql: &str) -> Answer {
        query(&self.path(), sql, true).unwrap()
    }

    /// The rows of a query, values joined by `|`.
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        let text = |v: &Option<String>| v.clone().unwrap_or_else(|| "NULL".to_owned());
        self.query(sql).rows.iter().map(|row| row.iter().map(text).collect::<Vec<_>>().join("|")).collect()
    }
}
