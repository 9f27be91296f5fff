//! What comes again, and when: leases that end, messages that are given back, backoffs, dead letters; and with a message
//! all that follow it under its key.

use std::time::Duration;

use super::{Backlog, Letter, NOBODY, State};
use crate::pubsub::clock::{Moment, tick_after, tick_at};

/// How long a letter waits that could not be forwarded.
const FORWARD_AGAIN: Duration = Duration::from_secs(10);

impl Backlog {
    /// Delivers a message again that is with a subscriber, as the service may.
    pub(crate) fn repeat(&mut self, place: u64) {
        if self.entry(place).is_some_and(|entry| entry.state == State::Leased) {
            self.release(place);
            if let Some(entry) = self.entry(place) {
                entry.state = if entry.key == NOBODY { State::Again } else { State::Waiting };
            }
            self.come_again(place);
        }
    }

    /// Ends leases and backoffs that are due, and drops what is older than the retention.
    pub(crate) fn expire(&mut self, now: Moment, wall: i64) {
        let tick = tick_at(now);
        while let Some((due, runs)) = self.leases.due(tick) {
            for place in runs.into_iter().flat_map(|run| run.places()) {
                let Some(entry) = self.entry(place).filter(|entry| entry.due == due) else { continue };
                match entry.state {
                    State::Leased => {
                        self.counts.expired += 1;
                        self.give_back(place, now);
                    }
                    State::Backoff => self.end_backoff(place),
                    State::Waiting | State::Again | State::Forwarding | State::Acked => {}
                }
            }
        }
        let oldest = wall.saturating_sub(self.rules.retention);
        while self.entries.front().is_some_and(|entry| entry.published < oldest) {
            let place = self.base;
            self.done(place);
            self.drop_front(true);
        }
        self.trim(wall);
    }

    /// Drops acknowledged messages that are kept for no longer.
    pub(crate) fn trim(&mut self, wall: i64) {
        if let Some(kept) = self.rules.retain_acked {
            let oldest = wall.saturating_sub(kept);
            while self.entries.front().is_some_and(|entry| entry.finished && entry.published < oldest) {
                self.drop_front(true);
            }
        }
    }

    /// The lease of a message ends without an ack.
    pub(super) fn give_back(&mut self, place: u64, now: Moment) {
        self.release(place);
        let attempts_max = self.rules.attempts_max;
        let backoff = self.rules.backoff;
        let Some(entry) = self.entry(place) else { return };
        entry.returned = entry.returned.saturating_add(1);
        let (key, returned) = (entry.key, entry.returned);
        if attempts_max.is_some_and(|most| returned >= most) {
            entry.state = State::Forwarding;
            let (published, wire, next) = (entry.published, entry.wire.clone(), entry.next);
            self.effects.letters.push(Letter { place, published, attempts: returned, wire });
            if key != NOBODY {
                self.rewind(key, next);
            }
        } else if let Some((least, most)) = backoff {
            let wait = least.saturating_mul(1 << (returned - 1).min(20)).min(most);
            self.back_off(place, now + wait);
        } else {
            entry.state = State::Waiting;
            self.come_again(place);
        }
    }

    fn come_again(&mut self, place: u64) {
        self.effects.wake = true;
        match self.entry(place).map(|entry| entry.key) {
            Some(NOBODY) => self.again.push_back(place),
            Some(key) => self.rewind(key, place),
            None => {}
        }
    }

    fn back_off(&mut self, place: u64, until: Moment) {
        let due = tick_after(until);
        let Some(entry) = self.entry(place) else { return };
        entry.state = State::Backoff;
        entry.due = due;
        let key = entry.key;
        self.leases.add(due, [place]);
        if key != NOBODY {
            self.rewind(key, place);
        }
    }

    fn end_backoff(&mut self, place: u64) {
        let Some(entry) = self.entry(place) else { return };
        entry.state = State::Waiting;
        let key = entry.key;
        self.effects.wake = true;
        if key == NOBODY {
            self.again.push_back(place);
        } else {
            self.keys.key(key).blocked = false;
            self.keys.enqueue(key);
        }
    }

    /// All messages of a key from here on come again, also those that were acknowledged meanwhile.
    fn rewind(&mut self, key: u32, from: u64) {
        let mut place = from;
        while let Some(entry) = self.entry(place) {
            let (state, next) = (entry.state, entry.next);
            match state {
                State::Leased => {
                    entry.state = State::Waiting;
                    self.release(place);
                }
                State::Acked => {
                    entry.state = State::Waiting;
                    self.counts.backlog += 1;
                }
                State::Backoff if place != from => entry.state = State::Waiting,
                State::Backoff | State::Waiting | State::Again | State::Forwarding => {}
            }
            place = next;
        }
        let state = self.keys.key(key);
        // An earlier message may have brought the cursor further back already.
        state.cursor = state.cursor.min(from);
        state.blocked = false;
        self.effects.wake = true;
        self.keys.enqueue(key);
    }

    /// A letter was forwarded, or could not be and comes again later.
    pub(crate) fn forwarded(&mut self, place: u64, published: bool, now: Moment) {
        if self.entry(place).is_none_or(|entry| entry.state != State::Forwarding) {
            return;
        }
        if published {
            self.counts.forwarded += 1;
            self.done(place);
        } else {
            self.back_off(place, now + FORWARD_AGAIN);
        }
    }
}
