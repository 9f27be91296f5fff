//! The local checkpoint store.
