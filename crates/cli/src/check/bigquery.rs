//! Is the dataset of a BigQuery sink there, where the config says, and may it be looked at? Nothing is made.

use std::time::Duration;

use millstream_bigquery::{BigqueryConfig, DatasetId, Rest};

use super::topics::push;
use super::{Finding, Level, bucket};
use crate::plan::{Plan, SinkKind};

/// A check waits no longer for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What is doubtful about the datasets.
pub(super) async fn findings(plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    for sink in &plan.sinks {
        if let SinkKind::Bigquery(config) = &sink.kind {
            let whose = format!("sink {}", sink.name);
            of_dataset(&whose, config, &mut findings).await;
            bucket::findings(&whose, config, &mut findings).await;
        }
    }
    findings
}

async fn of_dataset(whose: &str, config: &BigqueryConfig, out: &mut Vec<Finding>) {
    let id = DatasetId::new(&config.project, &config.dataset);
    let found = match Rest::new(&config.connection) {
        Ok(rest) => rest.with_patience(PATIENCE).dataset(&id).await,
        Err(error) => Err(error),
    };
    match found {
        Err(error) => {
            let remedy = "see the README's section on BigQuery for roles, credentials and endpoints";
            push(out, Level::Error, "not_reached", format!("{whose}: {error}"), remedy);
        }
        Ok(None) if config.create => {
            let location = config.location.as_deref().unwrap_or("US");
            let text = format!(
                "{whose}: the dataset {id} does not exist: a run makes it at its start, in {location}"
            );
            let remedy = "the account needs roles/bigquery.dataEditor on the project for that; a dataset cannot be moved later";
            push(out, Level::Note, "to_be_made", text, remedy);
        }
        Ok(None) => {
            let text = format!("{whose}: the dataset {id} does not exist: a run would end at its start");
            push(out, Level::Error, "missing_resource", text, "make it, or set `create: if-needed`");
        }
        Ok(Some(dataset)) => {
            let other = |wanted: &&str| {
                dataset.location.as_deref().is_some_and(|found| !found.eq_ignore_ascii_case(wanted))
            };
            if let Some(wanted) = config.location.as_deref().filter(other) {
                let found = dataset.location.unwrap_or_default();
                let text = format!("{whose}: the dataset {id} is in {found}, and the config says {wanted}");
                push(out, Level::Error, "wrong_location", text, "mend `location`, or name another dataset");
            }
        }
    }
}
