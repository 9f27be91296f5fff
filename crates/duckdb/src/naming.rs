//! What a source table is called in a dataset where some names are taken.

use millstream_core::{Error, Result, TableName};
use millstream_layout::names;

use crate::ddl;
use crate::session::Session;

/// The base of the table's names, and what it would have been called if nothing were in the way.
pub(crate) fn choose(session: &Session, source: &TableName) -> Result<(String, String)> {
    let layout = session.config.layout;
    let candidates = names::table_candidates(source, &session.config.table_name);
    let owner = format!("{} {} {:?}", session.config.name, layout.name(), source);
    let is_free = |base: &str| -> Result<bool> {
        let view = ddl::view_name(&session.config, base);
        for name in std::iter::once(ddl::table_name(layout, base)).chain(view) {
            let dataset = &session.config.dataset;
            let free = !session.is_taken(&name)?;
            if !free || !session.database.reserve(dataset, &names::fold(&name), &owner) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let first = candidates.first().cloned().unwrap_or_default();
    for base in &candidates {
        if is_free(base)? {
            return Ok((base.clone(), first));
        }
    }
    let last = candidates.last().cloned().unwrap_or_default();
    for number in 2..1000 {
        let base = format!("{last}_{number}");
        if is_free(&base)? {
            return Ok((base, first));
        }
    }
    Err(Error::fatal(format!("no free name for table {source} in schema {}", session.config.dataset)))
}
