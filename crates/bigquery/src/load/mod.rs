//! `delivery: load`: rows go into files in Cloud Storage, and load jobs take these into their tables.
//!
//! `prepare` ends an epoch's files and names in its token all files that are in the bucket and not in their tables, in batches that are
//! loaded together: at most one whose jobs run, and the one that is still growing. When the triggering frequency is due, or the run
//! ends, the growing batch is closed, as the last committed token names it, and loaded beside the flow of rows. A recovery loads every
//! batch of the last token: what was closed after it is the very batch that it names as growing, so that jobs have the same files, and
//! with them the same ids. Batches are loaded one after the other; the epoch of each is noted in `_millstream_epochs` before
//! its files are deleted, and one whose epoch is noted is not loaded again.

mod courier;
mod file;
mod gcs;
mod jsonl;
mod lane;
mod parquet;
mod token;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::{CommitToken, Error, Fut, Result, SinkFigures, TellSinkFigures};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::backoff::Backoff;
use crate::session::{Mark, Session};

pub use courier::FILES_MAX;
use courier::{Courier, Done};
pub(crate) use file::{LoadFile, Yard};
pub use gcs::{Bucket, Gcs};
pub(crate) use lane::FileLane;
use token::LoadToken;

/// How long loads are tried that fail for passing reasons, before the sink fails.
const PATIENCE: Duration = Duration::from_secs(600);

/// The loads of a sink.
pub(crate) struct Loads {
    shared: Arc<Shared>,
    every: Duration,
    /// Loads batches; there from the recovery on.
    loader: Option<JoinHandle<()>>,
}

struct Shared {
    ledger: Mutex<Ledger>,
    /// The ledger changed.
    changed: Notify,
    /// The loads ended with an error.
    failed: Notify,
}

/// Files in the bucket, and what is to become of them.
#[derive(Default)]
struct Ledger {
    /// Files whose jobs run.
    loading: Vec<LoadFile>,
    /// The epoch after which they were closed.
    loading_mark: Mark,
    /// Files of the batch that is growing.
    growing: Vec<LoadFile>,
    growing_mark: Mark,
    /// A token that names more files is not known to be durable, or not to be: the growing batch must not be closed.
    in_doubt: bool,
    /// When it is closed.
    due: Option<Instant>,
    /// The run comes to its end: it is closed at once.
    ending: bool,
    failed: Option<Error>,
    done: Done,
}

impl Ledger {
    /// The error with which the loads ended, once.
    fn check(&mut self) -> Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn may_close(&self) -> bool {
        self.loading.is_empty() && !self.growing.is_empty() && !self.in_doubt
    }
}

impl Loads {
    pub(crate) fn new(every: Duration) -> Self {
        let ledger = Mutex::new(Ledger::default());
        Self {
            shared: Arc::new(Shared { ledger, changed: Notify::new(), failed: Notify::new() }),
            every,
            loader: None,
        }
    }

    /// Loads what the last token names and deletes all other files. `visible` is the last epoch that is known to be in the tables.
    pub(crate) async fn recover(
        &mut self,
        session: Session,
        location: Option<String>,
        last: Option<&CommitToken>,
        visible: Option<i64>,
    ) -> Result<()> {
        let Some((yard, _)) = &session.yard else {
            return Err(Error::fatal("invariant: who loads files has a bucket"));
        };
        let yard = Yard::clone(yard);
        let mut courier = Courier::new(session, yard.clone(), location);
        let token = last.map(token::decode).transpose()?;
        let batches = token.into_iter().flat_map(|token| token.batches);
        let mut done = Done::default();
        for batch in batches {
            let Some(mark) = mark_of(&batch) else { continue };
            if visible.is_none_or(|visible| visible < mark.ingested_at_us) {
                done = done.and(courier.deliver(&batch, mark).await?);
            }
        }
        clear(&yard).await?;
        *self.shared.lock() = Ledger { due: Some(Instant::now() + self.every), done, ..Ledger::default() };
        let (shared, every) = (self.shared.clone(), self.every);
        if let Some(before) = self.loader.replace(tokio::spawn(run(shared, courier, every))) {
            before.abort();
        }
        Ok(())
    }

    /// Takes an epoch's files; the token that names them and all that wait.
    pub(crate) fn prepare(&mut self, mark: Mark, files: Vec<LoadFile>) -> Result<Option<CommitToken>> {
        let mut ledger = self.shared.lock();
        ledger.check()?;
        if files.is_empty() {
            return Ok(None);
        }
        ledger.growing.extend(files);
        (ledger.growing_mark, ledger.in_doubt) = (mark, true);
        let batches = [&ledger.loading, &ledger.growing];
        let batches = batches.into_iter().filter(|batch| !batch.is_empty()).cloned().collect();
        Ok(Some(token::encode(&LoadToken { mark, batches })))
    }

    /// The token is durable.
    pub(crate) fn commit(&mut self) -> Result<()> {
        let mut ledger = self.shared.lock();
        ledger.in_doubt = false;
        self.shared.changed.notify_one();
        ledger.check()
    }

    /// Loads what waits, waits for that, and leaves no file behind.
    pub(crate) async fn finish(&mut self, session: &Session) -> Result<()> {
        self.shared.lock().ending = true;
        self.shared.changed.notify_one();
        loop {
            {
                let mut ledger = self.shared.lock();
                ledger.check()?;
                if ledger.loading.is_empty() && ledger.growing.is_empty() {
                    break;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
        // Such as a file that a process wrote whose end came while its last request was on its way.
        match &session.yard {
            Some((yard, _)) => clear(yard).await,
            None => Ok(()),
        }
    }

    /// The error with which the loads ended. A pipeline to which no rows come would not ask for it otherwise.
    pub(crate) fn failure(&self) -> Fut<'static, Error> {
        let shared = self.shared.clone();
        Box::pin(async move {
            loop {
                let checked = shared.lock().check();
                if let Err(error) = checked {
                    return error;
                }
                shared.failed.notified().await;
            }
        })
    }

    /// Who tells what people can watch.
    pub(crate) fn figures(&self) -> TellSinkFigures {
        let shared = self.shared.clone();
        Arc::new(move || {
            let ledger = shared.lock();
            let waiting = || ledger.loading.iter().chain(&ledger.growing);
            SinkFigures {
                waiting_files: Some(waiting().count() as u64),
                waiting_bytes: Some(waiting().map(|file| file.bytes).sum()),
                load_jobs: Some(ledger.done.jobs),
                loaded_rows: Some(ledger.done.rows),
                loaded_bytes: Some(ledger.done.bytes),
            }
        })
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        if let Some(loader) = &self.loader {
            loader.abort();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the growing batch, if it is due; else says until when to wait.
    fn close(&self, every: Duration) -> Result<(Vec<LoadFile>, Mark), Option<Instant>> {
        let mut ledger = self.lock();
        if !ledger.may_close() {
            return Err(None);
        }
        let now = Instant::now();
        let due = ledger.due.unwrap_or(now);
        if !ledger.ending && due > now {
            return Err(Some(due));
        }
        ledger.due = Some(now + every);
        ledger.loading = std::mem::take(&mut ledger.growing);
        ledger.loading_mark = ledger.growing_mark;
        Ok((ledger.loading.clone(), ledger.loading_mark))
    }
}

impl Done {
    fn and(self, other: Self) -> Self {
        Self { jobs: self.jobs + other.jobs, rows: self.rows + other.rows, bytes: self.bytes + other.bytes }
    }
}

/// The epoch of a token.
pub(crate) fn mark(token: &CommitToken) -> Result<Mark> {
    token::decode(token).map(|token| token.mark)
}

/// The last epoch of a batch.
fn mark_of(batch: &[LoadFile]) -> Option<Mark> {
    let last = batch.iter().max_by_key(|file| file.ingested_at_us)?;
    Some(Mark { epoch: last.epoch, ingested_at_us: last.ingested_at_us })
}

/// Deletes what nobody loads. Where that is not allowed, it stays: other files have other names.
async fn clear(yard: &Yard) -> Result<()> {
    match yard.clear().await {
        Ok(0) => Ok(()),
        Ok(left) => {
            tracing::info!("deleted {left} files of rows that come again, or that were loaded before");
            Ok(())
        }
        Err(error) if error.kind() == millstream_core::Kind::Fatal => {
            tracing::warn!(
                "files of rows that come again, or that were loaded before, stay in {}: {error}",
                yard.folder()
            );
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Loads batches as they become due.
async fn run(shared: Arc<Shared>, mut courier: Courier, every: Duration) {
    loop {
        let (files, mark) = match shared.close(every) {
            Ok(batch) => batch,
            Err(Some(due)) => {
                tokio::select! {
                    () = sleep_until(due) => {}
                    () = shared.changed.notified() => {}
                }
                continue;
            }
            Err(None) => {
                shared.changed.notified().await;
                continue;
            }
        };
        let delivered = persist(&mut courier, &files, mark).await;
        let mut ledger = shared.lock();
        match delivered {
            Ok(done) => {
                ledger.loading.clear();
                ledger.done = ledger.done.and(done);
            }
            Err(error) => {
                tracing::error!("files cannot be loaded: {error}");
                ledger.failed = Some(error);
                shared.failed.notify_one();
                return;
            }
        }
    }
}

/// Loads a batch; tries again for a while what fails for passing reasons.
async fn persist(courier: &mut Courier, files: &[LoadFile], mark: Mark) -> Result<Done> {
    let (mut backoff, began) = (Backoff::new(), Instant::now());
    loop {
        let error = match courier.deliver(files, mark).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if error.kind() != millstream_core::Kind::Transient || began.elapsed() > PATIENCE {
            return Err(error);
        }
        tracing::warn!("files are to be loaded again: {error}");
        sleep(backoff.wait()).await;
    }
}
