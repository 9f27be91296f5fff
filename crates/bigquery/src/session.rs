//! What the tables of a sink share.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::bytes::fnv1a;
use millstream_core::evolution::{ChangePolicy, Decimals, Rules};
use millstream_core::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::append::{AppendOptions, Appender};
use crate::config::{BigqueryConfig, Delivery, Layout};
use crate::dataset::Dataset;
use crate::load::{Gcs, Yard};
use crate::resource::{DatasetId, TableId};
use crate::rest::Rest;
use crate::roster::Roster;
use crate::stream::Storage;

/// Bytes of rows that are sent and not acknowledged, of all tables together.
const SENT_BYTES_MAX: usize = 64 << 20;
/// The unit in which they are counted.
const UNIT: usize = 1024;
/// Connections of default streams, which any number of tables share.
const DEFAULT_APPENDERS: usize = 2;
/// Channels of streams that belong to one table each; a channel carries about a hundred connections, of which there are 500 at most.
const STREAM_CHANNELS: usize = 8;

/// The running epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) epoch: u64,
    pub(crate) ingested_at_us: i64,
}

/// What the tables of a sink share.
pub(crate) struct Session {
    pub(crate) config: BigqueryConfig,
    pub(crate) rest: Rest,
    pub(crate) storage: Storage,
    pub(crate) dataset: DatasetId,
    pub(crate) mark: Mark,
    /// Where files go that are loaded, and in how many at a time.
    pub(crate) yard: Option<(Arc<Yard>, usize)>,
    /// Names, folded, that tables of this sink have.
    pub(crate) taken: HashSet<String>,
    /// Which tables were there; `None` where nobody asks.
    pub(crate) roster: Option<Roster>,
    room: Arc<Semaphore>,
    default_appenders: Vec<Arc<Appender>>,
}

impl Session {
    /// Nothing is asked yet.
    pub(crate) fn new(config: BigqueryConfig) -> Result<Self> {
        let rest = Rest::new(&config.connection)?;
        let shares =
            config.delivery != Delivery::ExactlyOnce || matches!(config.layout, Layout::Replica { .. });
        let channels = if shares { DEFAULT_APPENDERS } else { STREAM_CHANNELS };
        let storage = Storage::new(&config.connection, channels)?;
        let dataset = DatasetId::new(&config.project, &config.dataset);
        let yard = match &config.delivery {
            Delivery::Load(options) => {
                let gcs = Gcs::new(&config.connection)?;
                Some((
                    Arc::new(Yard::new(gcs, options, (&config.pipeline, &config.name), &dataset)),
                    options.shards,
                ))
            }
            Delivery::ExactlyOnce | Delivery::AtLeastOnce => None,
        };
        let mut session = Self {
            config,
            rest,
            storage,
            dataset,
            mark: Mark::default(),
            yard,
            taken: HashSet::new(),
            roster: None,
            room: Arc::new(Semaphore::new(SENT_BYTES_MAX / UNIT)),
            default_appenders: Vec::new(),
        };
        session.renew();
        Ok(session)
    }

    /// Connections anew: what was sent on those before is of no interest any more.
    pub(crate) fn renew(&mut self) {
        let appender = || Arc::new(Appender::to_default_streams(self.storage.clone(), self.append_options()));
        self.default_appenders = (0..DEFAULT_APPENDERS).map(|_| appender()).collect();
        self.taken.clear();
    }

    /// What appenders are told.
    pub(crate) fn append_options(&self) -> AppendOptions {
        let trace_id = format!("millstream:{}:{}", self.config.pipeline, self.config.name);
        AppendOptions { trace_id, ..AppendOptions::default() }
    }

    /// Waits for room for rows of so many bytes.
    pub(crate) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT).clamp(1, SENT_BYTES_MAX / UNIT) as u32;
        let closed = |_| Error::fatal("invariant: the room for rows is never closed");
        self.room.clone().acquire_many_owned(units).await.map_err(closed)
    }

    /// The connection of a table's default stream: always the same one, so that its rows stay in order.
    pub(crate) fn default_appender(&self, table: &TableId) -> Arc<Appender> {
        let at = fnv1a(table.table.as_bytes()) as usize % self.default_appenders.len();
        self.default_appenders[at].clone()
    }

    /// The rules of schema evolution.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            policy: match self.config.layout {
                // What is declared is all that there is.
                Layout::Rows => ChangePolicy::DeadLetter,
                _ => self.config.on_type_change,
            },
            decimals: Decimals { precision: 76, whole: 38, fraction: 38 },
        }
    }

    /// A table of the dataset.
    pub(crate) fn table(&self, name: &str) -> TableId {
        self.dataset.table(name)
    }

    /// Finds the dataset, or makes it; where it is.
    pub(crate) async fn need_dataset(&self) -> Result<Option<String>> {
        let wanted = self.config.location.as_deref();
        let found = match self.rest.dataset(&self.dataset).await? {
            Some(found) => found,
            None if !self.config.create => {
                return Err(Error::fatal(format!(
                    "there is no dataset {}: make it, or leave `create` at `if-needed`",
                    self.dataset
                )));
            }
            None => {
                let dataset = Dataset {
                    location: Some(wanted.unwrap_or("US").to_owned()),
                    ..Dataset::new(self.dataset.clone())
                };
                self.rest.create_dataset(&dataset).await?;
                return Ok(dataset.location);
            }
        };
        match (wanted, found.location) {
            (Some(wanted), Some(found)) if !wanted.eq_ignore_ascii_case(&found) => {
                Err(Error::fatal(format!(
                    "the dataset {} is in {found}, and the config says `location: {wanted}`: a dataset cannot be moved, so \
                     mend the config or name another dataset",
                    self.dataset
                )))
            }
            (_, found) => Ok(found),
        }
    }

    /// How old what a replica's readers see may be; `None` for what is not written by native upserts.
    pub(crate) fn max_staleness(&self) -> Option<Duration> {
        self.is_upserted().then_some(self.config.freshness)
    }

    /// Whether tables are written by native upserts.
    pub(crate) fn is_upserted(&self) -> bool {
        matches!(self.config.layout, Layout::Replica { .. }) && self.config.merge.is_none()
    }
}
