//! INFORMATION_SCHEMA, made from what the emulator knows of datasets and tables.

use serde_json::Value;

use super::Session;
use crate::failure::Failure;
use crate::schema::{Column, Mode, Schema, literal, quoted};
use crate::table::{Kind, Shared};

/// A view under construction: its columns, and rows as SQL literals.
struct Listing {
    columns: Vec<(&'static str, &'static str)>,
    rows: Vec<Vec<String>>,
}

impl Listing {
    /// As a query.
    fn sql(&self) -> String {
        let names = self.columns.iter().enumerate();
        let names: Vec<_> =
            names.map(|(i, (name, ty))| format!("CAST(c{i} AS {ty}) AS {}", quoted(name))).collect();
        let aliases: Vec<_> = (0..self.columns.len()).map(|i| format!("c{i}")).collect();
        let mut rows: Vec<_> = self.rows.iter().map(|row| format!("({})", row.join(", "))).collect();
        let empty = rows.is_empty();
        if empty {
            rows.push(format!("({})", vec!["NULL"; self.columns.len()].join(", ")));
        }
        let none = if empty { " WHERE false" } else { "" };
        let (names, rows, aliases) = (names.join(", "), rows.join(", "), aliases.join(", "));
        format!("SELECT {names} FROM (VALUES {rows}) AS v({aliases}){none}")
    }
}

fn yes(is: bool) -> String {
    literal(if is { "YES" } else { "NO" })
}

fn text(value: Option<&Value>) -> String {
    value.and_then(Value::as_str).map_or_else(|| "NULL".to_owned(), literal)
}

const PLACE: [(&str, &str); 3] =
    [("table_catalog", "VARCHAR"), ("table_schema", "VARCHAR"), ("table_name", "VARCHAR")];

/// The query that stands for a view.
pub(crate) fn query(
    session: &Session<'_>,
    project: &str,
    dataset: Option<&str>,
    view: &str,
) -> Result<String, Failure> {
    let warehouse = session.warehouse;
    if view == "SCHEMATA" {
        let columns = vec![
            ("catalog_name", "VARCHAR"),
            ("schema_name", "VARCHAR"),
            ("location", "VARCHAR"),
            ("creation_time", "TIMESTAMPTZ"),
        ];
        let datasets = warehouse.datasets();
        let rows = datasets.iter().filter(|((p, _), _)| p == project);
        let rows = rows.map(|((project, name), dataset)| {
            let created = format!("make_timestamptz({})", dataset.created * 1000);
            vec![literal(project), literal(name), literal(&dataset.location), created]
        });
        return Ok(Listing { columns, rows: rows.collect() }.sql());
    }
    let tables: Vec<Shared> = {
        let datasets = warehouse.datasets();
        if let Some(dataset) = dataset
            && !datasets.contains_key(&(project.to_owned(), dataset.to_owned()))
        {
            return Err(Failure::not_found(format!("Not found: Dataset {project}:{dataset}")));
        }
        let of =
            datasets.iter().filter(|((p, d), _)| p == project && dataset.is_none_or(|wanted| wanted == d));
        of.flat_map(|(_, dataset)| dataset.tables.values().cloned()).collect()
    };
    let mut columns = PLACE.to_vec();
    let mut rows = Vec::new();
    let place = |t: &Shared| vec![literal(&t.id.project), literal(&t.id.dataset), literal(&t.id.table)];
    match view {
        "TABLES" => {
            columns.extend([
                ("table_type", "VARCHAR"),
                ("is_insertable_into", "VARCHAR"),
                ("creation_time", "TIMESTAMPTZ"),
                ("ddl", "VARCHAR"),
                ("upsert_stream_apply_watermark", "TIMESTAMPTZ"),
            ]);
            for table in &tables {
                let state = table.lock();
                let kind = match state.kind {
                    Kind::Table => "BASE TABLE",
                    Kind::View(_) => "VIEW",
                    Kind::MaterializedView(_) => "MATERIALIZED VIEW",
                };
                let moment = |micros: i64| format!("make_timestamptz({micros})");
                let mut row = place(table);
                row.extend([
                    literal(kind),
                    yes(state.kind == Kind::Table),
                    moment(state.created * 1000),
                    "NULL".to_owned(),
                    state.watermark.map_or_else(|| "NULL".to_owned(), moment),
                ]);
                rows.push(row);
            }
        }
        "COLUMNS" => {
            columns.extend([
                ("column_name", "VARCHAR"),
                ("ordinal_position", "BIGINT"),
                ("is_nullable", "VARCHAR"),
                ("data_type", "VARCHAR"),
                ("is_hidden", "VARCHAR"),
                ("is_partitioning_column", "VARCHAR"),
                ("clustering_ordinal_position", "BIGINT"),
                ("column_default", "VARCHAR"),
            ]);
            for table in &tables {
                let state = table.lock();
                let partition = state.resource.get("timePartitioning").and_then(|p| p.get("field"));
                let partition = partition.and_then(Value::as_str).map(str::to_owned);
                let clustering = state.resource.get("clustering").and_then(|c| c.get("fields")).cloned();
                for (i, column) in state.schema.iter().enumerate() {
                    let position = clustering.as_ref().and_then(Value::as_array).and_then(|names| {
                        names
                            .iter()
                            .position(|n| n.as_str().is_some_and(|n| n.eq_ignore_ascii_case(&column.name)))
                    });
                    let mut row = place(table);
                    row.extend([
                        literal(&column.name),
                        (i + 1).to_string(),
                        yes(column.mode == Mode::Nullable),
                        literal(&column.sql_type()),
                        yes(false),
                        yes(partition.as_deref().is_some_and(|p| p.eq_ignore_ascii_case(&column.name))),
                        position.map_or_else(|| "NULL".to_owned(), |p| (p + 1).to_string()),
                        column
                            .rest
                            .get("defaultValueExpression")
                            .map_or_else(|| literal("NULL"), |d| text(Some(d))),
                    ]);
                    rows.push(row);
                }
            }
        }
        "COLUMN_FIELD_PATHS" => {
            columns.extend([
                ("column_name", "VARCHAR"),
                ("field_path", "VARCHAR"),
                ("data_type", "VARCHAR"),
                ("description", "VARCHAR"),
            ]);
            for table in &tables {
                let schema: Schema = table.lock().schema.clone();
                for column in schema.iter() {
                    paths(column, &column.name, &mut |path, field| {
                        let mut row = place(table);
                        row.extend([
                            literal(&column.name),
                            literal(path),
                            literal(&field.sql_type()),
                            text(field.rest.get("description")),
                        ]);
                        rows.push(row);
                    });
                }
            }
        }
        "TABLE_OPTIONS" => {
            columns.extend([
                ("option_name", "VARCHAR"),
                ("option_type", "VARCHAR"),
                ("option_value", "VARCHAR"),
            ]);
            for table in &tables {
                let state = table.lock();
                let mut add = |name: &str, ty: &str, value: String| {
                    let mut row = place(table);
                    row.extend([literal(name), literal(ty), literal(&value)]);
                    rows.push(row);
                };
                if let Some(Value::String(description)) = state.resource.get("description") {
                    add("description", "STRING", format!("{description:?}"));
                }
                if let Some(Value::String(staleness)) = state.resource.get("maxStaleness") {
                    add("max_staleness", "INTERVAL", format!("INTERVAL \"{staleness}\" YEAR TO SECOND"));
                }
                if let Some(Value::Object(labels)) = state.resource.get("labels") {
                    let pairs = labels.iter().map(|(k, v)| format!("STRUCT({k:?}, {v})"));
                    add(
                        "labels",
                        "ARRAY<STRUCT<STRING, STRING>>",
                        format!("[{}]", pairs.collect::<Vec<_>>().join(", ")),
                    );
                }
            }
        }
        "VIEWS" => {
            columns.extend([("view_definition", "VARCHAR"), ("use_standard_sql", "VARCHAR")]);
            for table in &tables {
                if let Kind::View(query) = &table.lock().kind {
                    let mut row = place(table);
                    row.extend([literal(query), yes(true)]);
                    rows.push(row);
                }
            }
        }
        "KEY_COLUMN_USAGE" => {
            columns.extend([
                ("constraint_name", "VARCHAR"),
                ("column_name", "VARCHAR"),
                ("ordinal_position", "BIGINT"),
            ]);
            for table in &tables {
                for (i, key) in table.lock().key_names().iter().enumerate() {
                    let mut row = place(table);
                    row.extend([
                        literal(&format!("{}.pk$", table.id.table)),
                        literal(key),
                        (i + 1).to_string(),
                    ]);
                    rows.push(row);
                }
            }
        }
        "TABLE_CONSTRAINTS" => {
            columns.extend([
                ("constraint_name", "VARCHAR"),
                ("constraint_type", "VARCHAR"),
                ("enforced", "VARCHAR"),
            ]);
            for table in tables.iter().filter(|t| !t.lock().key_names().is_empty()) {
                let mut row = place(table);
                row.extend([literal(&format!("{}.pk$", table.id.table)), literal("PRIMARY KEY"), yes(false)]);
                rows.push(row);
            }
        }
        other => return Err(Failure::unsupported(format!("INFORMATION_SCHEMA.{other}"))),
    }
    Ok(Listing { columns, rows }.sql())
}

fn paths(column: &Column, path: &str, each: &mut dyn FnMut(&str, &Column)) {
    each(path, column);
    for field in column.columns().unwrap_or_default() {
        paths(field, &format!("{path}.{}", field.name), each);
    }
}
