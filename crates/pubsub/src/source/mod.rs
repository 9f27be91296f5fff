//! Pulls messages, leases them until their checkpoint is durable, then acknowledges them.
//!
//! ```text
//! service ══streaming pull══▶ pull ──deliveries──▶ next() ──batches──▶ pipeline
//!    ▲                          │ arrive               │ hand out          │
//!    │                          ▼                      ▼                   │
//!    ├──modify deadline── lease ◀──────────────── ledger ◀────release()────┘
//!    └──acknowledge────── ack ◀──────────────────────┘
//! ```
//! Each subscription is a partition. A position is (this source's instance, a mark that grows with each batch), so that a position of
//! another run acknowledges nothing: its messages come again, and state recognises their events.
//!
//! Memory: messages that wait to be taken hold at most [`PREFETCH_BYTES`] beside one response a stream; the rest of the backlog stays
//! with the service. Of messages that were taken only their acknowledgement ids are kept.

mod ack;
mod batch;
mod lease;
mod ledger;
mod position;
mod pull;
mod shared;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use millstream_core::source::Notice;
use millstream_core::{
    Budget, Error, Fut, Next, PartitionId, Position, RecordBatch, Result, Source, TellFigures,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::admin;
use crate::backoff::random;
use crate::client::Client;
use crate::config::PubsubConfig;
use crate::name::{SubscriptionName, TopicName};
use ack::{AckOrder, Acker};
use batch::Records;
use lease::Keeper;
use ledger::{GroupId, Limits};
use pull::{Pull, Withheld};
use shared::Shared;

/// Bytes of messages that streams may hold ready for the pipeline, in all.
const PREFETCH_BYTES: usize = 16 << 20;
/// The unit of the prefetch budget.
const PREFETCH_UNIT: usize = 1024;
/// How long acknowledgements may take at the end.
const FLUSH_PATIENCE: Duration = Duration::from_secs(15);
/// HTTP/2 servers commonly allow a hundred streams a connection, and calls need some.
const STREAMS_PER_CONNECTION: usize = 80;
/// More connections than this are made for room only.
const CONNECTIONS_FOR_SPEED: usize = 4;

/// Messages of one response, on their way to the pipeline.
struct Delivery {
    subscription: usize,
    group: GroupId,
    messages: std::vec::IntoIter<pb::ReceivedMessage>,
    /// What all of them take, as the service counts it.
    bytes: usize,
    _prefetched: OwnedSemaphorePermit,
}

/// A subscription that is pulled from.
struct Subscription {
    name: SubscriptionName,
    /// The topic's ID.
    topic: String,
    partition: PartitionId,
    /// Of the last batch that was handed out.
    mark: u64,
    acks: mpsc::UnboundedSender<AckOrder>,
}

/// A Pub/Sub source.
pub struct PubsubSource {
    config: PubsubConfig,
    instance: u64,
    running: Option<Running>,
}

/// What exists after `open`.
struct Running {
    /// A connection of its own for leases and acknowledgements: unread messages of streams must not hold up their answers.
    control: Client,
    /// Before this a silent service may still lease messages to the run before.
    quiet_from: Instant,
    subscriptions: Vec<Subscription>,
    shared: Arc<Shared>,
    deliveries: mpsc::Receiver<Result<Delivery>>,
    /// Taken from the channel and not handed out wholly.
    pending: Option<Delivery>,
    /// Subscriptions that gave something since they were last found silent, and those that were found so since someone asked.
    giving: BTreeSet<usize>,
    resting: Vec<PartitionId>,
    /// That a stream is full was told since the last release.
    held_told: bool,
    /// Pulls and leases end with the source.
    tasks: JoinSet<()>,
}

impl PubsubSource {
    /// A source that is not connected yet.
    ///
    /// # Errors
    /// If the settings are out of bounds.
    pub fn new(config: PubsubConfig) -> Result<Self> {
        config.validate()?;
        Ok(Self { config, instance: random(), running: None })
    }

    async fn start(&mut self, positions: &[(PartitionId, Position)]) -> Result<()> {
        let config = &self.config;
        let control = Client::new(&config.connection, 1)?;
        if let Some(create) = &config.create {
            admin::create(&control, &config.subscriptions, create).await?;
        }
        let names = admin::resolve(&control, config).await?;
        let streams = names.len() * config.streams;
        let connections = streams.min(CONNECTIONS_FOR_SPEED).max(streams.div_ceil(STREAMS_PER_CONNECTION));
        let client = Client::new(&config.connection, connections)?;
        let share = |of: u64| (of / streams as u64).max(1);
        let limits = Limits {
            messages: share(config.outstanding_messages_max),
            bytes: share(config.outstanding_bytes_max),
        };
        let shared = Arc::new(Shared::new(names.len(), config.streams, limits));
        let (sender, deliveries) = mpsc::channel(streams.min(64));
        let prefetch = Arc::new(Semaphore::new(PREFETCH_BYTES / PREFETCH_UNIT));
        let mut tasks = JoinSet::new();
        let mut subscriptions = Vec::new();
        for (index, name) in names.into_iter().enumerate() {
            for n in 0..config.streams {
                let stream = index * config.streams + n;
                let pull = Pull {
                    client: client.clone(),
                    subscription: index,
                    name: name.clone(),
                    stream,
                    client_id: format!("millstream-{:016x}-{stream}", self.instance),
                    limits,
                    lease: config.lease,
                    published_before_ms: config.published_before_ms,
                    withheld: Withheld::default(),
                    shared: shared.clone(),
                    prefetch: prefetch.clone(),
                    deliveries: sender.clone(),
                };
                tasks.spawn(pull.run());
            }
            let (acks, orders) = mpsc::unbounded_channel();
            let acker = Acker::new(control.clone(), name.clone(), index, shared.clone());
            // Not among the tasks: what was released is acknowledged even if the source is dropped.
            tokio::spawn(acker.run(orders));
            let topic = config.topics.get(&name).map_or(name.likely_topic(), TopicName::id).to_owned();
            subscriptions.push(Subscription {
                partition: PartitionId::new(name.path()),
                name,
                topic,
                mark: 0,
                acks,
            });
        }
        let names: Arc<[SubscriptionName]> = subscriptions.iter().map(|s| s.name.clone()).collect();
        let keeper = Keeper {
            prolong: lease::by_calls(control.clone(), names.clone(), config.lease),
            names,
            shared: shared.clone(),
            lease: config.lease,
            lease_max: config.lease_max,
        };
        tasks.spawn(keeper.run());
        // Only a run before this one can have left messages leased.
        let of_ours = |(partition, _): &(PartitionId, Position)| {
            subscriptions.iter().any(|s| s.partition == *partition)
        };
        let quiet_from =
            Instant::now() + if positions.iter().any(of_ours) { config.lease } else { Duration::ZERO };
        self.running = Some(Running {
            control,
            quiet_from,
            subscriptions,
            shared,
            deliveries,
            pending: None,
            giving: BTreeSet::new(),
            resting: Vec::new(),
            held_told: false,
            tasks,
        });
        Ok(())
    }

    fn running(&mut self) -> Result<&mut Running> {
        self.running
            .as_mut()
            .ok_or_else(|| Error::fatal("the Pub/Sub source is not open: please report this as a bug"))
    }
}

impl Running {
    /// Waits for a delivery, about as long as `poll`.
    async fn delivery(
        &mut self,
        poll: Duration,
        connect_patience: Duration,
    ) -> Result<Result<Delivery, Next>> {
        self.note_resting(poll);
        if let Some(pending) = self.pending.take() {
            return Ok(Ok(pending));
        }
        // Also while other streams deliver: a full one starves until something is released. Once for each release.
        if !self.held_told && self.shared.ledger().is_any_nearly_full() {
            self.held_told = true;
            return Ok(Err(Next::Held));
        }
        match timeout(poll, self.deliveries.recv()).await {
            Ok(Some(delivery)) => return Ok(Ok(delivery?)),
            Ok(None) => {
                return Err(Error::fatal(
                    "every stream of the Pub/Sub source ended: please report this as a bug",
                ));
            }
            Err(_) => {}
        }
        if self.shared.ledger().is_any_nearly_full() {
            return Ok(Err(Next::Held));
        }
        match self.shared.outage() {
            // A service that cannot be reached is not a silent one: nobody may take it for the end.
            Some(outage) if !outage.was_up && outage.lasts > connect_patience => {
                Err(Error::transient(outage.says))
            }
            Some(_) => Ok(Err(Next::Waiting)),
            None if Instant::now() < self.quiet_from => Ok(Err(Next::Waiting)),
            None => {
                self.note_resting(poll);
                Ok(Err(Next::Idle))
            }
        }
    }

    /// Subscriptions that were silent as long as a poll takes rest, each for itself: others may go on giving.
    fn note_resting(&mut self, poll: Duration) {
        if Instant::now() < self.quiet_from {
            return;
        }
        let silent = self.giving.extract_if(.., |of| self.shared.is_silent(*of, poll));
        self.resting.extend(silent.map(|of| self.subscriptions[of].partition.clone()));
    }

    /// Makes one batch of what is there, within the budget, beginning with `first`.
    fn batch(&mut self, first: Delivery, budget: Budget, instance: u64) -> Result<RecordBatch> {
        let subscription = first.subscription;
        let mark = self.subscriptions[subscription].mark + 1;
        self.subscriptions[subscription].mark = mark;
        self.giving.insert(subscription);
        let room = first.bytes.min(budget.bytes);
        let mut records = Records::of_topic(&self.subscriptions[subscription].topic, room);
        let mut delivery = first;
        loop {
            while records.slots.len() < budget.records.max(1) && records.has_room(&delivery, budget) {
                let Some(received) = delivery.messages.next() else { break };
                records.push(&received);
            }
            if delivery.messages.len() > 0 {
                self.pending = Some(delivery);
                break;
            }
            self.shared.ledger().hand_out(delivery.group, mark, self.shared.now());
            if records.slots.len() >= budget.records || records.buffer.len() >= budget.bytes {
                break;
            }
            match self.deliveries.try_recv() {
                Ok(Ok(next)) if next.subscription == subscription => delivery = next,
                Ok(Ok(other)) => {
                    self.pending = Some(other);
                    break;
                }
                Ok(Err(error)) => return Err(error),
                Err(_) => break,
            }
        }
        Ok(RecordBatch {
            partition: self.subscriptions[subscription].partition.clone(),
            buffer: records.buffer,
            slots: records.slots,
            position: position::encode(instance, mark),
        })
    }

    /// Waits until everything that was released is acknowledged, as far as that can be had in time.
    async fn flush(&self) {
        let flushed: Vec<_> = self
            .subscriptions
            .iter()
            .filter_map(|subscription| {
                let (done, flushed) = tokio::sync::oneshot::channel();
                subscription.acks.send(AckOrder::Flush(done)).ok().map(|()| flushed)
            })
            .collect();
        let all = async {
            for done in flushed {
                // An acker that is gone has nothing left.
                let _ = done.await;
            }
        };
        if timeout(FLUSH_PATIENCE, all).await.is_err() {
            tracing::warn!(
                "acknowledgements took too long: their messages will be delivered again, and recognised"
            );
        }
    }
}

/// When the service took a message.
fn publish_ts_ms(received: &pb::ReceivedMessage) -> Option<i64> {
    let time = received.message.as_ref()?.publish_time.as_ref()?;
    Some(time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos) / 1_000_000))
}

impl Source for PubsubSource {
    fn open<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        // Positions are of earlier instances: the service itself knows what was not acknowledged.
        Box::pin(self.start(positions))
    }

    fn next(&mut self, budget: Budget) -> Fut<'_, Result<Next>> {
        Box::pin(async move {
            let (poll, patience) = (self.config.poll_interval, self.config.connect_patience);
            let instance = self.instance;
            let running = self.running()?;
            match running.delivery(poll, patience).await? {
                Ok(first) => running.batch(first, budget, instance).map(Next::Batch),
                Err(nothing) => Ok(nothing),
            }
        })
    }

    fn release<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            let instance = self.instance;
            let running = self.running()?;
            running.held_told = false;
            for (index, subscription) in running.subscriptions.iter().enumerate() {
                let Some((_, at)) = positions.iter().find(|(p, _)| *p == subscription.partition) else {
                    continue;
                };
                let Some(mark) = position::mark_of(at, instance)? else { continue };
                let now = running.shared.now();
                let ids = running.shared.ledger().release(index, mark, now);
                if !ids.is_empty() && subscription.acks.send(AckOrder::Acknowledge(ids)).is_err() {
                    return Err(Error::fatal("acknowledging ended early: please report this as a bug"));
                }
            }
            Ok(())
        })
    }

    fn close(&mut self, cancelled: bool) -> Fut<'_, Result<()>> {
        Box::pin(async move {
            let Some(mut running) = self.running.take() else { return Ok(()) };
            // Or what is given back would be delivered here again, and what nobody takes any more would be leased.
            running.tasks.shutdown().await;
            let mut back = running.shared.take_withheld();
            if cancelled {
                back.extend(running.shared.ledger().abandon());
            }
            if !back.is_empty() {
                let names: Vec<_> = running.subscriptions.iter().map(|s| s.name.clone()).collect();
                lease::give_back(&running.control, &names, back).await;
            }
            running.flush().await;
            Ok(())
        })
    }

    fn resting(&mut self) -> Vec<PartitionId> {
        self.running.as_mut().map_or_else(Vec::new, |running| std::mem::take(&mut running.resting))
    }

    fn notices(&mut self) -> Vec<Notice> {
        self.running.as_ref().map_or_else(Vec::new, |running| running.shared.take_notices())
    }

    fn figures(&self) -> Option<TellFigures> {
        let shared = self.running.as_ref()?.shared.clone();
        Some(Arc::new(move || shared.figures()))
    }
}

/// The batch of one message, for tests of what is made of it.
#[cfg(test)]
pub(crate) fn record_of(message: &pb::PubsubMessage) -> RecordBatch {
    let mut records = Records::of_topic("orders", 0);
    records.push(&pb::ReceivedMessage { message: Some(message.clone()), ..Default::default() });
    RecordBatch {
        partition: PartitionId::new("test"),
        buffer: records.buffer,
        slots: records.slots,
        position: Position::default(),
    }
}
