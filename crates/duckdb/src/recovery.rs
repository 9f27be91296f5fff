//! What to do with a file that is ahead of, or behind, the last checkpoint.
//!
//! The facts are the checkpoint's token and the file's own mark of this sink; [`decide`] is a pure function of them.

use duckdb::Connection;
use millstream_core::sink::SinkNotice;
use millstream_core::{Error, Result};
use millstream_layout::changelog;
use millstream_layout::history;
use millstream_layout::plain;

use crate::catalog::{Catalog, Mark};
use crate::config::{DeleteMode, DuckConfig, Layout};
use crate::error::Explain;
use crate::ident::qualify;

/// What recovery does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// The file stands where the checkpoint does.
    Nothing,
    /// The file has epochs that no checkpoint names: their rows go.
    RollBack {
        /// The checkpoint's epoch; `None` if there is none, so that all rows of the sink go.
        to: Option<Mark>,
    },
    /// The checkpoint names an epoch that the file does not have.
    Lost,
    /// There is no checkpoint, and another pipeline wrote the file's rows.
    Taken,
}

/// Decides from the checkpoint's token, the file's mark, and whether this pipeline set it.
pub(crate) fn decide(checkpoint: Option<Mark>, file: Option<Mark>, is_own: bool) -> Recovery {
    match (checkpoint, file) {
        (None, None) => Recovery::Nothing,
        (None, Some(_)) if !is_own => Recovery::Taken,
        (None, Some(_)) => Recovery::RollBack { to: None },
        (Some(_), None) => Recovery::Lost,
        (Some(wanted), Some(file)) if file == wanted => Recovery::Nothing,
        (Some(wanted), Some(file))
            if file.epoch > wanted.epoch && file.ingested_at_us > wanted.ingested_at_us =>
        {
            Recovery::RollBack { to: Some(wanted) }
        }
        (Some(_), Some(_)) => Recovery::Lost,
    }
}

/// Brings the file to the checkpoint.
pub(crate) fn recover(
    config: &DuckConfig,
    catalog: &Catalog,
    connection: &Connection,
    checkpoint: Option<Mark>,
) -> Result<Vec<SinkNotice>> {
    let file = catalog.mark(connection)?;
    let owner = catalog.pipeline(connection)?.unwrap_or_default();
    match decide(checkpoint, file, owner == config.pipeline) {
        Recovery::Nothing => Ok(Vec::new()),
        Recovery::RollBack { to } => {
            let doing = || "rolling back epochs that no checkpoint names".to_owned();
            connection.execute_batch("BEGIN TRANSACTION").explain(doing)?;
            let rows = roll_back(config, catalog, connection, to);
            let ended = if rows.is_ok() { "COMMIT" } else { "ROLLBACK" };
            connection.execute_batch(ended).explain(doing)?;
            let epoch = to.map_or(0, |mark| mark.epoch);
            let text = format!(
                "rows of epochs after {epoch}, which no checkpoint names, were removed; they come again"
            );
            Ok(vec![SinkNotice { code: "rolled_back", text, count: rows? }])
        }
        Recovery::Taken => Err(Error::fatal(format!(
            "{}, schema {}, holds rows that pipeline {owner} wrote through a sink of the same name, and this pipeline has no \
             checkpoint: give this sink a `name` and `dataset` (or `path`) of its own, or, if the pipeline was renamed, set \
             `pipeline: {owner}`",
            config.path.display(),
            config.dataset
        ))),
        Recovery::Lost => match checkpoint {
            Some(wanted) => Err(lost(config, wanted, file)),
            None => Ok(Vec::new()),
        },
    }
}

/// Deletes the rows after the mark and returns how many there were. Replicas keep theirs while there is a checkpoint:
/// the same changes come again and are gated by order.
fn roll_back(
    config: &DuckConfig,
    catalog: &Catalog,
    connection: &Connection,
    to: Option<Mark>,
) -> Result<u64> {
    let mut rows = 0;
    for mut table in catalog.load(connection)? {
        let name = qualify(&config.dataset, &table.name);
        let column = match config.layout {
            Layout::Append => history::MARK_COLUMN,
            Layout::Rows => plain::MARK_COLUMN,
            Layout::Changelog => changelog::MARK_COLUMN,
            Layout::Replica { .. } => "_metadata_timestamp",
        };
        let condition = match (to, config.layout) {
            (None, _) => String::new(),
            (Some(_), Layout::Replica { .. }) => continue,
            (Some(mark), _) => format!(" WHERE {column} > make_timestamp({})", mark.ingested_at_us),
        };
        let sql = format!("DELETE FROM {name}{condition}");
        if to.is_none() && table.truncated.take().is_some() {
            // What comes from the start on may be of another log, with smaller orders.
            catalog.update(connection, &table)?;
        }
        rows += connection.execute(&sql, []).explain(|| format!("rolling back table {}", table.name))? as u64;
    }
    catalog.set_mark(connection, to)?;
    Ok(rows)
}

/// Removes the rows that a replica marked as deleted while it kept them, now that it is to have none.
pub(crate) fn drop_marked(
    config: &DuckConfig,
    catalog: &Catalog,
    connection: &Connection,
) -> Result<Option<SinkNotice>> {
    if config.layout != (Layout::Replica { delete: DeleteMode::Hard }) {
        return Ok(None);
    }
    let mut rows = 0;
    for table in catalog.load(connection)? {
        let sql = format!("DELETE FROM {} WHERE _metadata_deleted", qualify(&config.dataset, &table.name));
        let doing = || format!("removing rows of {} that are marked as deleted", table.name);
        rows += connection.execute(&sql, []).explain(doing)? as u64;
    }
    let text = "rows that an earlier run with `delete: soft` kept as deleted were removed".to_owned();
    Ok((rows > 0).then_some(SinkNotice { code: "deleted_rows_removed", text, count: rows }))
}

/// The file is not the one that the checkpoint knows.
pub(crate) fn lost(config: &DuckConfig, wanted: Mark, file: Option<Mark>) -> Error {
    let found = match file {
        None => "holds nothing of this sink".to_owned(),
        Some(mark) => format!("ends at epoch {}", mark.epoch),
    };
    Error::fatal(format!(
        "the checkpoint names epoch {} of {}, schema {}, but the file {found}: it was deleted, replaced or restored from \
         a copy. Put the right file back, or delete the checkpoint directory to load everything again",
        wanted.epoch,
        config.path.display(),
        config.dataset
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_recovery_decides() {
        let mark = |epoch| Some(Mark { epoch, ingested_at_us: epoch as i64 * 10 });
        let cases = [
            (None, None, Recovery::Nothing),
            (None, mark(3), Recovery::RollBack { to: None }),
            (mark(3), mark(3), Recovery::Nothing),
            (mark(3), mark(4), Recovery::RollBack { to: mark(3) }),
            (mark(3), mark(9), Recovery::RollBack { to: mark(3) }),
            (mark(3), mark(2), Recovery::Lost),
            (mark(3), None, Recovery::Lost),
            // Another pipeline's file: same epoch, other time.
            (mark(3), Some(Mark { epoch: 3, ingested_at_us: 7 }), Recovery::Lost),
            (mark(3), Some(Mark { epoch: 4, ingested_at_us: 7 }), Recovery::Lost),
        ];
        for (checkpoint, file, expected) in cases {
            assert_eq!(decide(checkpoint, file, true), expected, "{checkpoint:?} {file:?}");
            let of_other = if checkpoint.is_none() && file.is_some() { Recovery::Taken } else { expected };
            assert_eq!(decide(checkpoint, file, false), of_other, "{checkpoint:?} {file:?}");
        }
    }
}
