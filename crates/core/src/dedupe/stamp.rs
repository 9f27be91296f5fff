//! When an event happened, as far as its source tells. See `adjust` for the rules.

use super::encoding::{put_order, put_signed, take_byte, take_order, take_signed};
use crate::event::{Event, Op, Snapshot};
use crate::order::Order;

const READ: u8 = 1;
const EXACT: u8 = 2;
const HAS_TIME: u8 = 4;
const HAS_SEEN: u8 = 8;

/// What decides which of two events of a key is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Its order, as it came.
    pub(super) order: Order,
    /// Its source time, µs.
    pub(super) time_us: Option<i64>,
    /// When the connector handled it, µs; the source time if it does not say. Within the connector's millisecond a change
    /// is later than a read.
    pub(super) seen_us: Option<i64>,
    /// Whether its `p` is the source's.
    pub(super) exact: bool,
    /// Whether it is a snapshot read.
    pub(super) read: bool,
}

impl Stamp {
    /// Before everything.
    pub(super) const MIN: Stamp = Stamp::at(Order::MIN);

    /// Of an order alone.
    pub(super) const fn at(order: Order) -> Self {
        Self { order, time_us: None, seen_us: None, exact: true, read: false }
    }

    /// An event's.
    pub(super) fn of(event: &Event) -> Self {
        // A connector restarted in the middle of a snapshot marks streamed changes as snapshot too: only the op tells.
        let read = event.op == Op::Read;
        let time_us = event.facts.ts_us;
        let within_ms = if read { 0 } else { 999 };
        let seen_us = event.facts.processed_ts_ms.map(|ms| ms.saturating_mul(1000).saturating_add(within_ms));
        let flattened = matches!(event.order.sections(), [_, p, lsn] if p == lsn);
        // A read-only incremental snapshot's reads can have p = lsn, but flattened ones have neither.
        let exact = event.p_known && (!flattened || event.facts.snapshot == Snapshot::Incremental);
        Self { order: event.order, time_us, seen_us: seen_us.or(time_us), exact, read }
    }

    /// Whether it is older than `other`, an event of the same key.
    pub(super) fn is_before(&self, other: &Stamp) -> bool {
        match (self.read, other.read) {
            (false, true) if self.order <= other.order => !self.overtakes(other),
            (true, false) if other.order <= self.order => other.overtakes(self),
            _ => self.order < other.order,
        }
    }

    /// Whether this change is newer than a read of the same incarnation, by their times. For changes whose `p` is not above
    /// the read's.
    pub(super) fn is_newer_than_read(&self, read: &Stamp) -> bool {
        let later = |change: Option<i64>, read: Option<i64>| change.zip(read).is_some_and(|(c, r)| c > r);
        match (self.exact, read.exact) {
            (true, true) => false,
            (false, false) => later(self.seen_us, read.seen_us),
            _ => later(self.time_us, read.time_us),
        }
    }

    /// Whether this change, whose order is not above the read's, is newer all the same.
    fn overtakes(&self, read: &Stamp) -> bool {
        self.order == read.order
            || matches!((self.order.sections(), read.order.sections()), ([i, p, _], [j, s, _]) if i == j && p <= s)
                && self.is_newer_than_read(read)
    }

    /// Appends it.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_order(out, &self.order);
        let flag = |on: bool, flag: u8| if on { flag } else { 0 };
        let times = flag(self.time_us.is_some(), HAS_TIME) | flag(self.seen_us.is_some(), HAS_SEEN);
        out.push(flag(self.read, READ) | flag(self.exact, EXACT) | times);
        for time in [self.time_us, self.seen_us].into_iter().flatten() {
            put_signed(out, time);
        }
    }

    /// Takes what [`encode`](Self::encode) wrote.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let order = take_order(bytes)?;
        let flags = take_byte(bytes)?;
        if flags >= HAS_SEEN << 1 {
            return None;
        }
        let time_us = if flags & HAS_TIME != 0 { Some(take_signed(bytes)?) } else { None };
        let seen_us = if flags & HAS_SEEN != 0 { Some(take_signed(bytes)?) } else { None };
        Some(Self { order, time_us, seen_us, exact: flags & EXACT != 0, read: flags & READ != 0 })
    }
}
