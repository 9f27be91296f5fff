//! Bytes to events: Debezium's JSON, as envelopes ([`debezium`]) and flattened ([`debezium_flat`]).
//!
//! Decoders are pure: no I/O, clock or randomness. Whatever the bytes are, a decoder neither panics nor fails; it
//! pushes an event, a control item or a refusal for every record.
//!
//! # Refusals
//!
//! | code | stage | meaning |
//! |---|---|---|
//! | `too_large` | parse | the record is over the size limit |
//! | `invalid_utf8` | parse | not UTF-8 |
//! | `invalid_json` | parse | not JSON: cut, a wrong character, escape or number, a raw control character or NUL, a lone surrogate |
//! | `too_deep` | parse | nested deeper than 128 |
//! | `trailing_data` | parse | more text after the JSON value |
//! | `not_an_object` | validate | JSON, but no object |
//! | `missing_field` | validate | `op`, `source`, `source.table`, `source.ts_ms`, a position, or the row image is missing |
//! | `wrong_type` | validate | a member of the envelope, or a column's value, is of another type than it must be |
//! | `duplicate_field` | validate | a member of the envelope, its source, or a column is there twice |
//! | `unknown_op` | validate | `op` is none of Debezium's letters |
//! | `unsupported_connector` | validate | positions of that connector are not understood |
//! | `missing_key` | validate | the configured key's columns are absent, or have no value |
//! | `invalid_value` | validate | a value's text is not what its type needs: base64, digits, ISO 8601, JSON |
//! | `out_of_range` | validate | a date or time that warehouses cannot hold, under that policy |
//! | `not_finite` | validate | NaN or an infinity in a decimal, under that policy |
//! | `too_large` | validate | more than 10 000 columns, or numbers whose plain digits would be beyond reason |
//! | `internal` | validate | a bug in the decoder, which the record showed |
//!
//! Broken frames keep the code that their source gave them.
//!
//! # Notices
//!
//! Values that a policy replaced are counted by table and column: `date_out_of_range`, `time_out_of_range`,
//! `timestamp_out_of_range`, `decimal_not_finite`, `fraction_cut` (digits below the microsecond), and
//! `decimal_scale_unknown` (base64 of a decimal of which nobody told the scale, kept as text).

mod change;
mod codec;
mod connect_schema;
mod debezium;
mod embedded;
mod envelope;
mod flat;
mod frame;
mod hint;
mod inference;
mod key;
mod md5;
mod options;
mod placeholder;
mod plan;
mod scan;
mod schema_file;
mod source_block;
mod table;

use std::sync::Arc;

use millstream_core::Decoder;

pub use options::{
    BinaryMode, ColumnHint, DecimalMode, FlatOptions, HstoreMode, IntervalMode, Modes, NotFinitePolicy,
    Options, RangePolicy, TableHints, TimeMode,
};
pub use schema_file::parse_schema_file;

/// A decoder of Debezium envelopes. Each worker makes its own; they share nothing but the options.
pub fn debezium(options: Arc<Options>) -> Box<dyn Decoder> {
    Box::new(debezium::Debezium::new(options))
}

/// A decoder of events that ExtractNewRecordState has flattened.
pub fn debezium_flat(options: Arc<Options>) -> Box<dyn Decoder> {
    Box::new(flat::Flat::new(options))
}
