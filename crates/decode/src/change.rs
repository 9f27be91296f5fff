//! From the members of row images to rows, keys and their schema: the part that all formats share.

use std::borrow::Cow;
use std::sync::Arc;

use millstream_core::{Key, Row, RowBuilder, RowSchema, Value};

use crate::codec::{Ctx, Fail, Learned};
use crate::connect_schema::ColumnFact;
use crate::envelope::Flaw;
use crate::key::key_of;
use crate::options::Options;
use crate::plan::{COLUMNS_MAX, RowField, Shape, find};
use crate::table::{ShapeError, Tables};

/// One change, taken apart.
#[derive(Debug)]
pub(crate) struct Change<'a, 'f> {
    /// Index of the table.
    pub(crate) table: usize,
    /// Id and column facts of the embedded schema.
    pub(crate) facts: (u64, &'f [ColumnFact]),
    /// The image that becomes the row: `after`, or for a delete `before`; empty if there is none.
    pub(crate) image: Vec<RowField<'a>>,
    /// Whether only the image's key columns are true (a delete under a partial replica identity).
    pub(crate) key_only: bool,
    /// The before-image that the event keeps.
    pub(crate) before: Option<Vec<RowField<'a>>>,
    /// The message key's members.
    pub(crate) key: Vec<RowField<'a>>,
    /// Members of the key headers.
    pub(crate) old_key: Vec<RowField<'a>>,
    pub(crate) new_key: Vec<RowField<'a>>,
    /// Whether placeholders stand for unchanged values.
    pub(crate) detect: bool,
}

/// What a change became.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) schema: Arc<RowSchema>,
    pub(crate) row: Row,
    pub(crate) before: Option<Box<Row>>,
    pub(crate) key: Option<Key>,
    pub(crate) old_key: Option<Key>,
    pub(crate) new_key: Option<Key>,
    /// For the next row that looks like this one.
    pub(crate) shape: Option<Arc<Shape>>,
}

impl Parts {
    /// Those of an event without row and key.
    pub(crate) fn empty(schema: Arc<RowSchema>) -> Self {
        Self {
            schema,
            row: Row::default(),
            before: None,
            key: None,
            old_key: None,
            new_key: None,
            shape: None,
        }
    }

    /// Refuses keys that state could not hold.
    pub(crate) fn check_keys(&self) -> Result<(), Flaw> {
        check_keys([&self.key, &self.old_key, &self.new_key].into_iter().flatten())
    }
}

/// Refuses keys that state could not hold. No index of a database has keys this long: PostgreSQL's end at 2.7 KB.
pub(crate) fn check_keys<'k>(keys: impl Iterator<Item = &'k Key>) -> Result<(), Flaw> {
    match keys.map(|key| key.as_bytes().len()).max() {
        Some(len) if len > KEY_BYTES_MAX => Err(Flaw::new(
            "key_too_long",
            format!(
                "the key has {len} bytes, and {KEY_BYTES_MAX} are allowed: set another `key` for the table"
            ),
        )),
        _ => Ok(()),
    }
}

/// Bytes of a key in its canonical form.
const KEY_BYTES_MAX: usize = 32 << 10;

/// The buffers that reading rows needs.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) ctx: Ctx,
    pub(crate) row: RowBuilder,
    pub(crate) key: RowBuilder,
}

impl Bench {
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self { ctx: Ctx::new(options), row: RowBuilder::new(), key: RowBuilder::new() }
    }
}

/// Times that one record's values may widen columns, each of which reads the row anew. A new table's columns are learned
/// together and count once.
const WIDENINGS_MAX: usize = 1_000;

/// Reads a change, widening columns as its values demand.
pub(crate) fn assemble(
    change: &Change<'_, '_>,
    tables: &mut Tables,
    bench: &mut Bench,
    options: &Options,
) -> Result<Parts, Flaw> {
    let table = tables.get_mut(change.table).ok_or_else(|| Flaw::new("internal", "the table is unknown"))?;
    let configured = table.key.clone();
    // What follows compares names of images and key with each other.
    let widest = change.before.iter().flatten().count().max(change.image.len());
    if widest > COLUMNS_MAX {
        return Err(shape_flaw(ShapeError::TooMany));
    }
    let keys: Vec<Cow<'_, str>> = match configured {
        Some(_) => Vec::new(),
        None => change.key.iter().map(|f| f.name.decode()).collect(),
    };
    let extra = extra_columns(change, &keys);
    for _ in 0..WIDENINGS_MAX {
        let shape = table
            .shape(change.table, change.facts, &change.image, &extra, &keys, options)
            .map_err(shape_flaw)?;
        bench.ctx.notes.clear();
        bench.ctx.expanded = 0;
        // What a delete tells of its key is never a placeholder.
        bench.ctx.detect = change.detect && !change.key_only;
        match read(change, &shape, configured.is_some(), bench) {
            Ok(parts) => {
                table.count(&shape, &mut bench.ctx.notes);
                return Ok(parts);
            }
            Err(Fail::Widen(learned)) => {
                let column = &shape.columns[bench.ctx.column].name;
                let news = table.learn(column, learned);
                if matches!(learned, Learned::Kind(_)) && !change.key_only {
                    let detect = change.detect.then_some(&bench.ctx.placeholder);
                    table.learn_row(&shape, &change.image, detect);
                }
                if !news {
                    return Err(Flaw::new(
                        "wrong_type",
                        format!("column {column} has a value of no kind known"),
                    ));
                }
            }
            Err(fail) => return Err(value_flaw(fail, &shape, bench.ctx.column)),
        }
    }
    // What was learned stays, so that the record may pass when it is replayed.
    Err(Flaw::new("too_large", "the row's values widen more columns than one record may"))
}

/// Columns that the row's own image lacks: of the kept before-image, then of the key.
fn extra_columns<'a>(change: &Change<'a, '_>, keys: &[Cow<'a, str>]) -> Vec<Cow<'a, str>> {
    let mut extra: Vec<Cow<'a, str>> = Vec::new();
    let mut next = 0;
    for field in change.before.iter().flatten() {
        let name = field.name.decode();
        if find(&change.image, &mut next, &name).is_none() {
            extra.push(name);
        }
    }
    for name in keys {
        next = 0;
        if find(&change.image, &mut next, name).is_none() && !extra.contains(name) {
            extra.push(name.clone());
        }
    }
    extra
}

fn read(
    change: &Change<'_, '_>,
    shape: &Arc<Shape>,
    configured: bool,
    bench: &mut Bench,
) -> Result<Parts, Fail> {
    let Bench { ctx, row: builder, key: scratch } = bench;
    let key_columns = &shape.schema.key;
    let wanted = |index: usize| !change.key_only || (configured && key_columns.contains(&index));
    let mut row = shape.fill(&change.image, wanted, ctx, builder)?;
    let key = if configured {
        configured_key(&row, key_columns, &mut ctx.bytes)?
    } else {
        let key = key_of(shape, &change.key, ctx, scratch)?;
        if key.is_some() && (change.key_only || !shape.plain) {
            row = with_key(&row, shape, change, ctx, builder, scratch)?;
        }
        key
    };
    let before = match &change.before {
        Some(_) if change.key_only => Some(Box::new(row.clone())),
        // A before-image is only kept where it holds true values.
        Some(fields) => {
            let detect = std::mem::replace(&mut ctx.detect, false);
            let before = shape.fill(fields, |_| true, ctx, builder);
            ctx.detect = detect;
            Some(Box::new(before?))
        }
        None => None,
    };
    Ok(Parts {
        schema: shape.schema.clone(),
        row,
        before,
        key,
        old_key: key_of(shape, &change.old_key, ctx, scratch)?,
        new_key: key_of(shape, &change.new_key, ctx, scratch)?,
        shape: Some(shape.clone()),
    })
}

/// The key by the config's columns. All NULL is no key: it means that the columns are not there.
pub(crate) fn configured_key(
    row: &Row,
    columns: &[usize],
    scratch: &mut Vec<u8>,
) -> Result<Option<Key>, Fail> {
    if columns.is_empty() {
        return Ok(None);
    }
    let mut void = true;
    for &column in columns {
        match row.get(column) {
            Value::Unchanged => return Err(MISSING),
            Value::Null => {}
            _ => void = false,
        }
    }
    if void {
        return Err(MISSING);
    }
    Ok(Some(Key::from_values_in(scratch, columns.iter().map(|&column| row.get(column)))))
}

const MISSING: Fail = Fail::Bad("missing_key", "a value: it is the configured key");

/// The row with the message key's values in its key columns.
fn with_key(
    row: &Row,
    shape: &Shape,
    change: &Change<'_, '_>,
    ctx: &mut Ctx,
    builder: &mut RowBuilder,
    scratch: &mut RowBuilder,
) -> Result<Row, Fail> {
    let detect = std::mem::replace(&mut ctx.detect, false);
    let keys = shape.fill(&change.key, |index| shape.schema.key.contains(&index), ctx, scratch);
    ctx.detect = detect;
    let keys = keys?;
    builder.clear();
    for (index, value) in row.iter().enumerate() {
        let from_key = shape.schema.key.contains(&index)
            && (change.key_only || !change.image.iter().any(|f| f.name.is(&shape.columns[index].name)));
        builder.push(if from_key { keys.get(index) } else { value });
    }
    Ok(builder.finish())
}

fn shape_flaw(error: ShapeError) -> Flaw {
    match error {
        ShapeError::Duplicate(name) => {
            Flaw::new("duplicate_field", format!("the row has the column {name} twice"))
        }
        ShapeError::MissingKey(name) => {
            Flaw::new("missing_key", format!("the row lacks the column {name} of the configured key"))
        }
        ShapeError::TooMany => Flaw::new("too_large", "the row has more than 10 000 columns"),
    }
}

fn value_flaw(fail: Fail, shape: &Shape, column: usize) -> Flaw {
    let name = shape.columns.get(column).map_or("?", |c| &*c.name);
    match fail {
        Fail::Bad("missing_key", _) => {
            Flaw::new("missing_key", "the configured key's columns have no value in this row")
        }
        Fail::Bad(code, what) => Flaw::new(code, format!("column {name}: expected {what}")),
        // The images were scanned before, so none of these can be.
        Fail::Scan(_) | Fail::Shape | Fail::Widen(_) => {
            Flaw::new("internal", format!("column {name} could not be read"))
        }
    }
}
