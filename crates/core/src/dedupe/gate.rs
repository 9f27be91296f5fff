//! The gate: judges events one by one against the state of their keys.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::cache::{Cache, SlotId};
use super::entry::{DELETE, Entry};
use super::forward::Forward;
use super::ids::{Segment, Segments, Verdict};
use super::large::Large;
use super::overlay::{Overlay, Writes};
use super::resolve::Found;
use super::route::{KEYLESS, keyless_address, keyless_id, put_state_key, shard_of, shard_of_address};
use super::shape::Shape;
use super::stamp::Stamp;
use super::tables::Tables;
use super::{Barrier, GateConfig, Mode};
use crate::error::Result;
use crate::event::{Event, Op};
use crate::row::Row;
use crate::schema::{RowSchema, TableName};
use crate::sink::{Judged, Output, Patch};
use crate::store::{Space, StateDelta, StateView};
use crate::value::Value;

/// Schemas whose facts are kept; a pipeline has one or two a table and decode worker.
const SHAPES_MAX: usize = 4096;
/// Expired blocks of keyless offsets that are looked at for each keyless event: more than one event can add.
const SWEEP_STEPS: usize = 2;

/// The keyed stage of one shard. See the [module's docs](super).
pub struct Gate {
    pub(super) config: Arc<GateConfig>,
    pub(super) view: Arc<dyn StateView>,
    pub(super) tables: Tables,
    pub(super) cache: Cache,
    pub(super) values: Overlay<Large>,
    /// Forwards that were sent in this epoch, encoded.
    pub(super) sent: Vec<Vec<u8>>,
    pub(super) state_key: Vec<u8>,
    segments: Overlay<Segment>,
    shapes: Vec<Shape>,
    shape_by_schema: HashMap<usize, u32>,
    shape_last: usize,
    keyless: VecDeque<Block>,
    pub(super) shard: usize,
    pub(super) shards: usize,
    /// Wall time of the last barrier.
    pub(super) now_ms: i64,
}

/// What is said of an event.
#[derive(Debug, Default)]
pub(super) struct Ruling {
    distinct: bool,
    newest: bool,
    /// See [`Judged::filled`].
    pub(super) filled: Option<Row>,
    /// For the replica's row of the same key.
    pub(super) patch: Option<Box<Patch>>,
}

/// A block of keyless offsets, to be forgotten some time after `touched_ms`.
struct Block {
    touched_ms: i64,
    table: u32,
    address: Box<[u8]>,
}

impl Gate {
    /// The gate of shard `shard` of `shards`, over the committed state in `view`. Reads the list of tables.
    ///
    /// # Errors
    /// When the view fails, or holds a format that this version does not know.
    pub fn new(
        config: Arc<GateConfig>,
        shard: usize,
        shards: usize,
        view: Arc<dyn StateView>,
    ) -> Result<Self> {
        let tables = Tables::load(&*view)?;
        // Keys are what every event needs; segments and values are read for few of them.
        let keys_bytes = config.cache_bytes / 8 * 6;
        Ok(Self {
            tables,
            cache: Cache::new(keys_bytes),
            values: Overlay::new(config.cache_bytes / 8),
            segments: Overlay::new(config.cache_bytes / 8),
            config,
            view,
            sent: Vec::new(),
            state_key: Vec::new(),
            shapes: Vec::new(),
            shape_by_schema: HashMap::new(),
            shape_last: 0,
            keyless: VecDeque::new(),
            shard,
            shards,
            now_ms: 0,
        })
    }

    /// Judges an event and appends it, with its verdict, to `out`; messages to other keys' shards go to `sends`. A truncate is
    /// given to every shard and appended by its own only.
    ///
    /// # Errors
    /// When the view fails or holds what this version cannot read, or when two tables share a hash. The gate is of no use
    /// then: rebuild it from the last checkpoint.
    pub fn judge(
        &mut self,
        mut event: Box<Event>,
        late: bool,
        out: &mut Vec<Output>,
        sends: &mut Vec<Forward>,
    ) -> Result<()> {
        let shape = self.shape(&event.schema)?;
        let table = self.shapes[shape].table;
        let ruling = if event.op == Op::Truncate {
            if !self.judge_truncate(&event, table) {
                return Ok(());
            }
            self.report_truncate(&event, table)
        } else if self.config.mode == Mode::Off {
            let unresolved = event.row.iter().filter(|v| *v == Value::Unchanged).count() as u64;
            self.tables.get_mut(table).counters.unresolved += unresolved;
            Ruling { distinct: true, newest: event.key.is_some(), ..Ruling::default() }
        } else if event.key.is_none() {
            self.judge_keyless(&event, table)?
        } else {
            self.judge_keyed(&mut event, shape, sends)?
        };
        let Ruling { distinct, newest, filled, patch } = ruling;
        let counters = &mut self.tables.get_mut(table).counters;
        counters.events += 1;
        counters.late += u64::from(late);
        counters.distinct += u64::from(distinct);
        counters.duplicates += u64::from(!distinct);
        counters.newest += u64::from(newest);
        out.push(Output::Event(Judged { event, distinct, newest, late, filled }));
        out.extend(patch.map(|patch| Output::Patch(*patch)));
        Ok(())
    }

    /// Takes in a message that a gate sent, at the shard that [`Forward::shard`] names.
    ///
    /// A forward that was sent in an epoch must be received before the barrier of the next, as the checkpoint of each epoch
    /// names only those sent in it; and not before the barrier of the one before, as a checkpoint must not show what comes
    /// behind it. Receiving one twice changes nothing.
    ///
    /// # Errors
    /// As [`judge`](Self::judge).
    pub fn receive(
        &mut self,
        forward: Forward,
        out: &mut Vec<Output>,
        sends: &mut Vec<Forward>,
    ) -> Result<()> {
        self.receive_forward(forward, out, sends)
    }

    /// Ends the epoch: hands out everything that changed in it. `now_ms` is the wall time, for the age of remembered ids.
    ///
    /// # Panics
    /// If the barrier before was not [`committed`](Self::committed): only one is ever outstanding.
    pub fn barrier(&mut self, now_ms: i64) -> Barrier {
        self.now_ms = now_ms;
        let mut writes = Writes::new();
        let config_off = self.config.mode == Mode::Off;
        let counters = self.tables.barrier(&mut writes);
        let (tables, segments, config) = (&self.tables, &mut self.segments, &self.config);
        self.cache.barrier(|slot| {
            let mut key = Vec::with_capacity(8 + slot.address().len());
            put_state_key(&mut key, tables.get(slot.table).hash, slot.address());
            let is_keyless = slot.address().first() == Some(&KEYLESS);
            if is_keyless && slot.entry.ids.tail.count() > 0 {
                slot.entry.set_times(Some(now_ms.saturating_mul(1000)), None);
            }
            let kept_ms = if is_keyless { config.keyless_kept_ms } else { config.ids_kept_ms };
            slot.entry.ids.prune(now_ms, kept_ms, config.ids_kept_min, &key, segments);
            let value = (!slot.entry.is_void()).then(|| {
                let mut value = Vec::with_capacity(32 + slot.entry.footprint());
                slot.entry.encode(&mut value);
                value
            });
            writes.push((Space::Keys, key, value));
        });
        self.segments.barrier(&mut writes);
        self.values.barrier(&mut writes);
        if config_off {
            writes.clear();
        }
        Barrier { state: StateDelta { writes }, counters, forwards: std::mem::take(&mut self.sent) }
    }

    /// The last barrier's state is in the view now, so its entries need not stay in memory.
    pub fn committed(&mut self) {
        self.cache.committed();
        self.segments.committed();
        self.values.committed();
    }

    /// Bytes of entries that changed in this epoch and cannot be evicted; end the epoch early when they grow large.
    pub fn dirty_bytes(&self) -> usize {
        self.cache.dirty_bytes() + self.segments.dirty_bytes() + self.values.dirty_bytes()
    }

    /// Keys in memory.
    pub fn cached_keys(&self) -> usize {
        self.cache.len()
    }

    /// Index of the facts about `schema`.
    fn shape(&mut self, schema: &Arc<RowSchema>) -> Result<usize> {
        if self.shapes.get(self.shape_last).is_some_and(|s| Arc::ptr_eq(&s.schema, schema)) {
            return Ok(self.shape_last);
        }
        // The shape keeps the schema alive, so that its address names it.
        let address = Arc::as_ptr(schema) as usize;
        if let Some(&index) = self.shape_by_schema.get(&address) {
            self.shape_last = index as usize;
            return Ok(self.shape_last);
        }
        if self.shapes.len() >= SHAPES_MAX {
            self.shapes.clear();
            self.shape_by_schema.clear();
        }
        let table = self.intern(&schema.table)?;
        self.tables.get_mut(table).schema = Some(Arc::clone(schema));
        self.shape_last = self.shapes.len();
        self.shape_by_schema.insert(address, self.shape_last as u32);
        self.shapes.push(Shape::new(Arc::clone(schema), table));
        Ok(self.shape_last)
    }

    /// Index of a table.
    pub(super) fn intern(&mut self, name: &Arc<TableName>) -> Result<u32> {
        let full = |name: &str| self.config.full_identity.contains(name);
        self.tables.intern(name, full)
    }

    /// Takes in a truncate's order; whether this shard is the one to report it.
    fn judge_truncate(&mut self, event: &Event, table: u32) -> bool {
        let own = shard_of(event, self.shards) == self.shard;
        if !own && self.config.mode != Mode::Off {
            self.tables.get_mut(table).truncate(event.id, event.order, false);
        }
        own
    }

    fn report_truncate(&mut self, event: &Event, table: u32) -> Ruling {
        if self.config.mode == Mode::Off {
            return Ruling { distinct: true, newest: true, ..Ruling::default() };
        }
        let (distinct, newest) = self.tables.get_mut(table).truncate(event.id, event.order, true);
        Ruling { distinct, newest, ..Ruling::default() }
    }

    fn judge_keyed(&mut self, event: &mut Event, shape: usize, sends: &mut Vec<Forward>) -> Result<Ruling> {
        let table = self.shapes[shape].table;
        let address = event.key.as_ref().expect("invariant: keyless events are judged elsewhere").as_bytes();
        let slot = self.slot(table, address)?;
        let stamp = Stamp::of(event);
        let entry = &mut self.cache.slot_mut(slot).entry;
        let mut segments = Segments { overlay: &mut self.segments, view: &*self.view };
        let facts = self.tables.get_mut(table);
        let latest = self.config.mode == Mode::Latest;

        let known = if latest {
            if stamp.is_newest(entry) { Verdict::Seen } else { Verdict::New }
        } else {
            entry.ids.insert(event.id, &self.state_key, &mut segments)?
        };
        if known == Verdict::Seen {
            facts.counters.adjusted += u64::from(stamp.replays_newest(entry));
            return Ok(Ruling::default());
        }
        let adjusted = stamp.adjusted(entry);
        event.order = adjusted.unwrap_or(stamp.order);
        let newer = event.order > entry.newest;
        if latest {
            if !newer {
                return Ok(Ruling::default());
            }
            entry.ids.collapse(event.id, &self.state_key, &mut segments);
        }
        facts.counters.untold += u64::from(known == Verdict::Untold);
        facts.counters.adjusted += u64::from(adjusted.is_some());
        if newer {
            stamp.become_newest(entry, event.order);
            entry.set(DELETE, event.op == Op::Delete);
        }
        let newest = newer && facts.holds(&event.order);
        let full_rows = event.full_before || facts.full_identity;
        self.cache.changed(slot);

        let mut ruling = Ruling { distinct: true, newest, ..Ruling::default() };
        let shape = &self.shapes[shape];
        if event.order.sections().len() == 3 && shape.has_movable && !full_rows {
            let target = self.config.toast_tuple_target;
            let large = event.row.has_unchanged() || !shape.is_below(&event.row, target);
            self.resolve(event, &Found { slot, table, stamp, newer, large }, &mut ruling, sends)?;
        }
        Ok(ruling)
    }

    fn judge_keyless(&mut self, event: &Event, table: u32) -> Result<Ruling> {
        self.recall_blocks(table)?;
        let address = keyless_address(&event.origin);
        let slot = self.slot(table, &address)?;
        let entry = &mut self.cache.slot_mut(slot).entry;
        if entry.ids.tail.count() == 0 {
            self.keyless.push_back(Block { touched_ms: self.now_ms, table, address: address.into() });
        }
        let mut segments = Segments { overlay: &mut self.segments, view: &*self.view };
        let known = entry.ids.insert(keyless_id(&event.origin), &self.state_key, &mut segments)?;
        let distinct = known != Verdict::Seen;
        if distinct {
            self.cache.changed(slot);
        }
        self.sweep()?;
        Ok(Ruling { distinct, ..Ruling::default() })
    }

    /// The slot of a key, read from the view if need be. Leaves the state key in `self.state_key`.
    pub(super) fn slot(&mut self, table: u32, address: &[u8]) -> Result<SlotId> {
        put_state_key(&mut self.state_key, self.tables.get(table).hash, address);
        let hash = self.cache.hash(table, address);
        if let Some(slot) = self.cache.find(hash, table, address) {
            return Ok(slot);
        }
        let entry = match self.view.get(Space::Keys, &self.state_key)? {
            Some(bytes) => Entry::decode(&bytes).map_err(|e| e.at(&self.tables.get(table).name))?,
            None => Entry::default(),
        };
        Ok(self.cache.insert(hash, table, address, entry))
    }

    /// Lists the blocks of keyless offsets that earlier runs left for this shard, once a table.
    fn recall_blocks(&mut self, table: u32) -> Result<()> {
        if self.tables.get(table).keyless_known {
            return Ok(());
        }
        let hash = self.tables.get(table).hash;
        let mut prefix = Vec::new();
        put_state_key(&mut prefix, hash, &[KEYLESS]);
        let (shard, shards, keyless) = (self.shard, self.shards, &mut self.keyless);
        self.view.scan(Space::Keys, &prefix, &mut |key, _| {
            let address = &key[size_of::<u64>()..];
            if shard_of_address(hash, address, shards) == shard {
                // When it was touched is read from its entry when its turn comes.
                keyless.push_front(Block { touched_ms: i64::MIN, table, address: address.into() });
            }
            true
        })?;
        self.tables.get_mut(table).keyless_known = true;
        Ok(())
    }

    /// Forgets a few blocks of keyless offsets whose time is over.
    fn sweep(&mut self) -> Result<()> {
        let expired_ms = self.now_ms.saturating_sub(self.config.keyless_kept_ms);
        for _ in 0..SWEEP_STEPS {
            if self.keyless.front().is_none_or(|block| block.touched_ms >= expired_ms) {
                return Ok(());
            }
            let Some(block) = self.keyless.pop_front() else { return Ok(()) };
            let slot = self.slot(block.table, &block.address)?;
            let entry = &mut self.cache.slot_mut(slot).entry;
            let Some(touched_us) = entry.time_us() else {
                // Touched in this epoch for the first time, or forgotten already.
                if entry.ids.tail.count() > 0 {
                    self.keyless.push_back(Block { touched_ms: self.now_ms, ..block });
                }
                continue;
            };
            if touched_us / 1000 >= expired_ms {
                self.keyless.push_back(Block { touched_ms: touched_us / 1000, ..block });
                continue;
            }
            entry.ids.forget(&self.state_key, &mut self.segments);
            *entry = Entry::default();
            self.cache.changed(slot);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("shard", &self.shard)
            .field("keys", &self.cache.len())
            .finish_non_exhaustive()
    }
}
