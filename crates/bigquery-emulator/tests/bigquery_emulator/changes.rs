//! Native change data capture.

use std::time::Duration;

use millstream_bigquery_emulator::Server;
use prost_types::DescriptorProto;
use prost_types::field_descriptor_proto::Type;
use tonic::Code;

use crate::world::*;

fn changing() -> DescriptorProto {
    descriptor(vec![
        field("id", 1, Type::Int64),
        field("name", 2, Type::String),
        field("_CHANGE_TYPE", 3, Type::String),
        field("_CHANGE_SEQUENCE_NUMBER", 4, Type::String),
    ])
}

fn change(id: i64, name: &str, change: &str, sequence: &str) -> Row {
    Row {
        id: Some(id),
        name: (!name.is_empty()).then(|| name.to_owned()),
        change: Some(change.to_owned()),
        sequence: (!sequence.is_empty()).then(|| sequence.to_owned()),
    }
}

struct Changes {
    world: World,
    connection: Connection,
}

impl Changes {
    async fn new(builder: millstream_bigquery_emulator::Builder, options: &str) -> Self {
        let mut world = World::empty(builder).await;
        world
            .sql(&format!(
                "CREATE TABLE d.t (id INT64 NOT NULL, name STRING NOT NULL, PRIMARY KEY (id) NOT ENFORCED) {options}"
            ))
            .await;
        let connection = world.connect().await;
        Self { world, connection }
    }

    async fn send(&mut self, rows: &[Row]) -> Result<Option<i64>, (Code, String)> {
        answer(&self.connection.send(request_of(DEFAULT, None, Some(changing()), rows)).await.unwrap())
    }

    async fn rows(&self) -> Vec<String> {
        self.world.list("SELECT CONCAT(CAST(id AS STRING), '=', name) FROM d.t ORDER BY id").await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_sequence_number_wins() {
    let mut t = Changes::new(Server::builder(), "").await;
    t.send(&[change(1, "a", "UPSERT", "A/1"), change(2, "b", "UPSERT", "1")]).await.unwrap();
    assert_eq!(t.rows().await, ["1=a", "2=b"]);
    // Older, newer and equal ones, within a request and over several.
    t.send(&[change(1, "new", "UPSERT", "A/2"), change(1, "old", "UPSERT", "9/FF")]).await.unwrap();
    t.send(&[change(1, "older", "UPSERT", "a/1"), change(2, "equal", "UPSERT", "01")]).await.unwrap();
    assert_eq!(t.rows().await, ["1=new", "2=equal"]);
    // A delete has to have the key only, and is remembered.
    t.send(&[change(1, "", "DELETE", "10"), change(2, "", "DELETE", "0")]).await.unwrap();
    t.send(&[change(1, "late", "UPSERT", "F")]).await.unwrap();
    assert_eq!(t.rows().await, ["2=equal"]);
    t.send(&[change(1, "again", "UPSERT", "11")]).await.unwrap();
    assert_eq!(t.rows().await, ["1=again", "2=equal"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletes_are_forgotten_after_two_days() {
    let mut t = Changes::new(Server::builder(), "").await;
    t.send(&[change(1, "", "DELETE", "10"), change(2, "", "DELETE", "10")]).await.unwrap();
    t.world.server.advance(Duration::from_secs(47 * 3600)).await.unwrap();
    t.send(&[change(1, "late", "UPSERT", "1")]).await.unwrap();
    assert!(t.rows().await.is_empty());
    t.world.server.advance(Duration::from_secs(2 * 3600)).await.unwrap();
    t.send(&[change(2, "back", "UPSERT", "1")]).await.unwrap();
    assert_eq!(t.rows().await, ["2=back"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_sequence_numbers_the_last_wins() {
    let mut t = Changes::new(Server::builder(), "").await;
    t.send(&[change(1, "a", "UPSERT", ""), change(1, "b", "UPSERT", ""), change(2, "c", "UPSERT", "")])
        .await
        .unwrap();
    t.send(&[change(2, "", "DELETE", "")]).await.unwrap();
    assert_eq!(t.rows().await, ["1=b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_may_not_be_mixed_with_is_refused() {
    let mut t = Changes::new(Server::builder(), "").await;
    let bad = t.send(&[change(1, "a", "UPDATE", "1")]).await.unwrap_err();
    assert_eq!(bad.0, Code::InvalidArgument);
    assert!(t.send(&[change(1, "a", "UPSERT", "1/2/3/4/5")]).await.is_err());
    assert!(t.send(&[change(1, "a", "UPSERT", "1"), row(2)]).await.is_err());
    t.send(&[change(1, "a", "UPSERT", "1")]).await.unwrap();
    assert!(t.send(&[row(2)]).await.unwrap_err().1.contains("not a valid CHANGE_TYPE"));
    let missing = t.send(&[change(3, "", "UPSERT", "1")]).await;
    assert!(missing.is_err(), "an upsert needs its required columns");
    for sql in [
        "UPDATE d.t SET name = 'x' WHERE true",
        "DELETE FROM d.t WHERE true",
        "MERGE d.t USING (SELECT 1 AS id) s ON false WHEN NOT MATCHED THEN INSERT (id, name) VALUES (1, 'x')",
    ] {
        assert_eq!(t.world.try_sql(sql).await.0, 400, "{sql}");
    }
    assert_eq!(t.rows().await, ["1=a"]);
    // A table without a key, and a stream that an application made, take no changes.
    t.world.sql("CREATE TABLE d.u (id INT64, name STRING)").await;
    let mut connection = t.world.connect().await;
    let keyless = "projects/p/datasets/d/tables/u/streams/_default";
    let rows = [change(1, "a", "UPSERT", "1")];
    let refused = connection.send(request_of(keyless, None, Some(changing()), &rows)).await.unwrap();
    assert!(answer(&refused).is_err());
    let stream = t.world.create(Kind::Committed).await;
    let mut connection = t.world.connect().await;
    let refused = connection.send(request_of(&stream, None, Some(changing()), &rows)).await.unwrap();
    assert!(answer(&refused).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn staleness_delays_what_is_read() {
    let builder = Server::builder().apply_delay(Duration::from_secs(300));
    let mut t = Changes::new(builder, "OPTIONS (max_staleness = INTERVAL 10 MINUTE)").await;
    t.send(&[change(1, "a", "UPSERT", "1")]).await.unwrap();
    assert!(t.rows().await.is_empty());
    t.world.server.advance(Duration::from_secs(299)).await.unwrap();
    t.send(&[change(2, "b", "UPSERT", "1")]).await.unwrap();
    t.world.server.advance(Duration::from_secs(2)).await.unwrap();
    assert_eq!(t.rows().await, ["1=a"]);
    t.world.sql("ALTER TABLE d.t SET OPTIONS (max_staleness = INTERVAL 1 MINUTE)").await;
    t.world.server.advance(Duration::from_secs(61)).await.unwrap();
    assert_eq!(t.rows().await, ["1=a", "2=b"]);
    let watermark = "SELECT upsert_stream_apply_watermark IS NOT NULL FROM d.INFORMATION_SCHEMA.TABLES WHERE table_name = 't'";
    assert_eq!(t.world.list(watermark).await, ["true"]);
}
