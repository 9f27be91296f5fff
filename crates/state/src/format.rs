//! A checkpoint's bytes, without its keyed state and what it says of single partitions (which have rows of their own: a
//! checkpoint a second must not write the positions of thousands of files over that rest).
//!
//! ```text
//! format (1 byte, = 2)
//! epoch, committed, incarnation          varint each
//! ingested_at_us                         zigzag
//! watermark                              0, or 1 and zigzag ms
//! n sink marks:  sink, epoch, token
//! n forwards:    bytes
//! counters:      records, bytes, decoded, n control, n dead (code, n), n tables (name, n fields),
//!                n sinks (name, n fields), n notices (code, n)
//! ```
//! Counter structs are written as a field count and the fields, so that a later version can append fields and still
//! read this one's.
//!
//! A partition's rows, each its format (1 byte, = 1) and the rest of the value: its position as it is, its highest source time
//! in ms as zigzag.

use std::collections::BTreeMap;

use millstream_core::bytes::{put_bytes, put_signed, put_varint};
use millstream_core::checkpoint::SinkMark;
use millstream_core::counters::SinkCounters;
use millstream_core::{
    Checkpoint, CommitToken, Counters, Epoch, Error, Incarnation, Position, Result, TableCounters,
};

use crate::fields::Fields;

/// The format that this version writes, and the only one it reads.
const FORMAT: u8 = 2;
/// The same for rows of partitions.
const PARTITION_FORMAT: u8 = 1;

/// The bytes of a checkpoint without its state and its partitions.
pub fn encode_checkpoint(c: &Checkpoint) -> Vec<u8> {
    let mut out = vec![FORMAT];
    put_varint(&mut out, c.epoch.0);
    put_varint(&mut out, c.committed.0);
    put_varint(&mut out, c.incarnation.0.into());
    put_signed(&mut out, c.ingested_at_us);
    out.push(u8::from(c.watermark_ms.is_some()));
    c.watermark_ms.iter().for_each(|ms| put_signed(&mut out, *ms));
    put_varint(&mut out, c.sinks.len() as u64);
    for mark in &c.sinks {
        put_bytes(&mut out, mark.sink.as_bytes());
        put_varint(&mut out, mark.epoch.0);
        put_bytes(&mut out, &mark.token.0);
    }
    put_varint(&mut out, c.forwards.len() as u64);
    for forward in &c.forwards {
        put_bytes(&mut out, forward);
    }
    put_counters(&mut out, &c.counters);
    out
}

/// A checkpoint from [`encode_checkpoint`]'s bytes, with empty state and no partitions. Refuses unknown formats and damaged bytes.
pub fn decode_checkpoint(bytes: &[u8]) -> Result<Checkpoint> {
    let (&format, rest) =
        bytes.split_first().ok_or_else(|| Fields::new(bytes, "the checkpoint").damaged())?;
    if format != FORMAT {
        return Err(Error::fatal(format!(
            "the checkpoint has format {format}, and this version of millstream reads format {FORMAT}: run the version that \
             wrote it, or take a savepoint with that version and see its release notes"
        )));
    }
    let mut f = Fields::new(rest, "the checkpoint");
    let mut c = Checkpoint {
        epoch: Epoch(f.number()?),
        committed: Epoch(f.number()?),
        incarnation: Incarnation(u16::try_from(f.number()?).map_err(|_| f.damaged())?),
        ingested_at_us: f.signed()?,
        watermark_ms: match f.number()? {
            0 => None,
            1 => Some(f.signed()?),
            _ => return Err(f.damaged()),
        },
        ..Checkpoint::default()
    };
    for _ in 0..f.count()? {
        let sink = f.text()?.to_owned();
        let epoch = Epoch(f.number()?);
        c.sinks.push(SinkMark { sink, epoch, token: CommitToken(f.bytes()?.to_vec()) });
    }
    for _ in 0..f.count()? {
        c.forwards.push(f.bytes()?.to_vec());
    }
    c.counters = take_counters(&mut f)?;
    f.end()?;
    Ok(c)
}

/// The value of a partition's row.
pub(crate) fn encode_position(position: &Position) -> Vec<u8> {
    [&[PARTITION_FORMAT], &position.0[..]].concat()
}

/// The value of a partition's other row.
pub(crate) fn encode_highest(ms: i64) -> Vec<u8> {
    let mut out = vec![PARTITION_FORMAT];
    put_signed(&mut out, ms);
    out
}

/// A position from [`encode_position`]'s bytes.
pub(crate) fn decode_position(bytes: &[u8]) -> Result<Position> {
    Ok(Position(partition_row(bytes)?.to_vec()))
}

/// A source time from [`encode_highest`]'s bytes.
pub(crate) fn decode_highest(bytes: &[u8]) -> Result<i64> {
    let mut f = Fields::new(partition_row(bytes)?, "the highest source time of a partition");
    let ms = f.signed()?;
    f.end()?;
    Ok(ms)
}

fn partition_row(bytes: &[u8]) -> Result<&[u8]> {
    match bytes.split_first() {
        Some((&PARTITION_FORMAT, rest)) => Ok(rest),
        Some((format, _)) => Err(Error::fatal(format!(
            "the checkpoint's partitions have format {format}, and this version of millstream reads format \
             {PARTITION_FORMAT}: run the version that wrote them"
        ))),
        None => Err(Fields::new(bytes, "a partition of the checkpoint").damaged()),
    }
}

fn put_counters(out: &mut Vec<u8>, c: &Counters) {
    for n in [c.records, c.bytes, c.decoded] {
        put_varint(out, n);
    }
    put_numbers(out, &c.control);
    put_map(out, &c.dead, |out, n| put_varint(out, *n));
    put_map(out, &c.tables, |out, t| put_numbers(out, &table_fields(*t)));
    put_map(out, &c.sinks, |out, s| put_numbers(out, &sink_fields(*s)));
    put_map(out, &c.notices, |out, n| put_varint(out, *n));
}

fn take_counters(f: &mut Fields<'_>) -> Result<Counters> {
    let mut c =
        Counters { records: f.number()?, bytes: f.number()?, decoded: f.number()?, ..Counters::default() };
    take_numbers(f, &mut c.control)?;
    c.dead = take_map(f, Fields::number)?;
    c.tables = take_map(f, |f| {
        let mut n = [0; 8];
        take_numbers(f, &mut n)?;
        let [events, duplicates, distinct, newest, late, untold, adjusted, unresolved] = n;
        Ok(TableCounters { events, duplicates, distinct, newest, late, untold, adjusted, unresolved })
    })?;
    c.sinks = take_map(f, |f| {
        let mut n = [0; 6];
        take_numbers(f, &mut n)?;
        let [written, superseded, filtered, duplicates, rejected, absent] = n;
        Ok(SinkCounters { written, superseded, filtered, duplicates, rejected, absent })
    })?;
    c.notices = take_map(f, Fields::number)?;
    Ok(c)
}

fn table_fields(t: TableCounters) -> [u64; 8] {
    let TableCounters { events, duplicates, distinct, newest, late, untold, adjusted, unresolved } = t;
    [events, duplicates, distinct, newest, late, untold, adjusted, unresolved]
}

fn sink_fields(s: SinkCounters) -> [u64; 6] {
    let SinkCounters { written, superseded, filtered, duplicates, rejected, absent } = s;
    [written, superseded, filtered, duplicates, rejected, absent]
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    put_varint(out, numbers.len() as u64);
    for &n in numbers {
        put_varint(out, n);
    }
}

/// Reads as many numbers as were written; fields that the writer did not know stay as they are.
fn take_numbers(f: &mut Fields<'_>, numbers: &mut [u64]) -> Result<()> {
    let written = f.count()?;
    if written > numbers.len() {
        return Err(f.damaged());
    }
    for n in &mut numbers[..written] {
        *n = f.number()?;
    }
    Ok(())
}

fn put_map<T>(out: &mut Vec<u8>, map: &BTreeMap<String, T>, put: impl Fn(&mut Vec<u8>, &T)) {
    put_varint(out, map.len() as u64);
    for (name, value) in map {
        put_bytes(out, name.as_bytes());
        put(out, value);
    }
}

fn take_map<'a, T>(
    f: &mut Fields<'a>,
    take: impl Fn(&mut Fields<'a>) -> Result<T>,
) -> Result<BTreeMap<String, T>> {
    (0..f.count()?).map(|_| Ok((f.text()?.to_owned(), take(f)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::decoder::ControlKind;
    use proptest::prelude::*;

    fn checkpoint() -> impl Strategy<Value = Checkpoint> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..20);
        let marks = prop::collection::vec((".{0,8}", any::<u64>(), bytes()), 0..3);
        let table = (any::<[u64; 4]>(), any::<[u64; 4]>());
        let tables = prop::collection::btree_map(".{0,8}", table, 0..3);
        let counts = prop::collection::btree_map("[a-z_]{1,8}", any::<u64>(), 0..3);
        let sinks = prop::collection::btree_map(".{0,8}", any::<[u64; 6]>(), 0..3);
        let control = any::<[u64; ControlKind::ALL.len()]>();
        let head = (any::<[u64; 2]>(), any::<u16>(), any::<i64>(), any::<[u64; 3]>(), control);
        let lists = (any::<Option<i64>>(), prop::collection::vec(bytes(), 0..3));
        (head, lists, marks, tables, (counts.clone(), counts), sinks).prop_map(
            |(head, lists, marks, tables, (dead, notices), sinks)| {
                let ([epoch, committed], incarnation, ingested_at_us, [records, bytes, decoded], control) =
                    head;
                let (watermark_ms, forwards) = lists;
                let tables = tables.into_iter().map(|(name, ([a, b, c, d], [e, f, g, h]))| {
                    let t = TableCounters {
                        events: a,
                        duplicates: b,
                        distinct: c,
                        newest: d,
                        late: e,
                        untold: f,
                        adjusted: g,
                        unresolved: h,
                    };
                    (name, t)
                });
                let sinks = sinks.into_iter().map(|(name, [a, b, c, d, e, f])| {
                    let (written, superseded, filtered, duplicates, rejected, absent) = (a, b, c, d, e, f);
                    (name, SinkCounters { written, superseded, filtered, duplicates, rejected, absent })
                });
                let (tables, sinks) = (tables.collect(), sinks.collect());
                Checkpoint {
                    epoch: Epoch(epoch),
                    committed: Epoch(committed),
                    incarnation: Incarnation(incarnation),
                    watermark_ms,
                    sinks: marks
                        .into_iter()
                        .map(|(sink, e, t)| SinkMark { sink, epoch: Epoch(e), token: CommitToken(t) })
                        .collect(),
                    ingested_at_us,
                    counters: Counters { records, bytes, decoded, control, dead, tables, sinks, notices },
                    forwards,
                    ..Checkpoint::default()
                }
            },
        )
    }

    proptest! {
        #[test]
        fn checkpoints_round_trip(c in checkpoint()) {
            let bytes = encode_checkpoint(&c);
            let back = decode_checkpoint(&bytes).unwrap();
            prop_assert_eq!(format!("{back:?}"), format!("{c:?}"));
            // No prefix is taken for a checkpoint.
            for cut in 0..bytes.len() {
                prop_assert!(decode_checkpoint(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_checkpoint(&bytes);
            let _ = decode_position(&bytes);
            let _ = decode_highest(&bytes);
        }

        #[test]
        fn rows_of_partitions_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..20), ms in any::<i64>()) {
            prop_assert_eq!(decode_position(&encode_position(&Position(bytes.clone()))).unwrap(), Position(bytes));
            prop_assert_eq!(decode_highest(&encode_highest(ms)).unwrap(), ms);
        }
    }

    #[test]
    fn an_unknown_format_is_refused_by_number() {
        let mut bytes = encode_checkpoint(&Checkpoint::default());
        bytes[0] = 9;
        let error = decode_checkpoint(&bytes).unwrap_err().to_string();
        assert!(error.contains("format 9") && error.contains("reads format 2"), "{error}");
    }
}
