//! The nouns, contracts and pure stages of Millstream.
//!
//! This crate knows no I/O, no clock, no randomness and no async runtime: everything in it can be
//! replayed, fuzzed and hosted anywhere. The data's way through it is
//!
//! [`Record`] (bytes from a [`source`]) → [`decoder`] → [`Event`] → [`dedupe`] → [`Judged`] → [`sink`],
//!
//! and an [`checkpoint::Checkpoint`] is what makes one stretch of that way durable.

pub mod bytes;
pub mod checkpoint;
pub mod counters;
pub mod dead;
pub mod decoder;
pub mod dedupe;
pub mod error;
pub mod event;
pub mod evolution;
pub mod key;
pub mod order;
pub mod position;
pub mod record;
pub mod row;
pub mod schema;
pub mod sink;
pub mod source;
pub mod store;
pub mod value;
pub mod watermark;

pub use checkpoint::{Checkpoint, CommitToken, Epoch};
pub use counters::{Counters, TableCounters};
pub use dead::{Cause, DeadLetter, DeadLetters, Stage};
pub use decoder::{Control, DecodeNotice, Decoded, Decoder};
pub use error::{Error, Kind, Result};
pub use event::{Event, Facts, Op, Snapshot};
pub use key::Key;
pub use order::{EventId, Incarnation, Order};
pub use position::{PartitionId, Position};
pub use record::{Body, Header, Record, RecordBatch};
pub use row::{Row, RowBuilder};
pub use schema::{Column, RowSchema, TableName};
pub use sink::{Judged, Output, OutputBatch, Patch, Sink, SinkFigures, TellSinkFigures};
pub use source::{Budget, Next, Source, SourceFigures, TellFigures};
pub use store::{Space, StateDelta, StateView, Store};
pub use value::{Field, Type, Value};

/// A boxed future, the return type of the batch-level contracts.
pub type Fut<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
