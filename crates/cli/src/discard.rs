//! A sink that counts and drops, for measuring the rest.

use millstream_core::sink::WriteReport;
use millstream_core::{CommitToken, Epoch, Fut, Output, OutputBatch, Result, Sink};

/// Counts distinct events as written. Has nothing to commit and nothing to recover.
#[derive(Debug)]
pub(crate) struct Discard(());

impl Discard {
    /// A new one.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

impl Sink for Discard {
    fn recover<'a>(&'a mut self, _last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn begin(&mut self, _epoch: Epoch, _ingested_at_us: i64) -> Fut<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn write<'a>(&'a mut self, batch: &'a OutputBatch) -> Fut<'a, Result<WriteReport>> {
        let mut report = WriteReport::default();
        for output in &batch.outputs {
            match output {
                Output::Event(judged) if judged.distinct => report.written += 1,
                Output::Event(_) => report.duplicates += 1,
                Output::Patch(_) => {}
            }
        }
        Box::pin(std::future::ready(Ok(report)))
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn commit<'a>(&'a mut self, _token: &'a CommitToken) -> Fut<'a, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
