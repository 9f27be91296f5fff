//! Logical messages (op `m`, written by `pg_logical_emit_message`) as rows of a table, where the options name one.
//!
//! Each message is a row that is created once: its log position, its prefix, its content. The position is the key, not
//! the prefix by which the connector groups messages: a later message does not replace an earlier one.

use std::sync::Arc;

use millstream_core::decoder::{Control, ControlKind, Refusal};
use millstream_core::{Column, Decoded, Event, Facts, Key, Op, Record, RowBuilder, RowSchema, Type, Value};

use crate::codec::binary::BinaryForm;
use crate::envelope::{Envelope, Flaw};
use crate::frame::{PartitionHash, invalid, rescanned};
use crate::hint::binary;
use crate::moment::{Moment, control_ms};
use crate::options::Options;
use crate::plan::fields;
use crate::scan::Cursor;
use crate::table::Tables;

/// What becomes of a control record: for a message whose table is wanted the event of its row, else a control item.
pub(crate) fn settle(
    kind: ControlKind,
    record: &Record<'_>,
    envelope: &Envelope<'_>,
    options: &Options,
    tables: &mut Tables,
    partition: &mut PartitionHash,
) -> Result<Decoded, Refusal> {
    match &options.messages {
        Some(table) if kind == ControlKind::Message => event(record, envelope, options, tables, partition)
            .map_err(|flaw| invalid(flaw, Some(table.qualified()))),
        _ => Ok(Decoded::Control(Control { kind, ts_ms: envelope.control_ts_ms() })),
    }
}

const LSN: &str = "lsn";
const PREFIX: &str = "prefix";
const CONTENT: &str = "content";

fn event(
    record: &Record<'_>,
    envelope: &Envelope<'_>,
    options: &Options,
    tables: &mut Tables,
    partition: &mut PartitionHash,
) -> Result<Decoded, Flaw> {
    if let Some(flaw) = &envelope.flaw {
        return Err(flaw.clone());
    }
    let missing = |name: &str| Flaw::new("missing_field", format!("{name} is missing"));
    let source = envelope.source.as_ref().ok_or_else(|| missing("source"))?;
    let ts_ms = source.ts_ms.ok_or_else(|| missing("source.ts_ms"))?;
    let place = source.place(options.incarnation, false)?;
    let lsn = place.lsn.ok_or_else(|| missing("source.lsn"))?;
    let name = options.messages.as_ref().ok_or_else(|| Flaw::new("internal", "messages have no table"))?;
    let db = source.db.map(|db| db.decode()).unwrap_or_default();
    let index = tables.index((&db, &name.schema, &name.table), source.connector(), options);
    let table = tables.get_mut(index).ok_or_else(|| Flaw::new("internal", "the table is unknown"))?;
    if table.filtered {
        let ts_ms = control_ms(Some(ts_ms));
        return Ok(Decoded::Control(Control { kind: ControlKind::Filtered, ts_ms }));
    }
    let moment = Moment::new("source.ts_ms", (Some(ts_ms), source.ts_us), options.out_of_range, table)?;
    let processed = (envelope.ts_ms, envelope.ts_us);
    let processed = Moment::new("ts_ms", processed, options.out_of_range, table)?;

    let (prefix, content) = members(envelope, binary(options.modes.binary))?;
    let mut row = RowBuilder::new();
    row.push(Value::Int(lsn));
    row.push(Value::Text(&prefix));
    row.push(content.as_deref().map_or(Value::Null, Value::Bytes));
    let row = row.finish();
    let schema = table.message_schema.get_or_insert_with(|| Arc::new(schema(&table.name))).clone();
    let key = Some(Key::from_values([Value::Int(lsn)]));

    let keep = options.keep_source;
    Ok(Decoded::Event(Box::new(Event {
        schema,
        op: Op::Create,
        key,
        old_key: None,
        new_key: None,
        order: place.order,
        p_known: place.p_known,
        id: place.id,
        row,
        before: None,
        full_before: false,
        facts: Facts {
            ts_ms: moment.ms,
            ts_us: moment.us,
            lsn: Some(lsn),
            transaction_id: source.transaction_id(envelope.transaction_id().as_deref()),
            snapshot: source.snapshot,
            processed_ts_ms: processed.ms,
            processed_ts_us: processed.us,
            source_json: keep.then(|| envelope.source_json.into()),
            transaction_json: envelope.transaction.filter(|_| keep).map(Into::into),
        },
        origin: partition.origin(record),
        record: 0,
    })))
}

fn schema(table: &Arc<millstream_core::TableName>) -> RowSchema {
    let column = |name: &str, ty, nullable| Column { name: name.into(), ty, nullable, guessed: false };
    RowSchema {
        table: table.clone(),
        columns: vec![
            column(LSN, Type::Int64, false),
            column(PREFIX, Type::Text, false),
            column(CONTENT, Type::Bytes, true),
        ],
        key: vec![0],
    }
}

/// Prefix and content of the envelope's `message`.
fn members(envelope: &Envelope<'_>, form: BinaryForm) -> Result<(String, Option<Vec<u8>>), Flaw> {
    let wrong = |what: &str| Flaw::new("wrong_type", format!("message.{what} must be a text"));
    let text = envelope.message.object.ok_or_else(|| Flaw::new("missing_field", "message is missing"))?;
    let (mut prefix, mut content) = (None, None);
    for member in fields(&mut Cursor::new(text, envelope.message.depth)).map_err(rescanned)? {
        let name = member.name.decode();
        if &*name != PREFIX && &*name != CONTENT {
            continue;
        }
        let mut cur = member.cursor();
        let value = match cur.byte() {
            b'"' => Some(cur.string().map_err(rescanned)?),
            b'n' => None,
            _ => return Err(wrong(&name)),
        };
        let slot = if &*name == PREFIX { &mut prefix } else { &mut content };
        if slot.replace(value).is_some() {
            return Err(Flaw::new("duplicate_field", format!("message has {name} twice")));
        }
    }
    let prefix = prefix
        .flatten()
        .ok_or_else(|| Flaw::new("missing_field", "message.prefix is missing"))?
        .decode()
        .into_owned();
    let content = match content.flatten() {
        None => None,
        Some(text) => {
            let mut bytes = Vec::new();
            if !form.decode(&text.decode(), &mut bytes) {
                let text = format!("message.content is not {}; see binary_handling_mode", form.name());
                return Err(Flaw::new("invalid_value", text));
            }
            Some(bytes)
        }
    };
    Ok((prefix, content))
}
