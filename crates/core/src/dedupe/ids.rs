//! The ids of a key's events: the newest in the key's own entry, the older ones spilled in segments.
//!
//! All segments and the tail are disjoint and ascending, so one binary search finds the only place where an id can be.
//! A segment is read only when an id falls to it. Segments leave when they are both older than the configured time and
//! beyond the configured number of ids; the floor remembers the largest id that left. An unseen id at or below the floor may
//! have been among them: it cannot be told, and is kept and counted.

use super::encoding::{
    FORMAT, damaged, put_signed, put_wide, take_byte, take_signed, take_wide, unknown_format,
};
use super::overlay::{Overlay, Stored};
use super::route::KEYLESS;
use super::run::Run;
use crate::bytes::{put_varint, take_varint};
use crate::error::Result;
use crate::order::EventId;
use crate::store::{Space, StateView};

/// Ids in the tail before the first segments are made, and while there are few and many of them. Longer tails make fewer and
/// larger segments for the keys that need them, and every barrier writes the whole tail of a changed key.
const TAIL_MAX: [u32; 3] = [64, 1024, 4096];
/// From how many segments on the next tail length holds.
const SEGMENTS_MANY: [usize; 2] = [4, 64];
/// A segment that late ids made larger than this is split.
const SEGMENT_IDS_MAX: u32 = 8192;
/// More segments than this are not kept, however young: 16 million ids of one key within the configured time.
const SEGMENTS_MAX: usize = 4096;
/// `newest_ms` of a segment that no barrier has written yet.
const UNWRITTEN: i64 = i64::MAX;

/// What is known of an id before this event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Never seen.
    New,
    /// Seen.
    Seen,
    /// Not among the remembered ids, but at or below the floor.
    Untold,
}

/// A spilled run of ids.
#[derive(Debug)]
pub(super) struct Segment(Run);

impl Stored for Segment {
    const SPACE: Space = Space::Ids;

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32 + self.0.footprint());
        out.push(FORMAT);
        put_wide(&mut out, self.0.top().map_or(0, |id| id.0));
        self.0.encode_below_top(&mut out);
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        match take_byte(&mut rest) {
            Some(FORMAT) => {}
            other => return Err(unknown_format("a segment of event ids", other)),
        }
        take_wide(&mut rest)
            .and_then(|top| Run::decode_below_top(EventId(top), rest))
            .map(Segment)
            .ok_or_else(|| damaged("segment of event ids"))
    }

    fn footprint(&self) -> usize {
        self.0.footprint()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Meta {
    number: u32,
    first: EventId,
    last: EventId,
    count: u32,
    newest_ms: i64,
}

/// What only keys with a history beyond the tail have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Older {
    segments: Vec<Meta>,
    next: u32,
    floor: Option<EventId>,
}

/// The ids of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ids {
    /// The newest ids.
    pub(super) tail: Run,
    /// The others.
    pub(super) older: Option<Box<Older>>,
    /// Everything below the tail's only id is forgotten: what mode `latest` keeps. The floor is that id.
    pub(super) collapsed: bool,
}

/// The segments of all keys, and where they come from.
pub(super) struct Segments<'a> {
    /// Those in memory.
    pub(super) overlay: &'a mut Overlay<Segment>,
    /// The committed ones.
    pub(super) view: &'a dyn StateView,
}

impl Ids {
    /// Adds `id` and tells what was known of it. `key` is the state key of the entry.
    #[inline]
    pub(super) fn insert(&mut self, id: EventId, key: &[u8], segments: &mut Segments<'_>) -> Result<Verdict> {
        if self.collapsed {
            self.older = Some(Box::new(Older { floor: self.tail.top(), ..Older::default() }));
            self.collapsed = false;
        }
        let verdict = match self.tail.top() {
            Some(top) if id > top => {
                self.tail.insert(id);
                Verdict::New
            }
            _ => self.insert_below_top(id, key, segments)?,
        };
        if self.tail.count() > TAIL_MAX[0] && self.tail.count() > self.tail_max(key) {
            self.spill(key, segments);
        }
        Ok(verdict)
    }

    /// Keeps only the largest id, and all below it as untold: what mode `latest` remembers. Takes `id` in if it is larger.
    pub(super) fn collapse(&mut self, id: EventId, key: &[u8], segments: &mut Segments<'_>) {
        let top = self.tail.top().map_or(id, |top| top.max(id));
        self.forget(key, segments.overlay);
        (self.tail, self.older, self.collapsed) = (Run::of(top), None, true);
    }

    /// Removes the segments, because the ids are about to be dropped.
    pub(super) fn forget(&mut self, key: &[u8], overlay: &mut Overlay<Segment>) {
        for meta in self.older.iter().flat_map(|older| &older.segments) {
            overlay.set(&segment_key(key, meta.number), None);
        }
    }

    /// How many ids are remembered.
    pub(super) fn remembered(&self) -> u64 {
        let older: u64 =
            self.older.iter().flat_map(|older| &older.segments).map(|meta| u64::from(meta.count)).sum();
        older + u64::from(self.tail.count())
    }

    /// Whether ids left.
    pub(super) fn forgot(&self) -> bool {
        self.collapsed || self.older.as_ref().is_some_and(|older| older.floor.is_some())
    }

    /// Bytes on the heap.
    pub(super) fn footprint(&self) -> usize {
        let older = |o: &Older| size_of::<Older>() + o.segments.capacity() * size_of::<Meta>();
        self.tail.footprint() + self.older.as_deref().map_or(0, older)
    }

    /// At a barrier: stamps the segments that changed, and drops those that may go.
    pub(super) fn prune(
        &mut self,
        now_ms: i64,
        kept_ms: i64,
        kept_min: usize,
        key: &[u8],
        overlay: &mut Overlay<Segment>,
    ) {
        let Some(older) = &mut self.older else { return };
        for meta in older.segments.iter_mut().filter(|m| m.newest_ms == UNWRITTEN) {
            meta.newest_ms = now_ms;
        }
        let mut total =
            older.segments.iter().map(|m| m.count as usize).sum::<usize>() + self.tail.count() as usize;
        let mut gone = 0;
        for meta in &older.segments {
            let aged =
                meta.newest_ms < now_ms.saturating_sub(kept_ms) && total - meta.count as usize >= kept_min;
            if !aged && older.segments.len() - gone <= SEGMENTS_MAX {
                break;
            }
            total -= meta.count as usize;
            gone += 1;
            older.floor = older.floor.max(Some(meta.last));
            overlay.set(&segment_key(key, meta.number), None);
        }
        older.segments.drain(..gone);
    }

    fn tail_max(&self, key: &[u8]) -> u32 {
        // A block of keyless offsets has about a thousand ids and is written within a few epochs: no need for segments.
        if key.get(size_of::<u64>()) == Some(&KEYLESS) {
            return TAIL_MAX[2];
        }
        let segments = self.older.as_ref().map_or(0, |o| o.segments.len());
        let step = SEGMENTS_MANY.iter().filter(|&&many| segments >= many).count();
        TAIL_MAX[step]
    }

    fn insert_below_top(&mut self, id: EventId, key: &[u8], segments: &mut Segments<'_>) -> Result<Verdict> {
        let floor = self.older.as_ref().and_then(|o| o.floor);
        let new = if floor.is_some_and(|floor| id <= floor) { Verdict::Untold } else { Verdict::New };
        let older = self.older.as_mut().filter(|o| o.segments.last().is_some_and(|m| id <= m.last));
        let Some(older) = older else {
            return Ok(if self.tail.insert(id) { new } else { Verdict::Seen });
        };
        // The segment that holds the id's place: the last that starts at or below it, or the first.
        let index = older.segments.partition_point(|m| m.first <= id).saturating_sub(1);
        let place = segment_key(key, older.segments[index].number);
        let within = older.segments[index].first <= id && id <= older.segments[index].last;
        if within {
            let known = segments
                .overlay
                .get(&place, segments.view)?
                .ok_or_else(|| damaged("segment list of a key"))?;
            if known.0.contains(id) {
                return Ok(Verdict::Seen);
            }
        }
        let Some(Segment(mut run)) = segments.overlay.take(&place, segments.view)? else {
            return Err(damaged("segment list of a key"));
        };
        run.insert(id);
        let split = (run.count() > SEGMENT_IDS_MAX).then(|| run.split_older(run.count() / 2)).flatten();
        older.segments[index] = meta_of(&run, older.segments[index].number);
        segments.overlay.set(&place, Some(Segment(run)));
        if let Some(lower) = split {
            older.add(index, lower, key, segments.overlay);
        }
        Ok(new)
    }

    /// Moves the older ids of the tail to a new segment. A quarter stays, where events that overtook each other meet.
    fn spill(&mut self, key: &[u8], segments: &mut Segments<'_>) {
        let keep = self.tail_max(key) / 4;
        if let Some(run) = self.tail.split_older(keep) {
            let older = self.older.get_or_insert_default();
            older.add(older.segments.len(), run, key, segments.overlay);
        }
    }
}

impl Older {
    fn add(&mut self, index: usize, run: Run, key: &[u8], overlay: &mut Overlay<Segment>) {
        let meta = meta_of(&run, self.next);
        self.next += 1;
        overlay.set(&segment_key(key, meta.number), Some(Segment(run)));
        self.segments.insert(index, meta);
    }

    /// Appends it.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.next.into());
        put_wide(out, self.floor.map_or(0, |id| id.0));
        out.push(u8::from(self.floor.is_some()));
        put_varint(out, self.segments.len() as u64);
        let (mut id, mut ms) = (0, 0);
        for meta in &self.segments {
            put_varint(out, meta.number.into());
            put_wide(out, meta.first.0 - id);
            put_wide(out, meta.last.0 - meta.first.0);
            put_varint(out, meta.count.into());
            put_signed(out, meta.newest_ms.wrapping_sub(ms));
            (id, ms) = (meta.last.0, meta.newest_ms);
        }
    }

    /// Takes what [`encode`](Self::encode) wrote.
    pub(super) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let next = u32::try_from(take_varint(bytes)?).ok()?;
        let floor = take_wide(bytes)?;
        let floor = match take_byte(bytes)? {
            0 => None,
            1 => Some(EventId(floor)),
            _ => return None,
        };
        let count = super::encoding::take_len(bytes)?;
        let mut older = Self { segments: Vec::with_capacity(count.min(SEGMENTS_MAX)), next, floor };
        let (mut id, mut ms) = (0u128, 0i64);
        for _ in 0..count {
            let number = u32::try_from(take_varint(bytes)?).ok()?;
            let first = id.checked_add(take_wide(bytes)?)?;
            let last = first.checked_add(take_wide(bytes)?)?;
            let count = u32::try_from(take_varint(bytes)?).ok()?;
            let newest_ms = ms.wrapping_add(take_signed(bytes)?);
            older.segments.push(Meta {
                number,
                first: EventId(first),
                last: EventId(last),
                count,
                newest_ms,
            });
            (id, ms) = (last, newest_ms);
        }
        Some(older)
    }
}

fn meta_of(run: &Run, number: u32) -> Meta {
    let first = run.bottom().expect("invariant: a segment is not empty");
    let last = run.top().expect("invariant: a segment is not empty");
    Meta { number, first, last, count: run.count(), newest_ms: UNWRITTEN }
}

/// The state key of a segment: the entry's key and the segment's number, which has a fixed length and so keeps keys apart of
/// which one begins with the other.
fn segment_key(key: &[u8], number: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 4);
    out.extend_from_slice(key);
    out.extend_from_slice(&number.to_be_bytes());
    out
}
