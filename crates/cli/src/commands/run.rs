//! `run`: the pipeline, in the foreground.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::{Error, Store};
use millstream_engine::{Clock, Handle, Phase, Summary, SystemClock};
use millstream_pubsub::admin::{self, resolve};
use millstream_pubsub::{Client, SeekTo, SnapshotName};
use millstream_server::Pipeline;
use millstream_state::LocalStore;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;

use super::{Failure, plan};
use crate::arguments::Run;
use crate::control::{self, Asked, Request, Server};
use crate::dead_letters::Desk;
use crate::doors::Doors;
use crate::output::{print, print_json};
use crate::plan::{Plan, SourcePlan};
use crate::progress::{Progress, TICK};
use crate::report;
use crate::world::{PlanWorld, StateShelf, settings};

/// Runs the pipeline to its end and shows what came of it.
pub(crate) fn run(arguments: &Run) -> Result<(), Failure> {
    let plan = Arc::new(plan(&arguments.on.config)?);
    // Before anything is restored or sought under a running pipeline.
    refuse_second(&plan)?;
    if let Some(savepoint) = &arguments.from {
        let directory = &plan.checkpoint.directory;
        LocalStore::restore(directory, savepoint, millstream_state::Options::default())?;
        tracing::info!("{} starts from savepoint {savepoint}", plan.pipeline);
    }
    if let Some(to) = &arguments.seek {
        seek(&plan, to)?;
    }
    let desk = Arc::new(Desk::new(&plan.dead_letters));
    let world = PlanWorld::new(plan.clone(), desk.clone())?;
    let until = Until { idle: arguments.until_idle.then_some(arguments.idle), ..Until::default() };
    let ended = drive(&plan, world, desk, until)?;
    if arguments.on.json {
        print_json(&report::summary_json(&plan.pipeline, &ended.summary));
    } else {
        print(&report::summary_text(&plan.pipeline, &ended.summary));
    }
    ended.verdict()
}

/// A pipeline runs once at a time.
fn refuse_second(plan: &Plan) -> Result<(), Failure> {
    if control::ask(&plan.checkpoint.directory, &Request::Status)?.is_some() {
        let message =
            format!("{} runs already: `millstream status`, `drain` and `cancel` reach it", plan.pipeline);
        return Err(Failure::Failed(message));
    }
    Ok(())
}

/// Puts every subscription of the plan to a time or a snapshot. What is delivered again is recognised by state.
fn seek(plan: &Plan, to: &str) -> Result<(), Failure> {
    let SourcePlan::Pubsub(config) = &plan.source else {
        return Err(Failure::Usage("--seek is for `source.type: pubsub`".to_owned()));
    };
    let now_ms = i64::try_from(SystemClock.now().as_millis()).unwrap_or(i64::MAX);
    let time = time_to_seek(to, now_ms)?;
    runtime(plan)?.block_on(async {
        let client = Client::new(&config.connection, 1)?;
        for name in resolve(&client, config).await? {
            let to = match time {
                Some(ms) => SeekTo::TimeMs(ms),
                None => {
                    let project = name.project().strip_prefix("projects/");
                    SeekTo::Snapshot(SnapshotName::parse(to, project)?)
                }
            };
            admin::seek(&client, &name, &to).await?;
            tracing::info!("{name} was put to {to}", to = arguments_of(&to));
        }
        Ok(())
    })
}

/// The time, ms since 1970, to which subscriptions are put; `None` if the text is none, and so names a snapshot.
fn time_to_seek(to: &str, now_ms: i64) -> Result<Option<i64>, Failure> {
    let Ok(time) = to.parse::<jiff::Timestamp>() else {
        // Names of snapshots begin with a letter.
        if to.starts_with(|first: char| first.is_ascii_digit()) {
            let message = format!("--seek {to} is no time: it takes the form 2026-05-01T00:00:00Z");
            return Err(Failure::Usage(message));
        }
        return Ok(None);
    };
    if time.as_millisecond() > now_ms {
        let message = format!(
            "--seek {to} is in the future: all that waits, and all that comes until then, would be acknowledged unread. To skip what waits, give a time that has just passed"
        );
        return Err(Failure::Usage(message));
    }
    Ok(Some(time.as_millisecond()))
}

/// A place as people write it.
fn arguments_of(to: &SeekTo) -> String {
    match to {
        SeekTo::TimeMs(ms) => {
            jiff::Timestamp::from_millisecond(*ms).map_or(ms.to_string(), |time| time.to_string())
        }
        SeekTo::Snapshot(name) => name.to_string(),
    }
}

/// When a run ends by itself, and what is shown meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Until {
    /// Nothing came for so long.
    pub(crate) idle: Option<Duration>,
    /// It ran for so long.
    pub(crate) limit: Option<Duration>,
    /// Show the tables on a terminal.
    pub(crate) tables: bool,
}

/// Longer than anything runs.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) summary: Summary,
    cancelled: bool,
}

impl Ended {
    /// Whether it ended well: not cancelled, and everything accounted for.
    pub(crate) fn verdict(&self) -> Result<(), Failure> {
        if let Some(residue) = self.summary.residues.first() {
            return Err(Failure::Failed(format!("the counts do not balance; this is a bug: {residue}")));
        }
        if self.cancelled {
            return Err(Failure::Failed(format!(
                "cancelled; the next run goes on from epoch {}",
                self.summary.status.epoch.0
            )));
        }
        Ok(())
    }
}

/// A runtime with a thread for each core and one for each sink, so that a sink that blocks stops nothing else.
pub(crate) fn runtime(plan: &Plan) -> Result<Runtime, Error> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores + plan.sinks.len())
        .thread_name("millstream")
        .enable_all()
        .build()
        .map_err(|e| Error::fatal("cannot start threads").with_source(e))
}

/// Runs `world` in the foreground, with progress, signals and the control socket.
pub(crate) fn drive(
    plan: &Arc<Plan>,
    world: PlanWorld,
    desk: Arc<Desk>,
    until: Until,
) -> Result<Ended, Failure> {
    refuse_second(plan)?;
    let runtime = runtime(plan)?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::new()?;
        let shelf = world.shelf();
        // Before the pipeline starts: a port that is taken must not end a run that works.
        let doors = Doors::open(plan).await?;
        let handle = millstream_engine::start(Arc::new(world), settings(plan, until.idle));
        let (pipeline, answering) = doors.answer(plan, &handle);
        let mut server = None;
        let mut progress = Progress::new(until.tables);
        let limit = sleep(until.limit.unwrap_or(FOR_EVER));
        let mut limit = pin!(limit);
        let mut tick = tokio::time::interval(TICK);
        let mut asked_to_end = 0;
        loop {
            tokio::select! {
                outcome = handle.wait() => {
                    progress.finish();
                    let mut summary = match outcome {
                        Ok(summary) => summary,
                        Err(e) => {
                            answering.close().await;
                            return Err(Failure::Failed(format!("{} failed: {e}", plan.pipeline)));
                        }
                    };
                    // The handle knows the counts of the run beside those of the last checkpoint.
                    summary.status = handle.status();
                    answering.close().await;
                    return Ok(Ended { summary, cancelled: handle.is_cancelled() });
                }
                () = signals.next() => {
                    asked_to_end += 1;
                    end(plan, &handle, asked_to_end);
                }
                () = &mut limit, if asked_to_end == 0 => {
                    asked_to_end = 1;
                    handle.drain();
                }
                _ = tick.tick() => {
                    let (status, rate) = pipeline.tick();
                    // Only a pipeline that has its store open owns the socket's place.
                    if server.is_none() && matches!(status.phase, Phase::Running | Phase::Paused | Phase::Draining) {
                        server = Some(serve(plan, &pipeline, &desk, &shelf));
                    }
                    progress.show(&plan.pipeline, &status, rate.events);
                }
            }
        }
    });
    // Nothing that still blocks in a control request may hold the process back.
    runtime.shutdown_timeout(Duration::from_secs(5));
    if !desk.is_clear() {
        // The engine need not tell a source of its last checkpoint, so the store is asked.
        note_last(plan, &desk)?;
    }
    ended
}

fn note_last(plan: &Plan, desk: &Desk) -> Result<(), Failure> {
    let mut store = LocalStore::open(&plan.checkpoint.directory, millstream_state::Options::default())?;
    if let Some(last) = runtime(plan)?.block_on(store.latest())? {
        desk.note(&last.positions)?;
    }
    Ok(())
}

/// The control socket; a pipeline runs without it where it cannot be had.
fn serve(
    plan: &Arc<Plan>,
    pipeline: &Arc<Pipeline>,
    desk: &Arc<Desk>,
    shelf: &Arc<StateShelf>,
) -> Option<Server> {
    let asked =
        Asked { plan: plan.clone(), pipeline: pipeline.clone(), desk: desk.clone(), shelf: shelf.clone() };
    match Server::start(asked) {
        Ok(server) => Some(server),
        Err(e) => {
            tracing::warn!("commands cannot reach this run: {e}");
            None
        }
    }
}

fn end(plan: &Plan, handle: &Handle, times: u32) {
    if times == 1 {
        tracing::info!("{}: finishing what is in flight; once more to end now", plan.pipeline);
        handle.drain();
    } else {
        tracing::info!("{}: ending now", plan.pipeline);
        handle.cancel();
    }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|e| Failure::Failed(format!("cannot listen for signals: {e}")));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A year mistyped acknowledged the whole backlog, unread and without a word.
    #[test]
    fn a_seek_goes_to_the_past() {
        let seek = |to| time_to_seek(to, 1_777_593_600_000);
        assert!(matches!(seek("2026-05-01T00:00:00Z"), Ok(Some(1_777_593_600_000))));
        assert!(matches!(seek("before-the-migration"), Ok(None)));
        for unfinished in ["2026-05-01", "2026-05-01T00:00:00", "1777593600"] {
            let Err(Failure::Usage(says)) = seek(unfinished) else { panic!("{unfinished} was taken") };
            assert!(says.contains("is no time"), "taken for a snapshot's name before: {says}");
        }
        for future in ["2026-05-01T00:00:01Z", "2027-04-30T00:00:00Z", "2026-05-01T00:00:00-02:00"] {
            let Err(Failure::Usage(says)) = seek(future) else { panic!("{future} was taken") };
            assert!(says.contains("in the future") && says.contains(future), "{says}");
        }
    }
}
