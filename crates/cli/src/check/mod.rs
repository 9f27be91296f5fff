//! What `check` finds out: a sample of the source is decoded and thrown away, and what it shows is held against the plan.
//!
//! Nothing is kept and nothing is acknowledged; of subscriptions nothing is taken and to topics nothing is published, they are looked at. Folders are tested by making and removing an empty file.

mod advice;
mod bigquery;
mod bucket;
mod folders;
mod pubsub;
mod sample;
mod topics;

pub(crate) use sample::{Sample, TableSample};

use millstream_core::Result;
use serde::Serialize;

use crate::plan::{Plan, SourcePlan};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// A run would fail.
    Error,
    /// Something would be lost, wrong, or less than it could be.
    Warning,
    /// Good to know.
    Note,
}

impl Level {
    /// Its name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "note",
        }
    }
}

/// Something that `check` found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// Stable snake_case code.
    pub(crate) code: &'static str,
    /// Table (`schema.table`), where it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) table: Option<String>,
    /// What was found; the same for all tables.
    pub(crate) text: String,
    /// What of the table it concerns.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
    /// What to do about it; for what the source loses, the Debezium property that prevents it.
    pub(crate) remedy: String,
}

/// All that `check` found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) pipeline: String,
    pub(crate) sample: Sample,
    pub(crate) findings: Vec<Finding>,
}

impl Report {
    /// Looks at `records` records of the plan's source.
    pub(crate) async fn of(plan: &Plan, records: usize) -> Result<Self> {
        let mut findings = folders::findings(plan);
        let sample = match &plan.source {
            SourcePlan::Files(_) => Self::sample(plan, records, &mut findings).await,
            SourcePlan::Pubsub(config) => {
                findings.extend(pubsub::findings(config).await);
                Sample::default()
            }
        };
        findings.extend(topics::findings(plan).await);
        findings.extend(bigquery::findings(plan).await);
        findings.sort_by(|a, b| (a.level, a.code, &a.table).cmp(&(b.level, b.code, &b.table)));
        Ok(Self { pipeline: plan.pipeline.clone(), sample, findings })
    }

    async fn sample(plan: &Plan, records: usize, findings: &mut Vec<Finding>) -> Sample {
        match Sample::take(plan, records).await {
            Ok(sample) => {
                findings.extend(advice::findings(plan, &sample));
                sample
            }
            Err(e) => {
                findings.push(Finding {
                    level: Level::Error,
                    code: "unreadable_source",
                    table: None,
                    text: e.to_string(),
                    detail: String::new(),
                    remedy: "correct `source`".to_owned(),
                });
                Sample::default()
            }
        }
    }

    /// Whether a run would fail.
    pub(crate) fn fails(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Level::Error)
    }
}
