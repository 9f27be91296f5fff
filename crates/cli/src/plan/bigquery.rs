//! What a config's BigQuery sinks mean.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_bigquery::{self as bigquery, BigqueryConfig, Connection, DashboardView, Merge, names};
use millstream_core::evolution::ChangePolicy;

use super::Checker;
use super::sinks::DECLARED;
use super::tables::designs;
use crate::config::{
    self, BigqueryLayout as Layout, Config, CreateMode, DedupeMode, DeleteMode, Delivery, OnTypeChange, Step,
    ViewKind,
};

/// BigQuery's own bounds of a table's staleness.
const FRESHNESS_MAX: Duration = Duration::from_secs(24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Of merges, each of which takes BigQuery seconds.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

impl Checker<'_> {
    pub(super) fn bigquery(
        &mut self,
        index: usize,
        given: &config::BigqueryConfig,
        of: &Config,
        (pipeline, name): (&str, &str),
    ) -> BigqueryConfig {
        let mode = of.dedupe.mode;
        let at = |key: &str| [Step::from("sinks"), Step::from(index), Step::from(key)];
        let layout = match given.layout {
            Layout::Append => bigquery::Layout::Append,
            Layout::Changelog => bigquery::Layout::Changelog,
            Layout::Envelope => bigquery::Layout::Envelope,
            Layout::Rows => bigquery::Layout::Rows,
            Layout::Replica => bigquery::Layout::Replica {
                delete: match given.delete {
                    Some(DeleteMode::Soft) => bigquery::DeleteMode::Soft,
                    _ => bigquery::DeleteMode::Hard,
                },
            },
        };
        self.layout(index, (layout.name(), given.layout == Layout::Replica), given.delete, mode);
        self.layout_of_format(index, layout.name(), of.decode.format);
        let is_rows = given.layout == Layout::Rows;
        if is_rows && given.on_type_change.is_some() {
            self.problem(&at("on_type_change"), DECLARED, "");
        }
        if is_rows
            && given.partition_expiration.is_some()
            && of.tables.values().all(|t| t.partition_by.is_none())
        {
            let help = "set `partition_by` of a table";
            self.problem(&at("partition_expiration"), "no table of plain rows has partitions", help);
        }
        if given.layout == Layout::Envelope && given.table_name.is_some() {
            let help = "all events go to `cdc_events`";
            self.problem(&at("table_name"), "`layout: envelope` has one table, whose name is given", help);
        }
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
            Some(Delivery::Merge) if !is_replica => self.problem(
                &at("delivery"),
                "`delivery: merge` is only for `layout: replica`",
                "histories are written `exactly-once` or `at-least-once`",
            ),
            Some(Delivery::ExactlyOnce | Delivery::AtLeastOnce) if is_replica => self.problem(
                &at("delivery"),
                "a replica is written by `delivery: upsert`, which a repeated row does not change, or by `delivery: merge`",
                "leave `delivery` out; how rows are staged for a merge is `staging: { delivery: … }`",
            ),
            _ => {}
        }
        let merge = self.merge(index, given);
        if given.freshness.is_some() && (!is_replica || merge.is_some()) {
            let help = "a merged replica is as fresh as `apply: { interval: … }` says";
            self.problem(
                &at("freshness"),
                "`freshness` is only for `layout: replica` with `delivery: upsert`",
                help,
            );
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
        let staged = given.staging.as_ref().and_then(|staging| staging.delivery);
        let delivery = match staged.or(given.delivery) {
            Some(Delivery::Load) => bigquery::Delivery::Load(load.unwrap_or_default()),
            Some(Delivery::AtLeastOnce) => bigquery::Delivery::AtLeastOnce,
            _ => bigquery::Delivery::ExactlyOnce,
        };
        let mut config = BigqueryConfig::new(name, &given.project, &given.dataset, layout);
        config.pipeline = pipeline.to_owned();
        config.connection = self.bigquery_connection(index, given);
        config.location.clone_from(&given.location);
        config.merge = merge;
        config.designs = if is_rows { designs(&of.tables) } else { BTreeMap::new() };
        config.views = self.views(index, given);
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

    /// The views that are declared, with their queries.
    fn views(&mut self, index: usize, given: &config::BigqueryConfig) -> Vec<DashboardView> {
        let mut views: Vec<DashboardView> = Vec::new();
        for (nth, view) in given.views.iter().enumerate() {
            let at = |key: &'static str| {
                [
                    Step::from("sinks"),
                    Step::from(index),
                    Step::from("views"),
                    Step::from(nth),
                    Step::from(key),
                ]
            };
            if view.name.is_empty() || names::table_name(&view.name) != view.name {
                self.problem(
                    &at("name"),
                    "BigQuery has no view of such a name",
                    "letters, digits, `_` and `-`",
                );
            }
            if names::is_own_table(&view.name) {
                let text = format!("`{}` is a table of Millstream's own", view.name);
                self.problem(&at("name"), text, "choose another name");
            }
            if views.iter().any(|other| other.name == view.name) {
                self.problem(&at("name"), format!("two views are called `{}`", view.name), "");
            }
            let sql = match (&view.sql, &view.file) {
                (Some(sql), None) => sql.clone(),
                (None, Some(file)) => match std::fs::read_to_string(self.base.join(file)) {
                    Ok(sql) => sql,
                    Err(e) => {
                        self.problem(&at("file"), format!("cannot read this query: {e}"), "");
                        continue;
                    }
                },
                _ => {
                    let help = "`sql: SELECT …`, or `file: orders_per_day.sql`";
                    self.problem(&at("sql"), "a view has its query in `sql` or in `file`", help);
                    continue;
                }
            };
            let kind = match (view.kind, &view.schedule) {
                (ViewKind::ScheduledQuery, Some(schedule)) => {
                    bigquery::ViewKind::Scheduled { schedule: schedule.clone() }
                }
                (ViewKind::ScheduledQuery, None) => {
                    let help = "for example `schedule: every 24 hours`";
                    self.problem(&at("schedule"), "a scheduled query needs a `schedule`", help);
                    continue;
                }
                (_, Some(_)) => {
                    self.problem(&at("schedule"), "`schedule` is only for `kind: scheduled-query`", "");
                    continue;
                }
                (ViewKind::View, None) => bigquery::ViewKind::View,
                (ViewKind::MaterializedView, None) => bigquery::ViewKind::Materialized,
            };
            views.push(DashboardView { name: view.name.clone(), kind, sql });
        }
        views
    }

    /// How a replica is merged; `None` if it is not.
    fn merge(&mut self, index: usize, given: &config::BigqueryConfig) -> Option<Merge> {
        let at = |key: &str| [Step::from("sinks"), Step::from(index), Step::from(key)];
        if given.delivery != Some(Delivery::Merge) {
            for (key, is_given) in [("staging", given.staging.is_some()), ("apply", given.apply.is_some())] {
                if is_given {
                    self.problem(&at(key), format!("`{key}` is only for `delivery: merge`"), "");
                }
            }
            return None;
        }
        let staging = given.staging.clone().unwrap_or_default();
        let within = |key: &'static str| {
            [Step::from("sinks"), Step::from(index), Step::from("staging"), Step::from(key)]
        };
        let dataset = staging.dataset.unwrap_or_else(|| given.dataset.clone());
        if let Some(problem) = names::dataset_problem(&dataset) {
            self.problem(&within("dataset"), format!("this names no dataset: {problem}"), "");
        }
        if let Some(Delivery::Upsert | Delivery::Merge | Delivery::Load) = staging.delivery {
            let help = "rows are staged `exactly-once` or `at-least-once`";
            self.problem(&within("delivery"), "no such delivery is for staging", help);
        }
        let kept = staging.keep.map_or(DAY, |span| span.0);
        if kept < DAY || !kept.as_secs().is_multiple_of(DAY.as_secs()) {
            let help = "partitions of a day expire: `1d`, `7d`";
            self.problem(&within("keep"), "`keep` is a number of whole days", help);
        }
        let interval =
            given.apply.as_ref().and_then(|apply| apply.interval).map_or(Duration::from_secs(60), |i| i.0);
        if interval < INTERVAL_MIN {
            let place = [Step::from("sinks"), Step::from(index), Step::from("apply"), Step::from("interval")];
            self.problem(
                &place,
                "`interval` is at least 1s",
                "each merge is a query of every table that changed",
            );
        }
        Some(Merge { dataset, interval, kept })
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
