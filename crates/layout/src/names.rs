//! Names of tables and columns: the source's own wherever the warehouse can have them, else a stated, stable change.
//!
//! - A table is called by the template. If that name is taken (case-folded; by another source table, or by a table that
//!   Millstream did not make), the later comer is `schema_name`, then `db_schema_name`, then numbered.
//! - A column that begins with `__` or `_metadata_` would collide with ours: its first underscore becomes `_x5f_`.
//! - A column that differs from an earlier one only by case gets `_2`, `_3`, …: no warehouse tells them apart.
//! - Control characters become `_xHEX_`, an empty name `_x_`; a name over 200 characters is cut and ends in a hash.

use std::fmt::Write as _;

use millstream_core::TableName;
use millstream_core::bytes::fnv1a;

const CHARS_MAX: usize = 200;

/// What two names have in common that a warehouse takes for one.
pub fn fold(name: &str) -> String {
    name.to_lowercase()
}

/// The column's name before collisions are looked at.
pub fn column_name(source: &str) -> String {
    let folded = fold(source);
    if folded.starts_with("__") || folded.starts_with("_metadata_") {
        shorten(escape(&format!("_x5f_{}", &source[1..])))
    } else {
        shorten(escape(source))
    }
}

/// `name`, or `name_2`, `name_3`, … if `taken` says so.
pub fn free_name(name: &str, taken: impl Fn(&str) -> bool) -> String {
    if !taken(&fold(name)) {
        return name.to_owned();
    }
    let mut number = 2u32;
    loop {
        let candidate = format!("{name}_{number}");
        if !taken(&fold(&candidate)) {
            return candidate;
        }
        number += 1;
    }
}

/// Base names for a table, best first; when all are taken, the last one is numbered.
pub fn table_candidates(table: &TableName, template: &str) -> Vec<String> {
    let base = template
        .replace("{db}", &table.db)
        .replace("{schema}", if table.schema.is_empty() { &table.db } else { &table.schema })
        .replace("{table}", &table.table);
    let owner = if table.schema.is_empty() { &table.db } else { &table.schema };
    let mut candidates = vec![base.clone()];
    if !owner.is_empty() {
        candidates.push(format!("{owner}_{base}"));
    }
    if !table.db.is_empty() && !table.schema.is_empty() {
        candidates.push(format!("{}_{owner}_{base}", table.db));
    }
    candidates.into_iter().map(|name| shorten(escape(&name))).collect()
}

fn escape(name: &str) -> String {
    if name.is_empty() {
        return "_x_".to_owned();
    }
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_control() {
            let _ = write!(out, "_x{:x}_", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

fn shorten(name: String) -> String {
    if name.chars().count() <= CHARS_MAX {
        return name;
    }
    let hash = fnv1a(name.as_bytes());
    let head: String = name.chars().take(CHARS_MAX - 17).collect();
    format!("{head}_{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_would_collide_with_ours_are_escaped() {
        let cases = [
            ("id", "id"),
            ("__op", "_x5f__op"),
            ("__OP", "_x5f__OP"),
            ("_metadata_deleted", "_x5f_metadata_deleted"),
            ("_private", "_private"),
            ("select", "select"),
            ("größe in €", "größe in €"),
            ("a\u{0}b\n", "a_x0_b_xa_"),
            ("", "_x_"),
        ];
        for (source, expected) in cases {
            assert_eq!(column_name(source), expected);
        }
    }

    #[test]
    fn long_names_stay_apart() {
        let a = column_name(&"x".repeat(300));
        let b = column_name(&"x".repeat(301));
        assert_eq!(a.chars().count(), CHARS_MAX);
        assert_ne!(a, b);
    }

    #[test]
    fn tables_that_collide_take_their_schema() {
        let table = TableName::new("shop", "sales", "orders");
        assert_eq!(table_candidates(&table, "{table}"), ["orders", "sales_orders", "shop_sales_orders"]);
        let mysql = TableName::new("shop", "", "orders");
        assert_eq!(table_candidates(&mysql, "{schema}-{table}"), ["shop-orders", "shop_shop-orders"]);
        assert_eq!(free_name("a", |n| n == "a" || n == "a_2"), "a_3");
    }
}
