//! What a config's tables mean, and plain messages, which are rows of them.

use std::collections::BTreeMap;

use millstream_bigquery::{PartitionUnit, TableDesign};
use millstream_core::{Error, Result, Type};
use millstream_decode::{BareNumeric, ColumnHint, parse_schema_file};

use super::Checker;
use crate::config::{
    self, BigqueryLayout, Config, DecodeConfig, Format, JsonConfig, NotFinite, SinkConfig, Step, TableConfig,
};

/// Columns by which BigQuery clusters at most.
const CLUSTERING_MAX: usize = 4;

/// Columns by name, in order.
type Declared = Vec<(String, ColumnHint)>;

/// The columns that the config declares for a table; none if it declares none. Reads its schema file.
pub(crate) fn columns(table: &TableConfig, format: Format) -> Result<Declared> {
    let bare = match format {
        Format::Json => BareNumeric::OfWarehouse,
        Format::Debezium | Format::DebeziumFlat => BareNumeric::OfSource,
    };
    match (&table.columns, &table.schema) {
        (Some(columns), _) => parse_schema_file(&columns.schema().to_string(), bare),
        (None, Some(file)) => {
            let shown = format!("schema file {}", file.display());
            let text = std::fs::read_to_string(file)
                .map_err(|e| Error::fatal(format!("cannot read the {shown}")).with_source(e))?;
            parse_schema_file(&text, bare).map_err(|e| e.at(shown))
        }
        (None, None) => Ok(Vec::new()),
    }
}

/// How BigQuery's tables of plain rows are made.
pub(super) fn designs(tables: &BTreeMap<String, TableConfig>) -> BTreeMap<String, TableDesign> {
    let design = |table: &TableConfig| TableDesign {
        partition_by: table.partition_by.clone().map(|column| {
            let unit = match table.partition_unit.unwrap_or_default() {
                config::PartitionUnit::Hour => PartitionUnit::Hour,
                config::PartitionUnit::Day => PartitionUnit::Day,
                config::PartitionUnit::Month => PartitionUnit::Month,
                config::PartitionUnit::Year => PartitionUnit::Year,
            };
            (column, unit)
        }),
        cluster_by: table.cluster_by.clone().unwrap_or_default(),
    };
    tables.iter().map(|(name, table)| (name.clone(), design(table))).collect()
}

impl Checker<'_> {
    pub(super) fn tables(&mut self, config: &Config) -> BTreeMap<String, TableConfig> {
        let mut tables = config.tables.clone();
        let has_rows = config.sinks.iter().any(is_bigquery_rows);
        for (name, table) in &mut tables {
            let at = |key: &str| [Step::from("tables"), Step::from(&**name), Step::from(key)];
            if table.key.as_ref().is_some_and(|key| key.iter().any(String::is_empty)) {
                self.problem(&at("key"), "a column of `key` has no name", "");
            }
            if let Some(key) = &table.key
                && let Some(twice) = key.iter().enumerate().find(|(i, c)| key[..*i].contains(c))
            {
                self.problem(&at("key"), format!("column `{}` is named twice", twice.1), "");
            }
            for (key, is_given) in [
                ("partition_by", table.partition_by.is_some()),
                ("partition_unit", table.partition_unit.is_some()),
                ("cluster_by", table.cluster_by.is_some()),
            ] {
                if is_given && !has_rows {
                    let help = "histories are partitioned by the time of ingestion";
                    self.problem(
                        &at(key),
                        format!("`{key}` is for BigQuery sinks with `layout: rows`"),
                        help,
                    );
                }
            }
            if table.schema.is_some() && table.columns.is_some() {
                self.problem(&at("columns"), "the columns are in the `schema` file already", "leave one out");
            }
            if let Some(schema) = &mut table.schema {
                *schema = self.base.join(&*schema);
                if let Err(e) = std::fs::metadata(&*schema) {
                    self.problem(&at("schema"), format!("cannot read this schema file: {e}"), "");
                    continue;
                }
            }
            let is_json = config.decode.format == Format::Json;
            if is_json || table.columns.is_some() {
                let key = if table.columns.is_some() { "columns" } else { "schema" };
                match columns(table, config.decode.format) {
                    Ok(columns) => self.table(config, name, table, &columns),
                    Err(error) => self.problem(&at(key), error.to_string(), ""),
                }
            }
        }
        tables
    }

    /// Whether what is said of a table fits its columns.
    fn table(&mut self, config: &Config, name: &str, table: &TableConfig, columns: &Declared) {
        let at = |key: &str| [Step::from("tables"), Step::from(name), Step::from(key)];
        if config.decode.format != Format::Json {
            return;
        }
        if table.replica_identity.is_some() {
            self.problem(&at("replica_identity"), "plain messages have no replica identity", "");
        }
        if columns.is_empty() {
            for (key, is_given) in
                [("partition_by", table.partition_by.is_some()), ("cluster_by", table.cluster_by.is_some())]
            {
                if is_given {
                    let help = "a table that is there, whose columns are taken, stays as it is";
                    self.problem(&at(key), format!("`{key}` needs `columns` or a `schema`"), help);
                }
            }
            if !table.exclude && !config.sinks.iter().any(is_bigquery_rows) {
                let help = "for example: columns: { id: INT64, name: STRING }";
                let place = [Step::from("tables"), Step::from(name)];
                self.problem(&place, "a table of plain messages needs `columns` or a `schema`", help);
            }
            return;
        }
        let of = |column: &String| columns.iter().find(|(name, _)| name == column).map(|(_, hint)| &hint.ty);
        for column in table.key.iter().flatten().filter(|column| of(column).is_none()) {
            self.problem(&at("key"), format!("the table declares no column `{column}`"), "");
        }
        let unit = table.partition_unit.unwrap_or_default();
        match table.partition_by.as_ref().map(|column| (column, of(column))) {
            None if table.partition_unit.is_some() => {
                self.problem(&at("partition_unit"), "`partition_unit` needs `partition_by`", "");
            }
            None | Some((_, Some(Type::Timestamp | Type::DateTime))) => {}
            Some((_, Some(Type::Date))) if unit != config::PartitionUnit::Hour => {}
            Some((_, Some(Type::Date))) => {
                self.problem(&at("partition_unit"), "a DATE has no hours", "use `day`, `month` or `year`");
            }
            Some((column, Some(_))) => {
                let message = format!("`{column}` is no DATE, DATETIME or TIMESTAMP");
                self.problem(&at("partition_by"), message, "BigQuery partitions by times");
            }
            Some((column, None)) => {
                self.problem(&at("partition_by"), format!("the table declares no column `{column}`"), "");
            }
        }
        let cluster_by = table.cluster_by.as_deref().unwrap_or_default();
        if cluster_by.len() > CLUSTERING_MAX {
            let message = format!("BigQuery clusters by {CLUSTERING_MAX} columns at most");
            self.problem(&at("cluster_by"), message, "");
        }
        for column in cluster_by {
            match of(column) {
                None => {
                    self.problem(&at("cluster_by"), format!("the table declares no column `{column}`"), "");
                }
                Some(
                    Type::Float64 | Type::Bytes | Type::Json | Type::Time | Type::List(_) | Type::Struct(_),
                ) => {
                    let message = format!("BigQuery does not cluster by a column of `{column}`'s type");
                    self.problem(&at("cluster_by"), message, "");
                }
                Some(_) => {}
            }
        }
    }

    /// What is told of plain messages, with the table of those that tell none.
    pub(super) fn json(&mut self, config: &Config) -> Option<JsonConfig> {
        let at = |key: &str| [Step::from("decode"), Step::from(key)];
        if config.decode.format != Format::Json {
            if config.decode.json.is_some() {
                let help = "add `format: json`, or remove `json`";
                self.problem(&at("json"), "`json` is only for `format: json`", help);
            }
            return None;
        }
        for (key, is_given) in of_debezium(&config.decode) {
            if is_given {
                self.problem(&at(key), format!("`{key}` is for Debezium's events"), "leave it out");
            }
        }
        if config.decode.not_finite == Some(NotFinite::String) {
            let help = "a declared column keeps its type: use `dead-letter`, `null` or `clamp`";
            self.problem(&at("not_finite"), "`not_finite: string` is for Debezium's events", help);
        }
        let mut json = config.decode.json.clone().unwrap_or_default();
        let within = |key: &str| [Step::from("decode"), Step::from("json"), Step::from(key)];
        let mut declared = config.tables.iter().filter(|(_, table)| !table.exclude).map(|(name, _)| name);
        match &json.table {
            Some(table) if config.tables.get(table).is_none_or(|table| table.exclude) => {
                let near = config::nearest(table, config.tables.keys().map(String::as_str));
                let help = near.map(|near| format!("did you mean `{near}`?")).unwrap_or_default();
                self.problem(&within("table"), format!("`tables` declares no `{table}`"), help);
            }
            Some(_) => {}
            None if json.table_field.is_some() || json.table_attribute.is_some() => {}
            None => match (declared.next(), declared.next()) {
                (Some(only), None) => json.table = Some(only.clone()),
                _ => {
                    let help =
                        "`json: { table: … }`, or `table_field` or `table_attribute` if messages tell it";
                    self.problem(&at("format"), "nothing tells which table a message is for", help);
                }
            },
        }
        Some(json)
    }

    /// Whether a sink's layout is one for what is decoded.
    pub(super) fn layout_of_format(&mut self, index: usize, layout: &str, format: Format) {
        let place = [Step::from("sinks"), Step::from(index), Step::from("layout")];
        match (format, layout) {
            (Format::Json, "rows" | "append") => {}
            (Format::Json, _) => self.problem(
                &place,
                format!("`layout: {layout}` is for changes of rows, and `format: json` has rows alone"),
                "use `layout: rows`, or `layout: append` for the time of ingestion beside each row",
            ),
            (_, "rows") => self.problem(
                &place,
                "`layout: rows` is for `decode: { format: json }`: changes are no plain rows",
                "use `layout: replica` for current rows, or `layout: append` for all changes",
            ),
            _ => {}
        }
    }
}

fn is_bigquery_rows(sink: &SinkConfig) -> bool {
    matches!(sink, SinkConfig::Bigquery(bigquery) if bigquery.layout == BigqueryLayout::Rows)
}

/// What is only said of Debezium's events.
fn of_debezium(decode: &DecodeConfig) -> [(&'static str, bool); 7] {
    [
        ("decimal_handling_mode", decode.decimal_handling_mode.is_some()),
        ("time_precision_mode", decode.time_precision_mode.is_some()),
        ("interval_handling_mode", decode.interval_handling_mode.is_some()),
        ("hstore_handling_mode", decode.hstore_handling_mode.is_some()),
        ("unavailable_value_placeholder", decode.unavailable_value_placeholder.is_some()),
        ("datetime_as_timestamp", decode.datetime_as_timestamp),
        ("messages", decode.messages.is_some()),
    ]
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;

    /// The rendered problems of a config.
    fn said(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.yaml");
        std::fs::write(&file, format!("source: {{ type: files, path: in }}\n{text}")).unwrap();
        match Plan::read(&file, &|_| None) {
            Ok(_) => "fine".to_owned(),
            Err(problems) => problems.render(false),
        }
    }

    const ROWS: &str = "sinks: [{ type: bigquery, project: acme, dataset: d, layout: rows }]";
    const DUCKDB: &str = "sinks: [{ type: duckdb, path: o, layout: rows }]";

    #[test]
    fn the_only_table_is_that_of_all_messages() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.yaml");
        let text = "source: { type: files, path: in }\ndecode: { format: json }\ntables: { m.t: { columns: { a: INT64 } }, x: { exclude: true } }\n";
        std::fs::write(&file, format!("{text}{DUCKDB}")).unwrap();
        let plan = Plan::read(&file, &|_| None).unwrap();
        assert_eq!(plan.decode.json.unwrap().table.as_deref(), Some("m.t"));
    }

    #[test]
    fn what_makes_no_sense_of_plain_messages_is_refused() {
        let json =
            |table: &str| format!("decode: {{ format: json }}\ntables: {{ t: {{ {table} }} }}\n{ROWS}");
        let decode = |decode: &str| {
            format!(
                "decode: {{ format: json, {decode} }}\ntables: {{ t: {{ columns: {{ a: INT64 }} }} }}\n{DUCKDB}"
            )
        };
        let columns = "columns: { a: INT64, f: FLOAT64, d: DATE, at: TIMESTAMP }";
        let sink = |sink: &str| {
            format!("decode: {{ format: json }}\ntables: {{ t: {{ {columns} }} }}\nsinks: [{{ {sink} }}]")
        };
        let bigquery = |keys: &str| sink(&format!("type: bigquery, project: acme, dataset: d, {keys}"));
        let cases = [
            (format!("decode: {{ format: json }}\n{DUCKDB}"), "nothing tells which table a message is for"),
            (json("key: [a]"), "fine"),
            (json("cluster_by: [a]"), "`cluster_by` needs `columns` or a `schema`"),
            (
                format!("decode: {{ format: json }}\ntables: {{ t: {{ key: [a] }} }}\n{DUCKDB}"),
                "a table of plain messages needs `columns` or a `schema`",
            ),
            (json("columns: { a: INT65 }"), "column a: unknown type INT65"),
            (json("columns: { a: { type: INT64, modes: X } }"), "unknown key `modes`"),
            (json("columns: { a: INT64 }, schema: p.yaml"), "the columns are in the `schema` file already"),
            (json(&format!("{columns}, key: [b]")), "the table declares no column `b`"),
            (json(&format!("{columns}, partition_by: b")), "the table declares no column `b`"),
            (json(&format!("{columns}, partition_by: a")), "`a` is no DATE, DATETIME or TIMESTAMP"),
            (json(&format!("{columns}, partition_by: d, partition_unit: hour")), "a DATE has no hours"),
            (json(&format!("{columns}, partition_unit: hour")), "`partition_unit` needs `partition_by`"),
            (
                json(&format!("{columns}, cluster_by: [f]")),
                "BigQuery does not cluster by a column of `f`'s type",
            ),
            (
                json(&format!("{columns}, cluster_by: [a, a, a, a, a]")),
                "BigQuery clusters by 4 columns at most",
            ),
            (json(&format!("{columns}, replica_identity: full")), "plain messages have no replica identity"),
            (decode("json: { table: tt }"), "`tables` declares no `tt`"),
            (decode("json: { tabel: t }"), "did you mean `table`?"),
            (decode("messages: m.t"), "`messages` is for Debezium's events"),
            (decode("decimal_handling_mode: double"), "`decimal_handling_mode` is for Debezium's events"),
            (decode("not_finite: string"), "`not_finite: string` is for Debezium's events"),
            (format!("decode: {{ json: {{ table: t }} }}\n{DUCKDB}"), "`json` is only for `format: json`"),
            (ROWS.to_owned(), "`layout: rows` is for `decode: { format: json }`"),
            (DUCKDB.to_owned(), "`layout: rows` is for `decode: { format: json }`"),
            (sink("type: duckdb, path: o, layout: replica"), "`layout: replica` is for changes of rows"),
            (bigquery("layout: envelope"), "`layout: envelope` is for changes of rows"),
            (sink("type: pubsub, project: p, topic: t"), "a Pub/Sub sink publishes changes of rows"),
            (
                bigquery("layout: rows, on_type_change: stop"),
                "`layout: rows` has the columns that are declared",
            ),
            (
                sink("type: duckdb, path: o, layout: rows, on_type_change: stop"),
                "has the columns that are declared",
            ),
            (bigquery("layout: rows, partition_expiration: 1d"), "no table of plain rows has partitions"),
            (bigquery("layout: rows, delivery: upsert"), "`delivery: upsert` is only for `layout: replica`"),
            (
                "tables: { t: { partition_by: d } }\nsinks: [{ type: discard }]".to_owned(),
                "`partition_by` is for BigQuery sinks with `layout: rows`",
            ),
            (
                json(&format!(
                    "{columns}, key: [a], partition_by: at, partition_unit: hour, cluster_by: [a, d]"
                )),
                "fine",
            ),
            (bigquery("layout: rows, delivery: load, load: { bucket: loads }"), "fine"),
            (bigquery("layout: append"), "fine"),
        ];
        for (config, told) in cases {
            let said = said(&config);
            assert!(said.contains(told), "{config}\n{told}\n{said}");
        }
    }
}
