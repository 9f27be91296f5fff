//! Measures the gate alone: nanoseconds a judged event, bytes a stored key.
//!
//! `cargo run --release -p millstream-core --example gate_bench [DISTINCT_KEYS [ZIPF_EVENTS]]` (10 and 4
//! million by default)
//!
//! The committed state is a hash map in memory, so that the figures leave out any store. Events are made outside the
//! measured time, which holds `judge` alone, and separately `barrier` and `committed`.
#![allow(clippy::print_stdout)] // It is a program for people.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_core::dedupe::{Gate, GateConfig, shard_of};
use millstream_core::event::Origin;
use millstream_core::order::Incarnation;
use millstream_core::{
    Column, Event, EventId, Facts, Key, Op, Order, Result, Row, RowBuilder, RowSchema, Space, StateDelta,
    StateView, TableName, Type, Value,
};

/// Time that this thread has spent on a processor, where the system tells (Linux), so that busy machines give usable figures;
/// else the time since `start`.
fn processor_time(start: Instant) -> Duration {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let spent = spent.and_then(|text| text.split_whitespace().next()?.parse().ok());
    spent.map_or_else(|| start.elapsed(), Duration::from_nanos)
}

type Entries = HashMap<(Space, Vec<u8>), Vec<u8>>;

#[derive(Default)]
struct Memory(Mutex<Entries>);

impl Memory {
    fn apply(&self, delta: StateDelta) {
        let mut all = self.0.lock().expect("invariant: one thread");
        for (space, key, value) in delta.writes {
            match value {
                Some(value) => all.insert((space, key), value),
                None => all.remove(&(space, key)),
            };
        }
    }
}

impl StateView for Memory {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.0.lock().expect("invariant: one thread").get(&(space, key.to_vec())).cloned())
    }

    fn scan(&self, _: Space, _: &[u8], _: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        Ok(())
    }
}

fn schema() -> Arc<RowSchema> {
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: true, guessed: false };
    let columns = vec![
        column("order_id", Type::Int64),
        column("customer_id", Type::Int64),
        column("status", Type::Text),
        column("amount", Type::Decimal { precision: 10, scale: 2 }),
        column("note", Type::Text),
        column("updated_at", Type::Timestamp),
    ];
    Arc::new(RowSchema { table: Arc::new(TableName::new("shop", "public", "orders")), columns, key: vec![0] })
}

fn row(key: i64) -> Row {
    let mut b = RowBuilder::new();
    b.push(Value::Int(key));
    b.push(Value::Int(key / 7));
    b.push(Value::Text("shipped"));
    b.push(Value::Decimal { unscaled: 9995, scale: 2 });
    b.push(Value::Text("please leave it with the neighbour on the second floor"));
    b.push(Value::Timestamp(1_796_013_178_626_123));
    b.finish()
}

fn event(schema: &Arc<RowSchema>, key: i64, n: u64) -> Event {
    let lsn = 0x16_0000_0000 + 160 * n;
    Event {
        schema: Arc::clone(schema),
        op: Op::Update,
        key: Some(Key::from_values([Value::Int(key)])),
        old_key: None,
        new_key: None,
        order: Order::postgres(Incarnation(0), lsn - 300, lsn),
        id: EventId::postgres(Incarnation(0), lsn, false),
        p_known: true,
        row: row(key),
        before: None,
        full_before: false,
        facts: Facts { ts_us: Some(1_796_013_178_626_123 + n as i64), ..Facts::default() },
        origin: Origin::default(),
        record: 0,
    }
}

/// A xorshift generator, so that every run is the same.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Zipf with exponent 1 over `n` keys, by the inverse of its continuous distribution.
    fn zipf(&mut self, n: f64) -> i64 {
        (n + 1.0).powf(self.next()) as i64
    }
}

fn run(title: &str, events: u64, cache_bytes: usize, mut key: impl FnMut(u64) -> i64) -> Result<()> {
    const BATCH: u64 = 10_000;
    const EPOCH: u64 = 500_000;
    let memory = Arc::new(Memory::default());
    let config = Arc::new(GateConfig { cache_bytes, ..GateConfig::default() });
    let mut gate = Gate::new(config, 0, 1, memory.clone())?;
    let schema = schema();
    let (mut judging, mut routing, mut barriers) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let (mut out, mut sends) = (Vec::new(), Vec::new());
    let mut shards = 0;
    let start_of_run = Instant::now();
    for start in (0..events).step_by(BATCH as usize) {
        let batch: Vec<Event> =
            (start..events.min(start + BATCH)).map(|n| event(&schema, key(n), n)).collect();
        let begun = processor_time(start_of_run);
        shards += batch.iter().map(|event| shard_of(event, 7)).sum::<usize>();
        routing += processor_time(start_of_run) - begun;
        let begun = processor_time(start_of_run);
        for event in batch {
            gate.judge(Box::new(event), false, &mut out, &mut sends)?;
        }
        judging += processor_time(start_of_run) - begun;
        out.clear();
        if (start + BATCH).is_multiple_of(EPOCH) || start + BATCH >= events {
            let begun = processor_time(start_of_run);
            let barrier = gate.barrier(1_796_013_178_000 + start as i64 / 500);
            barriers += processor_time(start_of_run) - begun;
            memory.apply(barrier.state);
            let begun = processor_time(start_of_run);
            gate.committed();
            barriers += processor_time(start_of_run) - begun;
        }
    }
    let ns = |d: Duration| d.as_nanos() as f64 / events as f64;
    let all = memory.0.lock().expect("invariant: one thread");
    let keys = all.keys().filter(|(space, _)| *space == Space::Keys).count();
    let bytes: usize = all.iter().map(|((_, key), value)| key.len() + value.len()).sum();
    println!(
        "{title}: judge {:.0} ns, barrier {:.0} ns, shard_of {:.0} ns an event; {keys} keys of {:.1} bytes (key and value, with \
         segments), {} in memory{}",
        ns(judging),
        ns(barriers),
        ns(routing),
        bytes as f64 / keys as f64,
        gate.cached_keys(),
        if shards == 0 { " " } else { "" },
    );
    Ok(())
}

fn main() -> Result<()> {
    let argument = |n, default| std::env::args().nth(n).and_then(|n| n.parse().ok()).unwrap_or(default);
    let (distinct, zipf) = (argument(1, 10_000_000), argument(2, 4_000_000));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    run("Zipf over 200,000 keys", zipf, 256 << 20, |_| random.zipf(200_000.0))?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    run("the same with a cache of 16 MiB", zipf, 16 << 20, |_| random.zipf(200_000.0))?;
    // Spread like a hash would, each key once.
    run("distinct keys, cache of 64 MiB", distinct, 64 << 20, |n| {
        (n.wrapping_mul(0x9e37_79b1) % (1 << 40)) as i64
    })
}
