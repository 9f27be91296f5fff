//! The simulated store: atomic, durable, and failing before or after it became so.

use std::sync::Arc;

use millstream_core::{Checkpoint, Epoch, Error, Fut, Result, Space, StateView, Store};

use crate::disk::{Saved, Vault};
use crate::fault::{Call, Edge};
use crate::mutant::Mutant;
use crate::source::Progress;
use crate::stage::{Stage, State};

/// An opened store.
pub(crate) struct SimStore {
    stage: Arc<Stage>,
}

impl SimStore {
    /// Opens it; only one may be open.
    pub(crate) fn open(stage: Arc<Stage>) -> Result<Self> {
        let mut state = stage.lock();
        if std::mem::replace(&mut state.disk.store_open, true) {
            state.breach("the store was opened while another attempt still had it open");
            return Err(Error::fatal("the store is open already"));
        }
        drop(state);
        Ok(Self { stage })
    }
}

impl Drop for SimStore {
    fn drop(&mut self) {
        self.stage.lock().disk.store_open = false;
    }
}

impl Store for SimStore {
    fn latest(&mut self) -> Fut<'_, Result<Option<Checkpoint>>> {
        Box::pin(async {
            self.stage.step(Call::StoreLatest, Edge::Before, "store").await?;
            let saved = self.stage.lock().disk.store.checkpoint.clone();
            self.stage.step(Call::StoreLatest, Edge::After, "store").await?;
            Ok(saved.as_ref().map(Saved::checkpoint))
        })
    }

    fn commit(&mut self, mut checkpoint: Checkpoint) -> Fut<'_, Result<()>> {
        Box::pin(async move {
            if self.stage.mutant == Some(Mutant::StateOutsideCheckpoint) {
                write_state(&mut self.stage.lock().disk.store, &mut checkpoint);
            }
            self.stage.step(Call::StoreCommit, Edge::Before, "store").await?;
            {
                let mut state = self.stage.lock();
                check(&mut state, &checkpoint);
                if self.stage.mutant == Some(Mutant::DroppedToken) {
                    drop_tokens(&state, &mut checkpoint);
                }
                state.note(|| {
                    let forwards = checkpoint.forwards.len();
                    format!("store: checkpoint {} is durable, {forwards} forwards", checkpoint.epoch.0)
                });
                state.count("checkpoints", 1);
                state.count("forwards", checkpoint.forwards.len() as u64);
                write_state(&mut state.disk.store, &mut checkpoint);
                state.disk.restored = false;
                let saved = Saved::of(&checkpoint, state.disk.store.checkpoint.as_ref());
                state.disk.store.checkpoint = Some(saved);
            }
            self.stage.step(Call::StoreCommit, Edge::After, "store").await
        })
    }

    fn view(&self) -> Arc<dyn StateView> {
        Arc::new(View { stage: self.stage.clone() })
    }

    fn savepoint<'a>(&'a mut self, name: &'a str) -> Fut<'a, Result<String>> {
        Box::pin(async move {
            self.stage.step(Call::StoreSavepoint, Edge::Before, "store").await?;
            {
                let mut state = self.stage.lock();
                let copy = state.disk.store.clone();
                if state.disk.savepoints.insert(name.to_owned(), copy).is_some() {
                    return Err(Error::transient(format!("savepoint {name} exists")));
                }
                state.note(|| format!("store: savepoint {name}"));
                state.count("savepoints", 1);
            }
            self.stage.step(Call::StoreSavepoint, Edge::After, "store").await?;
            Ok(name.to_owned())
        })
    }

    fn disk_bytes(&self) -> u64 {
        self.stage.lock().disk.store.state.values().map(|v| v.len() as u64).sum()
    }
}

fn write_state(vault: &mut Vault, checkpoint: &mut Checkpoint) {
    for (space, key, value) in std::mem::take(&mut checkpoint.state.writes) {
        match value {
            Some(value) => vault.state.insert((space, key), value),
            None => vault.state.remove(&(space, key)),
        };
    }
}

/// The mutant: the epoch's tokens are replaced by the ones before.
fn drop_tokens(state: &State, checkpoint: &mut Checkpoint) {
    let before = state.disk.store.checkpoint.as_ref().map(|c| c.sinks.clone()).unwrap_or_default();
    let epoch = checkpoint.epoch;
    checkpoint.sinks.retain(|mark| mark.epoch != epoch);
    for mark in before {
        if checkpoint.sinks.iter().all(|kept| kept.sink != mark.sink) {
            checkpoint.sinks.push(mark);
        }
    }
}

/// What must hold of every checkpoint, given the one before.
fn check(state: &mut State, next: &Checkpoint) {
    for residue in next.counters.residues() {
        state.violation(format!("conservation at checkpoint {}: {residue}", next.epoch.0));
    }
    let prepared = state.disk.histories.iter();
    let prepared: Vec<_> =
        prepared.map(|(sink, w)| (sink.clone(), w.prepared().map_or(0, |c| c.len() as u64))).collect();
    for (sink, rows) in prepared {
        let written = next.counters.sinks.get(&sink).map_or(0, |counts| counts.written);
        if written != rows {
            state.violation(format!(
                "checkpoint {} counts {written} rows of {sink}, which has {rows}",
                next.epoch.0
            ));
        }
    }
    let before = state.disk.store.checkpoint.clone();
    let last_epoch = before.as_ref().map_or(Epoch(0), |c| c.epoch);
    if next.epoch != last_epoch.next() {
        state.breach(format!("checkpoint {} follows checkpoint {}", next.epoch.0, last_epoch.0));
    }
    if next.committed != last_epoch {
        state.breach(format!(
            "checkpoint {} says that {} was the last epoch that all sinks committed",
            next.epoch.0, next.committed.0
        ));
    }
    let Some(before) = before else { return };
    if next.ingested_at_us <= before.ingested_at_us {
        state.breach(format!(
            "__ingested_at of checkpoint {} is {}, not above {}",
            next.epoch.0, next.ingested_at_us, before.ingested_at_us
        ));
    }
    for mark in &before.sinks {
        let committed = state.disk.committed(&mark.sink);
        if committed.is_some_and(|committed| committed != mark.epoch) {
            state.breach(format!(
                "checkpoint {} is to be durable, but {} has not committed epoch {}",
                next.epoch.0, mark.sink, mark.epoch.0
            ));
        }
    }
    for (partition, position) in &next.positions {
        if before.positions.get(partition).is_some_and(|was| Progress::of(position) < Progress::of(was)) {
            state.breach(format!("the position of {partition} went back at checkpoint {}", next.epoch.0));
        }
    }
    let went_back = |(p, ms): &(_, i64)| before.watermarks.get(p).is_some_and(|was| ms < was);
    if next.watermarks.iter().any(went_back) || next.watermark_ms < before.watermark_ms {
        state.breach(format!("a watermark went back at checkpoint {}", next.epoch.0));
    }
}

/// Committed state.
struct View {
    stage: Arc<Stage>,
}

impl StateView for View {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.stage.lock().disk.store.state.get(&(space, key.to_vec())).cloned())
    }

    fn scan(&self, space: Space, prefix: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let entries: Vec<_> = {
            let state = self.stage.lock();
            let from = state.disk.store.state.range((space, prefix.to_vec())..);
            from.take_while(|((s, key), _)| *s == space && key.starts_with(prefix))
                .map(|((_, key), value)| (key.clone(), value.clone()))
                .collect()
        };
        for (key, value) in entries {
            if !visit(&key, &value) {
                break;
            }
        }
        Ok(())
    }
}
