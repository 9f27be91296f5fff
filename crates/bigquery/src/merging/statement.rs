//! The statement that applies what is staged.
//!
//! `s` is what is known of a key from the rows of the window, `t` the replica's row. The newest row of a key says what became of it. Its
//! values are its own, but for those that it left as they were: these are the last ones of the key's life (which begins behind its
//! last delete) among the staged rows, else the replica's. Where deleted rows are kept, so are their last values, as a delete may
//! bring its key only.
//!
//! An older change is applied to nothing: `t` has a newer order, or the memory of deletes has.

use std::fmt::Write as _;

use millstream_core::{Order, Type};
use millstream_layout::keyed::Part;
use millstream_layout::{Dialect as _, Keyed, StoredTable, replica, staging};

use crate::dialect::COLUMNS;
use crate::resource::TableId;
use crate::sql::{quote, quote_text};

/// Which staged rows are applied, by their `__ingested_at` in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Those behind this one,
    pub(super) since: i64,
    /// up to this one.
    pub(super) to: i64,
    /// Deletes behind this one are remembered.
    pub(super) kept_since: i64,
}

/// A truncate of the source's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Truncate {
    pub(super) order: Order,
    pub(super) timestamp_us: Option<i64>,
    pub(super) lsn: Option<i64>,
}

/// What is applied to what.
pub(super) struct Statement<'a> {
    pub(super) replica: &'a TableId,
    pub(super) staging: &'a TableId,
    /// The staging's columns and keys; the replica has them too.
    pub(super) table: &'a StoredTable,
    /// Deleted rows are marked, not removed.
    pub(super) keeps_deleted: bool,
    /// Keys may have NULLs, which `=` does not find.
    pub(super) null_in_key: bool,
    pub(super) window: Window,
    /// The last truncate of the window.
    pub(super) truncate: Option<Truncate>,
}

impl Window {
    fn rows(self, since: i64) -> String {
        let mark = staging::MARK_COLUMN;
        format!("{mark} > TIMESTAMP_MICROS({since}) AND {mark} <= TIMESTAMP_MICROS({})", self.to)
    }

    /// The query for order, time and LSN of the last truncate.
    pub(super) fn last_truncate(self, staging: &TableId) -> String {
        format!(
            "SELECT __order, UNIX_MICROS(__source_ts), __lsn FROM {} WHERE {} AND __op = 't' ORDER BY __order DESC LIMIT 1",
            staging.sql(),
            self.rows(self.since)
        )
    }
}

/// A column of the table and, if it ever came without its value, a number for it.
struct Value<'a> {
    /// Quoted.
    name: String,
    /// As it is.
    column: &'a str,
    is_key: bool,
    left: Option<usize>,
}

impl Statement<'_> {
    /// The statement; where the table had other keys, one for each of them before it, the oldest one first.
    pub(super) fn sql(&self) -> String {
        let keys = Keyed::past(self.table).chain([Keyed::now(self.table)]);
        keys.filter(|key| !key.parts.is_empty()).map(|key| self.of_key(&key)).collect::<Vec<_>>().join(";\n")
    }

    /// What came under one key.
    fn of_key(&self, key: &Keyed) -> String {
        let values = self.values(key);
        let on = |part: &Part| format!("{} = s.__key_{}", self.part(part, "t."), part.place);
        let mut on: Vec<_> = key.parts.iter().map(on).collect();
        if key.past {
            // The row of such a key may be another one by now.
            on.push(format!("COALESCE(t.{}, '') <= s.__order", replica::ORDER_COLUMN));
        }
        format!(
            "MERGE {} AS t\nUSING (\n{}) AS s\nON {}\n{}",
            self.replica.sql(),
            self.source(&values, key),
            on.join(" AND "),
            self.clauses(&values, key.past)
        )
    }

    /// Which rows came under a key.
    fn is_under(&self, key: &Keyed) -> String {
        match &key.told {
            _ if self.table.keys.len() == 1 => "TRUE".to_owned(),
            None => "__key_columns IS NULL".to_owned(),
            Some(told) => format!("__key_columns = {}", quote_text(told)),
        }
    }

    fn values(&self, key: &Keyed) -> Vec<Value<'_>> {
        let mut left = 0..;
        let columns = self.table.shape.columns.iter().enumerate();
        columns
            .map(|(at, column)| {
                let is_key = key.columns.contains(&at);
                let left = if column.unchanged && !is_key { left.next() } else { None };
                Value { name: quote(&column.name), column: &column.name, is_key, left }
            })
            .collect()
    }

    /// A part of the key by which rows are grouped and joined, which BigQuery does for some types only.
    fn part(&self, part: &Part, row: &str) -> String {
        let value = part.value(&COLUMNS, &self.table.shape, row);
        let is_grouped = part.is_several()
            || !matches!(
                self.table.shape.columns[part.columns[0]].ty,
                Type::Float64 | Type::Json | Type::List(_) | Type::Struct(_)
            );
        if is_grouped && !self.null_in_key { value } else { format!("TO_JSON_STRING({value})") }
    }

    /// What is known of each key.
    fn source(&self, values: &[Value<'_>], key: &Keyed) -> String {
        let keys: Vec<_> = key.parts.iter().map(|part| format!("__key_{}", part.place)).collect();
        let list = |row: &str| keys.iter().map(|k| format!("{row}{k}")).collect::<Vec<_>>().join(", ");
        let same = |a: &str, b: &str| {
            keys.iter().map(|k| format!("{a}.{k} = {b}.{k}")).collect::<Vec<_>>().join(" AND ")
        };
        let left: Vec<(&Value<'_>, usize)> = values.iter().filter_map(|v| Some((v, v.left?))).collect();
        let rows = |condition: &str| {
            let named =
                key.parts.iter().map(|part| format!("{} AS __key_{}", self.part(part, ""), part.place));
            let named = named.collect::<Vec<_>>().join(", ");
            format!(
                "SELECT *, {named} FROM {} WHERE {condition} AND {}",
                self.staging.sql(),
                self.is_under(key)
            )
        };
        let mut sql = format!(
            "WITH __staged AS (\n{} AND {}\n)",
            rows(&self.window.rows(self.window.since)),
            self.is_applied()
        );
        let _ = write!(
            sql,
            ",\n__newest AS (\nSELECT * FROM __staged WHERE TRUE\nQUALIFY ROW_NUMBER() OVER (PARTITION BY {} ORDER BY __order DESC, __op = \
             'p', __whole DESC) = 1\n)",
            list("")
        );
        let mut joins = String::new();
        let only = if key.past { self.put_present(&mut joins) } else { String::new() };
        let v = if self.keeps_deleted {
            let _ = write!(
                sql,
                ",\n__whole_rows AS (\nSELECT * FROM __staged WHERE __whole\nQUALIFY ROW_NUMBER() OVER (PARTITION BY {} ORDER BY __order \
                 DESC) = 1\n)",
                list("")
            );
            let _ = write!(joins, "\nLEFT JOIN __whole_rows AS v ON {}", same("n", "v"));
            "v"
        } else {
            let deletes = format!("{} AND __op = 'd'", self.window.rows(self.window.kept_since));
            let _ = write!(
                sql,
                ",\n__deletes AS (\nSELECT {keys}, MAX(__order) AS __order FROM ({rows}) GROUP BY {keys}\n)",
                keys = list(""),
                rows = rows(&deletes)
            );
            let _ =
                write!(joins, "\nLEFT JOIN __deletes AS g ON {} AND g.__order > n.__order", same("n", "g"));
            "n"
        };
        if !left.is_empty() {
            self.put_left(&mut sql, &mut joins, &left, list, same);
        }
        let mut columns: Vec<String> = values
            .iter()
            .map(|value| match value.left {
                Some(i) => {
                    format!("f.__left_{i}.value AS {}, f.__left_{i} IS NOT NULL AS __known_{i}", value.name)
                }
                None if value.is_key => format!("n.{0} AS {0}", value.name),
                None => format!("{v}.{0} AS {0}", value.name),
            })
            .collect();
        columns.extend(keys.iter().map(|k| format!("n.{k} AS {k}")));
        columns.extend(self.own_values());
        columns.push(match self.keeps_deleted {
            true => "v.__order AS __value_order".to_owned(),
            false => "g.__order IS NOT NULL AS __gone".to_owned(),
        });
        if !left.is_empty() {
            columns.push("l.__life IS NOT NULL AS __reborn, p.__late AS __late_values".to_owned());
        }
        let _ = write!(sql, "\nSELECT {}\nFROM __newest AS n{joins}{only}\n", columns.join(", "));
        sql
    }

    /// Which rows of the window count.
    fn is_applied(&self) -> String {
        let Some(truncate) = &self.truncate else { return "__op != 't'".to_owned() };
        let order = quote_text(&truncate.order.to_string());
        if self.keeps_deleted {
            format!("__op != 't' AND (__op != 'p' OR __order > {order})")
        } else {
            format!("__op != 't' AND __order > {order}")
        }
    }

    /// The joins that look up the rows that a key of the past means under the present one; answers which rows are not newer there, nor
    /// deleted later.
    fn put_present(&self, joins: &mut String) -> String {
        let now = Keyed::now(self.table);
        let same = |row: &str| {
            let one = |part: &Part| COLUMNS.same(&self.part(part, "n."), &self.part(part, row));
            now.parts.iter().map(one).collect::<Vec<_>>().join(" AND ")
        };
        let order = replica::ORDER_COLUMN;
        let _ = write!(
            joins,
            "\nLEFT JOIN {} AS c ON {} AND c.{order} >= n.__order",
            self.replica.sql(),
            same("c.")
        );
        if self.keeps_deleted {
            return format!("\nWHERE c.{order} IS NULL");
        }
        let columns = now.columns.iter().map(|&i| quote(&self.table.shape.columns[i].name));
        let columns = columns.collect::<Vec<_>>().join(", ");
        let _ = write!(
            joins,
            "\nLEFT JOIN (\nSELECT {columns}, MAX(__order) AS __order FROM {} WHERE {} AND __op = 'd' AND {} GROUP BY {columns}\n) AS e ON {} \
             AND e.__order > n.__order",
            self.staging.sql(),
            self.window.rows(self.window.kept_since),
            self.is_under(&now),
            same("e.")
        );
        format!("\nWHERE c.{order} IS NULL AND e.__order IS NULL")
    }

    /// The joins that look up what rows left as it was.
    fn put_left(
        &self,
        sql: &mut String,
        joins: &mut String,
        left: &[(&Value<'_>, usize)],
        list: impl Fn(&str) -> String,
        same: impl Fn(&str, &str) -> String,
    ) {
        let _ = write!(
            sql,
            ",\n__lives AS (\nSELECT {keys}, MAX(d.__order) AS __life FROM __newest AS n JOIN __staged AS d ON {same}\nWHERE d.__op = 'd' AND \
             d.__order < n.__order GROUP BY {keys}\n),\n__patched AS (\nSELECT {plain}, TRUE AS __late FROM __staged WHERE __op = 'p' GROUP BY \
             {plain}\n)",
            keys = list("n."),
            plain = list(""),
            same = same("n", "d"),
        );
        let _ = write!(
            joins,
            "\nLEFT JOIN __lives AS l ON {}\nLEFT JOIN __patched AS p ON {}",
            same("n", "l"),
            same("n", "p")
        );
        // The newest value that is known of each column, in one pass however many there are. A struct holds it, as it may be NULL. Of one
        // order late values win; `!` sorts below what a longer order goes on with.
        let known = |(value, i): &(&Value<'_>, usize)| {
            let text = quote_text(value.column);
            // What a list of names holds is asked so that a list which is NULL holds nothing.
            let in_list = |list: &str| format!("COALESCE({}, FALSE)", COLUMNS.contains(list, &text));
            let is = format!("((r.__whole AND NOT {}) OR {})", in_list("r.__unchanged"), in_list("r.__late"));
            format!(
                "MAX_BY(IF({is}, STRUCT(r.{} AS value), NULL), IF({is}, r.__rank, NULL)) AS __left_{i}",
                value.name
            )
        };
        let _ = write!(
            sql,
            ",\n__filled AS (\nSELECT {keys}, {known}\nFROM (SELECT *, CONCAT(__order, IF(__op = 'p', '!', '')) AS __rank FROM __staged) AS r \
             JOIN __newest AS n ON {nr} LEFT JOIN __lives AS l ON {nl}\nWHERE r.__order <= n.__order AND r.__order > COALESCE(l.__life, \
             '')\nGROUP BY {keys}\n)",
            keys = list("r."),
            known = left.iter().map(known).collect::<Vec<_>>().join(",\n"),
            nr = same("n", "r"),
            nl = same("n", "l"),
        );
        let _ = write!(joins, "\nLEFT JOIN __filled AS f ON {}", same("n", "f"));
    }

    /// What became of a key, and when. Where deleted rows are kept, a truncate deletes what is older.
    fn own_values(&self) -> [String; 4] {
        let columns = ["__op", "__order", "__source_ts", "__lsn"];
        let Some(truncate) = self.truncate.filter(|_| self.keeps_deleted) else {
            return columns.map(|name| format!("n.{name} AS {name}"));
        };
        let [order, at, lsn] = truncate.values();
        let instead = ["'d'", &order, &at, &lsn];
        let mut values = [const { String::new() }; 4];
        for ((value, name), instead) in values.iter_mut().zip(columns).zip(instead) {
            *value = format!("IF(n.__order < {order}, {instead}, n.{name}) AS {name}");
        }
        values
    }

    fn clauses(&self, values: &[Value<'_>], past: bool) -> String {
        let [timestamp, deleted, lsn, order] =
            [0, 1, 2, 3].map(|i| replica::own_columns()[i].name.to_string());
        let newer = format!("s.__order > COALESCE(t.{order}, '')");
        let own = format!(
            "{timestamp} = s.__source_ts, {deleted} = (s.__op = 'd'), {lsn} = s.__lsn, {order} = s.__order"
        );
        let value = |value: &Value<'_>| match value.left {
            None => format!("{0} = s.{0}", value.name),
            Some(i) => format!(
                "{0} = IF(s.__known_{i}, s.{0}, IF(s.__reborn OR COALESCE(t.{deleted}, FALSE), NULL, t.{0}))",
                value.name
            ),
        };
        let all: Vec<_> = values.iter().map(value).collect();
        let mut sql = String::new();
        let late: Vec<_> = values.iter().filter(|v| v.left.is_some()).map(value).collect();
        if !late.is_empty() {
            let _ = writeln!(
                sql,
                "WHEN MATCHED AND s.__late_values AND s.__order = t.{order} AND NOT COALESCE(t.{deleted}, FALSE) THEN UPDATE SET {}",
                late.join(", ")
            );
        }
        if self.keeps_deleted {
            // A delete that brings its key only, and no values that are newer than the replica's.
            let _ = writeln!(
                sql,
                "WHEN MATCHED AND {newer} AND s.__op != 'p' AND (s.__value_order IS NULL OR s.__value_order < COALESCE(t.{order}, '')) THEN \
                 UPDATE SET {own}"
            );
        } else {
            let _ = writeln!(sql, "WHEN MATCHED AND {newer} AND s.__op = 'd' THEN DELETE");
        }
        let _ = writeln!(
            sql,
            "WHEN MATCHED AND {newer} AND s.__op != 'p' THEN UPDATE SET {}, {own}",
            all.join(", ")
        );
        let names: Vec<_> = values.iter().map(|v| &*v.name).collect();
        let sources: Vec<_> = values.iter().map(|v| format!("s.{}", v.name)).collect();
        let inserted =
            if self.keeps_deleted { "s.__op != 'p'" } else { "s.__op NOT IN ('d', 'p') AND NOT s.__gone" };
        let _ = write!(
            sql,
            "WHEN NOT MATCHED BY TARGET AND {inserted} THEN INSERT ({}, {timestamp}, {deleted}, {lsn}, {order}) VALUES ({}, s.__source_ts, \
             s.__op = 'd', s.__lsn, s.__order)",
            names.join(", "),
            sources.join(", ")
        );
        if let Some(truncate) = self.truncate.as_ref().filter(|_| !past) {
            let [text, at, number] = truncate.values();
            let older = format!("COALESCE(t.{order}, '') < {text}");
            let _ = match self.keeps_deleted {
                false => write!(sql, "\nWHEN NOT MATCHED BY SOURCE AND {older} THEN DELETE"),
                true => write!(
                    sql,
                    "\nWHEN NOT MATCHED BY SOURCE AND {older} AND NOT COALESCE(t.{deleted}, FALSE) THEN UPDATE SET {timestamp} = {at}, {deleted} \
                     = TRUE, {lsn} = {number}, {order} = {text}"
                ),
            };
        }
        sql
    }
}

impl Truncate {
    /// Order, time and LSN, in SQL.
    fn values(&self) -> [String; 3] {
        let null = || "NULL".to_owned();
        [
            quote_text(&self.order.to_string()),
            self.timestamp_us.map_or_else(null, |us| format!("TIMESTAMP_MICROS({us})")),
            self.lsn.map_or_else(null, |lsn| lsn.to_string()),
        ]
    }
}
