//! Tables and views: looked up, made, changed.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::{Error, Result};
use reqwest::Method;
use serde_json::{Map, Value as Json, json};

use crate::dataset::labels_from_json;
use crate::failure::Call;
use crate::field::Field;
use crate::resource::TableId;
use crate::rest::{Ask, Rest, segment};

/// What a table's partitions are parts of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PartitionUnit {
    /// An hour.
    Hour,
    /// A day.
    #[default]
    Day,
    /// A month.
    Month,
    /// A year.
    Year,
}

/// Partitioning by time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Partitioning {
    /// One partition a …
    pub unit: PartitionUnit,
    /// … of this column; `None` for the time of arrival.
    pub column: Option<String>,
    /// How long a partition is kept; `None` for ever.
    pub expiration: Option<Duration>,
}

/// A table or a view, as far as a sink cares.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Its columns. A view's are the service's to say.
    pub fields: Vec<Field>,
    /// Its partitions.
    pub partitioning: Option<Partitioning>,
    /// Columns to cluster by, at most 4.
    pub clustering: Vec<String>,
    /// The columns of the primary key, which nobody enforces.
    pub primary_key: Vec<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What people read about it.
    pub description: Option<String>,
    /// How old the answer to a query may be, for tables with change data capture.
    pub max_staleness: Option<Duration>,
    /// The SQL of a view.
    pub view: Option<String>,
    /// The version that was read.
    pub etag: Option<String>,
}

/// What is to change of a table; the rest stays.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TablePatch {
    /// All columns: those that are there, with what the service told of them, and new ones behind them.
    pub fields: Option<Vec<Field>>,
    /// The partitions' expiration; unit and column have to be the table's.
    pub partitioning: Option<Partitioning>,
    /// Columns to cluster by.
    pub clustering: Option<Vec<String>>,
    /// The primary key; none for an empty one.
    pub primary_key: Option<Vec<String>>,
    /// Labels to add, or to change.
    pub labels: BTreeMap<String, String>,
    /// Another description.
    pub description: Option<String>,
    /// How old answers may be; none for zero.
    pub max_staleness: Option<Duration>,
    /// Other SQL of a view.
    pub view: Option<String>,
    /// The version that this patch was made for: another one is not changed.
    pub etag: Option<String>,
}

impl PartitionUnit {
    fn name(self) -> &'static str {
        match self {
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    fn from_name(name: &str) -> Self {
        [Self::Hour, Self::Month, Self::Year].into_iter().find(|unit| unit.name() == name).unwrap_or_default()
    }
}

impl Partitioning {
    fn to_json(&self) -> Json {
        let mut json = json!({ "type": self.unit.name() });
        if let Some(column) = &self.column {
            json["field"] = json!(column);
        }
        // A patch without one would keep what is there.
        json["expirationMs"] = self.expiration.map_or(Json::Null, |e| json!(e.as_millis().to_string()));
        json
    }

    fn from_json(json: &Json) -> Option<Self> {
        Some(Self {
            unit: PartitionUnit::from_name(json.get("type")?.as_str()?),
            column: json["field"].as_str().map(str::to_owned),
            expiration: integer(&json["expirationMs"]).filter(|ms| *ms > 0).map(Duration::from_millis),
        })
    }
}

/// The API writes 64-bit integers as texts.
pub(crate) fn integer(json: &Json) -> Option<u64> {
    json.as_u64().or_else(|| json.as_str()?.parse().ok())
}

fn names(json: &Json) -> Vec<String> {
    json.as_array().into_iter().flatten().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

fn clustering_json(columns: &[String]) -> Json {
    if columns.is_empty() { Json::Null } else { json!({ "fields": columns }) }
}

fn key_json(columns: &[String]) -> Json {
    if columns.is_empty() { Json::Null } else { json!({ "primaryKey": { "columns": columns } }) }
}

fn view_json(sql: &str) -> Json {
    json!({ "query": sql, "useLegacySql": false })
}

/// `Y-M D H:M:S`, the form of an INTERVAL.
fn interval(duration: Duration) -> String {
    let seconds = duration.as_secs();
    format!("0-0 0 {}:{}:{}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn read_interval(text: &str) -> Option<Duration> {
    let (months, rest) = text.split_once(' ')?;
    let (days, time) = rest.split_once(' ')?;
    let (years, months) = months.split_once('-')?;
    let mut parts =
        time.split(':').map(|part| part.split('.').next().unwrap_or_default().parse::<u64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let days = years
        .parse::<u64>()
        .ok()?
        .checked_mul(365)?
        .checked_add(months.parse::<u64>().ok()?.checked_mul(30)?)?
        .checked_add(days.parse().ok()?)?;
    let seconds = [(days, 86_400), (hours, 3600), (minutes, 60), (seconds, 1)]
        .into_iter()
        .try_fold(0u64, |sum, (count, unit)| sum.checked_add(count.checked_mul(unit)?))?;
    Some(Duration::from_secs(seconds)).filter(|d| !d.is_zero())
}

impl Table {
    /// The resource, as `tables.insert` takes it.
    pub fn to_json(&self, id: &TableId) -> Json {
        let TableId { project, dataset, table } = id;
        let mut json = Map::new();
        let mut put = |key: &str, value: Json| {
            if !value.is_null() {
                json.insert(key.to_owned(), value);
            }
        };
        put("tableReference", json!({ "projectId": project, "datasetId": dataset, "tableId": table }));
        match &self.view {
            Some(sql) => put("view", view_json(sql)),
            None => put("schema", Field::schema_to_json(&self.fields)),
        }
        put("timePartitioning", self.partitioning.as_ref().map_or(Json::Null, Partitioning::to_json));
        put("clustering", clustering_json(&self.clustering));
        put("tableConstraints", key_json(&self.primary_key));
        put("labels", if self.labels.is_empty() { Json::Null } else { json!(self.labels) });
        put("description", json!(self.description));
        put("maxStaleness", json!(self.max_staleness.map(interval)));
        Json::Object(json)
    }

    /// Reads the resource, as `tables.get` answers it; `None` if its schema is none.
    pub fn from_json(json: &Json) -> Option<Self> {
        let text = |json: &Json| json.as_str().map(str::to_owned);
        Some(Self {
            fields: json.get("schema").map_or(Some(Vec::new()), Field::schema_from_json)?,
            partitioning: Partitioning::from_json(&json["timePartitioning"]),
            clustering: names(&json["clustering"]["fields"]),
            primary_key: names(&json["tableConstraints"]["primaryKey"]["columns"]),
            labels: labels_from_json(&json["labels"]),
            description: text(&json["description"]),
            max_staleness: json["maxStaleness"].as_str().and_then(read_interval),
            view: text(&json["view"]["query"]).or_else(|| text(&json["materializedView"]["query"])),
            etag: text(&json["etag"]),
        })
    }
}

impl TablePatch {
    /// The body of `tables.patch`.
    pub fn to_json(&self) -> Json {
        let mut json = Map::new();
        let mut put = |key: &str, value: Option<Json>| {
            if let Some(value) = value {
                json.insert(key.to_owned(), value);
            }
        };
        put("schema", self.fields.as_deref().map(Field::schema_to_json));
        put("timePartitioning", self.partitioning.as_ref().map(Partitioning::to_json));
        put("clustering", self.clustering.as_deref().map(clustering_json));
        put("tableConstraints", self.primary_key.as_deref().map(key_json));
        put("labels", (!self.labels.is_empty()).then(|| json!(self.labels)));
        put("description", self.description.as_ref().map(|d| json!(d)));
        put(
            "maxStaleness",
            self.max_staleness.map(|d| if d.is_zero() { Json::Null } else { json!(interval(d)) }),
        );
        put("view", self.view.as_deref().map(view_json));
        Json::Object(json)
    }
}

fn tables_path(id: &TableId) -> String {
    format!("{}/datasets/{}/tables", segment(&id.project), segment(&id.dataset))
}

fn read(id: &TableId, json: &Json) -> Result<Table> {
    Table::from_json(json).ok_or_else(|| {
        Error::fatal(format!(
            "BigQuery answers with a schema of {id} that cannot be read: please report this as a bug"
        ))
    })
}

impl Rest {
    /// A table or view; `None` if there is none of this name, or no such dataset.
    ///
    /// # Errors
    /// If it cannot be looked up.
    pub async fn table(&self, id: &TableId) -> Result<Option<Table>> {
        let call =
            Call { what: "look up the table", resource: &id.to_string(), permission: "bigquery.tables.get" };
        let ask = Ask::get(format!("{}/{}", tables_path(id), segment(&id.table)));
        match self.ask(&ask).await {
            Ok(json) => read(id, &json).map(Some),
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(failure.error(&call)),
        }
    }

    /// Makes a table or view. False if there was one of this name already, which then stays as it is.
    ///
    /// # Errors
    /// If it cannot be made.
    pub async fn create_table(&self, id: &TableId, table: &Table) -> Result<bool> {
        let call = Call {
            what: "create the table",
            resource: &id.to_string(),
            permission: "bigquery.tables.create",
        };
        match self.ask(&Ask::post(tables_path(id), table.to_json(id))).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_duplicate() => Ok(false),
            Err(failure) => Err(failure.error(&call)),
        }
    }

    /// Changes a table or view and returns what it is then.
    ///
    /// # Errors
    /// If it cannot be changed so. A transient one if its etag is no longer the patch's: read it again and decide anew.
    pub async fn patch_table(&self, id: &TableId, patch: &TablePatch) -> Result<Table> {
        let call = Call {
            what: "change the table",
            resource: &id.to_string(),
            permission: "bigquery.tables.update",
        };
        let path = format!("{}/{}", tables_path(id), segment(&id.table));
        let ask =
            Ask { body: Some(patch.to_json()), etag: patch.etag.as_deref(), ..Ask::new(Method::PATCH, path) };
        read(id, &self.answer(&call, &ask).await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column_type::ColumnType;

    fn table() -> Table {
        Table {
            fields: vec![Field::new("id", ColumnType::Int64), Field::new("at", ColumnType::Timestamp)],
            partitioning: Some(Partitioning {
                column: Some("at".to_owned()),
                expiration: Some(Duration::from_secs(90 * 86_400)),
                ..Partitioning::default()
            }),
            clustering: vec!["id".to_owned()],
            primary_key: vec!["id".to_owned()],
            labels: [("made_by".to_owned(), "millstream".to_owned())].into(),
            description: Some("orders".to_owned()),
            max_staleness: Some(Duration::from_secs(3661)),
            ..Table::default()
        }
    }

    #[test]
    fn a_table_comes_back_from_its_resource() {
        let id = crate::DatasetId::new("p", "d").table("t");
        let json = table().to_json(&id);
        assert_eq!(
            json["timePartitioning"],
            json!({ "type": "DAY", "field": "at", "expirationMs": "7776000000" })
        );
        assert_eq!(json["maxStaleness"], "0-0 0 1:1:1");
        assert_eq!(json["tableConstraints"], json!({ "primaryKey": { "columns": ["id"] } }));
        assert_eq!(Table::from_json(&json), Some(table()));
        let view = Table { view: Some("SELECT 1".to_owned()), ..Table::default() };
        assert_eq!(view.to_json(&id)["view"], json!({ "query": "SELECT 1", "useLegacySql": false }));
        assert!(view.to_json(&id).get("schema").is_none());
    }

    #[test]
    fn a_patch_says_only_what_changes() {
        assert_eq!(TablePatch::default().to_json(), json!({}));
        let patch = TablePatch {
            partitioning: Some(Partitioning::default()),
            primary_key: Some(Vec::new()),
            max_staleness: Some(Duration::ZERO),
            ..TablePatch::default()
        };
        let expected = json!({ "timePartitioning": { "type": "DAY", "expirationMs": null }, "tableConstraints": null, "maxStaleness": null });
        assert_eq!(patch.to_json(), expected);
    }

    #[test]
    fn intervals_are_read_or_not() {
        assert_eq!(read_interval("0-0 1 0:0:0.5"), Some(Duration::from_secs(86_400)));
        assert_eq!(read_interval("1-1 0 0:0:1"), Some(Duration::from_secs(395 * 86_400 + 1)));
        for text in [
            "",
            "0-0 0 0:0:0",
            "a",
            "0-0 0 1:2",
            "0-0 99999999999999999999 0:0:0",
            "0-0 9999999999999999999 0:0:0",
        ] {
            assert_eq!(read_interval(text), None, "{text}");
        }
    }
}
