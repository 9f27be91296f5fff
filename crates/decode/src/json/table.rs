//! A table as it was declared: its columns, and how a message's members become a row of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use millstream_core::decoder::DecodeNotice;
use millstream_core::{Column, Error, Key, Result, Row, RowBuilder, RowSchema, TableName, Type};

use crate::change::{check_keys, configured_key};
use crate::codec::decimal::DecimalForm;
use crate::codec::temporal::Unit;
use crate::codec::{Codec, Ctx, Fail, OUT_OF_RANGE};
use crate::envelope::Flaw;
use crate::hint;
use crate::options::{Options, TableHints, UnknownFields};
use crate::plan::{COLUMNS_MAX, PlanColumn, RowField, Shape};
use crate::scan::{Cursor, Str};

/// Unknown members that are counted by name; a message may have any number of them.
const NAMES_MAX: usize = 100;
/// Characters of an unknown member's name that are shown.
const NAME_CHARS_MAX: usize = 60;

/// A declared table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) qualified: String,
    pub(crate) schema: Arc<RowSchema>,
    shape: Shape,
    places: HashMap<Box<str>, usize>,
    /// Columns that must have a value.
    required: Vec<usize>,
    notices: BTreeMap<(&'static str, Box<str>), u64>,
    /// The members that have notices of their own.
    unknown: usize,
}

/// A row and its key.
pub(crate) struct Read {
    pub(crate) row: Row,
    pub(crate) key: Option<Key>,
}

impl Table {
    /// The table `schema.table` of these columns.
    ///
    /// # Errors
    /// If its key names a column that is not declared, or it has too many columns.
    pub(crate) fn new(qualified: &str, hints: &TableHints, options: &Options) -> Result<Self> {
        if hints.columns.len() > COLUMNS_MAX {
            return Err(Error::fatal(format!("table {qualified}: more than {COLUMNS_MAX} columns")));
        }
        let (schema, table) = qualified.split_once('.').unwrap_or(("", qualified));
        let mut columns = Vec::with_capacity(hints.columns.len());
        let mut plan = Vec::with_capacity(hints.columns.len());
        for (at, (name, hint)) in hints.columns.iter().enumerate() {
            let codec = plain(hint::codec(hint, options.modes));
            let (ty, nullable) = (codec.ty(), hint.nullable);
            columns.push(Column { name: name.as_str().into(), ty, nullable, guessed: false });
            plan.push(PlanColumn::new(at, name, codec));
        }
        let undeclared = |name: &String| {
            Error::fatal(format!("table {qualified}: its key names the column {name}, which is not declared"))
        };
        let place = |name: &String| hints.columns.get_index_of(name).ok_or_else(|| undeclared(name));
        let key = hints.key.iter().flatten().map(place).collect::<Result<_>>()?;
        let schema = RowSchema { table: Arc::new(TableName::new("", schema, table)), columns, key };
        let schema = Arc::new(schema);
        Ok(Self {
            qualified: qualified.to_owned(),
            places: (0..).zip(hints.columns.keys()).map(|(at, name)| (name.as_str().into(), at)).collect(),
            required: (0..schema.columns.len()).filter(|&at| !schema.columns[at].nullable).collect(),
            shape: Shape { table: 0, facts: 0, columns: plan.into(), schema: schema.clone(), plain: true },
            schema,
            notices: BTreeMap::new(),
            unknown: 0,
        })
    }

    /// The row of the object at the cursor if its members are just the columns in their order; `None` for any other, and for
    /// one that is no good, of which reading its members tells what is wrong.
    pub(crate) fn read_whole(
        &mut self,
        cur: &Cursor<'_>,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Option<Read> {
        begin(ctx, out);
        let mut cur = cur.clone();
        self.shape.read(&mut cur, ctx, out).ok()?;
        cur.end().ok()?;
        self.finish(out.finish(), ctx).ok()
    }

    /// The row of an object's members. `aside` is the one that told the table, which need be no column.
    pub(crate) fn read(
        &mut self,
        fields: &[RowField<'_>],
        aside: Option<&str>,
        unknown: UnknownFields,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<Read, Flaw> {
        if fields.len() > COLUMNS_MAX {
            return Err(Flaw::new("too_large", format!("the object has more than {COLUMNS_MAX} members")));
        }
        begin(ctx, out);
        let mut found: Vec<Option<&RowField<'_>>> = vec![None; self.shape.columns.len()];
        let mut next = 0;
        for field in fields {
            match self.place(field.name, next) {
                Some(at) => {
                    if found[at].replace(field).is_some() {
                        let name = &self.schema.columns[at].name;
                        return Err(Flaw::new("duplicate_field", format!("the object has {name} twice")));
                    }
                    next = at + 1;
                }
                None if aside.is_some_and(|aside| field.name.is(aside)) => {}
                None if unknown == UnknownFields::Ignore => self.count_unknown(field.name),
                None => {
                    let name = shown(&field.name.decode());
                    let text = format!(
                        "the table has no column {name}: declare it, or set `unknown_fields: ignore`"
                    );
                    return Err(Flaw::new("unknown_field", text));
                }
            }
        }
        for (at, (column, field)) in self.shape.columns.iter().zip(found).enumerate() {
            ctx.column = at;
            match field {
                Some(field) => {
                    column.codec.decode(&mut field.cursor(), ctx, out).map_err(|fail| self.flaw(fail, at))?
                }
                None => out.push(millstream_core::Value::Null),
            }
        }
        self.finish(out.finish(), ctx)
    }

    /// Drains the counts of values and members that were replaced or left out.
    pub(crate) fn notices(&mut self) -> impl Iterator<Item = DecodeNotice> {
        let table = self.qualified.clone();
        std::mem::take(&mut self.notices).into_iter().map(move |((code, column), count)| DecodeNotice {
            code,
            table: table.clone(),
            column: column.into(),
            count,
        })
    }

    /// The column of that name; most members come in the order of the columns.
    fn place(&self, name: Str<'_>, next: usize) -> Option<usize> {
        match self.shape.columns.get(next) {
            Some(column) if name.is(&column.name) => Some(next),
            _ => self.places.get(&*name.decode()).copied(),
        }
    }

    fn count_unknown(&mut self, name: Str<'_>) {
        let mut name: Cow<'_, str> = shown(&name.decode()).into();
        let code = "unknown_field";
        // Names may be without end: those seen late are counted together.
        if !self.notices.contains_key(&(code, (*name).into())) {
            if self.unknown >= NAMES_MAX {
                name = "(others)".into();
            } else {
                self.unknown += 1;
            }
        }
        *self.notices.entry((code, name.into())).or_default() += 1;
    }

    fn finish(&mut self, row: Row, ctx: &mut Ctx) -> Result<Read, Flaw> {
        if let Some(&at) = self.required.iter().find(|&&at| row.get(at).is_null()) {
            let name = &self.schema.columns[at].name;
            return Err(Flaw::new("missing_field", format!("column {name} is required, and has no value")));
        }
        let key =
            configured_key(&row, &self.schema.key, &mut ctx.bytes).map_err(|fail| self.flaw(fail, 0))?;
        check_keys(key.iter())?;
        for (column, code) in ctx.notes.drain(..) {
            let name = self.schema.columns.get(column).map(|c| c.name.clone()).unwrap_or_default();
            *self.notices.entry((code, name)).or_default() += 1;
        }
        Ok(Read { row, key })
    }

    #[cold]
    fn flaw(&self, fail: Fail, at: usize) -> Flaw {
        let column = self.schema.columns.get(at);
        let name = column.map_or("?", |c| &*c.name);
        match fail {
            Fail::Bad("missing_key", _) => {
                Flaw::new("missing_key", "the columns of the table's key have no value in this message")
            }
            Fail::Bad(code, what) => Flaw::new(code, format!("column {name}: expected {what}")),
            // A declared type stays what it is.
            Fail::Widen(_) => {
                let what = match column.map(|c| innermost(&c.ty)) {
                    Some(Type::Decimal { precision, scale }) => {
                        format!("{} digits before the point and {scale} after it at most", precision - scale)
                    }
                    _ => "a value of its type".to_owned(),
                };
                Flaw::new(OUT_OF_RANGE, format!("column {name}: expected {what}"))
            }
            // The members were scanned before.
            Fail::Scan(_) | Fail::Shape => Flaw::new("internal", format!("column {name} could not be read")),
        }
    }
}

fn begin(ctx: &mut Ctx, out: &mut RowBuilder) {
    ctx.notes.clear();
    ctx.expanded = 0;
    out.clear();
}

fn innermost(ty: &Type) -> &Type {
    match ty {
        Type::List(element) => innermost(element),
        other => other,
    }
}

/// A name that came with a message, as errors show it.
fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(NAME_CHARS_MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(NAME_CHARS_MAX).is_some() {
        text.push('…');
    }
    text
}

/// What a hint leaves open, as plain messages have it: decimals are numbers or their texts, a JSON value stands for itself, and
/// numbers are times only where the unit is declared.
fn plain(codec: Codec) -> Codec {
    match codec {
        Codec::Temporal(mut temporal) if temporal.unit == Unit::Guess => {
            temporal.unit = Unit::Undeclared;
            Codec::Temporal(temporal)
        }
        Codec::Decimal(mut decimal) => {
            decimal.form = DecimalForm::Text;
            Codec::Decimal(decimal)
        }
        Codec::Json => Codec::JsonValue,
        Codec::List(element) => Codec::List(Box::new(plain(*element))),
        Codec::Struct(fields) => {
            Codec::Struct(fields.into_iter().map(|(name, codec)| (name, plain(codec))).collect())
        }
        other => other,
    }
}
