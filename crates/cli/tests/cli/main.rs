//! The command from outside: what it prints, how it ends, and what it leaves behind.

// Helpers of tests are not tests in clippy's eyes.
#![allow(clippy::unwrap_used)]

mod bigquery;
mod bqemulator;
mod dashboards;
mod dead_letters;
mod emulator;
mod envelope;
mod http;
mod live;
mod loads;
mod merge;
mod messages;
mod operation;
mod pubsub;
mod rows;
mod service;
mod sweep;
mod topics;
mod vanished;
mod wide;
mod workplace;
