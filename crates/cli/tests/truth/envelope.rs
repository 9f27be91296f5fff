//! The envelope layout holds each distinct event exactly once.

use std::collections::BTreeMap;

use crate::bigquery::Emulator;
use crate::corpus::Variant;
use crate::events::Events;
use crate::history::{id_of, miscounted};

/// Events of a project's envelope that are not there once, for tables with a key, and identities that stand for several rows.
pub(crate) fn differences(
    emulator: &Emulator,
    project: &str,
    variant: &Variant,
    events: &Events,
) -> Vec<String> {
    let sql = format!(
        "SELECT IF(`schema` = '', `database`, `schema`), `table`, change_type, `order`, uuid FROM `{project}`.envelope.cdc_events"
    );
    let (_, rows) = emulator.query(project, &sql);
    let (mut held, mut uuids) = (BTreeMap::new(), BTreeMap::new());
    for row in &rows {
        let text = |at: usize| row["f"][at]["v"].as_str().unwrap_or_default();
        let id = id_of(text(3), text(2) == "READ", variant.is_mysql());
        *held.entry((format!("{}.{}", text(0), text(1)), id)).or_insert(0) += 1;
        *uuids.entry(text(4)).or_insert(0) += 1;
    }
    let repeated = uuids.into_iter().filter(|&(_, count)| count > 1);
    let mut wrong: Vec<_> = repeated.map(|(uuid, count)| format!("{uuid} stands for {count} rows")).collect();
    wrong.extend(miscounted(events, held));
    wrong.into_iter().map(|line| format!("{}: envelope: {line}", variant.label())).collect()
}
