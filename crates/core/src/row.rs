//! A row: typed cells over one heap, so that a row costs two allocations whatever its width.

use crate::value::Value;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    start: u32,
    len: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell {
    Null,
    Unchanged,
    Bool(bool),
    Int(i64),
    Float(f64),
    Decimal { unscaled: i64, scale: u8 },
    Digits(Span),
    Text(Span),
    Bytes(Span),
    Json(Span),
    Date(i32),
    Time(i64),
    DateTime(i64),
    Timestamp(i64),
    List(u32),
    Struct(u32),
}

/// An immutable row: one cell per column of its schema. Texts share one heap and bytes another, lists and structs
/// are nested rows. Built with a [`RowBuilder`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    cells: Box<[Cell]>,
    texts: Box<str>,
    blobs: Box<[u8]>,
    nested: Vec<Row>,
}

impl Row {
    /// Number of cells.
    #[inline]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether the row has no cells.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// The value of column `column`; [`Value::Null`] past the end, so that a row of an older, narrower schema
    /// reads as NULL in newer columns.
    #[inline]
    pub fn get(&self, column: usize) -> Value<'_> {
        match self.cells.get(column) {
            None | Some(Cell::Null) => Value::Null,
            Some(Cell::Unchanged) => Value::Unchanged,
            Some(&Cell::Bool(v)) => Value::Bool(v),
            Some(&Cell::Int(v)) => Value::Int(v),
            Some(&Cell::Float(v)) => Value::Float(v),
            Some(&Cell::Decimal { unscaled, scale }) => Value::Decimal { unscaled, scale },
            Some(&Cell::Digits(s)) => Value::Digits(self.text(s)),
            Some(&Cell::Text(s)) => Value::Text(self.text(s)),
            Some(&Cell::Bytes(s)) => Value::Bytes(self.bytes(s)),
            Some(&Cell::Json(s)) => Value::Json(self.text(s)),
            Some(&Cell::Date(v)) => Value::Date(v),
            Some(&Cell::Time(v)) => Value::Time(v),
            Some(&Cell::DateTime(v)) => Value::DateTime(v),
            Some(&Cell::Timestamp(v)) => Value::Timestamp(v),
            Some(&Cell::List(i)) => Value::List(&self.nested[i as usize]),
            Some(&Cell::Struct(i)) => Value::Struct(&self.nested[i as usize]),
        }
    }

    /// All values, left to right.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Value<'_>> {
        (0..self.cells.len()).map(|i| self.get(i))
    }

    /// Whether any cell is [`Value::Unchanged`].
    #[inline]
    pub fn has_unchanged(&self) -> bool {
        self.cells.iter().any(|c| matches!(c, Cell::Unchanged))
    }

    /// Whether it has no lists and no structs.
    #[inline]
    pub fn is_flat(&self) -> bool {
        self.nested.is_empty()
    }

    /// Bytes that the row keeps in memory beyond itself; for flow control.
    pub fn footprint(&self) -> usize {
        self.cells.len() * size_of::<Cell>()
            + self.texts.len()
            + self.blobs.len()
            + self.nested.iter().map(|r| size_of::<Row>() + r.footprint()).sum::<usize>()
    }

    /// Bytes of texts and bytes in the row, nested ones included.
    #[inline]
    pub fn heap_len(&self) -> usize {
        self.texts.len() + self.blobs.len() + self.nested.iter().map(Row::heap_len).sum::<usize>()
    }

    fn bytes(&self, s: Span) -> &[u8] {
        &self.blobs[s.start as usize..(s.start + s.len) as usize]
    }

    fn text(&self, s: Span) -> &str {
        &self.texts[s.start as usize..(s.start + s.len) as usize]
    }
}

/// Builds rows, reusing its buffers from row to row.
///
/// A row's heap is addressed by 32-bit offsets: [`RowBuilder::finish`] of more than 4 GiB of text panics, so callers
/// bound records (a record is at most 64 MiB) long before.
#[derive(Debug, Default)]
pub struct RowBuilder {
    cells: Vec<Cell>,
    texts: String,
    blobs: Vec<u8>,
    nested: Vec<Row>,
}

impl RowBuilder {
    /// An empty builder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of cells pushed since the last [`finish`](Self::finish).
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Appends a value; texts and bytes are copied.
    #[inline]
    pub fn push(&mut self, value: Value<'_>) {
        let cell = self.cell(value);
        self.cells.push(cell);
    }

    /// Replaces the value at `column`, padding with NULL up to it. The old value's heap bytes stay until `finish`.
    pub fn set(&mut self, column: usize, value: Value<'_>) {
        let cell = self.cell(value);
        if self.cells.len() <= column {
            self.cells.resize(column + 1, Cell::Null);
        }
        self.cells[column] = cell;
    }

    /// Pads with NULL or truncates to `len` cells.
    pub fn resize(&mut self, len: usize) {
        self.cells.resize(len, Cell::Null);
    }

    /// Appends a text that `write` appends to the given heap.
    #[inline]
    pub fn push_text_with(&mut self, write: impl FnOnce(&mut String)) {
        let start = self.texts.len() as u32;
        write(&mut self.texts);
        self.cells.push(Cell::Text(Span { start, len: self.texts.len() as u32 - start }));
    }

    /// Appends bytes that `write` appends to the given heap.
    pub fn push_bytes_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.blobs.len() as u32;
        write(&mut self.blobs);
        self.cells.push(Cell::Bytes(Span { start, len: self.blobs.len() as u32 - start }));
    }

    /// Appends a list of which `elements` holds the cells.
    pub fn push_list(&mut self, elements: Row) {
        self.cells.push(Cell::List(self.nested.len() as u32));
        self.nested.push(elements);
    }

    /// Appends a struct of which `fields` holds the cells.
    pub fn push_struct(&mut self, fields: Row) {
        self.cells.push(Cell::Struct(self.nested.len() as u32));
        self.nested.push(fields);
    }

    /// Hands out the row and empties the builder, keeping its buffers.
    pub fn finish(&mut self) -> Row {
        let longest = self.texts.len().max(self.blobs.len());
        assert!(u32::try_from(longest).is_ok(), "invariant: a row's heap is below 4 GiB");
        let row = Row {
            cells: self.cells.as_slice().into(),
            texts: self.texts.as_str().into(),
            blobs: self.blobs.as_slice().into(),
            nested: std::mem::take(&mut self.nested),
        };
        self.clear();
        row
    }

    /// Forgets what was pushed.
    pub fn clear(&mut self) {
        self.cells.clear();
        self.texts.clear();
        self.blobs.clear();
        self.nested.clear();
    }

    #[inline]
    fn cell(&mut self, value: Value<'_>) -> Cell {
        match value {
            Value::Null => Cell::Null,
            Value::Unchanged => Cell::Unchanged,
            Value::Bool(v) => Cell::Bool(v),
            Value::Int(v) => Cell::Int(v),
            Value::Float(v) => Cell::Float(v),
            Value::Decimal { unscaled, scale } => Cell::Decimal { unscaled, scale },
            Value::Digits(v) => Cell::Digits(self.text(v)),
            Value::Text(v) => Cell::Text(self.text(v)),
            Value::Bytes(v) => {
                let start = self.blobs.len() as u32;
                self.blobs.extend_from_slice(v);
                Cell::Bytes(Span { start, len: v.len() as u32 })
            }
            Value::Json(v) => Cell::Json(self.text(v)),
            Value::Date(v) => Cell::Date(v),
            Value::Time(v) => Cell::Time(v),
            Value::DateTime(v) => Cell::DateTime(v),
            Value::Timestamp(v) => Cell::Timestamp(v),
            Value::List(row) => {
                self.nested.push(row.clone());
                Cell::List(self.nested.len() as u32 - 1)
            }
            Value::Struct(row) => {
                self.nested.push(row.clone());
                Cell::Struct(self.nested.len() as u32 - 1)
            }
        }
    }

    #[inline]
    fn text(&mut self, text: &str) -> Span {
        let start = self.texts.len() as u32;
        self.texts.push_str(text);
        Span { start, len: text.len() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_stays_sixteen_bytes() {
        assert_eq!(size_of::<Cell>(), 16);
    }

    #[test]
    fn values_come_back_as_pushed() {
        let mut b = RowBuilder::new();
        b.push(Value::Int(7));
        b.push(Value::Text("grüße"));
        b.push(Value::Unchanged);
        b.set(4, Value::Bytes(&[0, 255]));
        let row = b.finish();
        assert_eq!(row.len(), 5);
        assert_eq!(row.get(1), Value::Text("grüße"));
        assert_eq!(row.get(3), Value::Null);
        assert_eq!(row.get(4), Value::Bytes(&[0, 255]));
        assert_eq!(row.get(99), Value::Null);
        assert!(row.has_unchanged());
        assert!(b.is_empty());
    }
}
