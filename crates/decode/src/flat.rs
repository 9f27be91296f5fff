//! Events flattened by ExtractNewRecordState: the row's columns, and what is left of the envelope as added fields or
//! headers.
//!
//! Messages, heartbeats, transaction and schema-change records pass the transform unchanged and are known by their
//! envelope. Truncates do not pass it: they are lost before they come here.

use std::sync::Arc;

use millstream_core::decoder::{Control, ControlKind, DecodeNotice, Refusal};
use millstream_core::{Body, Decoded, Decoder, Event, Facts, Op, Record};

use crate::change::{Bench, Change, assemble};
use crate::debezium::key_headers;
use crate::embedded::Embedded;
use crate::envelope::{Envelope, Flaw, NoShortcuts};
use crate::frame::{Framed, PartitionHash, Wrapper, control, invalid, is_wrapped, open};
use crate::key::key_fields;
use crate::message;
use crate::moment::{Moment, control_ms};
use crate::options::{FlatOptions, Options};
use crate::plan::{RowField, fields};
use crate::scan::{Cursor, Number, Str};
use crate::source_block::{Connector, Source, TxId, snapshot_named};
use crate::table::Tables;

/// A decoder of flattened events; see [`crate::debezium_flat`].
#[derive(Debug)]
pub(crate) struct Flat {
    options: Arc<Options>,
    bench: Bench,
    tables: Tables,
    embedded: Embedded,
    partition: PartitionHash,
}

/// The added fields, as JSON values; those of the value win over those of headers.
#[derive(Debug, Default)]
struct Added<'a> {
    op: Option<Scalar<'a>>,
    deleted: Option<Scalar<'a>>,
    table: Option<Scalar<'a>>,
    schema: Option<Scalar<'a>>,
    db: Option<Scalar<'a>>,
    lsn: Option<Scalar<'a>>,
    ts_ms: Option<Scalar<'a>>,
    ts_us: Option<Scalar<'a>>,
    transaction_id: Option<Scalar<'a>>,
    snapshot: Option<Scalar<'a>>,
    file: Option<Scalar<'a>>,
    pos: Option<Scalar<'a>>,
    row: Option<Scalar<'a>>,
}

/// A JSON scalar.
#[derive(Debug, Clone, Copy)]
enum Scalar<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Text(Str<'a>),
    Other,
}

impl<'a> Scalar<'a> {
    fn of(cur: &mut Cursor<'a>) -> Self {
        match cur.byte() {
            b'n' => Scalar::Null,
            b't' | b'f' => Scalar::Bool(cur.byte() == b't'),
            b'"' => cur.string().map_or(Scalar::Other, Scalar::Text),
            b'-' | b'0'..=b'9' => match cur.number() {
                Ok(Number::Int(n)) => Scalar::Int(n),
                _ => Scalar::Other,
            },
            _ => Scalar::Other,
        }
    }

    fn text(self, name: &str) -> Result<Option<Str<'a>>, Flaw> {
        match self {
            Scalar::Null => Ok(None),
            Scalar::Text(text) => Ok(Some(text)),
            _ => Err(Flaw::new("wrong_type", format!("{name} must be a text"))),
        }
    }

    fn int(self, name: &str) -> Result<Option<i64>, Flaw> {
        let wrong = || Flaw::new("wrong_type", format!("{name} must be an integer of 64 bits"));
        match self {
            Scalar::Null => Ok(None),
            Scalar::Int(n) => Ok(Some(n)),
            Scalar::Text(text) => text.decode().parse().map(Some).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

impl<'a> Added<'a> {
    fn slot(&mut self, names: &FlatOptions, name: &str) -> Option<&mut Option<Scalar<'a>>> {
        Some(match name {
            n if n == names.op => &mut self.op,
            n if n == names.deleted => &mut self.deleted,
            n if n == names.table => &mut self.table,
            n if n == names.schema => &mut self.schema,
            n if n == names.db => &mut self.db,
            n if n == names.lsn => &mut self.lsn,
            n if n == names.ts_ms => &mut self.ts_ms,
            n if n == names.ts_us => &mut self.ts_us,
            n if n == names.transaction_id => &mut self.transaction_id,
            n if n == names.snapshot => &mut self.snapshot,
            n if n == names.file => &mut self.file,
            n if n == names.pos => &mut self.pos,
            n if n == names.row => &mut self.row,
            _ => return None,
        })
    }

    /// Takes the added fields out of a row's members.
    fn take(&mut self, members: Vec<RowField<'a>>, names: &FlatOptions) -> Result<Vec<RowField<'a>>, Flaw> {
        let mut row = Vec::with_capacity(members.len());
        for member in members {
            let name = member.name.decode();
            match self.slot(names, &name) {
                Some(Some(_)) => {
                    return Err(Flaw::new("duplicate_field", format!("the value has {name} twice")));
                }
                Some(slot) => *slot = Some(Scalar::of(&mut member.cursor())),
                None => row.push(member),
            }
        }
        Ok(row)
    }

    /// Adds what headers tell and fields did not. A header that is not JSON tells nothing.
    fn take_headers(&mut self, record: &Record<'a>, names: &FlatOptions) {
        for header in record.headers() {
            let Ok(name) = std::str::from_utf8(header.name) else { continue };
            let Some(slot) = self.slot(names, name) else { continue };
            if slot.is_none() {
                *slot = header_value(header.value);
            }
        }
    }

    fn any(&self) -> bool {
        self.op.is_some() || self.deleted.is_some() || self.lsn.is_some() || self.table.is_some()
    }

    fn op(&self, names: &FlatOptions) -> Result<Op, Flaw> {
        let deleted = match self.deleted {
            None | Some(Scalar::Null) => false,
            Some(Scalar::Bool(deleted)) => deleted,
            Some(Scalar::Text(text)) => text.is("true"),
            Some(_) => {
                return Err(Flaw::new(
                    "wrong_type",
                    format!("{} must be \"true\" or \"false\"", names.deleted),
                ));
            }
        };
        if deleted {
            return Ok(Op::Delete);
        }
        let Some(op) = self.op.map(|op| op.text(&names.op)).transpose()?.flatten() else {
            return Ok(Op::Update);
        };
        match &*op.decode() {
            "r" => Ok(Op::Read),
            "c" => Ok(Op::Create),
            "u" => Ok(Op::Update),
            "d" => Ok(Op::Delete),
            _ => Err(Flaw::new("unknown_op", format!("{} is none of r, c, u, d", names.op))),
        }
    }

    /// What is left of the source block.
    fn source(&self, names: &FlatOptions) -> Result<Source<'a>, Flaw> {
        let text = |value: Option<Scalar<'a>>, name: &str| value.map_or(Ok(None), |value| value.text(name));
        let int = |value: Option<Scalar<'a>>, name: &str| value.map_or(Ok(None), |value| value.int(name));
        Ok(Source {
            db: text(self.db, &names.db)?,
            schema: text(self.schema, &names.schema)?,
            table: text(self.table, &names.table)?,
            ts_ms: int(self.ts_ms, &names.ts_ms)?,
            ts_us: int(self.ts_us, &names.ts_us)?,
            lsn: int(self.lsn, &names.lsn)?,
            tx_id: match self.transaction_id {
                Some(Scalar::Int(id)) => Some(TxId::Int(id)),
                Some(Scalar::Text(id)) => Some(TxId::Text(id)),
                _ => None,
            },
            snapshot: text(self.snapshot, &names.snapshot)?
                .map_or_else(Default::default, |s| snapshot_named(s.raw)),
            file: text(self.file, &names.file)?,
            pos: int(self.pos, &names.pos)?,
            row: int(self.row, &names.row)?,
            ..Source::default()
        })
    }
}

/// A header's scalar, out of its schema wrapper if it has one.
fn header_value(bytes: &[u8]) -> Option<Scalar<'_>> {
    let text = simdutf8::basic::from_utf8(bytes).ok()?;
    let mut cur = Cursor::new(text, 0);
    cur.space();
    let mut ahead = cur.clone();
    ahead.skip().and_then(|()| ahead.end()).ok()?;
    if cur.byte() != b'{' {
        return Some(Scalar::of(&mut cur));
    }
    let members = fields(&mut cur).ok()?;
    let payload = members.iter().find(|m| m.name.is("payload"))?;
    Some(Scalar::of(&mut payload.cursor()))
}

impl Decoder for Flat {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>) {
        out.push(self.record(record).unwrap_or_else(Decoded::Dead));
    }

    fn notices(&mut self) -> Vec<DecodeNotice> {
        self.tables.notices()
    }
}

impl Flat {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self {
            bench: Bench::new(options.clone()),
            options,
            tables: Tables::default(),
            embedded: Embedded::default(),
            partition: PartitionHash::default(),
        }
    }

    fn record(&mut self, record: &Record<'_>) -> Result<Decoded, Refusal> {
        let text = match open(record, &self.options)? {
            Framed::Control(c) if c.kind == ControlKind::Tombstone => return self.tombstone(record),
            Framed::Control(control) => return Ok(Decoded::Control(control)),
            Framed::Text(text) => text,
        };
        let mut cur = Cursor::new(text, 0);
        cur.space();
        let start = cur.clone();
        let mut members = fields(&mut cur)?;
        cur.end()?;
        let mut facts = 0;
        let mut payload = start.clone();
        if is_wrapped(&start) && is_wrapper(&members) {
            let mut flaw = None;
            let mut found = None;
            let mut again = start;
            Wrapper::walk(
                &mut again,
                &mut flaw,
                |cur| {
                    facts = self.embedded.take(cur)?;
                    Ok(())
                },
                |cur| {
                    found = Some(cur.clone());
                    cur.skip()
                },
            )?;
            if let Some(flaw) = flaw {
                return Err(invalid(flaw, None));
            }
            match found {
                Some(found) if found.byte() == b'{' => {
                    payload = found.clone();
                    members = fields(&mut payload.clone())?;
                }
                _ => return self.tombstone(record),
            }
        }
        self.value(record, members, facts, payload)
    }

    /// A record without a value. In `tombstone` mode that is all there is of a delete, told by its headers.
    fn tombstone(&mut self, record: &Record<'_>) -> Result<Decoded, Refusal> {
        let mut added = Added::default();
        added.take_headers(record, &self.options.flat);
        let delete = matches!(added.op, Some(Scalar::Text(op)) if op.is("d"))
            || matches!(added.deleted, Some(Scalar::Text(deleted)) if deleted.is("true"));
        if !delete || matches!(record.body(), Body::Broken(..)) {
            return Ok(Decoded::Control(control(ControlKind::Tombstone)));
        }
        let key = key_fields(record.key());
        if key.is_empty() {
            return Ok(Decoded::Control(control(ControlKind::Tombstone)));
        }
        self.event(record, added, key, 0)
    }

    fn value<'a>(
        &mut self,
        record: &Record<'a>,
        members: Vec<RowField<'a>>,
        facts: u64,
        mut payload: Cursor<'a>,
    ) -> Result<Decoded, Refusal> {
        let mut added = Added::default();
        let row = added.take(members, &self.options.flat).map_err(|flaw| invalid(flaw, None))?;
        added.take_headers(record, &self.options.flat);
        if !added.any() {
            let envelope = Envelope::read(&mut payload, &mut NoShortcuts)?;
            if let Some(kind) = envelope.control() {
                let Self { options, tables, partition, .. } = self;
                return message::settle(kind, record, &envelope, options, tables, partition);
            }
        }
        self.event(record, added, row, facts)
    }

    fn event<'a>(
        &mut self,
        record: &Record<'a>,
        added: Added<'a>,
        row: Vec<RowField<'a>>,
        facts: u64,
    ) -> Result<Decoded, Refusal> {
        let names = &self.options.flat;
        let source = added.source(names).map_err(|flaw| invalid(flaw, None))?;
        let connector = if source.file.is_some() { Connector::Mysql } else { Connector::Postgres };
        let (db, schema, table) = identity(&source, record.topic(), names).ok_or_else(|| {
            let text = format!(
                "neither {}, the topic nor the configuration tells the table; add `table` to add.fields",
                names.table
            );
            invalid(Flaw::new("missing_field", text), None)
        })?;
        let table = self.tables.index((&db, &schema, &table), connector, &self.options);
        let result = self.change(record, &added, &source, row, table, facts);
        result.map_err(|flaw| invalid(flaw, self.tables.get(table).map(|t| t.qualified.clone())))
    }

    fn change<'a>(
        &mut self,
        record: &Record<'a>,
        added: &Added<'a>,
        source: &Source<'a>,
        row: Vec<RowField<'a>>,
        table: usize,
        facts: u64,
    ) -> Result<Decoded, Flaw> {
        let names = &self.options.flat;
        let op = added.op(names)?;
        if source.lsn.is_none() && source.file.is_none() {
            let text = format!("{} is missing; add `lsn` (MySQL: `file,pos,row`) to add.fields", names.lsn);
            return Err(Flaw::new("missing_field", text));
        }
        let place = source.place(self.options.incarnation, op == Op::Read)?;
        let known = self.tables.get(table).ok_or_else(|| Flaw::new("internal", "the table is unknown"))?;
        if known.filtered {
            let ts_ms = control_ms(source.ts_ms);
            return Ok(Decoded::Control(Control { kind: ControlKind::Filtered, ts_ms }));
        }
        let policy = self.options.out_of_range;
        let known =
            self.tables.get_mut(table).ok_or_else(|| Flaw::new("internal", "the table is unknown"))?;
        let moment = Moment::new("source.ts_ms", (source.ts_ms, source.ts_us), policy, known)?;
        let full = known.full_identity;
        let key = if known.key.is_some() { Vec::new() } else { key_fields(record.key()) };
        let keyless = known.key.as_ref().map_or(key.is_empty(), |columns| columns.is_empty());
        let (old_key, new_key) = key_headers(record);
        let columns = self.embedded.facts(facts).map(|f| f.fields.as_slice()).unwrap_or_default();
        let change = Change {
            table,
            facts: (facts, columns),
            image: row,
            key_only: op == Op::Delete && !full && !keyless,
            before: None,
            key,
            old_key,
            new_key,
            detect: !full,
        };
        let parts = assemble(&change, &mut self.tables, &mut self.bench, &self.options)?;
        parts.check_keys()?;
        Ok(Decoded::Event(Box::new(Event {
            schema: parts.schema,
            op,
            key: parts.key,
            old_key: parts.old_key,
            new_key: parts.new_key,
            order: place.order,
            // The LSN in place of `p` is the format's order, not a stand-in.
            p_known: true,
            id: place.id,
            row: parts.row,
            before: None,
            full_before: full || (op == Op::Delete && keyless),
            facts: Facts {
                ts_ms: moment.ms,
                ts_us: moment.us,
                lsn: place.lsn,
                transaction_id: source.transaction_id(None),
                snapshot: source.snapshot,
                ..Facts::default()
            },
            origin: self.partition.origin(record),
            record: 0,
        })))
    }
}

/// Whether the members are exactly a schema object and a payload, rather than columns that happen to be called so.
fn is_wrapper(members: &[RowField<'_>]) -> bool {
    let first = |name: &str| {
        members.iter().find(|m| m.name.is(name)).and_then(|m| m.value.as_bytes().first().copied())
    };
    members.len() == 2
        && matches!(first("schema"), Some(b'{' | b'n'))
        && matches!(first("payload"), Some(b'{' | b'n'))
}

/// (db, schema, table) from the added fields, else from the topic `prefix.schema.table`, else from the config.
fn identity(
    source: &Source<'_>,
    topic: Option<&[u8]>,
    names: &FlatOptions,
) -> Option<(String, String, String)> {
    let own = |text: Option<Str<'_>>| text.map(|t| t.decode().into_owned());
    let db = own(source.db).unwrap_or_default();
    let topic = topic.and_then(|t| std::str::from_utf8(t).ok());
    if let Some(table) = own(source.table).filter(|t| !t.is_empty()) {
        let schema = own(source.schema).unwrap_or_else(|| {
            let rest = topic.and_then(|t| t.strip_suffix(&*table)).and_then(|t| t.strip_suffix('.'));
            match rest.or(topic.and_then(|t| t.rsplit_once('.')).map(|(rest, _)| rest)) {
                Some(rest) => rest.rsplit_once('.').map(|(_, schema)| schema.to_owned()).unwrap_or_default(),
                None => String::new(),
            }
        });
        return Some((db, schema, table));
    }
    if let Some((rest, table)) = topic.and_then(|t| t.rsplit_once('.'))
        && let Some((_, schema)) = rest.rsplit_once('.')
    {
        return Some((db, schema.to_owned(), table.to_owned()));
    }
    let table = names.default_table.as_ref()?;
    Some((table.db.to_string(), table.schema.to_string(), table.table.to_string()))
}
