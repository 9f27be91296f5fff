//! The latest views of a sink as SQL, from the file's own metadata: for people who keep their views elsewhere.

use millstream_core::{Error, Result};

use crate::catalog::Catalog;
use crate::config::{DuckConfig, Layout};
use crate::ddl;
use crate::query::connect;

/// Names and statements of the latest views of a sink's tables, by name. Works beside a running pipeline of this process
/// and on a file that nobody has open. Empty for other layouts than append, and before the first table was made.
///
/// # Errors
/// The file does not exist or can't be opened, or its metadata are damaged.
pub fn views(config: &DuckConfig) -> Result<Vec<(String, String)>> {
    if config.layout != Layout::Append {
        return Ok(Vec::new());
    }
    let connection = connect(&config.path, true)?;
    let catalog = Catalog { dataset: config.dataset.clone(), sink: config.name.clone() };
    let mut views = Vec::new();
    if !catalog.exists(&connection)? {
        return Ok(views);
    }
    for table in catalog.load(&connection).map_err(|e: Error| e.at(config.path.display()))? {
        if let (Some(view), Some(sql)) = (&table.view, ddl::latest_view(config, &table)) {
            views.push((view.clone(), sql));
        }
    }
    views.sort();
    Ok(views)
}
