//! Bytes to events: Debezium envelopes and flattened records.
