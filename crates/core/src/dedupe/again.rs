//! Events that come again for a sink that refused their rows, once whoever runs the pipeline has mended that.
//!
//! State saw these events when they came first, and learns nothing from them now: what it would make of one that it does not
//! know (its id was forgotten, or the incarnation was raised since) would be true for one sink only.

use super::Mode;
use super::entry::VALUES;
use super::gate::Gate;
use super::resolve::push_kept;
use super::route::shard_of;
use super::stamp::Stamp;
use crate::error::Result;
use crate::event::{Event, Op};
use crate::row::{Row, RowBuilder};
use crate::sink::{Judged, Output};
use crate::value::Value;

impl Gate {
    /// Judges an event that comes [again](crate::record::Slot::again_for) and appends it, with its verdict, to `out`. It is
    /// counted as the duplicate that it is; its verdict is the one that a sink needs which did not write it: distinct, and
    /// newest if nothing newer came since.
    ///
    /// # Errors
    /// As [`judge`](Self::judge).
    pub fn judge_again(&mut self, mut event: Box<Event>, late: bool, out: &mut Vec<Output>) -> Result<()> {
        if event.op == Op::Truncate && shard_of(&event, self.shards) != self.shard {
            return Ok(());
        }
        let table = self.intern(&event.schema.table)?;
        let mut newest = false;
        let mut filled = None;
        if self.config.mode == Mode::Off {
            newest = event.key.is_some();
        } else if let (Some(key), true) = (&event.key, event.op != Op::Truncate) {
            let slot = self.slot(table, key.as_bytes())?;
            let stamp = Stamp::of(&event);
            let entry = &self.cache.slot(slot).entry;
            let is_newest = stamp.is_newest(entry);
            let has_values = entry.is(VALUES);
            // As it was written when it came first.
            event.order = if is_newest { entry.newest } else { stamp.adjusted(entry).unwrap_or(stamp.order) };
            newest = is_newest && self.tables.get(table).holds(&event.order);
            if newest && has_values && event.row.has_unchanged() {
                filled = Some(self.filled(&event)?);
            }
        }
        let counters = &mut self.tables.get_mut(table).counters;
        counters.events += 1;
        counters.duplicates += 1;
        counters.late += u64::from(late);
        out.push(Output::Event(Judged { event, distinct: true, newest, late, filled }));
        Ok(())
    }

    /// The row of the key's newest event with the values that state knows for those it lacks. `self.state_key` is its key's.
    fn filled(&mut self, event: &Event) -> Result<Row> {
        let known = self.values.get(&self.state_key, &*self.view)?;
        let mut row = RowBuilder::new();
        for (column, value) in event.schema.columns.iter().zip(event.row.iter()) {
            let kept = match value {
                Value::Unchanged => known.and_then(|known| known.column(&column.name)?.value.as_ref()),
                _ => None,
            };
            match kept {
                Some(kept) => push_kept(kept, &mut row)?,
                None => row.push(value),
            }
        }
        Ok(row.finish())
    }
}
