//! Debezium's envelope format, bare or beside its schema.
//!
//! A row is read while the envelope is scanned, with the shape that the last rows beginning alike had; only `source`,
//! which comes later, tells whether the guess was right. A wrong guess costs a second reading and nothing else: it
//! leaves no trace in types or counters.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use millstream_core::decoder::{Control, ControlKind, DecodeNotice, Refusal};
use millstream_core::{Decoded, Decoder, Event, Facts, Op, Record, RowBuilder, TableName};

use crate::change::{Bench, Change, Parts, assemble, configured_key};
use crate::embedded::Embedded;
use crate::envelope::{Envelope, Flaw, Image, Shortcuts, Which};
use crate::frame::{Framed, PartitionHash, Wrapper, invalid, is_wrapped, open, rescanned};
use crate::key::{key_fields, key_of};
use crate::message;
use crate::moment::{Moment, control_ms};
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
    before: RowBuilder,
    tables: Tables,
    embedded: Embedded,
    recent: Vec<Arc<Shape>>,
    partition: PartitionHash,
}

/// What was read with guessed shapes while the envelope was scanned: places in the list of recent shapes.
#[derive(Debug, Default, Clone, Copy)]
struct Guess {
    before: Option<usize>,
    after: Option<usize>,
}

/// Reads rows and source blocks as the last ones of their kind were read.
struct Guesser<'d> {
    bench: &'d mut Bench,
    before: &'d mut RowBuilder,
    tables: &'d Tables,
    recent: &'d [Arc<Shape>],
    keep_before: bool,
    facts: u64,
    guess: Guess,
}

impl<'a> Shortcuts<'a> for Guesser<'_> {
    #[inline]
    fn image(&mut self, which: Which, before: bool, cur: &mut Cursor<'a>) -> bool {
        let Some(at) = self.recent.iter().position(|s| s.facts == self.facts && s.begins_at(cur)) else {
            return false;
        };
        let shape = &self.recent[at];
        let ctx = &mut self.bench.ctx;
        let mut ahead = cur.clone();
        let result = match which {
            Which::Before => {
                // Only a full image is used beyond its key, and that holds no placeholders.
                ctx.detect = false;
                self.before.clear();
                if self.keep_before || self.tables.get(shape.table).is_some_and(|t| t.full_identity) {
                    shape.read(&mut ahead, ctx, self.before)
                } else {
                    shape.read_key(&mut ahead, ctx, self.before)
                }
            }
            Which::After => {
                if !self.keep_before {
                    // An image that is not kept counts for nothing.
                    ctx.notes.clear();
                }
                ctx.detect = !before && self.tables.get(shape.table).is_some_and(|t| !t.full_identity);
                self.bench.row.clear();
                shape.read(&mut ahead, ctx, &mut self.bench.row)
            }
        };
        if result.is_err() {
            ctx.notes.clear();
            return false;
        }
        *cur = ahead;
        match which {
            Which::Before => self.guess.before = Some(at),
            Which::After => self.guess.after = Some(at),
        }
        true
    }

    #[inline]
    fn source(&mut self, cur: &mut Cursor<'a>) -> Option<Source<'a>> {
        let table = match self.guess.after.or(self.guess.before) {
            Some(at) => self.tables.get(self.recent[at].table),
            None => self.tables.last(),
        };
        table?.template()?.read(cur)
    }
}

impl Decoder for Debezium {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>) {
        if let Err(refusal) = self.record(record, out) {
            out.push(Decoded::Dead(refusal));
        }
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
            before: RowBuilder::new(),
            tables: Tables::default(),
            embedded: Embedded::default(),
            recent: Vec::new(),
            partition: PartitionHash::default(),
        }
    }

    fn record(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>) -> Result<(), Refusal> {
        let text = match open(record, &self.options)? {
            Framed::Control(control) => {
                out.push(Decoded::Control(control));
                return Ok(());
            }
            Framed::Text(text) => text,
        };
        let mut cur = Cursor::new(text, 0);
        cur.space();
        if !is_wrapped(&cur) {
            let (envelope, guess) = self.envelope(&mut cur, 0)?;
            cur.end()?;
            return self.judge(record, &envelope, 0, guess, out);
        }
        let (mut facts, mut found, mut flaw) = (0, None, None);
        self.wrapped(&mut cur, &mut facts, &mut found, &mut flaw)?;
        cur.end()?;
        match (flaw, found) {
            (Some(flaw), _) => Err(invalid(flaw, None)),
            (None, Some((envelope, guess))) => self.judge(record, &envelope, facts, guess, out),
            (None, None) => {
                out.push(Decoded::Control(Control { kind: ControlKind::Tombstone, ts_ms: None }));
                Ok(())
            }
        }
    }

    /// Reads a wrapper; nothing is found if its payload is null.
    #[inline]
    fn wrapped<'a>(
        &mut self,
        cur: &mut Cursor<'a>,
        facts: &mut u64,
        found: &mut Option<(Envelope<'a>, Guess)>,
        flaw: &mut Option<Flaw>,
    ) -> Result<(), ScanError> {
        let mut not_object = false;
        // Both closures need the decoder, one after the other.
        let this = std::cell::RefCell::new((self, facts));
        Wrapper::walk(
            cur,
            flaw,
            |cur| {
                let (this, facts) = &mut *this.borrow_mut();
                **facts = this.embedded.take(cur)?;
                Ok(())
            },
            |cur| {
                let (this, facts) = &mut *this.borrow_mut();
                match cur.byte() {
                    b'{' => *found = Some(this.envelope(cur, **facts)?),
                    b'n' => cur.literal("null")?,
                    _ => {
                        not_object = true;
                        cur.skip()?;
                    }
                }
                Ok(())
            },
        )?;
        if not_object {
            Flaw::note(flaw, || Flaw::new("not_an_object", "payload must be an object or null"));
        }
        Ok(())
    }

    /// Scans an envelope, reading its images with the shapes that recent rows had.
    #[inline]
    fn envelope<'a>(&mut self, cur: &mut Cursor<'a>, facts: u64) -> Result<(Envelope<'a>, Guess), ScanError> {
        let Self { bench, before, tables, recent, options, .. } = self;
        bench.ctx.notes.clear();
        bench.ctx.expanded = 0;
        let keep_before = options.keep_before;
        let guess = Guess::default();
        let mut guesser = Guesser { bench, before, tables, recent, keep_before, facts, guess };
        let envelope = Envelope::read(cur, &mut guesser)?;
        Ok((envelope, guesser.guess))
    }

    /// Decides what a scanned envelope is.
    #[inline]
    fn judge<'a>(
        &mut self,
        record: &Record<'a>,
        envelope: &Envelope<'a>,
        facts: u64,
        guess: Guess,
        out: &mut Vec<Decoded>,
    ) -> Result<(), Refusal> {
        if let Some(flaw) = &envelope.flaw {
            return Err(invalid(flaw.clone(), self.qualified(envelope)));
        }
        if let Some(kind) = envelope.control() {
            let Self { options, tables, partition, .. } = self;
            out.push(message::settle(kind, record, envelope, options, tables, partition)?);
            return Ok(());
        }
        let Some(source) = &envelope.source else {
            let name = if envelope.op.is_some() { "source" } else { "op" };
            return Err(invalid(Flaw::new("missing_field", format!("{name} is missing")), None));
        };
        let table = self.table(source, envelope.source_json).map_err(|flaw| invalid(flaw, None))?;
        let result = self.event(record, envelope, source, table, facts, guess, out);
        result.map_err(|flaw| invalid(flaw, self.tables.get(table).map(|t| t.qualified.clone())))
    }

    /// `schema.table`, for a refusal.
    #[cold]
    fn qualified(&self, envelope: &Envelope<'_>) -> Option<String> {
        let source = envelope.source.as_ref()?;
        if let Some((_, table)) = source.known {
            return self.tables.get(table).map(|t| t.qualified.clone());
        }
        let part = |text: Option<Str<'_>>| text.map(Str::decode).unwrap_or_default().into_owned();
        let name = TableName::new(&part(source.db), &part(source.schema), &part(source.table));
        (!name.table.is_empty()).then(|| name.qualified())
    }

    #[inline]
    fn table(&mut self, source: &Source<'_>, json: &str) -> Result<usize, Flaw> {
        if let Some((_, table)) = source.known {
            return Ok(table);
        }
        let missing = || Flaw::new("missing_field", "source.table is missing");
        let table = source.table.ok_or_else(missing)?.decode();
        if table.is_empty() {
            return Err(missing());
        }
        let db = source.db.map(Str::decode).unwrap_or_default();
        let schema = source.schema.map(Str::decode).unwrap_or_default();
        let connector = source.connector();
        let index = self.tables.index((&db, &schema, &table), connector, &self.options);
        if let Some(table) = self.tables.get_mut(index) {
            table.learn_template(json, connector, index);
        }
        Ok(index)
    }

    #[expect(clippy::too_many_arguments, reason = "an event is made of all of them")]
    #[inline]
    fn event<'a>(
        &mut self,
        record: &Record<'a>,
        envelope: &Envelope<'a>,
        source: &Source<'_>,
        table: usize,
        facts: u64,
        guess: Guess,
        out: &mut Vec<Decoded>,
    ) -> Result<(), Flaw> {
        let missing = |name: &str| Flaw::new("missing_field", format!("{name} is missing"));
        let op = op_named(envelope.op.ok_or_else(|| missing("op"))?)?;
        let ts_ms = source.ts_ms.ok_or_else(|| missing("source.ts_ms"))?;
        let place = source.place(self.options.incarnation, op == Op::Read)?;
        let known = self.tables.get(table).ok_or_else(unknown_table)?;
        if known.filtered {
            let ts_ms = control_ms(Some(ts_ms));
            out.push(Decoded::Control(Control { kind: ControlKind::Filtered, ts_ms }));
            return Ok(());
        }
        let policy = self.options.out_of_range;
        let known = self.tables.get_mut(table).ok_or_else(unknown_table)?;
        let moment = Moment::new("source.ts_ms", (Some(ts_ms), source.ts_us), policy, known)?;
        let processed = Moment::new("ts_ms", (envelope.ts_ms, envelope.ts_us), policy, known)?;
        let (parts, full_before) = if op == Op::Truncate {
            (Parts::empty(known.empty.clone()), false)
        } else {
            self.parts(record, envelope, op, table, facts, guess)?
        };
        parts.check_keys()?;
        let keep = self.options.keep_source;
        let transaction = envelope.transaction_id();
        out.push(Decoded::Event(Box::new(Event {
            schema: parts.schema,
            op,
            key: parts.key,
            old_key: parts.old_key,
            new_key: parts.new_key,
            order: place.order,
            p_known: place.p_known,
            id: place.id,
            row: parts.row,
            before: parts.before,
            full_before,
            facts: Facts {
                ts_ms: moment.ms,
                ts_us: moment.us,
                lsn: place.lsn,
                transaction_id: source.transaction_id(transaction.as_deref()),
                snapshot: source.snapshot,
                processed_ts_ms: processed.ms,
                processed_ts_us: processed.us,
                source_json: keep.then(|| envelope.source_json.into()),
                transaction_json: envelope.transaction.filter(|_| keep).map(Into::into),
            },
            origin: self.partition.origin(record),
            record: 0,
        })));
        Ok(())
    }

    /// Row and keys, and whether the before-image is known to be full.
    #[inline]
    fn parts<'a>(
        &mut self,
        record: &Record<'a>,
        envelope: &Envelope<'a>,
        op: Op,
        table: usize,
        facts: u64,
        guess: Guess,
    ) -> Result<(Parts, bool), Flaw> {
        let known = self.tables.get(table).ok_or_else(unknown_table)?;
        let configured = known.key.is_some();
        let key = if configured { Vec::new() } else { key_fields(record.key()) };
        let keyless = known.key.as_ref().map_or(key.is_empty(), |columns| columns.is_empty());
        // PostgreSQL sends a before-image with an update only under REPLICA IDENTITY FULL, and can delete rows of
        // keyless tables only then.
        let shown = envelope.before.object.is_some() && (op == Op::Update || (op == Op::Delete && keyless));
        let full = known.full_identity || shown;
        let detect = !(known.full_identity || (op == Op::Update && shown));
        let (old_key, new_key) = key_headers(record);
        let guessed = self.fits(envelope, op, table, facts, guess, configured, &key);
        if let Some(at) = guessed.filter(|_| self.bench.ctx.detect == detect) {
            let kept = guess.before.is_some() && self.options.keep_before;
            let parts = self.finish(at, configured, kept, (&key, &old_key, &new_key))?;
            return Ok((parts, full));
        }
        if let (Op::Delete, Some(at)) = (op, guess.before)
            && let Some(parts) = self.delete(at, table, facts, full, configured, (&old_key, &new_key))?
        {
            return Ok((parts, full));
        }
        self.slowly(Slow { record, envelope, op, table, facts, full, detect }, key, old_key, new_key)
    }

    /// The same without a guess.
    #[inline(never)]
    fn slowly<'a>(
        &mut self,
        Slow { record, envelope, op, table, facts, full, detect }: Slow<'a, '_>,
        key: Vec<RowField<'a>>,
        old_key: Vec<RowField<'a>>,
        new_key: Vec<RowField<'a>>,
    ) -> Result<(Parts, bool), Flaw> {
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
        if let Some(shape) = parts.shape.as_ref().filter(|shape| shape.plain)
            && !recent.iter().any(|s| Arc::ptr_eq(s, shape))
        {
            recent.insert(0, shape.clone());
            recent.truncate(RECENT_MAX);
        }
        Ok((parts, full))
    }

    /// The place of the guessed shape, if everything that was read with it holds for this event.
    #[expect(clippy::too_many_arguments, reason = "each is one fact to compare with the guess")]
    #[inline]
    fn fits(
        &self,
        envelope: &Envelope<'_>,
        op: Op,
        table: usize,
        facts: u64,
        guess: Guess,
        configured: bool,
        key: &[RowField<'_>],
    ) -> Option<usize> {
        let at = guess.after?;
        let shape = self.recent.get(at)?;
        let before = envelope.before.object.is_none() || guess.before == Some(at);
        let keyed = configured
            || (shape.schema.key.len() == key.len()
                && shape.schema.key_names().zip(key).all(|(name, field)| field.name.is(name)));
        let fits = op != Op::Delete
            && shape.table == table
            && shape.facts == facts
            && shape.plain
            && before
            && keyed;
        fits.then_some(at)
    }

    /// Completes a delete by the configured key whose image was read by the guess; `None` if the guess does not hold.
    fn delete(
        &mut self,
        at: usize,
        table: usize,
        facts: u64,
        full: bool,
        configured: bool,
        (old_key, new_key): (&[RowField<'_>], &[RowField<'_>]),
    ) -> Result<Option<Parts>, Flaw> {
        let shape = &self.recent[at];
        // Images under a full identity were read whole only if that is known of the table, or they are to be kept.
        let whole = self.options.keep_before || self.tables.get(table).is_some_and(|t| t.full_identity);
        if !configured || shape.table != table || shape.facts != facts || !shape.plain || whole != full {
            return Ok(None);
        }
        let shape = first(&mut self.recent, at);
        let Bench { ctx, key: scratch, .. } = &mut self.bench;
        let row = self.before.finish();
        if let Some(table) = self.tables.get_mut(table) {
            table.count(shape, &mut ctx.notes);
        }
        let missing = |_| Flaw::new("missing_key", "the configured key's columns have no value in before");
        Ok(Some(Parts {
            schema: shape.schema.clone(),
            before: self.options.keep_before.then(|| Box::new(row.clone())),
            key: configured_key(&row, &shape.schema.key, &mut ctx.bytes).map_err(missing)?,
            old_key: key_of(shape, old_key, ctx, scratch).map_err(missing)?,
            new_key: key_of(shape, new_key, ctx, scratch).map_err(missing)?,
            row,
            shape: None,
        }))
    }

    /// Completes an event whose row was read by the guess.
    #[inline]
    fn finish(
        &mut self,
        at: usize,
        configured: bool,
        kept: bool,
        (key, old_key, new_key): (&[RowField<'_>], &[RowField<'_>], &[RowField<'_>]),
    ) -> Result<Parts, Flaw> {
        let shape = first(&mut self.recent, at);
        let Bench { ctx, row, key: scratch } = &mut self.bench;
        let before = kept.then(|| Box::new(self.before.finish()));
        let row = row.finish();
        if !ctx.notes.is_empty()
            && let Some(table) = self.tables.get_mut(shape.table)
        {
            table.count(shape, &mut ctx.notes);
        }
        let refused = |_| {
            Flaw::new(
                "missing_key",
                "the key's columns have no value of their type in the row, key or headers",
            )
        };
        let key = if configured {
            configured_key(&row, &shape.schema.key, &mut ctx.bytes)
        } else {
            key_of(shape, key, ctx, scratch)
        };
        Ok(Parts {
            schema: shape.schema.clone(),
            row,
            before,
            key: key.map_err(refused)?,
            old_key: key_of(shape, old_key, ctx, scratch).map_err(refused)?,
            new_key: key_of(shape, new_key, ctx, scratch).map_err(refused)?,
            shape: None,
        })
    }
}

/// Moves the shape at `at` to the front: tables take turns, and the one at hand is looked for first next time.
#[inline]
fn first(recent: &mut [Arc<Shape>], at: usize) -> &Arc<Shape> {
    if at > 0 {
        recent[..=at].rotate_right(1);
    }
    &recent[0]
}

/// What decides how an event is read without a guess.
struct Slow<'a, 'e> {
    record: &'e Record<'a>,
    envelope: &'e Envelope<'a>,
    op: Op,
    table: usize,
    facts: u64,
    full: bool,
    detect: bool,
}

#[cold]
fn unknown_table() -> Flaw {
    Flaw::new("internal", "the table is unknown")
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
