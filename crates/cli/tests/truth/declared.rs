//! The source database's own column types, which say how a final row's texts are to be read.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::corpus;

/// A column as its table declares it.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// The SQL type, lower case, e.g. `numeric(12,2)`, `text[]`.
    pub(crate) ty: String,
    pub(crate) has_default: bool,
    pub(crate) generated: bool,
}

/// A table as it is declared at the end of its scenario.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    /// Its key's columns; empty for a table without a key.
    pub(crate) key: Vec<String>,
}

impl Table {
    /// The declared type of a column; `text` for a column that the table has no more.
    pub(crate) fn ty(&self, column: &str) -> &str {
        self.columns.iter().find(|c| c.name == column).map_or("text", |c| &c.ty)
    }
}

static TABLES: LazyLock<HashMap<(String, String), Table>> = LazyLock::new(|| {
    let text = std::fs::read_to_string(corpus::folder().join("schemas/columns.tsv")).unwrap();
    let mut tables: HashMap<(String, String), Table> = HashMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [scenario, table, column, ty, facts] = fields[..] else { panic!("columns.tsv: {line}") };
        let facts: Vec<&str> = facts.split(',').collect();
        let entry = tables.entry((scenario.to_owned(), table.to_owned())).or_default();
        entry.columns.push(Column {
            name: column.to_owned(),
            ty: ty.to_owned(),
            has_default: facts.contains(&"default"),
            generated: facts.contains(&"generated"),
        });
        if facts.contains(&"key") {
            entry.key.push(column.to_owned());
        }
    }
    tables
});

/// The table's declaration; an empty one for a table that the scenario's SQL does not name.
pub(crate) fn table(scenario: &str, table: &str) -> Table {
    TABLES.get(&(scenario.to_owned(), table.to_owned())).cloned().unwrap_or_default()
}

/// All tables of a scenario.
pub(crate) fn tables(scenario: &str) -> Vec<String> {
    let mut names: Vec<String> =
        TABLES.keys().filter(|(s, _)| s == scenario).map(|(_, t)| t.clone()).collect();
    names.sort();
    names
}
