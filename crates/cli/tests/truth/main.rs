//! Truth: real events of real databases go through the real `millstream` command into DuckDB, and what stands there is
//! compared with the databases' own final rows.
//!
//! Everything here reads the events by itself; nothing of Millstream's decoding is used to judge it.

// Helpers of tests are not tests in clippy's eyes.
#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![expect(clippy::type_complexity, reason = "tables of the corpus read best as nested literals")]

mod bad_input;
mod bigquery;
mod canonical;
mod cause;
mod cell;
mod chaos;
mod civil;
mod comparison;
mod corpus;
mod declared;
mod envelope;
mod events;
mod feeder;
mod generated;
mod history;
mod loads;
mod number;
mod pipeline;
mod pstest;
mod publisher;
mod pubsub;
mod residual;
mod rows;
mod scenarios;
