//! `check`: would this pipeline run, and what would it lose?

use std::fmt::Write as _;

use super::{Failure, plan, run};
use crate::arguments::Check;
use crate::check::{Report, Sample};
use crate::output::{Table, count, plural, print, print_json};

/// Shows what a look at the config and the first records finds.
pub(crate) fn check(arguments: &Check) -> Result<(), Failure> {
    let plan = plan(&arguments.on.config)?;
    let report = run::runtime(&plan)?.block_on(Report::of(&plan, arguments.records))?;
    if arguments.on.json {
        let value = serde_json::to_value(&report)
            .map_err(|e| Failure::Failed(format!("cannot show the report: {e}")))?;
        print_json(&value);
    } else {
        print(&text(&report));
    }
    if report.fails() {
        return Err(Failure::Usage(format!("{} would not run like this", report.pipeline)));
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let Report { pipeline, sample, findings } = report;
    let mut out = String::new();
    let rest = if sample.complete { "all there is" } else { "there may be more" };
    // Writing into a String does not fail, here and below.
    let _ = writeln!(
        out,
        "{pipeline}: the config is valid; looked at {} ({rest}): {}, {} control, {} dead",
        plural(sample.records, "record"),
        plural(sample.events, "event"),
        count(sample.control.values().sum()),
        count(sample.dead.values().map(|d| d.records).sum()),
    );
    out.push('\n');
    out.push_str(&tables(sample));
    for group in findings
        .chunk_by(|a, b| (a.level, a.code, &a.text, &a.remedy) == (b.level, b.code, &b.text, &b.remedy))
    {
        let [first, ..] = group else { continue };
        let _ = writeln!(out, "{}: {}", first.level.name(), first.text);
        let bare: Vec<&str> =
            group.iter().filter(|f| f.detail.is_empty()).filter_map(|f| f.table.as_deref()).collect();
        if !bare.is_empty() {
            let _ = writeln!(out, "    {}", bare.join(", "));
        }
        for finding in group.iter().filter(|f| !f.detail.is_empty()) {
            let table = finding.table.as_ref().map(|t| format!("{t}: ")).unwrap_or_default();
            let _ = writeln!(out, "    {table}{}", finding.detail);
        }
        let _ = writeln!(out, "    → {}", first.remedy);
    }
    if findings.is_empty() {
        out.push_str("nothing to worry about\n");
    }
    out
}

fn tables(sample: &Sample) -> String {
    let mut table = Table::new(["table", "events", "ops", "key", "columns", "guessed"]);
    for (name, t) in &sample.tables {
        let ops: Vec<String> = t.ops.iter().map(|(op, n)| format!("{op} {n}")).collect();
        let key = if t.key.is_empty() { "(none)".to_owned() } else { t.key.join(", ") };
        let guessed = t.columns.values().filter(|c| c.guessed).count();
        table.row([
            name.clone(),
            count(t.events),
            ops.join(", "),
            key,
            count(t.columns.len() as u64),
            count(guessed as u64),
        ]);
    }
    if table.is_empty() { String::new() } else { table.render(0) + "\n" }
}
