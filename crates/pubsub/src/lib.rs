//! Pub/Sub: a source that leases messages until their checkpoint is durable, a sink that publishes, and a topic for dead
//! letters; over gRPC, with the service, its emulators, or Google's own fake.
//!
//! Limits:
//! - Delivery is at least once, and so is publishing: after a crash messages come, or are published, again. Events that come again
//!   are recognised by the pipeline's state; of control records and dead letters the copies are counted like the first.
//! - Values inside of messages are taken as they are: compressed payloads and Pub/Sub schemas (Avro, protobuf) are not decoded.
//! - Subscriptions that a prefix names are looked up once, at the start.
//!
//! The official client crates are not used here: the source must know each lease, acknowledge by checkpoint, and never nack by
//! itself, which is what they do when a handler is dropped. The messages and stubs are Google's.

pub mod admin;
mod backoff;
mod client;
mod config;
mod confirmation;
mod failure;
pub mod letters;
mod name;
pub mod permission;
mod publisher;
pub mod sink;
pub mod source;

pub use client::Client;
pub use config::{Connection, Create, PubsubConfig, SeekTo};
pub use letters::LetterTopic;
pub use name::{SnapshotName, SubscriptionName, TopicName};
pub use publisher::{Message, Publisher};
pub use sink::PubsubSink;
pub use source::PubsubSource;
