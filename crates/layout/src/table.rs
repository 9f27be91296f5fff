//! What a sink knows of one of its tables.

use millstream_core::{Field, TableName};

use crate::keyed::StoredKey;
use crate::shape::{Shape, TargetColumn};

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

impl StoredTable {
    /// All columns in the table's physical order: those that it was made with, the sink's `own`, and later ones.
    pub fn physical_columns(&self, own: Vec<Field>) -> Vec<Field> {
        let column = |c: &TargetColumn| Field { name: c.name.as_str().into(), ty: c.ty.clone() };
        let (initial, later) = self.shape.columns.split_at(self.initial);
        initial.iter().map(column).chain(own).chain(later.iter().map(column)).collect()
    }
}
