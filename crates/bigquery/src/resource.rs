//! Full names of datasets and tables.

use std::fmt;

use crate::sql::quote;

/// A dataset of a project.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatasetId {
    /// The project's id.
    pub project: String,
    /// The dataset's name.
    pub dataset: String,
}

/// A table, or a view.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId {
    /// The project's id.
    pub project: String,
    /// The dataset's name.
    pub dataset: String,
    /// The table's name.
    pub table: String,
}

impl DatasetId {
    /// A dataset by its names.
    pub fn new(project: impl Into<String>, dataset: impl Into<String>) -> Self {
        Self { project: project.into(), dataset: dataset.into() }
    }

    /// A table in it.
    pub fn table(&self, table: impl Into<String>) -> TableId {
        TableId { project: self.project.clone(), dataset: self.dataset.clone(), table: table.into() }
    }

    /// As SQL has it.
    pub fn sql(&self) -> String {
        format!("{}.{}", quote(&self.project), quote(&self.dataset))
    }
}

impl TableId {
    /// Its dataset.
    pub fn dataset_id(&self) -> DatasetId {
        DatasetId::new(&self.project, &self.dataset)
    }

    /// As SQL has it.
    pub fn sql(&self) -> String {
        format!("{}.{}.{}", quote(&self.project), quote(&self.dataset), quote(&self.table))
    }

    /// As the Storage Write API has it.
    pub fn path(&self) -> String {
        format!("projects/{}/datasets/{}/tables/{}", self.project, self.dataset, self.table)
    }

    /// The stream that every table has.
    pub fn default_stream(&self) -> String {
        format!("{}/streams/_default", self.path())
    }
}

impl fmt::Display for DatasetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.project, self.dataset)
    }
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.project, self.dataset, self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_three_spellings() {
        let table = DatasetId::new("acme", "cdc").table("my orders");
        assert_eq!(table.to_string(), "acme.cdc.my orders");
        assert_eq!(table.sql(), "`acme`.`cdc`.`my orders`");
        assert_eq!(table.default_stream(), "projects/acme/datasets/cdc/tables/my orders/streams/_default");
    }
}
