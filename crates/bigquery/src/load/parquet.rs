//! Encoded rows as a Parquet file.
//!
//! Types are those that Google's own client for Python writes for load jobs (`google-cloud-bigquery`, `_pandas_helpers.py`, by way of
//! pyarrow): DATETIME is a TIMESTAMP that is not adjusted to UTC, NUMERIC a DECIMAL(38, 9), BIGNUMERIC a DECIMAL(76, 38), an array a LIST
//! of three levels. There is none for JSON: BigQuery does not load such columns from Parquet.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::Result as ParquetResult;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{Type, TypePtr};

use super::wire::{self, Malformed, Raw};
use crate::civil;
use crate::column_type::ColumnType;
use crate::field::{Field, Mode};
use crate::rows::Rows;

/// Rows times columns of a row group, at most. Encoded rows have no bytes for what is NULL, and columns some for each: rows of a wide table
/// that are a few megabytes would take gigabytes.
const GROUP_CELLS_MAX: usize = 2 << 20;

/// A file's bytes that were written and not yet taken.
#[derive(Debug, Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A Parquet file that is being written.
pub(super) struct ParquetFile {
    out: Out,
    writer: SerializedFileWriter<Out>,
    fields: Vec<Field>,
    /// Rows of a row group, at most.
    group_rows: usize,
}

impl ParquetFile {
    /// A file of these columns.
    pub(super) fn new(fields: &[Field]) -> ParquetResult<Self> {
        let columns = fields.iter().map(column_type).collect::<ParquetResult<_>>()?;
        let schema = Type::group_type_builder("schema").with_fields(columns).build()?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_created_by("millstream".to_owned())
            .build();
        let out = Out::default();
        let writer = SerializedFileWriter::new(out.clone(), Arc::new(schema), Arc::new(properties))?;
        let group_rows = (GROUP_CELLS_MAX / leaves(fields).max(1)).max(1);
        Ok(Self { out, writer, fields: fields.to_vec(), group_rows })
    }

    /// Adds rows, which become a row group, or several if they are many. What that takes of memory is free again afterwards.
    pub(super) fn add(&mut self, rows: &Rows) -> ParquetResult<()> {
        for first in (0..rows.len()).step_by(self.group_rows) {
            let mut record = Record::new(&self.fields, 0, 0);
            for index in first..rows.len().min(first + self.group_rows) {
                record.put(rows.row(index), rows.bytes(), 0)?;
            }
            let mut group = self.writer.next_row_group()?;
            record.write(&mut group)?;
            group.close()?;
        }
        Ok(())
    }

    /// Writes the end of the file; nothing may be added any more.
    pub(super) fn finish(&mut self) -> ParquetResult<()> {
        self.writer.finish()?;
        Ok(())
    }

    /// Takes the bytes that were written since the last call.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl From<Malformed> for parquet::errors::ParquetError {
    fn from(_: Malformed) -> Self {
        Self::General("an encoded row is no message".to_owned())
    }
}

/// How many columns of the file these are.
fn leaves(fields: &[Field]) -> usize {
    let of = |field: &Field| if field.ty == ColumnType::Record { leaves(&field.fields) } else { 1 };
    fields.iter().map(of).sum()
}

/// A column as the file's schema has it.
fn column_type(field: &Field) -> ParquetResult<TypePtr> {
    if field.mode != Mode::Repeated {
        return value_type(&field.name, field);
    }
    let element = value_type("element", field)?;
    let list = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![element])
        .build()?;
    let column = Type::group_type_builder(&field.name)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list)])
        .build()?;
    Ok(Arc::new(column))
}

fn value_type(name: &str, field: &Field) -> ParquetResult<TypePtr> {
    // A file that says less of a column than the table does is refused.
    let repetition = if field.mode == Mode::Required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
    if field.ty == ColumnType::Record {
        let fields = field.fields.iter().map(column_type).collect::<ParquetResult<_>>()?;
        let group = Type::group_type_builder(name).with_repetition(repetition).with_fields(fields);
        return Ok(Arc::new(group.build()?));
    }
    let micros = |utc| LogicalType::Timestamp { is_adjusted_to_u_t_c: utc, unit: TimeUnit::MICROS };
    let (physical, logical, length) = match &field.ty {
        ColumnType::Bool => (Physical::BOOLEAN, None, 0),
        ColumnType::Int64 => (Physical::INT64, None, 0),
        ColumnType::Float64 => (Physical::DOUBLE, None, 0),
        ColumnType::Numeric => {
            (Physical::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::Decimal { scale: 9, precision: 38 }), 16)
        }
        ColumnType::BigNumeric => {
            (Physical::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::Decimal { scale: 38, precision: 76 }), 32)
        }
        ColumnType::Bytes => (Physical::BYTE_ARRAY, None, 0),
        ColumnType::Date => (Physical::INT32, Some(LogicalType::Date), 0),
        ColumnType::Time => {
            let time = LogicalType::Time { is_adjusted_to_u_t_c: true, unit: TimeUnit::MICROS };
            (Physical::INT64, Some(time), 0)
        }
        ColumnType::DateTime => (Physical::INT64, Some(micros(false)), 0),
        ColumnType::Timestamp => (Physical::INT64, Some(micros(true)), 0),
        ColumnType::String
        | ColumnType::Json
        | ColumnType::Geography
        | ColumnType::Record
        | ColumnType::Other(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String), 0),
    };
    let mut column = Type::primitive_type_builder(name, physical)
        .with_repetition(repetition)
        .with_logical_type(logical.clone())
        .with_length(length);
    if let Some(LogicalType::Decimal { scale, precision }) = logical {
        column = column.with_precision(precision).with_scale(scale);
    }
    Ok(Arc::new(column.build()?))
}

/// Columns of rows, or of a struct, with the values that are to be written next, shredded as Dremel does it: each value with a
/// definition level (how much of its path is there) and a repetition level (which list goes on).
struct Record {
    columns: Vec<Column>,
    /// Which of them the message at hand has.
    seen: Vec<bool>,
}

struct Column {
    kind: Kind,
    /// The definition level of a value, and that of none where what the column lies in is there.
    full: i16,
    empty: i16,
    /// The repetition level of a list's second value; where the column is no list, that of the list it lies in.
    again: i16,
}

enum Kind {
    Leaf(Leaf),
    Record(Record),
}

/// A column of the file.
struct Leaf {
    values: Values,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
}

enum Values {
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>, fn(u64) -> i64),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    /// With the length of each.
    Fixed(Vec<FixedLenByteArray>, usize),
}

impl Record {
    /// Columns that lie under so many levels.
    fn new(fields: &[Field], definition: i16, repetition: i16) -> Self {
        let column = |field: &Field| {
            let is_list = field.mode == Mode::Repeated;
            // A list's own level, its elements' and that of the element's value; a value that must be there has none.
            let full = definition
                + match field.mode {
                    Mode::Repeated => 3,
                    Mode::Nullable => 1,
                    Mode::Required => 0,
                };
            let again = repetition + i16::from(is_list);
            let kind = match &field.ty {
                ColumnType::Record => Kind::Record(Record::new(&field.fields, full, again)),
                scalar => Kind::Leaf(Leaf::new(scalar)),
            };
            Column { kind, full, empty: definition + i16::from(is_list), again }
        };
        Self { columns: fields.iter().map(column).collect(), seen: vec![false; fields.len()] }
    }

    /// Takes a message apart; `whole` is the buffer that it lies in.
    fn put(&mut self, message: &[u8], whole: &Bytes, repetition: i16) -> ParquetResult<()> {
        self.seen.fill(false);
        for field in wire::fields(message) {
            let (number, raw) = field?;
            let at = number.wrapping_sub(1);
            let Some(column) = self.columns.get_mut(at) else { return Err(Malformed.into()) };
            let is_again = std::mem::replace(&mut self.seen[at], true);
            let repetition = if is_again { column.again } else { repetition };
            match (&mut column.kind, raw) {
                (Kind::Leaf(leaf), raw) => leaf.put(raw, whole, column.full, repetition)?,
                (Kind::Record(record), Raw::Bytes(message)) => record.put(message, whole, repetition)?,
                (Kind::Record(_), Raw::Bits(_)) => return Err(Malformed.into()),
            }
        }
        for (column, seen) in self.columns.iter_mut().zip(&self.seen) {
            if !seen {
                column.put_none(column.empty, repetition);
            }
        }
        Ok(())
    }

    fn write<W: Write + Send>(&self, group: &mut SerializedRowGroupWriter<'_, W>) -> ParquetResult<()> {
        for column in &self.columns {
            match &column.kind {
                Kind::Record(record) => record.write(group)?,
                Kind::Leaf(leaf) => leaf.write(group, column.again > 0)?,
            }
        }
        Ok(())
    }
}

impl Column {
    /// There is no value; up to `definition` there is something.
    fn put_none(&mut self, definition: i16, repetition: i16) {
        match &mut self.kind {
            Kind::Leaf(leaf) => {
                leaf.definitions.push(definition);
                leaf.repetitions.push(repetition);
            }
            Kind::Record(record) => {
                for column in &mut record.columns {
                    column.put_none(definition, repetition);
                }
            }
        }
    }
}

impl Leaf {
    fn new(ty: &ColumnType) -> Self {
        let values = match ty {
            ColumnType::Bool => Values::Bool(Vec::new()),
            ColumnType::Float64 => Values::Double(Vec::new()),
            ColumnType::Numeric => Values::Fixed(Vec::new(), 16),
            ColumnType::BigNumeric => Values::Fixed(Vec::new(), 32),
            ColumnType::Date => Values::Int32(Vec::new()),
            ColumnType::Int64 | ColumnType::Timestamp => Values::Int64(Vec::new(), u64::cast_signed),
            ColumnType::Time => Values::Int64(Vec::new(), |bits| civil::time_micros(bits.cast_signed())),
            ColumnType::DateTime => {
                Values::Int64(Vec::new(), |bits| civil::date_time_micros(bits.cast_signed()))
            }
            _ => Values::Bytes(Vec::new()),
        };
        Self { values, definitions: Vec::new(), repetitions: Vec::new() }
    }

    fn put(&mut self, raw: Raw<'_>, whole: &Bytes, definition: i16, repetition: i16) -> ParquetResult<()> {
        match (&mut self.values, raw) {
            (Values::Bool(values), Raw::Bits(bits)) => values.push(bits != 0),
            (Values::Int32(values), Raw::Bits(bits)) => values.push(bits.cast_signed() as i32),
            (Values::Int64(values, read), Raw::Bits(bits)) => values.push(read(bits)),
            (Values::Double(values), Raw::Bits(bits)) => values.push(f64::from_bits(bits)),
            (Values::Bytes(values), Raw::Bytes(bytes)) => values.push(whole.slice_ref(bytes).into()),
            (Values::Fixed(values, len), Raw::Bytes(bytes)) => {
                values.push(big_endian(bytes, *len).ok_or(Malformed)?.into());
            }
            _ => return Err(Malformed.into()),
        }
        self.definitions.push(definition);
        self.repetitions.push(repetition);
        Ok(())
    }

    fn write<W: Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
        in_list: bool,
    ) -> ParquetResult<()> {
        let Some(mut column) = group.next_column()? else { return Err(Malformed.into()) };
        let definitions = Some(&*self.definitions);
        let repetitions = in_list.then_some(&*self.repetitions);
        match (column.untyped(), &self.values) {
            (ColumnWriter::BoolColumnWriter(writer), Values::Bool(values)) => {
                writer.write_batch(values, definitions, repetitions)?;
            }
            (ColumnWriter::Int32ColumnWriter(writer), Values::Int32(values)) => {
                writer.write_batch(values, definitions, repetitions)?;
            }
            (ColumnWriter::Int64ColumnWriter(writer), Values::Int64(values, _)) => {
                writer.write_batch(values, definitions, repetitions)?;
            }
            (ColumnWriter::DoubleColumnWriter(writer), Values::Double(values)) => {
                writer.write_batch(values, definitions, repetitions)?;
            }
            (ColumnWriter::ByteArrayColumnWriter(writer), Values::Bytes(values)) => {
                writer.write_batch(values, definitions, repetitions)?;
            }
            (ColumnWriter::FixedLenByteArrayColumnWriter(writer), Values::Fixed(values, _)) => {
                writer.write_batch(values, definitions, repetitions)?;
            }
            _ => return Err(Malformed.into()),
        }
        column.close()?;
        Ok(())
    }
}

/// A little-endian two's complement number of any length as a big-endian one of this length.
fn big_endian(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
    let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
    let mut number = vec![sign; len];
    let start = len.checked_sub(bytes.len())?;
    for (to, from) in number[start..].iter_mut().rev().zip(bytes) {
        *to = *from;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader as _, SerializedFileReader};

    use super::*;
    use crate::encode::RowWriter;

    /// The rows of a file of one group for each of `groups`, as Parquet's own reader shows them.
    fn shown(fields: &[Field], groups: &[Rows]) -> Vec<String> {
        let mut file = ParquetFile::new(fields).unwrap();
        let mut bytes = Vec::new();
        for rows in groups {
            file.add(rows).unwrap();
            bytes.extend(file.take());
        }
        file.finish().unwrap();
        bytes.extend(file.take());
        let reader = SerializedFileReader::new(Bytes::from(bytes)).unwrap();
        assert_eq!(reader.num_row_groups(), groups.len());
        reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect()
    }

    #[test]
    fn every_type_is_read_back() {
        let types = ColumnType::scalars().filter(|ty| *ty != ColumnType::Json);
        let names = (b'a'..).map(|letter| char::from(letter).to_string());
        let fields: Vec<_> = names.zip(types).map(|(name, ty)| Field::new(name, ty)).collect();
        let mut writer = RowWriter::new();
        let mut row = writer.begin();
        row.put_bool(1, true);
        row.put_int(2, i64::MIN);
        row.put_float(3, -1.5);
        row.put_numeric(4, -12_345, 3).unwrap();
        row.put_big_numeric_digits(5, "-38.00000000000000000000000000000000000001").unwrap();
        row.put_text(6, "ü");
        row.put_bytes(7, &[0, 255]);
        row.put_date(8, -719_162).unwrap();
        row.put_time(9, 86_399_999_999).unwrap();
        row.put_date_time(10, 1_700_000_000_123_456).unwrap();
        row.put_timestamp(11, 1_700_000_000_123_456).unwrap();
        row.finish();
        writer.begin().finish();
        let rows = shown(&fields, &[writer.take()]);
        let expected = "{a: true, b: -9223372036854775808, c: -1.5E0, d: -12.345000000, e: -38.00000000000000000000000000000000000001, \
                        f: \"ü\", g: [0, 255], h: 0001-01-01, i: 23:59:59.999999, j: 2023-11-14 22:13:20.123456 +00:00, k: 2023-11-14 22:13:20.123456 +00:00}";
        assert_eq!(rows[0], expected);
        let nothing = ('a'..='k').map(|name| format!("{name}: null")).collect::<Vec<_>>().join(", ");
        assert_eq!(rows[1], format!("{{{nothing}}}"));
    }

    /// Rows of a thousand columns of which all but a few are NULL are small, and a part of a file took as many as 16 MiB hold: half a million,
    /// with four bytes for each of their half a billion cells.
    #[test]
    fn row_groups_of_wide_tables_have_fewer_rows() {
        let fields: Vec<_> = (0..1000).map(|n| Field::new(format!("c{n}"), ColumnType::String)).collect();
        let mut writer = RowWriter::new();
        for _ in 0..5000 {
            writer.begin().finish();
        }
        let mut file = ParquetFile::new(&fields).unwrap();
        file.add(&writer.take()).unwrap();
        file.finish().unwrap();
        let reader = SerializedFileReader::new(Bytes::from(file.take())).unwrap();
        let groups = reader.metadata().row_groups().iter().map(|group| group.num_rows());
        assert_eq!(groups.collect::<Vec<_>>(), [2097, 2097, 806]);
    }

    #[test]
    fn values_that_must_be_there_are_required() {
        let required = |name: &str, ty| Field::new(name, ty).with_mode(Mode::Required);
        let inner = vec![Field::new("t", ColumnType::String)];
        let fields = [
            required("id", ColumnType::Int64),
            Field::new("v", ColumnType::Int64),
            Field { fields: inner, ..required("s", ColumnType::Record) },
        ];
        let mut writer = RowWriter::new();
        for id in [1, 2] {
            let mut row = writer.begin();
            row.put_int(1, id);
            let mark = row.begin_message(3);
            if id == 1 {
                row.put_text(1, "x");
            }
            row.end_message(mark);
            row.finish();
        }
        let rows = shown(&fields, &[writer.take()]);
        assert_eq!(rows, ["{id: 1, v: null, s: {t: \"x\"}}", "{id: 2, v: null, s: {t: null}}"]);
    }

    /// Lists in structs in lists: each of them absent, empty, of one and of several, over two row groups.
    #[test]
    fn lists_and_structs_nest() {
        let list = |name: &str| Field::new(name, ColumnType::Int64).with_mode(Mode::Repeated);
        let record = |name: &str, fields| Field { fields, ..Field::new(name, ColumnType::Record) };
        let inner = vec![list("n"), Field::new("t", ColumnType::String)];
        let fields = [record("s", inner.clone()), record("r", inner).with_mode(Mode::Repeated), list("l")];
        let mut writer = RowWriter::new();
        let mut row = writer.begin();
        row.put_int(3, 7);
        for numbers in [&[1, 2][..], &[], &[3]] {
            let mark = row.begin_message(2);
            numbers.iter().for_each(|n| row.put_int(1, *n));
            if numbers.is_empty() {
                row.put_text(2, "x");
            }
            row.end_message(mark);
        }
        row.finish();
        let first = writer.take();
        writer.begin().finish();
        let mut row = writer.begin();
        let mark = row.begin_message(1);
        row.end_message(mark);
        row.put_int(3, 8);
        row.put_int(3, 9);
        row.finish();
        let rows = shown(&fields, &[first, writer.take()]);
        assert_eq!(
            rows,
            [
                "{s: null, r: [{n: [1, 2], t: null}, {n: [], t: \"x\"}, {n: [3], t: null}], l: [7]}",
                "{s: null, r: [], l: []}",
                "{s: {n: [], t: null}, r: [], l: [8, 9]}",
            ]
        );
    }
}
