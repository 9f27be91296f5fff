//! The decoders against the corpus of real events, every encoding, and everything that is no event.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod corpus;
mod encodings;
mod envelopes;
mod flat;
mod golden;
mod hinted;
mod malformed;
mod messages;
mod plain;
