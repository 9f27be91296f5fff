//! Runs a pipeline: epochs, shards, flow control, recovery and restarts.
//!
//! ```text
//! intake ──in turns──▶ decode workers ──in the same turns──▶ dispatch ──by key──▶ shards ──▶ sinks
//!   ▲                                                                              │          │
//!   └──────────────── release ◀── checkpoint ◀────── barrier: state, tokens, counters ◀───────┘
//! ```
//!
//! The engine knows only the contracts of `millstream-core`. It needs a tokio runtime and takes its time from a
//! [`Clock`], so that the same code runs in production and, on a paused single-threaded runtime, in simulation.
#![expect(clippy::vec_box, reason = "moving events from hand to hand costs more than their allocation")]

mod attempt;
mod coordinator;
mod decode;
mod dispatch;
mod flow;
mod handle;
mod histogram;
mod intake;
mod latency;
mod patience;
mod recovery;
mod settings;
mod shard;
mod sink_lane;
mod status;
mod supervisor;
mod world;

pub use handle::{Handle, start};
pub use histogram::Histogram;
pub use latency::Latencies;
pub use settings::{Restart, Settings};
pub use status::{CheckpointFacts, Phase, Status, Summary};
pub use world::{Clock, SystemClock, World};
