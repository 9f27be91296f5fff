//! The latest view: the newest state of every key that is not deleted.
//!
//! All rows of a key are ranked first, and only then is the key dropped if its newest row is a delete: filtering deletes
//! before ranking would bring deleted rows back. Ranking is a maximum and a join, which costs about half of `ROW_NUMBER`.
//!
//! A column that came unchanged (a large value that the event did not carry) is looked up in the key's earlier rows. Only
//! views of tables where that happened have this part. It follows the row's life backwards: a life of a key begins at its
//! create or read, or after its delete, and if it began with a key change (`__old_key`), the value may stand in the old
//! key's rows before that.
//!
//! What differs between warehouses is asked of the [`Dialect`].

use std::fmt::Write as _;

use millstream_core::Type;

use crate::dialect::Dialect;
use crate::keyed::{Keyed, Part};
use crate::shape::TargetColumn;
use crate::table::StoredTable;

/// The view's query; `None` for a table without key. `repeats`: the history may hold one event twice.
pub fn latest(dialect: &dyn Dialect, raw: &str, table: &StoredTable, repeats: bool) -> Option<String> {
    let key = Key::of(dialect, table);
    if key.parts.is_empty() {
        return None;
    }
    let view = View { dialect, raw: rows(dialect, raw, table), table, key, repeats };
    Some(view.query())
}

struct View<'a> {
    dialect: &'a dyn Dialect,
    raw: String,
    table: &'a StoredTable,
    key: Key<'a>,
    repeats: bool,
}

/// The history's rows. Where the type of some key's column changed, they have one more column for it, by which they are known.
fn rows(dialect: &dyn Dialect, raw: &str, table: &StoredTable) -> String {
    let keys = Keyed::past(table).chain([Keyed::now(table)]);
    let mut made: Vec<String> = Vec::new();
    for part in keys.flat_map(|key| key.parts).filter(Part::is_several) {
        let made_of = format!("{} AS {}", part.value(dialect, &table.shape, ""), name(dialect, &part, table));
        if !made.contains(&made_of) {
            made.push(made_of);
        }
    }
    if made.is_empty() { raw.to_owned() } else { format!("(SELECT *, {} FROM {raw})", made.join(", ")) }
}

/// The name under which [`rows`] have a part of a key. A source's own columns do not begin so.
fn name(dialect: &dyn Dialect, part: &Part, table: &StoredTable) -> String {
    let first = &table.shape.columns[part.columns[0]].name;
    if part.is_several() { dialect.quote(&format!("__key_of_{first}")) } else { dialect.quote(first) }
}

/// The key's parts, and the columns of those whose type did not change.
struct Key<'a> {
    dialect: &'a dyn Dialect,
    parts: Vec<(String, Part, Option<&'a TargetColumn>)>,
}

impl<'a> Key<'a> {
    fn of(dialect: &'a dyn Dialect, table: &'a StoredTable) -> Self {
        let part = |part: Part| {
            let only = (!part.is_several()).then(|| &table.shape.columns[part.columns[0]]);
            (name(dialect, &part, table), part, only)
        };
        Self { dialect, parts: Keyed::now(table).parts.into_iter().map(part).collect() }
    }

    /// The names of the parts.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(|(name, ..)| &**name)
    }

    /// The parts, each with `prefix`, listed.
    fn list(&self, prefix: &str) -> String {
        self.names().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>().join(", ")
    }

    /// Whether two rows have one key. A key that is no primary key may hold NULLs.
    fn same(&self, a: &str, b: &str) -> String {
        let one = |name: &str| self.dialect.same(&format!("{a}.{name}"), &format!("{b}.{name}"));
        self.names().map(one).collect::<Vec<_>>().join(" AND ")
    }

    /// The old key of a row, part by part.
    fn old_values(&self) -> Vec<String> {
        let one = |(_, part, only): &(String, Part, Option<&TargetColumn>)| {
            let text = self.dialect.json_element("m.__old_key", part.place);
            match only.map(|column| &column.ty) {
                Some(Type::Bytes) => format!("from_base64({text})"),
                None | Some(Type::Text | Type::Numeric) => text,
                Some(ty) => format!("CAST({text} AS {})", self.dialect.sql_type(ty)),
            }
        };
        self.parts.iter().map(one).collect()
    }
}

impl View<'_> {
    fn query(&self) -> String {
        let unchanged: Vec<_> = self.table.shape.columns.iter().filter(|c| c.unchanged).collect();
        let mut sql = String::new();
        let recursive = if unchanged.is_empty() { "" } else { "RECURSIVE " };
        let keyed = if self.table.keys.len() == 1 { String::new() } else { self.keyed() };
        let _ = write!(sql, "WITH {recursive}{keyed}__newest AS (\n{}\n)", self.newest());
        if !unchanged.is_empty() {
            sql += &self.lives();
            unchanged.iter().enumerate().for_each(|(i, column)| sql += &self.filled(i, column));
        }
        let value = |column: &TargetColumn| {
            let name = self.dialect.quote(&column.name);
            match unchanged.iter().position(|c| c.name == column.name) {
                None => format!("  h.{name}"),
                Some(i) => format!(
                    "  CASE WHEN {} THEN f{i}.{name} ELSE h.{name} END AS {name}",
                    self.dialect.contains("h.__unchanged", &self.dialect.literal(&column.name))
                ),
            }
        };
        let columns: Vec<_> = self.table.shape.columns.iter().map(value).collect();
        let _ = write!(
            sql,
            "\nSELECT\n{}\nFROM {} AS h\nJOIN __newest AS n ON {} AND h.__order = n.__order",
            columns.join(",\n"),
            self.history(),
            self.key.same("h", "n")
        );
        for i in 0..unchanged.len() {
            let _ =
                write!(sql, "\nLEFT JOIN __filled_{i} AS f{i} ON {}", self.same_names("h", &format!("f{i}")));
        }
        let _ = write!(sql, "\nWHERE h.__op NOT IN ('d', 't')\n  AND h.__order >= {}", self.truncated());
        sql
    }

    /// The history. Named in each place rather than once: a common table that is read twice would be copied whole.
    fn history(&self) -> String {
        // After a key change, an event that came again has the new key and is not known by it.
        if !self.repeats && self.table.keys.len() == 1 {
            return self.raw.clone();
        }
        format!(
            "(\n  SELECT * FROM (\n    SELECT *, row_number() OVER (PARTITION BY {}, __order ORDER BY __ingested_at) AS __copy\n    \
             FROM {}\n  ) AS c\n  WHERE __copy = 1\n)",
            self.key.list(""),
            self.raw
        )
    }

    /// The order of each key's newest row.
    fn newest(&self) -> String {
        let key = self.key.list("");
        let newest = |rows: &str, which: &str| {
            format!(
                "  SELECT {key}, max(__order) AS __order\n  FROM {rows}\n  WHERE {which}\n  GROUP BY {key}"
            )
        };
        match Keyed::now(self.table).place {
            0 => newest(&self.raw, "__op <> 't'"),
            place => newest(&format!("__keyed_{place}"), "TRUE"),
        }
    }

    /// The newest rows under each key that the table had, up to those that its present key ranks: a row that came under an
    /// older key stays known by that one, so that the newest of them is found by it, and goes on as what it then was.
    fn keyed(&self) -> String {
        let names = |key: &Keyed| {
            key.parts.iter().map(|part| name(self.dialect, part, self.table)).collect::<Vec<_>>()
        };
        let mut all: Vec<String> = Vec::new();
        for name in Keyed::past(self.table).chain([Keyed::now(self.table)]).flat_map(|key| names(&key)) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        let all = all.join(", ");
        let rows = |told: Option<Box<str>>| {
            let is = told.map_or("IS NULL".to_owned(), |told| format!("= {}", self.dialect.literal(&told)));
            format!("SELECT {all}, __order FROM {} WHERE __op <> 't' AND __key_columns {is}", self.raw)
        };
        let mut sql = String::new();
        let mut earlier = String::new();
        for key in Keyed::past(self.table) {
            let i = key.place;
            let _ = write!(sql, "__keyed_{i} AS (\n  {}{earlier}\n),\n", rows(key.told.clone()));
            earlier = format!(" UNION ALL\n  SELECT {all}, __order FROM __keyed_{i}");
            if !key.parts.is_empty() {
                let _ = write!(
                    sql,
                    "__ranked_{i} AS (\n  SELECT *, row_number() OVER (PARTITION BY {} ORDER BY __order DESC) AS __rank \
                     FROM __keyed_{i}\n),\n",
                    names(&key).join(", ")
                );
                earlier = format!(" UNION ALL\n  SELECT {all}, __order FROM __ranked_{i} WHERE __rank = 1");
            }
        }
        let now = Keyed::now(self.table);
        let _ = write!(sql, "__keyed_{} AS (\n  {}{earlier}\n),\n", now.place, rows(now.told));
        sql
    }

    /// The order of the table's last truncate, below which rows count for nothing.
    fn truncated(&self) -> String {
        format!("COALESCE((SELECT max(__order) FROM {} WHERE __op = 't'), '')", self.raw)
    }

    /// Equality of a row's key with the key that a life leads to.
    fn same_names(&self, row: &str, life: &str) -> String {
        let one = |(i, name): (usize, &str)| {
            self.dialect.same(&format!("{row}.{name}"), &format!("{life}.__key_{i}"))
        };
        self.key.names().enumerate().map(one).collect::<Vec<_>>().join(" AND ")
    }

    fn key_names(&self, prefix: &str) -> String {
        (0..self.key.parts.len()).map(|i| format!("{prefix}__key_{i}")).collect::<Vec<_>>().join(", ")
    }

    fn key_as_names(&self, prefix: &str) -> String {
        let one = |(i, name): (usize, &str)| format!("{prefix}{name} AS __key_{i}");
        self.key.names().enumerate().map(one).collect::<Vec<_>>().join(", ")
    }

    /// The lives that may hold the values of newest rows: each key's own, and those before its key changes.
    fn lives(&self) -> String {
        let (key_h, key_o) = (self.key.list("h."), self.key.list("o."));
        format!(
            ",
-- Key changes, each with the end of the life that it began.
__moved AS (
  SELECT {key_h}, h.__order, h.__old_key, min(e.__order) AS __end
  FROM {raw} AS h
  LEFT JOIN {raw} AS e ON {same_he} AND e.__op IN ('c', 'r', 'd') AND e.__order > h.__order
  WHERE h.__old_key IS NOT NULL
  GROUP BY {key_h}, h.__order, h.__old_key
),
__moves AS (
  SELECT m.*, {old_as}
  FROM __moved AS m
),
-- From each newest row that lacks a value, back through its key changes. Of an old key, what is below the change counts.
__lives AS (
  SELECT {key_as}, {key_h}, h.__order AS __upper, 0 AS __depth
  FROM {raw} AS h
  JOIN __newest AS n ON {same_hn} AND h.__order = n.__order
  WHERE {lacks} AND h.__op NOT IN ('d', 't')
  UNION ALL
  SELECT {names_l}, {old_m}, m.__order, l.__depth + 1
  FROM __lives AS l
  JOIN __moves AS m ON {same_lm} AND (m.__order < l.__upper OR l.__depth = 0 AND m.__order = l.__upper)
    AND (m.__end IS NULL OR m.__end > l.__upper OR l.__depth > 0 AND m.__end = l.__upper)
  WHERE l.__depth < 64
),
-- Where each of these lives began.
__spans AS (
  SELECT {names_o}, {key_o}, o.__upper, o.__depth, COALESCE(max(e.__order), '') AS __lower
  FROM __lives AS o
  LEFT JOIN {raw} AS e ON {same_oe} AND e.__op IN ('c', 'r', 'd')
    AND (e.__order < o.__upper OR o.__depth = 0 AND e.__order = o.__upper)
  GROUP BY {names_o}, {key_o}, o.__upper, o.__depth
)",
            raw = self.raw,
            lacks = self.dialect.has_any("h.__unchanged"),
            same_he = self.key.same("h", "e"),
            same_hn = self.key.same("h", "n"),
            same_lm = self.key.same("l", "m"),
            same_oe = self.key.same("o", "e"),
            old_as = self.old_as_names(),
            old_m = (0..self.key.parts.len()).map(|i| format!("m.__old_{i}")).collect::<Vec<_>>().join(", "),
            key_as = self.key_as_names("h."),
            names_l = self.key_names("l."),
            names_o = self.key_names("o."),
        )
    }

    fn old_as_names(&self) -> String {
        let values = self.key.old_values();
        values
            .iter()
            .enumerate()
            .map(|(i, value)| format!("{value} AS __old_{i}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// For each key the last value of a column that one of its lives carried.
    fn filled(&self, i: usize, column: &TargetColumn) -> String {
        let name = self.dialect.quote(&column.name);
        let carried = self.dialect.contains("r.__unchanged", &self.dialect.literal(&column.name));
        format!(
            ",
__filled_{i} AS (
  SELECT {names}, {name} FROM (
    SELECT {names_s}, r.{name},
      row_number() OVER (PARTITION BY {names_s} ORDER BY s.__depth, r.__order DESC) AS __rank
    FROM __spans AS s
    JOIN {raw} AS r ON {same} AND r.__order BETWEEN s.__lower AND s.__upper
    WHERE r.__op NOT IN ('d', 't') AND (r.__unchanged IS NULL OR NOT {carried})
  ) AS c
  WHERE __rank = 1
)",
            raw = self.raw,
            names = self.key_names(""),
            names_s = self.key_names("s."),
            same = self.key.same("s", "r"),
        )
    }
}
