//! Identifiers and texts in SQL.

use std::fmt::Write as _;

/// An identifier in backticks.
pub fn quote(name: &str) -> String {
    quoted(name, '`')
}

/// A string literal.
pub fn quote_text(text: &str) -> String {
    quoted(text, '\'')
}

fn quoted(text: &str, mark: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(mark);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_a_quotation_early() {
        assert_eq!(quote("a`b"), r"`a\`b`");
        assert_eq!(quote("größe 'x'"), "`größe 'x'`");
        assert_eq!(quote_text("a'; DROP\\ \"t\"\u{0}"), r#"'a\'; DROP\\ "t"\u0000'"#);
    }
}
