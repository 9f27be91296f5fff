//! The list of tables that are to be swept: taken by the pipeline, crossed off when that is durable.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_core::bytes::{put_varint, take_varint};
use millstream_core::record::Slot;
use millstream_core::{Budget, Error, PartitionId, Position, RecordBatch, Result, TableName};
use tokio::sync::Notify;

/// The partition of sweeps. Files are named by their paths, and subscriptions in full.
pub(crate) const PARTITION: &str = "sweeps";
/// The position's format number.
const FORMAT: u8 = 1;

/// The tables that are to be swept.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    state: Mutex<State>,
    crossed_off: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Each table, and the number of the batch in which this attempt took it.
    asked: BTreeMap<TableName, Option<u64>>,
    /// The number of the last batch, which is the partition's position.
    last: u64,
}

impl Sheet {
    /// Asks for tables to be swept.
    pub(crate) fn ask(&self, tables: &[TableName]) {
        let mut state = self.state();
        for table in tables {
            // What is under way takes the same rows: which ones go is told by order, not by when it was asked.
            state.asked.entry(table.clone()).or_insert(None);
        }
    }

    /// Whether everything is done.
    pub(crate) fn is_clear(&self) -> bool {
        self.state().asked.is_empty()
    }

    /// Whether these tables are swept, durably.
    pub(crate) fn is_done(&self, tables: &[TableName]) -> bool {
        let state = self.state();
        !tables.iter().any(|table| state.asked.contains_key(table))
    }

    /// Waits until these tables are swept, durably; perhaps for ever.
    pub(crate) async fn done(&self, tables: &[TableName]) {
        loop {
            let crossed_off = self.crossed_off.notified();
            if self.is_done(tables) {
                return;
            }
            crossed_off.await;
        }
    }

    /// An attempt begins at the positions of a checkpoint: what earlier ones took and did not make durable is to be taken again.
    pub(crate) fn reopen(&self, positions: &[(PartitionId, Position)]) -> Result<()> {
        self.settle(positions)?;
        let mut state = self.state();
        state.last = number(positions)?.unwrap_or(0);
        state.asked.values_mut().for_each(|taken| *taken = None);
        Ok(())
    }

    /// Crosses off what is durable as of these positions.
    pub(crate) fn settle(&self, positions: &[(PartitionId, Position)]) -> Result<()> {
        if let Some(durable) = number(positions)? {
            self.state().asked.retain(|_, taken| taken.is_none_or(|number| number > durable));
            self.crossed_off.notify_waiters();
        }
        Ok(())
    }

    /// The next tables, one record each; `None` if there are none.
    pub(crate) fn next(&self, budget: Budget) -> Option<RecordBatch> {
        let mut state = self.state();
        let number = state.last + 1;
        let waiting = state.asked.iter_mut().filter(|(_, taken)| taken.is_none());
        let mut slots = Vec::new();
        for (table, taken) in waiting.take(budget.records.max(1)) {
            *taken = Some(number);
            slots.push(Slot { sweep: Some(Box::new(table.clone())), ..Slot::default() });
        }
        if slots.is_empty() {
            return None;
        }
        state.last = number;
        let mut position = vec![FORMAT];
        put_varint(&mut position, number);
        Some(RecordBatch {
            partition: PartitionId::new(PARTITION),
            buffer: Vec::new(),
            slots,
            position: Position(position),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of the last batch of sweeps, among the positions of all partitions.
fn number(positions: &[(PartitionId, Position)]) -> Result<Option<u64>> {
    let Some((_, position)) = positions.iter().find(|(partition, _)| &*partition.0 == PARTITION) else {
        return Ok(None);
    };
    let number = match position.0.split_first() {
        Some((&FORMAT, mut rest)) => take_varint(&mut rest).filter(|_| rest.is_empty()),
        _ => None,
    };
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(Error::fatal(
            "the checkpoint's number of sweeps has an unknown format: it was written by a newer version",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget { records: 2, bytes: 1 };

    fn table(name: &str) -> TableName {
        TableName::new("shop", "public", name)
    }

    fn taken(sheet: &Sheet) -> Option<(Vec<String>, (PartitionId, Position))> {
        let batch = sheet.next(BUDGET)?;
        let tables = batch.records().map(|record| record.sweep().unwrap().table.to_string()).collect();
        Some((tables, (batch.partition, batch.position)))
    }

    #[test]
    fn tables_are_taken_once_and_crossed_off_when_durable() {
        let sheet = Sheet::default();
        sheet.reopen(&[]).unwrap();
        assert!(sheet.is_clear() && taken(&sheet).is_none());
        sheet.ask(&[table("c"), table("a"), table("b")]);
        let (first, at_first) = taken(&sheet).unwrap();
        let (second, at_second) = taken(&sheet).unwrap();
        assert_eq!((first, second), (vec!["a".into(), "b".into()], vec!["c".into()]), "within the budget");
        assert!(taken(&sheet).is_none(), "each once");
        sheet.ask(&[table("a")]);
        assert!(taken(&sheet).is_none(), "it is under way");

        sheet.settle(&[(PartitionId::new("/data/in.jsonl"), Position(vec![9]))]).unwrap();
        assert!(!sheet.is_done(&[table("a")]), "that was another partition's");
        sheet.settle(&[at_first]).unwrap();
        assert!(sheet.is_done(&[table("a"), table("b")]));
        assert!(!sheet.is_done(&[table("a"), table("c")]) && !sheet.is_clear());
        sheet.settle(&[at_second]).unwrap();
        assert!(sheet.is_clear());
        sheet.ask(&[table("a")]);
        assert!(taken(&sheet).is_some(), "asked for once more");
    }

    /// An attempt that fails forgets its records. A checkpoint that it took is known to the next one by its positions alone.
    #[test]
    fn the_next_attempt_takes_what_is_not_durable() {
        let sheet = Sheet::default();
        sheet.reopen(&[]).unwrap();
        sheet.ask(&[table("a"), table("b"), table("c")]);
        let (_, at_first) = taken(&sheet).unwrap();
        taken(&sheet).unwrap();
        sheet.reopen(std::slice::from_ref(&at_first)).unwrap();
        let (again, at) = taken(&sheet).unwrap();
        assert_eq!(again, ["c"]);
        assert_ne!(at, at_first, "a position that did not move would not be committed");
        let newer = [(PartitionId::new(PARTITION), Position(vec![FORMAT + 1, 1]))];
        assert!(sheet.reopen(&newer).unwrap_err().to_string().contains("newer version"));
    }

    #[tokio::test]
    async fn who_waits_is_told() {
        let sheet = Sheet::default();
        sheet.done(&[table("a")]).await;
        sheet.ask(&[table("a")]);
        let (_, at) = taken(&sheet).unwrap();
        let wanted = [table("a")];
        let (mut waiting, positions) = (std::pin::pin!(sheet.done(&wanted)), [at]);
        tokio::select! {
            biased;
            () = &mut waiting => panic!("nothing is durable"),
            () = std::future::ready(()) => {}
        }
        sheet.settle(&positions).unwrap();
        waiting.await;
    }
}
