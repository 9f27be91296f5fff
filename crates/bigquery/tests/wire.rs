//! What the encoder writes, another implementation of protobuf reads by the descriptor that goes with it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use millstream_bigquery::{Change, ColumnType, Descriptor, Field, Mode, RowEncoder, RowWriter};
use proptest::prelude::*;
use prost_reflect::prost::Message as _;
use prost_reflect::prost_types::{DescriptorProto, FileDescriptorProto};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, ReflectMessage as _, Value};

/// A value of a column, and what it is on the wire.
#[derive(Debug, Clone)]
enum Cell {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Date(i32),
    Timestamp(i64),
    Time(i64),
    DateTime(i64),
    Numeric(i64, u16),
    BigNumeric(i128, u16),
    List(Vec<Cell>),
    Struct(Vec<Cell>),
}

fn read(descriptor: &Descriptor) -> MessageDescriptor {
    let message = DescriptorProto::decode(descriptor.bytes().clone()).unwrap();
    let file = FileDescriptorProto {
        name: Some("row.proto".to_owned()),
        message_type: vec![message],
        syntax: Some("proto2".to_owned()),
        ..FileDescriptorProto::default()
    };
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_proto(file).unwrap();
    pool.get_message_by_name("Row").unwrap()
}

fn put(row: &mut RowEncoder<'_>, number: u32, cell: &Cell) {
    match cell {
        Cell::Null => {}
        Cell::Bool(v) => row.put_bool(number, *v),
        Cell::Int(v) => row.put_int(number, *v),
        Cell::Float(v) => row.put_float(number, *v),
        Cell::Text(v) => row.put_text(number, v),
        Cell::Bytes(v) => row.put_bytes(number, v),
        Cell::Date(v) => row.put_date(number, *v).unwrap(),
        Cell::Timestamp(v) => row.put_timestamp(number, *v).unwrap(),
        Cell::Time(v) => row.put_time(number, *v).unwrap(),
        Cell::DateTime(v) => row.put_date_time(number, *v).unwrap(),
        Cell::Numeric(v, scale) => row.put_numeric(number, (*v).into(), *scale).unwrap(),
        Cell::BigNumeric(v, scale) => row.put_big_numeric(number, *v, *scale).unwrap(),
        Cell::List(cells) => cells.iter().for_each(|cell| put(row, number, cell)),
        Cell::Struct(cells) => {
            let mark = row.begin_message(number);
            cells.iter().zip(1..).for_each(|(cell, number)| put(row, number, cell));
            row.end_message(mark);
        }
    }
}

/// The integer whose little-endian two's complement bytes these are; as text, since it may need 256 bits.
fn little_endian(bytes: &[u8]) -> String {
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut magnitude: Vec<u8> = bytes.iter().map(|b| if negative { !b } else { *b }).collect();
    if negative {
        for byte in &mut magnitude {
            let (sum, carried) = byte.overflowing_add(1);
            *byte = sum;
            if !carried {
                break;
            }
        }
    }
    let mut digits = Vec::new();
    while magnitude.iter().any(|&b| b != 0) {
        let mut rest = 0u32;
        for byte in magnitude.iter_mut().rev() {
            let part = rest << 8 | u32::from(*byte);
            *byte = (part / 10) as u8;
            rest = part % 10;
        }
        digits.push(char::from(b'0' + rest as u8));
    }
    if digits.is_empty() {
        return "0".to_owned();
    }
    digits.extend(negative.then_some('-'));
    digits.iter().rev().collect()
}

fn scaled(unscaled: i128, zeros: u16) -> String {
    if unscaled == 0 { "0".to_owned() } else { format!("{unscaled}{}", "0".repeat(zeros.into())) }
}

fn packed_time(us: i64) -> i64 {
    let (h, m, s) = (us / 3_600_000_000, us / 60_000_000 % 60, us / 1_000_000 % 60);
    (h << 32) | (m << 26) | (s << 20) | (us % 1_000_000)
}

fn same(value: &Value, cell: &Cell) -> bool {
    match cell {
        Cell::Null => false,
        Cell::Bool(v) => value.as_bool() == Some(*v),
        Cell::Int(v) | Cell::Timestamp(v) => value.as_i64() == Some(*v),
        Cell::Float(v) => value.as_f64().map(f64::to_bits) == Some(v.to_bits()),
        Cell::Text(v) => value.as_str() == Some(v),
        Cell::Bytes(v) => value.as_bytes().is_some_and(|b| b == v),
        Cell::Date(v) => value.as_i32() == Some(*v),
        Cell::Time(v) => value.as_i64() == Some(packed_time(*v)),
        Cell::DateTime(v) => {
            value.as_i64().map(|p| p & ((1 << 37) - 1)) == Some(packed_time(v.rem_euclid(86_400_000_000)))
        }
        Cell::Numeric(v, scale) => {
            value.as_bytes().map(|b| little_endian(b)) == Some(scaled((*v).into(), 9 - scale))
        }
        Cell::BigNumeric(v, scale) => {
            value.as_bytes().map(|b| little_endian(b)) == Some(scaled(*v, 38 - scale))
        }
        Cell::List(cells) => value.as_list().is_some_and(|values| {
            values.len() == cells.len() && values.iter().zip(cells).all(|(v, c)| same(v, c))
        }),
        Cell::Struct(cells) => value.as_message().is_some_and(|message| same_row(message, cells)),
    }
}

fn same_row(message: &DynamicMessage, cells: &[Cell]) -> bool {
    message.unknown_fields().next().is_none()
        && cells.iter().zip(1..).all(|(cell, number)| {
            let field = message.descriptor().get_field(number).unwrap();
            match cell {
                Cell::Null => !message.has_field(&field),
                Cell::List(cells) if cells.is_empty() => !message.has_field(&field),
                cell => message.has_field(&field) && same(&message.get_field(&field), cell),
            }
        })
}

/// A scalar column with a value for it, ends of the ranges among them.
fn scalar() -> impl Strategy<Value = (ColumnType, Cell)> {
    let (first, last) = (-62_135_596_800_000_000, 253_402_300_799_999_999);
    let instant = || prop_oneof![Just(first), Just(last), Just(0), Just(-1), first..=last];
    prop_oneof![
        any::<bool>().prop_map(|v| (ColumnType::Bool, Cell::Bool(v))),
        prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(0), any::<i64>()]
            .prop_map(|v| (ColumnType::Int64, Cell::Int(v))),
        prop_oneof![Just(f64::NAN), Just(f64::NEG_INFINITY), Just(-0.0), any::<f64>()]
            .prop_map(|v| (ColumnType::Float64, Cell::Float(v))),
        ".{0,200}".prop_map(|v| (ColumnType::String, Cell::Text(v))),
        Just((ColumnType::Json, Cell::Text("{\"a\":[1.50]}".to_owned()))),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(|v| (ColumnType::Bytes, Cell::Bytes(v))),
        prop_oneof![Just(-719_162), Just(2_932_896), -719_162..=2_932_896]
            .prop_map(|v| (ColumnType::Date, Cell::Date(v))),
        instant().prop_map(|v| (ColumnType::Timestamp, Cell::Timestamp(v))),
        instant().prop_map(|v| (ColumnType::DateTime, Cell::DateTime(v))),
        prop_oneof![Just(0), Just(86_399_999_999), 0..86_400_000_000i64]
            .prop_map(|v| (ColumnType::Time, Cell::Time(v))),
        (any::<i64>(), 0u16..=9).prop_map(|(v, s)| (ColumnType::Numeric, Cell::Numeric(v, s))),
        (any::<i128>(), 0u16..=38).prop_map(|(v, s)| (ColumnType::BigNumeric, Cell::BigNumeric(v, s))),
    ]
}

/// A column of any shape with a value for it.
fn column() -> impl Strategy<Value = (Field, Cell)> {
    let leaf = (scalar(), 0..4u8).prop_map(|((ty, cell), shape)| {
        let field = Field::new("", ty);
        match shape {
            0 => (field, Cell::Null),
            1 => (field.with_mode(Mode::Repeated), Cell::List(vec![cell.clone(), cell])),
            _ => (field, cell),
        }
    });
    leaf.prop_recursive(3, 24, 5, |inner| {
        (prop::collection::vec(inner, 1..5), 0..4u8).prop_map(|(columns, shape)| {
            let (fields, cells) = columns.into_iter().unzip();
            let field = Field { fields: named(fields), ..Field::new("", ColumnType::Record) };
            let cell = Cell::Struct(cells);
            match shape {
                0 => (field, Cell::Null),
                1 => (field.with_mode(Mode::Repeated), Cell::List(vec![cell.clone(), cell])),
                2 => (field.with_mode(Mode::Repeated), Cell::List(Vec::new())),
                _ => (field, cell),
            }
        })
    })
}

fn named(fields: Vec<Field>) -> Vec<Field> {
    let name = |i: usize| if i % 3 == 2 { format!("spalte nr. {i}") } else { format!("Column_{i}") };
    fields.into_iter().enumerate().map(|(i, field)| Field { name: name(i), ..field }).collect()
}

proptest! {
    #[test]
    fn rows_are_read_as_they_were_put(columns in prop::collection::vec(column(), 1..12), copies in 1..4usize) {
        let (fields, cells): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let message = read(&Descriptor::with_changes(&named(fields)).unwrap());
        let mut writer = RowWriter::new();
        for _ in 0..copies {
            let mut row = writer.begin();
            cells.iter().zip(1..).for_each(|(cell, number)| put(&mut row, number, cell));
            row.put_change(Change::Upsert);
            row.put_sequence_number("0/1F").unwrap();
            row.finish();
        }
        let rows = writer.take();
        prop_assert_eq!(rows.len(), copies);
        for i in 0..copies {
            let decoded = DynamicMessage::decode(message.clone(), rows.row(i)).unwrap();
            prop_assert!(same_row(&decoded, &cells), "{decoded:?}");
            let text = |name: &str| decoded.get_field_by_name(name).unwrap().as_str().unwrap().to_owned();
            prop_assert_eq!((text("_change_type"), text("_change_sequence_number")), ("UPSERT".into(), "0/1F".into()));
            // Shortest form: what another writes of it is as long.
            prop_assert_eq!(decoded.encoded_len(), rows.row(i).len());
        }
    }
}
