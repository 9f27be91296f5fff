//! The staging of a replica that is merged: changes that were the newest of their key when they came, kept until a statement has
//! applied them, and for a while longer as the memory of deletes.
//!
//! A row is *whole* if it has a value in every column but those that `__unchanged` names. Others have their key, and what is said of
//! them here:
//! - a truncate (`__op` `t`) has nothing else,
//! - a delete whose image before is not known has its key,
//! - late values ([`PATCH`]) of a row that was staged before have its key, its order, and a value in the columns that `__late` names.

use millstream_core::sink::Patch;
use millstream_core::{Event, Field, Incarnation, Judged, Op, RowBuilder, Type};

use crate::shape::{Binding, Shape};
use crate::table::StoredTable;

/// The `__op` of late values.
pub const PATCH: &str = "p";

/// The column by which staged rows are applied, and their table is partitioned.
pub const MARK_COLUMN: &str = "__ingested_at";

/// The columns that Millstream adds, in order.
pub fn own_columns() -> Vec<Field> {
    let field = |name: &str, ty| Field { name: name.into(), ty };
    let texts = || Type::List(Box::new(Type::Text));
    vec![
        field("__op", Type::Text),
        field("__source_ts", Type::Timestamp),
        field(MARK_COLUMN, Type::Timestamp),
        field("__lsn", Type::Int64),
        field("__order", Type::Text),
        field("__whole", Type::Bool),
        field("__unchanged", texts()),
        field("__late", texts()),
        field("__key_columns", Type::Text),
    ]
}

/// All columns in the table's physical order.
pub fn physical_columns(table: &StoredTable) -> Vec<Field> {
    table.physical_columns(own_columns())
}

/// Whether an event's row has all values but those that it names as unchanged.
pub fn is_whole(event: &Event) -> bool {
    match event.op {
        Op::Truncate => false,
        Op::Delete => event.full_before,
        Op::Read | Op::Create | Op::Update => true,
    }
}

/// Whether nothing that was staged of the row before is needed beside this change of it. `keeps`: rows that are deleted stay, with
/// their last values.
pub fn replaces(judged: &Judged, keeps: bool) -> bool {
    match judged.event.op {
        Op::Truncate => false,
        Op::Delete => !keeps || judged.event.full_before,
        Op::Read | Op::Create | Op::Update => !judged.current_row().has_unchanged(),
    }
}

/// Late values as a change of their row, which has NULL in all other columns. `None` if the key cannot be read.
pub fn late_change(patch: &Patch) -> Option<Judged> {
    let key = patch.key.values()?;
    let mut row = RowBuilder::new();
    row.resize(patch.schema.columns.len());
    for (i, &column) in patch.schema.key.iter().enumerate() {
        row.set(column, key.get(i));
    }
    for (i, &column) in patch.columns.iter().enumerate() {
        row.set(column, patch.values.get(i));
    }
    let blank = Event::sweep((*patch.schema.table).clone(), Incarnation(0));
    let event = Event {
        schema: patch.schema.clone(),
        op: Op::Update,
        key: Some(patch.key.clone()),
        order: patch.order,
        row: row.finish(),
        ..blank
    };
    Some(Judged { event: Box::new(event), distinct: true, newest: true, late: false, filled: None })
}

/// The table's columns that have late values.
pub fn late_columns<'a>(
    shape: &'a Shape,
    binding: &'a Binding,
    patch: &'a Patch,
) -> impl Iterator<Item = &'a str> + 'a {
    let is_set = |source: usize| patch.columns.contains(&source);
    let cells = shape.columns.iter().zip(&binding.cells);
    cells.filter(move |(_, cell)| cell.source.is_some_and(is_set)).map(|(column, _)| &*column.name)
}
