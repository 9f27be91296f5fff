//! What goes wrong on demand, and that it comes out right.

use millstream_bigquery_emulator::Server;
use serde_json::{Value, json};
use tonic::Code;

use crate::world::*;

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_come_out_by_offsets() {
    let mut world = World::new().await;
    let stream = world.create(Kind::Buffered).await;
    world.server.set_faults("lost_answer=1".parse().unwrap());
    let mut connection = world.connect().await;
    assert_eq!(
        connection.send(request(&stream, Some(0), &[row(1)])).await.unwrap_err().code(),
        Code::Unavailable
    );
    assert_eq!(world.flush(&stream, 0).await.unwrap_err().code(), Code::Unavailable);
    assert!(world.finalize(&stream).await.is_err());
    world.server.set_faults("".parse().unwrap());
    let mut connection = world.connect().await;
    let again = connection.send(request(&stream, Some(0), &[row(1)])).await.unwrap();
    assert_eq!(storage_code(&again), Some(storage_error::StorageErrorCode::StreamFinalized as i32));
    assert_eq!(world.ids().await, ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_expire_and_connections_are_cut() {
    let mut world = World::new().await;
    let stream = world.create(Kind::Buffered).await;
    world.server.set_faults("script=AppendRows@1:cut:2".parse().unwrap());
    let mut connection = world.connect().await;
    connection.send(request(&stream, Some(0), &[row(0)])).await.unwrap();
    connection.send(request(&stream, Some(1), &[row(1)])).await.unwrap();
    assert_eq!(connection.next().await.unwrap_err().code(), Code::Unavailable);
    world.server.set_faults("throttle=1".parse().unwrap());
    let mut connection = world.connect().await;
    let throttled = connection.send(request(&stream, Some(2), &[row(2)])).await.unwrap();
    let (code, text) = answer(&throttled).unwrap_err();
    assert!(
        code == Code::ResourceExhausted && text.contains("Exceeds 'AppendRows throughput' quota"),
        "{text}"
    );
    world.server.set_faults("expired=1,slow_append=1,slow_append_millis=1".parse().unwrap());
    let mut connection = world.connect().await;
    let expired = connection.send(request(&stream, Some(2), &[row(2)])).await.unwrap_err();
    assert_eq!(expired.code(), Code::NotFound);
    world.server.set_faults("script=FlushRows@1:ABORTED".parse().unwrap());
    assert_eq!(world.flush(&stream, 0).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(world.flush(&stream, 0).await.unwrap_err().code(), Code::NotFound);
    assert!(world.server.faults_hit() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rest_calls_fail_too() {
    let world = World::empty(Server::builder().faults("rest_unavailable=1".parse().unwrap())).await;
    assert_eq!(world.try_sql("SELECT 1").await.0, 503);
    world.server.set_faults("rest_throttle=1".parse().unwrap());
    let (status, body) = world.try_sql("SELECT 1").await;
    assert_eq!((status, body["error"]["errors"][0]["reason"].as_str()), (429, Some("rateLimitExceeded")));
    world.server.set_faults("deny=projects/p/datasets/d*:PERMISSION_DENIED".parse().unwrap());
    let (status, body) = world.call("GET", "/datasets/d", Value::Null).await;
    assert_eq!((status, body["error"]["errors"][0]["reason"].as_str()), (403, Some("accessDenied")));
    world.server.set_faults("rest_lost_answer=1".parse().unwrap());
    let body =
        json!({"tableReference": {"tableId": "x"}, "schema": {"fields": [{"name": "a", "type": "STRING"}]}});
    assert_eq!(world.call("POST", "/datasets/d/tables", body.clone()).await.0, 503);
    world.server.set_faults("".parse().unwrap());
    assert_eq!(world.call("POST", "/datasets/d/tables", body).await.0, 409);
}
