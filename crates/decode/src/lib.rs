//! Bytes to events: Debezium's JSON, as envelopes ([`debezium`]) and flattened ([`debezium_flat`]), and plain JSON ([`json`]).
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
//! | `too_large` | validate | more than 10 000 columns or unknown members, numbers whose plain digits would be beyond reason, values that widen more than 1 000 columns one by one |
//! | `unknown_field` | validate | a plain message has a member that its table does not declare, under that policy |
//! | `unknown_table` | validate | a plain message is for a table whose columns are not declared |
//! | `internal` | validate | a bug in the decoder, which the record showed |
//!
//! Broken frames keep the code that their source gave them.
//!
//! # Decisions
//!
//! - Bit strings are big-endian bytes of their declared length, whatever order and padding the connector used.
//! - MySQL's TIME is a time of day until a value lies outside a day; then the column becomes text (`-838:59:59`). A
//!   hint of type text has it so from the start.
//! - A decimal beyond its column's declared precision or scale makes the column unbounded; it is not rounded.
//! - Inferred numbers are never rounded: a column of doubles that meets digits which no double has becomes text, and a
//!   numeric column takes fractions as they are.
//! - Under REPLICA IDENTITY FULL, MySQL, or where an update shows its before-image, a text equal to the placeholder is a
//!   value.
//! - A flattened event's order is (incarnation, LSN, LSN), and its `p` counts as known.
//! - Incremental snapshot reads of MySQL that name no binlog file sort below all changes.
//! - A logical message is counted, or a row of the table that the options name; its key is its log position, so that
//!   none replaces another.
//! - A record of a table without type facts teaches its columns' types; nothing is learned from values that a delete
//!   under a partial replica identity invents.
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
mod json;
mod key;
mod md5;
mod message;
mod moment;
mod options;
mod placeholder;
mod plan;
mod scan;
mod schema_file;
mod source_block;
mod table;

use std::sync::Arc;

use millstream_core::{Decoder, Result};

pub use options::{
    BinaryMode, ColumnHint, DecimalMode, FlatOptions, HstoreMode, IntervalMode, JsonOptions, Modes,
    NotFinitePolicy, Options, RangePolicy, TableHints, TimeMode, TimeUnit, UnknownFields,
};
pub use schema_file::{BareNumeric, parse_schema_file};

/// A decoder of Debezium envelopes. Each worker makes its own; they share nothing but the options.
pub fn debezium(options: Arc<Options>) -> Box<dyn Decoder> {
    Box::new(debezium::Debezium::new(options))
}

/// A decoder of events that ExtractNewRecordState has flattened.
pub fn debezium_flat(options: Arc<Options>) -> Box<dyn Decoder> {
    Box::new(flat::Flat::new(options))
}

/// A decoder of plain JSON: objects that are rows of tables whose columns [`Options::tables`] declare, and arrays of them.
///
/// # Errors
/// If a table's key names a column that is not declared.
pub fn json(options: Arc<Options>) -> Result<Box<dyn Decoder>> {
    Ok(Box::new(json::Json::new(options)?))
}
