//! Measures the emulator: publishes batches with ordering keys, pulls them over streams, acknowledges, and says how much
//! processor time the server took. `throughput [MESSAGES] [BYTES] [STREAMS] [KEYS]`; 0 keys publish without.
//!
//! Server and client are runtimes of their own in one process, told apart by the names of their threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::publisher_client::PublisherClient;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::subscriber_client::SubscriberClient;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::*;
use millstream_emulator::pubsub::Server;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};

const TOPIC: &str = "projects/p/topics/throughput";
const SUBSCRIPTION: &str = "projects/p/subscriptions/throughput";
const BATCH: usize = 1000;
const PUBLISHERS: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (messages, bytes, streams, keys) = (next(1_000_000)?, next(726)?, next(1)?, next(0)?);
    let data = std::env::var_os("EMULATOR_DATA");
    let server_runtime = runtime("emulator")?;
    let server = server_runtime.block_on(async {
        let mut builder = Server::builder();
        if let Some(data) = data {
            builder = builder.data(data);
        }
        builder.start().await
    })?;
    let client_runtime = runtime("client")?;
    let endpoint = Channel::from_shared(format!("http://{}", server.address()))?
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(32 << 20);
    client_runtime.block_on(prepare(&endpoint, keys > 0))?;

    let batches = messages.div_ceil(BATCH);
    let phase = Phase::start("publish", batches * BATCH);
    client_runtime.block_on(publish(&endpoint, batches, bytes, keys))?;
    phase.end();
    let phase = Phase::start("deliver", batches * BATCH);
    client_runtime.block_on(pull(&endpoint, (batches * BATCH) as u64, streams))?;
    phase.end();
    show(&format!("{:?}", server.counts()));
    server_runtime.block_on(server.stop());
    Ok(())
}

fn runtime(name: &str) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build()
}

async fn prepare(endpoint: &Endpoint, ordered: bool) -> Result<(), Box<dyn std::error::Error>> {
    let channel = endpoint.connect().await?;
    let topic = Topic { name: TOPIC.to_owned(), ..Topic::default() };
    PublisherClient::new(channel.clone()).create_topic(topic).await?;
    let subscription = Subscription {
        name: SUBSCRIPTION.to_owned(),
        topic: TOPIC.to_owned(),
        ack_deadline_seconds: 60,
        enable_message_ordering: ordered,
        ..Subscription::default()
    };
    SubscriberClient::new(channel).create_subscription(subscription).await?;
    Ok(())
}

async fn publish(
    endpoint: &Endpoint,
    batches: usize,
    bytes: usize,
    keys: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..PUBLISHERS {
        let (next, channel) = (next.clone(), endpoint.connect().await?);
        tasks.push(tokio::spawn(async move {
            let mut publisher = PublisherClient::new(channel);
            let data = bytes::Bytes::from(vec![b'x'; bytes]);
            loop {
                let batch = next.fetch_add(1, Ordering::Relaxed) as usize;
                if batch >= batches {
                    return Ok::<_, tonic::Status>(());
                }
                let ordering_key = if keys > 0 { format!("key-{}", batch % keys) } else { String::new() };
                let message = PubsubMessage { data: data.clone(), ordering_key, ..PubsubMessage::default() };
                let request = PublishRequest { topic: TOPIC.to_owned(), messages: vec![message; BATCH] };
                publisher.publish(request).await?;
            }
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn pull(endpoint: &Endpoint, messages: u64, streams: usize) -> Result<(), Box<dyn std::error::Error>> {
    let taken = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..streams {
        let (taken, channel) = (taken.clone(), endpoint.connect().await?);
        tasks.push(tokio::spawn(async move {
            let mut subscriber = SubscriberClient::new(channel).max_decoding_message_size(64 << 20);
            let (requests, outgoing) = mpsc::channel(16);
            let first = StreamingPullRequest {
                subscription: SUBSCRIPTION.to_owned(),
                stream_ack_deadline_seconds: 60,
                ..StreamingPullRequest::default()
            };
            let _ = requests.send(first).await;
            let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
            let mut responses = subscriber.streaming_pull(outgoing).await?.into_inner();
            while taken.load(Ordering::Relaxed) < messages {
                let next = tokio::time::timeout(Duration::from_millis(200), responses.message());
                let Ok(response) = next.await else { continue };
                let Some(response) = response? else { break };
                taken.fetch_add(response.received_messages.len() as u64, Ordering::Relaxed);
                let ack_ids = response.received_messages.into_iter().map(|message| message.ack_id).collect();
                let _ =
                    requests.send(StreamingPullRequest { ack_ids, ..StreamingPullRequest::default() }).await;
            }
            Ok::<_, tonic::Status>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// A measured stretch.
struct Phase {
    name: &'static str,
    messages: usize,
    started: Instant,
    server: f64,
    client: f64,
}

impl Phase {
    fn start(name: &'static str, messages: usize) -> Self {
        Self {
            name,
            messages,
            started: Instant::now(),
            server: processor_seconds("emulator"),
            client: processor_seconds("client"),
        }
    }

    fn end(self) {
        let took = self.started.elapsed().as_secs_f64();
        let millions = self.messages as f64 / 1e6;
        show(&format!(
            "{}: {:.0} messages/s in {took:.2} s; processor seconds a million: server {:.2}, client {:.2}",
            self.name,
            self.messages as f64 / took,
            (processor_seconds("emulator") - self.server) / millions,
            (processor_seconds("client") - self.client) / millions,
        ));
    }
}

/// What threads of this name took so far; only Linux tells.
fn processor_seconds(thread: &str) -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let mut ticks = 0;
    for task in tasks.flatten() {
        let Ok(stat) = std::fs::read_to_string(task.path().join("stat")) else { continue };
        let Some((head, rest)) = stat.rsplit_once(')') else { continue };
        if head.ends_with(&format!("({thread}")) {
            let fields: Vec<&str> = rest.split_whitespace().collect();
            ticks += [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum::<u64>();
        }
    }
    ticks as f64 / 100.0
}

#[expect(clippy::print_stdout, reason = "an example says what it measured")]
fn show(text: &str) {
    println!("{text}");
}
