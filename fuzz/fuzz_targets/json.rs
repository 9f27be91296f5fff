//! Arbitrary records through the decoder of plain messages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_core::{Decoded, Type};
use millstream_decode::{ColumnHint, JsonOptions, Options, UnknownFields, json};

mod record;

/// The table of the well-known name, with a column of each kind.
fn options(ignore: bool) -> Options {
    let mut options = record::options();
    let types = [
        ("id", Type::Int64),
        ("text", Type::Text),
        ("price", Type::Float64),
        ("exact", Type::Decimal { precision: 12, scale: 2 }),
        ("at", Type::Timestamp),
        ("raw", Type::Bytes),
        ("doc", Type::Json),
        ("tags", Type::List(Box::new(Type::Text))),
    ];
    for hints in options.tables.values_mut() {
        hints.columns =
            types.iter().map(|(name, ty)| ((*name).to_owned(), ColumnHint::new(ty.clone()))).collect();
    }
    let unknown_fields = if ignore { UnknownFields::Ignore } else { UnknownFields::DeadLetter };
    let json = JsonOptions { table: Some("s.t".to_owned()), unknown_fields, ..JsonOptions::default() };
    Options { json, ..options }
}

fuzz_target!(|data: &[u8]| record::run(
    data,
    |ignore| json(options(ignore).into()).expect("the key is declared"),
    |item, json| assert!(json || !matches!(item, Decoded::Event(_) | Decoded::Several(_)))
));
