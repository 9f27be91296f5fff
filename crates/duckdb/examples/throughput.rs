//! What the sink costs: synthetic orders and customers through each layout, CPU-seconds per million events.
//!
//! Usage: `cargo run --release -p millstream-duckdb --example throughput [million events] [rows per epoch] [layouts]`
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use millstream_core::{
    Column, Epoch, Event, EventId, Facts, Incarnation, Judged, Key, Op, Order, Output, OutputBatch,
    PartitionId, Position, RecordBatch, RowBuilder, RowSchema, Sink, TableName, Type, Value,
};
use millstream_duckdb::{DeleteMode, DuckConfig, DuckSink, Layout};

const BATCH_ROWS: usize = 1000;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let events = (args.first().map_or(1.0, |v| v.parse::<f64>().unwrap()) * 1e6) as u64;
    let epoch_rows = args.get(1).map_or(100_000, |v| v.parse::<u64>().unwrap());
    let which = args.get(2).map_or("append,replica,hard,changelog", |v| v.as_str());
    for name in which.split(',') {
        let layout = match name {
            "append" => Layout::Append,
            "changelog" => Layout::Changelog,
            "hard" => Layout::Replica { delete: DeleteMode::Hard },
            _ => Layout::Replica { delete: DeleteMode::Soft },
        };
        measure(name, layout, events, epoch_rows);
    }
}

fn measure(name: &str, layout: Layout, events: u64, epoch_rows: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bench.duckdb");
    let mut config = DuckConfig::new("duckdb", &path, layout);
    if let Ok(threads) = std::env::var("THREADS") {
        config.threads = threads.parse().unwrap();
    }
    if let Ok(limit) = std::env::var("MEMORY") {
        config.memory_limit = Some(limit);
    }
    let mut sink = DuckSink::open(config).unwrap();
    now(sink.recover(None)).unwrap();
    let mut world = Generator::new();
    let (mut made, mut sink_cpu, mut epoch) = (0, 0.0, 0);
    let started = Instant::now();
    while made < events {
        epoch += 1;
        now(sink.begin(Epoch(epoch), epoch as i64 * 1_000_000)).unwrap();
        let end = (made + epoch_rows).min(events);
        while made < end {
            let batch = world.batch(BATCH_ROWS);
            made += BATCH_ROWS as u64;
            let before = cpu();
            now(sink.write(&batch)).unwrap();
            sink_cpu += cpu() - before;
        }
        let before = cpu();
        let token = now(sink.prepare()).unwrap().unwrap();
        now(sink.commit(&token)).unwrap();
        sink_cpu += cpu() - before;
    }
    let wall = started.elapsed().as_secs_f64();
    drop(sink);
    let size = std::fs::metadata(&path).map_or(0, |m| m.len());
    println!(
        "{name:10} {:6.2} CPU-s per million, {epoch} epochs of {epoch_rows}, wall {wall:.1} s with generation, file {} MB, peak RSS {} MB",
        sink_cpu / (made as f64 / 1e6),
        size >> 20,
        peak_rss_mb()
    );
}

fn now<T>(mut future: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the sink blocks instead of waiting"),
    }
}

/// CPU seconds of this process, all threads.
fn cpu() -> f64 {
    // Fields 14 and 15 of /proc/self/stat: user and system time in hundredths of a second.
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn peak_rss_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

struct Generator {
    orders: Arc<RowSchema>,
    customers: Arc<RowSchema>,
    state: u64,
    lsn: u64,
    builder: RowBuilder,
}

fn schema(table: &str, columns: &[(&str, Type)]) -> Arc<RowSchema> {
    let column = |(name, ty): &(&str, Type)| Column {
        name: (*name).into(),
        ty: ty.clone(),
        nullable: true,
        guessed: false,
    };
    let table = Arc::new(TableName::new("shop", "public", table));
    Arc::new(RowSchema { table, columns: columns.iter().map(column).collect(), key: vec![0] })
}

const STATUS: [&str; 7] = ["NEW", "PAID", "PICKED", "SHIPPED", "DELIVERED", "RETURNED", "CANCELLED"];
const NOTE: [&str; 4] =
    ["please ring twice", "leave at the back door", "gift wrap, no invoice in the parcel", "none"];

impl Generator {
    fn new() -> Self {
        let money = Type::Decimal { precision: 12, scale: 2 };
        let orders = schema(
            "orders",
            &[
                ("order_id", Type::Int64),
                ("customer_id", Type::Int64),
                ("status", Type::Text),
                ("total_amount", money.clone()),
                ("currency", Type::Text),
                ("items", Type::Int64),
                ("note", Type::Text),
                ("ship_to", Type::Text),
                ("gift", Type::Bool),
                ("weight_kg", Type::Float64),
                ("created_at", Type::DateTime),
                ("updated_at", Type::Timestamp),
            ],
        );
        let customers = schema(
            "customers",
            &[
                ("customer_id", Type::Int64),
                ("email", Type::Text),
                ("first_name", Type::Text),
                ("last_name", Type::Text),
                ("phone", Type::Text),
                ("address", Type::Text),
                ("tier", Type::Int64),
                ("balance", money),
                ("referrer", Type::Text),
                ("marketing_ok", Type::Bool),
                ("created_at", Type::DateTime),
                ("updated_at", Type::Timestamp),
            ],
        );
        Self { orders, customers, state: 1, lsn: 1_000_000, builder: RowBuilder::new() }
    }

    /// xorshift: cheap and the same in every run.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn batch(&mut self, rows: usize) -> OutputBatch {
        let outputs = (0..rows).map(|_| Output::Event(self.event())).collect();
        let partition = PartitionId::new("bench");
        let records =
            RecordBatch { partition, buffer: Vec::new(), slots: Vec::new(), position: Position::default() };
        OutputBatch { outputs, records: Arc::new(records) }
    }

    fn event(&mut self) -> Judged {
        let k = self.next();
        // Some keys are far hotter than others.
        let r = (self.next() % (1 << 20)) as f64 / (1 << 20) as f64;
        let id = (r * r * r * 1e6) as i64;
        let deleted = k.is_multiple_of(10);
        let is_order = k % 10 < 7;
        self.lsn += 100;
        let us = 1_717_200_000_000_000 + self.lsn as i64;
        let b = &mut self.builder;
        b.push(Value::Int(id));
        if !deleted && is_order {
            b.push(Value::Int((k % 60_000) as i64));
            b.push(Value::Text(STATUS[(k % 7) as usize]));
            b.push(Value::Decimal { unscaled: (k % 900_000) as i64, scale: 2 });
            b.push(Value::Text("EUR"));
            b.push(Value::Int((k % 9) as i64));
            b.push(Value::Text(NOTE[(k / 7 % 4) as usize]));
            b.push_text_with(|t| *t += &format!("{} Hauptstraße, {} Berlin", k % 180, 10_000 + k % 89_999));
            b.push(Value::Bool(k.is_multiple_of(11)));
            b.push(Value::Float((k % 4000) as f64 / 100.0));
            b.push(Value::DateTime(us - 86_400_000_000));
            b.push(Value::Timestamp(us));
        } else if !deleted {
            b.push_text_with(|t| *t += &format!("user{id}@mail{}.example.com", k % 50));
            b.push(Value::Text("Björn"));
            b.push(Value::Text("Kowalski"));
            b.push_text_with(|t| *t += &format!("+49 {} {}", 100 + k % 899, 1_000_000 + k % 8_999_999));
            b.push_text_with(|t| *t += &format!("{} Rue de la Paix, {} Paris", k % 180, 10_000 + k % 89_999));
            b.push(Value::Int((k % 4) as i64));
            b.push(Value::Decimal { unscaled: (k % 10_000_000) as i64, scale: 2 });
            b.push(Value::Null);
            b.push(Value::Bool(!k.is_multiple_of(3)));
            b.push(Value::DateTime(us - 86_400_000_000));
            b.push(Value::Timestamp(us));
        }
        let schema = if is_order { self.orders.clone() } else { self.customers.clone() };
        b.resize(schema.columns.len());
        let row = b.finish();
        let event = Event {
            key: Some(Key::from_values([row.get(0)])),
            schema,
            op: if deleted { Op::Delete } else { Op::Update },
            old_key: None,
            new_key: None,
            order: Order::postgres(Incarnation(0), self.lsn - 48, self.lsn),
            p_known: true,
            id: EventId::postgres(Incarnation(0), self.lsn, false),
            row,
            before: None,
            full_before: false,
            facts: Facts {
                ts_ms: Some(us / 1000),
                ts_us: Some(us),
                lsn: Some(self.lsn as i64),
                transaction_id: Some((self.lsn / 250).to_string().into()),
                ..Facts::default()
            },
            origin: Default::default(),
            record: 0,
        };
        Judged { event: Box::new(event), distinct: true, newest: true, late: false, filled: None }
    }
}
