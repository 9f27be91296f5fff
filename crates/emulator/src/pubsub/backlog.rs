//! A subscription's messages and their deliveries: who holds which, until when, and what comes again. No I/O and no
//! clock: callers say what time it is. Limits: about 100 bytes a message besides its own.

mod redelivery;
mod seek;
#[cfg(test)]
mod walk;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;

use super::ack_id::AckId;
use super::clock::{Moment, tick_after};
use super::counts::SubscriptionCounts;
use super::lease::Leases;
use super::message::Message;
use super::ordering::{END, Keys, NOBODY};
use super::wire::Outgoing;

pub(crate) use seek::Kept;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// To be delivered.
    Waiting,
    /// To be delivered once more, even if the delivery before is acknowledged.
    Again,
    /// With a subscriber.
    Leased,
    /// To be delivered once its backoff is over.
    Backoff,
    /// On its way to the dead-letter topic.
    Forwarding,
    /// Acknowledged.
    Acked,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    published: i64,
    wire: Bytes,
    /// When its lease or backoff ends.
    due: u64,
    /// The next entry of its key.
    next: u64,
    key: u32,
    consumer: u32,
    /// Nacks and expiries.
    returned: u32,
    generation: u32,
    state: State,
    /// Whether the key's head went past it, so that nothing brings it back but a seek.
    finished: bool,
}

/// What a subscription's configuration says about deliveries.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    pub(crate) ordered: bool,
    pub(crate) exactly_once: bool,
    /// Nanoseconds for which acknowledged messages are kept too.
    pub(crate) retain_acked: Option<i64>,
    /// Nanoseconds after which messages are dropped.
    pub(crate) retention: i64,
    /// Attempts after which a message is a dead letter.
    pub(crate) attempts_max: Option<u32>,
    /// The least and most backoff.
    pub(crate) backoff: Option<(Duration, Duration)>,
}

/// Who a delivery is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receiver {
    /// A stream; 0 for Pull.
    pub(crate) consumer: u32,
    pub(crate) client: u32,
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
    pub(crate) lease: Duration,
}

#[derive(Debug)]
struct Consumer {
    outstanding: i64,
    bytes: i64,
    messages_max: i64,
    bytes_max: i64,
}

/// What became of an ack or a change of a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The id is not the latest of its message, or expired.
    Invalid,
    /// An earlier message of the key is not acknowledged.
    Unordered,
}

/// A message whose attempts are used up.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) place: u64,
    pub(crate) published: i64,
    pub(crate) attempts: u32,
    pub(crate) wire: Bytes,
}

/// What callers have to do after a change.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// Messages to forward, and then to `forwarded`.
    pub(crate) letters: Vec<Letter>,
    /// Ids of messages that are done with.
    pub(crate) finished: Vec<u64>,
    /// Whether there is something to deliver that was not before.
    pub(crate) wake: bool,
}

/// The part of a generation that is the same for all of an epoch; the rest counts a message's deliveries.
const EPOCH: u32 = !0xffff;

/// How many finished messages of an exactly-once subscription are remembered.
const RECENT_MAX: usize = 1 << 16;

/// The messages of a subscription.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    tag: u32,
    epoch: u32,
    base: u64,
    entries: VecDeque<Entry>,
    /// From here on nothing without a key was delivered.
    fresh: u64,
    again: VecDeque<u64>,
    keys: Keys,
    leases: Leases,
    consumers: HashMap<u32, Consumer>,
    next_consumer: u32,
    recent: (VecDeque<u64>, HashMap<u64, u32>),
    pub(crate) rules: Rules,
    pub(crate) counts: SubscriptionCounts,
    effects: Effects,
    /// Whether `Effects::finished` is of interest.
    pub(crate) journaled: bool,
}

impl Backlog {
    /// An empty one. `boot` differs from start to start, so that ack ids of former ones are known for what they are.
    pub(crate) fn new(tag: u32, boot: u8, rules: Rules) -> Self {
        Self { tag, epoch: u32::from(boot) << 24, rules, ..Self::default() }
    }

    /// What is to be done after the changes so far.
    pub(crate) fn take_effects(&mut self) -> Effects {
        std::mem::take(&mut self.effects)
    }

    /// The same, to look at.
    pub(crate) fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    /// Whether a message is delivered in the order of a key.
    pub(crate) fn is_keyed(&mut self, place: u64) -> bool {
        self.entry(place).is_some_and(|entry| entry.key != NOBODY)
    }

    /// Whether a fault may bring this delivery back. One of a key brings all that follow it: if each of those could bring its
    /// followers in turn, a key's tail would come again without end, which the service does not do. So of a key's messages only
    /// first deliveries are drawn.
    pub(crate) fn may_come_back(&mut self, ack: AckId) -> bool {
        !self.is_keyed(ack.place) || ack.generation & !EPOCH == 1
    }

    /// Adds a published message.
    pub(crate) fn append(&mut self, published: i64, message: &Message, key: &Bytes) {
        let place = self.base + self.entries.len() as u64;
        let key = if self.rules.ordered && !key.is_empty() { self.keys.number(key) } else { NOBODY };
        self.entries.push_back(Entry {
            id: message.id,
            published,
            wire: message.wire.clone(),
            due: 0,
            next: END,
            key,
            consumer: 0,
            returned: 0,
            generation: self.epoch,
            state: State::Waiting,
            finished: false,
        });
        self.counts.backlog += 1;
        self.effects.wake = true;
        if key != NOBODY {
            self.link(key, place);
        }
    }

    fn link(&mut self, key: u32, place: u64) {
        let state = self.keys.key(key);
        let tail = std::mem::replace(&mut state.tail, place);
        if state.head == END {
            state.head = place;
        }
        if state.cursor == END {
            state.cursor = place;
        }
        if tail != END
            && let Some(entry) = self.entry(tail)
        {
            entry.next = place;
        }
        self.keys.enqueue(key);
    }

    fn entry(&mut self, place: u64) -> Option<&mut Entry> {
        self.entries.get_mut(usize::try_from(place.checked_sub(self.base)?).ok()?)
    }

    /// A stream opens. Limits below 1 are none.
    pub(crate) fn join(&mut self, client: &str, messages_max: i64, bytes_max: i64) -> (u32, u32) {
        self.next_consumer = self.next_consumer.wrapping_add(1).max(1);
        let unlimited = |limit: i64| if limit <= 0 { i64::MAX } else { limit };
        let (messages_max, bytes_max) = (unlimited(messages_max), unlimited(bytes_max));
        self.consumers
            .insert(self.next_consumer, Consumer { outstanding: 0, bytes: 0, messages_max, bytes_max });
        self.counts.streams += 1;
        (self.next_consumer, self.keys.client(client))
    }

    /// A stream ended; what it holds stays leased.
    pub(crate) fn leave(&mut self, consumer: u32, client: u32) {
        self.consumers.remove(&consumer);
        self.keys.leave(client);
        self.counts.streams = self.counts.streams.saturating_sub(1);
    }

    /// A client for one Pull.
    pub(crate) fn pull_client(&mut self) -> u32 {
        self.keys.client("")
    }

    /// The Pull of that client is over.
    pub(crate) fn end_pull(&mut self, client: u32) {
        self.keys.leave(client);
    }

    /// Takes messages to deliver: those that come again, those with keys, new ones.
    pub(crate) fn deliver(&mut self, to: Receiver, now: Moment) -> Vec<Outgoing> {
        let mut batch = Batch {
            out: Vec::new(),
            messages: to.messages,
            bytes: to.bytes as i64,
            consumer: to.consumer,
            due: tick_after(now + to.lease),
        };
        if let Some(consumer) = self.consumers.get(&to.consumer) {
            let free = (consumer.messages_max - consumer.outstanding).max(0);
            batch.messages = batch.messages.min(usize::try_from(free).unwrap_or(usize::MAX));
            batch.bytes = batch.bytes.min(consumer.bytes_max.saturating_sub(consumer.bytes));
        }
        self.deliver_again(&mut batch);
        // Whoever comes first could starve the other.
        if self.counts.delivered.is_multiple_of(2) {
            self.deliver_keys(&mut batch, to.client);
            self.deliver_fresh(&mut batch);
        } else {
            self.deliver_fresh(&mut batch);
            self.deliver_keys(&mut batch, to.client);
        }
        let out = batch.out;
        if !out.is_empty() {
            if let Some(consumer) = self.consumers.get_mut(&to.consumer) {
                consumer.outstanding += out.len() as i64;
                consumer.bytes += out.iter().map(|outgoing| outgoing.wire.len() as i64).sum::<i64>();
            }
            self.counts.outstanding += out.len() as u64;
            self.counts.delivered += out.len() as u64;
            self.leases.add(batch.due, out.iter().map(|outgoing| outgoing.ack.place));
        }
        out
    }

    fn deliver_again(&mut self, batch: &mut Batch) {
        while batch.has_room()
            && let Some(place) = self.again.pop_front()
        {
            self.lease(place, batch);
        }
    }

    fn deliver_fresh(&mut self, batch: &mut Batch) {
        self.fresh = self.fresh.max(self.base);
        let end = self.base + self.entries.len() as u64;
        while batch.has_room() && self.fresh < end {
            let place = self.fresh;
            self.fresh += 1;
            if self.entry(place).is_some_and(|entry| entry.key == NOBODY) {
                self.lease(place, batch);
            }
        }
    }

    fn deliver_keys(&mut self, batch: &mut Batch, client: u32) {
        while batch.has_room()
            && let Some(number) = self.keys.turn(client)
        {
            let mut cursor = self.keys.key(number).cursor;
            let before = batch.out.len();
            while cursor != END && batch.has_room() {
                let place = cursor;
                let Some(entry) = self.entry(place) else {
                    cursor = END;
                    break;
                };
                if entry.state == State::Backoff {
                    self.keys.key(number).blocked = true;
                    break;
                }
                cursor = entry.next;
                self.lease(place, batch);
            }
            self.keys.key(number).cursor = cursor;
            self.keys.hold(number, client, (batch.out.len() - before) as u32);
            self.keys.enqueue(number);
        }
    }

    fn lease(&mut self, place: u64, batch: &mut Batch) {
        let tag = self.tag;
        let counted = self.rules.attempts_max.is_some();
        let deliverable = |entry: &&mut Entry| matches!(entry.state, State::Waiting | State::Again);
        let Some(entry) = self.entry(place).filter(deliverable) else { return };
        entry.state = State::Leased;
        entry.consumer = batch.consumer;
        entry.due = batch.due;
        entry.generation = entry.generation.wrapping_add(1);
        batch.messages -= 1;
        batch.bytes -= entry.wire.len() as i64;
        batch.out.push(Outgoing {
            ack: AckId { tag, generation: entry.generation, place },
            id: entry.id,
            published: entry.published,
            attempt: if counted { entry.returned.saturating_add(1) } else { 0 },
            wire: entry.wire.clone(),
        });
    }

    /// Whether the id could be one of this subscription.
    pub(crate) fn knows(&self, id: AckId) -> bool {
        id.tag == self.tag
    }

    /// Acknowledges a message.
    pub(crate) fn acknowledge(&mut self, id: AckId) -> Outcome {
        let (exactly_once, epoch) = (self.rules.exactly_once, id.generation & EPOCH);
        let Some(entry) = self.entry(id.place).filter(|entry| entry.generation & EPOCH == epoch) else {
            let latest = self.recent.1.get(&id.place) == Some(&id.generation);
            return if latest { Outcome::Done } else { Outcome::Invalid };
        };
        let (state, key, latest) = (entry.state, entry.key, entry.generation == id.generation);
        match state {
            State::Acked => return if latest { Outcome::Done } else { Outcome::Invalid },
            State::Leased if latest || !exactly_once => {}
            // Without exactly-once delivery a late ack may still count; but what waits to come again behind a
            // message of its key must come again.
            State::Waiting | State::Backoff if !exactly_once && key == NOBODY => {}
            _ => return Outcome::Invalid,
        }
        if exactly_once && key != NOBODY && self.keys.key(key).head != id.place {
            return Outcome::Unordered;
        }
        self.counts.acked += 1;
        self.done(id.place);
        Outcome::Done
    }

    /// Changes when a lease ends; 0 seconds give the message back.
    pub(crate) fn modify(&mut self, id: AckId, lease: Duration, now: Moment) -> Outcome {
        let due = tick_after(now + lease);
        let Some(entry) = self.entry(id.place) else { return Outcome::Invalid };
        if entry.state != State::Leased || entry.generation != id.generation {
            return Outcome::Invalid;
        }
        if lease.is_zero() {
            self.counts.nacked += 1;
            self.give_back(id.place, now);
        } else {
            entry.due = due;
            self.leases.add(due, [id.place]);
        }
        Outcome::Done
    }

    /// A message is with its subscriber no more.
    fn release(&mut self, place: u64) {
        let Some(entry) = self.entry(place) else { return };
        let (consumer, bytes, key) = (entry.consumer, entry.wire.len() as i64, entry.key);
        self.counts.outstanding = self.counts.outstanding.saturating_sub(1);
        if let Some(consumer) = self.consumers.get_mut(&consumer) {
            // Another stream may have waited for room.
            self.effects.wake |=
                consumer.outstanding >= consumer.messages_max || consumer.bytes >= consumer.bytes_max;
            consumer.outstanding -= 1;
            consumer.bytes -= bytes;
        }
        if key != NOBODY {
            self.keys.let_go(key);
            self.effects.wake = true;
        }
    }

    /// A message is acknowledged, forwarded or dropped.
    fn done(&mut self, place: u64) {
        let Some(entry) = self.entry(place).filter(|entry| entry.state != State::Acked) else { return };
        let (state, key, generation) = (entry.state, entry.key, entry.generation);
        if state == State::Leased {
            self.release(place);
        }
        if let Some(entry) = self.entry(place) {
            entry.state = State::Acked;
        }
        self.counts.backlog = self.counts.backlog.saturating_sub(1);
        if self.rules.exactly_once {
            self.remember(place, generation);
        }
        if key == NOBODY {
            self.finish(place);
        } else {
            self.advance(key, place);
        }
        self.drop_front(false);
    }

    /// A key's head goes past what is acknowledged.
    fn advance(&mut self, key: u32, done: u64) {
        if self.keys.key(key).cursor == done {
            // Dropped before it was delivered.
            let next = self.entry(done).map_or(END, |entry| entry.next);
            let state = self.keys.key(key);
            (state.cursor, state.blocked) = (next, false);
            self.keys.enqueue(key);
        }
        let mut head = self.keys.key(key).head;
        while let Some(entry) = self.entry(head).filter(|entry| entry.state == State::Acked) {
            let next = entry.next;
            self.finish(head);
            head = next;
        }
        self.keys.key(key).head = head;
        if head == END {
            self.keys.remove(key);
        }
    }

    fn finish(&mut self, place: u64) {
        let (keep, journaled) = (self.rules.retain_acked.is_some(), self.journaled);
        let Some(entry) = self.entry(place) else { return };
        entry.finished = true;
        entry.key = NOBODY;
        if !keep {
            entry.wire = Bytes::new();
        }
        let id = entry.id;
        if journaled {
            self.effects.finished.push(id);
        }
    }

    fn remember(&mut self, place: u64, generation: u32) {
        let (order, latest) = &mut self.recent;
        if latest.insert(place, generation).is_none() {
            order.push_back(place);
        }
        if order.len() > RECENT_MAX
            && let Some(oldest) = order.pop_front()
        {
            latest.remove(&oldest);
        }
    }

    /// Lets go of finished entries at the front; of retained ones only when told.
    fn drop_front(&mut self, retained: bool) {
        if self.rules.retain_acked.is_some() && !retained {
            return;
        }
        while self.entries.front().is_some_and(|entry| entry.finished) {
            self.entries.pop_front();
            self.base += 1;
            if retained {
                break;
            }
        }
    }

    /// Forgets all messages; streams stay.
    pub(crate) fn clear(&mut self) {
        self.base += self.entries.len() as u64;
        self.entries.clear();
        self.again.clear();
        self.keys.clear();
        self.leases.clear();
        for consumer in self.consumers.values_mut() {
            (consumer.outstanding, consumer.bytes) = (0, 0);
        }
        (self.counts.backlog, self.counts.outstanding) = (0, 0);
        self.effects.letters.clear();
    }
}

/// A delivery in the making.
#[derive(Debug)]
struct Batch {
    out: Vec<Outgoing>,
    messages: usize,
    bytes: i64,
    consumer: u32,
    due: u64,
}

impl Batch {
    fn has_room(&self) -> bool {
        self.messages > 0 && self.bytes > 0
    }
}
