//! The append layout holds each distinct event exactly once.

use std::collections::{BTreeMap, BTreeSet};

use duckdb::Connection;

use crate::cell::quote;
use crate::corpus::Variant;
use crate::events::{Events, Id};

/// How many rows of `T_raw` stand for each id.
fn held(connection: &Connection, mysql: bool) -> BTreeMap<(String, Id), usize> {
    let mut tables = connection
        .prepare("SELECT name, CASE WHEN \"schema\" = '' THEN db ELSE \"schema\" END || '.' || \"table\" FROM history._millstream_tables")
        .unwrap();
    let tables: Vec<(String, String)> =
        tables.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect();
    let mut all = BTreeMap::new();
    for (name, table) in tables {
        let sql = format!("SELECT __op, __order FROM history.{}", quote(&name));
        let mut statement = connection.prepare(&sql).unwrap();
        let rows =
            statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).unwrap();
        for row in rows {
            let (op, order) = row.unwrap();
            *all.entry((table.clone(), id_of(&order, op == "r", mysql))).or_insert(0) += 1;
        }
    }
    all
}

/// The id of an event of this order.
pub(crate) fn id_of(order: &str, is_read: bool, mysql: bool) -> Id {
    let sections: Vec<u64> = order.split('/').map(|s| u64::from_str_radix(s, 16).unwrap()).collect();
    let read = if is_read { "read" } else { "change" };
    match sections[..] {
        [_, file, position, row] if mysql => format!("{file}:{position}:{row} {read}"),
        // A read sorts just below a change at its own position.
        [_, _, lsn] => format!("{} {read}", lsn + u64::from(is_read)),
        _ => format!("unknown order {order}"),
    }
}

/// Every difference between the distinct events of the input and the rows of the histories, for tables with a key.
pub(crate) fn differences(connection: &Connection, variant: &Variant, events: &Events) -> Vec<String> {
    miscounted(events, held(connection, variant.is_mysql()))
}

/// Every event that is not as often in `held` as it should be, for tables with a key.
pub(crate) fn miscounted(events: &Events, held: BTreeMap<(String, Id), usize>) -> Vec<String> {
    let keyless: BTreeSet<String> =
        events.all.iter().filter(|e| e.key.is_null() && e.op != 't').map(|e| e.table.clone()).collect();
    let wanted = |table: &String| !keyless.contains(table) && !table.contains(".dbz_signal");
    let number = |id: &Id| {
        // `binlog.000003` is file 3.
        let (file, rest) = id.split_once(':').unwrap_or(("", id));
        match file.rsplit('.').next().and_then(|n| n.parse::<u64>().ok()) {
            Some(file) => format!("{file}:{rest}"),
            None => id.clone(),
        }
    };
    let mut expected = BTreeMap::new();
    for ((table, id), count) in events.distinct() {
        if wanted(&table) {
            *expected.entry((table, number(&id))).or_insert(0) += count;
        }
    }
    let held: BTreeMap<_, _> = held.into_iter().filter(|((t, _), _)| wanted(t)).collect();
    let ids: BTreeSet<_> = expected.keys().chain(held.keys()).collect();
    let count = |of: &BTreeMap<(String, Id), usize>, id| of.get(id).copied().unwrap_or(0);
    ids.into_iter()
        .filter(|id| count(&expected, id) != count(&held, id))
        .map(|id| {
            format!("{} {}: {} distinct events, {} rows", id.0, id.1, count(&expected, id), count(&held, id))
        })
        .collect()
}

/// Tables whose changelog has another number of rows than their history.
pub(crate) fn changelog_differences(connection: &Connection) -> Vec<String> {
    let counts = |sink: &str| -> BTreeMap<String, u64> {
        let sql = format!(
            "SELECT name, CASE WHEN \"schema\" = '' THEN db ELSE \"schema\" END || '.' || \"table\" \
             FROM {sink}._millstream_tables"
        );
        let mut statement = connection.prepare(&sql).unwrap();
        let tables =
            statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).unwrap();
        let count = |(name, table): (String, String)| {
            let sql = format!("SELECT count(*) FROM {sink}.{}", quote(&name));
            (table, connection.query_row(&sql, [], |row| row.get(0)).unwrap())
        };
        tables.map(Result::unwrap).map(count).collect()
    };
    let (history, changelog) = (counts("history"), counts("changelog"));
    let tables: BTreeSet<&String> = history.keys().chain(changelog.keys()).collect();
    let differs = |table: &&String| history.get(*table) != changelog.get(*table);
    let line = |table: &String| {
        format!(
            "{table}: {:?} rows in the history, {:?} in the changelog",
            history.get(table),
            changelog.get(table)
        )
    };
    tables.into_iter().filter(differs).map(line).collect()
}
