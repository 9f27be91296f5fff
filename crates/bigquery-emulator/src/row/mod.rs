//! Rows as protobuf messages, read by the descriptor that came with them, into Arrow's columns.

mod bignumeric;
mod builder;
mod civil;
mod plan;
mod reader;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use bignumeric::canonical;
pub(crate) use builder::Builder;
pub(crate) use civil::{date, date_text, datetime, datetime_text, time, time_text, timestamp};
pub(crate) use plan::{Mismatch, Plan};
pub(crate) use reader::{Batch, Changes, Kind, read};
pub(crate) use value::decimal;
