//! Names of tables in SQL: `project.dataset.table`, with backticks around parts or around all of it.

use sqlparser::ast::{Ident, ObjectName, ObjectNamePart};

use super::Session;
use crate::failure::Failure;
use crate::table::TableId;

/// What a name refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Table(TableId),
    /// A view of INFORMATION_SCHEMA, of a dataset or of all.
    Information {
        project: String,
        dataset: Option<String>,
        view: String,
    },
}

/// The parts of a name.
pub(crate) fn parts(name: &ObjectName) -> Result<Vec<String>, Failure> {
    let mut parts = Vec::new();
    for part in &name.0 {
        match part {
            // A project may be `domain.com:name`, whose dots are not separators.
            ObjectNamePart::Identifier(Ident { value, quote_style: Some('`'), .. })
                if !value.contains(':') =>
            {
                parts.extend(value.split('.').map(str::to_owned));
            }
            ObjectNamePart::Identifier(ident) => parts.push(ident.value.clone()),
            ObjectNamePart::Function(function) => return Err(Failure::unsupported(function)),
        }
    }
    match parts.iter().any(String::is_empty) {
        true => Err(Failure::query(format!("Invalid table name: {name}"))),
        false => Ok(parts),
    }
}

impl Session<'_> {
    /// What a table's name refers to.
    pub(crate) fn target(&self, name: &ObjectName) -> Result<Target, Failure> {
        let parts = parts(name)?;
        if let Some(at) = parts.iter().position(|part| part.eq_ignore_ascii_case("INFORMATION_SCHEMA")) {
            let [view] = &parts[at + 1..] else { return Err(Failure::unsupported(name)) };
            let view = view.to_ascii_uppercase();
            let region = |part: &String| part.to_ascii_lowercase().starts_with("region-");
            return Ok(match &parts[..at] {
                [] => Target::Information {
                    project: self.project.clone(),
                    dataset: self.dataset.as_ref().map(|(_, d)| d.clone()),
                    view,
                },
                [one] if region(one) => {
                    Target::Information { project: self.project.clone(), dataset: None, view }
                }
                [dataset] => Target::Information {
                    project: self.project.clone(),
                    dataset: Some(dataset.clone()),
                    view,
                },
                [project, one] if region(one) => {
                    Target::Information { project: project.clone(), dataset: None, view }
                }
                [project, dataset] => {
                    Target::Information { project: project.clone(), dataset: Some(dataset.clone()), view }
                }
                _ => return Err(Failure::unsupported(name)),
            });
        }
        let id = |project: &str, dataset: &str, table: &str| {
            Target::Table(TableId {
                project: project.to_owned(),
                dataset: dataset.to_owned(),
                table: table.to_owned(),
            })
        };
        match (parts.as_slice(), &self.dataset) {
            ([table], Some((project, dataset))) => Ok(id(project, dataset, table)),
            ([table], None) => Err(Failure::invalid(format!(
                "Table \"{table}\" must be qualified with a dataset (e.g. dataset.table)."
            ))),
            ([dataset, table], _) => Ok(id(&self.project, dataset, table)),
            ([project, dataset, table], _) => Ok(id(project, dataset, table)),
            _ => Err(Failure::query(format!("Invalid table name: {name}"))),
        }
    }

    /// A table's name that is no view of INFORMATION_SCHEMA.
    pub(crate) fn table_id(&self, name: &ObjectName) -> Result<TableId, Failure> {
        match self.target(name)? {
            Target::Table(id) => Ok(id),
            Target::Information { .. } => Err(Failure::query(format!("{name} is read-only"))),
        }
    }

    /// A dataset's name.
    pub(crate) fn dataset_id(&self, name: &ObjectName) -> Result<(String, String), Failure> {
        match parts(name)?.as_slice() {
            [dataset] => Ok((self.project.clone(), dataset.clone())),
            [project, dataset] => Ok((project.clone(), dataset.clone())),
            _ => Err(Failure::query(format!("Invalid dataset name: {name}"))),
        }
    }
}
