//! Message keys and key headers: JSON objects, bare or beside their schema.

use millstream_core::{Key, RowBuilder};

use crate::codec::{Ctx, Fail};
use crate::plan::{RowField, Shape, fields, find};
use crate::scan::Cursor;

/// Most columns of a key.
const COLUMNS_MAX: usize = 256;

/// The members of a key's JSON object, unwrapped; empty where there is no key: no bytes, not UTF-8, not JSON, not an
/// object. (Brokers publish keyless rows under a made-up key such as `default`.)
pub(crate) fn key_fields(bytes: Option<&[u8]>) -> Vec<RowField<'_>> {
    let Some(bytes) = bytes else { return Vec::new() };
    let Ok(text) = simdutf8::basic::from_utf8(bytes) else { return Vec::new() };
    let mut cur = Cursor::new(text, 0);
    cur.space();
    if cur.byte() != b'{' {
        return Vec::new();
    }
    let members = match fields(&mut cur) {
        Ok(outer) if cur.end().is_ok() => unwrap(outer),
        _ => return Vec::new(),
    };
    // Databases allow 32 columns or fewer.
    if members.len() > COLUMNS_MAX { Vec::new() } else { members }
}

/// The members of the payload where the object is a schema and a payload, else the object's own. A table may have
/// key columns of these names, but not with a struct schema for a value.
fn unwrap(outer: Vec<RowField<'_>>) -> Vec<RowField<'_>> {
    let [a, b] = outer.as_slice() else { return outer };
    let (schema, payload) = if a.name.is("schema") { (a, b) } else { (b, a) };
    let wrapped = schema.name.is("schema") && payload.name.is("payload");
    if !wrapped || !matches!(schema.value.as_bytes().first(), Some(b'{' | b'n')) {
        return outer;
    }
    match payload.value.as_bytes().first() {
        Some(b'{') => fields(&mut payload.cursor()).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The key that these members make by the shape's key columns; `None` if one is not there or there are none.
pub(crate) fn key_of(
    shape: &Shape,
    members: &[RowField<'_>],
    ctx: &mut Ctx,
    scratch: &mut RowBuilder,
) -> Result<Option<Key>, Fail> {
    if shape.schema.key.is_empty() || members.is_empty() {
        return Ok(None);
    }
    // A key's values are always there: what looks like a placeholder is a value.
    let detect = std::mem::replace(&mut ctx.detect, false);
    scratch.clear();
    let result = read(shape, members, ctx, scratch);
    ctx.detect = detect;
    if !result? {
        return Ok(None);
    }
    let row = scratch.finish();
    Ok(Some(Key::from_values_in(&mut ctx.bytes, row.iter())))
}

fn read(
    shape: &Shape,
    members: &[RowField<'_>],
    ctx: &mut Ctx,
    scratch: &mut RowBuilder,
) -> Result<bool, Fail> {
    let mut next = 0;
    for &index in &shape.schema.key {
        let column = &shape.columns[index];
        let Some(member) = find(members, &mut next, &column.name) else {
            return Ok(false);
        };
        ctx.column = index;
        column.codec.decode(&mut member.cursor(), ctx, scratch)?;
    }
    Ok(true)
}
