//! Sources: files.
