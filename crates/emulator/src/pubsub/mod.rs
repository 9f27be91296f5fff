//! An emulator of Google Cloud Pub/Sub (gRPC, `google.pubsub.v1`). Limits: pull only, no push and no exports; no schemas.
//!
//! A message stays the bytes that its publisher sent: it is looked through once, when it is published, and gets its id
//! and time appended on its way out.

mod ack_id;
mod backlog;
mod broker;
mod clock;
mod counts;
mod faults;
mod fields;
mod filter;
mod flow;
mod housekeeping;
mod journal;
mod lease;
mod message;
mod names;
mod ordering;
mod paging;
pub(crate) mod permissions;
mod publisher;
mod record;
mod recovery;
mod server;
mod snapshot;
mod snapshots;
mod status;
mod stream;
mod subscriber;
mod subscription;
mod topic;
pub(crate) mod wire;

pub use counts::{Counts, SubscriptionCounts};
pub use faults::{Action, Denial, Faults, Step};
pub use server::{Builder, Running, Server};

/// The generated server traits.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(crate) mod api {
    pub(crate) use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::*;

    include!(concat!(env!("OUT_DIR"), "/google.pubsub.v1.Publisher.rs"));
    include!(concat!(env!("OUT_DIR"), "/google.pubsub.v1.Subscriber.rs"));
    include!(concat!(env!("OUT_DIR"), "/google.iam.v1.IAMPolicy.rs"));
}
