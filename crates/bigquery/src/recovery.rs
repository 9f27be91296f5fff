//! What a checkpoint names is made visible; after a crash, if it is not.

use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use millstream_core::{Error, Result};
use millstream_layout::{changelog, history, staging};

use crate::config::Layout;
use crate::found;
use crate::job::{JobId, Query};
use crate::resource::{DatasetId, TableId};
use crate::session::{Mark, Session};
use crate::stream::Storage;
use crate::token::{Flush, Token};
use crate::write_error::WriteErrorKind;

const QUERY_PATIENCE: Duration = Duration::from_secs(300);

/// Streams that are flushed at a time.
const TOGETHER: usize = 32;

/// Flushes what a token names.
pub(crate) async fn show(storage: &Storage, flushes: Vec<Flush>) -> Result<()> {
    let flush = |flush: Flush| async move { storage.flush_rows(&flush.stream, flush.offset).await.map(drop) };
    let work = flushes.into_iter().map(flush);
    Ok(stream::iter(work).buffer_unordered(TOGETHER).try_collect::<()>().await?)
}

/// Flushes what a token names, after a crash, if its epoch is not `visible` (the time of the last one that is written down to be). Where a
/// stream is gone, it may have been flushed long ago: then its table has the epoch's rows.
pub(crate) async fn finish(session: &Session, token: &Token, visible: Option<i64>) -> Result<()> {
    if visible.is_some_and(|visible| visible >= token.mark.ingested_at_us) {
        return Ok(());
    }
    for flush in &token.flushes {
        let error = match session.storage.flush_rows(&flush.stream, flush.offset).await {
            Ok(_) => continue,
            Err(error) => error,
        };
        if error.kind() == WriteErrorKind::StreamFinalized {
            // See `retired`: its rows were visible before.
            continue;
        }
        let in_doubt = matches!(
            error.kind(),
            WriteErrorKind::NotFound | WriteErrorKind::Invalid | WriteErrorKind::Precondition
        );
        if !in_doubt {
            return Err(error.into());
        }
        let Some(table) = table_of(&flush.stream) else { return Err(error.into()) };
        let of_table = token.flushes.iter().filter(|f| table_of(&f.stream).as_ref() == Some(&table));
        let rows: u64 = of_table.map(|f| f.rows).sum();
        if session.rest.table(&table).await?.is_none() {
            // What merges knows whether a staging had rows to lose.
            if let Layout::Staging { .. } = session.config.layout {
                continue;
            }
            return Err(found::gone(&table));
        }
        let what = match mark_column(session.config.layout) {
            Some(column) => {
                let held = rows_of(session, &table, column, token.mark).await?;
                if held >= rows {
                    continue;
                }
                format!("{table} has {held} of the {rows} rows of its epoch")
            }
            None => {
                format!(
                    "nothing in {table} tells which of its rows are the {rows} of the epoch: look for them"
                )
            }
        };
        return Err(Error::fatal(format!(
            "rows of the last checkpoint may be lost: {error}, and {what}; start from a savepoint whose rows are there, or from a new \
             snapshot with a raised `incarnation`"
        )));
    }
    Ok(())
}

/// The column that tells the epoch of a layout's rows.
fn mark_column(layout: Layout) -> Option<&'static str> {
    match layout {
        Layout::Append => Some(history::MARK_COLUMN),
        Layout::Staging { .. } => Some(staging::MARK_COLUMN),
        Layout::Envelope => Some(crate::envelope::MARK_COLUMN),
        Layout::Changelog | Layout::Replica { .. } => Some(changelog::MARK_COLUMN),
        // They have what is declared and nothing else.
        Layout::Rows => None,
    }
}

/// A drained run would have loaded what its last token names.
pub(crate) fn not_loaded() -> Error {
    Error::fatal(
        "the last checkpoint names files that are not loaded, and the config does not say `delivery: load` any more: run it as it was \
         until it is drained, and change it then",
    )
}

/// How many rows of an epoch a table has.
async fn rows_of(session: &Session, table: &TableId, column: &str, mark: Mark) -> Result<u64> {
    let at = mark.ingested_at_us;
    let sql = format!("SELECT COUNT(*) FROM {} WHERE {column} = TIMESTAMP_MICROS({at})", table.sql());
    number(session, &sql, "counting the rows of the last epoch").await.map(|n| n.unwrap_or(0) as u64)
}

/// The single number that a query answers; `None` for NULL.
pub(crate) async fn number(session: &Session, sql: &str, what: &str) -> Result<Option<i64>> {
    let id = JobId::random(&session.config.project, session.config.location.clone());
    let job = session.rest.run_query(&id, &Query::new(sql), what, QUERY_PATIENCE).await?;
    let page = session.rest.results(&job.id, None, 1).await?;
    let value = page.rows.first().and_then(|row| row.first()).and_then(|value| value.as_text());
    Ok(value.and_then(|value| value.parse().ok()))
}

/// `projects/P/datasets/D/tables/T/streams/…`.
fn table_of(stream: &str) -> Option<TableId> {
    let mut parts = stream.split('/');
    let mut part = |name: &str| (parts.next()? == name).then(|| parts.next())?;
    let (project, dataset, table) = (part("projects")?, part("datasets")?, part("tables")?);
    Some(DatasetId::new(project, dataset).table(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_names_its_table() {
        let table = table_of("projects/p/datasets/d/tables/my t/streams/abc").unwrap();
        assert_eq!(table.to_string(), "p.d.my t");
        assert_eq!(table_of("projects/p/tables/t"), None);
    }
}
