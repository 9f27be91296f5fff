//! The Pub/Sub emulator over gRPC. Time passes by `advance` where leases and backoffs are concerned.

mod deliveries;
mod world;
