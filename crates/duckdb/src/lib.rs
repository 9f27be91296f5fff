//! The DuckDB sink.
