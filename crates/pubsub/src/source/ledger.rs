//! Which messages are leased, until when, and what acknowledges them. Pure: time comes in as a number.
//!
//! Messages are kept in groups, as they came: a group is one response of one stream. It is leased from its arrival on,
//! handed out piece by piece, and acknowledged as a whole when the checkpoint that covers its last piece is durable.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use super::ack::{ID_BYTES_PER_CALL, IDS_PER_CALL};

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

impl Limits {
    fn are_reached_by(self, outstanding: Self) -> bool {
        outstanding.messages >= self.messages || outstanding.bytes >= self.bytes
    }
}

/// What is done about a group's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lease {
    /// Nothing before half of it is over.
    Runs,
    /// An extension is on its way.
    Extending,
    /// It ended: its messages come again.
    Lapsed,
}

/// Messages of one response.
#[derive(Debug)]
struct Group {
    subscription: usize,
    stream: usize,
    ack_ids: Vec<String>,
    messages: u64,
    bytes: u64,
    arrived: Moment,
    /// As far as the service has confirmed it.
    deadline: Moment,
    lease: Lease,
    handed_out: bool,
}

/// Ids of one subscription.
pub(super) type AckIds = (usize, Vec<String>);

/// Leases to be prolonged by one call (by more only if a single group is too large for one).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) subscription: usize,
    pub(super) groups: Vec<GroupId>,
    pub(super) ids: Vec<String>,
    /// When the first of them ends.
    pub(super) deadline: Moment,
}

/// How a subscription stands.
#[derive(Debug, Clone, Default)]
struct Account {
    /// Groups that were handed out wholly, by the mark of their last piece.
    handed_out: VecDeque<(u64, GroupId)>,
    /// Groups that were not.
    waiting: usize,
    /// When a group came or was handed out for the last time.
    moved: Moment,
}

/// How long some stream had everything that it may be sent.
#[derive(Debug, Default)]
struct Held {
    since: Option<Moment>,
    before: Duration,
}

/// The leased messages of all streams.
#[derive(Debug)]
pub(super) struct Ledger {
    groups: BTreeMap<GroupId, Group>,
    next: GroupId,
    subscriptions: Vec<Account>,
    /// For each stream.
    outstanding: Vec<Limits>,
    limits: Limits,
    held: Held,
}

impl Ledger {
    /// An empty one, of streams that may have so much outstanding each.
    pub(super) fn new(subscriptions: usize, streams: usize, limits: Limits) -> Self {
        Self {
            groups: BTreeMap::new(),
            next: 0,
            subscriptions: vec![Account::default(); subscriptions],
            outstanding: vec![Limits { messages: 0, bytes: 0 }; streams],
            limits,
            held: Held::default(),
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
        let messages = ack_ids.len() as u64;
        self.outstanding[stream].messages += messages;
        self.outstanding[stream].bytes += bytes;
        let account = &mut self.subscriptions[subscription];
        account.waiting += 1;
        account.moved = now;
        let group = Group {
            subscription,
            stream,
            ack_ids,
            messages,
            bytes,
            arrived: now,
            deadline: now + lease,
            lease: Lease::Runs,
            handed_out: false,
        };
        self.groups.insert(id, group);
        self.note_held(now);
        id
    }

    /// The last piece of a group was handed out under this mark; marks of a subscription grow.
    pub(super) fn hand_out(&mut self, id: GroupId, mark: u64, now: Moment) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.handed_out = true;
        let account = &mut self.subscriptions[group.subscription];
        account.waiting -= 1;
        account.moved = now;
        account.handed_out.push_back((mark, id));
    }

    /// Everything of `subscription` up to `mark` is durable: the ids to acknowledge.
    pub(super) fn release(&mut self, subscription: usize, mark: u64, now: Moment) -> Vec<String> {
        let mut ids = Vec::new();
        while let Some((_, id)) =
            self.subscriptions[subscription].handed_out.front().filter(|(of, _)| *of <= mark).copied()
        {
            self.subscriptions[subscription].handed_out.pop_front();
            if let Some(group) = self.groups.remove(&id) {
                self.settle(&group);
                if ids.is_empty() { ids = group.ack_ids } else { ids.extend(group.ack_ids) }
            }
        }
        self.note_held(now);
        ids
    }

    /// The leases that end before `before`; for each of them [`extended`](Self::extended) or [`lapsed`](Self::lapsed) has to follow.
    pub(super) fn due(&mut self, before: Moment) -> Vec<Due> {
        let mut full = Vec::new();
        let mut open: BTreeMap<usize, (Due, usize)> = BTreeMap::new();
        let due = |group: &Group| group.lease == Lease::Runs && group.deadline < before;
        for (id, group) in self.groups.iter_mut().filter(|(_, group)| due(group)) {
            group.lease = Lease::Extending;
            let (subscription, deadline) = (group.subscription, group.deadline);
            let bytes = group.ack_ids.iter().map(String::len).sum::<usize>();
            let fits = |(due, so_far): &(Due, usize)| {
                due.ids.len() + group.ack_ids.len() <= IDS_PER_CALL && so_far + bytes <= ID_BYTES_PER_CALL
            };
            if open.get(&subscription).is_some_and(|of| !fits(of)) {
                full.extend(open.remove(&subscription).map(|(due, _)| due));
            }
            let empty = || (Due { subscription, groups: Vec::new(), ids: Vec::new(), deadline }, 0);
            let (due, so_far) = open.entry(subscription).or_insert_with(empty);
            due.groups.push(*id);
            due.ids.extend(group.ack_ids.iter().cloned());
            due.deadline = due.deadline.min(deadline);
            *so_far += bytes;
        }
        full.extend(open.into_values().map(|(due, _)| due));
        full
    }

    /// The service confirmed that these leases run until `until`.
    pub(super) fn extended(&mut self, groups: &[GroupId], until: Moment) {
        for id in groups {
            if let Some(group) = self.groups.get_mut(id) {
                (group.deadline, group.lease) = (until, Lease::Runs);
            }
        }
    }

    /// These leases could not be prolonged. Answers how many messages that concerns: what was released meanwhile is durable.
    pub(super) fn lapsed(&mut self, groups: &[GroupId]) -> u64 {
        let mut messages = 0;
        for id in groups {
            if let Some(group) = self.groups.get_mut(id) {
                group.lease = Lease::Lapsed;
                messages += group.ack_ids.len() as u64;
            }
        }
        messages
    }

    /// The service refuses these ids for good: they acknowledge nothing any more. Answers how many are concerned.
    pub(super) fn refused(&mut self, groups: &[GroupId], ids: &HashSet<String>) -> usize {
        let mut refused = 0;
        for id in groups {
            if let Some(group) = self.groups.get_mut(id) {
                let before = group.ack_ids.len();
                group.ack_ids.retain(|id| !ids.contains(id));
                refused += before - group.ack_ids.len();
            }
        }
        refused
    }

    /// Gives up groups that arrived before `before`; answers how many messages those were. They will be redelivered.
    pub(super) fn give_up(&mut self, before: Moment, now: Moment) -> u64 {
        // Groups are numbered as they arrive.
        let mut given_up = 0;
        while let Some(entry) = self.groups.first_entry().filter(|entry| entry.get().arrived < before) {
            let group = entry.remove();
            self.settle(&group);
            given_up += group.messages;
        }
        self.note_held(now);
        given_up
    }

    /// Every leased id, by subscription; nothing is leased after it.
    pub(super) fn abandon(&mut self) -> Vec<AckIds> {
        let mut all: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for (_, group) in std::mem::take(&mut self.groups) {
            self.settle(&group);
            all.entry(group.subscription).or_default().extend(group.ack_ids);
        }
        all.into_iter().collect()
    }

    fn settle(&mut self, group: &Group) {
        let of = &mut self.outstanding[group.stream];
        of.messages -= group.messages;
        of.bytes -= group.bytes;
        if !group.handed_out {
            self.subscriptions[group.subscription].waiting -= 1;
        }
    }

    /// What was sent and is not acknowledged, and when the oldest of it arrived.
    pub(super) fn total(&self) -> (Limits, Option<Moment>) {
        let sum = |of: fn(&Limits) -> u64| self.outstanding.iter().map(of).sum();
        let total = Limits { messages: sum(|o| o.messages), bytes: sum(|o| o.bytes) };
        // Groups are numbered as they arrive.
        (total, self.groups.values().next().map(|group| group.arrived))
    }

    /// What all streams may have outstanding.
    pub(super) fn limits(&self) -> Limits {
        let streams = self.outstanding.len() as u64;
        let Limits { messages, bytes } = self.limits;
        Limits { messages: messages.saturating_mul(streams), bytes: bytes.saturating_mul(streams) }
    }

    /// Since when nothing of a subscription came or waits to be handed out; `None` if something waits.
    pub(super) fn silent_since(&self, subscription: usize) -> Option<Moment> {
        let account = &self.subscriptions[subscription];
        (account.waiting == 0).then_some(account.moved)
    }

    /// Whether a stream has nearly everything that it may be sent. An eighth is left, so that an early epoch is over before it starves.
    pub(super) fn is_nearly_full(&self, stream: usize) -> bool {
        let Limits { messages, bytes } = self.limits;
        let nearly = Limits { messages: (messages - messages / 8).max(1), bytes: (bytes - bytes / 8).max(1) };
        nearly.are_reached_by(self.outstanding[stream])
    }

    /// The same of any stream.
    pub(super) fn is_any_nearly_full(&self) -> bool {
        (0..self.outstanding.len()).any(|stream| self.is_nearly_full(stream))
    }

    /// How long some stream had everything that it may be sent, in all.
    pub(super) fn held(&self, now: Moment) -> Duration {
        self.held.before + self.held.since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }

    fn note_held(&mut self, now: Moment) {
        let full = self.outstanding.iter().any(|of| self.limits.are_reached_by(*of));
        match self.held.since {
            None if full => self.held.since = Some(now),
            Some(since) if !full => {
                self.held = Held { since: None, before: self.held.before + now.saturating_sub(since) };
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const MANY: Limits = Limits { messages: 1000, bytes: 1000 };

    fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    fn ids(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn a_group_is_acknowledged_when_its_last_piece_is_durable() {
        let mut ledger = Ledger::new(2, 2, Limits { messages: 3, bytes: 100 });
        let a = ledger.arrive(0, 0, ids(&["a1", "a2"]), 20, at(0), LEASE);
        let b = ledger.arrive(0, 1, ids(&["b1"]), 10, at(1), LEASE);
        let c = ledger.arrive(1, 0, ids(&["c1"]), 5, at(1), LEASE);
        ledger.hand_out(a, 2, at(1));
        ledger.hand_out(b, 3, at(1));
        ledger.hand_out(c, 1, at(1));
        assert!(ledger.is_nearly_full(0) && !ledger.is_nearly_full(1) && ledger.is_any_nearly_full());
        assert!(ledger.release(0, 1, at(2)).is_empty(), "its first piece alone");
        assert_eq!(ledger.release(0, 2, at(4)), ids(&["a1", "a2"]));
        assert!(ledger.release(0, 2, at(5)).is_empty(), "once");
        assert_eq!(ledger.held(at(9)), at(3), "from the response that reached the limit to the release");
        assert!(!ledger.is_any_nearly_full());
        assert_eq!(ledger.total(), (Limits { messages: 2, bytes: 15 }, Some(at(1))));
        assert_eq!(ledger.limits(), Limits { messages: 6, bytes: 200 });
        assert_eq!(ledger.release(1, 9, at(6)), ids(&["c1"]));
        assert_eq!(ledger.release(0, 9, at(6)), ids(&["b1"]));
    }

    /// A lease's deadline was moved before the service had answered, so that an extension that failed was believed: its messages
    /// were asked about again only when the lease was over.
    #[test]
    fn a_lease_runs_as_long_as_the_service_confirmed() {
        let mut ledger = Ledger::new(1, 1, MANY);
        let old = ledger.arrive(0, 0, ids(&["a"]), 1, at(0), LEASE);
        ledger.arrive(0, 0, ids(&["b"]), 1, at(25), LEASE);
        let due = Due { subscription: 0, groups: vec![old], ids: ids(&["a"]), deadline: at(30) };
        assert_eq!(ledger.due(at(40)), [due]);
        assert!(ledger.due(at(40)).is_empty(), "one call at a time");
        ledger.extended(&[old], at(46));
        assert!(ledger.due(at(46)).iter().all(|due| due.groups != [old]), "until then");
        assert_eq!(ledger.due(at(47)).len(), 1);
        assert_eq!(ledger.lapsed(&[old]), 1);
        assert!(ledger.due(at(90)).iter().all(|due| due.groups != [old]), "what has ended is not prolonged");
        assert_eq!(ledger.give_up(at(10), at(90)), 1);
        ledger.hand_out(old, 1, at(90));
        assert!(ledger.release(0, 1, at(90)).is_empty(), "what was given up is not acknowledged");
        assert_eq!(ledger.abandon(), [(0, ids(&["b"]))]);
        assert_eq!(ledger.total(), (Limits { messages: 0, bytes: 0 }, None));
    }

    #[test]
    fn what_was_released_meanwhile_is_not_told_as_lost() {
        let mut ledger = Ledger::new(1, 1, MANY);
        let group = ledger.arrive(0, 0, ids(&["a", "b", "c"]), 3, at(0), LEASE);
        assert_eq!(ledger.due(at(40)).len(), 1);
        assert_eq!(ledger.refused(&[group], &["b".to_owned()].into()), 1);
        ledger.hand_out(group, 1, at(41));
        assert_eq!(ledger.release(0, 1, at(41)), ids(&["a", "c"]));
        assert_eq!(ledger.refused(&[group], &["a".to_owned()].into()), 0);
        assert_eq!(ledger.lapsed(&[group]), 0);
        assert_eq!(ledger.total().0, Limits { messages: 0, bytes: 0 });
    }

    #[test]
    fn extensions_are_calls_of_bounded_size() {
        let mut ledger = Ledger::new(2, 2, MANY);
        for n in 0..30 {
            ledger.arrive(n % 2, n % 2, vec!["x".repeat(180); 1000], 1, at(0), LEASE);
        }
        let due = ledger.due(at(40));
        assert_eq!(due.iter().map(|due| due.groups.len()).sum::<usize>(), 30);
        assert!(due.iter().all(|due| due.ids.len() == due.groups.len() * 1000));
        assert!(due.iter().all(|due| due.ids.len() <= IDS_PER_CALL), "{:?}", due.len());
    }

    #[test]
    fn a_subscription_is_silent_when_all_of_it_was_handed_out() {
        let mut ledger = Ledger::new(2, 2, MANY);
        let a = ledger.arrive(0, 0, ids(&["a"]), 1, at(1), LEASE);
        let b = ledger.arrive(1, 1, ids(&["b"]), 1, at(1), LEASE);
        ledger.hand_out(b, 1, at(2));
        assert_eq!((ledger.silent_since(0), ledger.silent_since(1)), (None, Some(at(2))));
        ledger.hand_out(a, 1, at(3));
        assert_eq!(ledger.silent_since(0), Some(at(3)));
    }
}
