//! Sources: files.
//!
//! Every source is a folder with the same parts: its config, its reader and what it does on acknowledgement.

pub mod files;
