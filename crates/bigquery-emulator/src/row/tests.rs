//! Messages as they come, into columns.

use bytes::Bytes;
use duckdb::arrow::array::{Array, AsArray};
use duckdb::arrow::datatypes::Int64Type;
use serde_json::json;

use super::{Batch, Mismatch, Plan, read};
use crate::schema::{self, Column};
use crate::wire::{Descriptor, EnumDescriptor, EnumValue, FieldDescriptor, FieldOptions};

fn columns(fields: serde_json::Value) -> Vec<Column> {
    schema::from_json(&json!({"fields": fields})).unwrap()
}

fn field(name: &str, number: i32, label: i32, kind: i32, type_name: &str) -> FieldDescriptor {
    let (name, type_name) = (name.to_owned(), type_name.to_owned());
    FieldDescriptor { name, number, label, kind, type_name, options: None }
}

fn message(name: &str, field: Vec<FieldDescriptor>) -> Descriptor {
    Descriptor { name: name.to_owned(), field, ..Descriptor::default() }
}

fn rows(
    descriptor: &Descriptor,
    columns: &[Column],
    row: &[u8],
) -> Result<duckdb::arrow::array::RecordBatch, String> {
    let plan = Plan::new(descriptor, columns).map_err(|mismatch| format!("{mismatch:?}"))?;
    match read(&plan, columns, &[], &[Bytes::copy_from_slice(row)]) {
        Ok(Batch::Rows(batch)) => Ok(batch),
        Ok(Batch::Changes(_)) => Err("changes".to_owned()),
        Err(bad) => Err(bad[0].message.clone()),
    }
}

#[test]
fn an_annotation_names_the_column() {
    let columns = columns(json!([{"name": "größe", "type": "INT64"}]));
    let mut wanted = field("col_Z3LDtsOfZQ", 1, 1, 3, "");
    wanted.options = Some(FieldOptions { column_name: Some("größe".to_owned()) });
    let batch = rows(&message("Row", vec![wanted]), &columns, &[0x08, 5]).unwrap();
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().value(0), 5);
    let unknown = message("Row", vec![field("größe", 1, 1, 3, ""), field("more", 2, 1, 9, "")]);
    let Err(Mismatch::Extra(text)) = Plan::new(&unknown, &columns) else { panic!("more is not known") };
    assert!(text.contains("extra fields: 'more'"), "{text}");
}

#[test]
fn lists_may_be_packed_and_records_nested() {
    let columns = columns(json!([
        {"name": "n", "type": "INT64", "mode": "REPEATED"},
        {"name": "r", "type": "RECORD", "mode": "REPEATED", "fields": [{"name": "x", "type": "INT64", "mode": "REQUIRED"}]},
    ]));
    let mut descriptor = message("Row", vec![field("n", 1, 3, 3, ""), field("r", 2, 3, 11, ".Row.R")]);
    descriptor.nested_type.push(message("R", vec![field("x", 1, 1, 3, "")]));
    let batch = rows(&descriptor, &columns, &[0x0a, 2, 1, 2, 0x08, 3, 0x12, 2, 0x08, 9]).unwrap();
    assert_eq!(batch.column(0).as_list::<i32>().value(0).as_primitive::<Int64Type>().values(), &[1, 2, 3]);
    assert_eq!(batch.column(1).as_list::<i32>().value(0).len(), 1);
    let missing = rows(&descriptor, &columns, &[0x12, 0]).unwrap_err();
    assert!(missing.contains("Field x is required"), "{missing}");
}

#[test]
fn enums_wrappers_timestamps_and_ranges() {
    let columns = columns(json!([
        {"name": "e", "type": "STRING"},
        {"name": "w", "type": "INT64"},
        {"name": "t", "type": "TIMESTAMP"},
        {"name": "r", "type": "RANGE", "rangeElementType": {"type": "DATE"}},
    ]));
    let mut descriptor = message(
        "Row",
        vec![
            field("e", 1, 1, 14, ".Row.E"),
            field("w", 2, 1, 11, ".google.protobuf.Int64Value"),
            field("t", 3, 1, 11, ".google.protobuf.Timestamp"),
            field("r", 4, 1, 11, "R"),
        ],
    );
    let value = EnumValue { name: "ONE".to_owned(), number: 1 };
    descriptor.enum_type.push(EnumDescriptor { name: "E".to_owned(), value: vec![value] });
    descriptor.nested_type.push(message("R", vec![field("start", 1, 1, 5, ""), field("end", 2, 1, 5, "")]));
    let row = [0x08, 1, 0x12, 2, 0x08, 7, 0x1a, 2, 0x08, 2, 0x22, 2, 0x08, 1];
    let batch = rows(&descriptor, &columns, &row).unwrap();
    assert_eq!(batch.column(0).as_string::<i32>().value(0), "ONE");
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().value(0), 7);
    assert_eq!(batch.column(3).as_string::<i32>().value(0), "[1970-01-02, UNBOUNDED)");
    assert!(rows(&descriptor, &columns, &[0x08, 2]).unwrap_err().contains("no value 2"));
}

#[test]
fn no_bytes_do_harm() {
    let columns =
        columns(json!([{"name": "s", "type": "STRING"}, {"name": "n", "type": "INT64", "mode": "REPEATED"}]));
    let descriptor = message("Row", vec![field("s", 1, 1, 9, ""), field("n", 2, 3, 3, "")]);
    let mut seed = 1u32;
    for length in 0..2_000usize {
        let bytes: Vec<u8> = (0..length % 40)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 24) as u8
            })
            .collect();
        let _ = rows(&descriptor, &columns, &bytes);
    }
    for cut in [
        &[0x0a][..],
        &[0x0a, 5, 1],
        &[0x80],
        &[0x00, 1],
        &[0x0f],
        &[0x12, 1, 0x80],
        &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f],
    ] {
        assert!(rows(&descriptor, &columns, cut).is_err(), "{cut:?}");
    }
}
