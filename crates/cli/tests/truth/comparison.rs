//! What a layout holds, compared with the source database's final rows.

use std::collections::{BTreeMap, BTreeSet};

use duckdb::Connection;
use serde_json::Value as Json;

use crate::canonical;
use crate::cell::{Cell, Relation, quote};
use crate::corpus::Variant;
use crate::declared;
use crate::events::{Events, key_text};

/// A place where current rows are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum View {
    /// The replica that keeps deleted rows.
    Soft,
    /// The replica that removes them.
    Hard,
    /// `T_latest` over the append layout.
    Latest,
}

impl View {
    pub(crate) const ALL: [View; 3] = [View::Soft, View::Hard, View::Latest];

    /// The sink, the DuckDB schema of its tables, and its name in the list of residuals.
    pub(crate) fn name(self) -> &'static str {
        match self {
            View::Soft => "soft",
            View::Hard => "hard",
            View::Latest => "history",
        }
    }
}

/// A value that is not the source database's.
#[derive(Debug, Clone)]
pub(crate) struct Difference {
    pub(crate) table: String,
    /// `*` where the whole row is missing or too many.
    pub(crate) column: String,
    pub(crate) key: String,
    pub(crate) expected: Json,
    /// `None` where the view has no such row or column.
    pub(crate) got: Option<Cell>,
    /// The last event's value of the column; `None` where there is no such event or field.
    pub(crate) raw: Option<Json>,
    /// The declared type of the column.
    pub(crate) ty: String,
    /// Whether the two are equal by canonical text; kept for reports.
    pub(crate) texts: (String, String),
}

/// A table as a sink made it.
struct Target {
    name: String,
    view: Option<String>,
    /// Source column and the columns here that hold its values, the first one first.
    columns: BTreeMap<String, Vec<String>>,
}

/// The sink's own metadata say which source table and column is which here.
fn target(connection: &Connection, sink: &str, table: &str) -> Option<Target> {
    let dataset = quote(sink);
    let (owner, name) = table.split_once('.').unwrap();
    let sql = format!(
        "SELECT name, view FROM {dataset}._millstream_tables WHERE sink = ? \
         AND CASE WHEN \"schema\" = '' THEN db ELSE \"schema\" END = ? AND \"table\" = ?"
    );
    let found =
        connection.query_row(&sql, [sink, owner, name], |row| Ok((row.get::<_, String>(0)?, row.get(1)?)));
    let (name, view) = found.ok()?;
    let sql = format!(
        "SELECT source, \"column\" FROM {dataset}._millstream_columns WHERE sink = ? AND name = ? ORDER BY position"
    );
    let mut statement = connection.prepare(&sql).unwrap();
    let mut columns: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let rows = statement
        .query_map([sink, &name], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
        .unwrap();
    for row in rows {
        let (source, column) = row.unwrap();
        columns.entry(source).or_default().push(column);
    }
    Some(Target { name, view, columns })
}

/// Current rows of a table, by source column. Of several columns for one source column (a type changed) the one with a
/// value counts.
pub(crate) struct Current {
    pub(crate) rows: Vec<BTreeMap<String, Cell>>,
}

/// Reads the current rows that `view` shows of a source table; `None` if it shows none of that table.
pub(crate) fn current(connection: &Connection, view: View, table: &str) -> Option<Current> {
    let target = target(connection, view.name(), table)?;
    let dataset = quote(view.name());
    let from = match view {
        View::Soft => {
            format!("(SELECT * FROM {dataset}.{} WHERE NOT _metadata_deleted)", quote(&target.name))
        }
        View::Hard => format!("{dataset}.{}", quote(&target.name)),
        View::Latest => {
            format!("{dataset}.{}", quote(target.view.as_deref().filter(|name| exists(connection, name))?))
        }
    };
    let relation = Relation::read(connection, &from);
    let place = |name: &String| relation.columns.iter().position(|(n, _)| n == name);
    let places: Vec<(&String, Vec<usize>)> = target
        .columns
        .iter()
        .map(|(source, columns)| (source, columns.iter().filter_map(place).collect()))
        .collect();
    let row = |cells: &Vec<Cell>| {
        let value = |at: &Vec<usize>| {
            at.iter().map(|&i| &cells[i]).find(|c| **c != Cell::Null).cloned().unwrap_or(Cell::Null)
        };
        places.iter().map(|(source, at)| ((*source).clone(), value(at))).collect()
    };
    Some(Current { rows: relation.rows.iter().map(row).collect() })
}

/// The name of a latest view is kept even where there is none, the table having no key.
fn exists(connection: &Connection, view: &str) -> bool {
    let sql = "SELECT count(*) > 0 FROM duckdb_views() WHERE view_name = ?";
    connection.query_row(sql, [view], |row| row.get(0)).unwrap()
}

/// All differences between what `view` shows and the final rows of the variant's scenario, for tables with a key.
pub(crate) fn differences(
    connection: &Connection,
    view: View,
    variant: &Variant,
    events: &Events,
) -> Vec<Difference> {
    let mut all = Vec::new();
    for (table, rows) in variant.final_rows() {
        let key = variant.key(&table);
        if key.is_empty() {
            assert!(
                current(connection, View::Latest, &table).is_none(),
                "{table} has no key but a latest view"
            );
            continue;
        }
        let current = current(connection, view, &table);
        if current.is_none() && rows.is_empty() {
            continue;
        }
        let current = current.unwrap_or(Current { rows: Vec::new() });
        let compared = TableComparison::new(variant, &table, &key, events);
        all.extend(compared.run(&rows, &current));
    }
    all
}

struct TableComparison<'a> {
    variant: &'a Variant,
    table: &'a str,
    key: &'a [String],
    declared: declared::Table,
    last: std::collections::HashMap<String, &'a crate::events::RawEvent>,
}

impl<'a> TableComparison<'a> {
    fn new(variant: &'a Variant, table: &'a str, key: &'a [String], events: &'a Events) -> Self {
        let declared = declared::table(variant.scenario, table);
        Self { variant, table, key, declared, last: events.last_by_key(table, key) }
    }

    fn run(&self, rows: &[Json], current: &Current) -> Vec<Difference> {
        let mysql = self.variant.is_mysql();
        let ty = |column: &str| self.declared.ty(column);
        let mut by_key: BTreeMap<String, Vec<&BTreeMap<String, Cell>>> = BTreeMap::new();
        for row in &current.rows {
            let parts =
                self.key.iter().map(|c| canonical::got(ty(c), mysql, row.get(c).unwrap_or(&Cell::Null)));
            by_key.entry(parts.collect::<Vec<_>>().join("\u{1}")).or_default().push(row);
        }
        let mut all = Vec::new();
        let mut seen = BTreeSet::new();
        for expected in rows {
            let parts = self.key.iter().map(|c| canonical::expected(ty(c), mysql, &expected[c]));
            let canonical_key = parts.collect::<Vec<_>>().join("\u{1}");
            match by_key.get(&canonical_key).map(Vec::as_slice) {
                Some([row, ..]) if seen.insert(canonical_key.clone()) => {
                    self.compare_row(expected, row, &mut all)
                }
                _ => all.push(self.whole_row(key_text(expected, self.key), expected.clone(), None)),
            }
        }
        for (key, rows) in &by_key {
            let surplus = if seen.contains(key) { &rows[1..] } else { &rows[..] };
            for row in surplus {
                let parts = self.key.iter().map(|c| display(row.get(c).unwrap_or(&Cell::Null)));
                let key = parts.collect::<Vec<_>>().join("|");
                all.push(self.whole_row(key, Json::Null, Some(Cell::Text("a row".to_owned()))));
            }
        }
        all
    }

    fn whole_row(&self, key: String, expected: Json, got: Option<Cell>) -> Difference {
        let raw = self.last.get(&key).map(|e| Json::from(e.op.to_string()));
        let texts = if got.is_some() { ("no row", "a row") } else { ("a row", "no row") };
        Difference {
            table: self.table.to_owned(),
            column: "*".to_owned(),
            key,
            expected,
            got,
            raw,
            ty: String::new(),
            texts: (texts.0.to_owned(), texts.1.to_owned()),
        }
    }

    fn compare_row(&self, expected: &Json, row: &BTreeMap<String, Cell>, all: &mut Vec<Difference>) {
        let mysql = self.variant.is_mysql();
        let key = key_text(expected, self.key);
        for (column, value) in expected.as_object().unwrap() {
            let ty = self.declared.ty(column);
            let cell = row.get(column);
            let texts = (
                canonical::expected(ty, mysql, value),
                cell.map_or_else(|| "no column".to_owned(), |cell| canonical::got(ty, mysql, cell)),
            );
            // A column of which nothing but NULL was seen may not exist.
            let absent_null = cell.is_none() && value.is_null();
            if texts.0 == texts.1 || absent_null {
                continue;
            }
            let raw = self.last.get(&key).and_then(|e| e.row.get(column)).cloned();
            all.push(Difference {
                table: self.table.to_owned(),
                column: column.clone(),
                key: key.clone(),
                expected: value.clone(),
                got: cell.cloned(),
                raw,
                ty: ty.to_owned(),
                texts,
            });
        }
    }
}

fn display(cell: &Cell) -> String {
    match cell {
        Cell::Number(text) | Cell::Text(text) => text.clone(),
        other => format!("{other:?}"),
    }
}
