//! The simulated world: crashes, redelivery, reordering, checkers and mutants.
//!
//! A seed decides everything: a small database's [`history`], how its records are repeated, reordered and split into
//! partitions ([`delivery`]), which connectors surround the pipeline ([`world`]), and what goes wrong ([`fault`]). The engine,
//! its shards and its gates are the real ones, on one thread and on virtual time. A process lives until it crashes: its runtime
//! is dropped between two steps, and the next one starts over what was durable ([`disk`]).
//!
//! Checkers stand outside. They look at the sinks' contents, the dead letters and the checkpoints, at every step and once more
//! when everything was delivered ([`verdict`]). Whether they see anything is shown by the [`Mutant`]s.
//!
//! `MILLSTREAM_SIM_SEEDS=n` runs n seeds, `MILLSTREAM_SIM_SEED=n` runs one and prints what happened.

mod decoder;
mod delivery;
mod disk;
mod fault;
mod history;
mod history_sink;
mod letters;
mod mutant;
mod random;
mod replica_sink;
mod scenario;
mod sink;
mod source;
mod stage;
mod store;
mod verdict;
mod world;
mod writer;

pub use fault::{Call, Edge, Fault};
pub use mutant::Mutant;
pub use scenario::{Options, Outcome, run};
