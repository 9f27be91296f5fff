//! Debezium's envelope format, bare or beside its schema.
//!
//! A row is read while the envelope is scanned, with the shape that the last rows beginning alike had; only `source`,
//! which comes later, tells whether the guess was right. A wrong guess costs a second reading and nothing else: it
//! leaves no trace in types or counters.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use millstream_core::decoder::{Control, ControlKind, DecodeNotice, Refusal};
use millstream_core::{Decoded, Decoder, Event, Facts, Op, Record};

use crate::change::{Bench, Change, Parts, assemble, configured_key};
use crate::embedded::Embedded;
use crate::envelope::{Envelope, Flaw, Image, Which};
use crate::frame::{Framed, PartitionHash, Wrapper, invalid, is_wrapped, open, rescanned};
use crate::key::{key_fields, key_of};
use crate::options::Options;
use crate::plan::{RowField, Shape, fields};
use crate::scan::{Cursor, ScanError, Str};
use crate::source_block::Source;
use crate::table::Tables;

/// Shapes that are tried on a row before its table is known.
const RECENT_MAX: usize = 16;

/// A decoder of Debezium envelopes; see [`crate::debezium`].
#[derive(Debug)]
pub(crate) struct Debezium {
    options: Arc<Options>,
    bench: Bench,
    before: millstream_core::RowBuilder,
    tables: Tables,
    embedded: Embedded,
    recent: Vec<Arc<Shape>>,
    partition: PartitionHash,
}

/// What was read with guessed shapes while the envelope was scanned.
#[derive(Debug, Default)]
struct Guess {
    before: Option<Arc<Shape>>,
    after: Option<Arc<Shape>>,
}

impl Decoder for Debezium {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>) {
        out.push(self.record(record).unwrap_or_else(Decoded::Dead));
    }

    fn notices(&mut self) -> Vec<DecodeNotice> {
        self.tables.notices()
    }
}

impl Debezium {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self {
            bench: Bench::new(options.clone()),
            options,
            before: millstream_core::RowBuilder::new(),
            tables: Tables::default(),
            embedded: Embedded::default(),
            recent: Vec::new(),
            partition: PartitionHash::default(),
        }
    }

    fn record(&mut self, record: &Record<'_>) -> Result<Decoded, Refusal> {
        let text = match open(record, &self.options)? {
            Framed::Control(control) => return Ok(Decoded::Control(control)),
            Framed::Object(text) => text,
        };
        let mut cur = Cursor::new(text, 0);
        cur.space();
        let mut guess = Guess::default();
        let mut facts = 0;
        let envelope = if is_wrapped(&cur) {
            match self.wrapped(&mut cur, &mut facts, &mut guess)? {
                Some(envelope) => envelope,
                None => {
                    let control = Control { kind: ControlKind::Tombstone, ts_ms: None };
                    return Ok(Decoded::Control(control));
                }
            }
        } else {
            self.envelope(&mut cur, 0, &mut guess)?
        };
        cur.end()?;
        self.judge(record, envelope, facts, &guess)
    }

    /// Reads a wrapper; `None` if its payload is null.
    fn wrapped<'a>(
        &mut self,
        cur: &mut Cursor<'a>,
        facts: &mut u64,
        guess: &mut Guess,
    ) -> Result<Option<Envelope<'a>>, Refusal> {
        let mut flaw = None;
        let mut found = None;
        let mut not_object = false;
        // Both closures need the decoder, one after the other.
        let this = std::cell::RefCell::new((self, facts));
        Wrapper::walk(
            cur,
            &mut flaw,
            |cur| {
                let (this, facts) = &mut *this.borrow_mut();
                **facts = this.embedded.take(cur)?;
                Ok(())
            },
            |cur| {
                let (this, facts) = &mut *this.borrow_mut();
                match cur.byte() {
                    b'{' => found = Some(this.envelope(cur, **facts, guess)?),
                    b'n' => cur.literal("null")?,
                    _ => {
                        not_object = true;
                        cur.skip()?;
                    }
                }
                Ok(())
            },
        )?;
        if flaw.is_none() && not_object {
            flaw = Some(Flaw::new("not_an_object", "payload must be an object or null"));
        }
        match (flaw, found) {
            (Some(flaw), Some(mut envelope)) => {
                envelope.flaw = Some(flaw);
                Ok(Some(envelope))
            }
            (Some(flaw), None) => {
                cur.end()?;
                Err(invalid(flaw, None))
            }
            (None, None) => {
                cur.end()?;
                Ok(None)
            }
            (None, found) => Ok(found),
        }
    }

    /// Scans an envelope, reading its images with the shapes that recent rows had.
    #[inline]
    fn envelope<'a>(
        &mut self,
        cur: &mut Cursor<'a>,
        facts: u64,
        guess: &mut Guess,
    ) -> Result<Envelope<'a>, ScanError> {
        let Self { bench, before, tables, recent, options, .. } = self;
        bench.ctx.notes.clear();
        bench.ctx.expanded = 0;
        Envelope::read(cur, |which, envelope, cur| {
            let Some(at) = recent.iter().position(|s| s.facts == facts && s.begins_at(cur)) else {
                return false;
            };
            recent[..=at].rotate_right(1);
            let shape = &recent[0];
            let mut ahead = cur.clone();
            let result = match which {
                Which::Before if options.keep_before => {
                    // Kept only if it turns out to be a full image, which holds no placeholders.
                    bench.ctx.detect = false;
                    before.clear();
                    shape.read(&mut ahead, &mut bench.ctx, before)
                }
                Which::Before => shape.pass(&mut ahead),
                Which::After => {
                    let full = tables.get(shape.table).is_none_or(|t| t.full_identity);
                    bench.ctx.detect = !full && envelope.before.object.is_none();
                    bench.row.clear();
                    shape.read(&mut ahead, &mut bench.ctx, &mut bench.row)
                }
            };
            if result.is_err() {
                bench.ctx.notes.clear();
                return false;
            }
            *cur = ahead;
            let slot = if which == Which::Before { &mut guess.before } else { &mut guess.after };
            *slot = Some(shape.clone());
            true
        })
    }

    /// Decides what a scanned envelope is.
    fn judge(
        &mut self,
        record: &Record<'_>,
        mut envelope: Envelope<'_>,
        facts: u64,
        guess: &Guess,
    ) -> Result<Decoded, Refusal> {
        if let Some(flaw) = envelope.flaw.take() {
            return Err(invalid(flaw, envelope.source.as_ref().and_then(table_text)));
        }
        if let Some(kind) = envelope.control() {
            return Ok(Decoded::Control(Control { kind, ts_ms: envelope.control_ts_ms() }));
        }
        let Some(source) = &envelope.source else {
            let name = if envelope.op.is_some() { "source" } else { "op" };
            return Err(invalid(Flaw::new("missing_field", format!("{name} is missing")), None));
        };
        let table = self.table(source).map_err(|flaw| invalid(flaw, None))?;
        let result = self.event(record, &envelope, source, table, facts, guess);
        result.map_err(|flaw| invalid(flaw, self.tables.get(table).map(|t| t.qualified.clone())))
    }

    fn table(&mut self, source: &Source<'_>) -> Result<usize, Flaw> {
        let missing = || Flaw::new("missing_field", "source.table is missing");
        let table = source.table.ok_or_else(missing)?.decode();
        if table.is_empty() {
            return Err(missing());
        }
        let db = source.db.map(Str::decode).unwrap_or_default();
        let schema = source.schema.map(Str::decode).unwrap_or_default();
        Ok(self.tables.index((&db, &schema, &table), source.connector(), &self.options))
    }

    fn event(
        &mut self,
        record: &Record<'_>,
        envelope: &Envelope<'_>,
        source: &Source<'_>,
        table: usize,
        facts: u64,
        guess: &Guess,
    ) -> Result<Decoded, Flaw> {
        let missing = |name: &str| Flaw::new("missing_field", format!("{name} is missing"));
        let op = op_named(envelope.op.ok_or_else(|| missing("op"))?)?;
        let ts_ms = source.ts_ms.ok_or_else(|| missing("source.ts_ms"))?;
        let place = source.place(self.options.incarnation, op == Op::Read)?;
        let known = self.tables.get(table).ok_or_else(|| Flaw::new("internal", "the table is unknown"))?;
        if known.filtered {
            return Ok(Decoded::Control(Control { kind: ControlKind::Filtered, ts_ms: Some(ts_ms) }));
        }
        let (parts, full_before) = if op == Op::Truncate {
            (None, false)
        } else {
            let (parts, full) = self.parts(record, envelope, op, table, facts, guess)?;
            (Some(parts), full)
        };
        let empty = || self.tables.get(table).map(|t| t.empty.clone());
        let keep = self.options.keep_source;
        let transaction = envelope.transaction_id();
        let facts = Facts {
            ts_ms: Some(ts_ms),
            ts_us: Some(source.ts_us.unwrap_or(ts_ms.saturating_mul(1_000))),
            lsn: place.lsn,
            transaction_id: source.transaction_id(transaction.as_deref()),
            snapshot: source.snapshot,
            processed_ts_ms: envelope.ts_ms,
            processed_ts_us: envelope.ts_us.or(envelope.ts_ms.map(|ms| ms.saturating_mul(1_000))),
            source_json: keep.then(|| envelope.source_json.into()),
            transaction_json: envelope.transaction.filter(|_| keep).map(Into::into),
        };
        let (schema, row, before, key, old_key, new_key) = match parts {
            Some(p) => (p.schema, p.row, p.before, p.key, p.old_key, p.new_key),
            None => {
                let schema = empty().ok_or_else(|| Flaw::new("internal", "the table is unknown"))?;
                (schema, millstream_core::Row::default(), None, None, None, None)
            }
        };
        Ok(Decoded::Event(Event {
            schema,
            op,
            key,
            old_key,
            new_key,
            order: place.order,
            p_known: place.p_known,
            id: place.id,
            row,
            before,
            full_before,
            facts,
            origin: self.partition.origin(record),
            record: 0,
        }))
    }

    /// Row and keys, and whether the before-image is known to be full.
    fn parts(
        &mut self,
        record: &Record<'_>,
        envelope: &Envelope<'_>,
        op: Op,
        table: usize,
        facts: u64,
        guess: &Guess,
    ) -> Result<(Parts, bool), Flaw> {
        let known = self.tables.get(table).ok_or_else(|| Flaw::new("internal", "the table is unknown"))?;
        let configured = known.key.clone();
        let key = if configured.is_some() { Vec::new() } else { key_fields(record.key()) };
        let keyless = configured.as_ref().map_or(key.is_empty(), |columns| columns.is_empty());
        // PostgreSQL sends a before-image with an update only under REPLICA IDENTITY FULL, and can delete rows of
        // keyless tables only then.
        let shown = envelope.before.object.is_some() && (op == Op::Update || (op == Op::Delete && keyless));
        let full = known.full_identity || shown;
        let detect = !(known.full_identity || (op == Op::Update && shown));
        let (old_key, new_key) = key_headers(record);
        let guessed = self.fits(envelope, op, table, facts, guess, configured.is_some(), &key);
        if let Some(shape) = guessed.filter(|_| self.bench.ctx.detect == detect) {
            let kept = guess.before.is_some() && self.options.keep_before;
            let parts = self.finish(shape, configured.is_some(), kept, (&key, &old_key, &new_key))?;
            return Ok((parts, full));
        }
        let (image, name) = match op {
            Op::Delete => (&envelope.before, "before"),
            _ => (&envelope.after, "after"),
        };
        let mut image = members(image)?;
        if image.is_none() && op == Op::Delete {
            // Without an image the key alone tells what was deleted.
            image = Some(key_fields(record.key())).filter(|key| !key.is_empty());
        }
        let image = image.ok_or_else(|| Flaw::new("missing_field", format!("{name} is missing or null")))?;
        let before =
            if op == Op::Delete && !self.options.keep_before { None } else { members(&envelope.before)? };
        if let Some(fields) = &before {
            unique(fields)?;
        }
        let change = Change {
            table,
            facts: (facts, self.embedded.facts(facts).map(|f| f.row.as_slice()).unwrap_or_default()),
            image,
            key_only: op == Op::Delete && !full,
            before: before.filter(|_| self.options.keep_before),
            key,
            old_key,
            new_key,
            detect,
        };
        let result = assemble(&change, &mut self.tables, &mut self.bench, &self.options);
        // Learning replaces a table's shapes; the old ones must not be guessed again.
        let Self { recent, tables, .. } = self;
        recent.retain(|s| s.table != table || tables.get(table).is_some_and(|t| t.holds(s)));
        let parts = result?;
        if parts.shape.plain && !recent.iter().any(|s| Arc::ptr_eq(s, &parts.shape)) {
            recent.insert(0, parts.shape.clone());
            recent.truncate(RECENT_MAX);
        }
        Ok((parts, full))
    }

    /// The guessed shape, if everything that was read with it holds for this event.
    #[expect(clippy::too_many_arguments, reason = "each is one fact to compare with the guess")]
    fn fits<'g>(
        &self,
        envelope: &Envelope<'_>,
        op: Op,
        table: usize,
        facts: u64,
        guess: &'g Guess,
        configured: bool,
        key: &[RowField<'_>],
    ) -> Option<&'g Arc<Shape>> {
        let shape = guess.after.as_ref()?;
        let before = match (&envelope.before.object, &guess.before) {
            (None, _) => true,
            (Some(_), Some(before)) => Arc::ptr_eq(before, shape),
            (Some(_), None) => false,
        };
        let keyed = configured
            || (shape.schema.key.len() == key.len()
                && shape.schema.key_names().zip(key).all(|(name, field)| field.name.is(name)));
        let fits = op != Op::Delete
            && shape.table == table
            && shape.facts == facts
            && shape.plain
            && before
            && keyed;
        fits.then_some(shape)
    }

    /// Completes an event whose row was read by the guess.
    fn finish(
        &mut self,
        shape: &Arc<Shape>,
        configured: bool,
        kept: bool,
        (key, old_key, new_key): (&[RowField<'_>], &[RowField<'_>], &[RowField<'_>]),
    ) -> Result<Parts, Flaw> {
        let Bench { ctx, row, key: scratch } = &mut self.bench;
        let before = kept.then(|| Box::new(self.before.finish()));
        let row = row.finish();
        let refused = |_| {
            Flaw::new(
                "missing_key",
                "the key's columns have no value of their type in the row, key or headers",
            )
        };
        let key = if configured {
            configured_key(&row, &shape.schema.key)
        } else {
            key_of(shape, key, ctx, scratch)
        };
        let parts = Parts {
            schema: shape.schema.clone(),
            row,
            before,
            key: key.map_err(refused)?,
            old_key: key_of(shape, old_key, ctx, scratch).map_err(refused)?,
            new_key: key_of(shape, new_key, ctx, scratch).map_err(refused)?,
            shape: shape.clone(),
        };
        if !ctx.notes.is_empty()
            && let Some(table) = self.tables.get_mut(shape.table)
        {
            table.count(shape, &mut ctx.notes);
        }
        Ok(parts)
    }
}

/// The members of an image that is there.
fn members<'a>(image: &Image<'a>) -> Result<Option<Vec<RowField<'a>>>, Flaw> {
    match image.object {
        Some(text) => fields(&mut Cursor::new(text, image.depth)).map(Some).map_err(rescanned),
        None => Ok(None),
    }
}

fn unique(fields: &[RowField<'_>]) -> Result<(), Flaw> {
    let mut seen: HashSet<Cow<'_, str>> = HashSet::with_capacity(fields.len());
    match fields.iter().find(|field| !seen.insert(field.name.decode())) {
        None => Ok(()),
        Some(_) => Err(Flaw::new("duplicate_field", "before has a column twice")),
    }
}

/// Members of the headers that tell the other key of a key change: (old, new).
pub(crate) fn key_headers<'a>(record: &Record<'a>) -> (Vec<RowField<'a>>, Vec<RowField<'a>>) {
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for header in record.headers() {
        match header.name {
            b"__debezium.oldkey" => old = key_fields(Some(header.value)),
            b"__debezium.newkey" => new = key_fields(Some(header.value)),
            _ => {}
        }
    }
    (old, new)
}

fn op_named(op: Str<'_>) -> Result<Op, Flaw> {
    match &*op.decode() {
        "r" => Ok(Op::Read),
        "c" => Ok(Op::Create),
        "u" => Ok(Op::Update),
        "d" => Ok(Op::Delete),
        "t" => Ok(Op::Truncate),
        _ => Err(Flaw::new("unknown_op", "op is none of r, c, u, d, t, m")),
    }
}

/// `schema.table`, for a refusal.
fn table_text(source: &Source<'_>) -> Option<String> {
    let part = |text: Option<Str<'_>>| text.map(Str::decode).unwrap_or_default().into_owned();
    let name = millstream_core::TableName::new(&part(source.db), &part(source.schema), &part(source.table));
    (!name.table.is_empty()).then(|| name.qualified())
}
