//! Sweeps: after a new snapshot, the rows go that it did not write again.
//!
//! A sweep is an event like a truncate, at the start of the pipeline's incarnation ([`Event::sweep`]), and enters the pipeline
//! beside what the source gives. All of a table in one incarnation are one event, so that nothing need be remembered of those
//! that were done: one that comes again is a duplicate.
//!
//! Limits: one that was asked for and is not durable when the process ends is forgotten, and who asked is told so.
//!
//! [`Event::sweep`]: millstream_core::Event::sweep

mod choice;
mod sheet;

pub(crate) use choice::{Chosen, choose, refuse_needless};
pub(crate) use sheet::{PARTITION, Sheet};
