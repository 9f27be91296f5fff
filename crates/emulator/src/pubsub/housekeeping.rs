//! What happens by itself: leases and snapshots end, and the journal gets rid of what nobody needs.

use std::collections::BTreeMap;

use super::broker::Broker;
use super::clock::TICK;
use super::journal::{Journal, Segment};
use super::record::{Carried, Record};

/// How often the journal is looked through for what nobody needs: it can mean looking at all messages of a segment.
const SWEEP_TICKS: u64 = 10;

impl Broker {
    /// Ends leases that are due, everywhere.
    pub(crate) async fn tick(&self) {
        let subscriptions: Vec<_> = self.world().subscriptions.values().cloned().collect();
        for subscription in subscriptions {
            subscription.backlog().expire(self.clock.now(), self.clock.wall());
            // An error is the journal's; the next answer tells.
            let _ = self.settle(&subscription).await;
        }
        let expired: Vec<String> = {
            let world = self.world();
            let wall = self.clock.wall();
            world.snapshots.iter().filter(|(_, s)| s.expired(wall)).map(|(name, _)| name.clone()).collect()
        };
        for name in expired {
            let _ = self.delete_snapshot(&name).await;
        }
        if let Some(journal) = self.journal().filter(|journal| journal.is_full()) {
            journal.roll(self.state());
        }
    }

    /// Ticks as long as it is polled.
    pub(crate) async fn keep_ticking(&self) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for tick in 1u64.. {
            interval.tick().await;
            self.tick().await;
            if let Some(journal) = self.journal().filter(|_| tick.is_multiple_of(SWEEP_TICKS)) {
                self.sweep(journal).await;
            }
        }
    }

    /// Deletes the oldest segment if nothing in it is needed. If there are many and little of it is, that is written
    /// anew, so that one message that nobody acknowledges does not keep all that came after it.
    async fn sweep(&self, journal: &Journal) {
        let Some((segment, many)) = journal.oldest() else { return };
        let budget = if many { segment.bytes / 2 } else { 0 };
        let Some(carried) = self.needed(&segment, budget) else { return };
        for carried in carried {
            let record = Record::Carry(carried);
            let Ok(permit) = journal.room(record.size()).await else { return };
            journal.note(record, permit);
        }
        journal.drop_segment(segment.number);
    }

    /// The segment's messages that somebody needs; nothing if they are more than so many bytes.
    fn needed(&self, segment: &Segment, budget: u64) -> Option<Vec<Carried>> {
        let mut needed: BTreeMap<u64, Carried> = BTreeMap::new();
        let mut bytes = 0;
        let ids = segment.ids.0..=segment.ids.1;
        let world = self.world();
        for subscription in world.subscriptions.values() {
            let backlog = subscription.backlog();
            for (id, kept) in backlog.alive(ids.clone(), &segment.carried) {
                bytes += kept.wire.len() as u64 + 64;
                if bytes > budget {
                    return None;
                }
                let carried = needed.entry(id).or_default();
                (carried.id, carried.time) = (id, kept.published);
                carried.wire = kept.wire;
                if kept.acked { &mut carried.acked } else { &mut carried.tags }.push(subscription.tag);
            }
        }
        for (name, snapshot) in &world.snapshots {
            for (id, kept) in snapshot.messages().iter() {
                if !ids.contains(id) && !segment.carried.contains(id) {
                    continue;
                }
                bytes += kept.wire.len() as u64 + 64;
                if bytes > budget {
                    return None;
                }
                let carried = needed.entry(*id).or_default();
                (carried.id, carried.time) = (*id, kept.published);
                carried.wire = kept.wire.clone();
                carried.snapshots.push(name.clone());
            }
        }
        Some(needed.into_values().collect())
    }
}
