//! DuckDB's way to name and write things.

use millstream_core::Type;
use millstream_layout::{Dialect, names};

use crate::column_type::sql_type;
use crate::ident::{literal, quote};

/// DuckDB.
pub(crate) struct Duck;

impl Dialect for Duck {
    fn quote(&self, name: &str) -> String {
        quote(name)
    }

    fn literal(&self, text: &str) -> String {
        literal(text)
    }

    fn sql_type(&self, ty: &Type) -> String {
        sql_type(ty)
    }

    fn column_name(&self, source: &str) -> String {
        names::column_name(source)
    }

    fn widens(&self, _: &Type, _: &Type) -> bool {
        true
    }

    fn contains(&self, list: &str, text: &str) -> String {
        format!("list_contains({list}, {text})")
    }

    fn has_any(&self, list: &str) -> String {
        format!("{list} IS NOT NULL")
    }

    fn json_element(&self, json: &str, place: usize) -> String {
        format!("json_extract_string({json}, '$[{place}]')")
    }

    fn text_of(&self, value: &str) -> String {
        format!("CAST({value} AS VARCHAR)")
    }

    fn same(&self, a: &str, b: &str) -> String {
        format!("{a} IS NOT DISTINCT FROM {b}")
    }
}
