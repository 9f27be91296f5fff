//! Shapes: the columns of a row as one kind of event gives them, each with its codec.
//!
//! A row that looks like the last one of its shape is read in a single pass that compares expected names in place.

use std::sync::Arc;

use millstream_core::{Row, RowBuilder, RowSchema, Value};

use crate::codec::{Codec, Ctx, Fail};
use crate::scan::{Cursor, ScanError, Str};

/// Most columns taken from one row; BigQuery's own limit, and a bound on work that is quadratic in odd cases.
pub(crate) const COLUMNS_MAX: usize = 10_000;

/// A column as it stands in JSON.
#[derive(Debug, Clone)]
pub(crate) struct PlanColumn {
    pub(crate) name: Box<str>,
    /// `,"name":`, or `{"name":` for the first column.
    token: Box<[u8]>,
    pub(crate) codec: Codec,
}

impl PlanColumn {
    pub(crate) fn new(index: usize, name: &str, codec: Codec) -> Self {
        let mut token = serde_json::to_string(name).unwrap_or_default();
        token.insert(0, if index == 0 { '{' } else { ',' });
        token.push(':');
        Self { name: name.into(), token: token.into_bytes().into(), codec }
    }
}

/// Columns and codecs of the rows of one table, under one set of type facts.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Index of the table.
    pub(crate) table: usize,
    /// Id of the embedded schema; 0 without one.
    pub(crate) facts: u64,
    pub(crate) columns: Box<[PlanColumn]>,
    /// The same columns as events carry them.
    pub(crate) schema: Arc<RowSchema>,
    /// Whether every column comes from the row itself, none from the key alone.
    pub(crate) plain: bool,
}

/// A member of a row's JSON object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowField<'a> {
    pub(crate) name: Str<'a>,
    pub(crate) value: &'a str,
    /// Nesting around the value.
    pub(crate) depth: u32,
}

impl<'a> RowField<'a> {
    pub(crate) fn cursor(&self) -> Cursor<'a> {
        Cursor::new(self.value, self.depth)
    }
}

/// The members of the object at the cursor, which is passed. Of more than [`COLUMNS_MAX`] only one more is kept, enough
/// to tell.
pub(crate) fn fields<'a>(cur: &mut Cursor<'a>) -> Result<Vec<RowField<'a>>, ScanError> {
    let mut fields = Vec::with_capacity(16);
    let mut key = cur.first_key()?;
    while let Some(name) = key {
        let depth = cur.depth();
        let value = cur.raw()?;
        if fields.len() <= COLUMNS_MAX {
            fields.push(RowField { name, value, depth });
        }
        key = cur.next_key()?;
    }
    Ok(fields)
}

impl Shape {
    /// Whether the object at the cursor begins with this shape's first column.
    #[inline]
    pub(crate) fn begins_at(&self, cur: &Cursor<'_>) -> bool {
        self.columns.first().is_some_and(|first| cur.clone().eat(&first.token))
    }

    /// Reads the row at the cursor, whose columns must be exactly the shape's, in order.
    #[inline]
    pub(crate) fn read(&self, cur: &mut Cursor<'_>, ctx: &mut Ctx, out: &mut RowBuilder) -> Result<(), Fail> {
        cur.enter()?;
        for (index, column) in self.columns.iter().enumerate() {
            if !cur.eat(&column.token) {
                self.expect_name(index, cur)?;
            }
            ctx.column = index;
            column.codec.decode(cur, ctx, out)?;
        }
        self.close(cur)
    }

    /// Passes the row at the cursor, checking its JSON and that its columns are exactly the shape's, and reads the key
    /// columns only; the others are NULL.
    pub(crate) fn read_key(
        &self,
        cur: &mut Cursor<'_>,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<(), Fail> {
        cur.enter()?;
        for (index, column) in self.columns.iter().enumerate() {
            if !cur.eat(&column.token) {
                self.expect_name(index, cur)?;
            }
            if self.schema.key.contains(&index) {
                ctx.column = index;
                column.codec.decode(cur, ctx, out)?;
            } else {
                cur.space();
                cur.skip()?;
                out.push(Value::Null);
            }
        }
        self.close(cur)
    }

    /// The slow form of comparing a name: white space, or another spelling of the same text.
    #[cold]
    fn expect_name(&self, index: usize, cur: &mut Cursor<'_>) -> Result<(), Fail> {
        cur.space();
        if cur.byte() == b'}' {
            return Err(Fail::Shape);
        }
        cur.expect(if index == 0 { b'{' } else { b',' })?;
        cur.space();
        if cur.byte() != b'"' {
            return Err(Fail::Shape);
        }
        let name = cur.string()?;
        cur.space();
        cur.expect(b':')?;
        if name.is(&self.columns[index].name) { Ok(()) } else { Err(Fail::Shape) }
    }

    #[inline]
    fn close(&self, cur: &mut Cursor<'_>) -> Result<(), Fail> {
        if self.columns.is_empty() {
            cur.expect(b'{')?;
        }
        cur.space();
        if cur.byte() == b',' {
            return Err(Fail::Shape);
        }
        cur.expect(b'}')?;
        cur.leave();
        Ok(())
    }

    /// Whether these fields are the shape's first columns, in order.
    pub(crate) fn starts_with(&self, fields: &[RowField<'_>]) -> bool {
        fields.len() <= self.columns.len()
            && self.columns.iter().zip(fields).all(|(column, field)| field.name.is(&column.name))
    }

    /// Reads a row from an object's members, in any order: absent columns are NULL. `wanted` tells which columns to
    /// read; the others are NULL too.
    pub(crate) fn fill(
        &self,
        fields: &[RowField<'_>],
        wanted: impl Fn(usize) -> bool,
        ctx: &mut Ctx,
        out: &mut RowBuilder,
    ) -> Result<Row, Fail> {
        out.clear();
        let mut next = 0;
        for (index, column) in self.columns.iter().enumerate() {
            let found = find(fields, &mut next, &column.name);
            match found {
                Some(field) if wanted(index) => {
                    ctx.column = index;
                    column.codec.decode(&mut field.cursor(), ctx, out)?;
                }
                _ => out.push(Value::Null),
            }
        }
        Ok(out.finish())
    }
}

/// The field called `name`, looked for from `next` on and then from the start; `next` moves behind it.
pub(crate) fn find<'f, 'a>(
    fields: &'f [RowField<'a>],
    next: &mut usize,
    name: &str,
) -> Option<&'f RowField<'a>> {
    let (head, tail) = fields.split_at((*next).min(fields.len()));
    let found = tail
        .iter()
        .position(|field| field.name.is(name))
        .map(|at| at + head.len())
        .or_else(|| head.iter().position(|field| field.name.is(name)))?;
    *next = found + 1;
    fields.get(found)
}
