//! What fails for good, and what it says.

use std::time::{Duration, Instant};

use millstream_core::{Error, Kind, Source};
use millstream_pubsub::admin::seek;
use millstream_pubsub::permission::{may_publish, may_pull};
use millstream_pubsub::{Client, Connection, PubsubConfig, PubsubSource, SeekTo, SnapshotName};

use crate::world::{BUDGET, SUBSCRIPTION, TOPIC, World, name, topic};

/// The error that a source ends with.
async fn failure(config: PubsubConfig) -> Error {
    let mut source = PubsubSource::new(config).unwrap();
    if let Err(error) = source.open(&[]).await {
        return error;
    }
    let began = Instant::now();
    loop {
        if let Err(error) = source.next(BUDGET).await {
            return error;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "it never failed");
    }
}

#[tokio::test]
async fn a_subscription_or_project_that_does_not_exist() {
    let world = World::new(|_| {}).await;
    for missing in ["projects/p/subscriptions/missing", "projects/wrong/subscriptions/orders-sub"] {
        let mut config = world.config();
        config.subscriptions = vec![name(missing)];
        let error = failure(config).await;
        assert_eq!(error.kind(), Kind::Fatal);
        assert!(
            error.to_string().contains(missing) && error.to_string().contains("does not exist"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn permissions_and_credentials_are_named() {
    for (code, says) in
        [("PERMISSION_DENIED", "roles/pubsub.subscriber"), ("UNAUTHENTICATED", "have expired")]
    {
        let world = World::new(|_| {}).await;
        world.faults(&format!("deny={SUBSCRIPTION}:{code}"));
        let error = failure(world.config()).await;
        assert_eq!(error.kind(), Kind::Fatal);
        assert!(error.to_string().contains(says) && error.to_string().contains(SUBSCRIPTION), "{error}");
    }
}

#[tokio::test]
async fn a_service_that_is_not_there_is_no_silent_one() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let connection = Connection { endpoint: Some(format!("http://127.0.0.1:{port}")), credentials: None };
    let mut config = PubsubConfig::new(connection, vec![name(SUBSCRIPTION)]);
    config.connect_patience = Duration::from_millis(500);
    config.poll_interval = Duration::from_millis(50);
    let error = failure(config).await;
    assert_eq!(error.kind(), Kind::Transient);
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
}

/// A service that takes connections and says nothing was taken for a silent one, after two seconds and later after twelve: `run
/// --until-idle` ended well with nothing read. It is silent only if it answers a call beside the stream.
#[tokio::test]
async fn a_service_that_never_answers_is_no_silent_one() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let connection = Connection { endpoint: Some(endpoint), credentials: None };
    let mut config = PubsubConfig::new(connection, vec![name(SUBSCRIPTION)]);
    config.connect_patience = Duration::from_secs(4);
    config.poll_interval = Duration::from_millis(100);
    let mut source = PubsubSource::new(config).unwrap();
    source.open(&[]).await.unwrap();
    let error = loop {
        match source.next(BUDGET).await {
            Ok(next) => assert!(matches!(next, millstream_core::Next::Waiting), "{next:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), Kind::Transient);
}

/// Permissions are asked for without using them; servers that know none leave it open.
#[tokio::test]
async fn permissions_are_asked_for() {
    let world = World::new(|_| {}).await;
    let client = Client::new(&world.connection(), 1).unwrap();
    let asked =
        async || (may_publish(&client, &topic(TOPIC)).await, may_pull(&client, &name(SUBSCRIPTION)).await);
    assert_eq!(asked().await, (Some(true), Some(true)));
    assert_eq!(may_publish(&client, &topic("projects/p/topics/missing")).await, Some(false));
    world.faults(&format!("deny={TOPIC}:PERMISSION_DENIED"));
    assert_eq!(asked().await, (Some(false), Some(true)));
    world.faults("script=TestIamPermissions@1*2:UNIMPLEMENTED");
    assert_eq!(asked().await, (None, None));
}

#[test]
fn a_subscription_that_is_named_twice_is_refused() {
    let connection = Connection { endpoint: Some("http://localhost:1".into()), credentials: None };
    let twice = PubsubConfig::new(connection, vec![name(SUBSCRIPTION), name(SUBSCRIPTION)]);
    let error = PubsubSource::new(twice).err().unwrap().to_string();
    assert!(error.contains("named twice") && error.contains(SUBSCRIPTION), "{error}");
}

#[tokio::test]
async fn credentials_files_are_refused_without_showing_them() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key.json");
    for (text, says) in [("hunter2", "is no JSON"), (r#"{"type":"hunter2"}"#, "of no known type")] {
        std::fs::write(&file, text).unwrap();
        let connection =
            Connection { endpoint: Some("https://localhost:1".into()), credentials: Some(file.clone()) };
        let error = millstream_pubsub::Client::new(&connection, 1).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains("hunter2"), "{error}");
    }
}

/// A snapshot that does not exist was told as a subscription that does not.
#[tokio::test]
async fn a_seek_names_what_does_not_exist() {
    let world = World::new(|_| {}).await;
    let client = Client::new(&world.connection(), 1).unwrap();
    let snapshot = "projects/p/snapshots/missing";
    let to = SeekTo::Snapshot(SnapshotName::parse(snapshot, None).unwrap());
    let error = seek(&client, &name(SUBSCRIPTION), &to).await.unwrap_err().to_string();
    assert!(error.contains(&format!("there is no snapshot {snapshot}")), "{error}");
    let missing = "projects/p/subscriptions/missing";
    let error = seek(&client, &name(missing), &to).await.unwrap_err().to_string();
    assert!(error.contains(missing) && error.contains("does not exist"), "{error}");
    assert!(!error.contains(snapshot), "{error}");
    // Where nobody may look, both are named.
    world.faults("script=GetSubscription@1*9:PERMISSION_DENIED");
    let error = seek(&client, &name(SUBSCRIPTION), &to).await.unwrap_err().to_string();
    assert!(error.contains(SUBSCRIPTION) && error.contains(snapshot), "{error}");
}
