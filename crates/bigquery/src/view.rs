//! The SQL of latest views.

use millstream_layout::{StoredTable, latest};

use crate::dialect;
use crate::resource::TableId;

/// The view's query; `None` for a table without key.
pub(crate) fn latest(raw: &TableId, table: &StoredTable, repeats: bool) -> Option<String> {
    latest::latest(&dialect::COLUMNS, &raw.sql(), table, repeats)
}
