//! The tables that a gate has seen: their names, truncates and counters. All of them stay in memory.
//!
//! ```text
//! space   tables
//! name    key: table hash (8 bytes)          value: format 1, then db, schema, table, each with its length
//! cut     key: table hash (8 bytes), "t"     value: format 1, order of the newest truncate, then a run of the ids of the last
//! ```
//!
//! Every shard writes the names that it meets (always the same bytes); only the table's own shard writes its truncates, which
//! every shard is told of in the same epoch.

use std::collections::HashMap;
use std::sync::Arc;

use super::encoding::{
    FORMAT, damaged, put_bytes, put_order, put_wide, take_byte, take_order, take_text, take_wide,
    unknown_format,
};
use super::overlay::Writes;
use super::route::table_hash;
use super::run::Run;
use crate::counters::TableCounters;
use crate::error::{Error, Result};
use crate::order::{EventId, Order};
use crate::schema::{RowSchema, TableName};
use crate::store::{Space, StateView};

/// Ids of truncates that are remembered; a table is truncated seldom enough.
const CUT_IDS_MAX: u32 = 256;
const CUT_SUFFIX: u8 = b't';

/// The newest truncate of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// Its order; rows below it are gone.
    pub(super) order: Order,
    /// Ids of the last truncates. Every shard knows them; the table's own shard stores them.
    pub(super) ids: Run,
}

/// A table.
#[derive(Debug)]
pub(super) struct Table {
    /// Its name.
    pub(super) name: Arc<TableName>,
    /// The table hash.
    pub(super) hash: u64,
    /// The newest truncate, if there was one.
    pub(super) cut: Option<Cut>,
    /// Counts since the last barrier.
    pub(super) counters: TableCounters,
    /// Whether its events have full before-images by configuration.
    pub(super) full_identity: bool,
    /// The last schema seen, to share between patches.
    pub(super) schema: Option<Arc<RowSchema>>,
    /// Whether the keyless blocks of earlier runs were looked up.
    pub(super) keyless_known: bool,
    name_stored: bool,
    cut_stored: bool,
}

impl Table {
    fn new(name: Arc<TableName>, hash: u64) -> Self {
        Self {
            name,
            hash,
            cut: None,
            counters: TableCounters::default(),
            full_identity: false,
            schema: None,
            keyless_known: false,
            name_stored: false,
            cut_stored: true,
        }
    }

    /// Whether `order` is above the newest truncate.
    pub(super) fn holds(&self, order: &Order) -> bool {
        self.cut.as_ref().is_none_or(|cut| *order > cut.order)
    }

    /// Takes in a truncate, on every shard; whether it is new, and whether it is the newest. One that is known changes
    /// nothing: the order of a copy may differ in `p`.
    pub(super) fn truncate(&mut self, id: EventId, order: Order, is_own: bool) -> (bool, bool) {
        let first = self.cut.is_none();
        let cut = self.cut.get_or_insert_with(|| Cut { order, ids: Run::default() });
        if !cut.ids.insert(id) {
            return (false, false);
        }
        if cut.ids.count() > CUT_IDS_MAX {
            cut.ids.split_older(CUT_IDS_MAX / 2);
        }
        let newest = first || order > cut.order;
        cut.order = cut.order.max(order);
        self.cut_stored &= !is_own;
        (true, newest)
    }
}

/// All tables of a gate, by index.
#[derive(Debug, Default)]
pub(super) struct Tables {
    all: Vec<Table>,
    by_hash: HashMap<u64, u32>,
}

impl Tables {
    /// Reads what earlier runs knew.
    pub(super) fn load(view: &dyn StateView) -> Result<Self> {
        let mut tables = Self::default();
        let mut failure = None;
        let mut cuts = Vec::new();
        view.scan(Space::Tables, &[], &mut |key, value| {
            let read = read_entry(key, value).map(|entry| match entry {
                Stored::Name(hash, name) => {
                    tables.add(hash, Arc::new(name));
                }
                Stored::Cut(hash, cut) => cuts.push((hash, cut)),
            });
            failure = read.err();
            failure.is_none()
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        for (hash, cut) in cuts {
            let index = *tables.by_hash.get(&hash).ok_or_else(|| damaged("list of tables"))?;
            tables.all[index as usize].cut = Some(cut);
        }
        for table in &mut tables.all {
            table.name_stored = true;
        }
        Ok(tables)
    }

    /// The index of a table, new or known.
    pub(super) fn intern(
        &mut self,
        name: &Arc<TableName>,
        full_identity: impl Fn(&str) -> bool,
    ) -> Result<u32> {
        let hash = table_hash(name);
        if let Some(&index) = self.by_hash.get(&hash) {
            let table = &mut self.all[index as usize];
            if table.name != *name {
                return Err(Error::fatal(format!(
                    "tables {} ({}) and {name} ({}) have the same hash {hash:016x}, so their keys cannot be told apart in state; \
                     run them in two pipelines",
                    table.name, table.name.db, name.db
                )));
            }
            table.full_identity = full_identity(&name.qualified());
            return Ok(index);
        }
        let index = self.add(hash, Arc::clone(name));
        self.all[index as usize].full_identity = full_identity(&name.qualified());
        Ok(index)
    }

    /// A table.
    pub(super) fn get(&self, index: u32) -> &Table {
        &self.all[index as usize]
    }

    /// A table, to change.
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Table {
        &mut self.all[index as usize]
    }

    /// Hands out names and truncates that are not stored yet, and the counters of the epoch.
    pub(super) fn barrier(
        &mut self,
        writes: &mut Writes,
    ) -> std::collections::BTreeMap<String, TableCounters> {
        let mut counters = std::collections::BTreeMap::<String, TableCounters>::new();
        for table in &mut self.all {
            if !table.name_stored {
                let mut value = vec![FORMAT];
                for part in [&table.name.db, &table.name.schema, &table.name.table] {
                    put_bytes(&mut value, part.as_bytes());
                }
                writes.push((Space::Tables, table.hash.to_be_bytes().to_vec(), Some(value)));
                table.name_stored = true;
            }
            if let (Some(cut), false) = (&table.cut, table.cut_stored) {
                let mut key = table.hash.to_be_bytes().to_vec();
                key.push(CUT_SUFFIX);
                writes.push((Space::Tables, key, Some(encode_cut(cut))));
                table.cut_stored = true;
            }
            let counts = std::mem::take(&mut table.counters);
            if counts != TableCounters::default() {
                counters.entry(table.name.qualified()).or_default().add(&counts);
            }
        }
        counters
    }

    /// All names, each with its newest truncate.
    pub(super) fn names(&self) -> Vec<(TableName, Option<Order>)> {
        self.all.iter().map(|t| (TableName::clone(&t.name), t.cut.as_ref().map(|cut| cut.order))).collect()
    }

    fn add(&mut self, hash: u64, name: Arc<TableName>) -> u32 {
        let index = u32::try_from(self.all.len()).expect("invariant: fewer than 2^32 tables");
        self.all.push(Table::new(name, hash));
        self.by_hash.insert(hash, index);
        index
    }
}

enum Stored {
    Name(u64, TableName),
    Cut(u64, Cut),
}

fn encode_cut(cut: &Cut) -> Vec<u8> {
    let mut value = vec![FORMAT];
    put_order(&mut value, &cut.order);
    put_wide(&mut value, cut.ids.top().map_or(0, |id| id.0));
    cut.ids.encode_below_top(&mut value);
    value
}

fn read_entry(key: &[u8], value: &[u8]) -> Result<Stored> {
    let mut rest = value;
    match take_byte(&mut rest) {
        Some(FORMAT) => {}
        other => return Err(unknown_format("a table", other)),
    }
    let entry = key.split_first_chunk::<8>().and_then(|(hash, suffix)| {
        let hash = u64::from_be_bytes(*hash);
        match suffix {
            [] => {
                let name =
                    TableName::new(take_text(&mut rest)?, take_text(&mut rest)?, take_text(&mut rest)?);
                (rest.is_empty() && table_hash(&name) == hash).then_some(Stored::Name(hash, name))
            }
            [CUT_SUFFIX] => {
                let order = take_order(&mut rest)?;
                let top = EventId(take_wide(&mut rest)?);
                Some(Stored::Cut(hash, Cut { order, ids: Run::decode_below_top(top, rest)? }))
            }
            _ => None,
        }
    });
    entry.ok_or_else(|| damaged("list of tables"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_names_under_one_hash_are_refused() {
        let mut tables = Tables::default();
        let orders = Arc::new(TableName::new("shop", "public", "orders"));
        tables.add(table_hash(&orders), Arc::new(TableName::new("shop", "public", "other")));
        let error = tables.intern(&orders, |_| false).unwrap_err().to_string();
        assert!(error.contains("public.other") && error.contains("public.orders"), "{error}");
    }

    /// A truncate that came again after a connector's restart, its `p` unknown, raised the cut above rows of its own
    /// transaction: their kept values were dropped, and their late values suppressed.
    #[test]
    fn a_copy_of_a_truncate_does_not_raise_the_cut() {
        let incarnation = crate::order::Incarnation(0);
        let (first, copy) = (Order::postgres(incarnation, 5, 20), Order::postgres(incarnation, 20, 20));
        let row_after = Order::postgres(incarnation, 5, 21);
        for is_own in [true, false] {
            let mut table = Table::new(Arc::new(TableName::new("shop", "public", "orders")), 1);
            let id = EventId::postgres(incarnation, 20, false);
            assert_eq!(table.truncate(id, first, is_own), (true, true));
            assert_eq!(table.truncate(id, copy, is_own), (false, false));
            assert!(table.holds(&row_after) && !table.holds(&first));
            let older = EventId::postgres(incarnation, 10, false);
            assert_eq!(table.truncate(older, Order::postgres(incarnation, 5, 10), is_own), (true, false));
            assert_eq!(table.cut_stored, !is_own);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(key in prop::collection::vec(any::<u8>(), 0..10), mut value in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = read_entry(&key, &value);
            if let Some(first) = value.first_mut() {
                *first = FORMAT;
            }
            let _ = read_entry(&key, &value);
        }
    }
}
