//! The last word, when everything was delivered: do the warehouses show what the database went through?

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::{Counters, DeadLetter, Op, Stage as LetterStage};

use crate::delivery::Expected;
use crate::history::{Big, Change, History, Identity};
use crate::history_sink::{Full, agrees};
use crate::replica_sink::Current;
use crate::source::SourceKind;
use crate::stage::Stage;
use crate::world::{Layout, SimWorld};

/// At most so many differences of one kind are told.
const TOLD_MAX: usize = 5;

/// Compares what is durable with the history.
pub(crate) fn judge(stage: &Stage, world: &SimWorld) {
    let mut wrong = Vec::new();
    let mut unresolved = 0;
    {
        let state = stage.lock();
        for spec in &world.sinks {
            let mut found = Vec::new();
            match spec.layout {
                Layout::History => {
                    let empty = Full::default();
                    let full =
                        state.disk.histories.get(&spec.name).and_then(|w| w.visible()).unwrap_or(&empty);
                    judge_history(&stage.history, full, &mut found);
                }
                Layout::Replica => {
                    let empty = Current::default();
                    let current =
                        state.disk.replicas.get(&spec.name).and_then(|w| w.visible()).unwrap_or(&empty);
                    let counters =
                        state.disk.store.checkpoint.as_ref().map(|c| c.counters.clone()).unwrap_or_default();
                    unresolved += judge_replica(&stage.history, current, &counters, &mut found);
                }
            }
            wrong.extend(found.into_iter().take(TOLD_MAX).map(|text| format!("{}: {text}", spec.name)));
        }
        judge_letters(&stage.history, world, &state.disk.letters, &mut wrong);
        if let Some(checkpoint) = &state.disk.store.checkpoint {
            judge_counters(&stage.history, world, &checkpoint.counters, &mut wrong);
        } else {
            wrong.push("there is no checkpoint".into());
        }
    }
    stage.lock().count("unresolved cells", unresolved);
    for text in wrong {
        stage.violation(text);
    }
}

fn judge_history(history: &History, full: &Full, wrong: &mut Vec<String>) {
    let changes = full.changes();
    let expected = (0..history.changes.len()).filter(|change| !history.changes[*change].is_poison());
    wrong.extend(
        expected.filter(|c| !changes.contains(c)).map(|c| format!("{} is missing", history.describe(c))),
    );
    if full.len() != changes.len() {
        wrong.push(format!("{} rows of {} events", full.len(), changes.len()));
    }
    let poisoned: BTreeSet<_> =
        history.changes.iter().filter(|c| c.is_poison()).map(|c| (c.table, c.id)).collect();
    for (table, truth) in history.rows.iter().enumerate() {
        let latest = full.latest(history, table);
        let ids: BTreeSet<_> = latest.keys().chain(truth.keys()).copied().collect();
        for id in ids.into_iter().filter(|id| !poisoned.contains(&(table, Some(*id)))) {
            let (seen, truth) = (latest.get(&id), truth.get(&id));
            let same = match (seen, truth) {
                (Some(seen), Some(truth)) => agrees(seen, truth),
                (seen, truth) => seen.is_none() && truth.is_none() || untold(history, table, id),
            };
            if !same {
                wrong.push(format!("the latest view of table {table} id={id} shows {seen:?}, not {truth:?}"));
            }
        }
    }
}

/// Whether nothing of a key was ever streamed: it lived and stayed before the connector came.
fn untold(history: &History, table: usize, id: i64) -> bool {
    let own = |c: &&Change| c.table == table && (c.id == Some(id) || c.op == Op::Truncate);
    !history.changes.iter().any(|c| own(&c))
}

/// Answers how many values stayed unresolved, which must be no more than were counted so.
fn judge_replica(history: &History, current: &Current, counters: &Counters, wrong: &mut Vec<String>) -> u64 {
    let mut all = 0;
    for (table, truth) in history.tables.iter().zip(&history.rows) {
        let name = format!("{}.{}", table.schema, table.name);
        let rows = current.rows(&name);
        let ids: BTreeSet<_> = rows.keys().chain(truth.keys()).copied().collect();
        let mut unresolved = Vec::new();
        for id in ids {
            let (seen, truth) = (rows.get(&id), truth.get(&id));
            if seen == truth {
                continue;
            }
            match (seen, truth) {
                (Some(seen), Some(truth)) if seen.big == Big::Unchanged && agrees(seen, truth) => {
                    unresolved.push(id);
                }
                _ => wrong.push(format!("the replica of {name} id={id} shows {seen:?}, not {truth:?}")),
            }
        }
        let counted = counters.tables.get(&name).map_or(0, |counts| counts.unresolved);
        if unresolved.len() as u64 > counted {
            wrong.push(format!(
                "{} values of {name} stayed unresolved (ids {unresolved:?}), but {counted} were counted",
                unresolved.len()
            ));
        }
        all += unresolved.len() as u64;
    }
    all
}

fn judge_letters(history: &History, world: &SimWorld, letters: &[DeadLetter], wrong: &mut Vec<String>) {
    let mut found = BTreeMap::<(String, u64), u64>::new();
    for letter in letters.iter().filter(|letter| letter.stage != LetterStage::Write) {
        *found.entry((letter.partition.clone(), letter.offset)).or_default() += 1;
    }
    let expected = Expected::of(&world.partitions).bad;
    for place in expected.keys().filter(|place| !found.contains_key(place)) {
        wrong.push(format!("the bad record at {place:?} has no dead letter"));
    }
    for (place, n) in &found {
        match expected.get(place) {
            None => wrong.push(format!("the good record at {place:?} has a dead letter")),
            // A queue delivers again what it has not seen acknowledged, and bad records have no identity.
            Some(deliveries) if n > deliveries && world.kind == SourceKind::Log => {
                wrong.push(format!("the bad record at {place:?} has {n} dead letters"));
            }
            Some(_) => {}
        }
    }
    let histories = world.sinks.iter().filter(|s| s.layout == Layout::History).count();
    let refused = history.changes.iter().filter(|c| c.is_poison()).count() * histories;
    let written = letters.iter().filter(|letter| letter.stage == LetterStage::Write).count();
    if written != refused {
        wrong.push(format!("{written} dead letters of {refused} refused rows"));
    }
}

fn judge_counters(history: &History, world: &SimWorld, counters: &Counters, wrong: &mut Vec<String>) {
    for (index, table) in history.tables.iter().enumerate() {
        let name = format!("{}.{}", table.schema, table.name);
        let distinct = history.changes.iter().filter(|c| c.table == index).count() as u64;
        let counted = counters.tables.get(&name).copied().unwrap_or_default();
        if counted.distinct != distinct {
            wrong
                .push(format!("{} distinct events of {name} were counted, not {distinct}", counted.distinct));
        }
        if counted.untold > 0 {
            wrong.push(format!("{} events of {name} could not be told", counted.untold));
        }
        if table.identity != Identity::Keyless && counted.newest == 0 && distinct > 0 {
            wrong.push(format!("no event of {name} was the newest"));
        }
    }
    let bad = Expected::of(&world.partitions).bad.len() as u64;
    let dead: u64 = counters.dead.values().sum();
    if dead < bad || dead > bad && world.kind == SourceKind::Log {
        wrong.push(format!("{dead} dead letters were counted, of {bad} bad records"));
    }
}
