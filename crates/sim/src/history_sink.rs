//! The history layout: every distinct event once.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::{Cause, Event, Op, Order, Output};

use crate::decoder::{cells_of, change_of, id_of};
use crate::disk::Disk;
use crate::history::{Big, Cells, History, Rows};
use crate::sink::{Layout, Taken, Warehouse};

/// All warehouses of this layout, by sink.
pub(crate) type Histories = Warehouse<Full>;

/// A row of a history.
#[derive(Debug, Clone)]
struct Written {
    change: usize,
    order: Order,
    ingested_at_us: i64,
}

/// A history of all tables.
#[derive(Debug, Clone, Default)]
pub(crate) struct Full {
    rows: Vec<Written>,
}

impl Full {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The changes that have a row.
    pub(crate) fn changes(&self) -> BTreeSet<usize> {
        self.rows.iter().map(|row| row.change).collect()
    }

    /// The rows that a `latest` view of a table shows: by key the newest event, unless it deletes; nothing at or below the last
    /// truncate. Values that came unchanged stay so.
    pub(crate) fn latest(&self, world: &History, table: usize) -> Rows {
        let rows = || self.rows.iter().filter(|row| world.changes[row.change].table == table);
        let cut =
            rows().filter(|row| world.changes[row.change].op == Op::Truncate).map(|row| row.order).max();
        let mut newest = BTreeMap::<i64, &Written>::new();
        for row in rows().filter(|row| Some(row.order) > cut) {
            if let Some(id) = world.changes[row.change].id {
                let best = newest.entry(id).or_insert(row);
                if row.order > best.order {
                    *best = row;
                }
            }
        }
        let alive = newest.into_iter().filter(|(_, row)| world.changes[row.change].op != Op::Delete);
        alive.filter_map(|(id, row)| Some((id, world.changes[row.change].cells.clone()?))).collect()
    }
}

impl Layout for Full {
    fn warehouses(disk: &mut Disk) -> &mut BTreeMap<String, Histories> {
        &mut disk.histories
    }

    fn take(
        &mut self,
        output: &Output,
        ingested_at_us: i64,
        world: &History,
        wrong: &mut Vec<String>,
    ) -> Taken {
        let Output::Event(judged) = output else { return Taken::Patch };
        if !judged.distinct {
            return Taken::Duplicate;
        }
        let Some(change) = change_of(&judged.event) else {
            wrong.push("an event came that nobody sent".into());
            return Taken::Filtered;
        };
        if let Some(what) = altered(&judged.event, world, change) {
            wrong.push(format!("{what} of {} was altered", world.describe(change)));
        }
        if world.changes[change].is_poison() {
            return Taken::Rejected(Cause::new("poison", "made so"));
        }
        self.rows.push(Written { change, order: judged.event.order, ingested_at_us });
        Taken::Written
    }

    fn check(&self, world: &History, wrong: &mut Vec<String>) {
        let mut seen = BTreeSet::new();
        let mut last = i64::MIN;
        for row in &self.rows {
            if !seen.insert(row.change) {
                wrong.push(format!("{} is there twice", world.describe(row.change)));
            }
            if row.ingested_at_us < last {
                wrong.push(format!("__ingested_at went back at {}", world.describe(row.change)));
            }
            last = row.ingested_at_us;
        }
    }
}

/// What of an event is not as the source sent it.
fn altered(event: &Event, world: &History, change: usize) -> Option<&'static str> {
    let c = &world.changes[change];
    let table = &world.tables[c.table];
    let name = &event.schema.table;
    if (&*name.schema, &*name.table) != (table.schema, table.name) {
        return Some("the table");
    }
    if event.op != c.op || event.key.as_ref().and_then(id_of) != c.id {
        return Some("the operation or the key");
    }
    let cells = cells_of(&event.row);
    let expected = c.cells.clone();
    (cells != expected).then_some("the row")
}

/// Whether `seen` shows `truth`, but for a value that came unchanged.
pub(crate) fn agrees(seen: &Cells, truth: &Cells) -> bool {
    seen.v == truth.v && (seen.big == Big::Unchanged || seen.big == truth.big)
}
