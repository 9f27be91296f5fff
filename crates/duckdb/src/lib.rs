//! The DuckDB sink: full history and current state of every table in an embedded database file, exactly once.
//!
//! Limits first. A file belongs to one process while it is open. Calls block the thread that polls their futures. DuckDB
//! takes names that differ by case for one. Decimals beyond 38 digits are kept as exact text.

mod batch;
mod catalog;
mod changelog;
mod column_data;
mod column_type;
mod config;
mod database;
mod ddl;
mod dialect;
mod error;
mod handover;
mod history;
mod ident;
mod inserter;
mod listing;
mod naming;
mod nested;
mod query;
mod recovery;
mod replica;
mod replica_sql;
mod rows;
mod session;
mod sink;
mod table;
mod token;
mod vectors;

pub use config::{Decimals, DeleteMode, DuckConfig, Layout};
pub use database::{Database, MEMORY_MIB};
pub use ident::{literal, qualify, quote};
pub use listing::{ListedColumn, ListedTable, tables, views};
pub use query::{Answer, query};
pub use sink::DuckSink;
