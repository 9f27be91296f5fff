//! All topics and subscriptions, and what is done across them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use tokio::sync::watch;
use tonic::Status;

use super::api;
use super::backlog::{Effects, Letter};
use super::clock::{Clock, TICK};
use super::counts::Counts;
use super::faults::{Dice, Faults};
use super::message::{self, BYTES_MAX};
use super::names;
use super::status;
use super::subscription::Subscription;
use super::topic::Topic;

/// A publish request's most messages.
const MESSAGES_MAX: usize = 1000;

/// What exists.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) topics: BTreeMap<String, Arc<Topic>>,
    pub(crate) subscriptions: BTreeMap<String, Arc<Subscription>>,
}

/// The emulator's state.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) clock: Clock,
    world: RwLock<World>,
    dice: Mutex<Arc<Dice>>,
    next_id: AtomicU64,
    next_tag: AtomicU32,
    boot: u8,
    stopping: watch::Receiver<bool>,
    published: AtomicU64,
    hits: AtomicU64,
}

impl Broker {
    /// An empty one.
    pub(crate) fn new(faults: Faults, stopping: watch::Receiver<bool>) -> Self {
        Self {
            clock: Clock::start(),
            world: RwLock::default(),
            dice: Mutex::new(Arc::new(Dice::new(faults))),
            next_id: AtomicU64::new(1),
            next_tag: AtomicU32::new(1),
            boot: 0,
            stopping,
            published: AtomicU64::new(0),
            hits: AtomicU64::new(0),
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
        let mut world = self.world_mut();
        if world.topics.contains_key(&config.name) {
            return Err(status::exists(&config.name));
        }
        world.topics.insert(config.name.clone(), Arc::new(Topic::new(config)));
        Ok(())
    }

    /// Deletes a topic; its subscriptions stay, with what is in them.
    pub(crate) async fn delete_topic(&self, name: &str) -> Result<(), Status> {
        names::check(name, "topics")?;
        let mut world = self.world_mut();
        let topic = world.topics.remove(name).ok_or_else(|| status::not_found(name))?;
        let orphans: Vec<_> = topic.subscriptions().drain(..).collect();
        topic.delete();
        for orphan in orphans {
            let mut config = orphan.config();
            names::DELETED_TOPIC.clone_into(&mut config.topic);
            config.topic_message_retention_duration = None;
            orphan.configure(config);
        }
        Ok(())
    }

    /// Makes a subscription of a complete configuration.
    pub(crate) async fn create_subscription(
        &self,
        mut config: api::Subscription,
    ) -> Result<api::Subscription, Status> {
        let mut world = self.world_mut();
        if world.subscriptions.contains_key(&config.name) {
            return Err(status::exists(&config.name));
        }
        let topic =
            world.topics.get(&config.topic).cloned().ok_or_else(|| status::not_found(&config.topic))?;
        config.topic_message_retention_duration = topic.config().message_retention_duration;
        let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
        let subscription = Arc::new(Subscription::new(config.clone(), tag, self.boot));
        topic.subscriptions().push(subscription.clone());
        world.subscriptions.insert(config.name.clone(), subscription);
        Ok(config)
    }

    /// Deletes a subscription.
    pub(crate) async fn delete_subscription(&self, name: &str) -> Result<(), Status> {
        names::check(name, "subscriptions")?;
        let mut world = self.world_mut();
        let subscription = world.subscriptions.remove(name).ok_or_else(|| status::not_found(name))?;
        subscription.delete();
        if let Some(topic) = world.topics.get(&subscription.config().topic) {
            topic.subscriptions().retain(|other| other.name != name);
        }
        Ok(())
    }

    /// Changes a topic's configuration; its subscriptions hear of its retention.
    pub(crate) async fn update_topic(&self, topic: &Topic, config: api::Topic) -> Result<(), Status> {
        for subscription in topic.subscriptions().iter() {
            let mut of_subscription = subscription.config();
            of_subscription.topic_message_retention_duration = config.message_retention_duration;
            subscription.configure(of_subscription);
        }
        topic.configure(config);
        Ok(())
    }

    /// Changes a subscription's configuration.
    pub(crate) async fn update_subscription(
        &self,
        subscription: &Subscription,
        config: api::Subscription,
    ) -> Result<(), Status> {
        subscription.configure(config);
        Ok(())
    }

    /// Detaches a subscription: it keeps its configuration and loses its messages.
    pub(crate) async fn detach(&self, name: &str) -> Result<(), Status> {
        let subscription = self.subscription(name)?;
        let world = self.world_mut();
        let mut config = subscription.config();
        if let Some(topic) = world.topics.get(&config.topic) {
            topic.subscriptions().retain(|other| other.name != name);
        }
        config.detached = true;
        subscription.backlog().clear();
        subscription.configure(config);
        Ok(())
    }

    /// Publishes a request's messages; the first id.
    pub(crate) async fn publish(
        &self,
        name: &str,
        messages: Vec<Bytes>,
        bytes: usize,
    ) -> Result<u64, Status> {
        let topic = self.topic(name)?;
        if messages.is_empty() {
            return Err(status::invalid("The request has no messages."));
        }
        if messages.len() > MESSAGES_MAX {
            let count = messages.len();
            return Err(status::invalid(format!(
                "A request has at most {MESSAGES_MAX} messages; this one has {count}."
            )));
        }
        if bytes > BYTES_MAX {
            return Err(status::invalid(format!(
                "A request has at most {BYTES_MAX} bytes; this one has {bytes}."
            )));
        }
        let mut key: Option<Bytes> = None;
        let mut wires = Vec::with_capacity(messages.len());
        for wire in &messages {
            let seen = message::look(wire).map_err(status::invalid)?;
            if *key.get_or_insert_with(|| seen.key.clone()) != seen.key {
                return Err(status::invalid(
                    "All messages of a publish request must have the same ordering key.",
                ));
            }
            wires.push(seen.wire);
        }
        self.hand_out(&topic, wires, &key.unwrap_or_default()).await
    }

    async fn hand_out(&self, topic: &Topic, wires: Vec<Bytes>, key: &Bytes) -> Result<u64, Status> {
        let count = wires.len() as u64;
        let first = topic.publish(wires, key, &self.next_id, &self.clock)?;
        self.published.fetch_add(count, Ordering::Relaxed);
        Ok(first)
    }

    /// Does what a change of a backlog asks for.
    pub(crate) async fn settle(&self, subscription: &Subscription) -> Result<(), Status> {
        let effects = subscription.backlog().take_effects();
        self.apply(subscription, effects).await;
        Ok(())
    }

    async fn apply(&self, subscription: &Subscription, effects: Effects) {
        if effects.wake {
            subscription.wake();
        }
        if effects.letters.is_empty() {
            return;
        }
        let config = subscription.config();
        let topic =
            config.dead_letter_policy.as_ref().and_then(|policy| self.topic(&policy.dead_letter_topic).ok());
        for letter in effects.letters {
            let published = match &topic {
                Some(topic) => self.forward(&config.name, topic, &letter).await,
                None => false,
            };
            subscription.backlog().forwarded(letter.place, published, self.clock.now());
        }
        // Being rid of a letter may free its key, and can have no further letters.
        if subscription.backlog().take_effects().wake {
            subscription.wake();
        }
    }

    async fn forward(&self, subscription: &str, topic: &Topic, letter: &Letter) -> bool {
        let time = message::rfc3339(letter.published);
        let more = [
            ("CloudPubSubDeadLetterSourceDeliveryCount", letter.attempts.to_string()),
            ("CloudPubSubDeadLetterSourceSubscription", names::id(subscription).to_owned()),
            ("CloudPubSubDeadLetterSourceSubscriptionProject", names::project(subscription).to_owned()),
            ("CloudPubSubDeadLetterSourceTopicPublishTime", time),
        ];
        let wire = message::with_attributes(&letter.wire, &more);
        let key = message::ordering_key(&wire);
        self.hand_out(topic, vec![wire], &key).await.is_ok()
    }

    /// Ends leases that are due, everywhere.
    pub(crate) async fn tick(&self) {
        let subscriptions: Vec<_> = self.world().subscriptions.values().cloned().collect();
        for subscription in subscriptions {
            subscription.backlog().expire(self.clock.now(), self.clock.wall());
            // An error is the journal's, and the next answer tells.
            let _ = self.settle(&subscription).await;
        }
    }

    /// Ticks as long as it is polled.
    pub(crate) async fn keep_ticking(&self) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            self.tick().await;
        }
    }

    /// The counts.
    pub(crate) fn counts(&self) -> Counts {
        let hits = self.hits.load(Ordering::Relaxed) + self.dice().hits.load(Ordering::Relaxed);
        let mut counts =
            Counts { published: self.published.load(Ordering::Relaxed), faults: hits, ..Counts::default() };
        let subscriptions: Vec<_> = self.world().subscriptions.values().cloned().collect();
        for subscription in subscriptions {
            let of_this = subscription.backlog().counts.clone();
            counts.add(subscription.name.clone(), of_this);
        }
        counts
    }
}
