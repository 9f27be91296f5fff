//! The journal: records in segments, written by one thread, which syncs once for all that came meanwhile. A segment
//! begins with the state, so that older ones are needed only for messages that somebody still needs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tonic::Status;

use super::record::{MAGIC, Record, State};

/// A segment is closed when it is larger.
const SEGMENT_BYTES: u64 = 64 << 20;
/// What waits to be written, in units of 1 KiB.
const QUEUE_UNITS: u32 = 64 << 10;
/// What is written at once.
const WRITE_BYTES: usize = 8 << 20;

/// A segment of the journal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    /// The ids that were published in it; none if the range is turned round.
    pub(crate) ids: (u64, u64),
    /// Ids that were carried into it from older ones.
    pub(crate) carried: Vec<u64>,
}

impl Segment {
    pub(crate) fn new(number: u64) -> Self {
        Self { number, ids: (u64::MAX, 0), ..Self::default() }
    }

    /// Notes what a record adds.
    pub(crate) fn note(&mut self, record: &Record) {
        match record {
            Record::Publish(published, wires) if !wires.is_empty() => {
                self.ids.0 = self.ids.0.min(published.first);
                self.ids.1 = self.ids.1.max(published.first + wires.len() as u64 - 1);
            }
            Record::Carry(carried) => self.carried.push(carried.id),
            _ => {}
        }
    }
}

#[derive(Debug)]
enum Command {
    Write(Box<Record>, OwnedSemaphorePermit, Option<oneshot::Sender<()>>),
    Roll(Box<State>),
    Drop(u64),
}

/// The journal, as the broker sees it.
#[derive(Debug)]
pub(crate) struct Journal {
    commands: Mutex<Option<mpsc::UnboundedSender<Command>>>,
    /// Bounds what waits to be written.
    room: Arc<Semaphore>,
    segments: Arc<Mutex<Vec<Segment>>>,
    failed: Arc<AtomicBool>,
    writer: Mutex<Option<JoinHandle<()>>>,
    rolling: AtomicBool,
}

/// Room for a record.
pub(crate) type Permit = OwnedSemaphorePermit;

/// A record on its way to the disk.
pub(crate) type Pending = oneshot::Receiver<()>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A segment's path.
pub(crate) fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:08}.journal"))
}

impl Journal {
    /// Goes on after these segments, with a new one that begins with this state.
    pub(crate) fn start(
        directory: &Path,
        segments: Vec<Segment>,
        state: State,
        lock_file: File,
    ) -> io::Result<Self> {
        let number = segments.last().map_or(1, |last| last.number + 1);
        let shared = Arc::new(Mutex::new(segments));
        let failed = Arc::new(AtomicBool::new(false));
        let mut writer = Writer {
            directory: directory.to_owned(),
            file: create(directory, number, state, &shared)?,
            segments: shared.clone(),
            _lock: lock_file,
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let told = failed.clone();
        let thread = std::thread::Builder::new().name("emulator-journal".to_owned()).spawn(move || {
            if let Err(error) = writer.run(receiver) {
                eprintln!("error: the journal in {} cannot be written: {error}", writer.directory.display());
                told.store(true, Ordering::Release);
            }
        })?;
        Ok(Self {
            commands: Mutex::new(Some(sender)),
            room: Arc::new(Semaphore::new(QUEUE_UNITS as usize)),
            segments: shared,
            failed,
            writer: Mutex::new(Some(thread)),
            rolling: AtomicBool::new(false),
        })
    }

    /// Waits for room for so many bytes.
    pub(crate) async fn room(&self, bytes: usize) -> Result<Permit, Status> {
        if self.failed.load(Ordering::Acquire) {
            return Err(failure());
        }
        let units = u32::try_from(bytes / 1024 + 1).unwrap_or(QUEUE_UNITS).min(QUEUE_UNITS);
        self.room.clone().acquire_many_owned(units).await.map_err(|_| failure())
    }

    /// Writes a record; the answer comes when it is on disk.
    pub(crate) fn write(&self, record: Record, permit: Permit) -> Pending {
        let (done, pending) = oneshot::channel();
        self.send(Command::Write(Box::new(record), permit, Some(done)));
        pending
    }

    /// Writes a record that nobody waits for.
    pub(crate) fn note(&self, record: Record, permit: Permit) {
        self.send(Command::Write(Box::new(record), permit, None));
    }

    fn send(&self, command: Command) {
        if let Some(commands) = lock(&self.commands).as_ref() {
            // A writer that failed takes nothing; whoever waits is told by the answer's sender being gone.
            let _ = commands.send(command);
        }
    }

    /// Whether the segment is large enough to be closed; says so once.
    pub(crate) fn is_full(&self) -> bool {
        let full = lock(&self.segments).last().is_some_and(|last| last.bytes > SEGMENT_BYTES);
        if !full {
            self.rolling.store(false, Ordering::Relaxed);
        }
        full && !self.rolling.swap(true, Ordering::Relaxed)
    }

    /// Begins a new segment with this state.
    pub(crate) fn roll(&self, state: State) {
        self.send(Command::Roll(Box::new(state)));
    }

    /// The oldest segment, if it is not the one that is written, and whether there are many.
    pub(crate) fn oldest(&self) -> Option<(Segment, bool)> {
        let segments = lock(&self.segments);
        (segments.len() > 1)
            .then(|| segments.first().map(|first| (first.clone(), segments.len() > 4)))
            .flatten()
    }

    /// Deletes a segment, after all that was written before.
    pub(crate) fn drop_segment(&self, number: u64) {
        lock(&self.segments).retain(|segment| segment.number != number);
        self.send(Command::Drop(number));
    }

    /// Writes what waits, and ends.
    pub(crate) fn close(&self) {
        lock(&self.commands).take();
        if let Some(writer) = lock(&self.writer).take() {
            let _ = writer.join();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
    }
}

/// What is answered when nothing can be written.
pub(crate) fn failure() -> Status {
    Status::unavailable("The emulator's journal cannot be written.")
}

struct Writer {
    directory: PathBuf,
    file: File,
    segments: Arc<Mutex<Vec<Segment>>>,
    _lock: File,
}

impl Writer {
    fn run(&mut self, mut commands: mpsc::UnboundedReceiver<Command>) -> io::Result<()> {
        let mut buffer = Vec::new();
        while let Some(first) = commands.blocking_recv() {
            let (mut waiting, mut permits, mut after) = (Vec::new(), Vec::new(), None);
            let mut next = Some(first);
            while let Some(command) = next {
                match command {
                    Command::Write(record, permit, done) => {
                        record.write(&mut buffer);
                        if let Some(segment) = lock(&self.segments).last_mut() {
                            segment.note(&record);
                        }
                        waiting.extend(done);
                        permits.push(permit);
                    }
                    other => {
                        after = Some(other);
                        break;
                    }
                }
                next = if buffer.len() < WRITE_BYTES { commands.try_recv().ok() } else { None };
            }
            if !buffer.is_empty() {
                self.file.write_all(&buffer)?;
                self.file.sync_data()?;
                if let Some(segment) = lock(&self.segments).last_mut() {
                    segment.bytes += buffer.len() as u64;
                }
                buffer.clear();
            }
            drop(permits);
            for done in waiting {
                // Whoever asked may be gone.
                let _ = done.send(());
            }
            match after {
                Some(Command::Roll(state)) => {
                    let number = lock(&self.segments).last().map_or(1, |last| last.number + 1);
                    self.file = create(&self.directory, number, *state, &self.segments)?;
                }
                Some(Command::Drop(number)) => fs::remove_file(path(&self.directory, number))?,
                Some(Command::Write(..)) | None => {}
            }
        }
        Ok(())
    }
}

/// Begins a segment. It has its name only once its state is on disk.
fn create(directory: &Path, number: u64, state: State, segments: &Mutex<Vec<Segment>>) -> io::Result<File> {
    let mut bytes = MAGIC.to_vec();
    Record::State(state).write(&mut bytes);
    let unfinished = directory.join("unfinished");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&unfinished)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path(directory, number))?;
    File::open(directory)?.sync_all()?;
    lock(segments).push(Segment { bytes: bytes.len() as u64, ..Segment::new(number) });
    Ok(file)
}
