//! The BigQuery emulator over HTTP and gRPC. Time passes by `advance` where delays are concerned.

// Helpers of tests are not tests in clippy's eyes.
#![allow(clippy::unwrap_used)]

mod appends;
mod changes;
mod encodings;
mod faults;
mod persistence;
mod python;
mod resources;
mod statements;
mod world;
