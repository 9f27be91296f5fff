//! `_millstream_tables`: the table that each table of the source has, so that one that was dropped or renamed is told. Made anew it would
//! hold new rows only, and nobody would know.
//!
//! A table is written down when it was found or made, and read by a start that goes on from a checkpoint. A new incarnation brings all
//! rows again: with it a table may be made anew. What a crash comes between is in the dataset, but not here until the next start.

use std::collections::HashMap;
use std::time::Duration;

use millstream_core::{Error, Order, Result, TableName};

use crate::column_type::ColumnType;
use crate::config::Layout;
use crate::encode::RowWriter;
use crate::field::Field;
use crate::job::{JobId, Query};
use crate::own_table::OwnTable;
use crate::resource::TableId;
use crate::session::Session;
use crate::sql::quote_text;

/// The table's name.
pub(crate) const NAME: &str = "_millstream_tables";
const QUERY_PATIENCE: Duration = Duration::from_secs(300);
const PAGE_ROWS: u32 = 10_000;

/// A table that was there.
struct Known {
    table: String,
    incarnation: u64,
}

/// Which tables a sink has.
pub(crate) struct Roster {
    own: OwnTable,
    known: HashMap<TableName, Known>,
}

impl Roster {
    /// The roster of a session's sink, empty for a start without a checkpoint; `None` where tables are not the sink's to make, or nothing
    /// is lost with them.
    pub(crate) async fn open(session: &Session, goes_on: bool) -> Result<Option<Self>> {
        let is_kept = !matches!(session.config.layout, Layout::Staging { .. } | Layout::Envelope);
        if !session.config.create || !is_kept {
            return Ok(None);
        }
        let text = |name: &str| Field::new(name, ColumnType::String);
        let fields = vec![
            text("pipeline"),
            text("sink"),
            text("source_db"),
            text("source_schema"),
            text("source_table"),
            text("table"),
            Field::new("incarnation", ColumnType::Int64),
            Field::new("seen_at", ColumnType::Timestamp),
        ];
        let own = OwnTable::new(NAME, "Tables that Millstream's sinks write", fields, None);
        let known = if goes_on { load(session).await? } else { HashMap::new() };
        Ok(Some(Self { own, known }))
    }

    /// Refuses to make a table anew that the same incarnation had already.
    pub(crate) async fn check(&self, session: &Session, source: &TableName, order: Order) -> Result<()> {
        let Some(Known { table, incarnation }) = self.known.get(source) else { return Ok(()) };
        let id = session.table(table);
        // The config may name it otherwise by now: the one of before is still there then.
        if *incarnation < incarnation_of(order) || session.rest.table(&id).await?.is_some() {
            return Ok(());
        }
        Err(gone(&id))
    }

    /// A source's table is called so.
    pub(crate) async fn note(
        &mut self,
        session: &Session,
        source: &TableName,
        table: &str,
        order: Order,
    ) -> Result<()> {
        let incarnation = incarnation_of(order);
        let is_known = |known: &Known| known.table == table && known.incarnation >= incarnation;
        if self.known.get(source).is_some_and(is_known) {
            return Ok(());
        }
        let mut rows = RowWriter::new();
        let mut row = rows.begin();
        row.put_text(1, &session.config.pipeline);
        row.put_text(2, &session.config.name);
        row.put_text(3, &source.db);
        row.put_text(4, &source.schema);
        row.put_text(5, &source.table);
        row.put_text(6, table);
        row.put_int(7, incarnation as i64);
        let _ = row.put_timestamp(8, session.mark.ingested_at_us);
        row.finish();
        self.own.write(session, rows).await?;
        self.known.insert(source.clone(), Known { table: table.to_owned(), incarnation });
        Ok(())
    }
}

fn incarnation_of(order: Order) -> u64 {
    order.sections().first().copied().unwrap_or(0)
}

/// A table that a run before had is not there.
fn gone(id: &TableId) -> Error {
    let roster = TableId { table: NAME.to_owned(), ..id.clone() };
    Error::fatal(format!(
        "{id} is gone: the pipeline wrote to it, and it was dropped or renamed. Made anew it would hold new rows only. Rename it back, or \
         copy it from before it was dropped (`bq cp`); or take a new snapshot with a raised `incarnation`, with which it is made anew; or \
         delete its row in {roster}, to have it made anew all the same"
    ))
}

/// What runs before wrote down; of several rows of a table the last one.
async fn load(session: &Session) -> Result<HashMap<TableName, Known>> {
    let id = session.table(NAME);
    let mut known = HashMap::new();
    if session.rest.table(&id).await?.is_none() {
        return Ok(known);
    }
    let sql = format!(
        "SELECT source_db, source_schema, source_table, `table`, incarnation FROM {} WHERE pipeline = {} AND sink = {} ORDER BY \
         incarnation, seen_at",
        id.sql(),
        quote_text(&session.config.pipeline),
        quote_text(&session.config.name)
    );
    let job = JobId::random(&session.config.project, session.config.location.clone());
    let job = session
        .rest
        .run_query(&job, &Query::new(sql), "looking up the sink's tables", QUERY_PATIENCE)
        .await?;
    let mut page = None;
    loop {
        let rows = session.rest.results(&job.id, page.as_deref(), PAGE_ROWS).await?;
        for row in &rows.rows {
            let text = |at: usize| row.get(at).and_then(|value| value.as_text()).unwrap_or_default();
            let source = TableName { db: text(0).into(), schema: text(1).into(), table: text(2).into() };
            let incarnation = text(4).parse().unwrap_or(0);
            known.insert(source, Known { table: text(3).to_owned(), incarnation });
        }
        page = rows.next;
        if page.is_none() {
            return Ok(known);
        }
    }
}
