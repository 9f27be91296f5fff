//! The gate's way with unchanged large values: filling them in, patching rows, and forwarding them after key changes.
//!
//! A limit: when a key is used again after a key change took its row away, and the new row and the old row's late values arrive
//! before both the delete of the key change and the heir's question, the values are not kept, as nobody is known to wait
//! for them; the heir's columns stay unresolved then.

use std::sync::Arc;

use super::Mode;
use super::cache::SlotId;
use super::cells::{put_value, take_value};
use super::encoding::damaged;
use super::entry::{DELETE, VALUES};
use super::forward::{Body, Borrow, Forward, Kept};
use super::gate::{Gate, Ruling};
use super::large::{Heir, Known, Large, TIME_UNKNOWN};
use super::shape::can_move;
use super::stamp::Stamp;
use crate::error::Result;
use crate::event::{Event, Op};
use crate::key::Key;
use crate::row::{Row, RowBuilder};
use crate::schema::RowSchema;
use crate::sink::{Output, Patch};
use crate::value::Value;

/// What was found out about an event before its large values are looked at.
pub(super) struct Found {
    /// Its key's slot.
    pub(super) slot: SlotId,
    /// Index of its table.
    pub(super) table: u32,
    /// When it happened.
    pub(super) stamp: Stamp,
    /// Whether it is newer than its key's newest.
    pub(super) newer: bool,
    /// Whether its row may hold values that are stored out of line, or lacks some.
    pub(super) large: bool,
}

impl Gate {
    /// Fills in the unchanged values of a distinct event's row, and keeps those that may come unchanged later.
    /// `self.state_key` is its key's.
    pub(super) fn resolve(
        &mut self,
        event: &Event,
        found: &Found,
        ruling: &mut Ruling,
        sends: &mut Vec<Forward>,
    ) -> Result<()> {
        let has_record = self.cache.slot(found.slot).entry.is(VALUES);
        let newer = found.newer;
        let matters = match event.op {
            _ if has_record || event.old_key.is_some() => true,
            Op::Delete => event.new_key.is_some(),
            _ => newer && found.large,
        };
        if !matters || !self.tables.get(found.table).holds(&event.order) {
            return Ok(());
        }
        let mut record = self.record(found)?;
        let state_key = std::mem::take(&mut self.state_key);
        let mut forwards = Vec::new();
        let mut unresolved = 0;
        let mut patched = Vec::new();
        if event.op == Op::Delete {
            unresolved = end(&mut record, event, found, self.now_ms);
        } else {
            if matches!(event.op, Op::Create | Op::Read) {
                record.begin(found.stamp);
            }
            let values = movable(event, found.stamp);
            forwards = record.feed(&values);
            if newer {
                (ruling.filled, unresolved) = renew(&mut record, event, values, found.large)?;
            } else {
                patched = offer_row(&mut record, event, &found.stamp, values);
            }
        }
        if let Some(borrow) = borrow(event, found.stamp) {
            forwards.push(borrow);
        }
        self.tables.get_mut(found.table).counters.unresolved += unresolved;
        ruling.patch = self.patch(found, &event.schema, event.key.as_ref(), &record, &patched)?.map(Box::new);
        self.put_record(found.slot, &state_key, record);
        self.state_key = state_key;
        self.send(forwards, sends);
        Ok(())
    }

    /// See [`Gate::receive`].
    pub(super) fn receive_forward(
        &mut self,
        forward: Forward,
        out: &mut Vec<Output>,
        sends: &mut Vec<Forward>,
    ) -> Result<()> {
        if self.config.mode == Mode::Off {
            return Ok(());
        }
        let table = self.intern(&forward.schema.table)?;
        let slot = self.slot(table, forward.to.as_bytes())?;
        let found = Found { slot, table, stamp: Stamp::MIN, newer: false, large: false };
        match forward.body {
            Body::Borrow(borrow) => self.lend(&found, borrow, forward.schema, sends),
            Body::Fill(values) => self.fill(&found, &forward.to, &forward.schema, values, out, sends),
        }
    }

    fn lend(
        &mut self,
        found: &Found,
        borrow: Borrow,
        schema: Arc<RowSchema>,
        sends: &mut Vec<Forward>,
    ) -> Result<()> {
        let create = borrow.create;
        // After a truncate the heir's row is gone, and nothing is needed.
        let needed = self.tables.get(found.table).holds(&create.order);
        let names = if needed { borrow.columns } else { Vec::new() };
        let entry = &self.cache.slot(found.slot).entry;
        if names.is_empty() && !entry.is(VALUES) {
            return Ok(());
        }
        let mut record = self.record(found)?;
        let shelf =
            record.shelves.iter().position(|s| s.heir == borrow.heir && same_position(&s.end, &create));
        let shelf = shelf.map(|i| record.shelves.remove(i));
        let columns = shelf.as_ref().map_or(&record.columns, |shelf| &shelf.columns);
        let column = |name: &str| columns.iter().find(|c| &*c.name == name);
        let value = |name: &str| column(name)?.value.clone();
        let known: Vec<_> = names.iter().filter_map(|name| Some((name.clone(), value(name)?))).collect();
        // What this key asked for at yet another one is counted there.
        let asked = |name: &str| column(name).is_some_and(|c| c.asked);
        let columns: Vec<_> =
            names.into_iter().map(|name| (asked(&name), name)).map(|(a, n)| (n, a)).collect();
        if needed && (shelf.is_none() || !columns.is_empty()) {
            let heir = Heir { key: borrow.heir, create, since_ms: self.now_ms, schema, columns };
            let new = record.add_heir(heir);
            let forwards = record.feed(&known);
            // Where the delete is still to come, earlier values may be too; then it counts what is missing.
            if new && shelf.is_some() {
                let missing = record.heirs.last().map_or(0, unserved);
                self.tables.get_mut(found.table).counters.unresolved += missing;
            }
            self.send(forwards, sends);
        }
        let state_key = std::mem::take(&mut self.state_key);
        self.put_record(found.slot, &state_key, record);
        self.state_key = state_key;
        Ok(())
    }

    fn fill(
        &mut self,
        found: &Found,
        to: &Key,
        schema: &Arc<RowSchema>,
        values: Vec<(Box<str>, Kept)>,
        out: &mut Vec<Output>,
        sends: &mut Vec<Forward>,
    ) -> Result<()> {
        if !self.cache.slot(found.slot).entry.is(VALUES) {
            return Ok(());
        }
        let mut record = self.record(found)?;
        let forwards = record.feed(&values);
        let schema = match &self.tables.get(found.table).schema {
            Some(known) if **known == **schema => Arc::clone(known),
            _ => Arc::clone(schema),
        };
        let mut patched = Vec::new();
        for (name, kept) in values {
            if record.offer(&name, kept) {
                patched.extend(schema.column(&name));
            }
        }
        let patch = self.patch(found, &schema, Some(to), &record, &patched)?;
        let state_key = std::mem::take(&mut self.state_key);
        self.put_record(found.slot, &state_key, record);
        self.state_key = state_key;
        self.send(forwards, sends);
        out.extend(patch.map(Output::Patch));
        Ok(())
    }

    /// Takes the key's record out, without heirs and shelves whose time is over, and values from before the last truncate.
    fn record(&mut self, found: &Found) -> Result<Large> {
        let mut record = match self.cache.slot(found.slot).entry.is(VALUES) {
            true => self
                .values
                .take(&self.state_key, &*self.view)?
                .ok_or_else(|| damaged("record of large values"))?,
            false => Large::default(),
        };
        let expired_ms = self.now_ms.saturating_sub(self.config.ids_kept_ms);
        let heirs = record.heirs.iter_mut().map(|heir| &mut heir.since_ms);
        let shelves = record.shelves.iter_mut().map(|shelf| &mut shelf.since_ms);
        for since_ms in heirs.chain(shelves).filter(|since_ms| **since_ms == TIME_UNKNOWN) {
            *since_ms = self.now_ms;
        }
        record.heirs.retain(|heir| heir.since_ms >= expired_ms);
        record.shelves.retain(|shelf| shelf.since_ms >= expired_ms);
        if let Some(cut) = &self.tables.get(found.table).cut {
            record.begin(Stamp::at(cut.order));
        }
        Ok(record)
    }

    fn put_record(&mut self, slot: SlotId, state_key: &[u8], record: Large) {
        let entry = &mut self.cache.slot_mut(slot).entry;
        let void = record.is_void();
        if void && !entry.is(VALUES) {
            return;
        }
        entry.set(VALUES, !void);
        self.values.set(state_key, (!void).then_some(record));
        self.cache.changed(slot);
    }

    /// The patch that brings the values of `columns` to the replica's row.
    fn patch(
        &self,
        found: &Found,
        schema: &Arc<RowSchema>,
        key: Option<&Key>,
        record: &Large,
        columns: &[usize],
    ) -> Result<Option<Patch>> {
        let entry = &self.cache.slot(found.slot).entry;
        let Some(key) = key else { return Ok(None) };
        if columns.is_empty() || entry.is(DELETE) || !self.tables.get(found.table).holds(&entry.newest) {
            return Ok(None);
        }
        let mut values = RowBuilder::new();
        for &column in columns {
            let kept = record.column(&schema.columns[column].name).and_then(|known| known.value.as_ref());
            push_kept(kept.ok_or_else(|| damaged("record of large values"))?, &mut values)?;
        }
        let (schema, key) = (Arc::clone(schema), key.clone());
        Ok(Some(Patch {
            schema,
            key,
            order: entry.newest,
            columns: columns.to_vec(),
            values: values.finish(),
        }))
    }

    fn send(&mut self, forwards: Vec<Forward>, sends: &mut Vec<Forward>) {
        self.sent.extend(forwards.iter().map(Forward::encode));
        sends.extend(forwards);
    }
}

/// The values of a row that may come unchanged later.
fn movable(event: &Event, stamp: Stamp) -> Vec<(Box<str>, Kept)> {
    let mut values = Vec::new();
    for (column, value) in event.schema.columns.iter().zip(event.row.iter()) {
        if can_move(&column.ty, value) {
            let mut bytes = Vec::new();
            put_value(&mut bytes, value);
            values.push((column.name.clone(), Kept { path: vec![stamp], bytes: bytes.into() }));
        }
    }
    values
}

/// The row ended. Answers how many values an heir waits for that were not seen.
fn end(record: &mut Large, event: &Event, found: &Found, now_ms: i64) -> u64 {
    let mut missing = 0;
    if let Some(new_key) = &event.new_key {
        let asked = |heir: &Heir| heir.key == *new_key && same_position(&heir.create, &found.stamp);
        match record.heirs.iter().position(asked) {
            None => record.shelve(new_key.clone(), found.stamp, now_ms),
            Some(i) if record.heirs[i].columns.is_empty() => drop(record.heirs.remove(i)),
            Some(i) => missing = unserved(&record.heirs[i]),
        }
    }
    if found.newer {
        record.columns.clear();
    }
    record.begin(found.stamp);
    missing
}

/// The newest row replaces what is known; its unchanged cells are filled. Answers the filled row, and how many cells were not.
fn renew(
    record: &mut Large,
    event: &Event,
    values: Vec<(Box<str>, Kept)>,
    large: bool,
) -> Result<(Option<Row>, u64)> {
    if !event.row.has_unchanged() {
        record.columns.clear();
        if large {
            let known = |(name, kept)| Known { name, unchanged: false, asked: false, value: Some(kept) };
            record.columns.extend(values.into_iter().map(known));
        }
        return Ok((None, 0));
    }
    let mut before = std::mem::take(&mut record.columns);
    let mut present = values.into_iter().peekable();
    let mut row = RowBuilder::new();
    let mut missing = 0;
    let taken_over = event.op == Op::Create && event.old_key.is_some();
    for (column, value) in event.schema.columns.iter().zip(event.row.iter()) {
        if value == Value::Unchanged {
            let known = before.iter_mut().find(|c| c.name == column.name);
            // What the create of a key change lacks is asked for at the old key, and counted there if it is not known.
            let asked = taken_over || known.as_ref().is_some_and(|c| c.asked);
            let value = known.and_then(|c| c.value.take());
            match &value {
                Some(kept) => push_kept(kept, &mut row)?,
                None => {
                    missing += u64::from(!asked);
                    row.push(Value::Unchanged);
                }
            }
            record.columns.push(Known { name: column.name.clone(), unchanged: true, asked, value });
            continue;
        }
        row.push(value);
        if let Some((name, kept)) = present.next_if(|(name, _)| *name == column.name) {
            record.columns.push(Known { name, unchanged: false, asked: false, value: Some(kept) });
        }
    }
    Ok((Some(row.finish()), missing))
}

/// A late row offers its values. Answers the columns that the newest row lacked.
fn offer_row(record: &mut Large, event: &Event, stamp: &Stamp, values: Vec<(Box<str>, Kept)>) -> Vec<usize> {
    let mut patched = Vec::new();
    let mut present = values.into_iter().peekable();
    for (index, (column, value)) in event.schema.columns.iter().zip(event.row.iter()).enumerate() {
        if let Some((name, kept)) = present.next_if(|(name, _)| *name == column.name) {
            if record.offer(&name, kept) {
                patched.push(index);
            }
        } else if value != Value::Unchanged {
            record.retire(&column.name, stamp);
        }
    }
    patched
}

/// What the create of a key change asks of the old key.
fn borrow(event: &Event, create: Stamp) -> Option<Forward> {
    let old_key =
        event.old_key.as_ref().filter(|old| event.op == Op::Create && event.key.as_ref() != Some(*old))?;
    let unchanged = |(column, value): (&crate::Column, Value<'_>)| {
        (value == Value::Unchanged).then(|| column.name.clone())
    };
    let columns = event.schema.columns.iter().zip(event.row.iter()).filter_map(unchanged).collect();
    let borrow = Borrow { heir: event.key.clone()?, create, columns };
    Some(Forward { schema: Arc::clone(&event.schema), to: old_key.clone(), body: Body::Borrow(borrow) })
}

/// Appends a kept value to a row.
pub(super) fn push_kept(kept: &Kept, row: &mut RowBuilder) -> Result<()> {
    take_value(&mut &kept.bytes[..], row).ok_or_else(|| damaged("record of large values"))
}

fn unserved(heir: &Heir) -> u64 {
    heir.columns.iter().filter(|(_, served)| !served).count() as u64
}

/// Whether two stamps are of one position in the log, whatever their `p`.
fn same_position(a: &Stamp, b: &Stamp) -> bool {
    matches!((a.order.sections(), b.order.sections()), ([i, _, lsn], [j, _, n]) if (i, lsn) == (j, n))
}
