//! Serialised rows into columns, all or nothing: a bad row is named, and then nothing of the request is kept.

use std::sync::Arc;

use bytes::Bytes;
use duckdb::arrow::array::RecordBatch;
use duckdb::arrow::datatypes::Schema as ArrowSchema;

use super::builder::Builder;
use super::plan::{Field, Message, Plan, Proto};
use super::value::{self, Wire};
use crate::schema::{self, Column, Mode, Type};

/// What a request holds.
#[derive(Debug, Clone)]
pub(crate) enum Batch {
    Rows(RecordBatch),
    Changes(Changes),
}

/// Rows of native change data capture.
#[derive(Debug, Clone)]
pub(crate) struct Changes {
    pub(crate) rows: RecordBatch,
    pub(crate) kinds: Vec<Kind>,
    /// In a form whose texts compare as the numbers do; empty where none was sent.
    pub(crate) sequences: Vec<String>,
}

/// What a change does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Upsert,
    Delete,
}

/// A row that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRow {
    pub(crate) index: usize,
    pub(crate) message: String,
}

/// What a row's message holds of a field.
#[derive(Debug, Clone)]
enum Slot<'a> {
    Unset,
    One(Wire<'a>),
    Many(Vec<Wire<'a>>),
}

/// Reads rows. `keys` are the columns of the primary key, which a delete has to have.
pub(crate) fn read(
    plan: &Plan,
    columns: &[Column],
    keys: &[usize],
    rows: &[Bytes],
) -> Result<Batch, Vec<BadRow>> {
    let mut builders: Vec<_> = columns.iter().map(Builder::new).collect();
    let (mut bad, mut kinds, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
    let mut plain = 0;
    let mut slots = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let mut one = || {
            slots.clear();
            split(&plan.root, row, &mut slots)?;
            let change = change(plan, &slots)?;
            let needed: Option<&[usize]> =
                change.as_ref().and_then(|(kind, _)| (*kind == Kind::Delete).then_some(keys));
            match change {
                Some((kind, sequence)) => {
                    kinds.push(kind);
                    sequences.push(sequence);
                }
                None => plain += 1,
            }
            record(&plan.root, columns, &mut builders, &slots, needed)
        };
        if let Err(message) = one() {
            bad.push(BadRow { index, message });
        }
    }
    let whole = |message: String| vec![BadRow { index: 0, message }];
    if !bad.is_empty() {
        return Err(bad);
    }
    if plain > 0 && !kinds.is_empty() {
        return Err(whole("The given value is not a valid CHANGE_TYPE".to_owned()));
    }
    let arrays = builders.into_iter().zip(columns).map(|(builder, column)| builder.finish(column));
    let arrays = arrays.collect::<Result<Vec<_>, _>>().map_err(|e| whole(e.to_string()))?;
    let schema = Arc::new(ArrowSchema::new(schema::fields(columns)));
    let options = duckdb::arrow::array::RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let batch =
        RecordBatch::try_new_with_options(schema, arrays, &options).map_err(|e| whole(e.to_string()))?;
    if kinds.is_empty() {
        Ok(Batch::Rows(batch))
    } else {
        Ok(Batch::Changes(Changes { rows: batch, kinds, sequences }))
    }
}

/// Takes a message apart. Of a single field that comes twice the last value counts, as protobuf has it.
#[inline]
fn split<'a>(message: &Message, bytes: &'a [u8], slots: &mut Vec<Slot<'a>>) -> Result<(), String> {
    slots.resize(message.fields.len(), Slot::Unset);
    let mut at = 0;
    while at < bytes.len() {
        let (number, wire) = value::field(bytes, &mut at)?;
        let Some(index) = message.field(number) else { continue };
        let field = &message.fields[index];
        if !field.repeated {
            slots[index] = Slot::One(wire);
            continue;
        }
        if !matches!(slots[index], Slot::Many(_)) {
            slots[index] = Slot::Many(Vec::new());
        }
        let Slot::Many(values) = &mut slots[index] else { continue };
        match wire {
            Wire::Bytes(packed) if value::packable(&field.proto) => {
                value::unpack(&field.proto, packed, |wire| values.push(wire))
                    .map_err(|e| format!("Field {}: {e}", field.name))?;
            }
            wire => values.push(wire),
        }
    }
    match message.fields.iter().zip(&*slots).find(|(f, slot)| f.required && matches!(slot, Slot::Unset)) {
        Some((field, _)) => Err(format!("Required field {} of the message is missing", field.name)),
        None => Ok(()),
    }
}

/// The change that a row is, if it is one.
fn change(plan: &Plan, slots: &[Slot<'_>]) -> Result<Option<(Kind, String)>, String> {
    let text = |index: Option<usize>| match index.map(|i| &slots[i]) {
        Some(Slot::One(wire)) => value::text(*wire).map(Some),
        _ => Ok(None),
    };
    let kind = match text(plan.change_type)? {
        None | Some("" | "INSERT") => None,
        Some("UPSERT") => Some(Kind::Upsert),
        Some("DELETE") => Some(Kind::Delete),
        Some(other) => {
            return Err(format!("The given value is not a valid CHANGE_TYPE: {other}"));
        }
    };
    let sequence = text(plan.sequence)?.map(sequence).transpose()?;
    match (kind, sequence) {
        (Some(kind), sequence) => Ok(Some((kind, sequence.unwrap_or_default()))),
        (None, Some(_)) => Err("_CHANGE_SEQUENCE_NUMBER is only allowed with _CHANGE_TYPE".to_owned()),
        (None, None) => Ok(None),
    }
}

/// A change sequence number in a form whose texts compare as it does: sections padded to the same length.
fn sequence(text: &str) -> Result<String, String> {
    let sections: Vec<_> = text.split('/').collect();
    let fine =
        |section: &&str| (1..=16).contains(&section.len()) && section.bytes().all(|b| b.is_ascii_hexdigit());
    if sections.len() > 4 || !sections.iter().all(fine) {
        return Err(format!(
            "Invalid _CHANGE_SEQUENCE_NUMBER \"{text}\": it has 1 to 4 sections of 1 to 16 hexadecimal digits"
        ));
    }
    Ok(sections.iter().map(|section| format!("{:0>16}", section.to_ascii_uppercase())).collect())
}

/// Adds a record's fields to its columns. Where `needed` is given only these columns have to be there.
fn record(
    message: &Message,
    columns: &[Column],
    builders: &mut [Builder],
    slots: &[Slot<'_>],
    needed: Option<&[usize]>,
) -> Result<(), String> {
    for (index, (column, builder)) in columns.iter().zip(builders).enumerate() {
        let field = message.columns[index].map(|field| (&message.fields[field], &slots[field]));
        let required = match needed {
            Some(needed) => needed.contains(&index),
            None => column.mode == Mode::Required,
        };
        match field {
            None | Some((_, Slot::Unset)) if required => {
                return Err(format!("Field {} is required and cannot be null", column.name));
            }
            None | Some((_, Slot::Unset)) => builder.push_null(),
            Some((field, slot)) => add(column, builder, field, slot).map_err(|e| {
                if e.starts_with("Field ") { e } else { format!("Field {}: {e}", column.name) }
            })?,
        }
    }
    Ok(())
}

fn add(column: &Column, builder: &mut Builder, field: &Field, slot: &Slot<'_>) -> Result<(), String> {
    match (slot, builder) {
        (Slot::One(wire), builder) => one(&column.ty, builder, &field.proto, *wire),
        (Slot::Many(values), Builder::List { elements, lengths }) => {
            lengths.push(values.len());
            values.iter().try_for_each(|wire| one(&column.ty, elements, &field.proto, *wire))
        }
        _ => Err("a list and a single value".to_owned()),
    }
}

fn one(ty: &Type, builder: &mut Builder, proto: &Proto, wire: Wire<'_>) -> Result<(), String> {
    let Proto::Message(message) = proto else { return value::push(builder, ty, proto, wire) };
    let Wire::Bytes(bytes) = wire else {
        return Err("the value is not of the type that the descriptor says".to_owned());
    };
    let mut slots = Vec::new();
    split(message, bytes, &mut slots)?;
    match (ty, builder) {
        (Type::Record(columns), Builder::Record { columns: builders, valid }) => {
            valid.push(true);
            record(message, columns, builders, &slots, None)
        }
        (Type::Range(bound), Builder::Text(texts)) => {
            let text = |i: usize| match message.columns[i].map(|f| (&message.fields[f], &slots[f])) {
                Some((field, Slot::One(wire))) => value::bound(bound, &field.proto, *wire),
                _ => Ok("UNBOUNDED".to_owned()),
            };
            texts.append_value(format!("[{}, {})", text(0)?, text(1)?));
            Ok(())
        }
        _ => Err("the value is a message".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::sequence;

    #[test]
    fn sequence_numbers_compare_as_numbers() {
        let rising = ["B", "aBC", "BA/FFFFFFFF", "FFF/B", "FFF/ABC", "1000", "1000/0"];
        // `BA` is 186, less than `ABC`.
        let mut sorted: Vec<_> = rising.iter().map(|text| (sequence(text).unwrap(), *text)).collect();
        sorted.sort();
        let order: Vec<_> = sorted.iter().map(|(_, text)| *text).collect();
        assert_eq!(order, ["B", "BA/FFFFFFFF", "aBC", "FFF/B", "FFF/ABC", "1000", "1000/0"]);
        for wrong in ["", "/", "G", "1/2/3/4/5", "12345678901234567", "1//2", "é"] {
            assert!(sequence(wrong).is_err(), "{wrong}");
        }
    }
}
