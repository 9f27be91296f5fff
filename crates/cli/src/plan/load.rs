//! What `delivery: load` of a BigQuery sink means, and plans that BigQuery's quotas would end.

use std::time::Duration;

use millstream_bigquery::{FILES_MAX, LoadOptions};

use super::Checker;
use crate::config::{self, BigqueryLayout, Delivery, Step};

/// Load jobs of one table in a day.
const LOADS_A_DAY: u64 = 1_500;
const DAY: Duration = Duration::from_secs(86_400);
/// The default: 288 loads a day.
const TRIGGERING_FREQUENCY: Duration = Duration::from_secs(300);

impl Checker<'_> {
    /// How a sink's files are written and loaded; `None` if it has none.
    pub(super) fn load(&mut self, index: usize, given: &config::BigqueryConfig) -> Option<LoadOptions> {
        let sink = |key: &'static str| vec![Step::from("sinks"), Step::from(index), Step::from(key)];
        let at = |key: &'static str| [sink("load"), vec![Step::from(key)]].concat();
        if given.delivery != Some(Delivery::Load) {
            if given.load.is_some() {
                self.problem(
                    &sink("load"),
                    "`load` is only for `delivery: load`",
                    "set that, or leave `load` out",
                );
            }
            if given.endpoints.as_ref().is_some_and(|endpoints| endpoints.gcs.is_some()) {
                let place = [sink("endpoints"), vec![Step::from("gcs")]].concat();
                self.problem(
                    &place,
                    "`endpoints.gcs` is only for `delivery: load`",
                    "nothing else uses Cloud Storage",
                );
            }
            return None;
        }
        if !matches!(given.layout, BigqueryLayout::Append | BigqueryLayout::Changelog | BigqueryLayout::Rows)
        {
            self.problem(
                &sink("delivery"),
                "`delivery: load` is only for `layout: append`, `changelog` and `rows`",
                "load jobs add rows and never replace them; a replica is written by `delivery: upsert` or `merge`",
            );
        }
        let Some(load) = &given.load else {
            let help = "for example: load: { bucket: acme-loads, triggering_frequency: 5m }";
            self.problem(&sink("delivery"), "`delivery: load` needs `load` with a bucket", help);
            return None;
        };
        if let Some(problem) = bucket_problem(&load.bucket) {
            self.problem(&at("bucket"), format!("this names no bucket: {problem}"), "");
        }
        let prefix = load.prefix.clone().unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        if !prefix.chars().all(plain) || prefix.split('/').any(|part| part == "." || part == "..") {
            let help = "parts of letters, digits, `_`, `-` and `.`, with `/` between them";
            self.problem(&at("prefix"), "this is no prefix of names in a bucket", help);
        }
        let shards = load.shards.unwrap_or(1);
        if !(1..=64).contains(&shards) {
            self.problem(
                &at("shards"),
                "`shards` is 1 to 64",
                "how many files of a table are written side by side",
            );
        }
        let every =
            self.positive(&at("triggering_frequency"), load.triggering_frequency, TRIGGERING_FREQUENCY);
        // An emulator has no quotas.
        let is_emulator = self.bigquery_endpoint(given).is_some_and(|rest| !rest.starts_with("https://"));
        let loads = DAY.as_millis().div_ceil(every.as_millis().max(1)) as u64;
        if loads > LOADS_A_DAY && !is_emulator {
            self.problem(
                &at("triggering_frequency"),
                format!("this makes {loads} load jobs a day for each table, and BigQuery runs {LOADS_A_DAY}"),
                "58s or more; for fresher rows use `delivery: exactly-once`",
            );
        }
        let interval = self.loaded.config.checkpoint.interval.map_or(Duration::from_secs(1), |span| span.0);
        let files = every.as_millis() / interval.as_millis().max(1) * u128::from(shards);
        if files > FILES_MAX as u128 {
            self.problem(
                &at("triggering_frequency"),
                format!(
                    "between two loads a table may get {files} files, one for each checkpoint and shard, and a load job takes {FILES_MAX}"
                ),
                "load more often, or set a longer `checkpoint: interval`",
            );
        }
        Some(LoadOptions {
            bucket: load.bucket.clone(),
            prefix,
            triggering_frequency: every,
            shards: shards as usize,
        })
    }
}

/// Why a text is no bucket's name.
fn bucket_problem(name: &str) -> Option<&'static str> {
    let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if name.starts_with("gs://") {
        Some("it is given without `gs://`, and folders by `prefix`")
    } else if !(3..=222).contains(&name.len()) {
        Some("it has 3 to 63 characters, or with dots up to 222")
    } else if !name.chars().all(fine) {
        Some("it has lower-case letters, digits, `-`, `_` and `.`")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;

    /// What is said of a config whose sink has these keys, or how often it loads.
    fn said(keys: &str, more: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.yaml");
        let text = format!(
            "source: {{ type: files, path: a }}\nsinks:\n  - {{ type: bigquery, project: acme, dataset: d, {keys} }}\n{more}"
        );
        std::fs::write(&file, text).unwrap();
        match Plan::read(&file, &|_| None) {
            Ok(_) => "fine".to_owned(),
            Err(problems) => problems.render(false),
        }
    }

    #[test]
    fn plans_that_quotas_would_end_are_refused() {
        let load = |more: &str| said(&format!("delivery: load, load: {{ bucket: loads, {more} }}"), "");
        assert_eq!(load("triggering_frequency: 58s, shards: 4"), "fine");
        let often = load("triggering_frequency: 57s");
        assert!(often.contains("1516 load jobs a day for each table, and BigQuery runs 1500"), "{often}");
        let many = load("triggering_frequency: 1h, shards: 3");
        assert!(many.contains("may get 10800 files") && many.contains("`checkpoint: interval`"), "{many}");
        let keys = "delivery: load, load: { bucket: loads, triggering_frequency: 1h, shards: 3 }";
        assert_eq!(said(keys, "checkpoint: { interval: 10s }\n"), "fine");
        // An emulator has no quotas.
        let endpoints = "endpoints: { rest: \"http://h:1\", grpc: \"http://h:2\", gcs: \"http://h:3\" }";
        let keys =
            format!("{endpoints}, delivery: load, load: {{ bucket: loads, triggering_frequency: 1s }}");
        assert_eq!(said(&keys, ""), "fine");
    }

    #[test]
    fn what_belongs_together_is_asked_for() {
        for (keys, told) in [
            ("delivery: load", "`delivery: load` needs `load` with a bucket"),
            ("load: { bucket: loads }", "`load` is only for `delivery: load`"),
            (
                "layout: replica, delivery: load, load: { bucket: loads }",
                "only for `layout: append`, `changelog` and `rows`",
            ),
            ("delivery: load, load: { bucket: \"gs://loads\" }", "without `gs://`"),
            ("delivery: load, load: { bucket: Loads }", "this names no bucket"),
            ("delivery: load, load: { bucket: loads, prefix: \"a*\" }", "this is no prefix"),
            ("delivery: load, load: { bucket: loads, shards: 0 }", "`shards` is 1 to 64"),
            (
                "delivery: load, load: { bucket: loads }, endpoints: { rest: \"http://h:1\", grpc: \"http://h:2\" }",
                "only one of BigQuery and Cloud Storage is an emulator's",
            ),
            (
                "endpoints: { rest: \"http://h:1\", grpc: \"http://h:2\", gcs: \"http://h:3\" }",
                "`endpoints.gcs` is only for `delivery: load`",
            ),
        ] {
            let said = said(keys, "");
            assert!(said.contains(told), "{keys}: {said}");
        }
    }
}
