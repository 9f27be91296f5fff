//! Dead letters as local JSON lines: one file a stage, original bytes, cause, place; and their way back into the
//! pipeline.
//!
//! Limits: letters are never removed by the pipeline; delete a file, or lines of it, when they are no longer wanted
//! (numbers go on). A letter of the write stage comes again for the sink that it names: its event is known to the keyed
//! state, and other sinks have its row.

mod inlet;
mod letter;
mod ranges;
mod reader;
mod topic;
mod writer;

pub(crate) use inlet::{Desk, Inlet, TopicSource};
pub(crate) use letter::{Letter, LetterId, Payload};
pub(crate) use reader::{letters, replayed};
pub(crate) use writer::Writer;

use millstream_core::Stage;

/// All stages, in the order of their files.
pub(crate) const STAGES: [Stage; 3] = [Stage::Parse, Stage::Validate, Stage::Write];

/// The file of a stage's letters.
pub(crate) fn file_name(stage: Stage) -> String {
    format!("{}.jsonl", stage.name())
}
