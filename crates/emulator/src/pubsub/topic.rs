//! A topic: its configuration and its subscriptions. Publishing holds its lock while a batch gets its ids and is handed
//! to the subscriptions, so that all of them see the same order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tonic::Status;

use super::api;
use super::clock::Clock;
use super::message::Message;
use super::status;
use super::subscription::Subscription;

const RETENTION_RANGE: std::ops::RangeInclusive<i64> = 600..=31 * 24 * 3600;

/// A topic.
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: String,
    config: Mutex<api::Topic>,
    subscriptions: Mutex<Vec<Arc<Subscription>>>,
    deleted: AtomicBool,
}

impl Topic {
    /// One of this configuration, which has been through `complete`.
    pub(crate) fn new(config: api::Topic) -> Self {
        Self {
            name: config.name.clone(),
            config: Mutex::new(config),
            subscriptions: Mutex::default(),
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

    /// Ends it.
    pub(crate) fn delete(&self) {
        self.deleted.store(true, Ordering::Release);
        self.subscriptions().clear();
    }

    /// Gives messages their ids and hands them to the subscriptions; the first id.
    pub(crate) fn publish(
        &self,
        messages: Vec<Bytes>,
        key: &Bytes,
        next_id: &AtomicU64,
        clock: &Clock,
    ) -> Result<u64, Status> {
        let subscriptions = self.subscriptions();
        if self.deleted.load(Ordering::Acquire) {
            return Err(status::not_found(&self.name));
        }
        let first = next_id.fetch_add(messages.len() as u64, Ordering::Relaxed);
        let published = clock.wall();
        let messages: Vec<Message> =
            messages.into_iter().zip(first..).map(|(wire, id)| Message { id, wire }).collect();
        for subscription in subscriptions.iter() {
            subscription.append(published, &messages, key);
        }
        Ok(first)
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
