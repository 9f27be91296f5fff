//! Embedded schemas seen so far, so that each distinct text is parsed once.

use hashbrown::HashMap;

use crate::connect_schema::Facts;
use crate::scan::{Cursor, ScanError};

/// Texts compared in place before the text is scanned for its end.
const RECENT_MAX: usize = 8;
/// Bytes of texts kept; beyond them everything is forgotten and parsed anew.
const BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
struct Entry {
    text: Box<str>,
    facts: Facts,
}

/// Parsed schemas by their text.
#[derive(Debug, Default)]
pub(crate) struct Embedded {
    entries: Vec<Entry>,
    by_text: HashMap<Box<str>, usize, foldhash::fast::RandomState>,
    recent: Vec<usize>,
    bytes: usize,
    /// Ids of forgotten entries are never given again.
    forgotten: u64,
}

impl Embedded {
    /// Passes the schema at the cursor and answers its id; 0 for a null schema. A text that was seen before was
    /// validated then, and is only compared.
    pub(crate) fn take(&mut self, cur: &mut Cursor<'_>) -> Result<u64, ScanError> {
        if let Some(at) = self.recent.iter().position(|&i| cur.eat(self.entries[i].text.as_bytes())) {
            let index = self.recent[at];
            self.recent[..=at].rotate_right(1);
            return Ok(self.id(index));
        }
        let text = cur.raw()?;
        if text == "null" {
            return Ok(0);
        }
        let index = match self.by_text.get(text) {
            Some(&index) => index,
            None => self.insert(text),
        };
        // Only objects end by themselves: comparing in place would take `1` for the start of `12`.
        if text.starts_with('{') {
            self.recent.insert(0, index);
            self.recent.truncate(RECENT_MAX);
        }
        Ok(self.id(index))
    }

    fn insert(&mut self, text: &str) -> usize {
        if self.bytes + text.len() > BYTES_MAX {
            self.forgotten += self.entries.len() as u64;
            self.entries.clear();
            self.by_text.clear();
            self.recent.clear();
            self.bytes = 0;
        }
        self.bytes += text.len();
        self.entries.push(Entry { text: text.into(), facts: Facts::parse(text) });
        self.by_text.insert(text.into(), self.entries.len() - 1);
        self.entries.len() - 1
    }

    fn id(&self, index: usize) -> u64 {
        self.forgotten + index as u64 + 1
    }

    /// The facts of an id that [`take`](Self::take) gave for the record at hand.
    pub(crate) fn facts(&self, id: u64) -> Option<&Facts> {
        let index = usize::try_from(id.checked_sub(self.forgotten + 1)?).ok()?;
        self.entries.get(index).map(|entry| &entry.facts)
    }
}
