//! The statements by which a stage is applied to a replica. `t` is the table, `s` the stage.

use millstream_core::{Field, Order};
use millstream_layout::keyed::{Keyed, Part};
use millstream_layout::replica::own_columns;
use millstream_layout::table::StoredTable;

use crate::column_type::sql_type;
use crate::config::DeleteMode;
use crate::dialect::Duck;
use crate::ident::{literal, qualify, quote};

/// Names of one table and its stage, as the statements need them.
pub(crate) struct ApplySql {
    table: String,
    stage: String,
    /// `t.key = s.key`, for all columns of the key. Under a key of the past also that the table's row is not newer: its row
    /// may belong to another row by now.
    same_key: String,
    /// Whether the table has the row as the stage has it, or newer.
    is_stale: String,
    /// All columns of the table.
    columns: Vec<String>,
}

impl ApplySql {
    /// `null_in_key`: a staged row has a NULL in its key, which `=` does not find.
    pub(crate) fn new(dataset: &str, table: &StoredTable, key: &Keyed, null_in_key: bool) -> Self {
        let same = |key: &Keyed, null_in_key: bool| {
            let equals = if null_in_key { "IS NOT DISTINCT FROM" } else { "=" };
            let same = |part: &Part| {
                let value = |row| part.value(&Duck, &table.shape, row);
                format!("{} {equals} {}", value("t."), value("s."))
            };
            let same: Vec<_> = key.parts.iter().map(same).collect();
            if same.is_empty() { "false".to_owned() } else { same.join(" AND ") }
        };
        let mut same_key = same(key, null_in_key);
        let newer = "t._metadata_order >= s._metadata_order";
        let is_stale = if key.past {
            same_key += " AND t._metadata_order <= s._metadata_order";
            format!("{} AND {newer}", same(&Keyed::now(table), true))
        } else {
            format!("{same_key} AND {newer}")
        };
        let own = own_columns();
        let names = table.shape.columns.iter().map(|c| c.name.as_str()).chain(own.iter().map(|f| &*f.name));
        Self {
            table: qualify(dataset, &table.name),
            stage: format!("temp.main.{}", quote(&Self::stage_name(&table.name))),
            same_key,
            is_stale,
            columns: names.map(quote).collect(),
        }
    }

    /// The stage's name among the connection's temporary tables.
    pub(crate) fn stage_name(table: &str) -> String {
        format!("stage of {table}")
    }

    /// Creates the stage, in place of one that a failure left.
    pub(crate) fn create_stage(table: &str, columns: &[Field]) -> String {
        let columns: Vec<_> =
            columns.iter().map(|f| format!("{} {}", quote(&f.name), sql_type(&f.ty))).collect();
        format!(
            "CREATE OR REPLACE TEMP TABLE {} ({});\n",
            quote(&Self::stage_name(table)),
            columns.join(", ")
        )
    }

    /// Removes staged rows that the table already has, or has newer.
    pub(crate) fn drop_stale(&self) -> String {
        format!("DELETE FROM {} AS s USING {} AS t WHERE {};\n", self.stage, self.table, self.is_stale)
    }

    /// Fills columns that a staged row did not carry with the table's values.
    pub(crate) fn keep_unchanged(&self, columns: &[&str]) -> String {
        let one = |column: &&str| {
            let (name, text) = (quote(column), literal(column));
            format!(
                "UPDATE {} AS s SET {name} = t.{name} FROM {} AS t WHERE list_contains(s.__stage_unchanged, {text}) AND {};\n",
                self.stage, self.table, self.same_key
            )
        };
        columns.iter().map(one).collect()
    }

    /// Marks rows as deleted whose delete carried nothing but the key; what is then left of such deletes in the stage
    /// are keys that the table does not have.
    pub(crate) fn mark_deleted(&self) -> String {
        format!(
            "UPDATE {table} AS t SET _metadata_deleted = true, _metadata_timestamp = s._metadata_timestamp, \
             _metadata_lsn = s._metadata_lsn, _metadata_order = s._metadata_order \
             FROM {stage} AS s WHERE s.__stage_partial AND {same_key};\n\
             DELETE FROM {stage} AS s USING {table} AS t WHERE s.__stage_partial AND {same_key};\n",
            table = self.table,
            stage = self.stage,
            same_key = self.same_key
        )
    }

    /// Puts the staged rows in the place of the table's.
    pub(crate) fn replace(&self, delete: DeleteMode, has_deleted: bool) -> String {
        let columns = self.columns.join(", ");
        let kept =
            if delete == DeleteMode::Hard && has_deleted { " WHERE NOT _metadata_deleted" } else { "" };
        format!(
            "DELETE FROM {table} AS t USING {stage} AS s WHERE {same_key};\n\
             INSERT INTO {table} ({columns}) SELECT {columns} FROM {stage}{kept};\n",
            table = self.table,
            stage = self.stage,
            same_key = self.same_key
        )
    }

    /// Sets some columns of rows that still have the staged order.
    pub(crate) fn set_columns(&self, columns: &[usize]) -> String {
        if columns.is_empty() {
            return String::new();
        }
        let set: Vec<_> = columns.iter().map(|&i| format!("{0} = s.{0}", self.columns[i])).collect();
        format!(
            "UPDATE {} AS t SET {} FROM {} AS s WHERE {} AND t._metadata_order = s._metadata_order;\n",
            self.table,
            set.join(", "),
            self.stage,
            self.same_key
        )
    }

    /// Removes, or marks as deleted, all rows below an order.
    pub(crate) fn truncate(
        &self,
        delete: DeleteMode,
        order: &Order,
        timestamp_us: Option<i64>,
        lsn: Option<i64>,
    ) -> String {
        let order = literal(&order.to_string());
        match delete {
            DeleteMode::Hard => format!("DELETE FROM {} WHERE _metadata_order < {order};\n", self.table),
            DeleteMode::Soft => {
                let timestamp = timestamp_us.map_or("NULL".to_owned(), |us| format!("make_timestamp({us})"));
                let lsn = lsn.map_or("NULL".to_owned(), |lsn| lsn.to_string());
                format!(
                    "UPDATE {} SET _metadata_deleted = true, _metadata_timestamp = {timestamp}, _metadata_lsn = {lsn}, \
                     _metadata_order = {order} WHERE _metadata_order < {order} AND NOT _metadata_deleted;\n",
                    self.table
                )
            }
        }
    }

    /// Drops the stage: even an empty table takes a block of memory for each column, and there may be thousands of tables.
    pub(crate) fn drop_stage(&self) -> String {
        format!("DROP TABLE {};\n", self.stage)
    }
}
