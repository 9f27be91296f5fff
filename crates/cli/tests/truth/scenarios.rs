//! Every file of the corpus, once and in order, into every layout.

use duckdb::Connection;

use crate::comparison::{self, View};
use crate::corpus::{self, Types, Variant};
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
    let mut report = Report::default();
    for view in View::ALL {
        report.add(residuals.check(
            variant,
            view,
            &comparison::differences(connection, view, variant, events),
        ));
    }
    let mut wrong = history::differences(connection, variant, events);
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

fn scenario(name: &str) {
    let residuals = Residuals::read();
    let mut report = Report::default();
    let mut wrong = Vec::new();
    for variant in corpus::variants().into_iter().filter(|v| v.scenario == name) {
        let pipeline = Pipeline::new(&variant, variant.types(), &variant.file());
        match pipeline.run() {
            Ok(summary) => wrong
                .extend(faults(&summary).into_iter().map(|fault| format!("{}: {fault}", variant.label()))),
            Err(failure) => {
                wrong.push(format!("{}: {failure}", variant.label()));
                continue;
            }
        }
        let events = Events::read(&variant.lines(), variant.is_flat(), variant.is_mysql());
        let (found, errors) = judge(&pipeline.open(), &variant, &events, &residuals);
        report.add(found);
        wrong.extend(errors);
    }
    assert!(report.is_empty() && wrong.is_empty(), "{}\n{}", wrong.join("\n"), report.text(name));
}

/// Without any source of types the same rows are there, under the same keys, with nothing refused.
#[test]
fn guessed_types_lose_no_row() {
    let mut wrong = Vec::new();
    for variant in corpus::variants().into_iter().filter(|v| !v.is_wrapped()) {
        let typed = Pipeline::new(&variant, Types::Files, &variant.file());
        let guessed = Pipeline::new(&variant, Types::Guessed, &variant.file());
        for pipeline in [&typed, &guessed] {
            let faults = pipeline.run().map_or_else(|failure| vec![failure], |summary| faults(&summary));
            wrong.extend(faults.into_iter().map(|fault| format!("{}: {fault}", variant.label())));
        }
        let (typed, guessed) = (typed.open(), guessed.open());
        for (table, _) in variant.final_rows() {
            for view in View::ALL {
                let rows = |connection| comparison::current(connection, view, &table).map(|c| c.rows.len());
                if rows(&typed) != rows(&guessed) {
                    let line = format!(
                        "{} {} {table}: {:?} rows, {:?} where types are guessed",
                        variant.label(),
                        view.name(),
                        rows(&typed),
                        rows(&guessed)
                    );
                    wrong.push(line);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A bare envelope with a schema file gives exactly the values of the one with its embedded schema.
#[test]
fn schema_files_stand_in_for_embedded_schemas() {
    let all = corpus::variants();
    let mut wrong = Vec::new();
    for wrapped in all.iter().filter(|v| v.is_wrapped()) {
        let bare_name = wrapped.name.replace("schema", "plain");
        let Some(bare) = all.iter().find(|v| v.scenario == wrapped.scenario && v.name == bare_name) else {
            continue;
        };
        let pipelines = [bare, wrapped].map(|v| Pipeline::new(v, v.types(), &v.file()));
        wrong.extend(pipelines.iter().filter_map(|p| p.run().err()));
        let [bare_file, wrapped_file] = pipelines.each_ref().map(Pipeline::open);
        for (table, _) in wrapped.final_rows() {
            let rows = |connection| {
                let rows =
                    comparison::current(connection, View::Soft, &table).map(|c| c.rows).unwrap_or_default();
                let mut texts: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
                texts.sort();
                texts
            };
            for (a, b) in rows(&bare_file).iter().zip(&rows(&wrapped_file)).filter(|(a, b)| a != b) {
                wrong.push(format!("{} {table}:\n  bare    {a}\n  wrapped {b}", wrapped.label()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
