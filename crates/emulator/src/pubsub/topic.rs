//! A topic: its configuration and its subscriptions. Publishing holds its lock while a batch gets its ids and is handed
//! to the subscriptions, so that all of them see the same order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tonic::Status;

use super::api;
use super::clock::Clock;
use super::message::Message;
use super::record::Published;
use super::snapshot::Snapshot;
use super::status;
use super::subscription::Subscription;

const RETENTION_RANGE: std::ops::RangeInclusive<i64> = 600..=31 * 24 * 3600;

/// A topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: String,
    config: Mutex<api::Topic>,
    subscriptions: Mutex<Vec<Arc<Subscription>>>,
    snapshots: Mutex<Vec<Arc<Snapshot>>>,
    deleted: AtomicBool,
}

impl Topic {
    /// One of this configuration, which has been through `complete`.
    pub(crate) fn new(config: api::Topic) -> Self {
        Self {
            name: config.name.clone(),
            config: Mutex::new(config),
            subscriptions: Mutex::default(),
            snapshots: Mutex::default(),
            deleted: AtomicBool::new(false),
        }
    }

    /// The configuration.
    pub(crate) fn config(&self) -> api::Topic {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the configuration.
    pub(crate) fn configure(&self, config: api::Topic) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Its subscriptions, locked: nothing is published meanwhile.
    pub(crate) fn subscriptions(&self) -> MutexGuard<'_, Vec<Arc<Subscription>>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its snapshots, locked; after `subscriptions`, where both are.
    pub(crate) fn snapshots(&self) -> MutexGuard<'_, Vec<Arc<Snapshot>>> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it; its subscriptions are without a topic then.
    pub(crate) fn delete(&self) -> Vec<Arc<Subscription>> {
        let mut subscriptions = self.subscriptions();
        self.deleted.store(true, Ordering::Release);
        std::mem::take(&mut *subscriptions)
    }

    /// Gives messages their ids, tells the journal, and hands them to the subscriptions; the first id.
    pub(crate) fn publish<T>(
        &self,
        messages: Vec<Bytes>,
        key: &Bytes,
        next_id: &AtomicU64,
        clock: &Clock,
        journal: impl FnOnce(Published, Vec<Bytes>) -> T,
    ) -> Result<(u64, T), Status> {
        let subscriptions = self.subscriptions();
        if self.deleted.load(Ordering::Acquire) {
            return Err(status::not_found(&self.name));
        }
        let first = next_id.fetch_add(messages.len() as u64, Ordering::Relaxed);
        let published = clock.wall();
        let record = Published {
            topic: self.name.clone(),
            first,
            time: published,
            lengths: messages.iter().map(|wire| wire.len() as u32).collect(),
        };
        let journaled = journal(record, messages.clone());
        let messages: Vec<Message> =
            messages.into_iter().zip(first..).map(|(wire, id)| Message { id, wire }).collect();
        for subscription in subscriptions.iter() {
            subscription.append(published, &messages, key);
        }
        for snapshot in self.snapshots().iter() {
            snapshot.append(published, &messages);
        }
        Ok((first, journaled))
    }
}

/// Checks a configuration and fills in what was left out.
pub(crate) fn complete(config: &mut api::Topic) -> Result<(), Status> {
    super::names::check(&config.name, "topics")?;
    if let Some(retention) = &config.message_retention_duration
        && !RETENTION_RANGE.contains(&retention.seconds)
    {
        return Err(status::invalid("message_retention_duration must be between 10 minutes and 31 days."));
    }
    if config.schema_settings.is_some() {
        return Err(Status::unimplemented("This emulator has no schemas."));
    }
    if config.ingestion_data_source_settings.is_some() || !config.message_transforms.is_empty() {
        return Err(Status::unimplemented("This emulator has neither ingestion nor message transforms."));
    }
    config.state = api::topic::State::Active as i32;
    Ok(())
}
