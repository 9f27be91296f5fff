//! Streams that take no more rows: finalized, so that none is left behind.
//!
//! A stream is finalized once all that a durable checkpoint names of it is visible, and never before. So a stream that is found
//! finalized after a crash needs no flush, which the service would refuse. One that cannot be finalized now is left to the service,
//! which forgets idle streams after some days; so are streams that a killed process had made since its last checkpoint, which nothing
//! names.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::stream::Storage;
use crate::write_error::WriteErrorKind;

/// Streams that are finalized at a time.
const TOGETHER: usize = 32;
/// How long a run's end waits for it.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// Streams on their way out.
#[derive(Default)]
pub(crate) struct Retired {
    /// Each with the epoch of its last rows.
    waiting: Vec<(u64, Arc<str>)>,
    calls: JoinSet<()>,
}

impl Retired {
    /// Streams whose last rows are of this epoch, or of one before.
    pub(crate) fn put(&mut self, epoch: u64, streams: Vec<Arc<str>>) {
        self.waiting.extend(streams.into_iter().map(|stream| (epoch, stream)));
    }

    /// Epochs up to this one are visible. Nobody waits for the calls.
    pub(crate) fn finalize(&mut self, storage: &Storage, epoch: u64) {
        while self.calls.try_join_next().is_some() {}
        let done: Vec<_> = self.waiting.extract_if(.., |(of, _)| *of <= epoch).collect();
        if done.is_empty() {
            return;
        }
        let storage = storage.clone();
        self.calls.spawn(async move {
            let mut calls = Vec::with_capacity(done.len());
            for (_, stream) in done {
                calls.push(finalize(storage.clone(), stream));
            }
            stream::iter(calls).buffer_unordered(TOGETHER).collect::<()>().await;
        });
    }

    /// Waits for the calls, for a while.
    pub(crate) async fn finish(&mut self) {
        let all = async { while self.calls.join_next().await.is_some() {} };
        if timeout(END_PATIENCE, all).await.is_err() {
            tracing::debug!("not every stream could be finalized in {} s", END_PATIENCE.as_secs());
        }
    }
}

async fn finalize(storage: Storage, stream: Arc<str>) {
    match storage.finalize(&stream).await {
        Ok(_) => {}
        // Forgotten by the service, or gone with its table.
        Err(error) if error.kind() == WriteErrorKind::NotFound => {}
        Err(error) => tracing::debug!("{error}; the service forgets the stream after some days"),
    }
}
