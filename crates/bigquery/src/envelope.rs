//! The envelope layout: every distinct event as it came, in one table for all tables of the source.

use std::sync::Arc;

use millstream_core::bytes::fnv1a_128;
use millstream_core::{Body, Cause, Error, Event, Op, RecordBatch, Result, Type};
use millstream_layout::cell::{write_json, write_json_text};

use crate::column_type::ColumnType;
use crate::descriptor::Descriptor;
use crate::field::Field;
use crate::lane::{Lane, Settled};
use crate::merge::{merged, misfits};
use crate::pending::Pending;
use crate::resource::TableId;
use crate::session::Session;
use crate::table_resource::{Partitioning, Table, TablePatch};

/// The table's name.
pub(crate) const TABLE: &str = "cdc_events";
/// The column by which it is partitioned, and an epoch's rows are found.
pub(crate) const MARK_COLUMN: &str = "read_timestamp";

/// The one table of an envelope sink.
pub(crate) struct Envelope {
    pub(crate) pending: Pending,
    lane: Lane,
    id: TableId,
    fields: Vec<Field>,
    is_there: bool,
}

/// The table's columns, in order.
fn fields() -> Vec<Field> {
    let column = |name: &str, ty: ColumnType| Field::new(name, ty);
    vec![
        column("uuid", ColumnType::String)
            .with_description("The event's identity: the same whenever it comes again"),
        column(MARK_COLUMN, ColumnType::Timestamp),
        column("source_timestamp", ColumnType::Timestamp),
        column("database", ColumnType::String),
        column("schema", ColumnType::String),
        column("table", ColumnType::String),
        column("change_type", ColumnType::String)
            .with_description("READ, INSERT, UPDATE, DELETE or TRUNCATE"),
        column("primary_keys", ColumnType::String).with_description("The key's columns as a JSON object"),
        column("is_deleted", ColumnType::Bool),
        column("payload", ColumnType::String).with_description("The record's value as it came"),
        column("order", ColumnType::String).with_description("The newest event of a key has the largest"),
    ]
}

impl Envelope {
    /// The table of a session, not looked for yet.
    pub(crate) fn new(session: &Session) -> Result<Self> {
        let (id, fields) = (session.table(TABLE), fields());
        let descriptor = Descriptor::new(&fields).map_err(Error::fatal)?;
        let lane = Lane::new(&id, &session.config, &descriptor);
        Ok(Self { pending: Pending::default(), lane, id, fields, is_there: false })
    }

    /// Takes an event. Its row is sent with the others' by [`send`](Self::send).
    pub(crate) async fn push(
        &mut self,
        session: &Session,
        event: &Event,
        records: &Arc<RecordBatch>,
    ) -> Result<Result<(), Cause>> {
        if !self.is_there {
            self.find(session).await?;
            self.is_there = true;
        }
        let record = records.record(event.record as usize);
        let payload = match record.as_ref().map(|record| record.body()) {
            Some(Body::Value(bytes)) => match std::str::from_utf8(bytes) {
                Ok(text) => Some(text),
                Err(_) => {
                    return Ok(Err(Cause::new(
                        "not_text",
                        "the record's value is no UTF-8, and a payload is text",
                    )));
                }
            },
            _ => None,
        };
        let mut row = self.pending.begin();
        let table = &event.schema.table;
        row.put_text(1, &uuid(event));
        // Times are within BigQuery's bounds: decoders let no other pass.
        let _ = row.put_timestamp(2, session.mark.ingested_at_us);
        if let Some(us) = event.facts.ts_us {
            let _ = row.put_timestamp(3, us);
        }
        for (number, name) in [(4, &table.db), (5, &table.schema), (6, &table.table)] {
            row.put_text(number, name);
        }
        row.put_text(7, change_type(event.op));
        if let Some(keys) = primary_keys(event) {
            row.put_text(8, &keys);
        }
        row.put_bool(9, event.op == Op::Delete);
        if let Some(payload) = payload {
            row.put_text(10, payload);
        }
        row.put_text(11, &event.order.to_string());
        let bytes = row.byte_len();
        if bytes > crate::target::ROW_BYTES_MAX {
            let text = format!(
                "the row has {bytes} bytes, and BigQuery takes {} at most",
                crate::target::ROW_BYTES_MAX
            );
            return Ok(Err(Cause::new("too_large", text)));
        }
        row.finish();
        self.pending.note(records, event.record);
        Ok(Ok(()))
    }

    /// Hands what waits to the connection.
    pub(crate) async fn send(&mut self, session: &Session) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (rows, origins) = self.pending.take();
        self.lane.send(session, rows, origins).await
    }

    /// Waits until all of an epoch's rows are written, or refused.
    pub(crate) async fn settle(&mut self, session: &Session) -> Result<Settled> {
        self.send(session).await?;
        self.lane.settle(session).await
    }

    /// Its last rows were written. Answers streams that take no more.
    pub(crate) fn retire(&mut self) -> Vec<Arc<str>> {
        self.lane.retire()
    }

    /// The table's name, for dead letters.
    pub(crate) fn name(&self) -> &str {
        &self.id.table
    }

    /// Finds the table or makes it; one that is there gets the columns that it lacks.
    async fn find(&self, session: &Session) -> Result<()> {
        let Some(actual) = session.rest.table(&self.id).await? else { return self.make(session).await };
        if let Some((there, wanted)) = misfits(&actual.fields, &self.fields).first() {
            return Err(Error::fatal(format!(
                "{}: column {} is {}, and {} is written to it: drop or rename the table, or name another dataset",
                self.id,
                there.name,
                there.sql_type(),
                wanted.sql_type()
            )));
        }
        let fields = merged(&actual.fields, &self.fields, &[]);
        if fields.len() > actual.fields.len() {
            let patch = TablePatch { fields: Some(fields), etag: actual.etag, ..TablePatch::default() };
            session.rest.patch_table(&self.id, &patch).await?;
        }
        Ok(())
    }

    async fn make(&self, session: &Session) -> Result<()> {
        if !session.config.create {
            let columns = self.fields.iter().map(Field::ddl).collect::<Vec<_>>().join(", ");
            return Err(Error::fatal(format!(
                "there is no table {}, and the config says `create: never`: make it with the columns ({columns})",
                self.id
            )));
        }
        let table = Table {
            fields: self.fields.clone(),
            clustering: ["database", "schema", "table"].map(str::to_owned).to_vec(),
            partitioning: Some(Partitioning {
                column: Some(MARK_COLUMN.to_owned()),
                expiration: session.config.partition_expiration,
                ..Partitioning::default()
            }),
            labels: crate::found::labels(session),
            description: Some("Every change as it came".to_owned()),
            ..Table::default()
        };
        session.rest.create_table(&self.id, &table).await.map(drop)
    }
}

fn change_type(op: Op) -> &'static str {
    match op {
        Op::Read => "READ",
        Op::Create => "INSERT",
        Op::Update => "UPDATE",
        Op::Delete => "DELETE",
        Op::Truncate => "TRUNCATE",
    }
}

/// The key's columns as a JSON object; `None` for an event without a key.
fn primary_keys(event: &Event) -> Option<String> {
    let values = event.key.as_ref()?.values()?;
    let mut out = String::from("{");
    for (i, (name, value)) in event.schema.key_names().zip(values.iter()).enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_json_text(&mut out, name);
        out.push(':');
        // A value without a form in JSON is none that a key has.
        write_json(&mut out, value, &Type::Null, 0).ok()?;
    }
    out.push('}');
    Some(out)
}

/// A UUID (version 8: of one's own making) of what an event is known by: table, key and position; without a key, the record's place,
/// but for a truncate, which its position tells alone.
fn uuid(event: &Event) -> String {
    let table = &event.schema.table;
    let mut bytes = Vec::with_capacity(128);
    for name in [&table.db, &table.schema, &table.table] {
        bytes.extend(name.as_bytes());
        bytes.push(0);
    }
    match &event.key {
        Some(key) => bytes.extend(key.as_bytes()),
        None if event.op == Op::Truncate => {}
        None => {
            let origin = event.origin;
            bytes.extend(origin.partition.to_le_bytes());
            bytes.extend(origin.offset.to_le_bytes());
            bytes.extend(origin.index.to_le_bytes());
        }
    }
    bytes.extend(event.id.0.to_le_bytes());
    let hash = fnv1a_128(&bytes);
    format!(
        "{:08x}-{:04x}-8{:03x}-{:04x}-{:012x}",
        hash >> 96,
        hash >> 80 & 0xffff,
        hash >> 64 & 0xfff,
        hash >> 48 & 0x3fff | 0x8000,
        hash & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use millstream_core::{Column, EventId, Incarnation, Key, RowSchema, TableName, Value};

    use super::*;

    fn event(key: Option<Key>, lsn: u64) -> Event {
        let column = |name: &str, ty| Column { name: name.into(), ty, nullable: true, guessed: false };
        let table = TableName::new("shop", "public", "t");
        let columns = vec![column("a\"b", Type::Int64), column("c", Type::Text)];
        let schema = RowSchema { table: Arc::new(table.clone()), columns, key: vec![0, 1] };
        let id = EventId::postgres(Incarnation(0), lsn, false);
        Event { schema: Arc::new(schema), key, id, ..Event::sweep(table, Incarnation(0)) }
    }

    /// The second half was made of the first one, a hash of 64 bits, so that of four billion events two would have had the same UUID. All
    /// of 128 bits but the six that say what kind of UUID it is.
    #[test]
    fn a_uuid_has_all_bits_of_its_hash() {
        let event = event(Some(Key::from_values([Value::Int(1), Value::Text("x")])), 5);
        let mut bytes = b"shop\0public\0t\0".to_vec();
        bytes.extend(event.key.as_ref().unwrap().as_bytes());
        bytes.extend(event.id.0.to_le_bytes());
        let kinds = 0xf << 76 | 0x3 << 62;
        let number = u128::from_str_radix(&uuid(&event).replace('-', ""), 16).unwrap();
        assert_eq!(number & !kinds, fnv1a_128(&bytes) & !kinds);
    }

    /// A truncate that comes again from another place is the same.
    #[test]
    fn a_truncate_is_known_by_its_position() {
        let truncate = |offset, lsn| {
            let origin = millstream_core::event::Origin { partition: 1, offset, index: 0 };
            uuid(&Event { op: Op::Truncate, origin, ..event(None, lsn) })
        };
        assert_eq!(truncate(1, 5), truncate(2, 5));
        assert_ne!(truncate(1, 5), truncate(1, 6));
    }

    #[test]
    fn events_are_told_apart_and_known_again() {
        let key = |id: i64| Some(Key::from_values([Value::Int(id), Value::Text("x")]));
        let ids = [event(key(1), 5), event(key(2), 5), event(key(1), 6), event(None, 5)].map(|e| uuid(&e));
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), 4);
        assert_eq!(ids[0], uuid(&event(key(1), 5)));
        for id in &ids {
            assert_eq!((id.len(), &id[14..15]), (36, "8"));
            assert!("89ab".contains(&id[19..20]), "{id}");
        }
        assert_eq!(primary_keys(&event(key(1), 5)).unwrap(), r#"{"a\"b":1,"c":"x"}"#);
        assert_eq!(primary_keys(&event(None, 5)), None);
    }
}
