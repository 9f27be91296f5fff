//! How the stream reaches the source: encoded, split into partitions, repeated and out of order.
//!
//! ```text
//! value       one or more of: 'E' change (4 bytes, big-endian) flag (1 byte: 1 = without its p)
//!             or one of: 'T' time (8 bytes), 'H' time (8 bytes), anything else (malformed)
//! tombstone   no value
//! ```

use std::collections::BTreeMap;

use millstream_core::{Op, PartitionId};

use crate::history::{History, Item};
use crate::random::Random;

/// Events that are delivered at most this many places from where they belong.
const WINDOW_MAX: u64 = 50;

/// One delivery of a record.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    /// What the source says of its origin; a redelivery has the offset of the first.
    pub(crate) offset: u64,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) broken_frame: bool,
    /// Whether it must become a dead letter.
    pub(crate) is_bad: bool,
}

/// A partition and what it delivers, in order.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) id: PartitionId,
    pub(crate) deliveries: Vec<Delivery>,
}

/// How much is repeated and how far things are out of order.
#[derive(Debug, Clone, Copy)]
struct Disorder {
    window: u64,
    repeated_percent: u64,
    by_key: bool,
}

/// Where a delivery belongs before it is moved about.
struct Placed {
    at: u64,
    partition: usize,
    delivery: Delivery,
}

/// Delivers a history.
pub(crate) fn deliver(history: &History, mut random: Random) -> Vec<Partition> {
    let count = random.pick(&[1, 1, 2, 3, 5]);
    let disorder = Disorder {
        window: random.pick(&[0, 1, 5, WINDOW_MAX]),
        repeated_percent: random.pick(&[0, 5, 30, 100]),
        by_key: random.chance(50),
    };
    let mut placed = Vec::new();
    let mut next_offset = history.stream.len() as u64;
    for (at, item) in (0u64..).zip(&history.stream) {
        place(history, &mut random, disorder, count, at, item, &mut next_offset, &mut placed);
    }
    placed.sort_by_key(|p| p.at);
    let mut partitions: Vec<_> = (0..count)
        .map(|i| Partition { id: PartitionId::new(&format!("part-{i}")), deliveries: Vec::new() })
        .collect();
    for p in placed {
        partitions[p.partition].deliveries.push(p.delivery);
    }
    partitions
}

#[expect(clippy::too_many_arguments, reason = "one step of the loop above, split off for its length")]
fn place(
    history: &History,
    random: &mut Random,
    disorder: Disorder,
    partitions: usize,
    at: u64,
    item: &Item,
    next_offset: &mut u64,
    placed: &mut Vec<Placed>,
) {
    let value = encode(item, random);
    let is_bad = matches!(item, Item::Malformed | Item::BrokenFrame);
    let broken_frame = matches!(item, Item::BrokenFrame);
    let home = match item {
        Item::Change(change) if disorder.by_key => {
            let c = &history.changes[*change];
            c.table.wrapping_mul(31).wrapping_add(c.id.unwrap_or(0) as usize) % partitions
        }
        _ => random.index(partitions),
    };
    let mut put = |random: &mut Random, partition, offset, value| {
        let at = at * 1000 + random.below(disorder.window * 1000 + 1);
        placed.push(Placed { at, partition, delivery: Delivery { offset, value, broken_frame, is_bad } });
    };
    put(random, home, at, value.clone());
    if is_bad || !random.chance(disorder.repeated_percent) {
        return;
    }
    for _ in 0..random.between(1, 2) {
        let keyed = matches!(item, Item::Change(_));
        if !keyed || random.chance(50) {
            // The source delivers the same record again.
            put(random, home, at, value.clone());
            continue;
        }
        // The connector published the event again: another record, perhaps without `p`.
        let mut again = value.clone();
        if let (Item::Change(change), Some(bytes)) = (item, &mut again)
            && may_lose_p(history, *change)
            && random.chance(30)
        {
            bytes[5] = 1;
        }
        *next_offset += 1;
        let partition = if disorder.by_key { home } else { random.index(partitions) };
        put(random, partition, *next_offset, again);
    }
}

/// Whether a replay of the change may come without `p` and still have an order that fits: its own position must lie between
/// the changes of its key before and after it, which only those of its own transaction can prevent.
fn may_lose_p(history: &History, change: usize) -> bool {
    let c = &history.changes[change];
    let alone = history.changes.iter().enumerate().all(|(i, other)| {
        let together = other.table == c.table && other.ts_us == c.ts_us;
        i == change || !together || other.id.is_some() && other.id != c.id
    });
    history.locks && c.p.is_some() && !matches!(c.op, Op::Read | Op::Truncate) && alone
}

fn encode(item: &Item, random: &mut Random) -> Option<Vec<u8>> {
    let events = |changes: &[usize]| {
        let mut out = Vec::new();
        for change in changes {
            out.push(b'E');
            out.extend((*change as u32).to_be_bytes());
            out.push(0);
        }
        out
    };
    let timed = |tag: u8, ms: i64| {
        let mut out = vec![tag];
        out.extend(ms.to_be_bytes());
        out
    };
    Some(match item {
        Item::Change(change) => events(&[*change]),
        Item::Rows(changes) => events(changes),
        Item::Tombstone => return None,
        Item::Transaction(ms) => timed(b'T', *ms),
        Item::Heartbeat(ms) => timed(b'H', *ms),
        Item::Malformed | Item::BrokenFrame => {
            let mut out = vec![random.pick(&[0, b'?', b'{', b'E', b'H'])];
            out.extend((0..random.below(4)).map(|n| n as u8));
            out
        }
    })
}

/// What must come out of all deliveries.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Places of bad records and how many deliveries each has in all.
    pub(crate) bad: BTreeMap<(String, u64), u64>,
}

impl Expected {
    /// From the partitions.
    pub(crate) fn of(partitions: &[Partition]) -> Self {
        let mut bad = BTreeMap::new();
        for partition in partitions {
            for delivery in partition.deliveries.iter().filter(|d| d.is_bad) {
                *bad.entry((partition.id.to_string(), delivery.offset)).or_default() += 1;
            }
        }
        Self { bad }
    }
}
