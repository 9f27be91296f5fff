//! The sink against real files.
#![allow(clippy::unwrap_used)]

#[path = "duckdb/append.rs"]
mod append;
#[path = "duckdb/changelog.rs"]
mod changelog;
#[path = "duckdb/evolution.rs"]
mod evolution;
#[path = "duckdb/latest.rs"]
mod latest;
#[path = "duckdb/names.rs"]
mod names;
#[path = "duckdb/plain.rs"]
mod plain;
#[path = "duckdb/replica.rs"]
mod replica;
#[path = "duckdb/splits.rs"]
mod splits;
#[path = "duckdb/values.rs"]
mod values;
#[path = "duckdb/world.rs"]
mod world;
