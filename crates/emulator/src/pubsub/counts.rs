//! What the emulator counts.

use std::collections::BTreeMap;

/// Counts of the whole server, and of each subscription.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open streams of StreamingPull.
    pub streams: u64,
    /// Messages that are with subscribers.
    pub outstanding: u64,
    /// Messages that are not acknowledged, those with subscribers included.
    pub backlog: u64,
    /// Messages that were published to topics, forwarded ones included.
    pub published: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Acks that counted.
    pub acked: u64,
    /// Leases that were given back.
    pub nacked: u64,
    /// Leases that ended without an ack.
    pub expired: u64,
    /// Messages that were forwarded to a dead-letter topic.
    pub forwarded: u64,
    /// Calls and streams that were made to fail, and messages that faults touched.
    pub faults: u64,
    /// The same by the subscription's full name.
    pub subscriptions: BTreeMap<String, SubscriptionCounts>,
}

/// Counts of one subscription.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubscriptionCounts {
    /// Open streams of StreamingPull.
    pub streams: u64,
    /// Messages that are with subscribers.
    pub outstanding: u64,
    /// Messages that are not acknowledged, those with subscribers included.
    pub backlog: u64,
    /// Deliveries.
    pub delivered: u64,
    /// Acks that counted.
    pub acked: u64,
    /// Leases that were given back.
    pub nacked: u64,
    /// Leases that ended without an ack.
    pub expired: u64,
    /// Messages that were forwarded to the dead-letter topic.
    pub forwarded: u64,
    /// Messages that the filter left out.
    pub filtered: u64,
}

impl Counts {
    /// Adds a subscription's counts.
    pub(crate) fn add(&mut self, name: String, counts: SubscriptionCounts) {
        self.streams += counts.streams;
        self.outstanding += counts.outstanding;
        self.backlog += counts.backlog;
        self.delivered += counts.delivered;
        self.acked += counts.acked;
        self.nacked += counts.nacked;
        self.expired += counts.expired;
        self.forwarded += counts.forwarded;
        self.subscriptions.insert(name, counts);
    }
}
