//! What decoding costs on one core, in nanoseconds of CPU an event.
//!
//! `cargo bench -p millstream-decode -- FILE [EVENTS] [flat]` reads JSON lines (whole into memory), decodes them in
//! batches as the engine does, drops what came out, and prints the best and the median of five runs.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

use millstream_core::record::{Range, Slot};
use millstream_core::{Decoded, PartitionId, Position, RecordBatch};
use millstream_decode::{Options, TableHints, debezium, debezium_flat};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RUNS: usize = 7;
const BATCH_BYTES: usize = 1 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|a| a != "--bench");
    let Some(path) = arguments.next() else {
        println!("usage: decode FILE [EVENTS] [flat]");
        return;
    };
    let limit = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(300_000);
    let flat = arguments.next().is_some_and(|a| a == "flat");
    let batches = read(&path, limit);
    let events: usize = batches.iter().map(|b| b.slots.len()).sum();
    let bytes: usize = batches.iter().map(|b| b.buffer.len()).sum();
    println!("{events} events, {} bytes each", bytes / events.max(1));

    let options = options();
    let mut costs = Vec::new();
    let mut counts = [0usize; 3];
    for _ in 0..RUNS {
        let mut decoder = if flat { debezium_flat(options.clone()) } else { debezium(options.clone()) };
        let mut out = Vec::new();
        counts = [0; 3];
        let start = cpu_ns();
        for batch in &batches {
            for record in batch.records() {
                decoder.decode(&record, &mut out);
            }
            for item in out.drain(..) {
                counts[match item {
                    Decoded::Event(_) => 0,
                    Decoded::Control(_) | Decoded::Several(_) => 1,
                    Decoded::Dead(_) => 2,
                }] += 1;
            }
        }
        costs.push((cpu_ns() - start) as f64 / events as f64);
    }
    costs.sort_by(f64::total_cmp);
    let [decoded, control, dead] = counts;
    println!("{decoded} decoded, {control} control, {dead} dead");
    println!("{:.0} ns of CPU an event (best), {:.0} ns (median)", costs[0], costs[RUNS / 2]);
}

fn options() -> Arc<Options> {
    let key = |column: &str| TableHints { key: Some(vec![column.to_owned()]), ..TableHints::default() };
    let tables = [("public.orders", "order_id"), ("public.customers", "customer_id")];
    let tables = tables.into_iter().map(|(table, column)| (table.to_owned(), key(column))).collect();
    Arc::new(Options { tables, ..Options::default() })
}

fn read(path: &str, limit: usize) -> Vec<RecordBatch> {
    let file = fs::File::open(path).expect("the file can be opened");
    let mut batches = Vec::new();
    let mut batch = empty();
    let mut lines = BufReader::with_capacity(1 << 20, file);
    let mut line = Vec::new();
    for _ in 0..limit {
        line.clear();
        if lines.read_until(b'\n', &mut line).expect("the file can be read") == 0 {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let start = batch.buffer.len() as u32;
        batch.buffer.extend_from_slice(text);
        let value = Some(Range { start, len: text.len() as u32 });
        batch.slots.push(Slot { value, offset: start.into(), ..Slot::default() });
        if batch.buffer.len() >= BATCH_BYTES {
            batches.push(std::mem::replace(&mut batch, empty()));
        }
    }
    batches.push(batch);
    batches
}

fn empty() -> RecordBatch {
    RecordBatch {
        partition: PartitionId::new("bench"),
        buffer: Vec::new(),
        slots: Vec::new(),
        position: Position::default(),
    }
}

/// CPU time of this process so far, which noisy neighbours do not stretch as they do wall time.
fn cpu_ns() -> u64 {
    let stat = fs::read_to_string("/proc/self/schedstat").expect("Linux tells a process' CPU time");
    stat.split_whitespace().next().and_then(|n| n.parse().ok()).expect("the first number is CPU time in ns")
}
