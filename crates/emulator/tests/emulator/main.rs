//! The Pub/Sub emulator over gRPC. Time passes by `advance` where leases and backoffs are concerned.

// Helpers of tests are not tests in clippy's eyes.
#![allow(clippy::unwrap_used)]

mod deliveries;
mod faults;
mod persistence;
mod python;
mod resources;
mod semantics;
mod world;
