//! The simulated world as the engine sees it.

use std::sync::Arc;

use millstream_core::{DeadLetters, Decoder, Result, Sink, Source, Store};
use millstream_engine::{Clock, World};

use crate::decoder::HistoryDecoder;
use crate::delivery::Partition;
use crate::history_sink::Full;
use crate::letters::SimLetters;
use crate::mutant::Mutant;
use crate::replica_sink::Current;
use crate::sink::{SimSink, Style};
use crate::source::{EarlyAck, SimSource, SourceKind};
use crate::stage::Stage;
use crate::store::SimStore;

/// How a sink lays out what it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    History,
    Replica,
}

/// A sink of the pipeline.
#[derive(Debug, Clone)]
pub(crate) struct SinkSpec {
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) style: Style,
}

/// Makes connectors that play on one stage.
pub(crate) struct SimWorld {
    pub(crate) stage: Arc<Stage>,
    pub(crate) partitions: Arc<Vec<Partition>>,
    pub(crate) kind: SourceKind,
    pub(crate) pace_ms: u64,
    pub(crate) sinks: Vec<SinkSpec>,
}

impl World for SimWorld {
    fn source(&self) -> Result<Box<dyn Source>> {
        let source = SimSource::new(self.stage.clone(), self.partitions.clone(), self.kind, self.pace_ms);
        Ok(match self.stage.mutant {
            Some(Mutant::EarlyAck) => Box::new(EarlyAck(source)),
            _ => Box::new(source),
        })
    }

    fn decoder(&self) -> Result<Box<dyn Decoder>> {
        Ok(Box::new(HistoryDecoder::new(self.stage.history.clone())))
    }

    fn sinks(&self) -> Result<Vec<(String, Box<dyn Sink>)>> {
        let sinks = self.sinks.iter().map(|spec| {
            let stage = self.stage.clone();
            let sink: Box<dyn Sink> = match spec.layout {
                Layout::History => Box::new(SimSink::<Full>::new(stage, &spec.name, spec.style)),
                Layout::Replica => Box::new(SimSink::<Current>::new(stage, &spec.name, spec.style)),
            };
            (spec.name.clone(), sink)
        });
        Ok(sinks.collect())
    }

    fn store(&self) -> Result<Box<dyn Store>> {
        Ok(Box::new(SimStore::open(self.stage.clone())?))
    }

    fn dead_letters(&self) -> Result<Box<dyn DeadLetters>> {
        Ok(Box::new(SimLetters::new(self.stage.clone())))
    }

    fn clock(&self) -> &dyn Clock {
        &*self.stage
    }
}
