//! Is the bucket of a sink with `delivery: load` there, where its dataset can be loaded from, and may files be written to it?

use millstream_bigquery::{BigqueryConfig, DatasetId, Delivery, Gcs, Rest};
use millstream_core::Result;

use super::bigquery::PATIENCE;
use super::topics::push;
use super::{Finding, Level};

/// What a sink does with files.
const PERMISSIONS: [&str; 4] =
    ["storage.objects.create", "storage.objects.get", "storage.objects.delete", "storage.objects.list"];

/// What is doubtful about a sink's bucket, if it has one.
pub(super) async fn findings(whose: &str, config: &BigqueryConfig, out: &mut Vec<Finding>) {
    let Delivery::Load(options) = &config.delivery else { return };
    if let Err(error) = look(whose, config, &options.bucket, out).await {
        let remedy = "see the README's section on BigQuery for roles, credentials and endpoints";
        push(out, Level::Error, "not_reached", format!("{whose}: {error}"), remedy);
    }
}

async fn look(whose: &str, config: &BigqueryConfig, bucket: &str, out: &mut Vec<Finding>) -> Result<()> {
    let gcs = Gcs::new(&config.connection)?.with_patience(PATIENCE);
    let Some(found) = gcs.bucket(bucket).await? else {
        let text = format!("{whose}: the bucket {bucket} does not exist: a run would end at its start");
        push(
            out,
            Level::Error,
            "missing_resource",
            text,
            "make it in the dataset's location, or mend `load.bucket`",
        );
        return Ok(());
    };
    let dataset = DatasetId::new(&config.project, &config.dataset);
    let dataset = Rest::new(&config.connection)?.with_patience(PATIENCE).dataset(&dataset).await?;
    let location = dataset.and_then(|dataset| dataset.location).or_else(|| config.location.clone());
    let location = location.unwrap_or_else(|| "US".to_owned());
    match found.location {
        None => {
            let text = format!(
                "{whose}: whether the bucket {bucket} is where the dataset is, in {location}, cannot be seen"
            );
            let remedy = "look yourself, or grant the account storage.buckets.get on the bucket; a run does not need it";
            push(out, Level::Note, "unseen_location", text, remedy);
        }
        Some(found) if !may_load(&found, &location) => {
            let text = format!(
                "{whose}: the bucket {bucket} is in {found} and the dataset in {location}: load jobs cannot read from there"
            );
            push(out, Level::Error, "wrong_location", text, "name a bucket in the dataset's location");
        }
        Some(_) => {}
    }
    let held = gcs.permitted(bucket, &PERMISSIONS).await?;
    let missing: Vec<_> = PERMISSIONS.into_iter().filter(|p| !held.iter().any(|held| held == p)).collect();
    if !missing.is_empty() {
        let text = format!("{whose}: the account lacks {} on the bucket {bucket}", missing.join(", "));
        let remedy = "grant it roles/storage.objectUser on the bucket, and roles/bigquery.jobUser on the project for bigquery.jobs.create";
        push(out, Level::Error, "not_permitted", text, remedy);
    }
    Ok(())
}

/// Whether load jobs into a dataset read from a bucket: from anywhere into US, else from the same place or the multi-region around it.
fn may_load(bucket: &str, dataset: &str) -> bool {
    let (bucket, dataset) = (bucket.to_uppercase(), dataset.to_uppercase());
    let around = |region: &str, multi: &str| match multi {
        "EU" => region.starts_with("EUROPE-") || region.starts_with("EUR"),
        "ASIA" => region.starts_with("ASIA"),
        "US" => region.starts_with("US-") || region.starts_with("NAM"),
        _ => false,
    };
    dataset == "US" || bucket == dataset || around(&bucket, &dataset) || around(&dataset, &bucket)
}

#[cfg(test)]
mod tests {
    use super::may_load;

    #[test]
    fn a_bucket_lies_where_its_dataset_is() {
        for (bucket, dataset) in
            [("EU", "EU"), ("europe-west1", "EU"), ("EU", "europe-west1"), ("ASIA", "US"), ("US", "us-east1")]
        {
            assert!(may_load(bucket, dataset), "{bucket} {dataset}");
        }
        for (bucket, dataset) in [("US", "EU"), ("europe-west1", "europe-west4"), ("US", "europe-west1")] {
            assert!(!may_load(bucket, dataset), "{bucket} {dataset}");
        }
    }
}
