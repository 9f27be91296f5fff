//! The sink against real files.

#[path = "duckdb/append.rs"]
mod append;
#[path = "duckdb/world.rs"]
mod world;
