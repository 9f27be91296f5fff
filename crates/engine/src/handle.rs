//! The handle of a running pipeline: everything that commands may ask of it.

use std::sync::Arc;

use millstream_core::Result;

use crate::settings::Settings;
use crate::status::{Status, Summary};
use crate::world::World;

/// Asks things of a running pipeline. Cheap to clone; dropping all handles changes nothing.
#[derive(Debug, Clone)]
pub struct Handle {}

/// Starts the pipeline on the current tokio runtime.
pub fn start(_world: Arc<dyn World>, _settings: Settings) -> Handle {
    Handle {}
}

impl Handle {
    /// Finish what is in flight, take a last checkpoint, end.
    pub fn drain(&self) {}

    /// End now, without a last checkpoint; the next run goes on from the last one.
    pub fn cancel(&self) {}

    /// Stop taking records in; epochs go on.
    pub fn pause(&self) {}

    /// Take records in again.
    pub fn resume(&self) {}

    /// End the current epoch and copy its checkpoint under `name`; returns where the copy is.
    pub async fn savepoint(&self, _name: &str) -> Result<String> {
        Err(millstream_core::Error::fatal("not running"))
    }

    /// What the pipeline tells about itself now.
    pub fn status(&self) -> Status {
        unreachable!()
    }

    /// Waits for the end. `Err` if the pipeline failed: the first cause.
    pub async fn wait(&self) -> Result<Summary> {
        Err(millstream_core::Error::fatal("not running"))
    }
}
