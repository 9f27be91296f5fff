//! Writes a history: concurrent transactions on a small database, seen as a connector sees them.
//!
//! Transactions take positions while they run and are streamed when they commit, so positions of the stream go up and down.
//! What a transaction did is decided when it commits, against the rows as they are then; that is exact, because rows are
//! ordered by commit. With locks, no two open transactions touch one row, as in a real database; without, they may,
//! which makes the order by commit matter more than any real database does.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::{Op, Snapshot};

use crate::history::{Big, Cells, Change, History, Identity, Item, Table};
use crate::random::Random;

/// Positions are bytes in a log: two never touch.
const STEP: u64 = 16;

const TABLES: [Table; 5] = [
    Table { schema: "public", name: "orders", identity: Identity::Integer },
    Table { schema: "audit", name: "orders", identity: Identity::Pair },
    Table { schema: "public", name: "notes", identity: Identity::Full },
    Table { schema: "public", name: "clicks", identity: Identity::Keyless },
    Table { schema: "public", name: "items", identity: Identity::Integer },
];

/// A change that an open transaction is to make: what exactly is decided at its commit.
#[derive(Debug, Clone, Copy)]
struct Slot {
    lsn: u64,
    table: usize,
    id: i64,
    /// Where the row moves, if it does.
    moved: Option<i64>,
    truncate: bool,
}

/// Writes histories.
pub(crate) struct Writer {
    random: Random,
    history: History,
    lsn: u64,
    now_us: i64,
    keys: i64,
    open: Vec<Vec<Slot>>,
    /// The last commit that the stream showed.
    last_commit: Option<u64>,
    /// Whether changes are streamed yet.
    streaming: bool,
    /// The next transaction is the first after an ad-hoc snapshot.
    after_snapshot: bool,
    /// Tables and positions of incremental reads: an event is named by its position, so none is read twice at one.
    chunks: BTreeSet<(usize, u64)>,
    next_v: i64,
}

impl Writer {
    /// A history of about `target` events.
    pub(crate) fn write(mut random: Random, target: usize) -> History {
        let count = 2 + random.index(TABLES.len() - 1);
        let keys = random.pick(&[1, 2, 4, 8, 20, 60]);
        let history = History {
            tables: TABLES[..count].to_vec(),
            rows: vec![BTreeMap::new(); count],
            locks: random.chance(60),
            ..History::default()
        };
        let mut writer = Self {
            random,
            history,
            lsn: 1000,
            now_us: 1_700_000_000_000_000,
            keys,
            open: Vec::new(),
            last_commit: None,
            streaming: false,
            after_snapshot: false,
            chunks: BTreeSet::new(),
            next_v: 0,
        };
        writer.before_capture();
        while writer.history.changes.len() < target {
            writer.step();
        }
        while !writer.open.is_empty() {
            writer.commit();
        }
        writer.history
    }

    /// The database lives before the connector comes; then, often, a snapshot.
    fn before_capture(&mut self) {
        if self.random.chance(70) {
            for _ in 0..self.random.between(5, 40) {
                self.transact();
            }
            self.settle_truncates();
            self.snapshot();
        }
        self.streaming = true;
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..=1 => {
                self.settle_truncates();
                self.adhoc_snapshot();
            }
            2..=4 => self.incremental_reads(),
            5..=7 => self.history.stream.push(Item::Malformed),
            8 => self.history.stream.push(Item::BrokenFrame),
            9..=11 => self.history.stream.push(Item::Heartbeat(self.now_us / 1000)),
            12 if self.history.locks && self.random.chance(30) => self.last_commit = None,
            _ => self.transact(),
        }
    }

    fn transact(&mut self) {
        let most = 1 + self.random.index(4);
        match self.random.below(100) {
            0..=14 if self.open.len() < most => self.open.push(Vec::new()),
            0..=79 if !self.open.is_empty() => self.write_slot(),
            _ if self.open.is_empty() => self.open.push(Vec::new()),
            _ => self.commit(),
        }
    }

    fn advance(&mut self) -> u64 {
        self.lsn += STEP * self.random.between(1, 4);
        self.now_us += self.random.between(1, 2_000_000) as i64;
        self.lsn
    }

    fn write_slot(&mut self) {
        let at = self.random.index(self.open.len());
        let table = self.random.index(self.history.tables.len());
        let id = self.random.below(self.keys as u64) as i64;
        let moved =
            self.random.chance(12).then(|| self.random.below(self.keys as u64) as i64).filter(|m| *m != id);
        let truncate = self.random.chance(2) && self.history.tables[table].identity != Identity::Keyless;
        let keyless = self.history.tables[table].identity == Identity::Keyless;
        if self.history.locks && !keyless && self.is_locked(at, table, id, moved, truncate) {
            return;
        }
        let lsn = self.advance();
        self.open[at].push(Slot { lsn, table, id, moved, truncate });
    }

    /// Whether another open transaction holds what this change needs.
    fn is_locked(&self, mine: usize, table: usize, id: i64, moved: Option<i64>, truncate: bool) -> bool {
        let others = self.open.iter().enumerate().filter(|(i, _)| *i != mine).flat_map(|(_, slots)| slots);
        others.filter(|slot| slot.table == table).any(|slot| {
            let wanted = [Some(id), moved];
            let meets =
                wanted.contains(&Some(slot.id)) || slot.moved.is_some() && wanted.contains(&slot.moved);
            truncate || slot.truncate || meets
        })
    }

    /// A snapshot waits for truncates, which lock their table.
    fn settle_truncates(&mut self) {
        while let Some(at) = self.open.iter().position(|slots| slots.iter().any(|slot| slot.truncate)) {
            self.commit_at(at);
        }
    }

    fn commit(&mut self) {
        let at = self.random.index(self.open.len());
        self.commit_at(at);
    }

    fn commit_at(&mut self, at: usize) {
        let slots = self.open.swap_remove(at);
        if slots.is_empty() {
            return;
        }
        let commit = self.advance();
        let p = self.last_commit;
        if self.streaming && self.random.chance(50) {
            self.history.stream.push(Item::Transaction(self.now_us / 1000));
        }
        let mut rows = Vec::new();
        for slot in slots {
            self.apply(slot, p, &mut rows);
        }
        self.flush_rows(&mut rows);
        if self.streaming {
            self.last_commit = Some(commit);
            self.after_snapshot = false;
        }
    }

    fn apply(&mut self, slot: Slot, p: Option<u64>, rows: &mut Vec<usize>) {
        let Slot { lsn, table, id, moved, truncate } = slot;
        let change = Change {
            table,
            op: Op::Create,
            id: Some(id),
            old_id: None,
            new_id: None,
            p,
            lsn,
            ts_us: self.now_us,
            snapshot: Snapshot::No,
            cells: None,
        };
        if self.history.tables[table].identity == Identity::Keyless {
            let cells = Some(Cells { v: self.fresh_v(), big: Big::Null });
            if self.streaming {
                rows.push(self.history.changes.len());
                self.history.changes.push(Change { id: None, cells, ..change });
            }
            if self.random.chance(40) {
                self.flush_rows(rows);
            }
            return;
        }
        self.flush_rows(rows);
        if truncate {
            // The first transaction after an ad-hoc snapshot must not truncate: nothing in its order says that it is newer than
            // the snapshot's reads, which is a known limit of the order.
            if !self.after_snapshot {
                self.history.rows[table].clear();
                self.stream(Change { op: Op::Truncate, id: None, ..change });
            }
            return;
        }
        let old = self.history.rows[table].get(&id).cloned();
        let free = moved.filter(|to| !self.history.rows[table].contains_key(to));
        match (old, free) {
            (None, _) => {
                let big = self.fresh_big();
                let cells = Cells { v: self.fresh_v(), big };
                self.history.rows[table].insert(id, cells.clone());
                self.stream(Change { cells: Some(cells), ..change });
            }
            (Some(old), Some(to)) => self.move_row(change, &old, to),
            (Some(old), None) if self.random.chance(25) => {
                self.delete(Change { op: Op::Delete, ..change }, &old)
            }
            (Some(old), None) => {
                let (now, seen) = self.updated(table, &old);
                self.history.rows[table].insert(id, now);
                self.stream(Change { op: Op::Update, cells: Some(seen), ..change });
            }
        }
    }

    /// A key change: a delete and a create at one position.
    fn move_row(&mut self, change: Change, old: &Cells, to: i64) {
        let (now, seen) = self.updated(change.table, old);
        let from = change.id;
        let delete = Change { op: Op::Delete, new_id: Some(to), ..change.clone() };
        self.delete(delete, old);
        self.history.rows[change.table].insert(to, now);
        self.stream(Change { id: Some(to), old_id: from, cells: Some(seen), ..change });
    }

    fn delete(&mut self, change: Change, old: &Cells) {
        let (table, id) = (change.table, change.id);
        let full = self.history.tables[table].identity == Identity::Full;
        if let Some(id) = id {
            self.history.rows[table].remove(&id);
        }
        self.stream(Change { cells: full.then(|| old.clone()), ..change });
        if self.streaming && self.random.chance(50) {
            self.history.stream.push(Item::Tombstone);
        }
    }

    /// The row after an update, and what the event carries of it.
    fn updated(&mut self, table: usize, old: &Cells) -> (Cells, Cells) {
        let v = self.fresh_v();
        if self.random.chance(40) {
            let cells = Cells { v, big: self.fresh_big() };
            return (cells.clone(), cells);
        }
        let now = Cells { v, big: old.big.clone() };
        let untold = matches!(old.big, Big::Text(_)) && self.history.tables[table].identity != Identity::Full;
        let big = if untold { Big::Unchanged } else { old.big.clone() };
        (now, Cells { v, big })
    }

    fn fresh_v(&mut self) -> i64 {
        self.next_v += 1;
        self.next_v
    }

    fn fresh_big(&mut self) -> Big {
        if self.random.chance(15) {
            return Big::Null;
        }
        let n = self.fresh_v();
        Big::Text(format!("big {n} {}", "x".repeat(60)))
    }

    fn stream(&mut self, change: Change) {
        if self.streaming {
            self.history.stream.push(Item::Change(self.history.changes.len()));
            self.history.changes.push(change);
        }
    }

    fn flush_rows(&mut self, rows: &mut Vec<usize>) {
        if !rows.is_empty() {
            self.history.stream.push(Item::Rows(std::mem::take(rows)));
        }
    }

    /// Reads of all rows as they are now, at one position.
    fn snapshot(&mut self) {
        let lsn = self.advance();
        self.streaming = true;
        for table in 0..self.history.tables.len() {
            let rows = self.history.rows[table].clone();
            for (id, cells) in rows {
                self.stream(self.read(table, id, cells, lsn, None, Snapshot::Yes));
            }
        }
    }

    /// A snapshot on request: the stream is held up, so that changes which the snapshot saw may still follow it.
    fn adhoc_snapshot(&mut self) {
        if self.history.changes.is_empty() || self.last_commit.is_none() {
            return;
        }
        let before = self.history.stream.len();
        self.snapshot();
        let held_up = self.random.index(before.min(12) + 1);
        let at = before - held_up;
        let reads = self.history.stream.split_off(before);
        self.history.stream.splice(at..at, reads);
        self.after_snapshot = true;
    }

    /// Reads in the middle of the stream of rows that no open transaction has changed.
    fn incremental_reads(&mut self) {
        let Some(last_commit) = self.last_commit else { return };
        let table = self.random.index(self.history.tables.len());
        self.now_us += 1;
        let busy = |id: i64| {
            let slots = self.open.iter().flatten().filter(|slot| slot.table == table);
            slots.into_iter().any(|slot| slot.truncate || slot.id == id || slot.moved == Some(id))
        };
        let rows: Vec<_> = self.history.rows[table]
            .iter()
            .filter(|(id, _)| !busy(**id))
            .map(|(id, c)| (*id, c.clone()))
            .collect();
        // The connector's position, which no event shares.
        let lsn = last_commit + 1;
        if !self.chunks.insert((table, lsn)) {
            return;
        }
        for (id, cells) in rows {
            if self.random.chance(50) {
                self.stream(self.read(table, id, cells, lsn, Some(last_commit), Snapshot::Incremental));
            }
        }
    }

    fn read(
        &self,
        table: usize,
        id: i64,
        cells: Cells,
        lsn: u64,
        p: Option<u64>,
        snapshot: Snapshot,
    ) -> Change {
        let (ts_us, cells) = (self.now_us, Some(cells));
        let (op, id) = (Op::Read, Some(id));
        Change { table, op, id, old_id: None, new_id: None, p, lsn, ts_us, snapshot, cells }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applying the changes in the order of their positions must give the rows that remain: else the world is wrong, not the
    /// pipeline.
    #[test]
    fn positions_order_the_changes_of_a_key() {
        for seed in 0..300 {
            let history = Writer::write(Random::new(seed), 120);
            let mut ordered: Vec<_> =
                history.changes.iter().filter(|c| c.p.is_some() && c.op != Op::Read).collect();
            ordered.sort_by_key(|c| (c.p, c.lsn));
            let streamed: Vec<_> =
                history.changes.iter().filter(|c| c.p.is_some() && c.op != Op::Read).map(|c| c.lsn).collect();
            assert_eq!(ordered.iter().map(|c| c.lsn).collect::<Vec<_>>(), streamed, "seed {seed}");
        }
    }
}
