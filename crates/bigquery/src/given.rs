//! The columns of a table that is there before a sink writes to it, for sources that tell no types.

use millstream_core::{Result, TableName};
use millstream_layout::names::table_candidates;

use crate::config::BigqueryConfig;
use crate::dialect::type_of;
use crate::field::Field;
use crate::names::table_name;
use crate::resource::DatasetId;
use crate::rest::Rest;

/// The columns of the table to which a sink with [`Layout::Rows`](crate::Layout::Rows) writes rows of `source`, as BigQuery's JSON schema;
/// `None` if there is no such table. Those of types that are not written are left out.
///
/// # Errors
/// If BigQuery cannot be asked.
pub async fn given_schema(config: &BigqueryConfig, source: &TableName) -> Result<Option<String>> {
    let name = table_candidates(source, &config.table_name).first().map(|name| table_name(name));
    let id = DatasetId::new(&config.project, &config.dataset).table(name.unwrap_or_default());
    let Some(table) = Rest::new(&config.connection)?.table(&id).await? else { return Ok(None) };
    let fields: Vec<_> = table.fields.into_iter().filter(|field| type_of(field).is_some()).collect();
    Ok(Some(Field::schema_to_json(&fields).to_string()))
}
