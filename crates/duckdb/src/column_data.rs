//! One column's values on their way into a table, in the form in which DuckDB's vectors hold them.

use millstream_core::{Field, Row, Type, Value};
use millstream_layout::cell::{Cell, convert};

/// Collects the values of one column. A value that does not convert is found by [`convert`] before it is pushed.
pub(crate) struct ColumnData {
    values: Values,
    rows: usize,
    /// One bit a row, set where the row is NULL; rows past the end are not.
    nulls: Vec<u64>,
}

/// The values, by physical type. They may end early: the rows after them are NULL.
pub(crate) enum Values {
    Bool(Vec<bool>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Int128(Vec<i128>),
    Float64(Vec<f64>),
    Text(Texts),
    List(Box<Lists>),
    Struct(Box<Structs>),
}

/// Texts or bytes.
#[derive(Default)]
pub(crate) struct Texts {
    entries: Vec<Text>,
    /// What does not fit into an entry, one after the other.
    long: Vec<u8>,
}

/// A text of a vector. What is longer than [`Text::INLINE_MAX`] is kept elsewhere.
#[derive(Clone, Copy, Default)]
pub(crate) struct Text {
    pub(crate) len: u32,
    /// The text, padded with zeros; of a long one its first bytes.
    pub(crate) head: [u8; Text::INLINE_MAX],
    /// Where a long one begins.
    at: usize,
}

pub(crate) struct Lists {
    element: Type,
    pub(crate) elements: ColumnData,
    /// Offset and length of each list among the elements.
    pub(crate) entries: Vec<(u64, u64)>,
}

pub(crate) struct Structs {
    fields: Box<[Field]>,
    pub(crate) columns: Vec<ColumnData>,
}

impl ColumnData {
    /// An empty column of a storable type. It takes no memory before its first value: there may be thousands of tables.
    pub(crate) fn new(ty: &Type) -> Self {
        let values = match ty {
            Type::Bool => Values::Bool(Vec::new()),
            Type::Float64 => Values::Float64(Vec::new()),
            Type::Decimal { precision: ..=4, .. } => Values::Int16(Vec::new()),
            Type::Date | Type::Decimal { precision: ..=9, .. } => Values::Int32(Vec::new()),
            Type::Decimal { precision: 19.., .. } => Values::Int128(Vec::new()),
            Type::Int64 | Type::Time | Type::DateTime | Type::Timestamp | Type::Decimal { .. } => {
                Values::Int64(Vec::new())
            }
            Type::Null | Type::Numeric | Type::Text | Type::Json | Type::Bytes => {
                Values::Text(Texts::default())
            }
            Type::List(element) => Values::List(Box::new(Lists {
                element: (**element).clone(),
                elements: Self::new(element),
                entries: Vec::new(),
            })),
            Type::Struct(fields) => Values::Struct(Box::new(Structs {
                fields: fields.clone(),
                columns: fields.iter().map(|f| Self::new(&f.ty)).collect(),
            })),
        };
        Self { values, rows: 0, nulls: Vec::new() }
    }

    /// Whether it holds its values as a column of this type does.
    pub(crate) fn is_of(&self, ty: &Type) -> bool {
        match (&self.values, ty) {
            (Values::List(lists), Type::List(element)) => lists.elements.is_of(element),
            (Values::Struct(structs), Type::Struct(fields)) => {
                structs.columns.len() == fields.len()
                    && structs.columns.iter().zip(fields).all(|(column, field)| column.is_of(&field.ty))
            }
            (values, ty) => std::mem::discriminant(values) == std::mem::discriminant(&Self::new(ty).values),
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// Whether a row is NULL, one bit a row; rows past the end are not.
    pub(crate) fn nulls(&self) -> &[u64] {
        &self.nulls
    }

    /// Bytes of memory that its values take.
    pub(crate) fn bytes(&self) -> usize {
        match &self.values {
            Values::Bool(v) => v.len(),
            Values::Int16(v) => 2 * v.len(),
            Values::Int32(v) => 4 * v.len(),
            Values::Int64(v) => 8 * v.len(),
            Values::Int128(v) => 16 * v.len(),
            Values::Float64(v) => 8 * v.len(),
            Values::Text(v) => size_of::<Text>() * v.entries.len() + v.long.len(),
            Values::List(v) => 16 * v.entries.len() + v.elements.bytes(),
            Values::Struct(v) => v.columns.iter().map(ColumnData::bytes).sum(),
        }
    }

    /// Appends NULL.
    #[inline]
    pub(crate) fn push_null(&mut self) {
        let word = self.rows / 64;
        if self.nulls.len() <= word {
            self.nulls.resize(word + 1, 0);
        }
        self.nulls[word] |= 1 << (self.rows % 64);
        self.rows += 1;
        if let Values::Struct(object) = &mut self.values {
            object.columns.iter_mut().for_each(ColumnData::push_null);
        }
    }

    /// Appends a value of type `from` to a column of type `to`; NULL if it does not convert.
    pub(crate) fn push(&mut self, value: Value<'_>, from: &Type, to: &Type) {
        match convert(value, from, to) {
            Ok(cell) => self.push_cell(cell, from),
            Err(_) => self.push_null(),
        }
    }

    #[inline]
    pub(crate) fn push_cell(&mut self, cell: Cell<'_>, from: &Type) {
        match cell {
            Cell::Null => self.push_null(),
            Cell::Text(v) => self.push_bytes(v.as_bytes()),
            Cell::Bytes(v) => self.push_bytes(v),
            Cell::Int(v) | Cell::Micros(v) => self.push_int(v),
            Cell::Decimal(v) => self.push_decimal(v),
            Cell::Date(v) => match &mut self.values {
                Values::Int32(values) => put(values, &mut self.rows, v),
                _ => self.push_null(),
            },
            Cell::Float(v) => match &mut self.values {
                Values::Float64(values) => put(values, &mut self.rows, v),
                _ => self.push_null(),
            },
            Cell::Bool(v) => self.push_bool(v),
            Cell::List(row) => match &mut self.values {
                Values::List(lists) => {
                    lists.push(row, from, self.rows);
                    self.rows += 1;
                }
                _ => self.push_null(),
            },
            Cell::Struct(row) => match (&mut self.values, from) {
                (Values::Struct(structs), Type::Struct(from)) => {
                    structs.push(row, from);
                    self.rows += 1;
                }
                _ => self.push_null(),
            },
        }
    }

    #[inline]
    pub(crate) fn push_bool(&mut self, value: bool) {
        match &mut self.values {
            Values::Bool(values) => put(values, &mut self.rows, value),
            _ => self.push_null(),
        }
    }

    /// Appends an integer, a time of day or an instant.
    #[inline]
    pub(crate) fn push_int(&mut self, value: i64) {
        match &mut self.values {
            Values::Int64(values) => put(values, &mut self.rows, value),
            _ => self.push_null(),
        }
    }

    pub(crate) fn push_int_option(&mut self, value: Option<i64>) {
        match value {
            Some(value) => self.push_int(value),
            None => self.push_null(),
        }
    }

    /// Appends an unscaled value within the column's precision, which its physical type holds.
    fn push_decimal(&mut self, value: i128) {
        match &mut self.values {
            Values::Int16(values) => put(values, &mut self.rows, value as i16),
            Values::Int32(values) => put(values, &mut self.rows, value as i32),
            Values::Int64(values) => put(values, &mut self.rows, value as i64),
            Values::Int128(values) => put(values, &mut self.rows, value),
            _ => self.push_null(),
        }
    }

    /// Appends a text or bytes.
    #[inline]
    pub(crate) fn push_bytes(&mut self, value: &[u8]) {
        match &mut self.values {
            Values::Text(texts) => {
                let text = texts.text(value);
                put(&mut texts.entries, &mut self.rows, text);
            }
            _ => self.push_null(),
        }
    }

    pub(crate) fn push_text_option(&mut self, value: Option<&str>) {
        match value {
            Some(value) => self.push_bytes(value.as_bytes()),
            None => self.push_null(),
        }
    }

    /// Appends a list of texts.
    pub(crate) fn push_texts<'a>(&mut self, texts: impl Iterator<Item = &'a str>) {
        match &mut self.values {
            Values::List(lists) => {
                let first = lists.elements.rows;
                texts.for_each(|text| lists.elements.push_bytes(text.as_bytes()));
                lists.end(first, self.rows);
                self.rows += 1;
            }
            _ => self.push_null(),
        }
    }

    /// Begins a struct whose fields the caller pushes itself, in their order.
    pub(crate) fn begin_struct(&mut self) -> Option<&mut [ColumnData]> {
        match &mut self.values {
            Values::Struct(structs) => {
                self.rows += 1;
                Some(&mut structs.columns)
            }
            _ => None,
        }
    }

    /// Takes back all rows from `rows` on.
    pub(crate) fn truncate(&mut self, rows: usize) {
        if self.rows <= rows {
            return;
        }
        self.rows = rows;
        self.nulls.truncate(rows.div_ceil(64));
        if let Some(last) = self.nulls.get_mut(rows / 64) {
            *last &= (1 << (rows % 64)) - 1;
        }
        match &mut self.values {
            Values::Bool(v) => v.truncate(rows),
            Values::Int16(v) => v.truncate(rows),
            Values::Int32(v) => v.truncate(rows),
            Values::Int64(v) => v.truncate(rows),
            Values::Int128(v) => v.truncate(rows),
            Values::Float64(v) => v.truncate(rows),
            Values::Text(v) => {
                v.entries.truncate(rows);
                // Of rows that are taken back one by one, what their long texts take stays until all are.
                if rows == 0 {
                    v.long.clear();
                }
            }
            Values::List(v) => {
                let kept = v.entries.iter().take(rows).map(|(at, len)| at + len).max().unwrap_or(0);
                v.entries.truncate(rows);
                v.elements.truncate(kept as usize);
            }
            Values::Struct(v) => v.columns.iter_mut().for_each(|column| column.truncate(rows)),
        }
    }

    /// Takes the values out. What comes next goes into the memory of `spare`, whose values are dropped.
    pub(crate) fn take_for(&mut self, spare: Option<Self>) -> Self {
        match spare {
            Some(mut spare) => {
                spare.truncate(0);
                std::mem::replace(self, spare)
            }
            None => self.take(),
        }
    }

    /// Takes the values out.
    pub(crate) fn take(&mut self) -> Self {
        let values = match &mut self.values {
            Values::Bool(v) => Values::Bool(std::mem::take(v)),
            Values::Int16(v) => Values::Int16(std::mem::take(v)),
            Values::Int32(v) => Values::Int32(std::mem::take(v)),
            Values::Int64(v) => Values::Int64(std::mem::take(v)),
            Values::Int128(v) => Values::Int128(std::mem::take(v)),
            Values::Float64(v) => Values::Float64(std::mem::take(v)),
            Values::Text(v) => Values::Text(std::mem::take(v)),
            Values::List(v) => Values::List(Box::new(Lists {
                element: v.element.clone(),
                elements: v.elements.take(),
                entries: std::mem::take(&mut v.entries),
            })),
            Values::Struct(v) => Values::Struct(Box::new(Structs {
                fields: v.fields.clone(),
                columns: v.columns.iter_mut().map(ColumnData::take).collect(),
            })),
        };
        Self { values, rows: std::mem::take(&mut self.rows), nulls: std::mem::take(&mut self.nulls) }
    }
}

/// Puts a row's value after those of the rows before it, of which the last may be NULL and have none.
#[inline]
fn put<T: Clone + Default>(values: &mut Vec<T>, rows: &mut usize, value: T) {
    if values.len() < *rows {
        values.resize(*rows, T::default());
    }
    values.push(value);
    *rows += 1;
}

impl Text {
    /// Bytes of a text that DuckDB keeps in the vector itself.
    pub(crate) const INLINE_MAX: usize = 12;
}

impl Texts {
    #[inline]
    fn text(&mut self, value: &[u8]) -> Text {
        let mut head = [0; Text::INLINE_MAX];
        let mut at = 0;
        match head.get_mut(..value.len()) {
            Some(inline) => inline.copy_from_slice(value),
            None => {
                head.copy_from_slice(&value[..Text::INLINE_MAX]);
                at = self.long.len();
                self.long.extend_from_slice(value);
            }
        }
        // Rows are bounded far below 4 GB.
        Text { len: value.len() as u32, head, at }
    }

    pub(crate) fn entries(&self) -> &[Text] {
        &self.entries
    }

    /// The bytes of a long text of this column.
    pub(crate) fn long(&self, text: Text) -> &[u8] {
        &self.long[text.at..][..text.len as usize]
    }
}

impl Lists {
    fn push(&mut self, row: &Row, from: &Type, at: usize) {
        let unknown = Type::Null;
        let from_element = if let Type::List(element) = from { element } else { &unknown };
        let first = self.elements.rows;
        for value in row.iter() {
            self.elements.push(value, from_element, &self.element);
        }
        self.end(first, at);
    }

    /// Ends the list of row `at`, whose elements begin at `first`.
    fn end(&mut self, first: usize, at: usize) {
        self.entries.resize(at, (0, 0));
        self.entries.push((first as u64, (self.elements.rows - first) as u64));
    }
}

impl Structs {
    fn push(&mut self, row: &Row, from: &[Field]) {
        for (i, field) in self.fields.iter().enumerate() {
            // Shapes mostly agree, so the field is looked for at its own place first.
            let source = match from.get(i) {
                Some(f) if f.name == field.name => Some(i),
                _ => from.iter().position(|f| f.name == field.name),
            };
            match source {
                Some(s) => self.columns[i].push(row.get(s), &from[s].ty, &field.ty),
                None => self.columns[i].push_null(),
            }
        }
    }
}
