//! Datasets.

use std::collections::BTreeMap;

use millstream_core::{Error, Result};
use serde_json::{Value as Json, json};

use crate::failure::Call;
use crate::resource::DatasetId;
use crate::rest::{Ask, Rest, segment};

/// A dataset, as far as a sink cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Its name.
    pub id: DatasetId,
    /// Where its data lies, e.g. `EU`; `None` leaves it to the service.
    pub location: Option<String>,
    /// What people read about it.
    pub description: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl Dataset {
    /// A dataset where the service puts it.
    pub fn new(id: DatasetId) -> Self {
        Self { id, location: None, description: None, labels: BTreeMap::new() }
    }

    fn to_json(&self) -> Json {
        let DatasetId { project, dataset } = &self.id;
        let mut json = json!({ "datasetReference": { "projectId": project, "datasetId": dataset } });
        if let Some(location) = &self.location {
            json["location"] = json!(location);
        }
        if let Some(description) = &self.description {
            json["description"] = json!(description);
        }
        if !self.labels.is_empty() {
            json["labels"] = json!(self.labels);
        }
        json
    }

    fn from_json(id: &DatasetId, json: &Json) -> Self {
        let text = |key: &str| json[key].as_str().map(str::to_owned);
        let labels = labels_from_json(&json["labels"]);
        Self { id: id.clone(), location: text("location"), description: text("description"), labels }
    }
}

pub(crate) fn labels_from_json(json: &Json) -> BTreeMap<String, String> {
    let labels = json.as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

impl Rest {
    /// A dataset; `None` if there is none of this name.
    ///
    /// # Errors
    /// If it cannot be looked up.
    pub async fn dataset(&self, id: &DatasetId) -> Result<Option<Dataset>> {
        let call = Call {
            what: "look up the dataset",
            resource: &id.to_string(),
            permission: "bigquery.datasets.get",
        };
        let ask = Ask::get(format!("{}/datasets/{}", segment(&id.project), segment(&id.dataset)));
        match self.ask(&ask).await {
            Ok(json) => Ok(Some(Dataset::from_json(id, &json))),
            // A project that does not exist is no reason to make a dataset.
            Err(failure) if failure.is_not_found() && !failure.message.contains("Not found: Project") => {
                Ok(None)
            }
            Err(failure) => Err(failure.error(&call)),
        }
    }

    /// Makes a dataset. False if there was one of this name already, which then stays as it is.
    ///
    /// # Errors
    /// If it cannot be made.
    pub async fn create_dataset(&self, dataset: &Dataset) -> Result<bool> {
        let call = Call {
            what: "create the dataset",
            resource: &dataset.id.to_string(),
            permission: "bigquery.datasets.create",
        };
        if let Some(problem) = crate::names::dataset_problem(&dataset.id.dataset) {
            return Err(Error::fatal(format!(
                "cannot {} {}: its name is refused: {problem}",
                call.what, call.resource
            )));
        }
        let ask = Ask::post(format!("{}/datasets", segment(&dataset.id.project)), dataset.to_json());
        match self.ask(&ask).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is_duplicate() => Ok(false),
            Err(failure) => Err(failure.error(&call)),
        }
    }
}
