//! An emulator of BigQuery, to test against without an account: the REST API, GoogleSQL as far as a tool that loads
//! tables needs it, and the Storage Write API (gRPC, `google.cloud.bigquery.storage.v1.BigQueryWrite`) with native change
//! data capture and faults on demand. Limits: no TLS, no permissions, no quotas; the SQL is that of DuckDB, translated.
//!
//! It is a crate of its own because it links libduckdb, which emulators of other services do without.

mod append;
mod catalog;
mod clock;
mod connection;
mod engine;
mod evolution;
mod failure;
mod faults;
mod gcs;
mod job;
mod landing;
mod load;
mod persistence;
mod rest;
mod row;
mod schema;
mod server;
mod sql;
mod status;
mod stream;
mod table;
mod upsert;
mod warehouse;
pub(crate) mod wire;
mod write;

pub use faults::{Action, Denial, Faults, Step};
pub use server::{Builder, Running, Server};

/// The generated server trait, and the API's messages.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(crate) mod api {
    pub(crate) use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1::*;

    include!(concat!(env!("OUT_DIR"), "/google.cloud.bigquery.storage.v1.BigQueryWrite.rs"));
}
