//! Dead letters that come back from a subscription to their topic.
//!
//! A letter that fails again is published to the topic again. So only what was published before the replay was asked for is taken;
//! the rest stays with the subscription.

use std::time::{Duration, Instant};

use millstream_core::source::Notice;
use millstream_core::{Budget, Next, PartitionId, Position, RecordBatch, Result, Source};
use millstream_pubsub::letters;

/// The partition of letters from the topic.
pub(super) const PARTITION: &str = "dead-letters/topic";
/// A subscription that was silent for so long has no more letters.
const QUIET: Duration = Duration::from_secs(5);

/// An open subscription to the topic.
pub(super) struct TopicLetters {
    source: Box<dyn Source>,
    /// Letters that were published before this time are asked for, ms since 1970.
    pub(super) before_ms: i64,
    last_seen: Instant,
    /// The subscription's own name, and the last position that it gave.
    given: Option<(PartitionId, Position)>,
    /// Everything that it gave is durable.
    is_settled: bool,
}

impl TopicLetters {
    /// Opens the subscription behind `source`.
    pub(super) async fn open(mut source: Box<dyn Source>, before_ms: i64) -> Result<Self> {
        source.open(&[]).await?;
        Ok(Self { source, before_ms, last_seen: Instant::now(), given: None, is_settled: true })
    }

    /// Whether there seem to be no more letters. By the clock alone: beside a busy source a silent poll never comes to its end.
    pub(super) fn is_through(&self) -> bool {
        self.last_seen.elapsed() > QUIET
    }

    /// Whether it can be let go: what it gave is durable.
    pub(super) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// The next letters, as the records that they were; `None` if there are none now.
    pub(super) async fn next(&mut self, budget: Budget) -> Result<Option<RecordBatch>> {
        match self.source.next(budget).await? {
            Next::Batch(mut batch) => {
                self.last_seen = Instant::now();
                self.given = Some((batch.partition, batch.position.clone()));
                self.is_settled = false;
                letters::restore(&mut batch.slots, &mut batch.buffer);
                batch.partition = PartitionId::new(PARTITION);
                Ok(Some(batch))
            }
            // Neither says that there are no more.
            Next::Held | Next::Waiting => {
                self.last_seen = Instant::now();
                Ok(None)
            }
            Next::Idle | Next::End => Ok(None),
        }
    }

    /// Letters up to `position` are durable.
    pub(super) async fn release(&mut self, position: &Position) -> Result<()> {
        if let Some((partition, last)) = &self.given {
            self.is_settled |= position == last;
            self.source.release(&[(partition.clone(), position.clone())]).await?;
        }
        Ok(())
    }

    /// What happened to it since the last call.
    pub(super) fn notices(&mut self) -> Vec<Notice> {
        self.source.notices()
    }

    /// Waits for the acknowledgements.
    pub(super) async fn close(mut self, cancelled: bool) -> Result<()> {
        self.source.close(cancelled).await
    }
}
