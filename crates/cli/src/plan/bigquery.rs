//! What a config's BigQuery sinks mean.

use std::time::Duration;

use millstream_bigquery::{self as bigquery, BigqueryConfig, Connection, names};
use millstream_core::evolution::ChangePolicy;

use super::Checker;
use crate::config::{self, CreateMode, DedupeMode, DeleteMode, Delivery, Layout, OnTypeChange, Step};

/// BigQuery's own bounds of a table's staleness.
const FRESHNESS_MAX: Duration = Duration::from_secs(24 * 3600);

impl Checker<'_> {
    pub(super) fn bigquery(
        &mut self,
        index: usize,
        given: &config::BigqueryConfig,
        mode: DedupeMode,
        (pipeline, name): (&str, &str),
    ) -> BigqueryConfig {
        let at = |key: &str| [Step::from("sinks"), Step::from(index), Step::from(key)];
        self.layout(index, given.layout, given.delete, mode);
        if let Some(problem) = names::project_problem(&given.project) {
            self.problem(&at("project"), format!("this names no project: {problem}"), "");
        }
        if let Some(problem) = names::dataset_problem(&given.dataset) {
            self.problem(&at("dataset"), format!("this names no dataset: {problem}"), "");
        }
        let is_replica = given.layout == Layout::Replica;
        match given.delivery {
            Some(Delivery::Upsert) if !is_replica => self.problem(
                &at("delivery"),
                "`delivery: upsert` is only for `layout: replica`",
                "histories are written `exactly-once` or `at-least-once`",
            ),
            Some(Delivery::ExactlyOnce | Delivery::AtLeastOnce) if is_replica => self.problem(
                &at("delivery"),
                "a replica is written by `delivery: upsert`, which a repeated row does not change",
                "leave `delivery` out",
            ),
            _ => {}
        }
        if given.freshness.is_some() && !is_replica {
            self.problem(&at("freshness"), "`freshness` is only for `layout: replica`", "");
        }
        if given.partition_expiration.is_some() && is_replica {
            let help = "a replica has no partitions";
            self.problem(&at("partition_expiration"), "`partition_expiration` is only for histories", help);
        }
        let load = self.load(index, given);
        let freshness = given.freshness.map_or(Duration::from_secs(15 * 60), |span| span.0);
        if freshness > FRESHNESS_MAX {
            self.problem(&at("freshness"), "`freshness` is at most 24h", "");
        }
        let delivery = match given.delivery {
            Some(Delivery::Load) => bigquery::Delivery::Load(load.unwrap_or_default()),
            Some(Delivery::AtLeastOnce) => bigquery::Delivery::AtLeastOnce,
            _ => bigquery::Delivery::ExactlyOnce,
        };
        let layout = match given.layout {
            Layout::Append => bigquery::Layout::Append,
            Layout::Changelog => bigquery::Layout::Changelog,
            Layout::Replica => bigquery::Layout::Replica {
                delete: match given.delete {
                    Some(DeleteMode::Soft) => bigquery::DeleteMode::Soft,
                    _ => bigquery::DeleteMode::Hard,
                },
            },
        };
        let mut config = BigqueryConfig::new(name, &given.project, &given.dataset, layout);
        config.pipeline = pipeline.to_owned();
        config.connection = self.bigquery_connection(index, given);
        config.location.clone_from(&given.location);
        config.create = given.create != Some(CreateMode::Never);
        config.table_name = self.table_name(index, given.table_name.as_ref());
        config.on_type_change = match given.on_type_change {
            None | Some(OnTypeChange::NewColumn) => ChangePolicy::NewColumn,
            Some(OnTypeChange::DeadLetter) => ChangePolicy::DeadLetter,
            Some(OnTypeChange::Stop) => ChangePolicy::Stop,
        };
        config.history_repeats = mode == DedupeMode::Off || delivery == bigquery::Delivery::AtLeastOnce;
        config.delivery = delivery;
        config.freshness = freshness;
        config.partition_expiration = given.partition_expiration.map(|span| span.0);
        config.labels.clone_from(&given.labels);
        config
    }

    /// Where BigQuery's REST API is, if it is not the service's.
    pub(super) fn bigquery_endpoint(&self, given: &config::BigqueryConfig) -> Option<String> {
        let of_config = given.endpoints.as_ref().map(|endpoints| endpoints.rest.clone());
        of_config.or_else(|| self.loaded.bigquery_emulator[0].clone())
    }

    fn bigquery_connection(&mut self, index: usize, given: &config::BigqueryConfig) -> Connection {
        let at = |key: &'static str| {
            [Step::from("sinks"), Step::from(index), Step::from("endpoints"), Step::from(key)]
        };
        let (rest, grpc, gcs) = match &given.endpoints {
            Some(endpoints) => {
                (Some(endpoints.rest.clone()), Some(endpoints.grpc.clone()), endpoints.gcs.clone())
            }
            None => {
                let [rest, grpc] = self.loaded.bigquery_emulator.clone();
                (rest, grpc, None)
            }
        };
        let is_load = given.delivery == Some(Delivery::Load);
        let gcs = gcs.or_else(|| self.loaded.storage_emulator.clone()).filter(|_| is_load);
        for (key, endpoint) in [("rest", &rest), ("grpc", &grpc), ("gcs", &gcs)] {
            if let Some(Err(error)) = endpoint.as_deref().map(Connection::url) {
                self.problem(&at(key), error.to_string(), "");
            }
        }
        if rest.is_some() != grpc.is_some() {
            let help =
                "set both `BIGQUERY_EMULATOR_HOST` and `BIGQUERY_STORAGE_EMULATOR_HOST`, or `endpoints`";
            let place = [Step::from("sinks"), Step::from(index)];
            self.problem(&place, "only one of BigQuery's two interfaces is an emulator's", help);
        }
        let is_plain = |endpoint: &Option<String>| {
            endpoint.as_ref().is_some_and(|endpoint| !endpoint.starts_with("https://"))
        };
        if is_load && is_plain(&rest) != is_plain(&gcs) {
            let help = "set `STORAGE_EMULATOR_HOST` with the two of BigQuery, or `endpoints` with `gcs`";
            let place = [Step::from("sinks"), Step::from(index)];
            self.problem(&place, "only one of BigQuery and Cloud Storage is an emulator's", help);
        }
        let credentials = given.credentials.as_ref().map(|path| self.base.join(path));
        Connection { rest, grpc, gcs, credentials }
    }
}
