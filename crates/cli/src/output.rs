//! What goes to standard output: plain text, tables and JSON. Logs and progress go to standard error.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// Writes to standard output. A reader that went away (`| head`) is not an error.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(e) = written
        && e.kind() != io::ErrorKind::BrokenPipe
    {
        tracing::error!("cannot write to standard output: {e}");
    }
}

/// Writes a value as JSON, indented on a terminal and on one line elsewhere.
pub(crate) fn print_json(value: &serde_json::Value) {
    let text = if io::stdout().is_terminal() { format!("{value:#}") } else { value.to_string() };
    print(&(text + "\n"));
}

/// Whether errors may be coloured.
pub(crate) fn color() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// A table of texts, columns aligned, numbers to the right.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

/// Longer cells are cut.
const CELL_CHARS_MAX: usize = 60;

impl Table {
    /// A table with these headings.
    pub(crate) fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![headings.into_iter().map(str::to_owned).collect()] }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| cut(&cell)).collect());
    }

    /// Whether it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// The text, each line indented by `indent` blanks.
    pub(crate) fn render(&self, indent: usize) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, column: usize| row.get(column).map_or("", String::as_str).to_owned();
        let widths: Vec<usize> = (0..columns)
            .map(|c| self.rows.iter().map(|row| cell(row, c).chars().count()).max().unwrap_or(0))
            .collect();
        let number =
            |text: &str| text.is_empty() || text.bytes().all(|b| b.is_ascii_digit() || b",.-+".contains(&b));
        let right: Vec<bool> =
            (0..columns).map(|c| self.rows[1..].iter().all(|row| number(&cell(row, c)))).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (column, width) in widths.iter().enumerate() {
                let text = cell(row, column);
                let pad = " ".repeat(width - text.chars().count());
                let gap = if column + 1 < columns { "  " } else { "" };
                // Writing into a String does not fail.
                let _ = if right[column] {
                    write!(line, "{pad}{text}{gap}")
                } else {
                    write!(line, "{text}{pad}{gap}")
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

fn cut(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= CELL_CHARS_MAX {
        return line;
    }
    line.chars().take(CELL_CHARS_MAX - 1).chain(['…']).collect()
}

/// A number with thousands separated.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in the unit that reads best.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
    }
}

/// `n` and the word, with an `s` unless it is one.
pub(crate) fn plural(n: u64, word: &str) -> String {
    format!("{} {word}{}", count(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_and_numbers_stand_right() {
        let mut table = Table::new(["table", "rows"]);
        table.row(["a".to_owned(), count(1_234_567)]);
        table.row(["längster".to_owned(), count(5)]);
        assert_eq!(table.render(2), "  table          rows\n  a         1,234,567\n  längster          5\n");
        assert_eq!(cut(&"x".repeat(100)).chars().count(), CELL_CHARS_MAX);
        assert_eq!(bytes(1536), "1.5 KiB");
    }
}
