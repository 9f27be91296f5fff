//! `_schema_changes`: every column added or altered, for people.

use millstream_core::sink::SinkNotice;

use crate::column_type::ColumnType;
use crate::encode::RowWriter;
use crate::field::Field;
use crate::own_table::OwnTable;
use crate::session::Session;
use crate::target::{SchemaChange, notice};

/// The table's name.
pub(crate) const NAME: &str = "_schema_changes";

/// Writes schema changes down. What a crash comes between is in the tables, but not here.
pub(crate) struct ChangeLog(OwnTable);

impl ChangeLog {
    pub(crate) fn new() -> Self {
        let text = |name: &str| Field::new(name, ColumnType::String);
        let fields = vec![
            Field::new("at", ColumnType::Timestamp),
            text("sink"),
            text("table"),
            text("column"),
            text("change"),
            text("from"),
            text("to"),
            Field::new("epoch", ColumnType::Int64),
        ];
        Self(OwnTable::new(NAME, "Columns that Millstream added or altered", fields, None))
    }

    /// Writes the changes of an epoch. That they cannot be written is told and stops nothing: they are made.
    pub(crate) async fn write(
        &mut self,
        session: &Session,
        changes: Vec<SchemaChange>,
        notices: &mut Vec<SinkNotice>,
    ) {
        let mut rows = RowWriter::new();
        for change in changes {
            let mut row = rows.begin();
            let _ = row.put_timestamp(1, session.mark.ingested_at_us);
            row.put_text(2, &session.config.name);
            row.put_text(3, &change.table);
            row.put_text(4, &change.column);
            row.put_text(5, change.change);
            if let Some(from) = &change.from {
                row.put_text(6, from);
            }
            row.put_text(7, &change.to);
            row.put_int(8, session.mark.epoch as i64);
            row.finish();
        }
        if let Err(error) = self.0.write(session, rows).await {
            notices.push(notice(
                "schema_change_not_written",
                format!("_schema_changes lacks a change: {error}"),
            ));
        }
    }
}
