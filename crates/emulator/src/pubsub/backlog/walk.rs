//! Random walks over a backlog: whatever subscribers do, nothing is lost, keys keep their order, and nothing stays behind.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;

use super::{Backlog, Outcome, Receiver, Rules};
use crate::pubsub::ack_id::AckId;
use crate::pubsub::faults::{Dice, Faults};
use crate::pubsub::message::Message;

const KEYS: usize = 5;

struct Walk {
    backlog: Backlog,
    dice: Dice,
    now: Duration,
    streams: Vec<(u32, u32)>,
    held: Vec<(AckId, u64)>,
    keys: HashMap<u64, (usize, usize)>,
    published: [usize; KEYS],
    last: [usize; KEYS],
    acked: HashSet<u64>,
    next: u64,
}

impl Walk {
    fn new(seed: u64, rules: Rules) -> Self {
        let mut backlog = Backlog::new(1, 0, rules);
        let streams = (0..3).map(|n| backlog.join(["a", "b", ""][n], 1 + n as i64 * 7, 0)).collect();
        Self {
            backlog,
            dice: Dice::new(Faults { seed, ..Faults::default() }),
            now: Duration::ZERO,
            streams,
            held: Vec::new(),
            keys: HashMap::new(),
            published: [0; KEYS],
            last: [0; KEYS],
            acked: HashSet::new(),
            next: 1,
        }
    }

    fn publish(&mut self) {
        // Key 0 is none.
        let key = self.dice.below(KEYS);
        let name = if key == 0 { Bytes::new() } else { Bytes::from(vec![b'k', key as u8]) };
        let message = Message { id: self.next, wire: Bytes::from_static(b"wire") };
        self.backlog.append(0, &message, &name);
        self.published[key] += 1;
        self.keys.insert(self.next, (key, self.published[key]));
        self.next += 1;
    }

    fn deliver(&mut self) {
        let at = self.dice.below(self.streams.len());
        let (consumer, client) = self.streams[at];
        let messages = 1 + self.dice.below(6);
        let to = Receiver { consumer, client, messages, bytes: 1000, lease: Duration::from_secs(10) };
        for out in self.backlog.deliver(to, self.now) {
            let (key, place) = self.keys[&out.id];
            if key > 0 && self.backlog.rules.ordered {
                let last = std::mem::replace(&mut self.last[key], place);
                assert!(place <= last + 1, "key {key}: {place} came after {last}");
            }
            if self.backlog.rules.exactly_once {
                assert!(!self.acked.contains(&out.id), "{} came after its ack", out.id);
            }
            self.held.push((out.ack, out.id));
        }
    }

    fn acknowledge(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.dice.below(self.held.len());
        let (ack, id) = self.held.swap_remove(at);
        if self.backlog.acknowledge(ack) == Outcome::Done {
            self.acked.insert(id);
        }
    }

    fn modify(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.dice.below(self.held.len());
        let seconds = [0, 0, 30][self.dice.below(3)];
        self.backlog.modify(self.held[at].0, Duration::from_secs(seconds), self.now);
    }

    fn step(&mut self) {
        match self.dice.below(20) {
            0..=4 => self.publish(),
            5..=10 => self.deliver(),
            11..=15 => self.acknowledge(),
            16 | 17 => self.modify(),
            18 => {
                self.now += Duration::from_secs(self.dice.below(8) as u64);
                self.backlog.expire(self.now, 0);
            }
            _ => {
                let at = self.dice.below(self.streams.len());
                let (consumer, client) = self.streams.swap_remove(at);
                self.backlog.leave(consumer, client);
                let name = ["a", "b", ""][self.dice.below(3)];
                self.streams.push(self.backlog.join(name, self.dice.below(9) as i64, 0));
            }
        }
    }

    /// Acknowledges all until nothing comes any more.
    fn drain(&mut self) {
        for _ in 0..200_000 {
            if self.backlog.counts.backlog == 0 {
                return;
            }
            self.deliver();
            for _ in 0..self.held.len() {
                self.acknowledge();
            }
            self.now += Duration::from_secs(3);
            self.backlog.expire(self.now, 0);
        }
        panic!("{:?} stay", self.backlog.counts);
    }
}

fn walk(rules: &Rules) {
    for seed in 0..30 {
        let mut walk = Walk::new(seed, rules.clone());
        for _ in 0..3000 {
            walk.step();
        }
        walk.drain();
        assert_eq!(walk.acked.len() as u64, walk.next - 1);
        assert!(walk.backlog.entries.is_empty(), "finished entries go");
        assert_eq!(walk.backlog.counts.outstanding, 0);
        assert!(
            walk.backlog.consumers.values().all(|consumer| consumer.outstanding == 0 && consumer.bytes == 0)
        );
        assert!(walk.backlog.keys.is_empty());
    }
}

fn rules() -> Rules {
    Rules { retention: i64::MAX, ..Rules::default() }
}

#[test]
fn without_order_nothing_is_lost() {
    walk(&rules());
}

#[test]
fn keys_keep_their_order() {
    walk(&Rules { ordered: true, ..rules() });
}

#[test]
fn backoffs_keep_keys_in_order() {
    let backoff = Some((Duration::from_secs(1), Duration::from_secs(20)));
    walk(&Rules { ordered: true, backoff, ..rules() });
}

#[test]
fn exactly_once_delivers_nothing_after_its_ack() {
    walk(&Rules { exactly_once: true, ..rules() });
}
