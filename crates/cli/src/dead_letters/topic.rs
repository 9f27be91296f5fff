//! Dead letters that come back from a subscription to their topic.
//!
//! A letter that fails again is published to the topic again. So only what was published before the replay was asked for is taken;
//! the rest stays with the subscription.

use std::time::{Duration, Instant};

use millstream_core::{Budget, Next, PartitionId, Position, RecordBatch, Result, Source};
use millstream_pubsub::letters;

/// The partition of letters from the topic.
pub(super) const PARTITION: &str = "dead-letters/topic";
/// A subscription that was silent for so long has no more letters.
const QUIET: Duration = Duration::from_secs(5);

/// An open subscription to the topic.
pub(super) struct TopicLetters {
    source: Box<dyn Source>,
    last_seen: Instant,
    is_through: bool,
    /// The subscription's own name, and the last position that it gave.
    given: Option<(PartitionId, Position)>,
}

impl TopicLetters {
    /// Opens the subscription behind `source`.
    pub(super) async fn open(mut source: Box<dyn Source>) -> Result<Self> {
        source.open(&[]).await?;
        Ok(Self { source, last_seen: Instant::now(), is_through: false, given: None })
    }

    /// Whether there are no more letters.
    pub(super) fn is_through(&self) -> bool {
        self.is_through
    }

    /// The next letters, as the records that they were; `None` if there are none now.
    pub(super) async fn next(&mut self, budget: Budget) -> Result<Option<RecordBatch>> {
        match self.source.next(budget).await? {
            Next::Batch(mut batch) => {
                self.last_seen = Instant::now();
                self.given = Some((batch.partition, batch.position.clone()));
                letters::restore(&mut batch.slots, &mut batch.buffer);
                batch.partition = PartitionId::new(PARTITION);
                Ok(Some(batch))
            }
            // What it waits for is a checkpoint, which comes.
            Next::Held => Ok(None),
            Next::Idle | Next::End => {
                self.is_through = self.last_seen.elapsed() > QUIET;
                Ok(None)
            }
        }
    }

    /// Letters up to `position` are durable. Answers whether the subscription can be let go.
    pub(super) async fn release(&mut self, position: &Position) -> Result<bool> {
        let Some((partition, last)) = &self.given else { return Ok(self.is_through) };
        self.source.release(&[(partition.clone(), position.clone())]).await?;
        Ok(self.is_through && position == last)
    }

    /// Waits for the acknowledgements.
    pub(super) async fn close(mut self, cancelled: bool) -> Result<()> {
        self.source.close(cancelled).await
    }
}
