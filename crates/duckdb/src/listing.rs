//! What a file's own metadata say of a sink: its tables, and their views as SQL for people who keep views elsewhere.

use millstream_core::{Error, Result, TableName, Type};
use millstream_layout::table::StoredTable;

use crate::catalog::Catalog;
use crate::config::{DuckConfig, Layout};
use crate::ddl;
use crate::query::connect;

/// A source table that a sink holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTable {
    /// What the source calls it.
    pub source: TableName,
    /// Names of the key's source columns; empty without a key.
    pub key: Vec<String>,
    /// Its name in the dataset.
    pub name: String,
    /// Its columns that hold values of the source, in their order.
    pub columns: Vec<ListedColumn>,
}

/// A column of a [`ListedTable`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedColumn {
    /// What the source calls it.
    pub source: String,
    /// Its name in the table.
    pub name: String,
    /// Its logical type.
    pub ty: Type,
}

/// The tables of a sink, by name. Empty before the first one was made, and while there is no file.
///
/// # Errors
/// The file can't be opened, or its metadata are damaged.
pub fn tables(config: &DuckConfig) -> Result<Vec<ListedTable>> {
    if !config.path.exists() {
        return Ok(Vec::new());
    }
    let listed = |table: StoredTable| ListedTable {
        source: table.source,
        key: table.keys.into_iter().next_back().map(|key| key.columns).unwrap_or_default(),
        name: table.name,
        columns: (table.shape.columns.into_iter())
            .map(|c| ListedColumn { source: c.source.into(), name: c.name, ty: c.ty })
            .collect(),
    };
    Ok(stored(config)?.into_iter().map(listed).collect())
}

/// Names and statements of the views that a sink keeps on its tables, by name. Works beside a running pipeline of this process
/// and on a file that nobody has open. Empty for layouts without views, and before the first table was made.
///
/// # Errors
/// The file does not exist or can't be opened, or its metadata are damaged.
pub fn views(config: &DuckConfig) -> Result<Vec<(String, String)>> {
    if !matches!(config.layout, Layout::Append | Layout::Rows) {
        return Ok(Vec::new());
    }
    let mut views = Vec::new();
    for table in stored(config)? {
        if let (Some(view), Some(sql)) = (&table.view, ddl::view(config, &table)) {
            views.push((view.clone(), sql));
        }
    }
    views.sort();
    Ok(views)
}

fn stored(config: &DuckConfig) -> Result<Vec<StoredTable>> {
    let connection = connect(&config.path, true)?;
    let catalog = Catalog::of(config);
    if !catalog.exists(&connection)? {
        return Ok(Vec::new());
    }
    catalog.load(&connection).map_err(|e: Error| e.at(config.path.display()))
}
