//! What encoding costs on one core, in nanoseconds of CPU a row of 20 columns.
//!
//! `cargo bench -p millstream-bigquery` encodes rows in batches and prints the best and the median of some runs.

#![allow(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;

use millstream_bigquery::{RowEncoder, RowWriter, Unfit};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const RUNS: usize = 15;
const ROWS: i64 = 200_000;
const BATCH: usize = 5_000;

fn main() {
    let mut costs = Vec::new();
    let mut bytes = 0;
    for _ in 0..RUNS {
        let mut writer = RowWriter::new();
        bytes = 0;
        let start = cpu_ns();
        for i in 0..ROWS {
            let mut row = writer.begin();
            match put(&mut row, black_box(i)) {
                Ok(()) => row.finish(),
                Err(_) => drop(row),
            }
            if writer.len() == BATCH {
                bytes += black_box(writer.take()).byte_len();
            }
        }
        costs.push((cpu_ns() - start) as f64 / ROWS as f64);
    }
    costs.sort_by(f64::total_cmp);
    println!("{} bytes a row of 20 columns", bytes / ROWS as usize);
    println!("{:.0} ns of CPU a row (best), {:.0} ns (median)", costs[0], costs[RUNS / 2]);
}

/// An order with the columns that a sink adds.
fn put(row: &mut RowEncoder<'_>, i: i64) -> Result<(), Unfit> {
    let us = 1_700_000_000_000_000 + i * 977;
    row.put_int(1, i);
    row.put_int(2, i * 7919);
    row.put_text(3, "customer@example.com");
    row.put_text(4, "shipped");
    row.put_numeric(5, i128::from(i * 1999), 2)?;
    row.put_numeric(6, i128::from(i), 4)?;
    row.put_float(7, i as f64 * 0.25);
    row.put_bool(8, i % 2 == 0);
    row.put_date(9, 19_000 + (i % 1000) as i32)?;
    row.put_time(10, i * 31 % 86_400_000_000)?;
    row.put_date_time(11, us)?;
    row.put_timestamp(12, us)?;
    row.put_text(13, r#"{"colour":"green","sizes":[1,2,3]}"#);
    row.put_bytes(14, &[7; 16]);
    row.put_text(15, "c");
    row.put_int(16, us / 1000);
    row.put_timestamp(17, us)?;
    row.put_text(18, "public.orders");
    row.put_int(19, 24_023_128 + i);
    row.put_text(20, "0000000000000000/00000000016E8F58/00000000016E9000");
    Ok(())
}

fn cpu_ns() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").expect("Linux tells a process' CPU time");
    stat.split_whitespace().next().and_then(|n| n.parse().ok()).expect("the first number is CPU time in ns")
}
