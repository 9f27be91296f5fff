//! `_millstream_epochs`: which epochs of which sink are visible, so that a checkpoint from before them is noticed.
//!
//! An older checkpoint (a savepoint, a copy, or none at all, its folder being lost) would write again what the histories have: nothing can
//! be taken back from them. With `delivery: load` it would also delete files that a later one names, whose records are acknowledged: an
//! epoch whose files are durable is written down, too, under the name `SINK (files)`.

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

/// How far an epoch has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its rows are in files that a durable checkpoint names.
    Files,
    /// Its rows are in their tables.
    Visible,
}

impl Stage {
    /// The sink's name in the table.
    fn sink(self, session: &Session) -> String {
        let name = &session.config.name;
        match self {
            Self::Files => format!("{name} (files)"),
            Self::Visible => name.clone(),
        }
    }
}

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

    /// An epoch has come so far.
    pub(crate) async fn write(&mut self, session: &Session, stage: Stage, mark: Mark) -> Result<()> {
        let mut rows = RowWriter::new();
        let mut row = rows.begin();
        row.put_text(1, &session.config.pipeline);
        row.put_text(2, &stage.sink(session));
        row.put_int(3, mark.epoch as i64);
        let _ = row.put_timestamp(4, mark.ingested_at_us);
        row.finish();
        self.0.write(session, rows).await
    }

    /// The time of ingestion, in microseconds since 1970, of the last epoch that is visible.
    pub(crate) async fn visible(&self, session: &Session) -> Result<Option<i64>> {
        self.last(session, &[Stage::Visible]).await
    }

    async fn last(&self, session: &Session, stages: &[Stage]) -> Result<Option<i64>> {
        let id = session.table(NAME);
        if session.rest.table(&id).await?.is_none() {
            return Ok(None);
        }
        let pipeline = quote_text(&session.config.pipeline);
        let sinks: Vec<_> = stages.iter().map(|stage| quote_text(&stage.sink(session))).collect();
        let sql = format!(
            "SELECT UNIX_MICROS(MAX(ingested_at)) FROM {} WHERE pipeline = {pipeline} AND sink IN ({})",
            id.sql(),
            sinks.join(", ")
        );
        number(session, &sql, "looking for the last visible epoch").await
    }

    /// Refuses a checkpoint from before an epoch that is written down; `last` is its last one with rows.
    pub(crate) async fn check(&self, session: &Session, last: Option<Mark>) -> Result<()> {
        let Some(written) = self.last(session, &[Stage::Files, Stage::Visible]).await? else { return Ok(()) };
        if last.is_some_and(|last| written <= last.ingested_at_us) {
            return Ok(());
        }
        let what = if last.is_some() { "an older checkpoint than" } else { "no checkpoint, but" };
        let on_their_way =
            session.yard.as_ref().map(|(yard, _)| format!(", or on their way in {}", yard.folder()));
        Err(Error::fatal(format!(
            "there is {what} rows in {}{}: they would be written a second time. Go on from the checkpoint that wrote them; or drop the \
             tables of this sink and its rows in {NAME}; or give the sink another `name` and `dataset`; or write `at-least-once`, whose \
             views show each row once",
            session.dataset,
            on_their_way.unwrap_or_default()
        )))
    }
}
