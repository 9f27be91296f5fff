//! Which messages are leased, until when, and what acknowledges them. Pure: time comes in as a number.
//!
//! Messages are kept in groups, as they came: a group is one response of one stream. It is leased from its arrival on,
//! handed out piece by piece, and acknowledged as a whole when the checkpoint that covers its last piece is durable.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Names a group.
pub(super) type GroupId = u64;

/// A time on the source's own clock.
pub(super) type Moment = Duration;

/// What a stream may still be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

/// Messages of one response.
#[derive(Debug)]
struct Group {
    subscription: usize,
    stream: usize,
    ack_ids: Vec<String>,
    bytes: u64,
    arrived: Moment,
    deadline: Moment,
}

/// Ids of one subscription.
pub(super) type AckIds = (usize, Vec<String>);

/// The leased messages of all streams.
#[derive(Debug)]
pub(super) struct Ledger {
    groups: BTreeMap<GroupId, Group>,
    next: GroupId,
    /// For each subscription: groups that were handed out wholly, by the mark of their last piece.
    handed_out: Vec<VecDeque<(u64, GroupId)>>,
    /// For each stream.
    outstanding: Vec<Limits>,
}

impl Ledger {
    pub(super) fn new(subscriptions: usize, streams: usize) -> Self {
        Self {
            groups: BTreeMap::new(),
            next: 0,
            handed_out: vec![VecDeque::new(); subscriptions],
            outstanding: vec![Limits { messages: 0, bytes: 0 }; streams],
        }
    }

    /// A response came.
    pub(super) fn arrive(
        &mut self,
        subscription: usize,
        stream: usize,
        ack_ids: Vec<String>,
        bytes: u64,
        now: Moment,
        lease: Duration,
    ) -> GroupId {
        let id = self.next;
        self.next += 1;
        self.outstanding[stream].messages += ack_ids.len() as u64;
        self.outstanding[stream].bytes += bytes;
        let group = Group { subscription, stream, ack_ids, bytes, arrived: now, deadline: now + lease };
        self.groups.insert(id, group);
        id
    }

    /// The last piece of a group was handed out under this mark; marks of a subscription grow.
    pub(super) fn hand_out(&mut self, group: GroupId, mark: u64) {
        if let Some(of) = self.groups.get(&group) {
            self.handed_out[of.subscription].push_back((mark, group));
        }
    }

    /// Everything of `subscription` up to `mark` is durable: the ids to acknowledge.
    pub(super) fn release(&mut self, subscription: usize, mark: u64) -> Vec<String> {
        let mut ids = Vec::new();
        let queue = &mut self.handed_out[subscription];
        while let Some((_, id)) = queue.front().filter(|(of, _)| *of <= mark).copied() {
            queue.pop_front();
            if let Some(group) = self.groups.remove(&id) {
                settle(&mut self.outstanding, &group);
                if ids.is_empty() { ids = group.ack_ids } else { ids.extend(group.ack_ids) }
            }
        }
        ids
    }

    /// The leases that end before `before`, prolonged to `until`; the ids to say so about, by subscription.
    pub(super) fn extend(&mut self, before: Moment, until: Moment) -> Vec<AckIds> {
        let mut due: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for group in self.groups.values_mut().filter(|group| group.deadline < before) {
            group.deadline = until;
            due.entry(group.subscription).or_default().extend(group.ack_ids.iter().cloned());
        }
        due.into_iter().collect()
    }

    /// Gives up groups that arrived before `before`; answers how many messages those were. They will be redelivered.
    pub(super) fn give_up(&mut self, before: Moment) -> usize {
        // Groups are numbered as they arrive.
        let mut given_up = 0;
        while let Some(entry) = self.groups.first_entry().filter(|entry| entry.get().arrived < before) {
            let group = entry.remove();
            settle(&mut self.outstanding, &group);
            given_up += group.ack_ids.len();
        }
        given_up
    }

    /// Every leased id, by subscription; nothing is leased after it.
    pub(super) fn abandon(&mut self) -> Vec<AckIds> {
        let mut all: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (_, group) in std::mem::take(&mut self.groups) {
            settle(&mut self.outstanding, &group);
            all.entry(group.subscription).or_default().extend(group.ack_ids);
        }
        all.into_iter().collect()
    }

    /// What was sent and is not acknowledged, and when the oldest of it arrived.
    pub(super) fn total(&self) -> (Limits, Option<Moment>) {
        let sum = |of: fn(&Limits) -> u64| self.outstanding.iter().map(of).sum();
        let total = Limits { messages: sum(|o| o.messages), bytes: sum(|o| o.bytes) };
        // Groups are numbered as they arrive.
        (total, self.groups.values().next().map(|group| group.arrived))
    }

    /// What a stream was sent and has not acknowledged.
    #[cfg(test)]
    fn outstanding(&self, stream: usize) -> Limits {
        self.outstanding[stream]
    }

    /// Whether some stream has everything that it may be sent.
    pub(super) fn is_full(&self, limits: Limits) -> bool {
        self.outstanding.iter().any(|o| o.messages >= limits.messages || o.bytes >= limits.bytes)
    }
}

fn settle(outstanding: &mut [Limits], group: &Group) {
    let of = &mut outstanding[group.stream];
    of.messages -= group.ack_ids.len() as u64;
    of.bytes -= group.bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    fn ids(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn a_group_is_acknowledged_when_its_last_piece_is_durable() {
        let mut ledger = Ledger::new(2, 2);
        let a = ledger.arrive(0, 0, ids(&["a1", "a2"]), 20, at(0), LEASE);
        let b = ledger.arrive(0, 1, ids(&["b1"]), 10, at(1), LEASE);
        let c = ledger.arrive(1, 0, ids(&["c1"]), 5, at(1), LEASE);
        ledger.hand_out(a, 2);
        ledger.hand_out(b, 3);
        ledger.hand_out(c, 1);
        assert!(ledger.release(0, 1).is_empty(), "its first piece alone");
        assert_eq!(ledger.release(0, 2), ids(&["a1", "a2"]));
        assert!(ledger.release(0, 2).is_empty(), "once");
        assert_eq!(ledger.outstanding(0), Limits { messages: 1, bytes: 5 });
        assert_eq!(ledger.total(), (Limits { messages: 2, bytes: 15 }, Some(at(1))));
        assert!(ledger.is_full(Limits { messages: 1, bytes: 100 }));
        assert!(!ledger.is_full(Limits { messages: 2, bytes: 100 }));
        assert_eq!(ledger.release(1, 9), ids(&["c1"]));
        assert_eq!(ledger.release(0, 9), ids(&["b1"]));
    }

    #[test]
    fn leases_are_prolonged_and_given_up() {
        let mut ledger = Ledger::new(1, 1);
        let old = ledger.arrive(0, 0, ids(&["a"]), 1, at(0), LEASE);
        ledger.arrive(0, 0, ids(&["b"]), 1, at(25), LEASE);
        assert_eq!(ledger.extend(at(40), at(55)), [(0, ids(&["a"]))]);
        assert!(ledger.extend(at(40), at(55)).is_empty(), "until then");
        assert_eq!(ledger.give_up(at(10)), 1);
        ledger.hand_out(old, 1);
        assert!(ledger.release(0, 1).is_empty(), "what was given up is not acknowledged");
        assert_eq!(ledger.abandon(), [(0, ids(&["b"]))]);
        assert_eq!(ledger.outstanding(0), Limits { messages: 0, bytes: 0 });
    }
}
