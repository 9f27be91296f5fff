//! An event as a JSON object:
//!
//! ```json
//! {"table":"public.orders","op":"u","order":"0000…/0000…","key":{"id":1},"row":{"id":1,"price":12.50},"before":null,
//!  "unchanged":["notes"],"ts_ms":1700000000000,"transaction_id":"571"}
//! ```
//! Numbers keep every digit. Bytes are base64; dates and times ISO 8601, instants in UTC. `row` and `before` are null where the event
//! has none; a value that the event did not carry (TOAST) is left out of its row and named in `unchanged`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use googleapis_tonic_google_pubsub_v1::google::pubsub::v1 as pb;
use jiff::civil::{Date, DateTime, Time};
use millstream_core::key::decimal_text;
use millstream_core::sink::Judged;
use millstream_core::{Column, Row, Type, Value};
use serde_json::value::RawValue;

/// The message of an event.
pub(super) fn message(judged: &Judged) -> pb::PubsubMessage {
    let event = &judged.event;
    let table = event.schema.table.qualified();
    let mut order = String::new();
    event.order.write_hex(&mut order);
    let columns = &event.schema.columns;
    let mut key = String::new();
    if let Some(values) = event.key.as_ref().and_then(millstream_core::Key::values) {
        let names = event.schema.key.iter().map(|at| &columns[*at]);
        write_object(&mut key, names.zip(values.iter()));
    }
    let mut out = String::with_capacity(256 + event.row.heap_len());
    out.push_str("{\"table\":");
    write_text(&mut out, &table);
    out.push_str(",\"op\":");
    write_text(&mut out, event.op.code());
    out.push_str(",\"order\":");
    write_text(&mut out, &order);
    out.push_str(",\"key\":");
    out.push_str(if key.is_empty() { "null" } else { &key });
    out.push_str(",\"row\":");
    write_row(&mut out, columns, Some(&event.row).filter(|row| !row.is_empty()));
    out.push_str(",\"before\":");
    write_row(&mut out, columns, event.before.as_deref());
    out.push_str(",\"unchanged\":[");
    let unchanged = columns.iter().zip(event.row.iter()).filter(|(_, value)| *value == Value::Unchanged);
    for (index, (column, _)) in unchanged.enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_text(&mut out, &column.name);
    }
    out.push_str("],\"ts_ms\":");
    match event.facts.ts_ms {
        Some(ms) => out.push_str(&ms.to_string()),
        None => out.push_str("null"),
    }
    out.push_str(",\"transaction_id\":");
    match &event.facts.transaction_id {
        Some(id) => write_text(&mut out, id),
        None => out.push_str("null"),
    }
    out.push('}');
    let attributes = [("table", table), ("op", event.op.code().to_owned()), ("order", order)];
    pb::PubsubMessage {
        data: out.into_bytes().into(),
        attributes: attributes.map(|(name, value)| (name.to_owned(), value)).into(),
        ordering_key: key,
        ..pb::PubsubMessage::default()
    }
}

fn write_row(out: &mut String, columns: &[Column], row: Option<&Row>) {
    match row {
        Some(row) => write_object(out, columns.iter().zip(row.iter())),
        None => out.push_str("null"),
    }
}

fn write_object<'a>(out: &mut String, members: impl Iterator<Item = (&'a Column, Value<'a>)>) {
    out.push('{');
    let mut first = true;
    for (column, value) in members.filter(|(_, value)| *value != Value::Unchanged) {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        write_text(out, &column.name);
        out.push(':');
        write_value(out, value, &column.ty);
    }
    out.push('}');
}

fn write_text(out: &mut String, text: &str) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

fn write_value(out: &mut String, value: Value<'_>, ty: &Type) {
    match value {
        Value::Null | Value::Unchanged => out.push_str("null"),
        Value::Bool(v) => out.push_str(if v { "true" } else { "false" }),
        Value::Int(v) => out.push_str(&v.to_string()),
        // JSON has no NaN and no infinities.
        Value::Float(v) if !v.is_finite() => write_text(out, &v.to_string()),
        Value::Float(v) => out.push_str(&serde_json::Value::from(v).to_string()),
        Value::Decimal { unscaled, scale } => out.push_str(&decimal_text(unscaled.into(), scale.into())),
        Value::Digits(v) => write_number(out, v),
        Value::Text(v) => write_text(out, v),
        Value::Bytes(v) => write_text(out, &STANDARD.encode(v)),
        Value::Json(v) => match serde_json::from_str::<&RawValue>(v) {
            Ok(json) => out.push_str(json.get()),
            Err(_) => write_text(out, v),
        },
        Value::Date(days) => write_text(out, &date(days)),
        Value::Time(us) => write_text(out, &time(us)),
        Value::DateTime(us) => write_text(out, &date_time(us)),
        Value::Timestamp(us) => write_text(out, &format!("{}Z", date_time(us))),
        Value::List(elements) => {
            let of = if let Type::List(of) = ty { of } else { &Type::Json };
            out.push('[');
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(out, element, of);
            }
            out.push(']');
        }
        Value::Struct(values) => {
            let fields = if let Type::Struct(fields) = ty { &**fields } else { &[] };
            out.push('{');
            for (index, (field, value)) in fields.iter().zip(values.iter()).enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_text(out, &field.name);
                out.push(':');
                write_value(out, value, &field.ty);
            }
            out.push('}');
        }
    }
}

/// Digits as a JSON number; what is none in JSON (`NaN`) becomes text.
fn write_number(out: &mut String, digits: &str) {
    match serde_json::from_str::<&RawValue>(digits) {
        Ok(number) if digits.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
            out.push_str(number.get())
        }
        _ => write_text(out, digits),
    }
}

/// Counts that no calendar reaches are written as the counts they are.
fn date(days: i32) -> String {
    let since = jiff::Span::new().try_days(days);
    match since.and_then(|span| Date::constant(1970, 1, 1).checked_add(span)) {
        Ok(date) => date.to_string(),
        Err(_) => days.to_string(),
    }
}

fn time(us: i64) -> String {
    let since = jiff::Span::new().try_microseconds(us);
    match since.and_then(|span| Time::midnight().checked_add(span)) {
        Ok(time) => time.to_string(),
        Err(_) => us.to_string(),
    }
}

fn date_time(us: i64) -> String {
    let since = jiff::Span::new().try_microseconds(us);
    match since.and_then(|span| DateTime::constant(1970, 1, 1, 0, 0, 0, 0).checked_add(span)) {
        Ok(at) => at.to_string(),
        Err(_) => us.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::{EventId, Order, RowBuilder, RowSchema, TableName};

    fn column(name: &str, ty: Type) -> Column {
        Column { name: name.into(), ty, nullable: true, guessed: false }
    }

    #[test]
    fn an_event_as_json() {
        let schema = RowSchema {
            table: TableName::new("db", "public", "orders").into(),
            columns: vec![
                column("id", Type::Int64),
                column("price", Type::Numeric),
                column("doc", Type::Json),
                column("notes", Type::Text),
                column("at", Type::Timestamp),
                column("raw", Type::Bytes),
                column("day", Type::Date),
            ],
            key: vec![0],
        };
        let mut row = RowBuilder::new();
        for value in [
            Value::Int(1),
            Value::Digits("12345678901234567890.50"),
            Value::Json("{\"a\": 1}"),
            Value::Unchanged,
            Value::Timestamp(1_700_000_000_500_000),
            Value::Bytes(b"\xff"),
            Value::Date(-1),
        ] {
            row.push(value);
        }
        let event = millstream_core::Event {
            schema: schema.into(),
            op: millstream_core::Op::Update,
            key: Some(millstream_core::Key::from_values([Value::Int(1)])),
            old_key: None,
            new_key: None,
            order: Order::from_sections(&[0, 255]),
            p_known: true,
            id: EventId::new(millstream_core::Incarnation(0), 255, false),
            row: row.finish(),
            before: None,
            full_before: false,
            facts: millstream_core::Facts { ts_ms: Some(5), ..Default::default() },
            origin: Default::default(),
            record: 0,
        };
        let judged =
            Judged { event: Box::new(event), distinct: true, newest: true, late: false, filled: None };
        let message = message(&judged);
        let text = String::from_utf8(message.data.to_vec()).unwrap();
        assert_eq!(
            text,
            concat!(
                r#"{"table":"public.orders","op":"u","order":"0000000000000000/00000000000000FF","key":{"id":1},"#,
                r#""row":{"id":1,"price":12345678901234567890.50,"doc":{"a": 1},"at":"2023-11-14T22:13:20.5Z","#,
                r#""raw":"/w==","day":"1969-12-31"},"before":null,"unchanged":["notes"],"ts_ms":5,"transaction_id":null}"#
            )
        );
        assert_eq!(message.ordering_key, r#"{"id":1}"#);
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }
}
