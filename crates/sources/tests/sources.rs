//! The sources as a pipeline sees them: through their contract, against real files.

mod sources {
    mod files;
    mod frames;
    mod gzip;
    mod harness;
    mod model;
    mod odd_files;
}
