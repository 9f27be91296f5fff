//! Plays a shop's events into an emulated Pub/Sub at a chosen rate.

use std::collections::HashMap;
use std::time::Duration;

use millstream_core::{Error, Result};
use millstream_emulator::pubsub::{Running, Server};
use millstream_engine::{Clock, SystemClock};
use millstream_pubsub::{Client, Connection, Message, Publisher, TopicName};
use tokio::runtime::Runtime;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Shop;

/// The project that the demo's topics are in.
pub(crate) const PROJECT: &str = "demo";
/// What goes wrong between the emulator and the pipeline, as it does in production.
const FAULTS: &str = "duplicate=0.01,reorder=0.05,lost_ack=0.002,cut=0.0002";
/// Every so manyth message comes damaged.
const DAMAGED_EVERY: u64 = 5000;
/// Times a second that messages are published.
const TICKS: u64 = 20;

/// An emulator with the topics and subscriptions of a shop, on threads of its own.
pub(crate) struct Stage {
    runtime: Runtime,
    server: Running,
    topics: Vec<String>,
}

impl Stage {
    /// Starts the emulator on a free port.
    pub(crate) fn start(shop: &Shop) -> Result<Self> {
        let failed = |e: std::io::Error| Error::fatal("cannot start the Pub/Sub emulator").with_source(e);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("emulator")
            .enable_all()
            .build()
            .map_err(failed)?;
        let topics = shop.topics();
        let faults = FAULTS.parse().map_err(|e| Error::fatal(format!("the demo's faults: {e}")))?;
        let mut builder = Server::builder().faults(faults);
        for topic in &topics {
            let name = format!("projects/{PROJECT}/topics/{topic}");
            builder = builder
                .topic(&name)
                .subscription(format!("projects/{PROJECT}/subscriptions/{topic}-sub"), &name);
        }
        let server = runtime.block_on(builder.start()).map_err(failed)?;
        Ok(Self { runtime, server, topics })
    }

    /// Where the emulator answers.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// The subscriptions' IDs.
    pub(crate) fn subscriptions(&self) -> Vec<String> {
        self.topics.iter().map(|topic| format!("{topic}-sub")).collect()
    }

    /// Publishes so many events a second until the stage is dropped.
    pub(crate) fn play(&self, shop: Shop, rate: u64) -> Result<()> {
        let _inside = self.runtime.enter();
        let pace = Pace::new(&self.endpoint(), shop, rate)?;
        self.runtime.spawn(async move {
            if let Err(error) = pace.run().await {
                tracing::warn!("the demo's publisher ended: {error}");
            }
        });
        Ok(())
    }
}

/// A publisher that keeps to a rate.
struct Pace {
    client: Client,
    publishers: HashMap<String, Publisher>,
    shop: Shop,
    rate: u64,
    played: u64,
}

impl Pace {
    fn new(endpoint: &str, shop: Shop, rate: u64) -> Result<Self> {
        let connection = Connection { endpoint: Some(endpoint.to_owned()), credentials: None };
        Ok(Self { client: Client::new(&connection, 1)?, publishers: HashMap::new(), shop, rate, played: 0 })
    }

    async fn run(mut self) -> Result<()> {
        let mut ticks = interval(Duration::from_millis(1000 / TICKS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let began = Instant::now();
        loop {
            ticks.tick().await;
            // By the clock, so that a slow moment is caught up with; of a long one at most a second.
            let due = (began.elapsed().as_secs_f64() * self.rate as f64) as u64;
            let behind = due.saturating_sub(self.played);
            self.played += behind.saturating_sub(self.rate);
            for _ in 0..behind.min(self.rate) {
                self.add().await?;
            }
            for publisher in self.publishers.values_mut() {
                publisher.publish().await?;
            }
        }
    }

    async fn add(&mut self) -> Result<()> {
        self.played += 1;
        let now_us = SystemClock.now().as_micros() as u64;
        let (topic, mut message) = self.shop.next(now_us);
        if self.played.is_multiple_of(DAMAGED_EVERY) {
            damage(&mut message);
        }
        let publisher = match self.publishers.get_mut(&topic) {
            Some(publisher) => publisher,
            None => {
                let name = TopicName::parse(&topic, Some(PROJECT))?;
                self.publishers.entry(topic).or_insert(Publisher::new(self.client.clone(), name))
            }
        };
        publisher.add(message).await
    }
}

/// Cut in the middle, as by a bug somewhere.
fn damage(message: &mut Message) {
    message.data.truncate(message.data.len() / 2);
}
