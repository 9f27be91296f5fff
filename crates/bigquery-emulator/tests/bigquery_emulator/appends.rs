//! Streams: what becomes visible when, and offsets.

use std::time::Duration;

use millstream_bigquery_emulator::Server;
use prost_types::field_descriptor_proto::Type;
use serde_json::json;
use tonic::Code;

use crate::world::*;

const NEW: storage_error::StorageErrorCode = storage_error::StorageErrorCode::SchemaMismatchExtraFields;

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_the_default_stream_are_there_at_once() {
    let mut world = World::new().await;
    let mut connection = world.connect().await;
    let response = connection.send(request(DEFAULT, None, &[row(1), row(2)])).await.unwrap();
    assert_eq!(answer(&response), Ok(None));
    assert_eq!(response.write_stream, DEFAULT);
    let response = connection.send(request_of("", None, None, &[row(3)])).await.unwrap();
    assert_eq!(answer(&response), Ok(None));
    assert_eq!(world.ids().await, ["1", "2", "3"]);
    let refused = answer(&connection.send(request(DEFAULT, Some(3), &[row(4)])).await.unwrap());
    assert_eq!(refused.unwrap_err().0, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_make_a_committed_stream_exact() {
    let mut world = World::new().await;
    let stream = world.create(Kind::Committed).await;
    let mut connection = world.connect().await;
    for (offset, rows) in [(0, vec![row(0), row(1)]), (2, vec![row(2)])] {
        let response = connection.send(request(&stream, Some(offset), &rows)).await.unwrap();
        assert_eq!(answer(&response), Ok(Some(offset)));
    }
    let twice = connection.send(request(&stream, Some(0), &[row(0), row(1)])).await.unwrap();
    assert_eq!(answer(&twice).unwrap_err().0, Code::AlreadyExists);
    assert_eq!(storage_code(&twice), Some(storage_error::StorageErrorCode::OffsetAlreadyExists as i32));
    let gap = connection.send(request(&stream, Some(5), &[row(5)])).await.unwrap();
    let (code, text) = answer(&gap).unwrap_err();
    assert_eq!(code, Code::OutOfRange);
    assert!(text.contains("expected offset 3, received 5"), "{text}");
    let appended = connection.send(request(&stream, None, &[row(3)])).await.unwrap();
    assert_eq!(answer(&appended), Ok(Some(3)));
    assert_eq!(world.ids().await, ["0", "1", "2", "3"]);
    assert_eq!(world.finalize(&stream).await.unwrap(), 4);
    assert_eq!(world.finalize(&stream).await.unwrap(), 4);
    let late = connection.send(request(&stream, None, &[row(9)])).await.unwrap();
    assert_eq!(storage_code(&late), Some(storage_error::StorageErrorCode::StreamFinalized as i32));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffered_stream_shows_what_is_flushed() {
    let mut world = World::new().await;
    let stream = world.create(Kind::Buffered).await;
    let mut connection = world.connect().await;
    connection.send(request(&stream, Some(0), &[row(0), row(1), row(2)])).await.unwrap();
    connection.send(request(&stream, Some(3), &[row(3), row(4)])).await.unwrap();
    assert!(world.ids().await.is_empty());
    assert_eq!(world.flush(&stream, 1).await.unwrap(), 1);
    assert_eq!(world.ids().await, ["0", "1"]);
    assert_eq!(world.flush(&stream, 0).await.unwrap(), 0);
    assert_eq!(world.flush(&stream, 3).await.unwrap(), 3);
    assert_eq!(world.flush(&stream, 3).await.unwrap(), 3);
    assert_eq!(world.ids().await, ["0", "1", "2", "3"]);
    assert_eq!(world.flush(&stream, 5).await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(world.flush(DEFAULT, 0).await.unwrap_err().code(), Code::InvalidArgument);
    let committed = world.create(Kind::Committed).await;
    assert_eq!(world.flush(&committed, 0).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_streams_are_committed_all_or_none() {
    let mut world = World::new().await;
    let (a, b) = (world.create(Kind::Pending).await, world.create(Kind::Pending).await);
    for (stream, id) in [(&a, 1), (&b, 2)] {
        let mut connection = world.connect().await;
        connection.send(request(stream, Some(0), &[row(id)])).await.unwrap();
    }
    world.finalize(&a).await.unwrap();
    let refused = world.commit(&[&a, &b]).await;
    assert!(refused.commit_time.is_none());
    assert_eq!(refused.stream_errors[0].code, storage_error::StorageErrorCode::InvalidStreamState as i32);
    assert!(world.ids().await.is_empty());
    world.finalize(&b).await.unwrap();
    assert!(world.commit(&[&a, &b]).await.commit_time.is_some());
    assert_eq!(world.ids().await, ["1", "2"]);
    let again = world.commit(&[&a, &b]).await;
    let already = storage_error::StorageErrorCode::StreamAlreadyCommitted as i32;
    assert!(again.commit_time.is_none() && again.stream_errors.iter().all(|e| e.code == already));
    assert_eq!(world.ids().await, ["1", "2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_are_named_and_nothing_is_written() {
    let mut world = World::new().await;
    let mut connection = world.connect().await;
    let bad = Row { name: Some("no id".to_owned()), ..Row::default() };
    let response = connection.send(request(DEFAULT, None, &[row(1), bad])).await.unwrap();
    assert_eq!(answer(&response).unwrap_err().0, Code::InvalidArgument);
    let error = &response.row_errors[0];
    assert_eq!((error.index, error.code), (1, row_error::RowErrorCode::FieldsError as i32));
    assert!(error.message.contains("Field id"), "{}", error.message);
    assert!(world.ids().await.is_empty());
    // The connection goes on.
    connection.send(request(DEFAULT, None, &[row(1)])).await.unwrap();
    assert_eq!(world.ids().await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_columns_are_known_after_a_while() {
    let builder = Server::builder().schema_delay(Duration::from_secs(60));
    let mut world = World::empty(builder).await;
    world.sql("CREATE TABLE d.t (id INT64 NOT NULL, name STRING)").await;
    let mut connection = world.connect().await;
    connection.send(request(DEFAULT, None, &[row(1)])).await.unwrap();
    world.sql("ALTER TABLE d.t ADD COLUMN change STRING").await;
    let wider = descriptor(vec![
        field("id", 1, Type::Int64),
        field("name", 2, Type::String),
        field("change", 3, Type::String),
    ]);
    let changed = Row { change: Some("x".to_owned()), ..row(2) };
    let refused = connection
        .send(request_of(DEFAULT, None, Some(wider.clone()), std::slice::from_ref(&changed)))
        .await
        .unwrap();
    assert_eq!(storage_code(&refused), Some(NEW as i32));
    let old = connection.send(request(DEFAULT, None, &[row(3)])).await.unwrap();
    assert!(answer(&old).is_ok() && old.updated_schema.is_none());
    world.server.advance(Duration::from_secs(61)).await.unwrap();
    let told = connection.send(request_of("", None, None, &[row(4)])).await.unwrap();
    assert_eq!(told.updated_schema.unwrap().fields.len(), 3);
    let once = connection.send(request_of("", None, None, &[row(5)])).await.unwrap();
    assert!(once.updated_schema.is_none());
    let mut connection = world.connect().await;
    let fine = connection.send(request_of(DEFAULT, None, Some(wider), &[changed])).await.unwrap();
    assert_eq!(answer(&fine), Ok(None));
    assert_eq!(world.list("SELECT change FROM d.t ORDER BY id").await, ["NULL", "x", "NULL", "NULL", "NULL"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_wait_in_a_stream_fit_a_table_that_grew() {
    let mut world = World::new().await;
    let stream = world.create(Kind::Buffered).await;
    let mut connection = world.connect().await;
    connection.send(request(&stream, Some(0), &[row(1)])).await.unwrap();
    world.sql("ALTER TABLE d.t ADD COLUMN more ARRAY<STRUCT<a INT64>>").await;
    world.sql("ALTER TABLE d.t ALTER COLUMN id SET DATA TYPE NUMERIC").await;
    world.flush(&stream, 0).await.unwrap();
    assert_eq!(world.sql("SELECT * FROM d.t").await, [[json!("1"), json!("n1"), json!([])]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn default_streams_share_a_connection_and_others_do_not() {
    let mut world = World::new().await;
    world.sql("CREATE TABLE d.u (id INT64, name STRING)").await;
    let other = "projects/p/datasets/d/tables/u/streams/_default";
    let mut connection = world.connect().await;
    connection.send(request(DEFAULT, None, &[row(1)])).await.unwrap();
    connection.send(request(other, None, &[row(2)])).await.unwrap();
    connection.send(request_of(DEFAULT, None, None, &[row(3)])).await.unwrap();
    assert_eq!(world.ids().await, ["1", "3"]);
    let unnamed = connection.send(request_of("", None, None, &[row(4)])).await.unwrap_err();
    assert_eq!(unnamed.code(), Code::InvalidArgument);
    let stream = world.create(Kind::Committed).await;
    let mut connection = world.connect().await;
    connection.send(request(DEFAULT, None, &[row(5)])).await.unwrap();
    assert_eq!(
        connection.send(request(&stream, Some(0), &[row(6)])).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    // A newer connection takes a stream over.
    let (mut first, mut second) = (world.connect().await, world.connect().await);
    first.send(request(&stream, Some(0), &[row(7)])).await.unwrap();
    second.send(request(&stream, Some(1), &[row(8)])).await.unwrap();
    assert_eq!(first.send(request(&stream, Some(2), &[row(9)])).await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_found() {
    let mut world = World::new().await;
    let mut connection = world.connect().await;
    let gone = format!("{TABLE}/streams/gone");
    assert_eq!(connection.send(request(&gone, Some(0), &[row(1)])).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(world.flush(&gone, 0).await.unwrap_err().code(), Code::NotFound);
    let mut connection = world.connect().await;
    let missing = "projects/p/datasets/d/tables/x/streams/_default";
    assert_eq!(connection.send(request(missing, None, &[row(1)])).await.unwrap_err().code(), Code::NotFound);
    let get = GetWriteStreamRequest { name: DEFAULT.to_owned(), view: WriteStreamView::Full as i32 };
    let default = world.write.get_write_stream(routed(get)).await.unwrap().into_inner();
    assert_eq!(default.table_schema.unwrap().fields.len(), 2);
    // A dropped table takes its streams with it.
    let stream = world.create(Kind::Buffered).await;
    world.sql("DROP TABLE d.t").await;
    assert_eq!(world.flush(&stream, 0).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_to_be_routed_and_small() {
    let mut world = World::empty(Server::builder().request_bytes(2_000)).await;
    world.sql("CREATE TABLE d.t (id INT64, name STRING)").await;
    let get = GetWriteStreamRequest { name: DEFAULT.to_owned(), ..Default::default() };
    assert_eq!(world.write.get_write_stream(get).await.unwrap_err().code(), Code::InvalidArgument);
    let mut connection = world.connect().await;
    let rows: Vec<_> = (0..200).map(row).collect();
    let status = connection.send(request(DEFAULT, None, &rows)).await.unwrap_err();
    assert!(status.message().contains("too large"), "{status}");
}
