//! The control plane over a real engine and real sockets, with trivial connectors. What asks here is written by hand, so that
//! what is tested is what goes over the wire.

// Helpers of tests are not tests in clippy's eyes.
#![allow(clippy::unwrap_used)]

mod client;
mod control;
mod metrics;
mod text_format;
mod world;
