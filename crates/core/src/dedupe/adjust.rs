//! Changes that were in flight while a snapshot read their rows.
//!
//! PostgreSQL's order is (incarnation, p, lsn), where `p` is the position of the last commit before the transaction. A snapshot
//! read at S has the order (i, S, S). A change `c` of a transaction that was in flight at S has an LSN below S but commits after
//! S: it is newer than the read. Two facts can make its order smaller all the same:
//!
//! - its `p` is unknown (no commit was seen before it), so that its own LSN stands in; or
//! - its `p` is known but at or below S: it belongs to the first transaction that commits after an ad-hoc snapshot at S, and the
//!   last commit before that was at or below S. At most one transaction can be in this position: the next one has a `p` of at
//!   least the first one's commit, which is above S.
//!
//! What tells these changes from old ones (committed before S, delivered late or again) is the source time: a change has the
//! time of its commit, a read that of the snapshot. So where the order says that the read is newer and the time says that the
//! change is, the later *arriving* of the two is written with another `p`:
//!
//! - read first, then change: the change gets `p = S + 1`. All later transactions have a `p` above S + 1 (a commit record is longer
//!   than one byte), so it stays below them; changes of its own transaction get the same `p` and are told apart by LSN. For that
//!   the read's time is remembered while the newest event is an adjusted change.
//! - change first, then read: the read gets `p = 0`, below all changes, and is not the newest.
//!
//! In both cases the change is the newest, and the order written to histories says so. Once a change with a larger `p` is the
//! newest, nothing in question can be, and nothing more is remembered.
//!
//! Redelivery. Both events are told by their ids, which hold no `p`: a redelivered copy is a duplicate whatever its order was
//! adjusted to. After a crash the state of the last checkpoint holds the read, the change, both or neither, with the orders
//! that the same checkpoint's rows have; the events after it are judged anew and their earlier rows were never committed. So
//! no row and its gate can disagree.
//!
//! A replay whose `p` differs from the one it had before (the connector knows the last commit now, and did not then) is a
//! duplicate too; where it is a copy of the newest event this is noticed and counted.
//!
//! Incremental snapshots. Their reads come in the middle of the stream, after a window in which changes of the same key remove
//! them; their position is (last commit, last LSN) of the stream. So a read and a change whose `p` are both known compare
//! exactly, while their times do not (a read's is the connector's clock): no adjustment. A change with unknown `p` is adjusted
//! against an incremental read like against any other, S being the read's `p`.
//!
//! Flattened events carry no `p`; theirs is the LSN, and counts as known. The rule holds for them unchanged.
//!
//! Limits. MySQL's order needs none of this. A truncate in the first transaction after an ad-hoc snapshot has a `p` below S
//! and does not remove that snapshot's reads, as there is no one key whose read it meets.

use super::entry::{ADJUSTED, Entry, INCREMENTAL, P_UNKNOWN, READ};
use crate::event::{Event, Op, Snapshot};
use crate::order::Order;

/// What matters of an event here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stamp {
    /// Its order.
    pub(super) order: Order,
    /// Its source time, µs.
    pub(super) time_us: Option<i64>,
    /// Whether its `p` is the source's.
    pub(super) p_known: bool,
    /// Whether it is a snapshot read.
    pub(super) read: bool,
    /// Whether the read is of an incremental snapshot.
    pub(super) incremental: bool,
}

impl Stamp {
    /// An event's.
    pub(super) fn of(event: &Event) -> Self {
        let read = event.op == Op::Read;
        Self {
            order: event.order,
            time_us: event.facts.ts_us,
            p_known: event.p_known,
            read,
            incremental: read && event.facts.snapshot == Snapshot::Incremental,
        }
    }

    /// The order that the event must be written with instead of its own, given the newest of its key.
    pub(super) fn adjusted(&self, entry: &Entry) -> Option<Order> {
        let (&[mine, p, _], &[its, newest_p, _]) = (self.order.sections(), entry.newest.sections()) else {
            return None;
        };
        if mine != its {
            return None;
        }
        if self.read {
            return self.adjusted_read(entry);
        }
        let (s, read_us) = if entry.is(READ) {
            (newest_p, entry.time_us()?)
        } else if entry.is(ADJUSTED) {
            (newest_p.checked_sub(1)?, entry.mark_us)
        } else {
            return None;
        };
        let exact = self.p_known && entry.is(INCREMENTAL) && !(entry.is(READ) && entry.is(P_UNKNOWN));
        let overtaken = p <= s && self.time_us? > read_us && !exact;
        let above = s.checked_add(1)?;
        overtaken.then(|| self.order.with_section(1, above))
    }

    /// Makes the event the newest of `entry`; `own_order` is the order it came with.
    pub(super) fn become_newest(&self, entry: &mut Entry, own_order: &Order) {
        if self.read {
            entry.set(READ, true);
            entry.set(INCREMENTAL, self.incremental);
            entry.set(ADJUSTED, false);
            entry.mark_us = 0;
        } else {
            let adjusted = self.order != *own_order;
            if adjusted && entry.is(READ) {
                entry.mark_us = entry.time_us().unwrap_or(0);
            } else if !adjusted {
                entry.mark_us = 0;
                entry.set(INCREMENTAL, false);
            }
            entry.set(READ, false);
            entry.set(ADJUSTED, adjusted);
        }
        entry.set(P_UNKNOWN, !self.p_known);
        entry.newest = self.order;
        entry.set_time_us(if self.order.sections().len() == 3 { self.time_us } else { None });
    }

    /// Whether it is a copy of the newest event, with whatever `p`.
    pub(super) fn is_newest(&self, entry: &Entry) -> bool {
        match (self.order.sections(), entry.newest.sections()) {
            ([i, _, lsn], [newest_i, _, newest_lsn]) => {
                (i, lsn, self.read) == (newest_i, newest_lsn, entry.is(READ))
            }
            _ => self.order == entry.newest,
        }
    }

    /// Whether it is a copy of the newest event that came with another `p`.
    pub(super) fn replays_newest(&self, entry: &Entry) -> bool {
        self.is_newest(entry) && self.order != entry.newest && !entry.is(ADJUSTED)
    }

    fn adjusted_read(&self, entry: &Entry) -> Option<Order> {
        let exact = self.incremental && self.p_known && !entry.is(P_UNKNOWN);
        let overtaken =
            !entry.is(READ) && self.order > entry.newest && self.time_us? < entry.time_us()? && !exact;
        overtaken.then(|| self.order.with_section(1, 0))
    }
}
