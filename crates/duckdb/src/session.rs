//! What a sink's tables share: its connection, its metadata and the epoch.

use duckdb::Connection;
use millstream_core::Result;
use millstream_core::evolution::Rules;

use crate::catalog::{Catalog, Mark};
use crate::config::DuckConfig;
use crate::database::Database;
use crate::error::Explain;

pub(crate) struct Session {
    pub(crate) config: DuckConfig,
    pub(crate) database: Database,
    pub(crate) connection: Connection,
    pub(crate) catalog: Catalog,
    /// The epoch that is being written.
    pub(crate) mark: Mark,
}

impl Session {
    /// The rules of schema evolution.
    pub(crate) fn rules(&self) -> Rules {
        Rules { policy: self.config.on_type_change, precision_max: self.config.decimals.precision_max() }
    }

    /// Runs statements, saying what they are for if they fail.
    pub(crate) fn run(&self, sql: &str, doing: impl FnOnce() -> String) -> Result<()> {
        self.connection.execute_batch(sql).explain(doing)
    }
}
