//! A table's way into files: its rows go by turns to as many files as there are shards.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use millstream_core::{Cause, Error, RecordBatch, Result};
use tokio::task::JoinHandle;

use super::file::{Kind, LoadFile, OpenFile, Yard, broken_off};
use crate::field::Field;
use crate::lane::Settled;
use crate::pending::Origins;
use crate::rows::Rows;
use crate::session::{Mark, Session};

/// Files whose ends are written at a time.
const TOGETHER: usize = 8;

/// A row that no file holds.
type Unfit = (Arc<RecordBatch>, u32, Cause);

/// A file, and the rows on their way into it that it does not hold.
struct Shard {
    file: OpenFile,
    unfit: Vec<Unfit>,
}

/// A table's way into files.
pub(crate) struct FileLane {
    yard: Arc<Yard>,
    fields: Vec<Field>,
    kind: Arc<Kind>,
    /// The epoch of the open files.
    mark: Mark,
    shards: Vec<Option<JoinHandle<Result<Shard>>>>,
    turn: usize,
    /// Files of the epoch so far.
    files: u32,
    /// Files to which no more rows go.
    full: Vec<JoinHandle<Result<Shard>>>,
}

impl FileLane {
    /// A way into files of these columns.
    pub(crate) fn new(yard: &Arc<Yard>, table: &str, fields: &[Field], shards: usize) -> Self {
        Self {
            yard: yard.clone(),
            fields: fields.to_vec(),
            kind: Arc::new(Kind::new(table, fields)),
            mark: Mark::default(),
            shards: (0..shards.max(1)).map(|_| None).collect(),
            turn: 0,
            files: 0,
            full: Vec::new(),
        }
    }

    /// Rows have these columns from now on: they go to other files.
    pub(crate) fn renew(&mut self, fields: &[Field]) {
        let kind = Kind::new(&self.kind.table, fields);
        self.fields = fields.to_vec();
        if *self.kind != kind {
            self.kind = Arc::new(kind);
            self.full.extend(self.shards.iter_mut().filter_map(Option::take));
            self.turn = 0;
        }
    }

    /// Whether an epoch has rows that are not settled.
    pub(crate) fn is_busy(&self) -> bool {
        !self.full.is_empty() || self.shards.iter().any(Option::is_some)
    }

    /// Hands rows to the file whose turn it is, once that has taken those before, and there is room for them.
    pub(crate) async fn send(&mut self, session: &Session, rows: Rows, origins: Origins) -> Result<()> {
        if self.mark != session.mark {
            (self.mark, self.files, self.turn) = (session.mark, 0, 0);
        }
        let room = session.room(rows.byte_len()).await?;
        let at = self.turn;
        self.turn = (at + 1) % self.shards.len();
        let mut shard = match self.shards[at].take() {
            Some(busy) => busy.await.map_err(broken_off)??,
            None => Shard { file: self.new_file()?, unfit: Vec::new() },
        };
        self.shards[at] = Some(tokio::spawn(async move {
            let (file, unfit) = shard.file.add(rows).await?;
            drop(room);
            shard.file = file;
            for row in unfit {
                let cause = Cause::new(
                    "no_json",
                    "a value of a JSON column is no JSON text, or has a number beyond a double's",
                );
                let (records, record) = origins
                    .of(row)
                    .ok_or_else(|| Error::fatal("invariant: rows of a history come from records"))?;
                shard.unfit.push((records, record, cause));
            }
            Ok(shard)
        }));
        Ok(())
    }

    fn new_file(&mut self) -> Result<OpenFile> {
        let file = LoadFile {
            kind: self.kind.clone(),
            epoch: self.mark.epoch,
            ingested_at_us: self.mark.ingested_at_us,
            number: self.files,
            rows: 0,
            bytes: 0,
        };
        self.files += 1;
        OpenFile::new(&self.yard, file, &self.fields)
    }

    /// Waits until every row that was handed over is in its file or sent on; the files go on.
    pub(crate) async fn wait(&mut self) -> Result<()> {
        for slot in &mut self.shards {
            if let Some(busy) = slot.take() {
                let shard = busy.await.map_err(broken_off)??;
                *slot = Some(tokio::spawn(std::future::ready(Ok(shard))));
            }
        }
        Ok(())
    }

    /// Ends the epoch's files; all of them are in the bucket then.
    pub(crate) async fn settle(&mut self) -> Result<Settled> {
        let open = self.full.drain(..).chain(self.shards.iter_mut().filter_map(Option::take));
        let ended = open.map(|busy| async {
            let Shard { file, unfit } = busy.await.map_err(broken_off)??;
            Ok::<_, Error>((file.finish().await?, unfit))
        });
        let ended: Vec<_> = stream::iter(ended).buffer_unordered(TOGETHER).try_collect().await?;
        let mut settled = Settled::default();
        for (file, unfit) in ended {
            settled.files.extend(file);
            settled.refused.extend(unfit);
        }
        Ok(settled)
    }
}
