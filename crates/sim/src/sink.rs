//! Simulated sinks: one protocol of epochs, two ways to make them visible, and any layout.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_core::sink::{Rejection, WriteReport};
use millstream_core::{Cause, CommitToken, Epoch, Fut, Output, OutputBatch, Result, Sink};

use crate::disk::Disk;
use crate::fault::{Call, Edge};
use crate::history::History;
use crate::mutant::Mutant;
use crate::stage::{Stage, State};

/// How a sink keeps an epoch from sight until its checkpoint is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Rows are invisible until `commit`, and cannot be taken back then.
    Staging,
    /// Rows are visible from `prepare` on, and are taken back by `recover` where no checkpoint names them.
    RollBack,
}

/// What the layout made of an output.
#[derive(Debug)]
pub(crate) enum Taken {
    Written,
    Superseded,
    Filtered,
    Duplicate,
    Rejected(Cause),
    /// A patch, which no count includes.
    Patch,
}

/// The contents of a warehouse, as one kind of sink lays them out.
pub(crate) trait Layout: Clone + Default + Send + 'static {
    /// Where the sinks of this layout keep their contents.
    fn warehouses(disk: &mut Disk) -> &mut BTreeMap<String, Warehouse<Self>>;

    /// Writes an output of an epoch; says what is wrong with it.
    fn take(
        &mut self,
        output: &Output,
        ingested_at_us: i64,
        world: &History,
        wrong: &mut Vec<String>,
    ) -> Taken;

    /// What is wrong with visible contents.
    fn check(&self, world: &History, wrong: &mut Vec<String>);
}

/// The contents after an epoch.
#[derive(Debug, Clone)]
pub(crate) struct Version<C> {
    epoch: Epoch,
    ingested_at_us: i64,
    contents: C,
}

/// What a sink made durable.
#[derive(Debug)]
pub(crate) struct Warehouse<C> {
    style: Style,
    versions: Vec<Version<C>>,
    pub(crate) committed: Epoch,
}

impl<C: Default> Warehouse<C> {
    /// An empty one.
    pub(crate) fn new(style: Style) -> Self {
        Self { style, versions: Vec::new(), committed: Epoch(0) }
    }

    /// What people see.
    pub(crate) fn visible(&self) -> Option<&C> {
        let shown = |version: &&Version<C>| self.style == Style::RollBack || version.epoch <= self.committed;
        self.versions.iter().rfind(shown).map(|version| &version.contents)
    }

    /// What is durable, visible or not.
    pub(crate) fn prepared(&self) -> Option<&C> {
        self.versions.last().map(|version| &version.contents)
    }
}

/// An opened sink.
pub(crate) struct SimSink<L: Layout> {
    stage: Arc<Stage>,
    name: String,
    style: Style,
    contents: L,
    recovered: bool,
    epoch: Option<Epoch>,
    ingested_at_us: i64,
    /// Something was written in this epoch.
    dirty: bool,
}

impl<L: Layout> SimSink<L> {
    pub(crate) fn new(stage: Arc<Stage>, name: &str, style: Style) -> Self {
        Self {
            stage,
            name: name.to_owned(),
            style,
            contents: L::default(),
            recovered: false,
            epoch: None,
            ingested_at_us: 0,
            dirty: false,
        }
    }

    fn warehouse<'a>(&self, state: &'a mut State) -> &'a mut Warehouse<L> {
        let style = self.style;
        L::warehouses(&mut state.disk).entry(self.name.clone()).or_insert_with(|| Warehouse::new(style))
    }

    /// Looks at what is visible now.
    fn look(&self, state: &mut State) {
        let mut wrong = Vec::new();
        if let Some(visible) = self.warehouse(state).visible() {
            visible.check(&self.stage.history, &mut wrong);
        }
        for text in wrong {
            state.violation(format!("{}: {text}", self.name));
        }
    }

    fn recover_now(&mut self, last: Option<&CommitToken>) {
        let stage = self.stage.clone();
        let mut state = stage.lock();
        let restored = state.disk.restored;
        let early_flush = stage.mutant == Some(Mutant::EarlyFlush);
        let (epoch, mark) = last.map_or((Epoch(0), 0), read_token);
        let warehouse = self.warehouse(&mut state);
        let committed = warehouse.committed;
        let keep = match self.style {
            Style::Staging => epoch.max(committed),
            Style::RollBack => epoch,
        };
        warehouse.versions.retain(|version| version.epoch <= keep);
        let named = warehouse.versions.iter().rfind(|version| version.epoch == epoch);
        let found = epoch == Epoch(0) || named.is_some_and(|version| version.ingested_at_us == mark);
        warehouse.committed = keep;
        self.contents = warehouse.prepared().cloned().unwrap_or_default();
        if committed > epoch && !restored && !early_flush {
            state.breach(format!(
                "{} is to recover to epoch {}, but committed {}",
                self.name, epoch.0, committed.0
            ));
        }
        if !found {
            state.breach(format!(
                "{} is to recover to epoch {}, of which it knows nothing",
                self.name, epoch.0
            ));
        }
        (self.recovered, self.dirty) = (true, false);
        self.look(&mut state);
    }

    fn begin_now(&mut self, epoch: Epoch, ingested_at_us: i64) {
        let mut state = self.stage.lock();
        if !self.recovered {
            state.breach(format!("{} begins epoch {} before it was recovered", self.name, epoch.0));
        }
        if self.epoch.is_some_and(|last| epoch != last.next()) {
            state.breach(format!("{} begins epoch {} after {:?}", self.name, epoch.0, self.epoch));
        }
        let last = self.warehouse(&mut state).versions.last().map_or(0, |version| version.ingested_at_us);
        if ingested_at_us <= last.max(self.ingested_at_us) {
            state.breach(format!("{}: __ingested_at of epoch {} does not increase", self.name, epoch.0));
        }
        (self.epoch, self.ingested_at_us) = (Some(epoch), ingested_at_us);
    }

    fn write_now(&mut self, batch: &OutputBatch) -> WriteReport {
        let stage = self.stage.clone();
        let mut state = stage.lock();
        let mut report = WriteReport::default();
        let mut wrong = Vec::new();
        for (output, item) in batch.outputs.iter().enumerate() {
            state.note(|| format!("{}: {}", self.name, describe(item, &stage.history)));
            match self.contents.take(item, self.ingested_at_us, &stage.history, &mut wrong) {
                Taken::Written => (report.written, self.dirty) = (report.written + 1, true),
                Taken::Superseded => report.superseded += 1,
                Taken::Filtered => report.filtered += 1,
                Taken::Duplicate => report.duplicates += 1,
                Taken::Rejected(cause) => report.rejected.push(Rejection { output, cause }),
                Taken::Patch => self.dirty = true,
            }
            count(&mut state, item);
        }
        for text in wrong {
            state.violation(format!("{}: {text}", self.name));
        }
        report
    }

    fn prepare_now(&mut self) -> Option<CommitToken> {
        if !std::mem::take(&mut self.dirty) {
            return None;
        }
        let stage = self.stage.clone();
        let mut state = stage.lock();
        let epoch = self.epoch.unwrap_or_default();
        let (contents, ingested_at_us) = (self.contents.clone(), self.ingested_at_us);
        let warehouse = self.warehouse(&mut state);
        let waiting =
            warehouse.versions.last().map(|version| version.epoch).filter(|e| *e > warehouse.committed);
        warehouse.versions.push(Version { epoch, ingested_at_us, contents });
        if stage.mutant == Some(Mutant::EarlyFlush) {
            warehouse.committed = epoch;
        } else if let Some(waiting) = waiting {
            state.breach(format!("{} prepares {} but {} is not committed", self.name, epoch.0, waiting.0));
        }
        self.look(&mut state);
        let mut token = epoch.0.to_be_bytes().to_vec();
        token.extend(ingested_at_us.to_be_bytes());
        Some(CommitToken(token))
    }

    fn commit_now(&mut self, token: &CommitToken) {
        let mut state = self.stage.lock();
        let (epoch, mark) = read_token(token);
        let durable = state.disk.store.checkpoint.as_ref().map_or(Epoch(0), |c| c.epoch);
        let warehouse = self.warehouse(&mut state);
        let version = warehouse.versions.iter().rfind(|version| version.epoch == epoch);
        let found = version.is_some_and(|version| version.ingested_at_us == mark);
        warehouse.committed = warehouse.committed.max(epoch);
        if !found {
            state.breach(format!("{} is to commit epoch {}, of which it knows nothing", self.name, epoch.0));
        }
        if durable < epoch {
            state.breach(format!("{} commits epoch {} before its checkpoint is durable", self.name, epoch.0));
        }
        self.look(&mut state);
    }
}

fn read_token(token: &CommitToken) -> (Epoch, i64) {
    let half = |at: usize| token.0.get(at..at + 8).and_then(|b| b.try_into().ok());
    (Epoch(half(0).map_or(0, u64::from_be_bytes)), half(8).map_or(0, i64::from_be_bytes))
}

fn describe(output: &Output, history: &History) -> String {
    match output {
        Output::Event(judged) => {
            let change = crate::decoder::change_of(&judged.event);
            let what = change.map_or_else(String::new, |change| history.describe(change));
            let flag = |on: bool, name: &'static str| if on { name } else { "" };
            format!(
                "{what}{}{}{}{} as {}",
                flag(judged.distinct, " distinct"),
                flag(judged.newest, " newest"),
                flag(judged.late, " late"),
                flag(judged.filled.is_some(), " filled"),
                short(&judged.event.order),
            )
        }
        Output::Patch(patch) => {
            let id = crate::decoder::id_of(&patch.key);
            format!(
                "patch of {} id={id:?} columns {:?} at {}",
                patch.schema.table,
                patch.columns,
                short(&patch.order)
            )
        }
    }
}

fn short(order: &millstream_core::Order) -> String {
    order.sections().iter().map(u64::to_string).collect::<Vec<_>>().join("/")
}

fn count(state: &mut State, output: &Output) {
    match output {
        Output::Event(judged) => {
            state.count("late events", u64::from(judged.late && judged.distinct));
            state.count("duplicates", u64::from(!judged.distinct));
            state.count("filled rows", u64::from(judged.filled.is_some()));
        }
        Output::Patch(_) => state.count("patches", 1),
    }
}

impl<L: Layout> Sink for SimSink<L> {
    fn recover<'a>(&'a mut self, last: Option<&'a CommitToken>) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.stage.step(Call::SinkRecover, Edge::Before, &self.name).await?;
            self.recover_now(last);
            self.stage.step(Call::SinkRecover, Edge::After, &self.name).await
        })
    }

    fn begin(&mut self, epoch: Epoch, ingested_at_us: i64) -> Fut<'_, Result<()>> {
        Box::pin(async move {
            self.stage.step(Call::SinkBegin, Edge::Before, &self.name).await?;
            self.begin_now(epoch, ingested_at_us);
            self.stage.step(Call::SinkBegin, Edge::After, &self.name).await
        })
    }

    fn write<'a>(&'a mut self, batch: &'a OutputBatch) -> Fut<'a, Result<WriteReport>> {
        Box::pin(async move {
            self.stage.step(Call::SinkWrite, Edge::Before, &self.name).await?;
            let report = self.write_now(batch);
            self.stage.step(Call::SinkWrite, Edge::After, &self.name).await?;
            Ok(report)
        })
    }

    fn prepare(&mut self) -> Fut<'_, Result<Option<CommitToken>>> {
        Box::pin(async move {
            self.stage.step(Call::SinkPrepare, Edge::Before, &self.name).await?;
            let token = self.prepare_now();
            self.stage.step(Call::SinkPrepare, Edge::After, &self.name).await?;
            Ok(token)
        })
    }

    fn commit<'a>(&'a mut self, token: &'a CommitToken) -> Fut<'a, Result<()>> {
        Box::pin(async move {
            self.stage.step(Call::SinkCommit, Edge::Before, &self.name).await?;
            self.commit_now(token);
            self.stage.step(Call::SinkCommit, Edge::After, &self.name).await
        })
    }
}
