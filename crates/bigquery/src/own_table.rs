//! Tables of a sink's own, into which a few rows go now and then, at least once each.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Result;
use tokio::time::{Instant, sleep};

use crate::append::{AppendOptions, Appender, Batch};
use crate::backoff::Backoff;
use crate::descriptor::Descriptor;
use crate::encode::RowWriter;
use crate::field::Field;
use crate::rows::Rows;
use crate::session::Session;
use crate::table_resource::{Partitioning, Table};
use crate::write_error::WriteErrorKind;

/// A table that was just made is not known everywhere at once.
const PATIENCE: Duration = Duration::from_secs(120);

/// A table of a sink's own.
pub(crate) struct OwnTable {
    name: &'static str,
    fields: Vec<Field>,
    description: &'static str,
    partitioning: Option<Partitioning>,
    appender: Option<Appender>,
    is_missing: bool,
}

impl OwnTable {
    /// A table that is made when the first row goes into it, if the config allows that.
    pub(crate) fn new(
        name: &'static str,
        description: &'static str,
        fields: Vec<Field>,
        partitioning: Option<Partitioning>,
    ) -> Self {
        Self { name, fields, description, partitioning, appender: None, is_missing: false }
    }

    /// Writes rows. Where all tables are somebody else's to make, this one need not be there.
    pub(crate) async fn write(&mut self, session: &Session, mut rows: RowWriter) -> Result<()> {
        if rows.is_empty() || self.is_missing {
            return Ok(());
        }
        if self.appender.is_none() && !self.make(session).await? {
            self.is_missing = true;
            return Ok(());
        }
        let rows = rows.take();
        let (mut backoff, began) = (Backoff::new(), Instant::now());
        loop {
            let Err(error) = self.append(session, rows.clone()).await? else { return Ok(()) };
            if error.kind() != WriteErrorKind::NotFound || began.elapsed() > PATIENCE {
                return Err(error.into());
            }
            sleep(backoff.wait()).await;
        }
    }

    async fn append(
        &mut self,
        session: &Session,
        rows: Rows,
    ) -> Result<Result<(), crate::write_error::WriteError>> {
        let storage = session.storage.clone();
        let appender = self
            .appender
            .get_or_insert_with(|| Appender::to_default_streams(storage, AppendOptions::default()));
        let descriptor = Descriptor::new(&self.fields).map_err(millstream_core::Error::fatal)?;
        let stream: Arc<str> = session.table(self.name).default_stream().into();
        let handle = match appender.append(Batch { stream, descriptor, rows }).await {
            Ok(handle) => handle,
            Err(error) => return Ok(Err(error)),
        };
        Ok(handle.await.map(drop))
    }

    async fn make(&self, session: &Session) -> Result<bool> {
        let id = session.table(self.name);
        if !session.config.create {
            return Ok(session.rest.table(&id).await?.is_some());
        }
        let table = Table {
            fields: self.fields.clone(),
            description: Some(self.description.to_owned()),
            partitioning: self.partitioning.clone(),
            ..Table::default()
        };
        session.rest.create_table(&id, &table).await?;
        Ok(true)
    }
}
