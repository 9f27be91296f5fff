//! Random operations on a directory against a model of it.
//!
//! Every line is unique. Whenever the source has been drained, each complete line of each file that the pattern shows
//! must have been delivered, as of the history that the last checkpoint stands for. It may have been delivered more
//! than once only if several files hold it, or a file that held it was truncated: once more for each of these.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, OpenOptions};

use millstream_core::{PartitionId, Position};
use proptest::prelude::*;

use super::harness::{World, append, following};

/// The last two are not shown by the pattern.
const NAMES: [&str; 5] = ["a.jsonl", "b.jsonl", "c.jsonl", "a.jsonl.1", "b.old"];

#[derive(Debug, Clone)]
enum Operation {
    /// Appends this many whole lines, and part of one more (or goes on with that).
    Append {
        name: usize,
        lines: usize,
        partial: bool,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Copy {
        from: usize,
        to: usize,
    },
    /// Cuts to this many 255ths of the length.
    Truncate {
        name: usize,
        keep: u8,
    },
    Replace {
        name: usize,
    },
    Delete {
        name: usize,
    },
    Drain,
    Checkpoint,
    Crash,
}

fn operation() -> impl Strategy<Value = Operation> {
    let name = 0..NAMES.len();
    prop_oneof![
        6 => (name.clone(), 0..4_usize, any::<bool>())
            .prop_map(|(name, lines, partial)| Operation::Append { name, lines, partial }),
        3 => (name.clone(), name.clone()).prop_map(|(from, to)| Operation::Rename { from, to }),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Operation::Copy { from, to }),
        2 => (name.clone(), any::<u8>()).prop_map(|(name, keep)| Operation::Truncate { name, keep }),
        1 => name.clone().prop_map(|name| Operation::Replace { name }),
        1 => name.prop_map(|name| Operation::Delete { name }),
        6 => Just(Operation::Drain),
        3 => Just(Operation::Checkpoint),
        2 => Just(Operation::Crash),
    ]
}

/// A line's number of deliveries, since the pipeline's first start.
type Delivered = HashMap<String, usize>;

struct Model {
    world: World,
    delivered: Delivered,
    /// The last checkpoint.
    saved: (BTreeMap<PartitionId, Position>, Delivered),
    /// How often a line may be delivered, more than once.
    extra: HashMap<String, usize>,
    next_line: u32,
}

impl Model {
    fn new() -> Self {
        Self {
            world: World::new(|d| following(d, "*.jsonl"), &[]),
            delivered: Delivered::new(),
            saved: (BTreeMap::new(), Delivered::new()),
            extra: HashMap::new(),
            next_line: 0,
        }
    }

    fn content(&self, name: usize) -> Option<String> {
        fs::read_to_string(self.world.path(NAMES[name])).ok()
    }

    /// What the file holds may come once more.
    fn allow_again(&mut self, name: usize) {
        for line in self.content(name).unwrap_or_default().lines() {
            *self.extra.entry(line.to_owned()).or_default() += 1;
        }
    }

    fn append(&mut self, name: usize, lines: usize, partial: bool) {
        let unfinished = self.content(name).is_some_and(|c| !c.is_empty() && !c.ends_with('\n'));
        self.next_line += 1;
        let mut text = if unfinished { format!("…{}\n", self.next_line) } else { String::new() };
        for _ in 0..lines {
            self.next_line += 1;
            text += &format!("line-{}-{}\n", self.next_line, "x".repeat(self.next_line as usize % 50));
        }
        if partial {
            self.next_line += 1;
            text += &format!("part-{}", self.next_line);
        }
        append(&self.world.path(NAMES[name]), text.as_bytes());
    }

    fn drain(&mut self) {
        for line in self.world.lines() {
            *self.delivered.entry(line).or_default() += 1;
        }
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match *operation {
            Operation::Append { name, lines, partial } => self.append(name, lines, partial),
            Operation::Rename { from, to } => {
                let _ = fs::rename(self.world.path(NAMES[from]), self.world.path(NAMES[to]));
            }
            Operation::Copy { from, to } => {
                if from != to && self.content(from).is_some() {
                    self.allow_again(from);
                    self.allow_again(to);
                    fs::copy(self.world.path(NAMES[from]), self.world.path(NAMES[to])).unwrap();
                }
            }
            Operation::Truncate { name, keep } => {
                if let Some(content) = self.content(name) {
                    self.allow_again(name);
                    let mut at = content.len() * usize::from(keep) / 255;
                    while !content.is_char_boundary(at) {
                        at -= 1;
                    }
                    let file = OpenOptions::new().write(true).open(self.world.path(NAMES[name])).unwrap();
                    file.set_len(at as u64).unwrap();
                }
            }
            Operation::Replace { name } => {
                self.next_line += 1;
                let line = format!("new-{}\n", self.next_line);
                fs::write(self.world.path("temporary"), line).unwrap();
                fs::rename(self.world.path("temporary"), self.world.path(NAMES[name])).unwrap();
            }
            Operation::Delete { name } => {
                let _ = fs::remove_file(self.world.path(NAMES[name]));
            }
            Operation::Drain => {
                self.drain();
                self.check()?;
            }
            Operation::Checkpoint => self.saved = (self.world.positions.clone(), self.delivered.clone()),
            Operation::Crash => {
                self.world.positions = self.saved.0.clone();
                self.delivered = self.saved.1.clone();
                self.world.restart();
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (name, text) in NAMES.iter().enumerate().filter(|(_, n)| n.ends_with(".jsonl")) {
            let content = self.content(name).unwrap_or_default();
            let complete = content.rfind('\n').map_or("", |end| &content[..end]);
            for line in complete.lines() {
                prop_assert!(self.delivered.contains_key(line), "{line} of {text} is missing");
            }
        }
        for (line, &times) in &self.delivered {
            let allowed = 1 + self.extra.get(line).copied().unwrap_or(0);
            prop_assert!(times <= allowed, "{line} came {times} times, {allowed} allowed");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_line_counts_once(operations in proptest::collection::vec(operation(), 1..40)) {
        let mut model = Model::new();
        for operation in &operations {
            model.apply(operation)?;
        }
        model.apply(&Operation::Drain)?;
        model.apply(&Operation::Checkpoint)?;
        // Nothing comes twice only because time passes.
        let before = model.delivered.clone();
        model.apply(&Operation::Crash)?;
        model.apply(&Operation::Drain)?;
        model.apply(&Operation::Drain)?;
        // What the source has learnt about names since a file's last record is not in the checkpoint: a copy that then
        // took the name's place is another file to the next process.
        if !operations.iter().any(|o| matches!(o, Operation::Truncate { .. } | Operation::Copy { .. })) {
            prop_assert_eq!(before, model.delivered);
        }
    }
}
