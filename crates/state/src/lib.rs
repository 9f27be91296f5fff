//! The local checkpoint store: keyed state, positions, tokens and counters in one embedded LSM tree.
//!
//! Limits: one process owns a store at a time (a lock file refuses a second one); the disk must keep what fsync
//! promised. Every durable byte carries a format number, and an unknown one is refused, never guessed.

mod absent;
mod fields;
mod filter;
mod format;
mod local;
mod savepoint;

pub use format::{decode_checkpoint, encode_checkpoint};
pub use local::{LocalStore, Options};
