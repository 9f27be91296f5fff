//! A pipeline in memory: lines that a test pours in become events of the tables that they name.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_core::decoder::{Control, ControlKind, Decoded, Refusal};
use millstream_core::event::Origin;
use millstream_core::record::{Range, Slot};
use millstream_core::sink::{Rejection, WriteReport};
use millstream_core::source::Next;
use millstream_core::{
    Body, Budget, Cause, Checkpoint, Column, CommitToken, DeadLetter, DeadLetters, Decoder, Epoch, Error,
    Event, EventId, Facts, Fut, Incarnation, Key, Op, Order, Output, OutputBatch, PartitionId, Position,
    Record, RecordBatch, Result, RowBuilder, RowSchema, Sink, Snapshot, Source, SourceFigures, Space, Stage,
    StateView, Store, TableName, TellFigures, Type, Value,
};
use millstream_engine::{Clock, Handle, Restart, Settings, SystemClock, World, start};
use millstream_server::{Bound, Guard, Pipeline, Server, Token, api};

#[derive(Default, Clone)]
pub(crate) struct Spring {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// The store does not open as long as this is set.
    pub(crate) held: Arc<AtomicBool>,
    /// The source fails while this is set.
    pub(crate) broken: Arc<AtomicBool>,
    /// What a run before this one left behind.
    pub(crate) last: Arc<Mutex<Option<Checkpoint>>>,
}

impl Spring {
    /// `table|key|lsn|source time ms|publish time ms`, `heartbeat`, or what cannot be decoded.
    pub(crate) fn pour(&self, lines: &[String]) {
        self.lines.lock().unwrap().extend(lines.iter().cloned());
    }
}

/// A pipeline that runs and its HTTP API.
pub(crate) struct Running {
    pub(crate) spring: Spring,
    pub(crate) handle: Handle,
    pub(crate) address: SocketAddr,
    pub(crate) server: Server,
}

pub(crate) async fn run(spring: Spring, token: Option<&str>) -> Running {
    let bound = Bound::bind("127.0.0.1:0".parse().unwrap(), "http.listen").await.unwrap();
    let address = bound.address();
    let handle = start(Arc::new(spring.clone()), settings());
    let pipeline = Arc::new(Pipeline::new("spring", handle.clone(), Some(address), None));
    let guard = Guard::new(address.ip(), token.map(Token::new));
    Running { spring, handle, address, server: bound.serve(api(pipeline, guard)) }
}

pub(crate) fn settings() -> Settings {
    Settings {
        pipeline: "spring".to_owned(),
        checkpoint_interval: Duration::from_millis(20),
        checkpoint_timeout: Duration::from_secs(60),
        epoch_bytes_max: 1 << 20,
        decoders: 1,
        shards: 2,
        in_flight_bytes_max: 1 << 20,
        watermark_delay_ms: 1000,
        incarnation: Incarnation(0),
        gate: Arc::default(),
        restart: Restart { attempts: 5, delay: Duration::from_secs(3600), stable_after: Duration::MAX },
        idle: None,
    }
}

pub(crate) fn wait(what: &str, ready: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    tokio::task::block_in_place(|| {
        while !ready() {
            assert!(Instant::now() < end, "{what} did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

impl World for Spring {
    fn source(&self) -> Result<Box<dyn Source>> {
        Ok(Box::new(Lines { spring: self.clone(), given: 0 }))
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        Ok(Box::new(Words))
    }

    fn sinks(&self) -> Result<Vec<(String, Box<dyn Sink>)>> {
        Ok(vec![("history".to_owned(), Box::new(Basin)), ("replica".to_owned(), Box::new(Basin))])
    }

    fn store(&self) -> Result<Box<dyn Store>> {
        while self.held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Box::new(Memory(self.clone())))
    }

    fn dead_letters(&self) -> Result<Box<dyn DeadLetters>> {
        Ok(Box::new(Drawer))
    }

    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }
}

struct Lines {
    spring: Spring,
    given: u64,
}

impl Source for Lines {
    fn open<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn next(&mut self, _: Budget) -> Fut<'_, Result<Next>> {
        Box::pin(async {
            if self.spring.broken.load(Ordering::SeqCst) {
                return Err(Error::transient("the spring dried up"));
            }
            let lines: Vec<String> = self.spring.lines.lock().unwrap().drain(..).collect();
            if lines.is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
                return Ok(Next::Idle);
            }
            let (mut buffer, mut slots) = (Vec::new(), Vec::new());
            for line in lines {
                let value = Some(Range { start: buffer.len() as u32, len: line.len() as u32 });
                let publish_ts_ms = line.split('|').nth(4).and_then(|ms| ms.parse().ok());
                slots.push(Slot { value, offset: self.given, publish_ts_ms, ..Slot::default() });
                buffer.extend_from_slice(line.as_bytes());
                self.given += 1;
            }
            let position = Position(self.given.to_be_bytes().to_vec());
            Ok(Next::Batch(RecordBatch { partition: PartitionId::new("spring"), buffer, slots, position }))
        })
    }

    fn release<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn figures(&self) -> Option<TellFigures> {
        Some(Arc::new(|| SourceFigures {
            outstanding_messages: Some(7),
            outstanding_bytes: Some(700),
            outstanding_messages_max: Some(10),
            outstanding_bytes_max: Some(1000),
            held_ms: Some(250),
            oldest_outstanding_ms: Some(1500),
            open_streams: Some(2),
            redelivered: Some(3),
            unread_files: Some(1),
            unread_bytes: Some(99),
        }))
    }
}

struct Words;

impl Words {
    fn event(text: &str, offset: u64) -> Option<Event> {
        let mut words = text.split('|');
        let table = words.next()?;
        let [id, lsn, ts_ms] =
            [words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        let mut row = RowBuilder::new();
        row.push(Value::Int(id));
        let column = Column { name: "id".into(), ty: Type::Int64, nullable: false, guessed: false };
        let schema = RowSchema {
            table: Arc::new(TableName::new("", "public", table)),
            columns: vec![column],
            key: vec![0],
        };
        let at = lsn as u64;
        Some(Event {
            schema: Arc::new(schema),
            op: Op::Update,
            key: Some(Key::from_values([Value::Int(id)])),
            old_key: None,
            new_key: None,
            order: Order::postgres(Incarnation(0), at, at),
            p_known: true,
            id: EventId::postgres(Incarnation(0), at, false),
            row: row.finish(),
            before: None,
            full_before: true,
            facts: Facts { ts_ms: Some(ts_ms), snapshot: Snapshot::default(), ..Facts::default() },
            origin: Origin { partition: 1, offset, index: 0 },
            record: 0,
        })
    }
}

impl Decoder for Words {
    fn decode(&mut self, record: &Record<'_>, out: &mut Vec<Decoded>) {
        let Body::Value(bytes) = record.body() else { unreachable!("every line is a value") };
        let text = std::str::from_utf8(bytes).unwrap();
        out.push(match Self::event(text, record.offset()) {
            _ if text == "heartbeat" => {
                Decoded::Control(Control { kind: ControlKind::Heartbeat, ts_ms: None })
            }
            Some(event) => Decoded::Event(Box::new(event)),
            None => {
                let cause = Cause::new("invalid_line", "not five words");
                Decoded::Dead(Refusal { stage: Stage::Parse, cause, table: None })
            }
        });
    }
}

/// Takes every distinct event, but those of the table `refused`.
struct Basin;

impl Sink for Basin {
    fn recover<'a>(&'a mut self, _: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn begin(&mut self, _: Epoch, _: i64) -> Fut<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(&'a mut self, batch: &'a OutputBatch) -> Fut<'a, Result<WriteReport>> {
        Box::pin(async {
            let mut report = WriteReport::default();
            for (output, item) in batch.outputs.iter().enumerate() {
                let Output::Event(judged) = item else { continue };
                if &*judged.event.schema.table.table == "refused" {
                    let cause = Cause::new("no_such_column", "the basin has none");
                    report.rejected.push(Rejection { output, cause });
                } else if judged.distinct {
                    report.written += 1;
                } else {
                    report.duplicates += 1;
                }
            }
            Ok(report)
        })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async { Ok(None) })
    }

    fn commit<'a>(&'a mut self, _: &'a CommitToken) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

struct Memory(Spring);

impl Store for Memory {
    fn latest(&mut self) -> Fut<'_, Result<Option<Checkpoint>>> {
        Box::pin(async { Ok(self.0.last.lock().unwrap().take()) })
    }

    fn commit(&mut self, _: Checkpoint) -> Fut<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn view(&self) -> Arc<dyn StateView> {
        Arc::new(Nothing)
    }

    fn savepoint<'a>(&'a mut self, name: &'a str) -> Fut<'a, Result<String>> {
        Box::pin(async move {
            match name {
                "taken" => Err(Error::fatal("there is a savepoint `taken`: choose another name")),
                name => Ok(format!("/shelf/{name}")),
            }
        })
    }

    fn disk_bytes(&self) -> u64 {
        4096
    }
}

struct Nothing;

impl StateView for Nothing {
    fn get(&self, _: Space, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn scan(&self, _: Space, _: &[u8], _: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        Ok(())
    }
}

struct Drawer;

impl DeadLetters for Drawer {
    fn recover<'a>(&'a mut self, _: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(&'a mut self, _: &'a [DeadLetter]) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async { Ok(None) })
    }
}
