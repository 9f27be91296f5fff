//! The engine on a runtime with several threads; everything that one thread can show is in the simulation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_core::decoder::{Control, ControlKind, Decoded};
use millstream_core::record::Slot;
use millstream_core::source::Next;
use millstream_core::{
    Budget, Checkpoint, CommitToken, DeadLetter, DeadLetters, Decoder, Error, Fut, Incarnation, PartitionId,
    Position, Record, RecordBatch, Result, Sink, Source, Space, StateView, Store,
};
use millstream_engine::{Clock, Phase, Restart, Settings, SystemClock, World, start};

type Positions = Vec<(PartitionId, Position)>;

/// A world in memory whose source has one record and then waits for more.
#[derive(Default, Clone)]
struct Small {
    /// Whether the stages are put together slowly.
    slow: bool,
    /// Whether an attempt has to wait at its start.
    held: Arc<AtomicBool>,
    /// The record was asked for.
    asked: Arc<AtomicBool>,
    /// The record was taken in.
    taken: Arc<AtomicBool>,
    committed: Arc<Mutex<Option<Positions>>>,
    /// Dead letters cannot be made durable just now.
    letters_fail: bool,
}

impl World for Small {
    fn source(&self) -> Result<Box<dyn Source>> {
        Ok(Box::new(OneRecord(self.clone(), false)))
    }

    /// Asked for while the stages are put together: a thread that is slow just then gives intake, which runs already, all the
    /// time it needs to take everything in.
    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        if self.slow {
            wait("the record to be taken in", || self.taken.load(Ordering::SeqCst));
        }
        Ok(Box::new(Heartbeats))
    }

    fn sinks(&self) -> Result<Vec<(String, Box<dyn Sink>)>> {
        Ok(Vec::new())
    }

    fn store(&self) -> Result<Box<dyn Store>> {
        wait("leave to start", || !self.held.load(Ordering::SeqCst));
        Ok(Box::new(self.clone()))
    }

    fn dead_letters(&self) -> Result<Box<dyn DeadLetters>> {
        Ok(Box::new(NoLetters { fail: self.letters_fail }))
    }

    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }
}

struct OneRecord(Small, bool);

impl Source for OneRecord {
    fn open<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn next(&mut self, _: Budget) -> Fut<'_, Result<Next>> {
        Box::pin(async {
            self.0.asked.store(true, Ordering::SeqCst);
            if std::mem::replace(&mut self.1, true) {
                self.0.taken.store(true, Ordering::SeqCst);
                std::future::pending::<()>().await;
            }
            Ok(Next::Batch(RecordBatch {
                partition: PartitionId::new("p"),
                buffer: Vec::new(),
                slots: vec![Slot::default()],
                position: Position(vec![1]),
            }))
        })
    }

    fn release<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

struct Heartbeats;

impl Decoder for Heartbeats {
    fn decode(&mut self, _: &Record<'_>, out: &mut Vec<Decoded>) {
        out.push(Decoded::Control(Control { kind: ControlKind::Heartbeat, ts_ms: None }));
    }
}

impl Store for Small {
    fn latest(&mut self) -> Fut<'_, Result<Option<Checkpoint>>> {
        Box::pin(async { Ok(None) })
    }

    fn commit(&mut self, checkpoint: Checkpoint) -> Fut<'_, Result<()>> {
        *self.committed.lock().expect("no test panics with it") = Some(checkpoint.positions);
        Box::pin(async { Ok(()) })
    }

    fn view(&self) -> Arc<dyn StateView> {
        Arc::new(self.clone())
    }

    fn savepoint<'a>(&'a mut self, name: &'a str) -> Fut<'a, Result<String>> {
        Box::pin(async move { Ok(name.to_owned()) })
    }

    fn disk_bytes(&self) -> u64 {
        0
    }
}

impl StateView for Small {
    fn get(&self, _: Space, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn scan(&self, _: Space, _: &[u8], _: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        Ok(())
    }
}

struct NoLetters {
    fail: bool,
}

impl DeadLetters for NoLetters {
    fn recover<'a>(&'a mut self, _: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(&'a mut self, letters: &'a [DeadLetter]) -> Fut<'a, Result<()>> {
        Box::pin(async { unreachable!("{} letters", letters.len()) })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        let fail = self.fail;
        Box::pin(async move { if fail { Err(Error::transient("no room for letters")) } else { Ok(None) } })
    }
}

fn wait(what: &str, ready: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    tokio::task::block_in_place(|| {
        while !ready() {
            assert!(Instant::now() < end, "{what} did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

fn settings() -> Settings {
    Settings {
        pipeline: "p".to_owned(),
        checkpoint_interval: Duration::from_millis(20),
        checkpoint_timeout: Duration::from_secs(60),
        epoch_bytes_max: 1 << 20,
        decoders: 1,
        shards: 1,
        in_flight_bytes_max: 1 << 20,
        watermark_delay_ms: 0,
        incarnation: Incarnation(0),
        gate: Arc::default(),
        restart: Restart { attempts: 0, delay: Duration::ZERO, stable_after: Duration::MAX },
        idle: None,
    }
}

/// A pipeline whose first records were taken in before its coordinator existed took itself for quiet: it had counted them
/// as known. Where nothing followed, they were never committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_taken_in_while_the_stages_are_put_together_are_committed() {
    let world = Small { slow: true, ..Small::default() };
    let handle = start(Arc::new(world.clone()), settings());
    let committed = || world.committed.lock().unwrap().clone();
    wait("a checkpoint", || committed().is_some());
    assert_eq!(committed(), Some(vec![(PartitionId::new("p"), Position(vec![1]))]));
    assert_eq!(handle.status().counters.records, 1);
    handle.drain();
    handle.wait().await.unwrap();
}

/// A pause was an order to the attempt that ran: after a restart, or asked before the first one, records flowed all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds_for_attempts_to_come() {
    let world = Small { held: Arc::new(true.into()), ..Small::default() };
    let handle = start(Arc::new(world.clone()), settings());
    handle.pause();
    world.held.store(false, Ordering::SeqCst);
    wait("the pause", || handle.status().phase == Phase::Paused);
    assert!(!world.asked.load(Ordering::SeqCst));
    handle.resume();
    wait("a checkpoint", || world.committed.lock().unwrap().is_some());
    assert!(!handle.is_cancelled());
    handle.cancel();
    handle.wait().await.unwrap();
    assert!(handle.is_cancelled());
}

/// A drain whose last epoch failed was followed by a restart, which found itself asked to end and ended well: `finished`, exit code 0,
/// and dead letters that nobody had published.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_that_fails_is_not_finished() {
    let world = Small { letters_fail: true, ..Small::default() };
    let mut settings = settings();
    settings.restart.attempts = 5;
    settings.checkpoint_interval = Duration::from_secs(3600);
    let handle = start(Arc::new(world.clone()), settings);
    wait("the record to be taken in", || world.taken.load(Ordering::SeqCst));
    handle.drain();
    let error = handle.wait().await.unwrap_err().to_string();
    assert!(error.contains("asked to end") && error.contains("no room for letters"), "{error}");
    assert_eq!((handle.status().phase, handle.status().restarts), (Phase::Failed, 0));
    assert_eq!(*world.committed.lock().unwrap(), None);
}

/// So was one that was asked for while the pipeline waited to start again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_between_attempts_is_not_finished() {
    let world = Small { letters_fail: true, ..Small::default() };
    let mut settings = settings();
    settings.restart = Restart { attempts: 5, delay: Duration::from_secs(3600), stable_after: Duration::MAX };
    let handle = start(Arc::new(world), settings);
    wait("a failure", || handle.status().phase == Phase::Restarting);
    handle.drain();
    let error = handle.wait().await.unwrap_err().to_string();
    assert!(error.contains("asked to end") && error.contains("no room for letters"), "{error}");
}
