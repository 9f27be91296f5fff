//! The handle of a running pipeline: everything that commands may ask of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::{Error, Result};
use tokio::sync::{mpsc, oneshot, watch};

use crate::coordinator::Request;
use crate::settings::Settings;
use crate::status::{Gauges, Phase, Status, Summary};
use crate::supervisor::supervise;
use crate::world::World;

/// How a run ended: its summary, or the first cause of its failure.
pub(crate) type Outcome = Result<Summary, Arc<Error>>;

/// Asks things of a running pipeline. Cheap to clone; dropping all handles changes nothing.
#[derive(Debug, Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    outcome: watch::Receiver<Option<Outcome>>,
}

/// What the handle and the pipeline share.
#[derive(Debug)]
pub(crate) struct Shared {
    status: Mutex<Status>,
    pub(crate) gauges: Arc<Gauges>,
    /// The running attempt's ear; `None` between attempts.
    requests: Mutex<Option<mpsc::UnboundedSender<Request>>>,
    /// Set once; ends the run without a last checkpoint.
    pub(crate) cancelled: watch::Sender<bool>,
    /// Set once; there are no more attempts then.
    pub(crate) draining: watch::Sender<bool>,
    /// Whether records are not to be taken in.
    pub(crate) paused: watch::Sender<bool>,
}

/// Starts the pipeline on the current tokio runtime.
pub fn start(world: Arc<dyn World>, settings: Settings) -> Handle {
    let shared = Arc::new(Shared::new());
    let (tell, outcome) = watch::channel(None);
    let supervised = supervise(world, Arc::new(settings), shared.clone());
    tokio::spawn(async move {
        let outcome = supervised.await.map_err(Arc::new);
        // Nobody may be waiting.
        let _ = tell.send(Some(outcome));
    });
    Handle { shared, outcome }
}

impl Handle {
    /// Finish what is in flight, take a last checkpoint, end. A run that cannot, as an attempt fails or failed, fails.
    pub fn drain(&self) {
        self.shared.draining.send_replace(true);
        self.shared.ask(Request::Drain);
    }

    /// End now, without a last checkpoint; the next run goes on from the last one.
    pub fn cancel(&self) {
        self.shared.cancelled.send_replace(true);
    }

    /// Whether it was asked to end without a last checkpoint.
    pub fn is_cancelled(&self) -> bool {
        *self.shared.cancelled.borrow()
    }

    /// Stop taking records in; what is under way is finished and committed. Stays so through restarts.
    pub fn pause(&self) {
        self.shared.paused.send_replace(true);
        self.shared.ask(Request::Pause(true));
    }

    /// Take records in again.
    pub fn resume(&self) {
        self.shared.paused.send_replace(false);
        self.shared.ask(Request::Pause(false));
    }

    /// End the current epoch and copy its checkpoint under `name`; returns where the copy is.
    pub async fn savepoint(&self, name: &str) -> Result<String> {
        let not_running =
            || Error::transient("the pipeline is not running now: try again, or when it has ended");
        let (reply, answer) = oneshot::channel();
        if !self.shared.ask(Request::Savepoint(name.to_owned(), reply)) {
            return Err(not_running());
        }
        answer.await.map_err(|_| not_running())?
    }

    /// What the pipeline tells about itself now.
    pub fn status(&self) -> Status {
        let mut status = lock(&self.shared.status).clone();
        self.shared.gauges.fill(&mut status);
        status
    }

    /// Waits for the end. `Err` if the pipeline failed: the first cause.
    pub async fn wait(&self) -> Result<Summary, Arc<Error>> {
        let mut outcome = self.outcome.clone();
        let ended = outcome.wait_for(Option::is_some).await;
        match ended.as_deref() {
            Ok(Some(outcome)) => outcome.clone(),
            _ => Err(Arc::new(Error::fatal(
                "the pipeline's task was lost: the runtime was shut down, or it panicked",
            ))),
        }
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            status: Mutex::new(Status::new()),
            gauges: Arc::new(Gauges::new()),
            requests: Mutex::new(None),
            cancelled: watch::Sender::new(false),
            draining: watch::Sender::new(false),
            paused: watch::Sender::new(false),
        }
    }

    /// A new attempt listens.
    pub(crate) fn listen(&self) -> mpsc::UnboundedReceiver<Request> {
        let (ask, requests) = mpsc::unbounded_channel();
        *lock(&self.requests) = Some(ask);
        requests
    }

    /// Waits until someone asks to end without a last checkpoint; perhaps for ever.
    pub(crate) async fn until_cancelled(&self) {
        let mut cancelled = self.cancelled.subscribe();
        // The sender lives as long as `self`.
        let _ = cancelled.wait_for(|cancelled| *cancelled).await;
    }

    /// Waits until someone asks to drain; perhaps for ever.
    pub(crate) async fn until_draining(&self) {
        let mut draining = self.draining.subscribe();
        // The sender lives as long as `self`.
        let _ = draining.wait_for(|draining| *draining).await;
    }

    fn ask(&self, request: Request) -> bool {
        lock(&self.requests).as_ref().is_some_and(|requests| requests.send(request).is_ok())
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut lock(&self.status));
    }

    pub(crate) fn phase(&self, phase: Phase) {
        self.update(|status| status.phase = phase);
    }

    pub(crate) fn status(&self) -> Status {
        lock(&self.status).clone()
    }
}

/// A panic elsewhere does not make a status unreadable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
