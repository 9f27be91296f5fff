//! A truncate of a replica with native upserts: a delete for each key that the table has, as no DML is allowed there.

use std::time::Duration;

use millstream_core::{Order, Result};

use crate::config::{DeleteMode, Layout};
use crate::encode::Change;
use crate::form::Form;
use crate::found::Found;
use crate::job::{JobId, Query};
use crate::pending::Pending;
use crate::resource::TableId;
use crate::session::Session;
use crate::sql::quote;
use crate::table_resource::TablePatch;

const QUERY_PATIENCE: Duration = Duration::from_secs(600);
const PAGE_ROWS: u32 = 50_000;

/// The query that lists the keys of all rows, run to its end.
pub(crate) async fn list_keys(session: &Session, id: &TableId, found: &Found) -> Result<JobId> {
    // What was upserted is not seen within the table's staleness.
    let fresh = TablePatch { max_staleness: Some(Duration::ZERO), ..TablePatch::default() };
    session.rest.patch_table(id, &fresh).await?;
    let names: Vec<_> = found.actual.primary_key.iter().map(|name| quote(name)).collect();
    let sql = format!("SELECT {} FROM {}", names.join(", "), id.sql());
    let job = JobId::random(&session.config.project, session.config.location.clone());
    let what = "listing the keys of a truncated table";
    let listed = session.rest.run_query(&job, &Query::new(sql), what, QUERY_PATIENCE).await;
    let stale = TablePatch { max_staleness: session.max_staleness(), ..TablePatch::default() };
    session.rest.patch_table(id, &stale).await?;
    Ok(listed?.id)
}

/// Writes the deletes of a page of keys, and answers which page is next.
pub(crate) async fn delete_page(
    pending: &mut Pending,
    (found, form): (&Found, &Form),
    (job, page): (&JobId, Option<&str>),
    order: Order,
    session: &Session,
) -> Result<Option<String>> {
    let keys = session.rest.results(job, page, PAGE_ROWS).await?;
    let removes = matches!(session.config.layout, Layout::Replica { delete: DeleteMode::Hard });
    let text = order.to_string();
    for key in &keys.rows {
        let mut row = pending.begin();
        for (name, value) in found.actual.primary_key.iter().zip(key) {
            form.put_key(&mut row, &found.stored, name, value.as_text())?;
        }
        if !removes {
            row.put_bool(form.own[1], true);
            row.put_text(form.own[3], &text);
        }
        row.put_change(if removes { Change::Delete } else { Change::Upsert });
        let _ = row.put_sequence_number(&text);
        row.finish();
        pending.note_made();
    }
    Ok(keys.next)
}
