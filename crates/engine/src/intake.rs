//! Intake: takes records from the source, within the in-flight budget, and puts barriers between them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_core::sink::SinkNotice;
use millstream_core::source::Next;
use millstream_core::{Budget, PartitionId, Position, RecordBatch, Result, Source};
use tokio::sync::mpsc::{Sender, UnboundedReceiver};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::flow::{IntakeOrder, Report, Staged, Work, gone};
use crate::status::Gauges;

/// The smallest share of the budget, and the unit of its semaphore, in bytes.
const UNIT: usize = 1024;

/// What one call of the source may hand out.
const BUDGET: Budget = Budget { records: 16 * 1024, bytes: 512 * 1024 };

pub(crate) struct Intake {
    pub(crate) source: Box<dyn Source>,
    pub(crate) orders: UnboundedReceiver<IntakeOrder>,
    pub(crate) workers: Vec<Sender<Work>>,
    pub(crate) reports: Sender<Report>,
    pub(crate) budget_units: u32,
    pub(crate) idle: Option<Duration>,
    pub(crate) paused: bool,
    pub(crate) gauges: Arc<Gauges>,
}

impl Intake {
    pub(crate) async fn run(self) -> Staged {
        let Self { mut source, mut orders, workers, reports, budget_units, idle, paused, gauges } = self;
        gauges.watch(source.figures());
        let mut paused_since = paused.then(Instant::now);
        let mut workers = Turns { workers, turn: 0, blocked: Duration::ZERO, gauges: gauges.clone() };
        let budget = Arc::new(Semaphore::new(budget_units as usize));
        let mut stopped = false;
        // Whether the coordinator knows that the source waits for a release.
        let mut held = false;
        let mut releases: Vec<Vec<(PartitionId, Position)>> = Vec::new();
        // How long the source was asked, time after time, and answered that there is nothing. Time in which nobody asked it is
        // no silence.
        let mut quiet = Duration::ZERO;
        loop {
            let blocked_before = workers.blocked;
            let taken = {
                // Kept across orders: a source that waits longer than an epoch for its records must get to its answer.
                let mut taking = pin!(take(source.as_mut(), &budget, &gauges));
                loop {
                    tokio::select! {
                        // Orders first: a barrier must not wait behind a source that always has more.
                        biased;
                        order = orders.recv() => match order {
                            None => return Ok(()),
                            Some(IntakeOrder::Barrier(barrier)) => workers.hand(Work::Barrier(barrier)).await?,
                            Some(IntakeOrder::Release(positions)) => {
                                releases.push(positions);
                                held = false;
                            }
                            Some(IntakeOrder::Pause(pause)) => {
                                let since = paused_since.take();
                                gauges.paused(since.map_or(Duration::ZERO, |since| since.elapsed()));
                                paused_since = pause.then(Instant::now);
                                quiet = Duration::ZERO;
                            }
                            Some(IntakeOrder::Stop) => stopped = true,
                            Some(IntakeOrder::Close { cancelled }) => break Taken::Close { cancelled },
                        },
                        taken = &mut taking, if paused_since.is_none() && !stopped => break Taken::Next(taken?),
                    }
                    // A source that waits for a release must not wait for its own records first.
                    if !releases.is_empty() {
                        break Taken::Nothing;
                    }
                }
            };
            // Before anything that needs the other stages: at the end of a run they may be gone, and the last release still counts.
            for positions in releases.drain(..) {
                source.release(&positions).await?;
            }
            if let Taken::Close { cancelled } = taken {
                return Ok(source.close(cancelled).await?);
            }
            for notice in source.notices() {
                let notice = SinkNotice { code: notice.code, text: notice.text, count: 1 };
                if reports.send(Report::Notice(notice)).await.is_err() {
                    break;
                }
            }
            let is_over = match &taken {
                Taken::Next(Given { next: Next::End, .. }) => true,
                Taken::Next(Given { next: Next::Idle, waited, .. }) => {
                    // A barrier may have had to wait for the workers meanwhile.
                    quiet += waited.saturating_sub(workers.blocked - blocked_before);
                    idle.is_some_and(|idle| quiet >= idle)
                }
                // Neither a wait nor a full source says that there is nothing more.
                Taken::Next(_) => {
                    quiet = Duration::ZERO;
                    false
                }
                Taken::Nothing | Taken::Close { .. } => false,
            };
            let resting = source.resting();
            if !resting.is_empty() {
                workers.hand(Work::Rest(resting)).await?;
            }
            if is_over {
                stopped = true;
                reports.send(Report::Exhausted).await.map_err(gone)?;
            }
            match taken {
                Taken::Next(Given { next: Next::Batch(batch), permit, .. }) => {
                    gauges.records_in.fetch_add(batch.slots.len() as u64, Ordering::Relaxed);
                    gauges.bytes_in.fetch_add(batch.buffer.len() as u64, Ordering::Relaxed);
                    let permit = fit(permit, &batch, &budget, budget_units).await;
                    workers.hand(Work::Batch(batch, Arc::new(permit))).await?;
                }
                Taken::Next(Given { next: Next::Held, .. }) => {
                    if !std::mem::replace(&mut held, true) {
                        reports.send(Report::Held).await.map_err(gone)?;
                    }
                }
                Taken::Next(_) | Taken::Nothing | Taken::Close { .. } => {}
            }
        }
    }
}

/// What ended a wait for records.
enum Taken {
    Next(Given),
    /// Something is to be released first.
    Nothing,
    Close {
        cancelled: bool,
    },
}

/// What the source gave, within the budget that it was given.
struct Given {
    next: Next,
    permit: OwnedSemaphorePermit,
    /// How long it took to answer.
    waited: Duration,
}

/// The decode workers and whose turn it is; dispatch collects in the same turns.
struct Turns {
    workers: Vec<Sender<Work>>,
    turn: usize,
    /// How long handing on took in all.
    blocked: Duration,
    gauges: Arc<Gauges>,
}

impl Turns {
    async fn hand(&mut self, work: Work) -> Staged {
        let asked = Instant::now();
        self.workers[self.turn].send(work).await.map_err(gone)?;
        self.blocked += asked.elapsed();
        self.gauges.held_back(asked.elapsed());
        self.turn = (self.turn + 1) % self.workers.len();
        Ok(())
    }
}

/// Waits for room in the budget, then for records. Cancel-safe: a dropped wait gives its permits back.
async fn take(source: &mut dyn Source, budget: &Arc<Semaphore>, gauges: &Gauges) -> Result<Given> {
    let (began, paused_before) = (Instant::now(), gauges.paused_for());
    let units = (BUDGET.bytes / UNIT) as u32;
    let permit =
        budget.clone().acquire_many_owned(units).await.expect("invariant: the budget is never closed");
    let paused_meanwhile = gauges.paused_for().saturating_sub(paused_before);
    gauges.held_back(began.elapsed().saturating_sub(paused_meanwhile));
    let asked = Instant::now();
    let next = source.next(BUDGET).await?;
    Ok(Given { next, permit, waited: asked.elapsed() })
}

/// Makes the permit what the batch needs. A batch with a record above a call's share waits for more, up to the whole budget,
/// so that it can always pass; what holds the budget then needs nothing of intake to be done.
async fn fit(
    mut permit: OwnedSemaphorePermit,
    batch: &RecordBatch,
    budget: &Arc<Semaphore>,
    budget_units: u32,
) -> OwnedSemaphorePermit {
    let need = batch.buffer.len().div_ceil(UNIT).clamp(1, budget_units as usize);
    match need.checked_sub(permit.num_permits()) {
        None | Some(0) => {
            let spare = permit.num_permits() - need;
            drop(permit.split(spare));
        }
        Some(more) => {
            let more = budget.clone().acquire_many_owned(more as u32).await;
            permit.merge(more.expect("invariant: the budget is never closed"));
        }
    }
    permit
}

/// Semaphore units for a budget in bytes: at least what two calls of the source may take.
pub(crate) fn budget_units(bytes: usize) -> u32 {
    u32::try_from(bytes / UNIT)
        .unwrap_or(u32::MAX >> 4)
        .max((2 * BUDGET.bytes / UNIT) as u32)
        .min(u32::MAX >> 4)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use millstream_core::Fut;

    use super::*;

    struct Dry;

    impl Source for Dry {
        fn open<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn next(&mut self, _: Budget) -> Fut<'_, Result<Next>> {
            Box::pin(async { Ok(Next::End) })
        }

        fn release<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
            Box::pin(async { Ok(()) })
        }
    }

    /// A pipeline that was paused while intake waited for room told of hours of backpressure when it was resumed.
    #[tokio::test]
    async fn a_pause_is_no_backpressure() {
        let (gauges, budget) = (Gauges::new(), Arc::new(Semaphore::new(BUDGET.bytes / UNIT)));
        for (paused, held_back) in [(Duration::from_secs(3600), false), (Duration::ZERO, true)] {
            let all = budget.clone().acquire_many_owned(budget.available_permits() as u32).await.unwrap();
            let mut dry = Dry;
            let mut taking = pin!(take(&mut dry, &budget, &gauges));
            assert!(taking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            tokio::time::sleep(Duration::from_millis(2)).await;
            gauges.paused(paused);
            drop(all);
            drop(taking.await.unwrap().permit);
            assert_eq!(gauges.held_back_us.load(Ordering::Relaxed) > 0, held_back);
        }
    }

    /// Gives what it is told to, at once.
    /// Gives what stands in its script; its partition rests after each silence.
    struct Scripted(std::vec::IntoIter<Next>, bool);

    impl Source for Scripted {
        fn open<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn next(&mut self, _: Budget) -> Fut<'_, Result<Next>> {
            let next = self.0.next().unwrap_or(Next::End);
            self.1 = matches!(next, Next::Idle);
            Box::pin(async { Ok(next) })
        }

        fn resting(&mut self) -> Vec<PartitionId> {
            if std::mem::take(&mut self.1) { vec![PartitionId::new("p")] } else { Vec::new() }
        }

        fn release<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
            Box::pin(async { Ok(()) })
        }
    }

    /// The time that a slow sink took counted as silence of the source: after it one empty poll ended `run --until-idle`, with
    /// records left.
    #[tokio::test(start_paused = true)]
    async fn a_source_that_nobody_asked_was_not_silent() {
        let idle_between =
            [Next::Batch(batch(1)), Next::Idle, Next::Batch(batch(1)), Next::Idle, Next::Batch(batch(1))];
        let script = idle_between.into_iter().collect::<Vec<_>>();
        let (workers, mut work) = tokio::sync::mpsc::channel(1);
        let (reports, mut reported) = tokio::sync::mpsc::channel(8);
        let (_orders, orders) = tokio::sync::mpsc::unbounded_channel();
        let intake = Intake {
            source: Box::new(Scripted(script.into_iter(), false)),
            orders,
            workers: vec![workers],
            reports,
            budget_units: budget_units(16 << 20),
            idle: Some(Duration::from_secs(3)),
            paused: false,
            gauges: Arc::new(Gauges::new()),
        };
        let intake = tokio::spawn(intake.run());
        for batch in [true, false, true, false, true] {
            // Longer than what counts as idle.
            tokio::time::sleep(Duration::from_secs(10)).await;
            let came = work.recv().await;
            assert_eq!(matches!(came, Some(Work::Batch(..))), batch, "not every record was taken");
        }
        assert!(matches!(reported.recv().await, Some(Report::Exhausted)));
        intake.abort();
    }

    fn batch(bytes: usize) -> RecordBatch {
        let (partition, position) = (PartitionId::new("p"), Position::default());
        RecordBatch { partition, buffer: vec![0; bytes], slots: Vec::new(), position }
    }

    /// A large record was charged a call's share, so that 32 of 64 MiB passed where 16 MiB were allowed.
    #[tokio::test]
    async fn a_large_record_is_charged_whole() {
        let units = budget_units(16 << 20);
        let budget = Arc::new(Semaphore::new(units as usize));
        let share = (BUDGET.bytes / UNIT) as u32;
        let take = || budget.clone().try_acquire_many_owned(share).unwrap();
        let small = fit(take(), &batch(10 * UNIT), &budget, units).await;
        assert_eq!(budget.available_permits(), units as usize - 10);
        let large = fit(take(), &batch(4 << 20), &budget, units).await;
        assert_eq!(large.num_permits(), 4 << 10);
        drop((small, large));
        let huge = fit(take(), &batch(64 << 20), &budget, units).await;
        assert_eq!((huge.num_permits(), budget.available_permits()), (units as usize, 0));
    }
}
