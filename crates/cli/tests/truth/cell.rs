//! Typed values read back from a DuckDB file, exactly: every value leaves DuckDB as a text that loses nothing.

use duckdb::Connection;
use serde_json::Value as Json;

/// A value of a table or view.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell {
    Null,
    Bool(bool),
    /// An integer or decimal, as text.
    Number(String),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Json(String),
    /// Days since 1970-01-01.
    Date(i64),
    /// Microseconds of the day.
    Time(i64),
    /// Microseconds since 1970-01-01T00:00:00, no zone.
    DateTime(i64),
    /// Microseconds since 1970-01-01T00:00:00Z.
    Timestamp(i64),
    List(Vec<Cell>),
    Struct(Vec<(String, Cell)>),
}

/// A DuckDB type, as far as it decides how a value is read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SqlType {
    Bool,
    Number,
    Double,
    Text,
    Blob,
    Json,
    Date,
    Time,
    DateTime,
    Timestamp,
    List(Box<SqlType>),
    Struct(Vec<(String, SqlType)>),
}

impl SqlType {
    /// From DuckDB's own text, e.g. `STRUCT(x DOUBLE, "a b" DECIMAL(6,2)[])[]`.
    pub(crate) fn parse(text: &str) -> Self {
        if let Some(element) = text.strip_suffix("[]") {
            return SqlType::List(Box::new(Self::parse(element)));
        }
        if let Some(fields) = text.strip_prefix("STRUCT(").and_then(|t| t.strip_suffix(')')) {
            return SqlType::Struct(split_fields(fields).into_iter().map(|f| field(&f)).collect());
        }
        match text {
            "BOOLEAN" => SqlType::Bool,
            "DOUBLE" | "FLOAT" => SqlType::Double,
            "VARCHAR" => SqlType::Text,
            "BLOB" => SqlType::Blob,
            "JSON" => SqlType::Json,
            "DATE" => SqlType::Date,
            "TIME" => SqlType::Time,
            "TIMESTAMP" => SqlType::DateTime,
            "TIMESTAMP WITH TIME ZONE" => SqlType::Timestamp,
            number
                if number.ends_with("INT")
                    || number.ends_with("INTEGER")
                    || number.starts_with("DECIMAL(") =>
            {
                SqlType::Number
            }
            other => panic!("a table has a column of type {other}, which nothing here is written as"),
        }
    }

    /// An expression of type VARCHAR that says everything about `value`.
    fn select(&self, value: &str, depth: usize) -> String {
        match self {
            SqlType::Text | SqlType::Json | SqlType::Bool | SqlType::Number | SqlType::Double => {
                format!("({value})::VARCHAR")
            }
            SqlType::Blob => format!("hex({value})"),
            SqlType::Date => format!("(({value}) - DATE '1970-01-01')::VARCHAR"),
            SqlType::Time => format!("datediff('microsecond', TIME '00:00:00', {value})::VARCHAR"),
            SqlType::DateTime | SqlType::Timestamp => format!("epoch_us({value})::VARCHAR"),
            SqlType::List(element) => {
                let each = element.select(&format!("x{depth}"), depth + 1);
                format!("to_json(list_transform({value}, lambda x{depth}: {each}))::VARCHAR")
            }
            SqlType::Struct(fields) => {
                let parts: Vec<String> = fields
                    .iter()
                    .map(|(name, ty)| {
                        let inner = ty.select(&format!("({value}).{}", quote(name)), depth);
                        format!("{} := {inner}", quote(name))
                    })
                    .collect();
                format!(
                    "CASE WHEN ({value}) IS NULL THEN NULL ELSE to_json(struct_pack({})) END::VARCHAR",
                    parts.join(", ")
                )
            }
        }
    }

    /// Reads what [`select`](Self::select) gave.
    fn read(&self, text: Option<&str>) -> Cell {
        let Some(text) = text else { return Cell::Null };
        let micros = || text.parse::<i64>().unwrap_or_else(|_| panic!("{text:?} is no whole number"));
        match self {
            SqlType::Bool => Cell::Bool(text == "true"),
            SqlType::Number => Cell::Number(text.to_owned()),
            SqlType::Double => Cell::Double(text.parse().unwrap_or_else(|_| panic!("{text:?} is no double"))),
            SqlType::Text => Cell::Text(text.to_owned()),
            SqlType::Json => Cell::Json(text.to_owned()),
            SqlType::Blob => Cell::Bytes(unhex(text)),
            SqlType::Date => Cell::Date(micros()),
            SqlType::Time => Cell::Time(micros()),
            SqlType::DateTime => Cell::DateTime(micros()),
            SqlType::Timestamp => Cell::Timestamp(micros()),
            SqlType::List(element) => {
                let values: Vec<Option<String>> = serde_json::from_str(text).unwrap();
                Cell::List(values.iter().map(|v| element.read(v.as_deref())).collect())
            }
            SqlType::Struct(fields) => {
                let values: Json = serde_json::from_str(text).unwrap();
                let read = |(name, ty): &(String, SqlType)| (name.clone(), ty.read(values[name].as_str()));
                Cell::Struct(fields.iter().map(read).collect())
            }
        }
    }
}

/// `fields` cut at its top-level commas.
fn split_fields(fields: &str) -> Vec<String> {
    let (mut parts, mut current, mut depth, mut quoted) = (Vec::new(), String::new(), 0, false);
    for c in fields.chars() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            ',' if !quoted && depth == 0 => {
                parts.push(std::mem::take(&mut current).trim().to_owned());
                continue;
            }
            _ => {}
        }
        current.push(c);
    }
    if !current.trim().is_empty() {
        parts.push(current.trim().to_owned());
    }
    parts
}

fn field(text: &str) -> (String, SqlType) {
    if let Some(rest) = text.strip_prefix('"') {
        let mut end = 0;
        while !rest[end..].starts_with('"') || rest[end..].starts_with("\"\"") {
            end += if rest[end..].starts_with("\"\"") {
                2
            } else {
                rest[end..].chars().next().map_or(1, char::len_utf8)
            };
        }
        return (rest[..end].replace("\"\"", "\""), SqlType::parse(rest[end + 1..].trim()));
    }
    let (name, ty) = text.split_once(' ').unwrap();
    (name.to_owned(), SqlType::parse(ty.trim()))
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| {
        u8::from_str_radix(&text[at..at + 2], 16).unwrap_or_else(|_| panic!("{text:?} is not hexadecimal"))
    };
    (0..text.len()).step_by(2).map(byte).collect()
}

/// A text as SQL has it; one with a NUL is put together.
pub(crate) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\0') {
        format!("('{}')", quoted.replace('\0', "' || chr(0) || '"))
    } else {
        format!("'{quoted}'")
    }
}

/// A name in double quotes.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The rows of a relation, and the names and types of its columns.
#[derive(Debug)]
pub(crate) struct Relation {
    pub(crate) columns: Vec<(String, SqlType)>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Relation {
    /// Reads all of `from`, a quoted name or a subquery in parentheses.
    pub(crate) fn read(connection: &Connection, from: &str) -> Self {
        let mut statement = connection
            .prepare(&format!("SELECT column_name, column_type FROM (DESCRIBE SELECT * FROM {from})"))
            .unwrap_or_else(|e| panic!("{from}: {e}"));
        let columns: Vec<(String, SqlType)> = statement
            .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
            .unwrap()
            .map(|row| row.map(|(name, ty)| (name, SqlType::parse(&ty))).unwrap())
            .collect();
        let selected: Vec<String> = columns.iter().map(|(name, ty)| ty.select(&quote(name), 0)).collect();
        let sql = format!("SELECT {} FROM {from}", selected.join(", "));
        let mut statement = connection.prepare(&sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let mut rows = statement.query([]).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let mut all = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            let cell = |(i, (_, ty)): (usize, &(String, SqlType))| {
                ty.read(row.get::<_, Option<String>>(i).unwrap().as_deref())
            };
            all.push(columns.iter().enumerate().map(cell).collect());
        }
        Self { columns, rows: all }
    }
}

#[test]
fn every_type_comes_back() {
    let connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch(
            "CREATE TABLE t AS SELECT true AS a, 12345678901234567890.123456789012345678::DECIMAL(38,18) AS b, \
             0.1::DOUBLE AS c, 'x' AS d, '\\x00\\xFF'::BLOB AS e, '{\"n\": 1.50}'::JSON AS f, \
             DATE '0001-01-01' AS g, TIME '24:00:00' AS h, TIMESTAMP '2024-02-29 13:14:15.678901' AS i, \
             TIMESTAMPTZ '1970-01-01 00:00:00+00' AS j, [1.10::DECIMAL(10,2), NULL] AS k, \
             {'x': 1.5::DOUBLE, 'a \"b': ['\\xFF'::BLOB]} AS l, NULL::STRUCT(q INTEGER) AS m",
        )
        .unwrap();
    let relation = Relation::read(&connection, "t");
    let expected = vec![
        Cell::Bool(true),
        Cell::Number("12345678901234567890.123456789012345678".into()),
        Cell::Double(0.1),
        Cell::Text("x".into()),
        Cell::Bytes(vec![0, 255]),
        Cell::Json("{\"n\": 1.50}".into()),
        Cell::Date(-719_162),
        Cell::Time(86_400_000_000),
        Cell::DateTime(1_709_212_455_678_901),
        Cell::Timestamp(0),
        Cell::List(vec![Cell::Number("1.10".into()), Cell::Null]),
        Cell::Struct(vec![
            ("x".into(), Cell::Double(1.5)),
            ("a \"b".into(), Cell::List(vec![Cell::Bytes(vec![255])])),
        ]),
        Cell::Null,
    ];
    assert_eq!(relation.rows, [expected]);
}
