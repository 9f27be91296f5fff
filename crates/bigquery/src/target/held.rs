//! Rows of a replica that wait for large values, which another shard has: an upsert writes whole rows.

use std::sync::Arc;

use millstream_core::{Cause, Judged, Patch, RecordBatch, RowBuilder, Value};

use super::{Obstacle, Taken, Target};

/// A row that waits for its values.
pub(crate) struct Held {
    pub(crate) judged: Judged,
    pub(crate) records: Arc<RecordBatch>,
}

impl Target {
    pub(super) fn unresolved(&self, judged: &Judged) -> Cause {
        let row = judged.current_row();
        let names = judged.event.schema.columns.iter().enumerate();
        let names: Vec<_> =
            names.filter(|(i, _)| row.get(*i) == Value::Unchanged).map(|(_, c)| &*c.name).collect();
        Cause::new(
            "unresolved_value",
            format!(
                "{}: nobody knows the unchanged value of {}, and an upsert writes whole rows; take a snapshot of the table, or \
                 set REPLICA IDENTITY FULL",
                self.source_table,
                names.join(", ")
            ),
        )
    }

    /// Keeps a row without all of its values until they come, which is soon: another shard has them.
    pub(super) fn hold(&mut self, judged: &Judged, records: &Arc<RecordBatch>) -> Result<Taken, Obstacle> {
        let Some(key) = &judged.event.key else { return Err(Obstacle::Refused(self.unresolved(judged))) };
        self.held.insert(key.clone(), Held { judged: judged.clone(), records: records.clone() });
        Ok(Taken::Written)
    }

    /// Puts late values into the row that waits for them; the row, once it has all of them.
    pub(crate) fn fill(&mut self, patch: &Patch) -> Option<Held> {
        let held = self.held.get_mut(&patch.key)?;
        if held.judged.event.order != patch.order {
            return None;
        }
        let schema = &held.judged.event.schema;
        let row = held.judged.current_row();
        let mut filled = RowBuilder::new();
        for (column, value) in schema.columns.iter().zip(row.iter()) {
            let late = patch.columns.iter().position(|&i| patch.schema.columns[i].name == column.name);
            filled.push(late.filter(|_| value == Value::Unchanged).map_or(value, |at| patch.values.get(at)));
        }
        let filled = filled.finish();
        let is_whole = !filled.has_unchanged();
        held.judged.filled = Some(filled);
        if is_whole { self.held.remove(&patch.key) } else { None }
    }

    /// Rows of the epoch whose values did not come.
    pub(super) fn give_up(&mut self) -> Vec<(Arc<RecordBatch>, u32, Cause)> {
        let held: Vec<_> = self.held.drain().map(|(_, held)| held).collect();
        held.into_iter()
            .map(|Held { judged, records }| {
                let cause = self.unresolved(&judged);
                (records, judged.event.record, cause)
            })
            .collect()
    }
}
