//! Arrays and structs.

use millstream_core::{RowBuilder, Value};

use super::{Codec, Ctx, Fail, WRONG_TYPE};
use crate::options::UnknownFields;
use crate::scan::Cursor;

/// An array; one that is the placeholder (see [`crate::placeholder`]) is an unchanged value.
pub(crate) fn list(
    element: &Codec,
    cur: &mut Cursor<'_>,
    ctx: &mut Ctx,
    out: &mut RowBuilder,
) -> Result<(), Fail> {
    if cur.byte() == b'"' && ctx.detect && ctx.placeholder.is_text(cur.clone().string()?) {
        cur.string()?;
        out.push(Value::Unchanged);
        return Ok(());
    }
    if cur.byte() != b'[' {
        return Err(Fail::Bad(WRONG_TYPE, "an array"));
    }
    if ctx.detect {
        let mut ahead = cur.clone();
        if ctx.placeholder.is_list(&mut ahead)? {
            *cur = ahead;
            out.push(Value::Unchanged);
            return Ok(());
        }
    }
    // Only the array as a whole can stand for an unchanged value; an element that equals the placeholder is a value.
    let detect = std::mem::replace(&mut ctx.detect, false);
    let result = elements(element, cur, ctx);
    ctx.detect = detect;
    out.push_list(result?.finish());
    Ok(())
}

fn elements(element: &Codec, cur: &mut Cursor<'_>, ctx: &mut Ctx) -> Result<RowBuilder, Fail> {
    let mut cells = RowBuilder::new();
    let mut more = cur.first_element()?;
    while more {
        element.decode(cur, ctx, &mut cells)?;
        more = cur.next_element()?;
    }
    Ok(cells)
}

/// An object of known fields: absent ones are NULL; unknown ones are passed over, and of doubles the last counts, unless
/// [`Ctx::unknown`] says more.
pub(crate) fn structure(
    fields: &[(Box<str>, Codec)],
    cur: &mut Cursor<'_>,
    ctx: &mut Ctx,
    out: &mut RowBuilder,
) -> Result<(), Fail> {
    if cur.byte() != b'{' {
        return Err(Fail::Bad(WRONG_TYPE, "an object"));
    }
    let mut found: Vec<Option<&str>> = vec![None; fields.len()];
    let depth = cur.depth() + 1;
    let mut key = cur.first_key()?;
    while let Some(name) = key {
        let raw = cur.raw()?;
        match (fields.iter().position(|(field, _)| name.is(field)), ctx.unknown) {
            (Some(at), Some(_)) if found[at].is_some() => {
                return Err(Fail::Bad("duplicate_field", "each member of the object once"));
            }
            (Some(at), _) => found[at] = Some(raw),
            (None, Some(UnknownFields::DeadLetter)) => {
                return Err(Fail::Bad("unknown_field", "only members that the column's type declares"));
            }
            (None, Some(UnknownFields::Ignore)) => ctx.note("unknown_field"),
            (None, None) => {}
        }
        key = cur.next_key()?;
    }
    let mut cells = RowBuilder::new();
    for ((_, codec), raw) in fields.iter().zip(found) {
        match raw {
            Some(raw) => codec.decode(&mut Cursor::new(raw, depth), ctx, &mut cells)?,
            None => cells.push(Value::Null),
        }
    }
    out.push_struct(cells.finish());
    Ok(())
}
