//! `_millstream_epochs`: which epochs of which sink are visible, so that a checkpoint from before them is noticed.
//!
//! An older checkpoint (a savepoint, a copy, or none at all, its folder being lost) would write again what the histories have: nothing can
//! be taken back from them.

use std::time::Duration;

use millstream_core::{Error, Result};

use crate::column_type::ColumnType;
use crate::encode::RowWriter;
use crate::field::Field;
use crate::own_table::OwnTable;
use crate::recovery::number;
use crate::session::{Mark, Session};
use crate::sql::quote_text;
use crate::table_resource::Partitioning;

pub(crate) const NAME: &str = "_millstream_epochs";
const KEPT: Duration = Duration::from_secs(90 * 86_400);

/// Writes epochs down, and compares.
pub(crate) struct Epochs(OwnTable);

impl Epochs {
    pub(crate) fn new() -> Self {
        let fields = vec![
            Field::new("pipeline", ColumnType::String),
            Field::new("sink", ColumnType::String),
            Field::new("epoch", ColumnType::Int64),
            Field::new("ingested_at", ColumnType::Timestamp),
        ];
        let column = Some("ingested_at".to_owned());
        let partitioning = Partitioning { column, expiration: Some(KEPT), ..Partitioning::default() };
        Self(OwnTable::new(NAME, "Epochs of Millstream's sinks that are visible", fields, Some(partitioning)))
    }

    /// An epoch is visible.
    pub(crate) async fn write(&mut self, session: &Session, mark: Mark) -> Result<()> {
        let mut rows = RowWriter::new();
        let mut row = rows.begin();
        row.put_text(1, &session.config.pipeline);
        row.put_text(2, &session.config.name);
        row.put_int(3, mark.epoch as i64);
        let _ = row.put_timestamp(4, mark.ingested_at_us);
        row.finish();
        self.0.write(session, rows).await
    }

    /// Refuses a checkpoint from before an epoch that is visible; `last` is its last one with rows. Answers the time of ingestion of the
    /// last epoch that is visible.
    pub(crate) async fn check(&self, session: &Session, last: Option<Mark>) -> Result<Option<i64>> {
        let id = session.table(NAME);
        if session.rest.table(&id).await?.is_none() {
            return Ok(None);
        }
        let (pipeline, sink) = (quote_text(&session.config.pipeline), quote_text(&session.config.name));
        let sql = format!(
            "SELECT UNIX_MICROS(MAX(ingested_at)) FROM {} WHERE pipeline = {pipeline} AND sink = {sink}",
            id.sql()
        );
        let Some(visible) = number(session, &sql, "looking for the last visible epoch").await? else {
            return Ok(None);
        };
        if last.is_some_and(|last| visible <= last.ingested_at_us) {
            return Ok(Some(visible));
        }
        let what = if last.is_some() { "an older checkpoint than" } else { "no checkpoint, but" };
        Err(Error::fatal(format!(
            "there is {what} rows in {}: they would be written a second time. Go on from the checkpoint that wrote them; or drop the \
             tables of this sink and its rows in {NAME}; or give the sink another `name` and `dataset`; or write `at-least-once`, whose \
             views show each row once",
            session.dataset
        )))
    }
}
