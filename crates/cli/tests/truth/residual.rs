//! The checked-in list of what the events themselves lost, `corpus/residuals.tsv`.
//!
//! An entry names differences; each cause is checked against the raw events, so that no fault of Millstream's can be
//! entered under one by mistake. A difference that no entry names fails the test, and so does an entry that names none.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::cause;
use crate::comparison::{Difference, View};
use crate::corpus::{self, Variant};
use crate::declared;

/// One line of the list: the product of its variants, views and keys.
#[derive(Debug, Clone)]
struct Entry {
    line: usize,
    scenario: String,
    variants: Vec<String>,
    views: Vec<String>,
    table: String,
    columns: Vec<String>,
    /// Keys in final rows; `*`: at least one key, in each variant and view.
    keys: Vec<String>,
    cause: String,
}

/// The list.
#[derive(Debug)]
pub(crate) struct Residuals(Vec<Entry>);

/// What a difference or an entry is about, without its cause.
type Place = (String, String, String, String);

impl Residuals {
    /// Reads the checked-in list.
    pub(crate) fn read() -> Self {
        let file = corpus::folder().join("residuals.tsv");
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let entry = |(number, line): (usize, &str)| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [scenario, variants, views, table, column, keys, cause] = fields[..] else {
                panic!("residuals.tsv:{}: expected 7 fields, found {}", number + 1, fields.len())
            };
            let list = |text: &str| text.split(',').map(str::to_owned).collect();
            Entry {
                line: number + 1,
                scenario: scenario.to_owned(),
                variants: list(variants),
                views: if views == "*" {
                    View::ALL.map(|v| v.name().to_owned()).to_vec()
                } else {
                    list(views)
                },
                table: table.to_owned(),
                columns: list(column),
                keys: list(keys),
                cause: cause.to_owned(),
            }
        };
        let lines = text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#'));
        Self(lines.map(entry).collect())
    }

    /// Whether the list says nothing about which rows a table has.
    pub(crate) fn is_open(&self, variant: &Variant, table: &str) -> bool {
        let open = |e: &Entry| e.columns.contains(&"*".to_owned()) && e.keys.contains(&"*".to_owned());
        self.0.iter().any(|e| e.scenario == variant.scenario && e.table == table && open(e))
    }

    /// Whether the list expects a column to differ between two variants of a scenario.
    pub(crate) fn sets_apart(&self, a: &Variant, b: &Variant, table: &str, column: &str) -> bool {
        let names = |e: &Entry, v: &Variant| e.variants.iter().any(|name| name == v.name || name == "*");
        let of_column = |e: &&Entry| {
            e.scenario == a.scenario && e.table == table && e.columns.iter().any(|c| c == column)
        };
        self.0.iter().filter(of_column).any(|e| names(e, a) != names(e, b) || e.cause.starts_with("garbled"))
    }

    /// Compares what was found in one view of one variant with the list; a report if they disagree.
    pub(crate) fn check(&self, variant: &Variant, view: View, found: &[Difference]) -> Report {
        let entries: Vec<&Entry> = self
            .0
            .iter()
            .filter(|e| e.scenario == variant.scenario)
            .filter(|e| e.variants.iter().any(|v| v == variant.name || v == "*"))
            .filter(|e| e.views.iter().any(|v| v == view.name()))
            .collect();
        let mut report = Report::default();
        let mut used: BTreeSet<(usize, String, String)> = BTreeSet::new();
        for difference in found {
            let fits = |e: &&&Entry| e.table == difference.table && e.columns.contains(&difference.column);
            let named = |e: &&Entry| e.keys.iter().any(|k| *k == difference.key || k == "*");
            let Some(entry) = entries.iter().filter(fits).find(|e| named(e)) else {
                report.unlisted.push((variant.name.to_owned(), view, difference.clone()));
                continue;
            };
            let key = if entry.keys.contains(&"*".to_owned()) { "*" } else { &difference.key };
            used.insert((entry.line, difference.column.clone(), key.to_owned()));
            let code = entry.cause.split(':').next().unwrap_or_default();
            let declared = declared::table(variant.scenario, &difference.table);
            if let Err(reason) = cause::verify(code, difference, &declared, variant) {
                report.untrue.push(format!(
                    "residuals.tsv:{}: {} {}: {reason}",
                    entry.line,
                    view.name(),
                    describe(difference)
                ));
            }
        }
        for entry in entries {
            let cases =
                entry.columns.iter().flat_map(|column| entry.keys.iter().map(move |key| (column, key)));
            for (column, key) in
                cases.filter(|(c, k)| !used.contains(&(entry.line, (*c).clone(), (*k).clone())))
            {
                report.vanished.push(format!(
                    "residuals.tsv:{}: {} {}: {} {column} of key {key} is now right",
                    entry.line,
                    variant.label(),
                    view.name(),
                    entry.table
                ));
            }
        }
        report
    }
}

/// How found differences and the list disagree.
#[derive(Debug, Default)]
pub(crate) struct Report {
    unlisted: Vec<(String, View, Difference)>,
    vanished: Vec<String>,
    untrue: Vec<String>,
}

impl Report {
    /// Adds what `other` found.
    pub(crate) fn add(&mut self, other: Report) {
        self.unlisted.extend(other.unlisted);
        self.vanished.extend(other.vanished);
        self.untrue.extend(other.untrue);
    }

    /// Whether there is nothing to report.
    pub(crate) fn is_empty(&self) -> bool {
        self.unlisted.is_empty() && self.vanished.is_empty() && self.untrue.is_empty()
    }

    /// The report of one scenario, with lines to paste into the list.
    pub(crate) fn text(&self, scenario: &str) -> String {
        let mut out = String::new();
        for line in self.untrue.iter().chain(&self.vanished) {
            out.push_str(line);
            out.push('\n');
        }
        // Equal lines of several keys, views and variants become one.
        let mut by_case: BTreeMap<(Place, String), (BTreeSet<String>, &Difference)> = BTreeMap::new();
        for (variant, view, difference) in &self.unlisted {
            let code = cause::guess(difference);
            let place = (
                variant.clone(),
                view.name().to_owned(),
                difference.table.clone(),
                difference.column.clone(),
            );
            by_case
                .entry((place, code))
                .or_insert_with(|| (BTreeSet::new(), difference))
                .0
                .insert(difference.key.clone());
        }
        let mut by_view: BTreeMap<(String, String, String, String, String), (BTreeSet<String>, &Difference)> =
            BTreeMap::new();
        for (((variant, view, table, column), code), (keys, example)) in by_case {
            let keys = keys.into_iter().collect::<Vec<_>>().join(",");
            by_view
                .entry((variant, table, column, keys, code))
                .or_insert_with(|| (BTreeSet::new(), example))
                .0
                .insert(view);
        }
        let mut by_variant: BTreeMap<(String, String, String, String, String), (Vec<String>, &Difference)> =
            BTreeMap::new();
        for ((variant, table, column, keys, code), (views, example)) in by_view {
            let views = if views.len() == 3 {
                "*".to_owned()
            } else {
                views.into_iter().collect::<Vec<_>>().join(",")
            };
            by_variant
                .entry((table, column, keys, code, views))
                .or_insert_with(|| (Vec::new(), example))
                .0
                .push(variant);
        }
        for ((table, column, keys, code, views), (variants, example)) in by_variant {
            out.push_str(&format!("# {}\n", describe(example)));
            out.push_str(&format!(
                "{scenario}\t{}\t{views}\t{table}\t{column}\t{keys}\t{code}\n",
                variants.join(",")
            ));
        }
        out
    }
}

fn describe(d: &Difference) -> String {
    let raw = d.raw.as_ref().map_or_else(|| "nothing".to_owned(), Json::to_string);
    let short = |text: &str| text.chars().take(160).collect::<String>();
    format!(
        "{} {} of {}: expected {}, got {}, last event has {}",
        d.table,
        d.column,
        d.key,
        short(&d.texts.0),
        short(&d.texts.1),
        short(&raw)
    )
}
