//! The decoder of the simulated stream's trivial format.

use std::sync::Arc;

use millstream_core::decoder::{Control, ControlKind, Decoded, Refusal};
use millstream_core::event::Origin;
use millstream_core::{
    Body, Cause, Column, Decoder, Event, EventId, Facts, Incarnation, Key, Op, Order, Record, Row,
    RowBuilder, RowSchema, Stage, TableName, Type, Value,
};

use crate::history::{Big, Cells, Change, History, Identity};

/// The columns of every table; the first and the last make the key of [`Identity::Pair`].
const COLUMNS: [(&str, Type); 4] =
    [("id", Type::Int64), ("v", Type::Int64), ("big", Type::Text), ("tag", Type::Text)];

/// Index of the column that may come unchanged.
pub(crate) const BIG: usize = 2;

/// Makes events out of records by what the history says of them.
pub(crate) struct HistoryDecoder {
    history: Arc<History>,
    schemas: Vec<Arc<RowSchema>>,
    builder: RowBuilder,
}

impl HistoryDecoder {
    /// A decoder with schemas of its own, as each decode worker has.
    pub(crate) fn new(history: Arc<History>) -> Self {
        let schemas = history.tables.iter().map(|table| {
            let columns =
                COLUMNS.map(|(name, ty)| Column { name: name.into(), ty, nullable: true, guessed: false });
            let key = match table.identity {
                Identity::Integer | Identity::Full => vec![0],
                Identity::Pair => vec![0, 3],
                Identity::Keyless => Vec::new(),
            };
            let table = Arc::new(TableName::new("shop", table.schema, table.name));
            Arc::new(RowSchema { table, columns: columns.into(), key })
        });
        Self { schemas: schemas.collect(), history: history.clone(), builder: RowBuilder::new() }
    }

    fn event(&mut self, change: usize, without_p: bool, origin: Origin) -> Event {
        let history = self.history.clone();
        let c = &history.changes[change];
        let identity = history.tables[c.table].identity;
        let key = |id: Option<i64>| id.map(|id| key_of(identity, id));
        let p = if without_p { None } else { c.p };
        let read = c.op == Op::Read;
        let row = self.row(c);
        Event {
            schema: self.schemas[c.table].clone(),
            op: c.op,
            key: key(c.id),
            old_key: key(c.old_id),
            new_key: key(c.new_id),
            order: Order::postgres(Incarnation(0), p.unwrap_or(c.lsn), c.lsn),
            p_known: p.is_some(),
            id: EventId::postgres(Incarnation(0), c.lsn, read),
            row,
            before: None,
            full_before: identity == Identity::Full,
            facts: Facts {
                ts_ms: Some(c.ts_us / 1000),
                ts_us: Some(c.ts_us),
                lsn: i64::try_from(c.lsn).ok(),
                transaction_id: Some(change.to_string().into()),
                snapshot: c.snapshot,
                ..Facts::default()
            },
            origin,
            record: 0,
        }
    }

    fn row(&mut self, c: &Change) -> Row {
        if c.op == Op::Truncate {
            return Row::default();
        }
        let tag = c.id.map(tag);
        self.builder.push(c.id.map_or(Value::Null, Value::Int));
        match &c.cells {
            Some(Cells { v, big }) => {
                self.builder.push(Value::Int(*v));
                self.builder.push(match big {
                    Big::Null => Value::Null,
                    Big::Unchanged => Value::Unchanged,
                    Big::Text(text) => Value::Text(text),
                });
            }
            None => {
                self.builder.push(Value::Null);
                self.builder.push(Value::Null);
            }
        }
        self.builder.push(tag.as_deref().map_or(Value::Null, Value::Text));
        self.builder.finish()
    }

    fn items(&mut self, record: &Record<'_>, bytes: &[u8], out: &mut Vec<Decoded>) -> Option<()> {
        let time = |bytes: &[u8]| bytes.try_into().ok().map(i64::from_be_bytes);
        let (&tag, rest) = bytes.split_first()?;
        let kind = match tag {
            b'T' => ControlKind::Transaction,
            b'H' => ControlKind::Heartbeat,
            b'E' => {
                let chunks = bytes.chunks_exact(6);
                let whole = chunks.remainder().is_empty() && bytes.len() >= 6;
                for (index, chunk) in (0u32..).zip(chunks.filter(|_| whole)) {
                    let change = u32::from_be_bytes(chunk[1..5].try_into().ok()?) as usize;
                    let origin = Origin {
                        partition: record.partition().stable_hash(),
                        offset: record.offset(),
                        index,
                    };
                    let event = self.event(change, chunk[5] == 1, origin);
                    out.push(Decoded::Event(Box::new(event)));
                }
                return whole.then_some(());
            }
            _ => return None,
        };
        out.push(Decoded::Control(Control { kind, ts_ms: Some(time(rest)?) }));
        Some(())
    }
}

impl Decoder for HistoryDecoder {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>) {
        let refuse = |code: &'static str| {
            Decoded::Dead(Refusal { stage: Stage::Parse, cause: Cause::new(code, "made so"), table: None })
        };
        match record.body() {
            Body::Tombstone => {
                out.push(Decoded::Control(Control { kind: ControlKind::Tombstone, ts_ms: None }))
            }
            Body::Broken(..) => out.push(refuse("broken_frame")),
            Body::Value(bytes) => {
                if self.items(record, bytes, out).is_none() {
                    out.push(refuse("malformed"));
                }
            }
        }
    }
}

/// The key of a row.
fn key_of(identity: Identity, id: i64) -> Key {
    match identity {
        Identity::Pair => Key::from_values([Value::Int(id), Value::Text(&tag(id))]),
        _ => Key::from_values([Value::Int(id)]),
    }
}

fn tag(id: i64) -> String {
    format!("t{id}")
}

/// The integer of a key that [`key_of`] made.
pub(crate) fn id_of(key: &Key) -> Option<i64> {
    match key.values()?.get(0) {
        Value::Int(id) => Some(id),
        _ => None,
    }
}

/// The change that an event was made of.
pub(crate) fn change_of(event: &Event) -> Option<usize> {
    event.facts.transaction_id.as_deref()?.parse().ok()
}

/// The cells of a row but for its key; `None` where there are none.
pub(crate) fn cells_of(row: &Row) -> Option<Cells> {
    let Value::Int(v) = row.get(1) else { return None };
    let big = match row.get(BIG) {
        Value::Text(text) => Big::Text(text.to_owned()),
        Value::Unchanged => Big::Unchanged,
        _ => Big::Null,
    };
    Some(Cells { v, big })
}
