//! The Pub/Sub emulator over gRPC. Time passes by `advance` where leases and backoffs are concerned.

mod deliveries;
mod faults;
mod persistence;
mod python;
mod resources;
mod semantics;
mod world;
