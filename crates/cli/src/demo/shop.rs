//! The shipped events of a shop's database, as an endless stream: when they are through they come again as newer changes, moved up in
//! the log. Times are those of the playing.

use std::io::Read;

use millstream_core::{Error, Result};
use millstream_pubsub::Message;
use serde_json::{Value, json};

/// One event.
#[derive(Debug, Clone)]
struct Line {
    topic: String,
    key: String,
    /// As text: parsed, all of them would take ten times the memory.
    value: Box<str>,
    is_read: bool,
}

/// The events.
#[derive(Debug)]
pub(crate) struct Shop {
    lines: Vec<Line>,
    /// How far each pass moves up in the log.
    span: u64,
    /// The next line, and in which pass.
    next: usize,
    pass: u64,
}

impl Shop {
    /// Reads the shipped records (gzipped lines with topic, key and value).
    pub(crate) fn read(packed: &[u8]) -> Result<Self> {
        let unreadable = || Error::fatal("the shipped events cannot be read: is the source folder complete?");
        let mut text = String::new();
        flate2::read::MultiGzDecoder::new(packed)
            .read_to_string(&mut text)
            .map_err(|e| unreadable().with_source(e))?;
        let (mut first, mut last) = (u64::MAX, 0);
        let mut lines = Vec::new();
        for (line, lsn) in text.lines().filter_map(line) {
            (first, last) = lsn.map_or((first, last), |lsn| (first.min(lsn), last.max(lsn)));
            lines.push(line);
        }
        if lines.is_empty() || last < first {
            return Err(unreadable());
        }
        Ok(Self { lines, span: last - first + (1 << 20), next: 0, pass: 0 })
    }

    /// The topics that the events go to, sorted.
    pub(crate) fn topics(&self) -> Vec<String> {
        let mut topics: Vec<String> = self.lines.iter().map(|line| line.topic.clone()).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    /// The next event and its topic, as if it had just happened.
    pub(crate) fn next(&mut self, now_us: u64) -> (String, Message) {
        // The snapshot is read once: later passes are changes only.
        while self.pass > 0 && self.lines[self.next].is_read {
            self.step();
        }
        let line = &self.lines[self.next];
        // It was parsed before, so that it is JSON.
        let value =
            moved(serde_json::from_str(&line.value).unwrap_or_default(), self.pass * self.span, now_us);
        let data = value.to_string().into_bytes();
        let message = Message { data, ordering_key: line.key.clone(), attributes: Vec::new() };
        let topic = line.topic.clone();
        self.step();
        (topic, message)
    }

    fn step(&mut self) {
        self.next += 1;
        if self.next == self.lines.len() {
            (self.next, self.pass) = (0, self.pass + 1);
        }
    }
}

/// A record of a table's event and its log position; transactions and heartbeats are left out.
fn line(text: &str) -> Option<(Line, Option<u64>)> {
    let record: Value = serde_json::from_str(text).ok()?;
    let text = record["value"].as_str()?;
    let value: Value = serde_json::from_str(text).ok()?;
    let is_read = value["op"].as_str()? == "r";
    value["source"]["table"].as_str()?;
    let line = Line {
        topic: record["topic"].as_str()?.to_owned(),
        key: record["key"].as_str()?.to_owned(),
        value: text.into(),
        is_read,
    };
    Some((line, value["source"]["lsn"].as_u64()))
}

/// The event `up` further in the log, at this time.
fn moved(mut value: Value, up: u64, now_us: u64) -> Value {
    for place in ["/ts_us", "/source/ts_us"] {
        put(&mut value, place, json!(now_us));
    }
    for place in ["/ts_ms", "/source/ts_ms"] {
        put(&mut value, place, json!(now_us / 1000));
    }
    if let Some(lsn) = value.pointer("/source/lsn").and_then(Value::as_u64) {
        put(&mut value, "/source/lsn", json!(lsn + up));
    }
    let sequence = value.pointer("/source/sequence").and_then(Value::as_str);
    let sequence: Option<Vec<Option<String>>> = sequence.and_then(|text| serde_json::from_str(text).ok());
    if let Some(sequence) = sequence {
        let up =
            |position: Option<String>| position.and_then(|p| Some((p.parse::<u64>().ok()? + up).to_string()));
        let sequence: Vec<Option<String>> = sequence.into_iter().map(up).collect();
        put(&mut value, "/source/sequence", json!(json!(sequence).to_string()));
    }
    value
}

fn put(value: &mut Value, place: &str, new: Value) {
    if let Some(old) = value.pointer_mut(place) {
        *old = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_move_up_in_the_log() {
        let value = json!({"op": "u", "ts_ms": 1, "source": {"lsn": 7, "sequence": "[null,\"7\"]", "ts_ms": 1, "ts_us": 1}});
        let later = moved(value, 100, 5_000);
        assert_eq!(later["source"]["lsn"], 107);
        assert_eq!(later["source"]["sequence"], "[null,\"107\"]");
        assert_eq!((later["ts_ms"].as_u64(), later["source"]["ts_us"].as_u64()), (Some(5), Some(5_000)));
    }

    #[test]
    fn the_shipped_events_never_end() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpus/bench.plain.jsonl.gz");
        let mut shop = Shop::read(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(shop.topics().len(), 2);
        let count = shop.lines.len() + 5;
        let played: Vec<_> = (0..count).map(|_| shop.next(1_000_000)).collect();
        assert_eq!(shop.pass, 1);
        let last: Value = serde_json::from_slice(&played[count - 1].1.data).unwrap();
        assert_ne!(last["op"], "r");
        assert!(Shop::read(b"no gzip").is_err());
    }
}
