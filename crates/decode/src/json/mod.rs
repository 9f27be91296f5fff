//! Plain messages: a JSON object is a row of a table whose columns are declared, an array is one such message for each element.
//!
//! A row is known by its table's key where one is declared, so that it comes once however often it is published; otherwise by the
//! message, so that it comes once however often that is delivered. It is never older or newer than another: no history is told.

mod table;

use std::sync::Arc;

use hashbrown::HashMap;
use millstream_core::decoder::{ControlKind, DecodeNotice, Refusal};
use millstream_core::event::Facts;
use millstream_core::record::Range;
use millstream_core::{Decoded, Decoder, Event, EventId, Op, Order, Record, Result, RowBuilder};

use crate::codec::Ctx;
use crate::envelope::Flaw;
use crate::frame::{Framed, PartitionHash, control, invalid, open_as, unreadable};
use crate::moment::control_ms;
use crate::options::Options;
use crate::plan::{RowField, fields};
use crate::scan::Cursor;
use table::{Read, Table};

/// Messages in one array: each takes memory beyond its own bytes.
const PARTS_MAX: usize = 1 << 16;

/// A decoder of plain messages; see [`crate::json`].
#[derive(Debug)]
pub(crate) struct Json {
    options: Arc<Options>,
    tables: Vec<Table>,
    by_name: HashMap<String, usize>,
    ctx: Ctx,
    row: RowBuilder,
    partition: PartitionHash,
}

/// Where a message belongs.
enum Route {
    Table(usize),
    /// To a table that the config leaves out.
    Filtered,
}

impl Decoder for Json {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>) {
        out.push(self.record(record).unwrap_or_else(Decoded::Dead));
    }

    fn notices(&mut self) -> Vec<DecodeNotice> {
        self.tables.iter_mut().flat_map(Table::notices).collect()
    }
}

impl Json {
    pub(crate) fn new(options: Arc<Options>) -> Result<Self> {
        let mut declared: Vec<_> =
            options.tables.iter().filter(|(_, hints)| !hints.columns.is_empty()).collect();
        declared.sort_by_key(|(name, _)| *name);
        let tables: Vec<_> =
            declared.iter().map(|(name, hints)| Table::new(name, hints, &options)).collect::<Result<_>>()?;
        let mut ctx = Ctx::new(options.clone());
        // Nothing stands for a value that did not come.
        ctx.detect = false;
        ctx.unknown = Some(options.json.unknown_fields);
        Ok(Self {
            by_name: tables.iter().map(|t| t.qualified.clone()).zip(0..).collect(),
            tables,
            ctx,
            options,
            row: RowBuilder::new(),
            partition: PartitionHash::default(),
        })
    }

    fn record(&mut self, record: &Record<'_>) -> Result<Decoded, Refusal> {
        let (begins, wanted) = match record.part() {
            0 => (&b"{["[..], "an object or an array of objects"),
            _ => (&b"{"[..], "an object, as an element of an array"),
        };
        let text = match open_as(record, &self.options, begins, wanted)? {
            Framed::Control(control) => return Ok(Decoded::Control(control)),
            Framed::Text(text) => text,
        };
        let mut cur = Cursor::new(text, 0);
        cur.space();
        if cur.byte() == b'[' {
            return elements(cur);
        }
        let by_member = self.options.json.table_field.is_some();
        if !by_member && let Ok(Some(Route::Table(at))) = self.routed(record, &[]) {
            let Self { tables, ctx, row, .. } = self;
            if let Some(read) = tables[at].read_whole(&cur, ctx, row) {
                return Ok(self.event(record, at, read));
            }
        }
        let fields = fields(&mut cur)?;
        cur.end()?;
        let at = match self.routed(record, &fields)? {
            Some(Route::Table(at)) => at,
            Some(Route::Filtered) => return Ok(Decoded::Control(control(ControlKind::Filtered))),
            None => return Err(invalid(self.no_table(), None)),
        };
        let Self { options, tables, ctx, row, .. } = self;
        let json = &options.json;
        let read = tables[at].read(&fields, json.table_field.as_deref(), json.unknown_fields, ctx, row);
        match read {
            Ok(read) => Ok(self.event(record, at, read)),
            Err(flaw) => Err(invalid(flaw, Some(self.tables[at].qualified.clone()))),
        }
    }

    /// Where a message with these members belongs; `None` if nothing tells.
    fn routed(&self, record: &Record<'_>, fields: &[RowField<'_>]) -> Result<Option<Route>, Refusal> {
        let json = &self.options.json;
        if let Some(name) = &json.table_attribute
            && let Some(header) = record.headers().find(|header| header.name == name.as_bytes())
        {
            let named = std::str::from_utf8(header.value).unwrap_or_default();
            return self.named(named).map(Some);
        }
        if let Some(name) = &json.table_field
            && let Some(field) = fields.iter().find(|field| field.name.is(name))
        {
            let mut cur = field.cursor();
            match cur.byte() {
                b'n' => {}
                b'"' => return self.named(&cur.string()?.decode()).map(Some),
                _ => {
                    let flaw = Flaw::new("wrong_type", "the member that tells the table is no text");
                    return Err(invalid(flaw, None));
                }
            }
        }
        json.table.as_deref().map(|name| self.named(name)).transpose()
    }

    fn named(&self, name: &str) -> Result<Route, Refusal> {
        if !self.options.wants(name) {
            return Ok(Route::Filtered);
        }
        let unknown = || {
            let text = "the message is for a table of which the config declares no columns";
            invalid(Flaw::new("unknown_table", text), None)
        };
        self.by_name.get(name).map(|&at| Route::Table(at)).ok_or_else(unknown)
    }

    fn no_table(&self) -> Flaw {
        let json = &self.options.json;
        let told = |what: &str, name: &Option<String>| name.as_ref().map(|name| format!("the {what} {name}"));
        let places = [told("attribute", &json.table_attribute), told("member", &json.table_field)];
        let places: Vec<_> = places.into_iter().flatten().collect();
        Flaw::new("missing_field", format!("{}, which tells the table, is missing", places.join(" or ")))
    }

    fn event(&mut self, record: &Record<'_>, at: usize, Read { row, key }: Read) -> Decoded {
        let origin = self.partition.origin(record);
        let incarnation = self.options.incarnation;
        let ts_ms = control_ms(record.publish_ts_ms());
        let published = ts_ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0);
        let order =
            Order::from_sections(&[incarnation.0.into(), published, origin.offset, origin.index.into()]);
        Decoded::Event(Box::new(Event {
            schema: self.tables[at].schema.clone(),
            op: Op::Create,
            key,
            old_key: None,
            new_key: None,
            order,
            p_known: true,
            // There is one event of a key; what has none is told by its origin.
            id: EventId::start(incarnation),
            row,
            before: None,
            full_before: false,
            facts: Facts { ts_ms, ts_us: ts_ms.map(|ms| ms * 1_000), ..Facts::default() },
            origin,
            record: 0,
        }))
    }
}

/// The elements of the array at the cursor, as messages of their own.
fn elements(mut cur: Cursor<'_>) -> Result<Decoded, Refusal> {
    let mut parts = Vec::new();
    let mut more = cur.first_element()?;
    while more {
        if parts.len() == PARTS_MAX {
            let text = format!("the array has more than {PARTS_MAX} elements");
            return Err(unreadable("too_large", text));
        }
        let start = cur.at();
        cur.skip()?;
        parts.push(Range { start: start as u32, len: (cur.at() - start) as u32 });
        more = cur.next_element()?;
    }
    cur.end()?;
    if parts.is_empty() {
        return Ok(Decoded::Control(control(ControlKind::Empty)));
    }
    Ok(Decoded::Several(parts))
}
