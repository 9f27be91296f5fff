//! Snapshot reads against changes of the same key, where their orders do not tell which is newer.
//!
//! PostgreSQL's order is (incarnation, p, lsn), where `p` is the position of the last commit before the transaction. Where the
//! source names `p` for both, (p, lsn) is exact: for streamed changes among each other, and against reads of incremental and
//! ad-hoc snapshots, which carry the stream's position. Two cases are left.
//!
//! **Ties.** The position of a snapshot can be that of the next log record, and then a read and the first change after it have one
//! order. Equal orders decide nothing, but here the change is newer.
//!
//! **Transactions in flight across a snapshot.** `p` is unknown in the reads of a snapshot made at the connector's start (their
//! order is (i, S, S)), and in changes before the first commit that the connector sees (their own LSN stands in). A transaction
//! that was open at S and is the first to commit has changes with LSNs below S, and they are newer than the reads. No other
//! transaction can be in this position: the next one's `p` is at least the first one's commit, which is above S. What
//! tells such a change from an old one (committed before the snapshot, delivered late or again):
//!
//! - if `p` is unknown in both, the connector's own clock, which stamps every event as it is handled (milliseconds; on a tie the
//!   change is later). The source times do not do: a read has the connector's clock at the snapshot's start, which may be later
//!   than the commit of a transaction that the snapshot did not see. They serve where the connector's time is missing.
//! - if `p` is unknown in one of the two, the source time: the change is newer if its commit is later than the read.
//!
//! Where the order says that the read is newer, or ties, and by these rules the change is, the later *arriving* of the two is
//! written with another order, so that histories and replicas, which rank by order, agree with the gate:
//!
//! - read first, then change: the change gets `p = S + 1`. All later transactions have a `p` above S + 1 (a commit record is longer
//!   than one byte), so it stays below them; changes of its own transaction get the same `p` and are told apart by LSN. For that
//!   the read's time is remembered while the newest event is an adjusted change. On a tie of known positions the change gets
//!   its LSN + 1, which is below the next record's.
//! - change first, then read: the read gets `p = 0`, below all changes (on a tie, its LSN - 1), and is not the newest.
//!
//! Either way the change is the newest. Once a change with a larger `p` is the newest, nothing in question can be, and nothing
//! more is remembered.
//!
//! Redelivery. Read and change are told by their ids, which hold no `p`: a redelivered copy is a duplicate whatever its order was
//! adjusted to. After a crash the state of the last checkpoint holds the read, the change, both or neither, with the orders
//! that the same checkpoint's rows have; the events after it are judged anew and their earlier rows were never committed. So
//! no row and its gate can disagree. A copy of the newest event that comes with another `p` (the connector knows the last
//! commit now, and did not then) is noticed and counted.
//!
//! Flattened events carry no `p`: theirs equals the LSN, and is taken for unknown here. MySQL's order is that of the commits, and
//! only ties matter.
//!
//! Limit: a truncate whose `p` is unknown is ordered by its LSN, and does not remove reads of a snapshot that it was in flight
//! across.

use super::entry::{ADJUSTED, Entry, P_UNKNOWN, READ, READ_EXACT};
use super::stamp::Stamp;
use crate::order::Order;

impl Stamp {
    /// The order that the event must be written with instead of its own, given the newest of its key.
    pub(super) fn adjusted(&self, entry: &Entry) -> Option<Order> {
        if self.order == entry.newest {
            return self.untied(entry);
        }
        let (&[mine, p, _], &[its, newest_p, _]) = (self.order.sections(), entry.newest.sections()) else {
            return None;
        };
        if mine != its {
            return None;
        }
        let newest = Stamp {
            order: entry.newest,
            time_us: entry.time_us(),
            seen_us: entry.seen_us(),
            exact: !entry.is(P_UNKNOWN),
            read: entry.is(READ),
        };
        if self.read {
            let overtaken = !newest.read && self.order > newest.order && newest.is_newer_than_read(self);
            return overtaken.then(|| self.order.with_section(1, 0));
        }
        let (s, read) = if newest.read {
            (newest_p, newest)
        } else if entry.is(ADJUSTED) {
            let mark = Some(entry.mark_us);
            let read =
                Stamp { time_us: mark, seen_us: mark, exact: entry.is(READ_EXACT), read: true, ..newest };
            (newest_p.checked_sub(1)?, read)
        } else {
            return None;
        };
        // Changes of one transaction must go the same way, so this asks for `p` and not for the order.
        let overtaken = p <= s && self.is_newer_than_read(&read);
        let above = s.checked_add(1)?;
        overtaken.then(|| self.order.with_section(1, above))
    }

    /// Makes the event the newest of `entry`, at the order that it is written with.
    pub(super) fn become_newest(&self, entry: &mut Entry, written: Order) {
        let adjusted = self.order.sections().get(1) != written.sections().get(1);
        if adjusted && entry.is(READ) {
            let read_exact = !entry.is(P_UNKNOWN);
            // The time that the changes of the same transaction will be compared with.
            let mark = if read_exact || self.exact { entry.time_us() } else { entry.seen_us() };
            entry.mark_us = mark.unwrap_or(0);
            entry.set(READ_EXACT, read_exact);
        } else if !adjusted {
            entry.mark_us = 0;
            entry.set(READ_EXACT, false);
        }
        entry.set(READ, self.read);
        entry.set(ADJUSTED, adjusted);
        entry.newest = written;
        let postgres = self.order.sections().len() == 3;
        entry.set(P_UNKNOWN, postgres && !self.exact);
        entry.set_times(self.time_us.filter(|_| postgres), self.seen_us);
    }

    /// Whether it is a copy of the newest event, with whatever `p`.
    pub(super) fn is_newest(&self, entry: &Entry) -> bool {
        match (self.order.sections(), entry.newest.sections()) {
            ([i, _, lsn], [newest_i, _, newest_lsn]) => {
                (i, lsn, self.read) == (newest_i, newest_lsn, entry.is(READ))
            }
            _ => self.order == entry.newest && self.read == entry.is(READ),
        }
    }

    /// Whether it is a copy of the newest event that came with another `p`.
    pub(super) fn replays_newest(&self, entry: &Entry) -> bool {
        self.is_newest(entry) && self.order != entry.newest && !entry.is(ADJUSTED)
    }

    /// The order of a read or change whose counterpart has the same.
    fn untied(&self, entry: &Entry) -> Option<Order> {
        let last = self.order.sections().len() - 1;
        let position = self.order.sections()[last];
        let moved = match (self.read, entry.is(READ)) {
            (false, true) => position.checked_add(1)?,
            (true, false) => position.checked_sub(1)?,
            _ => return None,
        };
        Some(self.order.with_section(last, moved))
    }
}
