//! A table's way into BigQuery: a buffered stream of its own, or its default stream among others'.
//!
//! Rows are kept until they are acknowledged. Those that came to a stream which does not know the table's newest columns yet, or that
//! is gone, are sent again to a new one: a change of columns takes a while until every server of the service knows it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::{Cause, Error, RecordBatch, Result};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::append::{Acked, AppendOptions, Appender, Batch};
use crate::backoff::Backoff;
use crate::config::{BigqueryConfig, Delivery, Layout};
use crate::descriptor::Descriptor;
use crate::load::LoadFile;
use crate::pending::Origins;
use crate::resource::TableId;
use crate::rows::Rows;
use crate::session::Session;
use crate::stream::StreamKind;
use crate::token::Flush;
use crate::write_error::{WriteError, WriteErrorKind};

/// How long a stream may not know its table's columns.
const PROPAGATION_PATIENCE: Duration = Duration::from_secs(600);
/// Rows may come back for so long before somebody is told.
const TOLD_AFTER: Duration = Duration::from_secs(5);
/// Bytes that a stream of its own may hold unacknowledged; all together are bounded by the session.
const STREAM_BYTES_MAX: usize = 16 << 20;

/// What an epoch wrote to a table.
#[derive(Default)]
pub(crate) struct Settled {
    /// What has to be flushed for it to be seen.
    pub(crate) flushes: Vec<Flush>,
    /// What has to be loaded.
    pub(crate) files: Vec<LoadFile>,
    /// Rows that the service refused, and the records that they came from.
    pub(crate) refused: Vec<(Arc<RecordBatch>, u32, Cause)>,
    /// Streams that take no more rows.
    pub(crate) retired: Vec<Arc<str>>,
}

/// Rows that are handed over together.
struct Parcel {
    rows: Rows,
    origins: Origins,
    descriptor: Descriptor,
    /// Given back when they are acknowledged, and not before: rows that have to be sent again take their room with them.
    _room: OwnedSemaphorePermit,
}

/// A parcel on its way.
struct Sent {
    stream: Arc<str>,
    answer: JoinHandle<Answer>,
}

/// What became of a parcel.
enum Answer {
    Written {
        rows: u64,
        acked: Acked,
        origins: Origins,
    },
    /// It comes back.
    Failed(Parcel, WriteError),
}

/// A table's way into BigQuery.
pub(crate) struct Lane {
    table: TableId,
    buffered: bool,
    descriptor: Descriptor,
    /// The stream that rows go to; none before the first, or after the columns changed.
    open: Option<(Arc<str>, Arc<Appender>)>,
    /// Streams whose rows are not all acknowledged, though no more go to them.
    closing: Vec<(Arc<str>, Arc<Appender>)>,
    sent: VecDeque<Sent>,
    settled: Settled,
    /// Since when rows come back.
    failing_since: Option<Instant>,
    /// When a column's type was last changed.
    altered: Option<Instant>,
    /// That rows come back for long.
    told: bool,
}

impl Lane {
    /// A way into a table, not open yet.
    pub(crate) fn new(table: &TableId, config: &BigqueryConfig, descriptor: &Descriptor) -> Self {
        let is_history = !matches!(config.layout, Layout::Replica { .. });
        Self {
            table: table.clone(),
            buffered: is_history && config.delivery == Delivery::ExactlyOnce,
            descriptor: descriptor.clone(),
            open: None,
            closing: Vec::new(),
            sent: VecDeque::new(),
            settled: Settled::default(),
            failing_since: None,
            altered: None,
            told: false,
        }
    }

    /// Rows look like this from now on.
    pub(crate) fn renew(&mut self, descriptor: &Descriptor) {
        self.descriptor = descriptor.clone();
        if self.buffered {
            // A stream keeps the columns of its time.
            self.closing.extend(self.open.take());
        }
    }

    /// A column has another type now, which servers learn one after the other.
    pub(crate) fn altered(&mut self) {
        self.altered = Some(Instant::now());
    }

    /// Whether an epoch has rows that are not settled.
    pub(crate) fn is_busy(&self) -> bool {
        !self.sent.is_empty() || !self.settled.is_empty()
    }

    /// Hands rows over, once there is room for them.
    pub(crate) async fn send(&mut self, session: &Session, rows: Rows, origins: Origins) -> Result<()> {
        // What came back goes first, or it would hold the room that these wait for.
        self.advance(session, false).await?;
        let room = session.room(rows.byte_len()).await?;
        let descriptor = self.descriptor.clone();
        self.hand_over(session, Parcel { rows, origins, descriptor, _room: room }).await
    }

    async fn hand_over(&mut self, session: &Session, parcel: Parcel) -> Result<()> {
        let (stream, appender) = self.open(session).await?;
        let batch = Batch {
            stream: stream.clone(),
            descriptor: parcel.descriptor.clone(),
            rows: parcel.rows.clone(),
        };
        let answer = match appender.append(batch).await {
            Ok(handle) => tokio::spawn(async move { answered(handle.await, parcel) }),
            Err(error) => tokio::spawn(async move { answered(Err(error), parcel) }),
        };
        self.sent.push_back(Sent { stream, answer });
        Ok(())
    }

    async fn open(&mut self, session: &Session) -> Result<(Arc<str>, Arc<Appender>)> {
        if let Some(open) = &self.open {
            return Ok(open.clone());
        }
        let open = if self.buffered {
            let stream: Arc<str> = self.new_stream(session).await?.into();
            let options = AppendOptions { bytes_max: STREAM_BYTES_MAX, ..session.append_options() };
            let appender = Appender::to_stream(session.storage.clone(), stream.clone(), 0, options);
            (stream, Arc::new(appender))
        } else {
            (self.table.default_stream().into(), session.default_appender(&self.table))
        };
        self.open = Some(open.clone());
        Ok(open)
    }

    /// A table that was just made is not known everywhere at once.
    async fn new_stream(&mut self, session: &Session) -> Result<String> {
        let (mut backoff, began) = (Backoff::new(), Instant::now());
        loop {
            let error = match session.storage.create_stream(&self.table, StreamKind::Buffered).await {
                Ok(stream) => return Ok(stream.name),
                Err(error) => error,
            };
            let may_pass = error.kind() == WriteErrorKind::NotFound;
            if !may_pass || began.elapsed() > PROPAGATION_PATIENCE {
                return Err(error.into());
            }
            if began.elapsed() > TOLD_AFTER {
                self.look(session, &error).await?;
            }
            sleep(backoff.wait()).await;
        }
    }

    /// Takes in the answers that are there, in order; with `all` those to come, too. Rows that came back, and all behind them, are
    /// sent again.
    async fn advance(&mut self, session: &Session, all: bool) -> Result<()> {
        let mut backoff = Backoff::new();
        while self.sent.front().is_some_and(|first| all || first.answer.is_finished()) {
            let mut back = Vec::new();
            while self.sent.front().is_some_and(|sent| all || !back.is_empty() || sent.answer.is_finished()) {
                let Some(sent) = self.sent.pop_front() else { break };
                let lost = |e| {
                    Error::transient(format!("nobody knows what became of rows for {}", self.table))
                        .with_source(e)
                };
                match sent.answer.await.map_err(lost)? {
                    Answer::Written { rows, acked, origins } => {
                        self.settled.take(&sent.stream, rows, &origins, &acked)?;
                    }
                    Answer::Failed(parcel, error) => {
                        let since = *self.failing_since.get_or_insert_with(Instant::now);
                        if !self.may_pass(&error) || since.elapsed() > PROPAGATION_PATIENCE {
                            return Err(error.into());
                        }
                        if since.elapsed() > TOLD_AFTER {
                            self.look(session, &error).await?;
                        }
                        back.push(parcel);
                    }
                }
            }
            if back.is_empty() {
                (self.failing_since, self.told) = (None, false);
                continue;
            }
            // What comes back is in order, and everything behind the first of a stream came back with it.
            self.renew(&self.descriptor.clone());
            sleep(backoff.wait()).await;
            for parcel in back {
                self.hand_over(session, parcel).await?;
            }
        }
        Ok(())
    }

    /// Whether the table is still there, when rows come back for long; told once.
    async fn look(&mut self, session: &Session, error: &WriteError) -> Result<()> {
        if std::mem::replace(&mut self.told, true) {
            return Ok(());
        }
        if session.rest.table(&self.table).await?.is_none() {
            let text = "it was dropped or renamed while the pipeline wrote to it. Start again: it is made anew if nothing is lost with it, else the start \
                 says what helps";
            return Err(Error::fatal(format!("{} is gone: {text}", self.table)));
        }
        tracing::warn!(
            "rows for {} are sent again and again until every server knows the table as it is now: {error}",
            self.table
        );
        Ok(())
    }

    fn may_pass(&self, error: &WriteError) -> bool {
        match error.kind() {
            WriteErrorKind::ExtraFields | WriteErrorKind::NotFound | WriteErrorKind::StreamFinalized => true,
            WriteErrorKind::Precondition => self.buffered,
            WriteErrorKind::Invalid => self.altered.is_some_and(|at| at.elapsed() < PROPAGATION_PATIENCE),
            _ => false,
        }
    }

    /// Waits until every row that was sent is acknowledged or refused; what became of them is told by [`settle`](Self::settle).
    pub(crate) async fn wait(&mut self, session: &Session) -> Result<()> {
        self.advance(session, true).await
    }

    /// Waits until every row of an epoch is acknowledged or refused.
    pub(crate) async fn settle(&mut self, session: &Session) -> Result<Settled> {
        self.advance(session, true).await?;
        let retired = self.closing.drain(..).map(|(stream, _)| stream).collect();
        Ok(Settled { retired, ..std::mem::take(&mut self.settled) })
    }

    /// Its last rows were written. Answers its streams; more rows would go to a new one.
    pub(crate) fn retire(&mut self) -> Vec<Arc<str>> {
        let open = self.open.take().filter(|_| self.buffered);
        self.closing.drain(..).chain(open).map(|(stream, _)| stream).collect()
    }
}

fn answered(result: Result<Acked, WriteError>, parcel: Parcel) -> Answer {
    match result {
        Ok(acked) => {
            let rows = parcel.rows.len() as u64;
            // Records are only needed for those that were refused.
            let origins = if acked.row_errors.is_empty() { Origins::default() } else { parcel.origins };
            Answer::Written { rows, acked, origins }
        }
        Err(error) => Answer::Failed(parcel, error),
    }
}

impl Settled {
    fn is_empty(&self) -> bool {
        self.flushes.is_empty() && self.refused.is_empty()
    }

    fn take(&mut self, stream: &Arc<str>, rows: u64, origins: &Origins, acked: &Acked) -> Result<()> {
        for error in &acked.row_errors {
            // What the service says of a row may quote its values.
            let cause = Cause::new(
                "refused_by_bigquery",
                "BigQuery refuses the row: a value does not fit its column",
            );
            match origins.of(error.index) {
                Some((records, record)) => self.refused.push((records, record, cause)),
                None => return Err(Error::fatal(format!("{stream}: {}", cause.text))),
            }
        }
        let Some(offset) = acked.last_offset else { return Ok(()) };
        let rows = rows - acked.row_errors.len() as u64;
        match self.flushes.iter_mut().find(|flush| *flush.stream == **stream) {
            Some(flush) => {
                flush.offset = flush.offset.max(offset);
                flush.rows += rows;
            }
            None => self.flushes.push(Flush { stream: stream.to_string(), offset, rows }),
        }
        Ok(())
    }
}
