//! Scheduled queries: configurations of the BigQuery Data Transfer Service, of its data source `scheduled_query`.

use millstream_core::Result;
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::failure::Call;
use crate::rest::{Ask, Rest, Service, segment};

/// What a scheduled query is to be.
pub(crate) struct ScheduledQuery<'a> {
    /// By which it is found again.
    pub(crate) display_name: &'a str,
    /// Where its result goes, in place of the last one.
    pub(crate) dataset: &'a str,
    pub(crate) table: &'a str,
    pub(crate) sql: &'a str,
    /// As the service has it: `every 24 hours`.
    pub(crate) schedule: &'a str,
}

impl ScheduledQuery<'_> {
    fn to_json(&self) -> Json {
        let params = json!({
            "query": self.sql,
            "destination_table_name_template": self.table,
            "write_disposition": "WRITE_TRUNCATE",
        });
        json!({
            "displayName": self.display_name,
            "dataSourceId": "scheduled_query",
            "destinationDatasetId": self.dataset,
            "schedule": self.schedule,
            "params": params,
        })
    }

    /// Whether a configuration is this one already.
    fn is(&self, there: &Json) -> bool {
        let wanted = self.to_json();
        let same = |pointer: &str| there.pointer(pointer) == wanted.pointer(pointer);
        ["/destinationDatasetId", "/schedule", "/params/query", "/params/destination_table_name_template"]
            .into_iter()
            .all(same)
    }
}

impl Rest {
    /// Finds a scheduled query by its display name and makes it what it is to be, or makes it.
    ///
    /// # Errors
    /// If it cannot be looked up, made or changed.
    pub(crate) async fn put_scheduled_query(
        &self,
        project: &str,
        location: &str,
        query: &ScheduledQuery<'_>,
    ) -> Result<()> {
        // The service's own names of locations are in lower case.
        let place =
            format!("{}/locations/{}/transferConfigs", segment(project), segment(&location.to_lowercase()));
        let call = Call {
            what: "schedule the query",
            resource: query.display_name,
            permission: "bigquery.transfers.update",
        };
        let ask = |ask: Ask<'static>| Ask { service: Service::DataTransfer, ..ask };
        let mut page: Option<String> = None;
        loop {
            let mut parameters = vec![("dataSourceIds", "scheduled_query".to_owned())];
            parameters.extend(page.take().map(|token| ("pageToken", token)));
            let listed =
                self.answer(&call, &ask(Ask { query: parameters, ..Ask::get(place.clone()) })).await?;
            let all = listed["transferConfigs"].as_array().map(Vec::as_slice).unwrap_or_default();
            let Some(found) = all.iter().find(|there| there["displayName"] == query.display_name) else {
                page = listed["nextPageToken"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
                if page.is_some() {
                    continue;
                }
                return self.answer(&call, &ask(Ask::post(place, query.to_json()))).await.map(drop);
            };
            if query.is(found) {
                return Ok(());
            }
            let name = found["name"].as_str().and_then(|name| name.rsplit('/').next()).unwrap_or_default();
            let mask = ("updateMask", "params,schedule,destinationDatasetId".to_owned());
            let path = format!("{place}/{}", segment(name));
            let body = Some(query.to_json());
            let change = Ask { query: vec![mask], body, ..Ask::new(Method::PATCH, path) };
            return self.answer(&call, &ask(change)).await.map(drop);
        }
    }
}
