//! What a journal brings back: after stopping, after SIGKILL, and with bounded disk.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::*;
use millstream_emulator::pubsub::Server;
use tonic::Code;

use crate::world::{SUBSCRIPTION, TOPIC, World, clients, ids, message, texts};

async fn world(data: &Path) -> World {
    World::empty(Server::builder().data(data)).await
}

async fn restart(world: World, data: &Path) -> World {
    world.server.stop().await;
    self::world(data).await
}

#[tokio::test]
async fn a_restart_brings_back_what_was_not_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let mut world = world(data.path()).await;
    world.topic(TOPIC).await;
    world
        .subscribe(|subscription| {
            subscription.enable_message_ordering = true;
            subscription.labels.insert("a".to_owned(), "b".to_owned());
        })
        .await;
    let published = world.publish_keyed("k", &["1", "2", "3"]).await;
    world.publish(&["free"]).await;
    let got = world.pull(10).await;
    assert_eq!(got.len(), 4);
    world.ack(&got[..1]).await;
    let mut world = restart(world, data.path()).await;
    let kept =
        world.subscriber.get_subscription(GetSubscriptionRequest { subscription: SUBSCRIPTION.to_owned() });
    assert_eq!(kept.await.unwrap().into_inner().labels["a"], "b");
    // An ack id from before the restart does not work.
    world.ack(&got[1..]).await;
    let again = world.pull(10).await;
    let mut names = texts(&again);
    names.sort();
    assert_eq!(names, ["2", "3", "free"]);
    assert_eq!(again.iter().map(|m| &m.message.as_ref().unwrap().message_id).min(), Some(&published[1]));
    world.ack(&again).await;
    let newer = world.publish(&["new"]).await;
    assert!(newer[0].parse::<u64>().unwrap() > published[2].parse::<u64>().unwrap());
    let mut world = restart(world, data.path()).await;
    assert_eq!(texts(&world.pull(10).await), ["new"]);
}

#[tokio::test]
async fn snapshots_seeks_and_deletions_come_back() {
    let data = tempfile::tempdir().unwrap();
    let mut world = world(data.path()).await;
    world.topic(TOPIC).await;
    world.subscribe(|subscription| subscription.retain_acked_messages = true).await;
    let gone = "projects/p/subscriptions/gone";
    world.subscribe(|subscription| subscription.name = gone.to_owned()).await;
    world.publish(&["a", "b"]).await;
    let snapshot = "projects/p/snapshots/kept".to_owned();
    let request = CreateSnapshotRequest {
        name: snapshot.clone(),
        subscription: SUBSCRIPTION.to_owned(),
        ..CreateSnapshotRequest::default()
    };
    world.subscriber.create_snapshot(request).await.unwrap();
    let got = world.pull(10).await;
    world.ack(&got).await;
    let request = DeleteSubscriptionRequest { subscription: gone.to_owned() };
    world.subscriber.delete_subscription(request).await.unwrap();
    let mut world = restart(world, data.path()).await;
    assert!(world.pull(10).await.is_empty());
    let target = Some(seek_request::Target::Snapshot(snapshot));
    let seek = SeekRequest { subscription: SUBSCRIPTION.to_owned(), target };
    world.subscriber.seek(seek).await.unwrap();
    let mut world = restart(world, data.path()).await;
    assert_eq!(texts(&world.pull(10).await), ["a", "b"]);
    let request = GetSubscriptionRequest { subscription: gone.to_owned() };
    assert_eq!(world.subscriber.get_subscription(request).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_directory_has_one_owner_and_one_format() {
    let data = tempfile::tempdir().unwrap();
    let world = world(data.path()).await;
    let error = Server::builder().data(data.path()).start().await.unwrap_err();
    assert!(error.to_string().contains("in use by another emulator"), "{error}");
    world.server.stop().await;
    std::fs::write(data.path().join("00000009.journal"), b"something else").unwrap();
    let error = Server::builder().data(data.path()).start().await.unwrap_err();
    assert!(error.to_string().contains("not of a format"), "{error}");
}

fn disk(data: &Path) -> u64 {
    std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// One message that nobody acknowledges does not keep all that came after it on disk.
#[tokio::test(flavor = "multi_thread")]
async fn the_disk_is_bounded_by_what_is_needed() {
    let data = tempfile::tempdir().unwrap();
    let mut world = world(data.path()).await;
    world.topic(TOPIC).await;
    world.subscribe(|subscription| subscription.ack_deadline_seconds = 600).await;
    world.publish(&["stuck"]).await;
    let stuck = world.pull(1).await;
    let large = "x".repeat(1 << 20);
    for _ in 0..90 {
        world.try_publish(vec![message("", &large); 8]).await.unwrap();
        for _ in 0..8 {
            let got = world.pull(8).await;
            world.ack(&got).await;
        }
    }
    assert_eq!(world.counts().backlog, 1);
    for _ in 0..200 {
        if disk(data.path()) < 400 << 20 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(disk(data.path()) < 400 << 20, "{} of 720 MB", disk(data.path()) >> 20);
    assert_eq!(texts(&stuck), ["stuck"]);
    let mut world = restart(world, data.path()).await;
    assert_eq!(texts(&world.pull(10).await), ["stuck"]);
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The example `serve` in a process of its own; cargo builds it with the tests.
fn serve(data: &Path) -> (Process, std::net::SocketAddr) {
    let tests = std::env::current_exe().unwrap();
    let binary = tests.parent().unwrap().parent().unwrap().join("examples/serve");
    let mut child = Command::new(binary).arg(data).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Process(child), line.trim().parse().unwrap())
}

/// SIGKILL while publishers and an acker are at work: whatever was answered is there afterwards, unless acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_process_loses_nothing_that_it_answered() {
    let data = tempfile::tempdir().unwrap();
    let (process, address) = serve(data.path());
    let (mut publisher, mut subscriber) = clients(address).await;
    publisher.create_topic(Topic { name: TOPIC.to_owned(), ..Topic::default() }).await.unwrap();
    let subscription =
        Subscription { name: SUBSCRIPTION.to_owned(), topic: TOPIC.to_owned(), ..Subscription::default() };
    subscriber.create_subscription(subscription).await.unwrap();
    let mut answered = Vec::new();
    let mut publishers = Vec::new();
    for task in 0..3 {
        let mut publisher = publisher.clone();
        publishers.push(tokio::spawn(async move {
            let mut answered = Vec::new();
            for n in 0.. {
                let messages: Vec<_> = (0..10).map(|i| message("", &format!("{task}-{n}-{i}"))).collect();
                let request = PublishRequest { topic: TOPIC.to_owned(), messages };
                match publisher.publish(request).await {
                    Ok(response) => answered.extend(response.into_inner().message_ids),
                    Err(_) => return answered,
                }
            }
            answered
        }));
    }
    let acker = tokio::spawn({
        let mut subscriber = subscriber.clone();
        async move {
            let mut tried = std::collections::HashSet::new();
            loop {
                let pull = PullRequest {
                    subscription: SUBSCRIPTION.to_owned(),
                    max_messages: 50,
                    ..Default::default()
                };
                let Ok(response) = subscriber.pull(pull).await else { return tried };
                let got = response.into_inner().received_messages;
                tried.extend(got.iter().map(|got| got.message.as_ref().unwrap().message_id.clone()));
                let request =
                    AcknowledgeRequest { subscription: SUBSCRIPTION.to_owned(), ack_ids: ids(&got) };
                if !got.is_empty() && subscriber.acknowledge(request).await.is_err() {
                    return tried;
                }
            }
        }
    });
    tokio::time::sleep(std::time::Duration::from_millis(700)).await;
    drop(process);
    for publisher in publishers {
        answered.extend(publisher.await.unwrap());
    }
    let tried = acker.await.unwrap();
    assert!(answered.len() > 50 && !tried.is_empty(), "{} {}", answered.len(), tried.len());

    let (_process, address) = serve(data.path());
    let (_, mut subscriber) = clients(address).await;
    let mut found = std::collections::HashSet::new();
    loop {
        #[expect(deprecated)]
        let pull = PullRequest {
            subscription: SUBSCRIPTION.to_owned(),
            max_messages: 1000,
            return_immediately: true,
        };
        let got = subscriber.pull(pull).await.unwrap().into_inner().received_messages;
        if got.is_empty() {
            break;
        }
        found.extend(got.into_iter().map(|got| got.message.unwrap().message_id));
    }
    for id in &answered {
        assert!(found.contains(id) || tried.contains(id), "{id} is lost");
    }
}
