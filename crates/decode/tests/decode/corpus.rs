//! The corpus as record batches, and decoded items as text.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use millstream_core::record::Slot;
use millstream_core::{Decoded, Decoder, Event, PartitionId, Position, RecordBatch, Value};

/// A path within the corpus.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../corpus").join(name)
}

/// The names of all files of events, sorted.
pub(crate) fn files() -> Vec<String> {
    let names = std::fs::read_dir(path("")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|n| n.ends_with(".jsonl") && !n.contains(".final.")).collect();
    names.sort();
    names
}

/// The lines of a corpus file as one batch.
pub(crate) fn batch(file: &str) -> RecordBatch {
    let path = path(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut batch = empty_batch();
    // Lines may hold raw U+2028, so they end at \n only.
    for line in text.split('\n').filter(|line| !line.is_empty()) {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |v: &serde_json::Value| v.as_str().map(str::as_bytes).map(<[u8]>::to_vec);
        let headers = record["headers"].as_array().into_iter().flatten();
        let headers: Vec<_> =
            headers.map(|h| (text(&h["key"]).unwrap(), text(&h["value"]).unwrap_or_default())).collect();
        push(&mut batch, text(&record["topic"]), text(&record["key"]), text(&record["value"]), &headers);
    }
    batch
}

pub(crate) fn empty_batch() -> RecordBatch {
    RecordBatch {
        partition: PartitionId::new("corpus"),
        buffer: Vec::new(),
        slots: Vec::new(),
        position: Position::default(),
    }
}

pub(crate) fn push(
    batch: &mut RecordBatch,
    topic: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: &[(Vec<u8>, Vec<u8>)],
) {
    let buffer = &mut batch.buffer;
    let mut put = |bytes: &[u8]| {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(bytes);
        millstream_core::record::Range { start, len: bytes.len() as u32 }
    };
    let slot = Slot {
        value: value.map(|v| put(&v)),
        key: key.map(|k| put(&k)),
        topic: topic.map(|t| put(&t)),
        headers: headers.iter().map(|(n, v)| (put(n), put(v))).collect(),
        offset: batch.slots.len() as u64,
        ..Slot::default()
    };
    batch.slots.push(slot);
}

/// Decodes a batch.
pub(crate) fn decode(decoder: &mut dyn Decoder, batch: &RecordBatch) -> Vec<Decoded> {
    let mut out = Vec::new();
    for record in batch.records() {
        decoder.decode(&record, &mut out);
    }
    out
}

/// Decodes one value, with an optional key.
pub(crate) fn one(decoder: &mut dyn Decoder, key: Option<&str>, value: &[u8]) -> Decoded {
    let mut batch = empty_batch();
    push(&mut batch, None, key.map(|k| k.as_bytes().to_vec()), Some(value.to_vec()), &[]);
    let mut items = decode(decoder, &batch);
    assert_eq!(items.len(), 1);
    items.remove(0)
}

/// A decoded item in a readable form; types are told where a schema is new.
pub(crate) fn show(item: &Decoded, schemas: &mut Vec<Arc<millstream_core::RowSchema>>) -> String {
    match item {
        Decoded::Event(event) => show_event(event, schemas),
        Decoded::Several(parts) => format!("-- {} parts", parts.len()),
        Decoded::Control(control) => format!("-- {} {:?}", control.kind.name(), control.ts_ms),
        Decoded::Dead(dead) => {
            format!("!! {} {} [{}]", dead.stage.name(), dead.cause, dead.table.as_deref().unwrap_or("?"))
        }
    }
}

fn show_event(event: &Event, schemas: &mut Vec<Arc<millstream_core::RowSchema>>) -> String {
    let mut text = String::new();
    if !schemas.contains(&event.schema) {
        schemas.push(event.schema.clone());
        let schema = &event.schema;
        writeln!(text, "== {} key {:?}", schema.table, schema.key_names().collect::<Vec<_>>()).unwrap();
        for column in &schema.columns {
            let guessed = if column.guessed { " guessed" } else { "" };
            let required = if column.nullable { "" } else { " required" };
            writeln!(text, "   {}: {:?}{required}{guessed}", column.name, column.ty).unwrap();
        }
    }
    let key = |key: &Option<millstream_core::Key>| match key {
        None => "-".to_owned(),
        Some(key) => key.values().unwrap().iter().map(show_value).collect::<Vec<_>>().join(","),
    };
    let order: Vec<_> = event.order.sections().iter().map(u64::to_string).collect();
    write!(text, "{} {} {} {}", event.op.code(), event.schema.table, key(&event.key), order.join("/"))
        .unwrap();
    if !event.p_known {
        text.push_str(" p?");
    }
    if event.old_key.is_some() || event.new_key.is_some() {
        write!(text, " old {} new {}", key(&event.old_key), key(&event.new_key)).unwrap();
    }
    if event.full_before {
        text.push_str(" full");
    }
    write!(text, " tx {}", event.facts.transaction_id.as_deref().unwrap_or("-")).unwrap();
    let row = |row: &millstream_core::Row| row.iter().map(show_value).collect::<Vec<_>>().join(" | ");
    write!(text, "\n   {}", row(&event.row)).unwrap();
    if let Some(before) = &event.before {
        write!(text, "\n   before {}", row(before)).unwrap();
    }
    text
}

/// A value, typed, long ones shortened.
pub(crate) fn show_value(value: Value<'_>) -> String {
    let short = |text: &str| match text.char_indices().nth(60) {
        Some((at, _)) => format!("{:?}…{}", &text[..at], text.len()),
        None => format!("{text:?}"),
    };
    match value {
        Value::Null => "∅".into(),
        Value::Unchanged => "UNCHANGED".into(),
        Value::Bool(v) => v.to_string(),
        Value::Int(v) => v.to_string(),
        Value::Float(v) => format!("{v:?}f"),
        Value::Decimal { unscaled, scale } => {
            format!("{}d", millstream_core::key::decimal_text(unscaled.into(), scale.into()))
        }
        Value::Digits(v) => format!("{}D", short(v).trim_matches('"')),
        Value::Text(v) => short(v),
        Value::Bytes(v) => {
            let hex: String = v.iter().take(20).map(|b| format!("{b:02x}")).collect();
            if v.len() > 20 { format!("x{hex}…{}", v.len()) } else { format!("x{hex}") }
        }
        Value::Json(v) => format!("json {}", short(v)),
        Value::Date(v) => (jiff::civil::date(1970, 1, 1) + jiff::Span::new().days(v)).to_string(),
        Value::Time(v) => format!("{v}µs"),
        Value::DateTime(v) => stamp(v),
        Value::Timestamp(v) => stamp(v) + "Z",
        Value::List(row) => {
            format!("[{}]", row.iter().map(show_value).collect::<Vec<_>>().join(", "))
        }
        Value::Struct(row) => {
            format!("{{{}}}", row.iter().map(show_value).collect::<Vec<_>>().join(", "))
        }
    }
}

fn stamp(micros: i64) -> String {
    let days = i32::try_from(micros.div_euclid(86_400_000_000)).unwrap();
    let date = jiff::civil::date(1970, 1, 1) + jiff::Span::new().days(days);
    let rest = micros.rem_euclid(86_400_000_000);
    let (seconds, fraction) = (rest / 1_000_000, rest % 1_000_000);
    format!("{date}T{:02}:{:02}:{:02}.{fraction:06}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
