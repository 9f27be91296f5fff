//! Every file of the corpus, once and in order, into every layout.

use std::collections::{BTreeMap, BTreeSet};

use duckdb::Connection;

use crate::canonical;
use crate::cell::Cell;
use crate::comparison::{self, View};
use crate::corpus::{self, Types, Variant};
use crate::declared;
use crate::events::Events;
use crate::history;
use crate::pipeline::{Pipeline, Summary};
use crate::residual::{Report, Residuals};

/// Compares what a pipeline wrote with the truth: final rows in each view, and each distinct event once in the history.
/// Gives what disagrees with the list of residuals, and everything else that is wrong.
pub(crate) fn judge(
    connection: &Connection,
    variant: &Variant,
    events: &Events,
    residuals: &Residuals,
) -> (Report, Vec<String>) {
    judge_in(&View::ALL, connection, variant, events, residuals, |_| true)
}

/// The same of some views, and of those differences that count.
pub(crate) fn judge_in(
    views: &[View],
    connection: &Connection,
    variant: &Variant,
    events: &Events,
    residuals: &Residuals,
    counts: impl Fn(&comparison::Difference) -> bool,
) -> (Report, Vec<String>) {
    let mut report = Report::default();
    for &view in views {
        let mut found = comparison::differences(connection, view, variant, events);
        found.retain(|difference| counts(difference));
        report.add(residuals.check(variant, view, &found));
    }
    let mut wrong = history::differences(connection, variant, events);
    wrong.extend(history::changelog_differences(connection));
    wrong.iter_mut().for_each(|line| *line = format!("{}: {line}", variant.label()));
    (report, wrong)
}

/// What no run over good events may show: dead letters, and records or events that the counters don't account for.
pub(crate) fn faults(summary: &Summary) -> Vec<String> {
    let dead = summary.0["counters"]["dead"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(code, n)| format!("{n} dead letters: {code}"));
    let residues =
        summary.0["residues"].as_array().into_iter().flatten().map(|r| format!("does not balance: {r}"));
    dead.chain(residues).collect()
}

/// A variant and what a pipeline made of it.
struct Run {
    variant: Variant,
    connection: Connection,
    _pipeline: Pipeline,
}

/// Runs a pipeline over a variant; what it said goes to `wrong`.
fn run(variant: Variant, types: Types, wrong: &mut Vec<String>) -> Option<Run> {
    let pipeline = Pipeline::new(&variant, types, &variant.file());
    let label = |text: String| format!("{} ({types:?}): {text}", variant.label());
    match pipeline.run() {
        Ok(summary) => wrong.extend(faults(&summary).into_iter().map(label)),
        Err(failure) => {
            wrong.push(label(failure));
            return None;
        }
    }
    Some(Run { variant, connection: pipeline.open(), _pipeline: pipeline })
}

fn scenario(name: &str) {
    let residuals = Residuals::read();
    let mut report = Report::default();
    let mut wrong = Vec::new();
    let variants = corpus::variants().into_iter().filter(|v| v.scenario == name);
    let runs: Vec<Run> = variants.filter_map(|variant| run(variant, variant.types(), &mut wrong)).collect();
    for Run { variant, connection, .. } in &runs {
        let events = Events::read(&variant.lines(), variant.is_flat(), variant.is_mysql());
        let (found, errors) = judge(connection, variant, &events, &residuals);
        report.add(found);
        wrong.extend(errors);
    }
    for typed in runs.iter().filter(|r| !r.variant.is_wrapped()) {
        let guessed = run(typed.variant, Types::Guessed, &mut wrong);
        wrong.extend(guessed.iter().flat_map(|guessed| lost_rows(typed, guessed, &residuals)));
    }
    for wrapped in runs.iter().filter(|r| r.variant.is_wrapped()) {
        let bare_name = wrapped.variant.name.replace("schema", "plain");
        let Some(bare) = runs.iter().find(|r| r.variant.name == bare_name) else { continue };
        // Where the schema says only "string" or "double", a file helps it as well.
        let refined = wrapped.variant.decode.iter().any(|(key, _)| *key == "decimal_handling_mode");
        let again = refined.then(|| run(wrapped.variant, Types::Files, &mut wrong)).flatten();
        wrong.extend(other_values(bare, again.as_ref().unwrap_or(wrapped), &residuals));
    }
    assert!(report.is_empty() && wrong.is_empty(), "{}\n{}", wrong.join("\n"), report.text(name));
}

/// Without any source of types the same number of rows is there.
fn lost_rows(typed: &Run, guessed: &Run, residuals: &Residuals) -> Vec<String> {
    let mut wrong = Vec::new();
    let tables = typed.variant.final_rows().into_iter().map(|(table, _)| table);
    for table in tables.filter(|table| !residuals.is_open(&typed.variant, table)) {
        for view in View::ALL {
            let rows = |run: &Run| comparison::current(&run.connection, view, &table).map(|c| c.rows.len());
            let (typed_rows, guessed_rows) = (rows(typed), rows(guessed));
            if typed_rows != guessed_rows {
                let label = typed.variant.label();
                let view = view.name();
                wrong.push(format!(
                    "{label} {view} {table}: {typed_rows:?} rows, {guessed_rows:?} where types are guessed"
                ));
            }
        }
    }
    wrong
}

/// Where a bare envelope with a schema file does not give exactly the values of the one with its embedded schema.
fn other_values(bare: &Run, wrapped: &Run, residuals: &Residuals) -> Vec<String> {
    let mut wrong = Vec::new();
    let tables = wrapped.variant.final_rows().into_iter().map(|(table, _)| table);
    for table in tables.filter(|table| !residuals.is_open(&wrapped.variant, table)) {
        let declared = declared::table(wrapped.variant.scenario, &table);
        let key = wrapped.variant.key(&table);
        let rows = |run: &Run| -> BTreeMap<String, BTreeMap<String, Cell>> {
            let rows =
                comparison::current(&run.connection, View::Soft, &table).map(|c| c.rows).unwrap_or_default();
            let key_of =
                |row: &BTreeMap<String, Cell>| key.iter().map(|c| format!("{:?} ", row.get(c))).collect();
            rows.into_iter().map(|row| (key_of(&row), row)).collect()
        };
        let (bare_rows, wrapped_rows) = (rows(bare), rows(wrapped));
        let keys: BTreeSet<&String> = bare_rows.keys().chain(wrapped_rows.keys()).collect();
        for key in keys {
            let (a, b) = (bare_rows.get(key), wrapped_rows.get(key));
            let columns: BTreeSet<&String> = a.into_iter().chain(b).flat_map(BTreeMap::keys).collect();
            for column in columns {
                let cell = |row: Option<&BTreeMap<String, Cell>>| {
                    row.and_then(|r| r.get(column)).cloned().unwrap_or(Cell::Null)
                };
                let excused = || residuals.sets_apart(&bare.variant, &wrapped.variant, &table, column);
                if !same(&cell(a), &cell(b), declared.ty(column)) && !excused() {
                    let label = wrapped.variant.label();
                    wrong.push(format!(
                        "{label} {table} {column} of {key}: bare {:?}, wrapped {:?}",
                        cell(a),
                        cell(b)
                    ));
                }
            }
        }
    }
    wrong
}

/// Whether two cells are the same in type and value. MySQL's times go beyond a day: a schema file calls them texts, an
/// embedded schema begins with times.
fn same(a: &Cell, b: &Cell, ty: &str) -> bool {
    let time = ty.starts_with("time") && !ty.starts_with("timestamp");
    format!("{a:?}") == format!("{b:?}") || time && canonical::got(ty, true, a) == canonical::got(ty, true, b)
}

macro_rules! scenarios {
    ($($name:ident)*) => {
        $(#[test] fn $name() { scenario(stringify!($name)); })*

        #[test]
        fn every_scenario_has_a_test() {
            let tested = [$(stringify!($name)),*];
            assert!(corpus::variants().iter().all(|v| tested.contains(&v.scenario)));
        }
    };
}

scenarios! {
    shop unwrap all_types special_values special_numeric schema_evolution toast no_pk names restart bench mysql
    incremental incremental_again incremental_busy incremental_readonly incremental_restart
    adhoc_blocking adhoc_blocking_file inflight inflight_early inflight_tie inflight_slot inflight_always
    mysql_incremental mysql_adhoc_blocking
}
