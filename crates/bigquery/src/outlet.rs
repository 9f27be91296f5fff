//! Where a table's rows go: to a stream of the Storage Write API, or into files that are loaded.

use std::sync::Arc;

use millstream_core::Result;

use crate::form::Form;
use crate::lane::{Lane, Settled};
use crate::load::FileLane;
use crate::pending::Origins;
use crate::resource::TableId;
use crate::rows::Rows;
use crate::session::Session;

/// Where a table's rows go.
pub(crate) enum Outlet {
    Stream(Box<Lane>),
    Files(Box<FileLane>),
}

impl Outlet {
    /// The one that the config asks for, not open yet.
    pub(crate) fn new(session: &Session, table: &TableId, form: &Form) -> Self {
        match &session.yard {
            Some((yard, shards)) => {
                let lane = FileLane::new(&Arc::clone(yard), &table.table, &form.fields, *shards);
                Self::Files(Box::new(lane))
            }
            None => Self::Stream(Box::new(Lane::new(table, &session.config, &form.descriptor))),
        }
    }

    /// Rows look like this from now on.
    pub(crate) fn renew(&mut self, form: &Form) {
        match self {
            Self::Stream(lane) => lane.renew(&form.descriptor),
            Self::Files(lane) => lane.renew(&form.fields),
        }
    }

    /// A column has another type now.
    pub(crate) fn altered(&mut self) {
        // Under files no column changes its type, see `dialect::of`.
        if let Self::Stream(lane) = self {
            lane.altered();
        }
    }

    /// Whether an epoch has rows that are not settled.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Self::Stream(lane) => lane.is_busy(),
            Self::Files(lane) => lane.is_busy(),
        }
    }

    /// Hands rows over, once there is room for them.
    pub(crate) async fn send(&mut self, session: &Session, rows: Rows, origins: Origins) -> Result<()> {
        match self {
            Self::Stream(lane) => lane.send(session, rows, origins).await,
            Self::Files(lane) => lane.send(session, rows, origins).await,
        }
    }

    /// Waits until every row that was sent is acknowledged or refused.
    pub(crate) async fn wait(&mut self, session: &Session) -> Result<()> {
        match self {
            Self::Stream(lane) => lane.wait(session).await,
            Self::Files(lane) => lane.wait().await,
        }
    }

    /// Its last rows were written. Answers streams that take no more.
    pub(crate) fn retire(&mut self) -> Vec<Arc<str>> {
        match self {
            Self::Stream(lane) => lane.retire(),
            Self::Files(_) => Vec::new(),
        }
    }

    /// Waits until every row of an epoch is durable or refused.
    pub(crate) async fn settle(&mut self, session: &Session) -> Result<Settled> {
        match self {
            Self::Stream(lane) => lane.settle(session).await,
            Self::Files(lane) => lane.settle().await,
        }
    }
}
