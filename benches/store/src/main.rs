//! Compares embedded stores for keyed deduplication state. The figures are in benches/README.md.
//! `storebench ENGINE DIR WORKLOAD [name=number ...]`; every phase is its own process, so that peak memory and
//! CPU belong to that phase alone.

mod log;
mod store;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use store::{Reader, Row, Store};

#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Map = HashMap<Box<[u8]>, Box<[u8]>, BuildHasherDefault<Fx>>;
const SHARDS: u64 = 2;

pub struct Opts(HashMap<String, u64>);
impl Opts {
    pub fn num(&self, name: &str, default: u64) -> u64 {
        self.0.get(name).copied().unwrap_or(default)
    }
}

/// SipHash would be a tenth of the whole run.
#[derive(Default)]
pub struct Fx(u64);
impl Hasher for Fx {
    fn write(&mut self, bytes: &[u8]) {
        for c in bytes.chunks(8) {
            let mut w = [0; 8];
            w[..c.len()].copy_from_slice(c);
            self.0 = (self.0.rotate_left(5) ^ u64::from_le_bytes(w)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }
    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Four tables: two with integer keys, one with random UUIDs, one with text keys.
fn key(id: u64) -> Vec<u8> {
    let table = (mix(id) & 3) as u16;
    let mut k = table.to_be_bytes().to_vec();
    match table {
        0 | 1 => {
            k.push(1);
            k.extend((id * 3).to_be_bytes());
        }
        2 => {
            k.push(2);
            k.extend(mix(id ^ 0xAAAA).to_be_bytes());
            k.extend(mix(id ^ 0x5555).to_be_bytes());
        }
        _ => k.extend(format!("\x03C{:04}-{:011}", mix(id) >> 8 & 1023, id).into_bytes()),
    }
    k
}

/// Newest order (log positions grow slowly, so their high bytes repeat), flags, one to three recent event ids: 24 to 40 bytes.
fn value(id: u64, n: u64, old: Option<&[u8]>) -> Box<[u8]> {
    let lsn = 0x16_B374_0000_u64 + n * 211;
    let ids = 1 + old.map_or(mix(id) % 3, |o| (o[1] as u64).min(2));
    let mut v = vec![1, ids as u8, 0];
    v.extend(&lsn.to_be_bytes()[2..]);
    v.extend(&(lsn - mix(n) % 5000).to_be_bytes()[2..]);
    v.extend(&(n as u32).to_be_bytes());
    v.extend(&mix(n).to_be_bytes()[..5]);
    for i in 1..ids {
        v.extend(&mix(n + i).to_be_bytes());
    }
    v.into()
}

/// Write-back cache of one shard. Dirty rows and rows being committed are never dropped; clean ones live two generations.
#[derive(Default)]
struct Shard {
    dirty: Map,
    committing: Arc<Map>,
    young: Map,
    old: Map,
    hits: u64,
    gets: u64,
    found: u64,
}

impl Shard {
    fn event(&mut self, id: u64, n: u64, read: &Reader) {
        let k = key(id);
        if let Some(v) = self.dirty.get_mut(&k[..]) {
            *v = value(id, n, Some(v));
            self.hits += 1;
            return;
        }
        let cached = self.committing.get(&k[..]).or_else(|| self.young.get(&k[..])).or_else(|| self.old.get(&k[..]));
        let v = if let Some(v) = cached {
            self.hits += 1;
            value(id, n, Some(v))
        } else {
            let mut new = None;
            self.gets += 1;
            self.found += read(&k, &mut |old| new = Some(value(id, n, Some(old)))) as u64;
            new.unwrap_or_else(|| value(id, n, None))
        };
        self.dirty.insert(k.into(), v);
    }

    /// After a commit its rows are clean; then this epoch's dirty rows become the next to commit.
    fn turn(&mut self, limit: usize) -> Arc<Map> {
        let done = std::mem::take(&mut self.committing);
        for (k, v) in Arc::try_unwrap(done).unwrap() {
            if self.young.len() >= limit / 2 {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(k, v);
        }
        self.committing = Arc::new(std::mem::take(&mut self.dirty));
        self.committing.clone()
    }
}

fn run(store: &dyn Store, o: &Opts, events: u64, first: u64, id_of: impl Fn(u64) -> u64 + Sync) {
    let epoch_len = o.num("epoch", 500_000);
    let limit = (o.num("rows", 200_000) / SHARDS) as usize;
    let mut shards: Vec<Shard> = (0..SHARDS).map(|_| Shard::default()).collect();
    let mut pending: Vec<Arc<Map>> = vec![];
    let mut epoch = store.last_epoch();
    let (mut slowest, mut spent, mut commits) = (0f64, 0f64, 0u32);
    let segment = vec![7u8; 3000];
    let mut commit = |maps: Vec<Arc<Map>>| {
        if maps.is_empty() {
            return;
        }
        let t = Instant::now();
        epoch += 1;
        let mut rows: Vec<Row> = maps.iter().flat_map(|m| m.iter().map(|(k, v)| (&**k, &**v))).collect();
        if o.num("sort", 1) == 1 {
            rows.sort_unstable();
        }
        let names: Vec<_> = (0..20u64).map(|i| mix(epoch * 20 + i).to_be_bytes()).collect();
        let segments: Vec<Row> = names.iter().map(|n| (&n[..], &segment[..])).collect();
        store.commit(epoch, &rows, &segments);
        let s = t.elapsed().as_secs_f64();
        (slowest, spent, commits) = (slowest.max(s), spent + s, commits + 1);
    };
    let (mut from, end) = (first, first + events);
    while from < end {
        let to = (from + epoch_len).min(end);
        std::thread::scope(|s| {
            let maps = std::mem::take(&mut pending);
            s.spawn(|| commit(maps));
            for (i, shard) in shards.iter_mut().enumerate() {
                let (read, id_of) = (store.reader(), &id_of);
                s.spawn(move || {
                    for n in from..to {
                        let id = id_of(n);
                        if id % SHARDS == i as u64 {
                            shard.event(id, n, &read);
                        }
                    }
                });
            }
        });
        pending = shards.iter_mut().map(|s| s.turn(limit)).collect();
        from = to;
    }
    commit(pending);
    let sum = |f: fn(&Shard) -> u64| shards.iter().map(f).sum::<u64>();
    println!(
        "  gets={} found={} hits={} commits={commits} commit_avg_ms={:.0} commit_max_ms={:.0}",
        sum(|s| s.gets),
        sum(|s| s.found),
        sum(|s| s.hits),
        1e3 * spent / f64::from(commits),
        1e3 * slowest
    );
}

fn proc_status(name: &str) -> u64 {
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    s.lines().find(|l| l.starts_with(name)).unwrap().split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// User and system CPU of the whole process, background threads included.
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s[s.rfind(')').unwrap()..].split(' ').collect();
    (f[12].parse::<f64>().unwrap() + f[13].parse::<f64>().unwrap()) / 100.0
}

/// Allocated blocks, not lengths: journals are preallocated sparse files.
fn disk(p: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(m) = std::fs::metadata(p) else { return 0 };
    let below = if m.is_dir() { std::fs::read_dir(p).unwrap().map(|e| disk(&e.unwrap().path())).sum() } else { 0 };
    m.blocks() * 512 + below
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (engine, dir, workload) = (&args[0], PathBuf::from(&args[1]), &args[2]);
    let o = Opts(args[3..].iter().map(|a| a.split_once('=').unwrap()).map(|(k, v)| (k.into(), v.parse().unwrap())).collect());
    let keys = o.num("keys", 10_000_000);
    // The factor is a prime, so that `n` visits every id once, in an order with no locality.
    let nth = |n: u64| n.wrapping_mul(6_700_417) % keys;
    let (t, c) = (Instant::now(), cpu());
    let store: Box<dyn Store> = match engine.as_str() {
        "fjall" => Box::new(store::Fjall::open(&dir, &o)),
        "log" => Box::new(log::Log::open(&dir)),
        "redb" => Box::new(store::Redb::open(&dir, &o)),
        _ => Box::new(store::Null),
    };
    let open = t.elapsed().as_secs_f64();
    println!("{}", args.join(" "));
    let mut events = 0;
    match workload.as_str() {
        "a" => {
            events = o.num("events", 4_000_000);
            run(&*store, &o, events, 0, |n| ((mix(n) as f64 / u64::MAX as f64) * 200_000f64.ln()).exp() as u64);
        }
        "b" => {
            events = o.num("events", keys);
            run(&*store, &o, events, 0, nth);
        }
        "c" => {
            events = o.num("events", 2_000_000);
            run(&*store, &o, events, 100_000_000, |n| mix(n) % keys);
        }
        "open" => {
            // The first event after a crash, then small commits: the fixed price of a checkpoint.
            let read = store.reader();
            let last = store.last_epoch();
            let done = (0..1000).filter(|i| read(&key(nth(keys - 1 - i)), &mut |_| ())).count();
            let first = t.elapsed().as_secs_f64();
            drop(read);
            println!("  open_s={open:.2} first_1000_gets_s={first:.2} last_epoch={last} found={done} cpu_s={:.2}", cpu() - c);
            let (t, c) = (Instant::now(), cpu());
            for i in 0..50 {
                store.commit(last, &[(&key(nth(i)), &value(1, 1, None))], &[]);
            }
            println!("  small_commit_ms={:.2} cpu_ms={:.2}", t.elapsed().as_secs_f64() * 20.0, (cpu() - c) * 20.0);
        }
        "compact" => store.compact(),
        "copy" => {
            let mut out = BufWriter::with_capacity(1 << 20, std::fs::File::create(dir.with_extension("copy")).unwrap());
            let (mut n, mut bytes) = (0u64, 0u64);
            store.scan(&mut |k, v| {
                out.write_all(&[k.len() as u8, v.len() as u8]).and_then(|_| out.write_all(k)).and_then(|_| out.write_all(v)).unwrap();
                (n, bytes) = (n + 1, bytes + (k.len() + v.len()) as u64);
            });
            println!("  rows={n} raw_bytes_per_row={:.1}", bytes as f64 / n as f64);
        }
        w => panic!("no workload {w}"),
    }
    let (wall_run, cpu_run) = (t.elapsed().as_secs_f64(), cpu() - c);
    if o.num("die", 0) == 1 {
        println!(
            "  wall_s={wall_run:.2} cpu_s={cpu_run:.2} peak_mb={} disk_mb={} {}",
            proc_status("VmHWM"),
            disk(&dir) >> 20,
            store.describe()
        );
        std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status().unwrap();
    }
    store.settle();
    let (wall, cpu) = (t.elapsed().as_secs_f64(), cpu() - c);
    println!(
        "  wall_s={wall_run:.2} settled_s={wall:.2} cpu_s={cpu:.2} cpu_per_million={:.3} peak_mb={} rss_mb={} disk_mb={} bytes_per_key={:.1} {}",
        cpu / (events.max(1) as f64 / 1e6),
        proc_status("VmHWM"),
        proc_status("VmRSS"),
        disk(&dir) >> 20,
        disk(&dir) as f64 / keys as f64,
        store.describe()
    );
    let t = Instant::now();
    drop(store);
    println!("  close_s={:.2}", t.elapsed().as_secs_f64());
}
