//! Snapshots: what a subscription had not acknowledged at a time, and all that its topic got since.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::api;
use super::backlog::Kept;
use super::message::Message;

const LIFETIME: i64 = 7 * 24 * 3600 * 1_000_000_000;
const LIFETIME_LEAST: i64 = 3600 * 1_000_000_000;

/// A snapshot.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) topic: String,
    config: Mutex<api::Snapshot>,
    messages: Mutex<VecDeque<(u64, Kept)>>,
}

impl Snapshot {
    /// One of these messages.
    pub(crate) fn new(config: api::Snapshot, messages: impl Iterator<Item = (u64, Kept)>) -> Self {
        let messages = messages.filter(|(_, kept)| !kept.acked).collect();
        Self { topic: config.topic.clone(), config: Mutex::new(config), messages: Mutex::new(messages) }
    }

    /// Its description.
    pub(crate) fn config(&self) -> api::Snapshot {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes its description.
    pub(crate) fn configure(&self, config: api::Snapshot) {
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Its messages, locked.
    pub(crate) fn messages(&self) -> MutexGuard<'_, VecDeque<(u64, Kept)>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was published.
    pub(crate) fn append(&self, published: i64, messages: &[Message]) {
        let kept =
            |message: &Message| (message.id, Kept { published, wire: message.wire.clone(), acked: false });
        self.messages().extend(messages.iter().map(kept));
    }

    /// Whether its time is over.
    pub(crate) fn expired(&self, wall: i64) -> bool {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        config.expire_time.as_ref().is_some_and(|time| nanos(time) <= wall)
    }
}

/// When a snapshot of a backlog with this oldest message expires; nothing if that is too soon.
pub(crate) fn expiry(oldest: Option<i64>, wall: i64) -> Option<prost_types::Timestamp> {
    let expires = oldest.unwrap_or(wall).min(wall).saturating_add(LIFETIME);
    (expires - wall >= LIFETIME_LEAST).then(|| prost_types::Timestamp {
        seconds: expires.div_euclid(1_000_000_000),
        nanos: expires.rem_euclid(1_000_000_000) as i32,
    })
}

/// A timestamp's nanoseconds since 1970.
pub(crate) fn nanos(time: &prost_types::Timestamp) -> i64 {
    time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanos))
}
