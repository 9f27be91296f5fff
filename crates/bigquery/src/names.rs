//! Names of columns and tables: the source's own wherever BigQuery can have them, else a stated, stable change.
//!
//! - Characters that BigQuery refuses become `_xHEX_`, an empty name `_x_`. Of combining marks only the common ones are known here;
//!   the others, which BigQuery would take, become `_xHEX_` too.
//! - A column that begins with `__` or `_metadata_` would collide with ours, and one with a prefix that BigQuery keeps for itself is
//!   refused: its first underscore becomes `_x5f_`.
//! - A name that is too long is cut and ends in a hash.
//! - Names that differ only by case are one name; [`fold`] tells, and whoever gives names looks for a free one.

use std::fmt::Write as _;

use millstream_core::bytes::fnv1a;

/// Characters of a column's name.
const COLUMN_CHARS_MAX: usize = 300;
/// Bytes of a table's name.
const TABLE_BYTES_MAX: usize = 1024;
/// Characters of a dataset's name.
const DATASET_CHARS_MAX: usize = 1024;

/// Kept by BigQuery for itself, or avoided by its tools.
const RESERVED: [&str; 10] = [
    "_table_",
    "_file_",
    "_partition",
    "_row_timestamp",
    "__root__",
    "_colidentifier",
    "_change_sequence_number",
    "_change_type",
    "_change_timestamp",
    "_field_",
];

/// What two names have in common that BigQuery takes for one.
pub fn fold(name: &str) -> String {
    name.to_lowercase()
}

/// The column's name, or that of a struct's field, before collisions are looked at.
pub fn column_name(source: &str) -> String {
    let mut escaped = escape(source, is_column_char);
    // Looked at only now: an escape begins with an underscore itself.
    let folded = fold(&escaped);
    let ours = folded.starts_with("__") || folded.starts_with("_metadata_");
    if ours || RESERVED.iter().any(|prefix| folded.starts_with(prefix)) {
        escaped.replace_range(..1, "_x5f_");
    }
    let count = escaped.chars().count();
    if count <= COLUMN_CHARS_MAX {
        escaped
    } else {
        shorten(&escaped, |head| head.chars().count() <= COLUMN_CHARS_MAX - 17)
    }
}

/// The table's name, before collisions are looked at.
pub fn table_name(source: &str) -> String {
    let escaped = escape(source, is_table_char);
    if escaped.len() <= TABLE_BYTES_MAX {
        escaped
    } else {
        shorten(&escaped, |head| head.len() <= TABLE_BYTES_MAX - 17)
    }
}

/// What is wrong with a dataset's name; `None` for a good one. A config gives these, so they are refused and not changed.
pub fn dataset_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it is empty")
    } else if name.chars().count() > DATASET_CHARS_MAX {
        Some("it has more than 1024 characters")
    } else if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        Some("it has other characters than letters (a-z), digits and underscores")
    } else {
        None
    }
}

/// The same for a project's id, with the `domain:` that old ones have.
pub fn project_problem(id: &str) -> Option<&'static str> {
    let bare = id.rsplit_once(':').map_or(id, |(_, bare)| bare);
    if bare.is_empty() {
        Some("it is empty")
    } else if !id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b':' | b'_')) {
        Some("it has other characters than letters, digits and hyphens")
    } else {
        None
    }
}

/// Letters, numbers, connectors, dashes and marks, a space and some signs (BigQuery's flexible column names).
fn is_column_char(c: char) -> bool {
    is_word_char(c) || matches!(c, ' ' | '&' | '%' | '=' | '+' | ':' | '\'' | '<' | '>' | '#' | '|')
}

fn is_table_char(c: char) -> bool {
    is_word_char(c) || c == ' '
}

/// `\p{L}\p{N}\p{Pc}\p{Pd}`, and the marks that are known here.
fn is_word_char(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    }
    let connector = matches!(
        c,
        '\u{203f}' | '\u{2040}' | '\u{2054}' | '\u{fe33}' | '\u{fe34}' | '\u{fe4d}'..='\u{fe4f}' | '\u{ff3f}'
    );
    let dash = matches!(
        c,
        '\u{58a}' | '\u{5be}' | '\u{2010}'
            ..='\u{2015}' | '\u{301c}' | '\u{3030}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}'
    );
    // Combining diacritics, the virama of Indic scripts, Thai vowels and tones, kana's voicing.
    let mark = matches!(c, '\u{300}'..='\u{36f}' | '\u{93c}' | '\u{94d}' | '\u{9bc}' | '\u{9cd}' | '\u{a4d}' | '\u{acd}' | '\u{b4d}' | '\u{bcd}'
        | '\u{c4d}' | '\u{ccd}' | '\u{d4d}' | '\u{e47}'..='\u{e4e}' | '\u{3099}' | '\u{309a}');
    // Letters in circles and squares are alphabetic to Unicode, but symbols.
    let symbol = matches!(c, '\u{24b6}'..='\u{24e9}' | '\u{1f130}'..='\u{1f149}' | '\u{1f150}'..='\u{1f169}' | '\u{1f170}'..='\u{1f189}');
    connector || dash || mark || (c.is_alphanumeric() && !symbol)
}

fn escape(name: &str, is_fine: impl Fn(char) -> bool) -> String {
    if name.is_empty() {
        return "_x_".to_owned();
    }
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if is_fine(c) {
            out.push(c);
        } else {
            let _ = write!(out, "_x{:x}_", u32::from(c));
        }
    }
    out
}

/// Whether a sink keeps a table of this name beside those of the source.
pub fn is_own_table(name: &str) -> bool {
    let own = [crate::changes::NAME, crate::envelope::TABLE, crate::epochs::NAME];
    own.iter().any(|own| fold(own) == fold(name))
}

/// The longest head that `fits`, and a hash of the whole.
fn shorten(name: &str, fits: impl Fn(&str) -> bool) -> String {
    let hash = fnv1a(name.as_bytes());
    let mut head = name;
    while !fits(head) {
        let mut chars = head.chars();
        chars.next_back();
        head = chars.as_str();
    }
    format!("{head}_{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_keep_their_names_where_they_can() {
        let cases = [
            ("id", "id"),
            ("Order-Id 2", "Order-Id 2"),
            ("größe in %", "größe in %"),
            ("naïve e\u{301}", "naïve e\u{301}"),
            ("1st", "1st"),
            ("price €", "price _x20ac_"),
            ("a.b(c)", "a_x2e_b_x28_c_x29_"),
            ("a\u{0}`", "a_x0__x60_"),
            ("", "_x_"),
            ("__op", "_x5f__op"),
            ("__", "_x5f__"),
            ("_Metadata_deleted", "_x5f_Metadata_deleted"),
            ("_PARTITIONTIME", "_x5f_PARTITIONTIME"),
            ("_change_type", "_x5f_change_type"),
            ("_field_1", "_x5f_field_1"),
            ("_private", "_private"),
            // The escape made a second underscore.
            ("_(a)", "_x5f__x28_a_x29_"),
            ("ⓐ", "_x24d0_"),
        ];
        for (source, expected) in cases {
            assert_eq!(column_name(source), expected);
        }
    }

    #[test]
    fn tables_have_fewer_characters() {
        assert_eq!(table_name("orders & co"), "orders _x26_ co");
        assert_eq!(table_name("Größen-2024"), "Größen-2024");
    }

    #[test]
    fn long_names_stay_apart() {
        let (a, b) = (column_name(&"ü".repeat(400)), column_name(&"ü".repeat(401)));
        assert_eq!(a.chars().count(), 300);
        assert_ne!(a, b);
        assert!(table_name(&"ü".repeat(900)).len() <= 1024);
    }

    #[test]
    fn datasets_and_projects_are_refused_as_they_are() {
        assert_eq!(dataset_problem("cdc_1"), None);
        assert!(dataset_problem("cdc-1").is_some() && dataset_problem("").is_some());
        assert_eq!(project_problem("example.com:acme-1"), None);
        assert!(project_problem("a/b").is_some() && project_problem("x:").is_some());
    }

    proptest! {
        #[test]
        fn every_name_becomes_one_that_stays(source in "(_{0,2}.{0,320}|_(PARTITION|field_|metadata_).{0,9})") {
            let name = column_name(&source);
            prop_assert!(!name.is_empty() && name.chars().count() <= 300);
            prop_assert!(name.chars().all(is_column_char) && !name.starts_with("__"));
            prop_assert_eq!(column_name(&name), name);
            prop_assert!(table_name(&source).len() <= 1024);
        }
    }
}
