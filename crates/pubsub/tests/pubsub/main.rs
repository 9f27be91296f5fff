//! The Pub/Sub connectors against the emulator, over gRPC.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod failures;
mod letters;
mod publishing;
mod source;
mod world;
