//! Dedupe: which events are new, which are newest, and what unchanged large values are.
