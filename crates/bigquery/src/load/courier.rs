//! Takes files from the bucket into their tables, each of them once.
//!
//! A job's id is made of the files that it loads, so that whoever starts it again finds it. One that failed has written nothing and
//! keeps its id: the next try has the next number behind the id, and is only made when the one before is seen to have failed.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use millstream_core::bytes::fnv1a_128;
use millstream_core::{Error, Result};
use tokio::time::sleep;

use super::file::{Kind, LoadFile, Yard};
use crate::backoff::Backoff;
use crate::epochs::{Epochs, Stage};
use crate::failure::is_passing;
use crate::field::Field;
use crate::job::{Job, JobId, Load, LoadMode};
use crate::resource::TableId;
use crate::session::{Mark, Session};

/// Files of one job: BigQuery's bound.
pub const FILES_MAX: usize = 10_000;
/// Jobs that run at a time.
const JOBS_TOGETHER: usize = 16;
/// A job that runs for longer is looked at again by the next try.
const JOB_PATIENCE: Duration = Duration::from_secs(3600);
/// How often a load that fails for passing reasons is tried before somebody is told.
const TRIES: usize = 5;
/// Tries of a load, over all runs.
const ATTEMPTS_MAX: usize = 1000;

/// Takes files from the bucket into their tables.
pub(super) struct Courier {
    session: Session,
    yard: Yard,
    epochs: Epochs,
    location: Option<String>,
}

/// What loads did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) jobs: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
}

impl Courier {
    /// `location` is where the dataset is.
    pub(super) fn new(session: Session, yard: Yard, location: Option<String>) -> Self {
        Self { session, yard, epochs: Epochs::new(), location }
    }

    /// Loads files that belong together, notes their epoch as visible, and then deletes them. May be repeated.
    pub(super) async fn deliver(&mut self, files: &[LoadFile], mark: Mark) -> Result<Done> {
        let mut by_kind: BTreeMap<&Kind, Vec<&LoadFile>> = BTreeMap::new();
        for file in files {
            by_kind.entry(&file.kind).or_default().push(file);
        }
        let mut work = Vec::new();
        for (kind, mut files) in by_kind {
            files.sort_by_key(|file| (file.epoch, file.ingested_at_us, file.number));
            for part in files.chunks(FILES_MAX) {
                work.push(self.load(kind, part.to_vec()));
            }
        }
        let done: Vec<Done> = stream::iter(work).buffer_unordered(JOBS_TOGETHER).try_collect().await?;
        self.epochs.write(&self.session, Stage::Visible, mark).await?;
        // What is not deleted now is deleted by the next start, before which nobody loads it again.
        if let Err(error) = self.yard.delete(files.iter().map(|file| self.yard.object(file)).collect()).await
        {
            tracing::warn!("files that were loaded are left until the next start: {error}");
        }
        let sum = |of: fn(&Done) -> u64| done.iter().map(of).sum();
        Ok(Done { jobs: sum(|d| d.jobs), rows: sum(|d| d.rows), bytes: sum(|d| d.bytes) })
    }

    /// Loads files of one kind by one job.
    async fn load(&self, kind: &Kind, files: Vec<&LoadFile>) -> Result<Done> {
        let rows: u64 = files.iter().map(|file| file.rows).sum();
        let table = self.session.table(&kind.table);
        let unread = || Error::fatal(format!("the checkpoint's columns of {table} cannot be read"));
        let json = serde_json::from_str(&kind.columns).map_err(|_| unread())?;
        let mut load = Load::new(table.clone(), kind.format(), LoadMode::Append);
        load.uris = files.iter().map(|file| self.yard.uri(file)).collect();
        load.fields = Field::schema_from_json(&json).ok_or_else(unread)?;
        load.labels = self.session.config.labels.clone();
        load.labels.insert("millstream".to_owned(), "load".to_owned());
        let id = self.id(&load);
        let what = format!("the load of {} files into {table}", load.uris.len());
        let (mut backoff, mut failed) = (Backoff::new(), 0);
        for attempt in 1..=ATTEMPTS_MAX {
            let id = JobId::new(&id.project, id.location.clone(), &format!("{}_{attempt}", id.id));
            let found = self.session.rest.job(&id).await?;
            let is_new = found.is_none();
            let job = match found {
                Some(job) => job,
                None => self.session.rest.start_load(&id, &load).await?,
            };
            let job = self.session.rest.ended(job, JOB_PATIENCE).await?;
            let Some(error) = &job.error else {
                return verified(&job, rows, &what, &files);
            };
            if !is_new {
                // It failed in an earlier run, and what was wrong may have been mended since.
                continue;
            }
            failed += 1;
            if error.reason == "notFound" {
                return Err(self.missing(&table, &what, &job).await?);
            }
            if !is_passing(&error.reason) || failed == TRIES {
                job.failed(&what, false)?;
            }
            tracing::warn!(reason = error.reason, job = %job.id, "a load job failed, and is tried again");
            sleep(backoff.wait()).await;
        }
        Err(Error::fatal(format!("{what} failed {ATTEMPTS_MAX} times; `bq show -j {id}_1` tells more")))
    }

    /// Why a load finds something missing, and what helps: the checkpoint names its files until they are loaded.
    async fn missing(&self, table: &TableId, what: &str, job: &Job) -> Result<Error> {
        let folder = self.yard.folder();
        let remedy = if self.session.rest.table(table).await?.is_none() {
            "the table is not there any more: bring it back from its time travel, or make it again with its columns, and start again; the \
             files are kept"
                .to_owned()
        } else {
            format!(
                "files of the last checkpoint are not in {folder} any more: restore the objects that were deleted (soft \
                 delete keeps them for a while), and start again; without them their rows are lost, and only a sink with another `name` \
                 and `dataset` goes on"
            )
        };
        Ok(Error::fatal(format!("{what} failed: {remedy}; `bq show -j {}` tells what was missing", job.id)))
    }

    /// The id that a job for these files has, whoever starts it.
    fn id(&self, load: &Load) -> JobId {
        let hash = fnv1a_128(format!("{}\n{}", load.uris.join("\n"), load.table).as_bytes());
        let config = &self.session.config;
        let short = |text: &str| text.chars().take(100).collect::<String>();
        let name = format!(
            "millstream_{}_{}_{}_{hash:032x}",
            short(&config.pipeline),
            short(&config.name),
            short(&load.table.table)
        );
        JobId::new(&config.project, self.location.clone(), &name)
    }
}

/// A load has to write what the files hold: files are only deleted then.
fn verified(job: &Job, rows: u64, what: &str, files: &[&LoadFile]) -> Result<Done> {
    if job.rows != Some(rows) {
        let written = job.rows.map_or_else(|| "an unknown number".to_owned(), |n| n.to_string());
        return Err(Error::fatal(format!(
            "{what} wrote {written} of {rows} rows; the files are kept; `bq show -j {}` tells more",
            job.id
        )));
    }
    Ok(Done { jobs: 1, rows, bytes: files.iter().map(|file| file.bytes).sum() })
}
