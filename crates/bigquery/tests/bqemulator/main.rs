//! The REST API and appending against bqemulator, which others have written after the same documentation.
//!
//! It differs from BigQuery in what concerns these tests: NUMERICs as bytes, packed DATETIMEs and TIMEs, and STRUCTs are not
//! understood, names in a descriptor's annotations are not read, and `FlushRows(n)` shows n rows instead of n + 1.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a test that is left out says why")]

mod server;

use std::sync::Arc;
use std::time::Duration;

use millstream_bigquery::{
    AppendOptions, Appender, Batch, ColumnType, Connection, Dataset, DatasetId, Descriptor, Field, JobId,
    Mode, PartitionUnit, Partitioning, Query, Rest, ResultValue, RowWriter, Rows, Storage, StreamKind, Table,
    TableId, TablePatch, WriteErrorKind,
};
use server::Server;

const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    rest: Rest,
    storage: Storage,
    dataset: DatasetId,
    _server: Server,
}

impl World {
    /// `None` where there is no server to be had.
    async fn new() -> Option<Self> {
        let server = tokio::task::spawn_blocking(Server::start).await.unwrap()?;
        let rest = Rest::new(&server.connection).unwrap().with_patience(Duration::from_secs(3));
        let storage = Storage::new(&server.connection, 1).unwrap();
        let dataset = DatasetId::new("acme", "cdc");
        assert!(rest.create_dataset(&Dataset::new(dataset.clone())).await.unwrap());
        Some(Self { rest, storage, dataset, _server: server })
    }

    async fn table(&self, name: &str, fields: &[Field]) -> TableId {
        let id = self.dataset.table(name);
        let table = Table { fields: fields.to_vec(), ..Table::default() };
        assert!(self.rest.create_table(&id, &table).await.unwrap());
        id
    }

    async fn query(&self, sql: &str) -> Vec<Vec<ResultValue>> {
        let id = JobId::random("acme", None);
        let job = self.rest.run_query(&id, &Query::new(sql), "the query", PATIENCE).await.unwrap();
        let (mut rows, mut next) = (Vec::new(), None);
        loop {
            let page = self.rest.results(&job.id, next.as_deref(), 100).await.unwrap();
            rows.extend(page.rows);
            next = page.next;
            if next.is_none() {
                return rows;
            }
        }
    }

    /// The ids of a table's visible rows.
    async fn ids(&self, table: &TableId) -> Vec<i64> {
        let rows = self.query(&format!("SELECT id FROM {} ORDER BY id", table.sql())).await;
        rows.iter().map(|row| row[0].as_text().unwrap().parse().unwrap()).collect()
    }
}

fn id_field() -> [Field; 1] {
    [Field::new("id", ColumnType::Int64)]
}

fn ids(range: std::ops::Range<i64>) -> Rows {
    let mut writer = RowWriter::new();
    for id in range {
        let mut row = writer.begin();
        row.put_int(1, id);
        row.finish();
    }
    writer.take()
}

fn batch(stream: &Arc<str>, range: std::ops::Range<i64>) -> Batch {
    Batch { stream: stream.clone(), descriptor: Descriptor::new(&id_field()).unwrap(), rows: ids(range) }
}

#[tokio::test(flavor = "multi_thread")]
async fn datasets_and_tables_are_made_once_and_changed() {
    let Some(world) = World::new().await else { return };
    let World { rest, dataset, .. } = &world;
    assert!(!rest.create_dataset(&Dataset::new(dataset.clone())).await.unwrap(), "there is one");
    assert!(rest.dataset(dataset).await.unwrap().is_some());
    assert_eq!(rest.dataset(&DatasetId::new("acme", "none")).await.unwrap(), None);

    let id = dataset.table("orders");
    assert_eq!(rest.table(&id).await.unwrap(), None);
    let at = Field::new("at", ColumnType::Timestamp).with_description("when");
    let wanted = Table {
        fields: vec![Field::new("id", ColumnType::Int64), at],
        partitioning: Some(Partitioning {
            unit: PartitionUnit::Day,
            column: Some("at".to_owned()),
            expiration: Some(Duration::from_secs(86_400)),
        }),
        clustering: vec!["id".to_owned()],
        labels: [("made_by".to_owned(), "millstream".to_owned())].into(),
        description: Some("orders".to_owned()),
        ..Table::default()
    };
    assert!(rest.create_table(&id, &wanted).await.unwrap());
    assert!(!rest.create_table(&id, &wanted).await.unwrap(), "there is one");
    let mut found = rest.table(&id).await.unwrap().unwrap();
    assert_eq!(found.fields, wanted.fields);
    assert_eq!(found.labels, wanted.labels);
    found.fields.push(Field::new("tags", ColumnType::String).with_mode(Mode::Repeated));
    let patch = TablePatch { fields: Some(found.fields.clone()), ..TablePatch::default() };
    assert_eq!(rest.patch_table(&id, &patch).await.unwrap().fields, found.fields);
    assert_eq!(rest.table(&id).await.unwrap().unwrap().fields, found.fields);

    let view = Table { view: Some(format!("SELECT id FROM {}", id.sql())), ..Table::default() };
    assert!(rest.create_table(&dataset.table("orders_latest"), &view).await.unwrap());

    let nowhere = DatasetId::new("acme", "none").table("t");
    let error = rest.create_table(&nowhere, &wanted).await.unwrap_err().to_string();
    assert!(error.contains("acme.none.t"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_found_by_its_id() {
    let Some(world) = World::new().await else { return };
    let id = JobId::new("acme", None, "millstream-once");
    let query = Query::new("SELECT 1");
    let first = world.rest.run_query(&id, &query, "the query", PATIENCE).await.unwrap();
    let again = world.rest.start_query(&id, &query).await.unwrap();
    assert_eq!((first.is_done, &first.id.id), (true, &again.id.id));
    assert_eq!(world.rest.job(&JobId::new("acme", None, "none")).await.unwrap(), None);
    let wrong = Query::new("SELECT FROM WHERE");
    let failed = world.rest.run_query(&JobId::random("acme", None), &wrong, "the query", PATIENCE).await;
    assert!(failed.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_back_by_queries() {
    let Some(world) = World::new().await else { return };
    let fields = [
        Field::new("id", ColumnType::Int64),
        Field::new("b", ColumnType::Bool),
        Field::new("f", ColumnType::Float64),
        Field::new("t", ColumnType::String),
        Field::new("y", ColumnType::Bytes),
        Field::new("d", ColumnType::Date),
        Field::new("ts", ColumnType::Timestamp),
        Field::new("l", ColumnType::Int64).with_mode(Mode::Repeated),
    ];
    let table = world.table("values_of_all_types", &fields).await;
    let mut writer = RowWriter::new();
    let mut row = writer.begin();
    row.put_int(1, i64::MIN);
    row.put_bool(2, true);
    row.put_float(3, 0.1);
    row.put_text(4, "grüße");
    row.put_bytes(5, &[0, 255]);
    row.put_date(6, 19_782).unwrap();
    row.put_timestamp(7, 1_709_164_800_000_001).unwrap();
    row.put_int(8, 1);
    row.put_int(8, -1);
    row.finish();
    let mut row = writer.begin();
    row.put_int(1, 1);
    row.finish();
    let stream: Arc<str> = table.default_stream().into();
    let appender = Appender::to_default_streams(world.storage.clone(), AppendOptions::default());
    let descriptor = Descriptor::new(&fields).unwrap();
    let handle = appender.append(Batch { stream, descriptor, rows: writer.take() }).await.unwrap();
    let acked = handle.await.unwrap();
    assert_eq!((acked.last_offset, acked.row_errors), (None, Vec::new()));

    let sql = format!(
        "SELECT CAST(id AS STRING), CAST(b AS STRING), CAST(f AS STRING), t, TO_HEX(y), CAST(d AS STRING), \
         CAST(UNIX_MICROS(ts) AS STRING), ARRAY_LENGTH(l) FROM {} ORDER BY id",
        table.sql()
    );
    let rows = world.query(&sql).await;
    let shown: Vec<Vec<_>> =
        rows.iter().map(|row| row.iter().map(|v| v.as_text().unwrap_or("NULL")).collect()).collect();
    let first =
        ["-9223372036854775808", "true", "0.1", "grüße", "00ff", "2024-02-29", "1709164800000001", "2"];
    assert_eq!(shown[0], first);
    assert_eq!(shown[1][..7], ["1", "NULL", "NULL", "NULL", "NULL", "NULL", "NULL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_rows_are_there_once() {
    let Some(world) = World::new().await else { return };
    let table = world.table("committed", &id_field()).await;
    let made = world.storage.create_stream(&table, StreamKind::Committed).await.unwrap();
    let stream: Arc<str> = made.name.as_str().into();
    assert_eq!(world.storage.stream(&made.name).await.unwrap().unwrap().kind, Some(StreamKind::Committed));
    assert_eq!(
        world.storage.stream(&format!("{}/streams/0123456789abcdef", table.path())).await.unwrap(),
        None
    );

    let options = AppendOptions { request_bytes_max: 64, ..AppendOptions::default() };
    let appender = Appender::to_stream(world.storage.clone(), stream.clone(), 0, options.clone());
    for start in [0, 100] {
        drop(appender.append(batch(&stream, start..start + 100)).await.unwrap());
    }
    assert_eq!(appender.flush().await.unwrap().last_offset, Some(199));
    assert_eq!(world.ids(&table).await, (0..200).collect::<Vec<_>>());

    // Somebody who takes the stream for empty.
    let other = Appender::to_stream(world.storage.clone(), stream.clone(), 0, options.clone());
    let error = other.append(batch(&stream, 500..501)).await.unwrap().await.unwrap_err();
    assert_eq!(error.kind(), WriteErrorKind::AlreadyExists);
    assert_eq!(other.append(batch(&stream, 500..501)).await.unwrap().await, Err(error));
    // Going on where it ends.
    let next = Appender::to_stream(world.storage.clone(), stream.clone(), 200, options.clone());
    assert_eq!(next.append(batch(&stream, 200..210)).await.unwrap().await.unwrap().last_offset, Some(209));
    assert_eq!(world.storage.finalize(&stream).await.unwrap(), 210);
    let late = next.append(batch(&stream, 210..211)).await.unwrap().await.unwrap_err();
    assert_eq!(late.kind(), WriteErrorKind::StreamFinalized, "{late}");
    assert_eq!(world.ids(&table).await.len(), 210);
}

#[tokio::test(flavor = "multi_thread")]
async fn buffered_rows_wait_for_a_flush() {
    let Some(world) = World::new().await else { return };
    let table = world.table("buffered", &id_field()).await;
    let made = world.storage.create_stream(&table, StreamKind::Buffered).await.unwrap();
    let stream: Arc<str> = made.name.as_str().into();
    let appender = Appender::to_stream(world.storage.clone(), stream.clone(), 0, AppendOptions::default());
    let acked = appender.append(batch(&stream, 0..10)).await.unwrap().await.unwrap();
    assert_eq!(acked.last_offset, Some(9));
    assert!(world.ids(&table).await.is_empty());
    world.storage.flush_rows(&stream, 9).await.unwrap();
    let visible = world.ids(&table).await;
    assert!(visible.len() >= 9, "its count is off by one: {visible:?}");
    let beyond = world.storage.flush_rows(&stream, 5000).await.unwrap_err();
    assert_eq!(beyond.kind(), WriteErrorKind::OutOfRange);
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_streams_appear_together() {
    let Some(world) = World::new().await else { return };
    let table = world.table("pending", &id_field()).await;
    let mut streams = Vec::new();
    for start in [0, 5] {
        let made = world.storage.create_stream(&table, StreamKind::Pending).await.unwrap();
        let stream: Arc<str> = made.name.as_str().into();
        let appender =
            Appender::to_stream(world.storage.clone(), stream.clone(), 0, AppendOptions::default());
        drop(appender.append(batch(&stream, start..start + 5)).await.unwrap());
        appender.flush().await.unwrap();
        streams.push(made.name);
    }
    let early = world.storage.commit(&table, &streams).await.unwrap_err();
    assert_eq!(early.kind(), WriteErrorKind::Precondition, "{early}");
    for stream in &streams {
        assert_eq!(world.storage.finalize(stream).await.unwrap(), 5);
    }
    assert!(world.ids(&table).await.is_empty());
    world.storage.commit(&table, &streams).await.unwrap();
    assert_eq!(world.ids(&table).await, (0..10).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_share_a_connection_and_fail_alone() {
    let Some(world) = World::new().await else { return };
    let (one, two) = (world.table("one", &id_field()).await, world.table("two", &id_field()).await);
    let appender = Appender::to_default_streams(world.storage.clone(), AppendOptions::default());
    let streams = [&one, &two].map(|table| Arc::<str>::from(table.default_stream()));
    let missing: Arc<str> = world.dataset.table("missing").default_stream().into();
    let mut handles = Vec::new();
    for i in 0..10 {
        handles.push(appender.append(batch(&streams[i as usize % 2], i..i + 1)).await.unwrap());
    }
    let lost = appender.append(batch(&missing, 0..1)).await.unwrap();
    for i in 10..20 {
        handles.push(appender.append(batch(&streams[i as usize % 2], i..i + 1)).await.unwrap());
    }
    assert_eq!(lost.await.unwrap_err().kind(), WriteErrorKind::NotFound);
    for handle in handles {
        handle.await.unwrap();
    }
    assert!(appender.flush().await.is_err(), "a flush tells of every failure");
    assert_eq!(appender.flush().await.unwrap().row_errors, []);
    // At least once: what was on its way when the connection ended may be there twice.
    let mut ids = world.ids(&one).await;
    ids.dedup();
    assert_eq!(ids, (0..20).step_by(2).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_passing_failure() {
    let connection = Connection { rest: Some("127.0.0.1:1".to_owned()), ..Connection::default() };
    let rest = Rest::new(&connection).unwrap().with_patience(Duration::from_millis(300));
    let error = rest.dataset(&DatasetId::new("acme", "cdc")).await.unwrap_err();
    assert_eq!(error.kind(), millstream_core::Kind::Transient);
    assert!(error.to_string().contains("acme.cdc"), "{error}");
}
