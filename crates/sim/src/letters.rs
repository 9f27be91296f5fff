//! Simulated dead letters: a file that grows, and is cut back to the last token on recovery.

use std::sync::Arc;

use millstream_core::{CommitToken, DeadLetter, DeadLetters, Fut, Result};

use crate::fault::{Call, Edge};
use crate::stage::Stage;

/// An opened file of dead letters.
pub(crate) struct SimLetters {
    stage: Arc<Stage>,
    /// Letters at the last token.
    prepared: usize,
}

impl SimLetters {
    pub(crate) fn new(stage: Arc<Stage>) -> Self {
        Self { stage, prepared: 0 }
    }
}

impl DeadLetters for SimLetters {
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.stage.step(Call::LettersRecover, Edge::Before, "letters").await?;
            let kept = last.and_then(|token| token.0.as_slice().try_into().ok()).map_or(0, u64::from_be_bytes)
                as usize;
            self.prepared = kept;
            {
                let mut state = self.stage.lock();
                if state.disk.letters.len() < kept {
                    state.violation(format!("{kept} dead letters should be durable, but there are fewer"));
                }
                state.disk.letters.truncate(kept);
            }
            self.stage.step(Call::LettersRecover, Edge::After, "letters").await
        })
    }

    fn write<'a>(&'a mut self, letters: &'a [DeadLetter]) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.stage.step(Call::LettersWrite, Edge::Before, "letters").await?;
            self.stage.lock().disk.letters.extend_from_slice(letters);
            self.stage.step(Call::LettersWrite, Edge::After, "letters").await
        })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async move {
            self.stage.step(Call::LettersPrepare, Edge::Before, "letters").await?;
            let now = self.stage.lock().disk.letters.len();
            let token = (now != self.prepared).then(|| CommitToken((now as u64).to_be_bytes().to_vec()));
            self.prepared = now;
            self.stage.step(Call::LettersPrepare, Edge::After, "letters").await?;
            Ok(token)
        })
    }
}
