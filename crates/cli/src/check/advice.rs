//! From what a sample shows to what to do about it. One function a subject; each knows one way in which data is lost.
//!
//! Which setting of Debezium loses what was seen in events of real connectors.

use std::collections::BTreeMap;

use super::{Finding, Level, Sample, TableSample};
use crate::config::{DecimalMode, Format, Layout, ReplicaIdentity, TimeMode};
use crate::plan::{Plan, SinkKind};

/// Everything that the sample shows to be doubtful.
pub(super) fn findings(plan: &Plan, sample: &Sample) -> Vec<Finding> {
    let mut findings = Vec::new();
    let out = &mut findings;
    nothing_read(sample, out);
    refused(plan, sample, out);
    replaced(sample, out);
    for (name, table) in &sample.tables {
        if plan.decode.format == Format::Json {
            keyless(name, table, out);
            continue;
        }
        keys(plan, name, table, out);
        guessed(name, table, out);
        before_images(plan, name, table, out);
        invented_keys(name, table, out);
        unchanged(name, table, out);
        decimals(plan, name, table, out);
        unsigned(name, table, out);
    }
    unknown_tables(plan, sample, out);
    names(plan, sample, out);
    if plan.decode.format != Format::Json {
        connector(plan, sample, out);
    }
    findings
}

fn push(
    out: &mut Vec<Finding>,
    level: Level,
    code: &'static str,
    table: Option<&str>,
    text: impl Into<String>,
    remedy: impl Into<String>,
) {
    push_of(out, level, code, table, text, "", remedy);
}

fn push_of(
    out: &mut Vec<Finding>,
    level: Level,
    code: &'static str,
    table: Option<&str>,
    text: impl Into<String>,
    detail: impl Into<String>,
    remedy: impl Into<String>,
) {
    let table = table.map(str::to_owned);
    out.push(Finding { level, code, table, text: text.into(), detail: detail.into(), remedy: remedy.into() });
}

fn nothing_read(sample: &Sample, out: &mut Vec<Finding>) {
    if sample.records == 0 {
        let remedy = "check `source.path`: it is relative to the config file, and may be a glob";
        push(out, Level::Warning, "no_records", None, "the source gave no record", remedy);
    }
}

fn refused(plan: &Plan, sample: &Sample, out: &mut Vec<Finding>) {
    for (code, refused) in &sample.dead {
        let text = format!(
            "{} records would be dead letters ({code}); the first is {}: {}",
            refused.records, refused.first, refused.text
        );
        let remedy = match *code {
            "not_an_object" | "missing_field" if plan.decode.format != Format::Json => {
                "check `decode.format` and `source.lines`: `record` is for lines with topic, key, value and headers"
            }
            "missing_key" => "check `tables.….key`",
            "unknown_field" => "declare the column, or set `decode.json.unknown_fields: ignore`",
            "unknown_table" => {
                "declare the table and its columns in `tables`, or leave it out: `decode.exclude`"
            }
            _ => "they are kept with their cause; `millstream dead-letters` shows and replays them",
        };
        push(out, Level::Warning, "dead_letters", None, text, remedy);
    }
}

fn replaced(sample: &Sample, out: &mut Vec<Finding>) {
    for (name, n) in &sample.notices {
        let remedy = match name.split(' ').next().unwrap_or_default() {
            "decimal_scale_unknown" => {
                "give the table a `schema` file, or set `converter.schemas.enable=true`"
            }
            "fraction_cut" => "nothing finer than microseconds is kept",
            "decimal_not_finite" => "`decode.not_finite` chooses what becomes of them",
            code if code.ends_with("_out_of_range") => "`decode.out_of_range` chooses what becomes of them",
            _ => "see the log of a run",
        };
        push(out, Level::Note, "replaced_values", None, format!("{n} × {name}"), remedy);
    }
}

fn keys(plan: &Plan, name: &str, table: &TableSample, out: &mut Vec<Finding>) {
    if table.keyless == 0 {
        return;
    }
    let replica = plan.duckdb_sinks().any(|(_, duckdb)| duckdb.layout == Layout::Replica);
    let text = if replica {
        "events without key: their rows go to histories only; replicas leave them out, and there is no latest view"
    } else {
        "events without key: there will be no latest view, and duplicates are told by file and offset only"
    };
    let remedy = "set `tables.….key` if some columns identify a row, or Debezium's `message.key.columns`; in files use \
                  `lines: record`, where the key travels beside the value";
    let detail = format!("{} of {}", table.keyless, table.events);
    push_of(out, Level::Warning, "no_key", Some(name), text, detail, remedy);
}

/// Plain rows are told by their key, or by the message.
fn keyless(name: &str, table: &TableSample, out: &mut Vec<Finding>) {
    if table.keyless > 0 {
        let text =
            "rows are told by the message that they came with: one that is published twice comes twice";
        let remedy = "set `tables.….key` if some columns tell a row from all others, such as an event's id";
        push(out, Level::Note, "no_key", Some(name), text, remedy);
    }
}

fn guessed(name: &str, table: &TableSample, out: &mut Vec<Finding>) {
    let guessed: Vec<String> = table
        .columns
        .iter()
        .filter(|(_, c)| c.guessed)
        .map(|(column, c)| format!("{column} {}", c.ty))
        .collect();
    if !guessed.is_empty() {
        let text = "types of columns are guessed from their values: a decimal in base64, or a date as a number, stays what it looks like";
        let remedy = "set `tables.….schema` to a schema file, or Debezium's `converter.schemas.enable=true`";
        push_of(out, Level::Warning, "guessed_types", Some(name), text, guessed.join(", "), remedy);
    }
}

fn before_images(plan: &Plan, name: &str, table: &TableSample, out: &mut Vec<Finding>) {
    let declared_full = plan.tables.get(name).and_then(|t| t.replica_identity) == Some(ReplicaIdentity::Full);
    if table.mysql || table.updates_with_before + table.updates_without_before == 0 {
        return;
    }
    if declared_full && table.updates_without_before > 0 {
        let text = "declared `replica_identity: full`, but updates came without their row before";
        let remedy = "remove the setting, or run `ALTER TABLE … REPLICA IDENTITY FULL` in the database";
        push(out, Level::Warning, "not_full_identity", Some(name), text, remedy);
    } else if !declared_full && table.updates_without_before == 0 {
        let text = "updates come with their row before: REPLICA IDENTITY FULL, it seems, but not declared";
        let remedy = "set `tables.….replica_identity: full`: deletes then keep all columns, and large values need no memory";
        push(out, Level::Note, "full_identity", Some(name), text, remedy);
    } else if !declared_full {
        let text = "replica identity is not FULL: deletes keep only their key columns (Debezium invents the others), and \
                    changelogs have no row before updates";
        let remedy = "`ALTER TABLE … REPLICA IDENTITY FULL` in the database, and `replica_identity: full` here, if you need them";
        push(out, Level::Note, "default_identity", Some(name), text, remedy);
    }
}

/// A delete under a key that no other event has, made of zeros and empty texts: Debezium invents it where the table's
/// identity is another index than the primary key.
fn invented_keys(name: &str, table: &TableSample, out: &mut Vec<Finding>) {
    if table.invented_keys > 0 {
        let text = "deletes come with an invented key: the table has REPLICA IDENTITY USING INDEX of an index that is not its \
                    primary key, so deleted rows would stay";
        let remedy = "`ALTER TABLE … REPLICA IDENTITY DEFAULT` or `FULL` in the database, or `message.key.columns` in Debezium";
        push_of(
            out,
            Level::Warning,
            "invented_keys",
            Some(name),
            text,
            format!("{} deletes", table.invented_keys),
            remedy,
        );
    }
}

fn unchanged(name: &str, table: &TableSample, out: &mut Vec<Finding>) {
    let columns: Vec<&str> =
        table.columns.iter().filter(|(_, c)| c.unchanged > 0).map(|(name, _)| &**name).collect();
    if !columns.is_empty() {
        let text = "large values come unchanged, without the value: they are filled in from state; an unchanged large `numeric` \
                    comes as NULL without any sign";
        let remedy = "`ALTER TABLE … REPLICA IDENTITY FULL` in the database prevents both";
        push_of(out, Level::Warning, "unchanged_values", Some(name), text, columns.join(", "), remedy);
    }
}

fn decimals(plan: &Plan, name: &str, table: &TableSample, out: &mut Vec<Finding>) {
    let decimals: Vec<&str> =
        table.columns.iter().filter(|(_, c)| c.decimal).map(|(name, _)| &**name).collect();
    let precise = matches!(plan.decode.decimal_handling_mode, None | Some(DecimalMode::Precise));
    if precise && !decimals.is_empty() && !table.mysql {
        let text = "NaN and infinities of decimals arrive as NULL, if the database holds any";
        let remedy = "`decimal.handling.mode=string` in Debezium, and `decimal_handling_mode: string` here";
        push_of(out, Level::Note, "nan_as_null", Some(name), text, decimals.join(", "), remedy);
    }
}

fn unsigned(name: &str, table: &TableSample, out: &mut Vec<Finding>) {
    if table.mysql {
        let text =
            "MySQL's `bigint unsigned` above 9223372036854775807 wraps to negative numbers, in keys too";
        push(
            out,
            Level::Note,
            "unsigned_wraps",
            Some(name),
            text,
            "`bigint.unsigned.handling.mode=precise` in Debezium",
        );
    }
}

/// Tables of the config that the sample did not show: perhaps misspelt.
fn unknown_tables(plan: &Plan, sample: &Sample, out: &mut Vec<Finding>) {
    if sample.tables.is_empty() {
        return;
    }
    for name in plan.tables.iter().filter(|(_, t)| !t.exclude).map(|(name, _)| name) {
        if sample.tables.contains_key(name) {
            continue;
        }
        let near = crate::config::nearest(name, sample.tables.keys().map(String::as_str));
        let hint = near.map(|near| format!("did you mean `{near}`?")).unwrap_or_default();
        let level = if near.is_some() || sample.complete { Level::Warning } else { Level::Note };
        push_of(
            out,
            level,
            "table_not_seen",
            Some(name),
            "no event of this table among the records read",
            hint,
            "names are `schema.table`, for MySQL `db.table`",
        );
    }
}

/// Tables that would get the same name in a sink.
fn names(plan: &Plan, sample: &Sample, out: &mut Vec<Finding>) {
    for sink in &plan.sinks {
        let SinkKind::Duckdb(duckdb) = &sink.kind else { continue };
        let mut taken: BTreeMap<String, &str> = BTreeMap::new();
        for (qualified, table) in &sample.tables {
            let [db, schema, name] = &table.names;
            let target =
                duckdb.table_name.replace("{db}", db).replace("{schema}", schema).replace("{table}", name);
            if let Some(first) = taken.insert(target.to_lowercase(), qualified) {
                let text = "two tables would have one name; the one that comes later gets its schema's name before its own";
                let detail = format!("in sink {} `{target}`, like {first}", sink.name);
                push_of(
                    out,
                    Level::Warning,
                    "name_collision",
                    Some(qualified),
                    text,
                    detail,
                    "set `table_name: '{schema}_{table}'` for the sink",
                );
            }
        }
    }
}

/// What the connector's settings lose whatever the tables are.
fn connector(plan: &Plan, sample: &Sample, out: &mut Vec<Finding>) {
    if sample.events == 0 {
        return;
    }
    let text = if sample.marks.contains("\"default\":") {
        "columns with a DEFAULT were seen: where such a column is NULL, Debezium sends the default instead"
    } else {
        "where a column with a DEFAULT is NULL, Debezium sends the default instead"
    };
    let level = if sample.marks.contains("\"default\":") { Level::Warning } else { Level::Note };
    push(
        out,
        level,
        "null_as_default",
        None,
        text,
        "`converter.replace.null.with.default=false` in Debezium",
    );
    if sample.tables.values().all(|table| !table.ops.contains_key("t")) {
        let remedy = match plan.decode.format {
            Format::Debezium => "`skipped.operations=none` in Debezium",
            Format::DebeziumFlat | Format::Json => {
                "flattened events never show them: use `format: debezium` if tables are truncated"
            }
        };
        push(
            out,
            Level::Note,
            "truncates_skipped",
            None,
            "no TRUNCATE was seen; Debezium leaves them out by default",
            remedy,
        );
    }
    if plan.decode.decimal_handling_mode == Some(DecimalMode::Double) {
        let text = "`decimal.handling.mode=double` loses digits of decimals before they get here";
        push(
            out,
            Level::Warning,
            "digits_lost",
            None,
            text,
            "`decimal.handling.mode=precise` or `string` in Debezium",
        );
    }
    let nanoseconds = plan.decode.time_precision_mode == Some(TimeMode::Nanoseconds);
    if nanoseconds || sample.marks.iter().any(|mark| mark.starts_with("Nano")) {
        let text =
            "with `time.precision.mode=nanoseconds` times outside the years 1677 to 2262 arrive as NULL";
        push(
            out,
            Level::Warning,
            "nanoseconds",
            None,
            text,
            "`time.precision.mode=adaptive` or `microseconds` in Debezium",
        );
    }
    let connect = plan.decode.time_precision_mode == Some(TimeMode::Connect);
    if connect || sample.marks.iter().any(|mark| mark.starts_with("org.apache.kafka")) {
        let text = "with `time.precision.mode=connect` microseconds are cut off before they get here";
        push(
            out,
            Level::Warning,
            "microseconds_cut",
            None,
            text,
            "`time.precision.mode=adaptive` in Debezium",
        );
    }
}
