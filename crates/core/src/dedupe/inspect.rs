//! What committed state holds of one key, for people who ask why an event was judged as it was.

use super::entry::{ADJUSTED, DELETE, Entry, READ};
use super::large::Large;
use super::overlay::Stored;
use super::route::{put_state_key, table_hash};
use super::tables::Tables;
use crate::error::Result;
use crate::key::Key;
use crate::order::Order;
use crate::schema::TableName;
use crate::store::{Space, StateView};

/// A key's state as of the last checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyState {
    /// Order of its newest event.
    pub newest: Order,
    /// The newest event deleted the row.
    pub deleted: bool,
    /// The newest event is a snapshot read.
    pub read: bool,
    /// The newest event's order was adjusted, because it met a snapshot read.
    pub adjusted: bool,
    /// Source time of the newest event, µs.
    pub time_us: Option<i64>,
    /// How many event ids are remembered.
    pub ids: u64,
    /// Whether ids were forgotten: an unseen event below them cannot be told from a duplicate, and is kept.
    pub forgot_ids: bool,
    /// Values that may come unchanged.
    pub values: Vec<KnownValue>,
    /// How many keys took this one's row over, lately.
    pub heirs: usize,
}

/// What is known of a value that may come unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownValue {
    /// The column.
    pub column: String,
    /// The newest row came without it.
    pub unchanged: bool,
    /// Bytes of the kept value; `None` if no event that carried it was seen.
    pub bytes: Option<usize>,
}

/// What committed state holds of `key`; `None` if the key was never seen, or no state is kept (mode `off`).
///
/// # Errors
/// When the view fails, or holds what this version cannot read.
pub fn inspect(view: &dyn StateView, table: &TableName, key: &Key) -> Result<Option<KeyState>> {
    let mut state_key = Vec::new();
    put_state_key(&mut state_key, table_hash(table), key.as_bytes());
    let Some(bytes) = view.get(Space::Keys, &state_key)? else { return Ok(None) };
    let entry = Entry::decode(&bytes)?;
    let large = match view.get(Space::Values, &state_key)? {
        Some(bytes) => Large::decode(&bytes)?,
        None => Large::default(),
    };
    Ok(Some(KeyState {
        newest: entry.newest,
        deleted: entry.is(DELETE),
        read: entry.is(READ),
        adjusted: entry.is(ADJUSTED),
        time_us: entry.time_us(),
        ids: entry.ids.remembered(),
        forgot_ids: entry.ids.forgot(),
        values: large
            .columns
            .iter()
            .map(|known| KnownValue {
                column: known.name.to_string(),
                unchanged: known.unchanged,
                bytes: known.value.as_ref().map(|kept| kept.bytes.len()),
            })
            .collect(),
        heirs: large.heirs.len(),
    }))
}

/// The tables that committed state knows, with the order of the newest truncate of each.
///
/// # Errors
/// When the view fails, or holds what this version cannot read.
pub fn known_tables(view: &dyn StateView) -> Result<Vec<(TableName, Option<Order>)>> {
    Ok(Tables::load(view)?.names())
}
