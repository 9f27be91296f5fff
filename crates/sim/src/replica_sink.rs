//! The replica layout: the current row of every key.

use std::collections::BTreeMap;

use millstream_core::{Judged, Op, Order, Output, Patch, Value};

use crate::decoder::{BIG, cells_of, id_of};
use crate::disk::Disk;
use crate::history::{Big, Cells, History, Rows};
use crate::sink::{Layout, Taken, Warehouse};

/// All warehouses of this layout, by sink.
pub(crate) type Replicas = Warehouse<Current>;

/// A key's current row; `None` after its delete, which is remembered so that regressions are noticed.
#[derive(Debug, Clone)]
struct Held {
    order: Order,
    cells: Option<Cells>,
}

/// One table.
#[derive(Debug, Clone, Default)]
struct Replica {
    /// The order of the newest truncate.
    cut: Option<Order>,
    rows: BTreeMap<i64, Held>,
}

/// Replicas of all tables, by qualified name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Current {
    tables: BTreeMap<String, Replica>,
}

impl Current {
    /// The rows of a table.
    pub(crate) fn rows(&self, table: &str) -> Rows {
        let rows = self.tables.get(table).into_iter().flat_map(|table| &table.rows);
        rows.filter_map(|(id, held)| Some((*id, held.cells.clone()?))).collect()
    }

    fn event(&mut self, judged: &Judged, wrong: &mut Vec<String>) -> Taken {
        let event = &judged.event;
        if !judged.distinct {
            return Taken::Duplicate;
        }
        if event.key.is_none() && event.op != Op::Truncate {
            return Taken::Filtered;
        }
        if !judged.newest {
            return Taken::Superseded;
        }
        let table = self.tables.entry(event.schema.table.qualified()).or_default();
        if event.op == Op::Truncate {
            table.cut = table.cut.max(Some(event.order));
            table.rows.retain(|_, held| held.order > event.order);
            return Taken::Written;
        }
        if Some(event.order) <= table.cut {
            // A truncate came by another shard.
            return Taken::Superseded;
        }
        let Some(id) = event.key.as_ref().and_then(id_of) else {
            wrong.push("a key came that nobody sent".into());
            return Taken::Filtered;
        };
        let before = table.rows.get(&id);
        if before.is_some_and(|held| held.order >= event.order) {
            wrong.push(format!("{} id={id} regressed to {}", event.schema.table, event.order));
        }
        let known = before.and_then(|held| held.cells.as_ref()).map(|cells| cells.big.clone());
        let cells =
            (event.op != Op::Delete).then(|| cells_of(judged.current_row())).flatten().map(|mut cells| {
                if cells.big == Big::Unchanged {
                    cells.big = known.unwrap_or(Big::Unchanged);
                }
                cells
            });
        table.rows.insert(id, Held { order: event.order, cells });
        Taken::Written
    }

    fn patch(&mut self, patch: &Patch, wrong: &mut Vec<String>) {
        let table = self.tables.entry(patch.schema.table.qualified()).or_default();
        let Some(held) = id_of(&patch.key).and_then(|id| table.rows.get_mut(&id)) else { return };
        let Some(cells) = &mut held.cells else { return };
        if held.order != patch.order {
            wrong.push(format!(
                "a patch of {} is for {}, not {}",
                patch.schema.table, patch.order, held.order
            ));
            return;
        }
        for (at, column) in patch.columns.iter().enumerate() {
            match (*column, patch.values.get(at)) {
                (BIG, Value::Text(text)) => cells.big = Big::Text(text.to_owned()),
                (BIG, Value::Null) => cells.big = Big::Null,
                _ => wrong.push(format!("a patch of {} sets column {column}", patch.schema.table)),
            }
        }
    }
}

impl Layout for Current {
    fn warehouses(disk: &mut Disk) -> &mut BTreeMap<String, Replicas> {
        &mut disk.replicas
    }

    fn take(&mut self, output: &Output, _: i64, _: &History, wrong: &mut Vec<String>) -> Taken {
        match output {
            Output::Event(judged) => self.event(judged, wrong),
            Output::Patch(patch) => {
                self.patch(patch, wrong);
                Taken::Patch
            }
        }
    }

    fn check(&self, _: &History, _: &mut Vec<String>) {}
}
