//! What may change of a table's columns.

use duckdb::Connection;

use crate::failure::Failure;
use crate::schema::{self, Column, Mode, Type, quoted};
use crate::table::TableId;

/// The columns after a patch or update by the REST API: new ones come last, modes may be relaxed, descriptions change.
pub(crate) fn patched(
    table: &TableId,
    present: &[Column],
    wanted: &[Column],
) -> Result<Vec<Column>, Failure> {
    merge(table, present, wanted, "")
}

fn merge(table: &TableId, present: &[Column], wanted: &[Column], path: &str) -> Result<Vec<Column>, Failure> {
    let refused =
        |what: String| Failure::invalid(format!("Provided Schema does not match Table {table}. {what}"));
    let mut merged = Vec::new();
    for column in present {
        let place = format!("{path}{}", column.name);
        let (_, new) = schema::find(wanted, &column.name)
            .ok_or_else(|| refused(format!("Field {place} is missing in new schema")))?;
        let ty = match (&column.ty, &new.ty) {
            (Type::Record(old), Type::Record(new)) => {
                Type::Record(merge(table, old, new, &format!("{place}."))?)
            }
            (old, new) if old == new => old.clone(),
            (old, new) => {
                let (old, new) = (old.rest_name(), new.rest_name());
                return Err(refused(format!("Field {place} has changed type from {old} to {new}")));
            }
        };
        match (column.mode, new.mode) {
            (old, new) if old == new => {}
            (Mode::Required, Mode::Nullable) => {}
            (old, new) => {
                let name = |mode| format!("{mode:?}").to_uppercase();
                let (old, new) = (name(old), name(new));
                return Err(refused(format!("Field {place} has changed mode from {old} to {new}")));
            }
        }
        merged.push(Column { name: column.name.clone(), ty, mode: new.mode, rest: new.rest.clone() });
    }
    for column in wanted.iter().filter(|c| schema::find(present, &c.name).is_none()) {
        if column.mode == Mode::Required {
            let place = format!("{path}{}", column.name);
            return Err(refused(format!(
                "Cannot add required fields to an existing schema. (field: {place})"
            )));
        }
        merged.push(column.clone());
    }
    Ok(merged)
}

/// Whether `ALTER COLUMN SET DATA TYPE` may turn one type into the other.
pub(crate) fn widens(old: &Type, new: &Type) -> bool {
    match (old, new) {
        (Type::Int64, Type::Numeric | Type::Bignumeric | Type::Float64)
        | (Type::Numeric, Type::Bignumeric | Type::Float64)
        | (Type::Bignumeric, Type::Float64)
        | (Type::Date, Type::Datetime | Type::Timestamp)
        | (Type::Datetime, Type::Timestamp) => true,
        (Type::Record(old), Type::Record(new)) => old.iter().all(|column| {
            schema::find(new, &column.name)
                .is_some_and(|(_, n)| n.mode == column.mode && widens(&column.ty, &n.ty))
        }),
        (old, new) => old == new,
    }
}

/// Changes the columns in the database.
pub(crate) fn alter(
    connection: &Connection,
    id: &TableId,
    present: &[Column],
    wanted: &[Column],
) -> Result<(), Failure> {
    let table = id.quoted();
    for column in wanted {
        let (name, ty) = (quoted(&column.name), column.duckdb());
        let sql = match schema::find(present, &column.name) {
            None => format!("ALTER TABLE {table} ADD COLUMN {name} {ty}"),
            Some((_, old)) => {
                let mut sql = String::new();
                if old.mode == Mode::Required && column.mode != Mode::Required {
                    sql += &format!("ALTER TABLE {table} ALTER COLUMN {name} DROP NOT NULL;");
                }
                if old.duckdb() != ty {
                    sql += &format!("ALTER TABLE {table} ALTER COLUMN {name} SET DATA TYPE {ty};");
                }
                sql
            }
        };
        if !sql.is_empty() {
            connection.execute_batch(&sql)?;
        }
    }
    for column in present.iter().filter(|c| schema::find(wanted, &c.name).is_none()) {
        connection.execute_batch(&format!("ALTER TABLE {table} DROP COLUMN {}", quoted(&column.name)))?;
    }
    Ok(())
}
