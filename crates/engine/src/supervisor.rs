//! The restart strategy: attempts with a fixed delay, then failure with the first cause. A run that is asked to drain has no
//! attempts to come: what failed stays undone, and whoever asked is told.

use std::sync::Arc;

use millstream_core::{Error, Kind, Result};
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::attempt::{Attempted, attempt};
use crate::handle::Shared;
use crate::settings::{Restart, Settings};
use crate::status::{Phase, Summary};
use crate::world::World;

pub(crate) async fn supervise(
    world: Arc<dyn World>,
    settings: Arc<Settings>,
    shared: Arc<Shared>,
) -> Result<Summary> {
    let started = Instant::now();
    let mut streak = Streak::default();
    loop {
        let attempt_started = Instant::now();
        shared.phase(Phase::Starting);
        let ended = attempt(world.clone(), settings.clone(), shared.clone()).await;
        shared.gauges.watch(None);
        let error = match ended {
            Ok(Attempted::NotBegun) if streak.first.is_some() => {
                return Err(failed(&shared, streak.undone()));
            }
            Ok(_) => {
                shared.phase(Phase::Finished);
                let status = shared.status();
                let residues = status.counters.residues();
                return Ok(Summary { status, took: started.elapsed(), residues });
            }
            Err(error) => error,
        };
        let stable = attempt_started.elapsed() >= settings.restart.stable_after;
        match streak.decide(error, stable, settings.restart) {
            Decision::Fail(first) => return Err(failed(&shared, first)),
            Decision::Restart { .. } if *shared.draining.borrow() => {
                return Err(failed(&shared, streak.undone()));
            }
            Decision::Restart { attempt, reason } => {
                let delay = settings.restart.delay;
                warn!(
                    attempt,
                    of = settings.restart.attempts,
                    "restarting in {} s after: {reason}",
                    delay.as_secs()
                );
                shared.update(|status| {
                    status.phase = Phase::Restarting;
                    status.restarts += 1;
                    status.failure = Some(reason);
                });
                tokio::select! {
                    biased;
                    () = sleep(delay) => {}
                    () = shared.until_cancelled() => info!("cancelled while waiting to restart"),
                    () = shared.until_draining() => return Err(failed(&shared, streak.undone())),
                }
            }
        }
    }
}

/// Tells of the end; gives the error back.
fn failed(shared: &Shared, first: Error) -> Error {
    error!("the pipeline failed: {first}");
    shared.update(|status| {
        status.phase = Phase::Failed;
        status.failure = Some(first.to_string());
    });
    first
}

/// Failures without a stable while between them.
#[derive(Default)]
struct Streak {
    first: Option<Error>,
    restarts: u32,
}

#[derive(Debug)]
enum Decision {
    /// Start again; `reason` is the latest failure.
    Restart { attempt: u32, reason: String },
    /// Give up, showing the first cause of the streak.
    Fail(Error),
}

impl Streak {
    /// The failure of a run that was asked to drain and must not be called finished.
    fn undone(&mut self) -> Error {
        let first = self.first.take().expect("invariant: an attempt failed");
        first.at("asked to end, with work in flight that the next run does again")
    }

    fn decide(&mut self, error: Error, stable: bool, strategy: Restart) -> Decision {
        if stable {
            *self = Self::default();
        }
        let reason = error.to_string();
        if error.kind() == Kind::Fatal {
            return Decision::Fail(error);
        }
        if self.restarts == strategy.attempts {
            let first = self.first.take().unwrap_or(error);
            return Decision::Fail(first.at(format!("failed {} times; the first cause", self.restarts + 1)));
        }
        self.first.get_or_insert(error);
        self.restarts += 1;
        Decision::Restart { attempt: self.restarts, reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn outcome(streak: &mut Streak, error: Error, stable: bool) -> String {
        let strategy = Restart { attempts: 2, delay: Duration::ZERO, stable_after: Duration::ZERO };
        match streak.decide(error, stable, strategy) {
            Decision::Restart { attempt, .. } => format!("restart {attempt}"),
            Decision::Fail(error) => format!("fail {error}"),
        }
    }

    #[test]
    fn every_case_of_error_and_history() {
        let mut streak = Streak::default();
        let lost = |n: u32| Error::transient(format!("lost {n}"));
        assert_eq!(outcome(&mut streak, lost(1), false), "restart 1");
        assert_eq!(outcome(&mut streak, lost(2), false), "restart 2");
        assert_eq!(outcome(&mut streak, lost(3), true), "restart 1", "a stable while forgets the streak");
        assert_eq!(outcome(&mut streak, lost(4), false), "restart 2");
        assert_eq!(outcome(&mut streak, lost(5), false), "fail failed 3 times; the first cause: lost 3");
        assert_eq!(outcome(&mut Streak::default(), Error::fatal("no"), true), "fail no");
    }
}
