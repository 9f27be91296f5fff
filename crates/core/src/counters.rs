//! Conservation: nothing is ever dropped without being counted.
//!
//! In every checkpoint and per table:
//! `records = decoded + control + dead`, and for every sink
//! `events = duplicates + filtered + written + superseded + rejected`.

use std::collections::BTreeMap;

use crate::decoder::ControlKind;

/// Counts since the pipeline's first start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records read.
    pub records: u64,
    /// Bytes of those records' values.
    pub bytes: u64,
    /// Records that gave one or more events.
    pub decoded: u64,
    /// Records that gave only control items, by kind.
    pub control: [u64; ControlKind::ALL.len()],
    /// Records that became dead letters, by cause code (parse and validate stages).
    pub dead: BTreeMap<String, u64>,
    /// Events by table (`schema.table`).
    pub tables: BTreeMap<String, TableCounters>,
    /// What became of the events, by sink.
    pub sinks: BTreeMap<String, SinkCounters>,
    /// Notices by code: truncated files, values turned NULL by policy, schema changes.
    pub notices: BTreeMap<String, u64>,
}

/// Counts of one table's events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableCounters {
    /// Events decoded.
    pub events: u64,
    /// Events whose id was seen before.
    pub duplicates: u64,
    /// Distinct events.
    pub distinct: u64,
    /// Events newer than their key's newest.
    pub newest: u64,
    /// Events behind their partition's watermark.
    pub late: u64,
    /// Events below the floor of the remembered ids, kept because they cannot be told.
    pub untold: u64,
    /// Events whose order was adjusted, or whose replay came with another `p`.
    pub adjusted: u64,
    /// Unchanged large values that state could not fill.
    pub unresolved: u64,
}

impl TableCounters {
    /// Adds `other`.
    pub fn add(&mut self, other: &TableCounters) {
        self.events += other.events;
        self.duplicates += other.duplicates;
        self.distinct += other.distinct;
        self.newest += other.newest;
        self.late += other.late;
        self.untold += other.untold;
        self.adjusted += other.adjusted;
        self.unresolved += other.unresolved;
    }
}

/// What became of events in one sink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SinkCounters {
    /// Rows written.
    pub written: u64,
    /// Made needless by a newer state of the key.
    pub superseded: u64,
    /// Left out by the sink's nature.
    pub filtered: u64,
    /// Not distinct.
    pub duplicates: u64,
    /// Refused; each is a dead letter of the write stage.
    pub rejected: u64,
    /// Passed before this sink was added to the pipeline.
    pub absent: u64,
}

impl SinkCounters {
    /// Adds `other`.
    pub fn add(&mut self, other: &SinkCounters) {
        self.written += other.written;
        self.superseded += other.superseded;
        self.filtered += other.filtered;
        self.duplicates += other.duplicates;
        self.rejected += other.rejected;
        self.absent += other.absent;
    }

    /// All events that it accounts for.
    pub fn total(&self) -> u64 {
        self.written + self.superseded + self.filtered + self.duplicates + self.rejected + self.absent
    }
}

impl Counters {
    /// Events of all tables.
    pub fn events(&self) -> u64 {
        self.tables.values().map(|t| t.events).sum()
    }

    /// Adds the counts of `other`, e.g. one epoch's to those since the start.
    pub fn add(&mut self, other: &Counters) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.decoded += other.decoded;
        for (mine, theirs) in self.control.iter_mut().zip(other.control) {
            *mine += theirs;
        }
        for (code, n) in &other.dead {
            *self.dead.entry(code.clone()).or_default() += n;
        }
        for (table, counts) in &other.tables {
            self.tables.entry(table.clone()).or_default().add(counts);
        }
        for (sink, counts) in &other.sinks {
            self.sinks.entry(sink.clone()).or_default().add(counts);
        }
        for (code, n) in &other.notices {
            *self.notices.entry(code.clone()).or_default() += n;
        }
    }

    /// What does not balance, as sentences; empty when everything is accounted for. At a checkpoint nothing is in
    /// flight, so every line must balance exactly.
    pub fn residues(&self) -> Vec<String> {
        let mut residues = Vec::new();
        let control: u64 = self.control.iter().sum();
        let dead: u64 = self.dead.values().sum();
        if self.records != self.decoded + control + dead {
            residues.push(format!(
                "{} records were read but {} decoded + {control} control + {dead} dead letters make {}",
                self.records,
                self.decoded,
                self.decoded + control + dead
            ));
        }
        for (table, t) in &self.tables {
            if t.events != t.duplicates + t.distinct {
                residues.push(format!(
                    "table {table}: {} events, but {} duplicates + {} distinct",
                    t.events, t.duplicates, t.distinct
                ));
            }
        }
        let events = self.events();
        for (sink, s) in &self.sinks {
            if s.total() != events {
                residues.push(format!(
                    "sink {sink}: {events} events reached it, but it accounts for {}",
                    s.total()
                ));
            }
        }
        residues
    }
}
