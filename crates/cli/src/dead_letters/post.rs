//! Dead letters to a topic; those that no message can hold, to the folder.

use millstream_core::{CommitToken, DeadLetter, DeadLetters, Fut, Result};
use millstream_pubsub::{LetterTopic, letters};

use super::Writer;

/// A topic, and a folder for what it cannot take. Its token is the folder's: messages cannot be taken back.
pub(crate) struct Post {
    topic: LetterTopic,
    folder: Writer,
}

impl Post {
    /// Letters to `topic`, others to `folder`.
    pub(crate) fn new(topic: LetterTopic, folder: Writer) -> Self {
        Self { topic, folder }
    }
}

impl DeadLetters for Post {
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.topic.recover(last).await?;
            self.folder.recover(last).await
        })
    }

    fn write<'a>(&'a mut self, written: &'a [DeadLetter]) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            if written.iter().all(letters::fits) {
                return self.topic.write(written).await;
            }
            let (fit, large): (Vec<_>, Vec<_>) = written.iter().cloned().partition(letters::fits);
            self.topic.write(&fit).await?;
            self.folder.write(&large).await
        })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async move {
            self.topic.prepare().await?;
            self.folder.prepare().await
        })
    }
}
