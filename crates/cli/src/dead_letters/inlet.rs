//! The pipeline's source with a second opening, through which dead letters come back and [sweeps](crate::sweeps) come in.
//!
//! Which letters were replayed is a position like any other: a set of numbers in the checkpoint, one partition a stage.
//! So each is replayed exactly once however often the pipeline crashes; the ledger beside the letters is written after
//! the checkpoint and only informs readers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millstream_core::record::{Range, Slot};
use millstream_core::source::Notice;
use millstream_core::{
    Budget, Error, Fut, Next, PartitionId, Position, RecordBatch, Result, Source, Stage, TellFigures,
};

use super::STAGES;
use super::letter::{Letter, LetterId};
use super::ranges::Ranges;
use super::reader::{Lines, replayed, write_ledger};
use super::topic::{self, TopicLetters};
use crate::sweeps;

/// Partitions of dead letters begin with this; no file's identity does.
const PREFIX: &str = "dead-letters/";

/// Where replays and sweeps are asked for, and where the [`Inlet`] fetches them.
#[derive(Debug)]
pub(crate) struct Desk {
    /// The tables that are to be swept.
    pub(crate) sweeps: sweeps::Sheet,
    directory: PathBuf,
    asked: Mutex<BTreeSet<LetterId>>,
    /// Letters of the topic are asked for, if they were published before this time, ms since 1970.
    topic_asked: Mutex<Option<i64>>,
    /// The ledger as it was last written.
    written: Mutex<Option<BTreeMap<String, Ranges>>>,
}

impl Desk {
    /// The desk of the letters in `directory`.
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            sweeps: sweeps::Sheet::default(),
            directory: directory.to_owned(),
            asked: Mutex::default(),
            topic_asked: Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// Asks for letters to be replayed. Letters that were replayed before are left alone.
    pub(crate) fn ask(&self, letters: impl IntoIterator<Item = LetterId>) {
        self.asked().extend(letters);
    }

    /// Asks for the letters of the topic that were published before `before_ms`.
    pub(crate) fn ask_topic(&self, before_ms: i64) {
        *self.topic_asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(before_ms);
    }

    /// What is asked of the topic. It stays until it is done, so that an attempt that fails does not forget it.
    fn topic_asked(&self) -> Option<i64> {
        *self.topic_asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was asked of the topic is done, unless more was asked meanwhile.
    fn topic_done(&self, before_ms: i64) {
        let mut asked = self.topic_asked.lock().unwrap_or_else(PoisonError::into_inner);
        if *asked == Some(before_ms) {
            *asked = None;
        }
    }

    /// How many letters were asked for and are not durably replayed yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.asked().len()
    }

    /// Whether everything that was asked for is durably done.
    pub(crate) fn is_clear(&self) -> bool {
        self.outstanding() == 0 && self.sweeps.is_clear()
    }

    /// Takes note of the positions of a durable checkpoint: what was done is taken off the desk, and readers are told.
    pub(crate) fn note(&self, positions: &[(PartitionId, Position)]) -> Result<()> {
        self.sweeps.settle(positions)?;
        self.settle(&split(positions)?.1)
    }

    fn settle(&self, durable: &BTreeMap<Stage, Ranges>) -> Result<()> {
        self.asked().retain(|id| !durable.get(&id.stage).is_some_and(|ranges| ranges.contains(id.number)));
        let ledger: BTreeMap<String, Ranges> =
            durable.iter().map(|(stage, ranges)| (stage.name().to_owned(), ranges.clone())).collect();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let known = written.get_or_insert_with(|| replayed(&self.directory));
        if *known != ledger {
            write_ledger(&self.directory, &ledger)?;
            *known = ledger;
        }
        Ok(())
    }

    fn asked(&self) -> MutexGuard<'_, BTreeSet<LetterId>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a source of the topic's letters.
pub(crate) type TopicSource = Box<dyn Fn(i64) -> Result<Box<dyn Source>> + Send>;

/// A source, or none, and what the desk was asked for.
pub(crate) struct Inlet {
    inner: Option<Box<dyn Source>>,
    desk: std::sync::Arc<Desk>,
    /// Makes the source of letters that were published before a time, ms; `None` without a subscription to a topic.
    topic_source: Option<TopicSource>,
    /// The pipeline's sinks: what a sink refused comes again for that one.
    sinks: BTreeSet<String>,
    topic: Option<TopicLetters>,
    /// Replayed so far, this attempt's included.
    replayed: BTreeMap<Stage, Ranges>,
    /// Where the next letter of a stage is probably found: after this number, at this byte.
    ahead: BTreeMap<Stage, (u64, u64)>,
    notices: Vec<Notice>,
    /// Replayed as of the last checkpoint.
    durable: BTreeMap<Stage, Ranges>,
    /// Partitions of letters and sweeps that were given; they rest when there are no more.
    giving: BTreeSet<PartitionId>,
    resting: Vec<PartitionId>,
}

impl Inlet {
    /// The opening beside `inner`.
    pub(crate) fn new(
        inner: Option<Box<dyn Source>>,
        desk: std::sync::Arc<Desk>,
        topic_source: Option<TopicSource>,
        sinks: BTreeSet<String>,
    ) -> Self {
        Self {
            inner,
            desk,
            topic_source,
            sinks,
            topic: None,
            replayed: BTreeMap::new(),
            ahead: BTreeMap::new(),
            notices: Vec::new(),
            durable: BTreeMap::new(),
            giving: BTreeSet::new(),
            resting: Vec::new(),
        }
    }

    /// Opens the topic's subscription when its letters are asked for, and lets it go when they were all taken and are durable.
    async fn tend_topic(&mut self) -> Result<()> {
        if let Some(topic) = self.topic.take_if(|topic| topic.is_through() && topic.is_settled()) {
            self.desk.topic_done(topic.before_ms);
            self.resting.push(PartitionId::new(topic::PARTITION));
            topic.close(false).await?;
        }
        let (None, Some(make), Some(before_ms)) = (&self.topic, &self.topic_source, self.desk.topic_asked())
        else {
            return Ok(());
        };
        let opened = match make(before_ms) {
            Ok(source) => TopicLetters::open(source, before_ms).await,
            Err(error) => Err(error),
        };
        match opened {
            Ok(topic) => self.topic = Some(topic),
            Err(error) => self.topic_failed(before_ms, error)?,
        }
        Ok(())
    }

    /// A subscription to letters that cannot be read ends no pipeline that has more to read.
    fn topic_failed(&mut self, before_ms: i64, error: Error) -> Result<()> {
        self.topic = None;
        self.desk.topic_done(before_ms);
        if self.inner.is_none() {
            return Err(error);
        }
        let text = format!("the topic's dead letters are not replayed: {error}");
        self.notices.push(Notice { code: "dead_letter_topic_failed", text });
        Ok(())
    }

    /// The next records of the inner source, or letters of the topic.
    async fn next_of_both(&mut self, budget: Budget) -> Result<Next> {
        let Some(topic) = self.topic.as_mut() else {
            return match &mut self.inner {
                Some(inner) => inner.next(budget).await,
                None => Ok(Next::End),
            };
        };
        let before_ms = topic.before_ms;
        let letters = match &mut self.inner {
            // What it waits for is that its letters are durable.
            None if topic.is_through() => return Ok(Next::Held),
            None => topic.next(budget).await,
            Some(inner) => tokio::select! {
                letters = topic.next(budget) => letters,
                next = inner.next(budget) => match next? {
                    Next::End => topic.next(budget).await,
                    other => return Ok(other),
                },
            },
        };
        match letters {
            Ok(Some(batch)) => Ok(Next::Batch(batch)),
            Ok(None) => Ok(Next::Waiting),
            Err(error) => self.topic_failed(before_ms, error).map(|()| Next::Waiting),
        }
    }

    /// The next letters that were asked for; `None` if there are none.
    fn replay(&mut self, budget: Budget) -> Result<Option<RecordBatch>> {
        let asked: Vec<LetterId> = self.desk.asked().iter().copied().collect();
        let wanted = |id: &&LetterId| !self.replayed.get(&id.stage).is_some_and(|r| r.contains(id.number));
        let Some(first) = asked.iter().find(wanted).copied() else { return Ok(None) };
        let wanted: BTreeSet<u64> =
            asked.iter().filter(wanted).filter(|id| id.stage == first.stage).map(|id| id.number).collect();
        let stage = first.stage;
        let mut batch = RecordBatch {
            partition: PartitionId::new(&format!("{PREFIX}{}", stage.name())),
            buffer: Vec::new(),
            slots: Vec::new(),
            position: Position::default(),
        };
        let from =
            self.ahead.get(&stage).filter(|(number, _)| *number < first.number).map_or(0, |(_, at)| *at);
        let last = wanted.last().copied().unwrap_or_default();
        let mut taken = BTreeSet::new();
        if let Some(mut lines) = Lines::open(&self.desk.directory, stage, from)? {
            while batch.slots.len() < budget.records.max(1) && batch.buffer.len() < budget.bytes {
                let Some(letter) = lines.next().transpose()? else { break };
                let Some(id) = letter.letter_id().filter(|id| id.stage == stage) else { continue };
                if !batch.slots.is_empty() && batch.is_again() != letter.sink.is_some() {
                    // Another batch's.
                    break;
                }
                let is_taken =
                    wanted.contains(&id.number) && letter.has_taker(|sink| self.sinks.contains(sink));
                if is_taken && push(&mut batch, &letter, id.number) {
                    taken.insert(id.number);
                    self.ahead.insert(stage, (id.number, lines.offset));
                }
                if id.number >= last {
                    break;
                }
            }
        }
        if taken.is_empty() {
            self.missing(stage, &wanted);
            return self.replay(budget);
        }
        let replayed = self.replayed.entry(stage).or_default();
        taken.into_iter().for_each(|number| replayed.insert(number));
        batch.position = Position(replayed.encode());
        Ok(Some(batch))
    }

    /// Letters that were asked for but are not there (any more).
    fn missing(&mut self, stage: Stage, numbers: &BTreeSet<u64>) {
        self.desk.asked().retain(|id| id.stage != stage || !numbers.contains(&id.number));
        let text = format!(
            "{} letters of stage {} are not in their file, or for a sink that this pipeline does not have, and were not replayed",
            numbers.len(),
            stage.name()
        );
        self.notices.push(Notice { code: "dead_letter_missing", text });
    }
}

/// Appends a letter's record to the batch; false if its bytes are damaged.
fn push(batch: &mut RecordBatch, letter: &Letter, number: u64) -> bool {
    let mut put = |payload: &super::letter::Payload| {
        let bytes = payload.bytes()?;
        let range = Range { start: batch.buffer.len() as u32, len: bytes.len() as u32 };
        batch.buffer.extend_from_slice(&bytes);
        Some(range)
    };
    let mut optional = |payload: &Option<super::letter::Payload>| match payload {
        Some(payload) => put(payload).map(Some),
        None => Some(None),
    };
    let (Some(value), Some(key), Some(topic)) =
        (optional(&letter.value), optional(&letter.key), optional(&letter.topic))
    else {
        return false;
    };
    let mut headers = Vec::with_capacity(letter.headers.len());
    for header in &letter.headers {
        let (Some(name), Some(value)) = (put(&header.name), put(&header.value)) else { return false };
        headers.push((name, value));
    }
    batch.slots.push(Slot {
        value,
        key,
        headers,
        topic,
        offset: number,
        failures: letter.attempt,
        again_for: letter.sink.as_deref().map(Into::into),
        ..Slot::default()
    });
    true
}

fn stage_of(partition: &PartitionId) -> Option<Stage> {
    let name = partition.0.strip_prefix(PREFIX)?;
    STAGES.into_iter().find(|stage| stage.name() == name)
}

/// The inner source's positions, and what was replayed.
type Split = (Vec<(PartitionId, Position)>, BTreeMap<Stage, Ranges>);

/// Splits positions into the inner source's and those of dead letters. That of sweeps is their own.
fn split(positions: &[(PartitionId, Position)]) -> Result<Split> {
    let mut others = Vec::with_capacity(positions.len());
    let mut replayed = BTreeMap::new();
    for (partition, position) in positions {
        match stage_of(partition) {
            Some(stage) => {
                let ranges = Ranges::decode(&position.0).ok_or_else(|| {
                    Error::fatal("the checkpoint's list of replayed letters has an unknown format: it was written by a newer version")
                })?;
                replayed.insert(stage, ranges);
            }
            None if [topic::PARTITION, sweeps::PARTITION].contains(&&*partition.0) => {}
            None => others.push((partition.clone(), position.clone())),
        }
    }
    Ok((others, replayed))
}

impl Source for Inlet {
    fn open<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            let (others, replayed) = split(positions)?;
            self.desk.sweeps.reopen(positions)?;
            self.desk.settle(&replayed)?;
            self.durable.clone_from(&replayed);
            self.replayed = replayed;
            match &mut self.inner {
                Some(inner) => inner.open(&others).await,
                None => Ok(()),
            }
        })
    }

    fn next(&mut self, budget: Budget) -> Fut<'_, Result<Next>> {
        Box::pin(async move {
            let asked = match self.desk.sweeps.next(budget) {
                Some(sweeps) => Some(sweeps),
                None => self.replay(budget)?,
            };
            if let Some(batch) = asked {
                self.giving.insert(batch.partition.clone());
                return Ok(Next::Batch(batch));
            }
            self.resting.extend(std::mem::take(&mut self.giving));
            self.tend_topic().await?;
            self.next_of_both(budget).await
        })
    }

    fn release<'a>(&'a mut self, positions: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            let (others, replayed) = split(positions)?;
            self.desk.sweeps.settle(positions)?;
            self.durable.extend(replayed);
            self.desk.settle(&self.durable)?;
            let of_topic = positions.iter().find(|(partition, _)| &*partition.0 == topic::PARTITION);
            if let (Some(topic), Some((_, position))) = (&mut self.topic, of_topic) {
                topic.release(position).await?;
            }
            match &mut self.inner {
                Some(inner) => inner.release(&others).await,
                None => Ok(()),
            }
        })
    }

    fn close(&mut self, cancelled: bool) -> Fut<'_, Result<()>> {
        Box::pin(async move {
            // Side by side: time is short at the end, and neither may cost the other its acknowledgements.
            let topic = async {
                match self.topic.take() {
                    Some(topic) => topic.close(cancelled).await,
                    None => Ok(()),
                }
            };
            let inner = async {
                match &mut self.inner {
                    Some(inner) => inner.close(cancelled).await,
                    None => Ok(()),
                }
            };
            let (topic, inner) = tokio::join!(topic, inner);
            topic.and(inner)
        })
    }

    fn resting(&mut self) -> Vec<PartitionId> {
        let mut resting = std::mem::take(&mut self.resting);
        if let Some(inner) = &mut self.inner {
            resting.extend(inner.resting());
        }
        resting
    }

    fn notices(&mut self) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.notices);
        notices.extend(self.topic.iter_mut().flat_map(TopicLetters::notices));
        if let Some(inner) = &mut self.inner {
            notices.extend(inner.notices());
        }
        notices
    }

    fn figures(&self) -> Option<TellFigures> {
        self.inner.as_ref()?.figures()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn now(mut work: Fut<'_, Result<()>>) {
        let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("nothing is waited for")
        };
        done.unwrap();
    }

    /// A source that notes its closing, and comes to its end or not.
    struct Closing(Arc<Mutex<Vec<&'static str>>>, &'static str, bool);

    impl Source for Closing {
        fn open<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn next(&mut self, _: Budget) -> Fut<'_, Result<Next>> {
            Box::pin(async { Ok(Next::Idle) })
        }

        fn release<'a>(&'a mut self, _: &'a [(PartitionId, Position)]) -> Fut<'a, Result<()>> {
            Box::pin(async { Ok(()) })
        }

        fn close(&mut self, _: bool) -> Fut<'_, Result<()>> {
            self.0.lock().unwrap().push(self.1);
            if self.2 { Box::pin(async { Ok(()) }) } else { Box::pin(std::future::pending()) }
        }
    }

    /// The topic's subscription was closed first. A cancelled run has three seconds for both, so that where its acknowledgements
    /// took long, the source's messages were not given back.
    #[test]
    fn the_source_is_closed_beside_a_topic_that_takes_long() {
        let folder = tempfile::tempdir().unwrap();
        let closed: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let inner = Closing(closed.clone(), "source", true);
        let mut inlet =
            Inlet::new(Some(Box::new(inner)), Arc::new(Desk::new(folder.path())), None, BTreeSet::new());
        let topic = Closing(closed.clone(), "topic", false);
        let mut cx = Context::from_waker(Waker::noop());
        let opened = std::pin::pin!(TopicLetters::open(Box::new(topic), 0)).poll(&mut cx);
        let Poll::Ready(Ok(topic)) = opened else { panic!("nothing is waited for") };
        inlet.topic = Some(topic);
        assert!(inlet.close(true).as_mut().poll(&mut cx).is_pending(), "the topic is waited for");
        let mut closed = closed.lock().unwrap().clone();
        closed.sort_unstable();
        assert_eq!(closed, ["source", "topic"]);
    }

    /// A release names the partitions that moved, and the ledger lists the letters of all.
    #[test]
    fn a_release_of_one_stage_leaves_the_ledger_of_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let desk = Arc::new(Desk::new(folder.path()));
        let at = |stage: Stage, number| {
            let mut ranges = Ranges::default();
            ranges.insert(number);
            (PartitionId::new(&format!("{PREFIX}{}", stage.name())), Position(ranges.encode()))
        };
        let mut inlet = Inlet::new(None, desk, None, BTreeSet::new());
        now(inlet.open(&[at(STAGES[0], 7)]));
        now(inlet.release(&[at(STAGES[1], 9)]));
        let ledger = replayed(folder.path());
        assert!(ledger[STAGES[0].name()].contains(7) && ledger[STAGES[1].name()].contains(9));
    }
}
