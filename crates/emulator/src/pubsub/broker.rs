//! All topics and subscriptions, and what is done across them.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;
use tonic::Status;

use super::api;
use super::clock::Clock;
use super::counts::Counts;
use super::faults::{Dice, Faults};
use super::journal::{self, Journal, Pending, Permit};
use super::names;
use super::record::{Record, State, Subscribed};
use super::recovery::{self, Past};
use super::snapshot::Snapshot;
use super::status;
use super::subscription::Subscription;
use super::topic::Topic;

/// What a record without messages takes at most, about.
pub(crate) const RECORD_BYTES: usize = 4096;

/// What exists.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) topics: BTreeMap<String, Arc<Topic>>,
    pub(crate) subscriptions: BTreeMap<String, Arc<Subscription>>,
    pub(crate) snapshots: BTreeMap<String, Arc<Snapshot>>,
}

/// The emulator's state.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) clock: Clock,
    world: RwLock<World>,
    dice: Mutex<Arc<Dice>>,
    pub(crate) next_id: AtomicU64,
    next_tag: AtomicU32,
    boot: u8,
    journal: Option<Journal>,
    stopping: watch::Receiver<bool>,
    pub(crate) published: AtomicU64,
    hits: AtomicU64,
}

/// Waits until a record is on disk.
pub(crate) async fn durable(pending: Option<Pending>) -> Result<(), Status> {
    match pending {
        Some(pending) => pending.await.map_err(|_| journal::failure()),
        None => Ok(()),
    }
}

impl Broker {
    /// An empty one, or what the journal in this directory says.
    pub(crate) fn open(
        data: Option<&Path>,
        faults: Faults,
        stopping: watch::Receiver<bool>,
    ) -> io::Result<Self> {
        let mut broker = Self {
            clock: Clock::start(),
            world: RwLock::default(),
            dice: Mutex::new(Arc::new(Dice::new(faults))),
            next_id: AtomicU64::new(1),
            next_tag: AtomicU32::new(1),
            boot: 0,
            journal: None,
            stopping,
            published: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        };
        let Some(directory) = data else { return Ok(broker) };
        let lock = recovery::take(directory)?;
        let (mut past, segments) = recovery::read(directory)?;
        past.forget_expired(broker.clock.wall());
        broker.recover(past);
        broker.journal = Some(Journal::start(directory, segments, broker.state(), lock)?);
        for subscription in broker.world().subscriptions.values() {
            subscription.backlog().journaled = true;
        }
        Ok(broker)
    }

    fn recover(&mut self, past: Past) {
        self.next_id = AtomicU64::new(past.next_id);
        self.next_tag = AtomicU32::new(past.next_tag);
        self.boot = (past.boot as u8).wrapping_add(1);
        let mut world = self.world_mut();
        for (name, config) in past.topics {
            world.topics.insert(name, Arc::new(Topic::new(config)));
        }
        for (name, recovered) in past.subscriptions {
            let (topic, detached) = (recovered.config.topic.clone(), recovered.config.detached);
            let subscription = Arc::new(Subscription::new(recovered.config, recovered.tag, self.boot));
            subscription.backlog().rebuild(recovered.messages);
            if let Some(topic) = world.topics.get(&topic).filter(|_| !detached) {
                topic.subscriptions().push(subscription.clone());
            }
            world.subscriptions.insert(name, subscription);
        }
        for (name, recovered) in past.snapshots {
            let snapshot = Arc::new(Snapshot::new(recovered.config, recovered.messages.into_iter()));
            if let Some(topic) = world.topics.get(&snapshot.topic) {
                topic.snapshots().push(snapshot.clone());
            }
            world.snapshots.insert(name, snapshot);
        }
    }

    /// What exists, to look at.
    pub(crate) fn world(&self) -> RwLockReadGuard<'_, World> {
        self.world.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What exists, to change.
    pub(crate) fn world_mut(&self) -> RwLockWriteGuard<'_, World> {
        self.world.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when the server stops.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.clone()
    }

    /// The faults at work.
    pub(crate) fn dice(&self) -> Arc<Dice> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the faults.
    pub(crate) fn set_faults(&self, faults: Faults) {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        self.hits.fetch_add(dice.hits.load(Ordering::Relaxed), Ordering::Relaxed);
        *dice = Arc::new(Dice::new(faults));
    }

    /// A topic.
    pub(crate) fn topic(&self, name: &str) -> Result<Arc<Topic>, Status> {
        match self.world().topics.get(name) {
            Some(topic) => Ok(topic.clone()),
            None => names::check(name, "topics").and_then(|()| Err(status::not_found(name))),
        }
    }

    /// A subscription.
    pub(crate) fn subscription(&self, name: &str) -> Result<Arc<Subscription>, Status> {
        match self.world().subscriptions.get(name) {
            Some(subscription) => Ok(subscription.clone()),
            None => names::check(name, "subscriptions").and_then(|()| Err(status::not_found(name))),
        }
    }

    /// Makes a topic of a complete configuration.
    pub(crate) async fn create_topic(&self, config: api::Topic) -> Result<(), Status> {
        let room = self.room(RECORD_BYTES).await?;
        let pending = {
            let mut world = self.world_mut();
            if world.topics.contains_key(&config.name) {
                return Err(status::exists(&config.name));
            }
            world.topics.insert(config.name.clone(), Arc::new(Topic::new(config.clone())));
            self.write(room, || Record::Topic(Box::new(config)))
        };
        durable(pending).await
    }

    /// Deletes a topic; its subscriptions stay, with what is in them.
    pub(crate) async fn delete_topic(&self, name: &str) -> Result<(), Status> {
        names::check(name, "topics")?;
        let room = self.room(RECORD_BYTES).await?;
        let pending = {
            let mut world = self.world_mut();
            let topic = world.topics.remove(name).ok_or_else(|| status::not_found(name))?;
            for orphan in topic.delete() {
                let mut config = orphan.config();
                names::DELETED_TOPIC.clone_into(&mut config.topic);
                config.topic_message_retention_duration = None;
                orphan.configure(config);
            }
            self.write(room, || Record::TopicGone(name.to_owned()))
        };
        durable(pending).await
    }

    /// Makes a subscription of a complete configuration.
    pub(crate) async fn create_subscription(
        &self,
        mut config: api::Subscription,
    ) -> Result<api::Subscription, Status> {
        let room = self.room(RECORD_BYTES).await?;
        let pending = {
            let mut world = self.world_mut();
            if world.subscriptions.contains_key(&config.name) {
                return Err(status::exists(&config.name));
            }
            let topic = world.topics.get(&config.topic).cloned();
            let topic = topic.ok_or_else(|| status::not_found(&config.topic))?;
            config.topic_message_retention_duration = topic.config().message_retention_duration;
            let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
            let subscription = Arc::new(Subscription::new(config.clone(), tag, self.boot));
            subscription.backlog().journaled = self.journal.is_some();
            // What is published from here on is behind the record, and in the subscription.
            let mut subscriptions = topic.subscriptions();
            subscriptions.push(subscription.clone());
            world.subscriptions.insert(config.name.clone(), subscription);
            let subscribed = Subscribed { tag, config: Some(config.clone()), created: true };
            self.write(room, || Record::Subscription(Box::new(subscribed)))
        };
        durable(pending).await?;
        Ok(config)
    }

    /// Deletes a subscription.
    pub(crate) async fn delete_subscription(&self, name: &str) -> Result<(), Status> {
        names::check(name, "subscriptions")?;
        let room = self.room(RECORD_BYTES).await?;
        let pending = {
            let mut world = self.world_mut();
            let subscription = world.subscriptions.remove(name).ok_or_else(|| status::not_found(name))?;
            subscription.delete();
            if let Some(topic) = world.topics.get(&subscription.config().topic) {
                topic.subscriptions().retain(|other| other.name != name);
            }
            self.write(room, || Record::SubscriptionGone(name.to_owned()))
        };
        durable(pending).await
    }

    /// Changes a topic's configuration; its subscriptions hear of its retention.
    pub(crate) async fn update_topic(&self, topic: &Topic, config: api::Topic) -> Result<(), Status> {
        let subscriptions = topic.subscriptions().clone();
        for subscription in subscriptions {
            let mut of_subscription = subscription.config();
            of_subscription.topic_message_retention_duration = config.message_retention_duration;
            self.update_subscription(&subscription, of_subscription).await?;
        }
        let room = self.room(RECORD_BYTES).await?;
        topic.configure(config.clone());
        durable(self.write(room, || Record::Topic(Box::new(config)))).await
    }

    /// Changes a subscription's configuration.
    pub(crate) async fn update_subscription(
        &self,
        subscription: &Subscription,
        config: api::Subscription,
    ) -> Result<(), Status> {
        let room = self.room(RECORD_BYTES).await?;
        subscription.configure(config.clone());
        let subscribed = Subscribed { tag: subscription.tag, config: Some(config), created: false };
        durable(self.write(room, || Record::Subscription(Box::new(subscribed)))).await
    }

    /// Detaches a subscription: it keeps its configuration and loses its messages.
    pub(crate) async fn detach(&self, name: &str) -> Result<(), Status> {
        let subscription = self.subscription(name)?;
        let mut config = subscription.config();
        if let Ok(topic) = self.topic(&config.topic) {
            topic.subscriptions().retain(|other| other.name != name);
        }
        config.detached = true;
        subscription.backlog().clear();
        self.update_subscription(&subscription, config).await
    }

    /// The journal.
    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Waits until the journal has room, if there is one.
    pub(crate) async fn room(&self, bytes: usize) -> Result<Option<Permit>, Status> {
        match &self.journal {
            Some(journal) => journal.room(bytes).await.map(Some),
            None => Ok(None),
        }
    }

    /// Writes a record to the journal, if there is one.
    pub(crate) fn write(&self, room: Option<Permit>, record: impl FnOnce() -> Record) -> Option<Pending> {
        Some(self.journal.as_ref()?.write(record(), room?))
    }

    /// All that the journal needs to know besides messages.
    pub(crate) fn state(&self) -> State {
        let world = self.world();
        let subscribed =
            |s: &Arc<Subscription>| Subscribed { tag: s.tag, config: Some(s.config()), created: false };
        State {
            next_id: self.next_id.load(Ordering::Relaxed),
            next_tag: self.next_tag.load(Ordering::Relaxed),
            boot: u32::from(self.boot),
            topics: world.topics.values().map(|topic| topic.config()).collect(),
            subscriptions: world.subscriptions.values().map(subscribed).collect(),
            snapshots: world.snapshots.values().map(|snapshot| snapshot.config()).collect(),
        }
    }

    /// The counts.
    pub(crate) fn counts(&self) -> Counts {
        let hits = self.hits.load(Ordering::Relaxed) + self.dice().hits.load(Ordering::Relaxed);
        let published = self.published.load(Ordering::Relaxed);
        let mut counts = Counts { published, faults: hits, ..Counts::default() };
        let subscriptions: Vec<_> = self.world().subscriptions.values().cloned().collect();
        for subscription in subscriptions {
            let of_this = subscription.backlog().counts.clone();
            counts.add(subscription.name.clone(), of_this);
        }
        counts
    }
}
