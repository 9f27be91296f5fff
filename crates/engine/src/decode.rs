//! A decode worker: records to events, split by shard.

use std::sync::Arc;

use millstream_core::decoder::{ControlKind, DecodeNotice, Decoded};
use millstream_core::dedupe::shard_of;
use millstream_core::sink::SinkNotice;
use millstream_core::{Decoder, Event, Incarnation, Op, RecordBatch};
use tokio::sync::mpsc::{Receiver, Sender};

use crate::flow::{DecodedBatch, Permit, Staged, Work, Worked, gone};
use crate::latency::Sampler;

pub(crate) async fn run(
    mut decoder: Box<dyn Decoder>,
    incarnation: Incarnation,
    shards: usize,
    mut work: Receiver<Work>,
    done: Sender<Worked>,
) -> Staged {
    let mut scratch = Vec::new();
    while let Some(work) = work.recv().await {
        let worked = match work {
            Work::Batch(batch, permit) => {
                Worked::Batch(decode(decoder.as_mut(), incarnation, shards, batch, permit, &mut scratch))
            }
            Work::Rest(partitions) => Worked::Rest(partitions),
            Work::Barrier(barrier) => Worked::Barrier(barrier),
        };
        done.send(worked).await.map_err(gone)?;
    }
    Ok(())
}

fn decode(
    decoder: &mut dyn Decoder,
    incarnation: Incarnation,
    shards: usize,
    mut batch: RecordBatch,
    permit: Permit,
    scratch: &mut Vec<Decoded>,
) -> DecodedBatch {
    let share = batch.slots.len() / shards + batch.slots.len() / (4 * shards) + 4;
    let mut events: Vec<Vec<Box<Event>>> = (0..shards).map(|_| Vec::with_capacity(share)).collect();
    let mut refusals = Vec::new();
    let mut control = [0; ControlKind::ALL.len()];
    let (mut decoded, mut bytes, mut highest_ms) = (0, 0, None);
    let mut sampler = Sampler::new(batch.slots.len());
    let mut next = 0;
    // Records that one of them held come behind the others.
    while let Some(record) = batch.record(next) {
        let index = next as u32;
        next += 1;
        if let millstream_core::Body::Value(value) = record.body()
            && record.part() == 0
        {
            bytes += value.len() as u64;
        }
        match record.sweep() {
            // No format that a pipeline may be configured for need have truncates.
            Some(table) => {
                scratch.push(Decoded::Event(Box::new(Event::sweep(table.clone(), incarnation))));
            }
            None => decoder.decode(&record, scratch),
        }
        let mut outcome = Outcome::Nothing;
        let mut parts = Vec::new();
        for item in scratch.drain(..) {
            match item {
                Decoded::Event(mut event) => {
                    event.record = index;
                    highest_ms = highest_ms.max(event.facts.ts_ms);
                    if matches!(outcome, Outcome::Nothing) {
                        sampler.see(index, &record, &event);
                    }
                    outcome = outcome.and(Outcome::Events);
                    route(event, shards, &mut events);
                }
                Decoded::Control(item) => {
                    highest_ms = highest_ms.max(item.ts_ms);
                    outcome = outcome.and(Outcome::Control(item.kind));
                }
                Decoded::Dead(refusal) => {
                    refusals.push((index, refusal));
                    outcome = outcome.and(Outcome::Dead);
                }
                Decoded::Several(ranges) => {
                    outcome = outcome.and(Outcome::Control(ControlKind::Array));
                    parts = ranges;
                }
            }
        }
        match outcome {
            Outcome::Events => decoded += 1,
            Outcome::Control(kind) => control[kind.index()] += 1,
            Outcome::Dead => {}
            Outcome::Nothing => unreachable!("invariant: a decoder pushes at least one item a record"),
        }
        batch.split(index as usize, &parts);
    }
    let notices = decoder.notices().into_iter().map(notice).collect();
    DecodedBatch {
        records: Arc::new(batch),
        permit,
        events,
        refusals,
        control,
        decoded,
        bytes,
        highest_ms,
        stamps: sampler.stamps,
        notices,
    }
}

/// A decoder's count as the engine's notice.
fn notice(n: DecodeNotice) -> SinkNotice {
    SinkNotice { code: n.code, text: format!("{}, column {}: {}", n.table, n.column, n.code), count: n.count }
}

/// What a record counts as, whatever number of items came out of it: a dead letter outweighs events, events outweigh
/// control, so that each record is counted once.
#[derive(Clone, Copy)]
enum Outcome {
    Nothing,
    Control(ControlKind),
    Events,
    Dead,
}

impl Outcome {
    fn and(self, other: Outcome) -> Outcome {
        let weight = |o: &Outcome| match o {
            Outcome::Nothing => 0,
            Outcome::Control(_) => 1,
            Outcome::Events => 2,
            Outcome::Dead => 3,
        };
        if weight(&other) > weight(&self) { other } else { self }
    }
}

/// To the shard of its key; a truncate to every shard, since each keeps the table's truncate order.
fn route(event: Box<Event>, shards: usize, events: &mut [Vec<Box<Event>>]) {
    if event.op == Op::Truncate {
        for shard in &mut events[1..] {
            shard.push(event.clone());
        }
        events[0].push(event);
    } else {
        let shard = shard_of(&event, shards);
        events[shard].push(event);
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::decoder::Refusal;
    use millstream_core::record::{Range, Slot};
    use millstream_core::{Cause, Order, PartitionId, Position, Record, Stage, TableName};
    use tokio::sync::Semaphore;

    use super::*;

    /// Takes every record for a heartbeat.
    struct Heartbeats;

    impl Decoder for Heartbeats {
        fn decode(&mut self, _: &Record<'_>, out: &mut Vec<Decoded>) {
            let kind = ControlKind::Heartbeat;
            out.push(Decoded::Control(millstream_core::decoder::Control { kind, ts_ms: None }));
        }
    }

    /// Takes a record for one text for each of its bytes, refuses `!` and takes others for heartbeats.
    struct Bytes;

    impl Decoder for Bytes {
        fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>) {
            let millstream_core::Body::Value(value) = record.body() else { return };
            out.push(match (record.part(), value) {
                (0, _) => {
                    Decoded::Several((0..value.len() as u32).map(|start| Range { start, len: 1 }).collect())
                }
                (_, b"!") => Decoded::Dead(Refusal {
                    stage: Stage::Parse,
                    cause: Cause::new("loud", "it is"),
                    table: None,
                }),
                _ => {
                    let kind = ControlKind::Heartbeat;
                    Decoded::Control(millstream_core::decoder::Control { kind, ts_ms: None })
                }
            });
        }
    }

    #[tokio::test]
    async fn parts_of_a_record_are_records_with_letters_of_their_own() {
        let whole = Slot { value: Some(Range { start: 1, len: 3 }), offset: 9, ..Slot::default() };
        let batch = RecordBatch {
            partition: PartitionId::new("p"),
            buffer: b"-a!b".to_vec(),
            slots: vec![whole],
            position: Position::default(),
        };
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let decoded = decode(&mut Bytes, Incarnation(0), 1, batch, Arc::new(permit), &mut Vec::new());
        assert_eq!((decoded.records.slots.len(), decoded.bytes), (4, 3));
        assert_eq!(decoded.control[ControlKind::Array.index()], 1);
        assert_eq!(decoded.control[ControlKind::Heartbeat.index()], 2);
        let [(index, _)] = decoded.refusals[..] else { panic!("one part is refused") };
        let letter = decoded.records.record(index as usize).unwrap();
        assert_eq!(
            (letter.body(), letter.offset(), letter.part()),
            (millstream_core::Body::Value(b"!"), 9, 2)
        );
    }

    #[tokio::test]
    async fn a_sweep_is_decoded_whatever_the_decoder_knows() {
        let table = TableName::new("shop", "public", "orders");
        let sweep = Slot { sweep: Some(Box::new(table.clone())), ..Slot::default() };
        let batch = RecordBatch {
            partition: PartitionId::new("p"),
            buffer: Vec::new(),
            slots: vec![Slot::default(), sweep],
            position: Position::default(),
        };
        let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let decoded = decode(&mut Heartbeats, Incarnation(7), 3, batch, Arc::new(permit), &mut Vec::new());
        assert_eq!((decoded.decoded, decoded.control[ControlKind::Heartbeat.index()]), (1, 1));
        for shard in decoded.events {
            let [event] = &shard[..] else { panic!("every shard is told") };
            assert_eq!((event.op, &*event.schema.table), (Op::Truncate, &table));
            assert_eq!((event.order, event.record), (Order::start(Incarnation(7)), 1));
        }
    }
}
