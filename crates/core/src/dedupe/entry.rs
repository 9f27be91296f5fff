//! What state keeps of one key.
//!
//! ```text
//! format   1 byte    1
//! flags    1 byte    delete 1, read 2, read exact 4, p unknown 8, adjusted 10, values 20, has time 40, has older ids 80
//! shape    1 byte    order: 0 plain, 1 PostgreSQL, 2 MySQL; no ids 4; one id 8; collapsed 10
//! top      varint    the largest event id; absent with "no ids"
//! order    0: number of sections, sections; 1: signed top's LSN - LSN, signed LSN - p; 2: nothing, it is the top's position
//! time     signed    source time of the newest event, µs; only with "has time"
//! seen     signed    when the connector handled it less that, µs; only with "has time" and "p unknown"
//! mark     signed    time of the read that the newest change was adjusted against, µs; only with "adjusted"
//! older    segments of older ids, only with "has older ids"
//! ids      count and deltas of the ids below the top, to the end; absent with "no ids" and "one id"
//! ```
//!
//! A key that saw one event takes 12 to 28 bytes.

use super::encoding::{
    FORMAT, damaged, put_order, put_signed, put_wide, take_byte, take_order, take_signed, take_wide,
    unknown_format,
};
use super::ids::{Ids, Older};
use super::run::Run;
use crate::error::Result;
use crate::order::{EventId, Order};

/// The newest event deleted the row.
pub(super) const DELETE: u8 = 0x01;
/// The newest event is a snapshot read.
pub(super) const READ: u8 = 0x02;
/// The read that the newest change was adjusted against had a `p` that the source gave.
pub(super) const READ_EXACT: u8 = 0x04;
/// The newest event's `p` was not given by the source.
pub(super) const P_UNKNOWN: u8 = 0x08;
/// The newest event is a change whose `p` was adjusted to be above a read's.
pub(super) const ADJUSTED: u8 = 0x10;
/// There is a record of large values or heirs.
pub(super) const VALUES: u8 = 0x20;
const HAS_TIME: u8 = 0x40;
const HAS_OLDER: u8 = 0x80;

const SHAPE_PLAIN: u8 = 0;
const SHAPE_POSTGRES: u8 = 1;
const SHAPE_MYSQL: u8 = 2;
const SHAPE_ORDER: u8 = 0x03;
const SHAPE_NO_IDS: u8 = 0x04;
const SHAPE_ONE_ID: u8 = 0x08;
const SHAPE_COLLAPSED: u8 = 0x10;

const NO_TIME: i64 = i64::MIN;

/// One key's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Which events were seen.
    pub(super) ids: Ids,
    /// The order of the newest; [`Order::MIN`] before the first.
    pub(super) newest: Order,
    time_us: i64,
    seen_us: i64,
    /// Time, µs, of the read that the newest change was adjusted against; 0 without [`ADJUSTED`].
    pub(super) mark_us: i64,
    /// [`DELETE`] to [`VALUES`].
    pub(super) flags: u8,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            ids: Ids::default(),
            newest: Order::MIN,
            time_us: NO_TIME,
            seen_us: NO_TIME,
            mark_us: 0,
            flags: 0,
        }
    }
}

impl Entry {
    /// Whether any of `flags` is set.
    pub(super) fn is(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Whether it says no more than its absence would.
    pub(super) fn is_void(&self) -> bool {
        self.ids.tail.count() == 0 && self.flags == 0 && self.ids.older.is_none()
    }

    /// Sets or clears `flag`.
    pub(super) fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }

    /// Source time of the newest event (of keyless entries: when they last changed), µs.
    pub(super) fn time_us(&self) -> Option<i64> {
        (self.time_us != NO_TIME).then_some(self.time_us)
    }

    /// When the connector handled the newest event, µs; known while its `p` is not.
    pub(super) fn seen_us(&self) -> Option<i64> {
        (self.seen_us != NO_TIME).then_some(self.seen_us)
    }

    /// Sets both times; without a source time neither is known, and `seen_us` only matters with [`P_UNKNOWN`].
    pub(super) fn set_times(&mut self, time_us: Option<i64>, seen_us: Option<i64>) {
        self.time_us = time_us.unwrap_or(NO_TIME);
        self.seen_us = match (time_us, seen_us) {
            (Some(_), Some(seen)) if self.is(P_UNKNOWN) => seen,
            _ => NO_TIME,
        };
    }

    /// Bytes on the heap.
    pub(super) fn footprint(&self) -> usize {
        self.ids.footprint()
    }

    /// Appends the form of the module's docs.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let has_time = if self.time_us == NO_TIME { 0 } else { HAS_TIME };
        let has_older = if self.ids.older.is_some() { HAS_OLDER } else { 0 };
        let top = self.ids.tail.top();
        let order = top.map_or(SHAPE_PLAIN, |top| shape_of(&self.newest, top));
        let ids = match self.ids.tail.count() {
            0 => SHAPE_NO_IDS,
            1 => SHAPE_ONE_ID,
            _ => 0,
        };
        let collapsed = if self.ids.collapsed { SHAPE_COLLAPSED } else { 0 };
        out.extend([FORMAT, self.flags | has_time | has_older, order | ids | collapsed]);
        if let Some(top) = top {
            put_wide(out, top.0);
        }
        match (order, top) {
            (SHAPE_POSTGRES, Some(top)) => {
                let (_, position) = split(top);
                let (p, lsn) = (self.newest.sections()[1], self.newest.sections()[2]);
                put_signed(out, (position as u64).wrapping_sub(lsn) as i64);
                put_signed(out, lsn.wrapping_sub(p) as i64);
            }
            (SHAPE_MYSQL, Some(_)) => {}
            _ => put_order(out, &self.newest),
        }
        if has_time != 0 {
            put_signed(out, self.time_us);
            if self.is(P_UNKNOWN) {
                put_signed(out, self.seen_us.wrapping_sub(self.time_us));
            }
        }
        if self.is(ADJUSTED) {
            put_signed(out, self.mark_us);
        }
        if let Some(older) = &self.ids.older {
            older.encode(out);
        }
        if ids == 0 {
            self.ids.tail.encode_below_top(out);
        }
    }

    /// From its bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        match take_byte(&mut rest) {
            Some(FORMAT) => Self::take(rest).ok_or_else(|| damaged("entry of a key")),
            other => Err(unknown_format("an entry of a key", other)),
        }
    }

    fn take(mut bytes: &[u8]) -> Option<Self> {
        let bytes = &mut bytes;
        let flags = take_byte(bytes)?;
        let shape = take_byte(bytes)?;
        let ids = shape & (SHAPE_NO_IDS | SHAPE_ONE_ID);
        if shape >= SHAPE_COLLAPSED << 1 || ids == SHAPE_NO_IDS | SHAPE_ONE_ID {
            return None;
        }
        let top = if ids == SHAPE_NO_IDS { None } else { Some(EventId(take_wide(bytes)?)) };
        let newest = match (shape & SHAPE_ORDER, top) {
            (SHAPE_PLAIN, _) => take_order(bytes)?,
            (SHAPE_POSTGRES, Some(top)) => {
                let (incarnation, position) = split(top);
                let lsn = u64::try_from(position).ok()?.wrapping_sub(take_signed(bytes)? as u64);
                let p = lsn.wrapping_sub(take_signed(bytes)? as u64);
                Order::from_sections(&[incarnation, p, lsn])
            }
            (SHAPE_MYSQL, Some(top)) => mysql_order(top)?,
            _ => return None,
        };
        let time_us = if flags & HAS_TIME != 0 { take_signed(bytes)? } else { NO_TIME };
        let has_seen = flags & (HAS_TIME | P_UNKNOWN) == HAS_TIME | P_UNKNOWN;
        let seen_us = if has_seen { time_us.wrapping_add(take_signed(bytes)?) } else { NO_TIME };
        let mark_us = if flags & ADJUSTED != 0 { take_signed(bytes)? } else { 0 };
        let older = if flags & HAS_OLDER != 0 { Some(Box::new(Older::decode(bytes)?)) } else { None };
        let tail = match (top, ids) {
            (Some(top), 0) => Run::decode_below_top(top, bytes).filter(|run| run.count() > 1)?,
            (top, _) => bytes.is_empty().then(|| top.map_or_else(Run::default, Run::of))?,
        };
        let ids = Ids { tail, older, collapsed: shape & SHAPE_COLLAPSED != 0 };
        Some(Self { ids, newest, time_us, seen_us, mark_us, flags: flags & !(HAS_TIME | HAS_OLDER) })
    }
}

/// Incarnation and position of an id.
fn split(id: EventId) -> (u64, u128) {
    ((id.0 >> 113) as u64, id.0 >> 1 & ((1 << 112) - 1))
}

fn mysql_order(id: EventId) -> Option<Order> {
    let (incarnation, position) = split(id);
    let file = (position >> 80) as u64;
    Some(Order::from_sections(&[
        incarnation,
        file,
        (position >> 32) as u64 & ((1 << 48) - 1),
        position as u64 & 0xffff_ffff,
    ]))
}

fn shape_of(order: &Order, top: EventId) -> u8 {
    let (incarnation, position) = split(top);
    match order.sections() {
        [first, _, _] if *first == incarnation && u64::try_from(position).is_ok() => SHAPE_POSTGRES,
        [_, _, _, _] if mysql_order(top).as_ref() == Some(order) => SHAPE_MYSQL,
        _ => SHAPE_PLAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Incarnation;
    use proptest::prelude::*;

    fn encoded(entry: &Entry) -> Vec<u8> {
        let mut out = Vec::new();
        entry.encode(&mut out);
        out
    }

    #[test]
    fn a_key_with_one_event_is_small() {
        let lsn = 0x16_B374_D848;
        let mut entry = Entry { newest: Order::postgres(Incarnation(0), lsn - 420, lsn), ..Entry::default() };
        entry.ids.tail.insert(EventId::postgres(Incarnation(0), lsn, false));
        entry.set_times(Some(1_796_013_178_626_123), None);
        assert_eq!(encoded(&entry).len(), 20);
        let mut entry = Entry { newest: Order::mysql(Incarnation(0), 12, 73_000_123, 0), ..Entry::default() };
        entry.ids.tail.insert(EventId::mysql(Incarnation(0), 12, 73_000_123, 0, false));
        assert_eq!(encoded(&entry).len(), 16);
    }

    fn order() -> impl Strategy<Value = Order> {
        prop_oneof![
            (0..3u16, any::<u64>(), any::<u64>()).prop_map(|(i, p, l)| Order::postgres(Incarnation(i), p, l)),
            (0..3u16, 0..99u64, 0..(1u64 << 48), 0..9u64).prop_map(|(i, f, p, r)| Order::mysql(
                Incarnation(i),
                f,
                p,
                r
            )),
            prop::collection::vec(any::<u64>(), 1..=4).prop_map(|s| Order::from_sections(&s)),
        ]
    }

    proptest! {
        #[test]
        fn entries_come_back(
            newest in order(),
            ids in prop::collection::vec(any::<u128>(), 0..6),
            time in prop::option::of(-1_000_000..i64::MAX),
            flags in 0u8..0x40,
            own in any::<bool>(),
        ) {
            let mut entry = Entry { newest, flags, ..Entry::default() };
            entry.set_times(time, time.map(|t| t.wrapping_add(5)));
            if entry.is(ADJUSTED) {
                entry.mark_us = 77;
            }
            for id in ids {
                entry.ids.tail.insert(EventId(id));
            }
            if let ([i, f, p, r], true) = (newest.sections(), own) {
                entry.ids.tail = Run::of(EventId::mysql(Incarnation(*i as u16 & 0x7fff), *f as u32, *p, *r as u32, false));
            }
            entry.ids.collapsed = own && entry.ids.tail.count() == 1;
            prop_assert_eq!(Entry::decode(&encoded(&entry)).unwrap(), entry);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Entry::decode(&bytes);
            if let Some(first) = bytes.first_mut() {
                *first = FORMAT;
            }
            let _ = Entry::decode(&bytes);
        }
    }

    #[test]
    fn an_unknown_format_is_named() {
        let error = Entry::decode(&[9, 0, 0]).unwrap_err().to_string();
        assert!(error.contains("format 9") && error.contains("reads format 1"), "{error}");
    }
}
