//! `explain`: everything that is known of one key.

use std::fmt::Write as _;

use millstream_core::Store;
use millstream_state::LocalStore;
use serde_json::Value;

use super::{Failure, plan, run};
use crate::arguments::Explain;
use crate::control::{self, Request};
use crate::explain::{Checkpointed, Explanation, Rule, swept};
use crate::output::{Table, print, print_json};

/// Explains and prints.
pub(crate) fn command(arguments: &Explain) -> Result<(), Failure> {
    let plan = plan(&arguments.on.config)?;
    let directory = &plan.checkpoint.directory;
    let request = Request::Explain { table: arguments.table.clone(), key: arguments.key.clone() };
    let explanation: Explanation = match control::ask(directory, &request)? {
        Some(answer) => serde_json::from_value(answer)
            .map_err(|e| Failure::Failed(format!("the running pipeline is of another version: {e}")))?,
        None => {
            let checkpoint = if LocalStore::exists(directory) {
                let mut store = LocalStore::open(directory, millstream_state::Options::default())?;
                let last = run::runtime(&plan)?.block_on(store.latest())?;
                last.map(|last| Checkpointed { view: store.view(), counters: last.counters })
            } else {
                None
            };
            Explanation::of(&plan, &arguments.table, &arguments.key, checkpoint.as_ref())?
        }
    };
    if arguments.on.json {
        let value = serde_json::to_value(&explanation)
            .map_err(|e| Failure::Failed(format!("cannot show it: {e}")))?;
        print_json(&value);
    } else {
        print(&text(&explanation));
    }
    Ok(())
}

fn text(e: &Explanation) -> String {
    let mut out = String::new();
    let key: Vec<String> =
        e.key.iter().map(|(column, value)| format!("{column} = {}", plain(value))).collect();
    // Writing into a String does not fail, here and below.
    let _ = writeln!(out, "{} where {}\n", e.table, key.join(" and "));
    for history in &e.histories {
        let _ = writeln!(
            out,
            "history {} (sink {}): {} events",
            history.table,
            history.sink,
            history.events.len()
        );
        for event in &history.events {
            let _ = writeln!(out, "  {}  {}  ingested {}", event.order, event.op, event.ingested_at);
            let _ = writeln!(out, "      {}", Rule::text(&event.rule));
            if !event.unchanged.is_empty() {
                let _ = writeln!(
                    out,
                    "      came without {} (unchanged large values)",
                    event.unchanged.join(", ")
                );
            }
            let _ = writeln!(out, "      {}", event.row);
        }
        out.push('\n');
    }
    for replica in &e.replicas {
        let row = replica.row.as_ref().map_or_else(|| "no row".to_owned(), Value::to_string);
        let _ = writeln!(out, "replica {} (sink {}): {row}\n", replica.table, replica.sink);
    }
    match &e.state {
        Some(state) => state_text(state, &mut out),
        None => out.push_str("state: this key was never seen, or no state is kept\n"),
    }
    if let Some(truncated) = &e.truncated {
        let _ = match swept(truncated) {
            Some(incarnation) => {
                writeln!(out, "  the table was swept of what was before incarnation {incarnation}")
            }
            None => writeln!(out, "  the table was truncated at {truncated}"),
        };
    }
    if let Some(counts) = &e.table_counts {
        let _ = writeln!(
            out,
            "  in the whole table: {} events, {} duplicates dropped, {} late, {} untold, {} adjusted",
            counts["events"], counts["duplicates"], counts["late"], counts["untold"], counts["adjusted"]
        );
    }
    let _ = writeln!(out, "\ndead letters that name it: {}", e.dead_letters.len());
    let mut table = Table::new(["id", "attempt", "stage", "cause", "text"]);
    for letter in &e.dead_letters {
        table.row(["id", "attempt", "stage", "code", "cause"].map(|member| plain(&letter[member])));
    }
    if !table.is_empty() {
        out.push_str(&table.render(2));
    }
    out
}

fn state_text(state: &Value, out: &mut String) {
    let flag = |name: &str, text: &str| {
        if state[name] == Value::Bool(true) { format!(", {text}") } else { String::new() }
    };
    let _ = writeln!(
        out,
        "state: newest {}{}{}{}",
        plain(&state["newest"]),
        flag("deleted", "a delete"),
        flag("read", "a snapshot read"),
        flag("adjusted", "its order adjusted against a snapshot read"),
    );
    let forgot = if state["forgot_ids"] == Value::Bool(true) { "; older ones were forgotten" } else { "" };
    let _ = writeln!(out, "  {} event ids are remembered{forgot}", state["known_ids"]);
    for value in state["values"].as_array().into_iter().flatten() {
        let kept = match value["kept_bytes"].as_u64() {
            Some(bytes) => format!("{bytes} bytes kept"),
            None => "no value known".to_owned(),
        };
        let unchanged = if value["unchanged_in_newest"] == Value::Bool(true) {
            ", the newest row came without it"
        } else {
            ""
        };
        let _ = writeln!(out, "  large value {}: {kept}{unchanged}", plain(&value["column"]));
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
