//! Reads files to their end and prints what a line costs: `cargo run --release --example files_speed -- FILE [record]`.

use std::time::Instant;

use millstream_core::{Budget, Next, Source};
use millstream_sources::files::{FileSource, FilesConfig, Lines};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: files_speed FILE|GLOB [record]")?;
    let lines = if arguments.next().is_some() { Lines::Record } else { Lines::Value };
    let mut source = FileSource::new(FilesConfig { lines, ..FilesConfig::new(path) })?;
    source.open(&[]).await?;
    let budget = Budget { records: 100_000, bytes: 8 << 20 };
    let (mut records, mut bytes, mut batches) = (0_u64, 0_u64, 0_u64);
    let (start, cpu) = (Instant::now(), cpu_ticks());
    while let Next::Batch(batch) = source.next(budget).await? {
        records += batch.slots.len() as u64;
        bytes += batch.buffer.len() as u64;
        batches += 1;
    }
    let wall = start.elapsed().as_secs_f64();
    let cpu = (cpu_ticks() - cpu) as f64 / 100.0;
    eprintln!(
        "{records} records, {bytes} bytes, {batches} batches: {:.0} ns wall and {:.0} ns CPU a record, {:.2} GB/s",
        wall * 1e9 / records.max(1) as f64,
        cpu * 1e9 / records.max(1) as f64,
        bytes as f64 / wall / 1e9
    );
    Ok(())
}

/// User and system time of this process in hundredths of a second, where the system tells it.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}
