//! Lines of local files as records: one file, a directory, or a glob; plain or gzip; read once or followed.
//!
//! Limits:
//! - Reading blocks the thread for one chunk (half a MiB) at a time; only waiting for new data is asynchronous.
//! - A file is told by device, inode and a fingerprint of what was read. Rewriting a file in place with the same bytes
//!   in the same places cannot be told from leaving it alone.
//! - An unfinished line longer than a chunk is expected to grow; that its start was rewritten is not noticed.
//! - At most 64 files are held open. A followed file that is renamed out of the pattern, or deleted, is read to its
//!   end only while it is held; otherwise the unread rest is reported as `file_missing`.
//! - Positions of files are never forgotten: a file that comes back is known.

mod ack;
mod backlog;
mod batch;
mod catalog;
mod chunk;
mod config;
mod discovery;
mod frame;
mod handles;
mod input;
mod lines;
mod position;
mod reader;
mod sight;

pub use config::{FilesConfig, Lines};
pub use reader::FileSource;
