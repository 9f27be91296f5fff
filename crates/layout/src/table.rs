//! What a sink knows of one of its tables.

use millstream_core::TableName;

use crate::keyed::StoredKey;
use crate::shape::Shape;

/// A table as the metadata know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredTable {
    /// The source's table.
    pub source: TableName,
    /// The layout's name.
    pub layout: String,
    /// The table's name in the dataset.
    pub name: String,
    /// Its latest view's name, where it has one.
    pub view: Option<String>,
    /// Its keys, the oldest one first; the last one is the one that it has, empty if it has none.
    pub keys: Vec<StoredKey>,
    /// How many columns the table was created with; later ones stand behind the sink's own.
    pub initial: usize,
    /// Text of the order below which a replica takes nothing, being truncated there.
    pub truncated: Option<String>,
    /// The columns of the source's values.
    pub shape: Shape,
}
