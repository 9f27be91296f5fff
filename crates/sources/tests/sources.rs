//! The sources as a pipeline sees them: through their contract, against real files.

#![allow(
    clippy::unwrap_used,
    reason = "a test's set-up may panic; clippy's own exception covers test functions only"
)]

mod sources {
    mod files;
    mod frames;
    mod gzip;
    mod harness;
    mod model;
    mod odd_files;
}
