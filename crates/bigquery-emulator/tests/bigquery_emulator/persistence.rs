//! Data that outlives the emulator.

use millstream_bigquery_emulator::{Running, Server};
use prost_types::field_descriptor_proto::Type;

use crate::world::*;

async fn open(directory: &std::path::Path) -> Running {
    Server::builder().data(directory).dataset("p", "d", "US").start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_rows_and_streams_survive_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let mut world = World::of(open(directory.path()).await).await;
    world.sql("CREATE TABLE d.t (id INT64 NOT NULL, name STRING, PRIMARY KEY (id) NOT ENFORCED)").await;
    world.sql("CREATE VIEW d.v AS SELECT id FROM d.t").await;
    let (stream, pending) = (world.create(Kind::Buffered).await, world.create(Kind::Pending).await);
    let mut connection = world.connect().await;
    connection.send(request(&stream, Some(0), &[row(0), row(1)])).await.unwrap();
    connection.send(request(&stream, Some(2), &[row(2), row(3)])).await.unwrap();
    world.flush(&stream, 2).await.unwrap();
    let mut connection = world.connect().await;
    connection.send(request(&pending, Some(0), &[row(9)])).await.unwrap();
    world.finalize(&pending).await.unwrap();
    let mut connection = world.connect().await;
    connection.send(request(DEFAULT, None, &[row(7)])).await.unwrap();
    // A copy of the files at this moment is what a killed process leaves behind.
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
    }

    let mut world = World::of(open(copy.path()).await).await;
    assert_eq!(world.ids().await, ["0", "1", "2", "7"]);
    assert_eq!(world.list("SELECT COUNT(*) FROM d.v").await, ["4"]);
    let mut connection = world.connect().await;
    let again = connection.send(request(&stream, Some(2), &[row(2)])).await.unwrap();
    assert_eq!(storage_code(&again), Some(storage_error::StorageErrorCode::OffsetAlreadyExists as i32));
    connection.send(request(&stream, Some(4), &[row(4)])).await.unwrap();
    world.flush(&stream, 4).await.unwrap();
    assert!(world.commit(&[&pending]).await.commit_time.is_some());
    assert_eq!(world.ids().await, ["0", "1", "2", "3", "4", "7", "9"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_left_behind_survives() {
    let directory = tempfile::tempdir().unwrap();
    let world = World::of(open(directory.path()).await).await;
    world.sql("CREATE TABLE d.t (id INT64 NOT NULL, name STRING, PRIMARY KEY (id) NOT ENFORCED)").await;
    let changing = descriptor(vec![
        field("id", 1, Type::Int64),
        field("name", 2, Type::String),
        field("_CHANGE_TYPE", 3, Type::String),
        field("_CHANGE_SEQUENCE_NUMBER", 4, Type::String),
    ]);
    let change = |id, sequence: &str, kind: &str| Row {
        change: Some(kind.to_owned()),
        sequence: Some(sequence.to_owned()),
        ..row(id)
    };
    let mut world = world;
    let mut connection = world.connect().await;
    let rows = [change(1, "5", "UPSERT"), change(2, "5", "DELETE")];
    answer(&connection.send(request_of(DEFAULT, None, Some(changing.clone()), &rows)).await.unwrap())
        .unwrap();
    drop(connection);
    world.server.stop().await;
    let mut world = World::of(open(directory.path()).await).await;
    let mut connection = world.connect().await;
    let rows = [change(1, "4", "DELETE"), change(2, "4", "UPSERT")];
    answer(&connection.send(request_of(DEFAULT, None, Some(changing), &rows)).await.unwrap()).unwrap();
    assert_eq!(world.ids().await, ["1"]);
    assert_eq!(world.try_sql("DELETE FROM d.t WHERE true").await.0, 400);
}
