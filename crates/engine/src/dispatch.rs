//! Dispatch: collects decoded batches in the source's order, counts them, advances watermarks, hands events to shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_core::decoder::Refusal;
use millstream_core::watermark::Watermarks;
use millstream_core::{Body, Counters, DeadLetter, Epoch, PartitionId, Position, RecordBatch};
use tokio::sync::mpsc::{Receiver, Sender};

use crate::flow::{Barrier, Cut, DecodedBatch, Report, ShardBatch, Staged, ToShard, Worked, gone};
use crate::latency::{Stamp, gather};
use crate::status::Gauges;

pub(crate) struct Dispatch {
    pub(crate) workers: Vec<Receiver<Worked>>,
    pub(crate) shards: Vec<Sender<ToShard>>,
    pub(crate) reports: Sender<Report>,
    pub(crate) watermarks: Watermarks,
    pub(crate) epoch: Epoch,
    pub(crate) gauges: Arc<Gauges>,
}

/// What was seen of the epoch that flows.
#[derive(Default)]
struct Gathered {
    positions: BTreeMap<PartitionId, Position>,
    counters: Counters,
    stamps: Vec<Stamp>,
}

impl Dispatch {
    pub(crate) async fn run(mut self) -> Staged {
        let mut gathered = Gathered::default();
        let mut turn = 0;
        while let Some(worked) = self.workers[turn].recv().await {
            turn = (turn + 1) % self.workers.len();
            match worked {
                Worked::Batch(batch) => self.batch(batch, &mut gathered).await?,
                Worked::Rest(partitions) => self.rest(&partitions),
                Worked::Barrier(barrier) => self.barrier(barrier, std::mem::take(&mut gathered)).await?,
            }
        }
        Ok(())
    }

    fn rest(&mut self, partitions: &[PartitionId]) {
        let before = self.watermarks.reached();
        partitions.iter().for_each(|partition| self.watermarks.rest(partition));
        if self.watermarks.reached() != before {
            self.gauges.watermark_moves.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn batch(&mut self, batch: DecodedBatch, gathered: &mut Gathered) -> Staged {
        let Gathered { positions, counters, stamps } = gathered;
        let partition = &batch.records.partition;
        let watermark_ms = self.watermarks.of(partition);
        if let Some(highest_ms) = batch.highest_ms {
            self.watermarks.observe(partition, highest_ms);
            self.gauges.newest_ms.fetch_max(highest_ms, Ordering::Relaxed);
        }
        positions.insert(partition.clone(), batch.records.position.clone());
        gather(stamps, batch.stamps);
        counters.records += batch.records.slots.len() as u64;
        counters.bytes += batch.bytes;
        counters.decoded += batch.decoded;
        for (sum, n) in counters.control.iter_mut().zip(batch.control) {
            *sum += n;
        }
        for notice in batch.notices {
            self.reports.send(Report::Notice(notice)).await.map_err(gone)?;
        }
        if !batch.refusals.is_empty() {
            let mut last = None;
            for (index, refusal) in &batch.refusals {
                // A record with two refusals is one dead record with two letters.
                if last.replace(*index) != Some(*index) {
                    *counters.dead.entry(refusal.cause.code.to_owned()).or_default() += 1;
                }
            }
            let letters = batch
                .refusals
                .into_iter()
                .map(|(index, refusal)| letter(&batch.records, index, refusal))
                .collect();
            let report = Report::Letters { epoch: self.epoch, letters, permit: Some(batch.permit.clone()) };
            self.reports.send(report).await.map_err(gone)?;
        }
        for (shard, events) in self.shards.iter().zip(batch.events) {
            if !events.is_empty() {
                let (records, permit) = (batch.records.clone(), batch.permit.clone());
                let batch = ShardBatch { events, records, permit, watermark_ms };
                shard.send(ToShard::Batch(batch)).await.map_err(gone)?;
            }
        }
        Ok(())
    }

    async fn barrier(&mut self, barrier: Barrier, gathered: Gathered) -> Staged {
        let Gathered { positions, counters, stamps } = gathered;
        self.epoch = barrier.next.epoch;
        let (watermarks, watermark_ms) = (self.watermarks.take_risen(), self.watermarks.reached());
        let cut = Cut { epoch: barrier.epoch, positions, watermarks, watermark_ms, counters, stamps };
        self.reports.send(Report::Cut(cut)).await.map_err(gone)?;
        for shard in &self.shards {
            shard.send(ToShard::Barrier(barrier)).await.map_err(gone)?;
        }
        Ok(())
    }
}

/// The dead letter of a refused record.
pub(crate) fn letter(records: &RecordBatch, index: u32, refusal: Refusal) -> DeadLetter {
    let slot = &records.slots[index as usize];
    let record = records.record(index as usize).expect("invariant: the index is the batch's own");
    let value = match record.body() {
        Body::Value(bytes) | Body::Broken(bytes, _) => Some(bytes.to_vec()),
        Body::Tombstone => None,
    };
    DeadLetter {
        stage: refusal.stage,
        cause: refusal.cause,
        table: refusal.table,
        // A record that comes again is for its sink alone, whatever refuses it now.
        sink: slot.again_for.as_deref().map(str::to_owned),
        value,
        key: record.key().map(<[u8]>::to_vec),
        headers: record.headers().map(|h| (h.name.to_vec(), h.value.to_vec())).collect(),
        topic: record.topic().map(<[u8]>::to_vec),
        partition: records.partition.to_string(),
        offset: slot.offset,
        message_id: record.message_id().map(<[u8]>::to_vec),
        publish_ts_ms: record.publish_ts_ms(),
        attempt: slot.failures + 1,
    }
}
