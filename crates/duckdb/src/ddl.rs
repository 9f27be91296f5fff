//! Statements that create and alter a layout's tables.

use millstream_core::{Result, Type};
use millstream_layout::changelog::{self, ObjectColumn};
use millstream_layout::history;
use millstream_layout::latest;
use millstream_layout::object;
use millstream_layout::plain;
use millstream_layout::replica;
use millstream_layout::shape::Shape;
use millstream_layout::table::StoredTable;

use crate::column_type::sql_type;
use crate::config::{DuckConfig, Layout};
use crate::dialect::Duck;
use crate::error::Explain;
use crate::ident::{literal, qualify, quote};
use crate::session::Session;

/// The name of a layout's table.
pub(crate) fn table_name(layout: Layout, base: &str) -> String {
    match layout {
        Layout::Append => format!("{base}_raw"),
        Layout::Changelog => format!("{base}_changelog"),
        Layout::Rows => format!("{base}_rows"),
        Layout::Replica { .. } => base.to_owned(),
    }
}

/// The name of the view that a layout keeps on its table, if it does.
pub(crate) fn view_name(config: &DuckConfig, base: &str) -> Option<String> {
    match config.layout {
        Layout::Append => config.latest_view.then(|| format!("{base}_latest")),
        Layout::Rows => Some(base.to_owned()),
        Layout::Changelog | Layout::Replica { .. } => None,
    }
}

/// `CREATE TABLE` for a new table.
pub(crate) fn create(config: &DuckConfig, table: &StoredTable) -> String {
    let columns = match config.layout {
        Layout::Append => history::physical_columns(table),
        Layout::Changelog => {
            changelog::physical_columns(&table.shape, &object::source_shape(), &object::transaction_shape())
        }
        Layout::Rows => table.physical_columns(plain::own_columns()),
        Layout::Replica { .. } => replica::physical_columns(table),
    };
    let columns: Vec<_> =
        columns.iter().map(|f| format!("    {} {}", quote(&f.name), sql_type(&f.ty))).collect();
    format!("CREATE TABLE {} (\n{}\n);", qualify(&config.dataset, &table.name), columns.join(",\n"))
}

/// `ALTER TABLE` for column `position`, which is new, or was of type `from`.
pub(crate) fn alter(
    config: &DuckConfig,
    table: &StoredTable,
    position: usize,
    from: Option<&Type>,
) -> String {
    let name = qualify(&config.dataset, &table.name);
    let column = &table.shape.columns[position];
    let (quoted, ty) = (quote(&column.name), sql_type(&column.ty));
    match from {
        None => format!("ALTER TABLE {name} ADD COLUMN {quoted} {ty};"),
        // Lists and structs become JSON text, as everywhere; DuckDB's own text form of them is another.
        Some(Type::List(_) | Type::Struct(_)) if matches!(column.ty, Type::Text | Type::Json) => {
            format!(
                "ALTER TABLE {name} ALTER COLUMN {quoted} SET DATA TYPE {ty} USING to_json({quoted})::VARCHAR;"
            )
        }
        Some(_) => format!("ALTER TABLE {name} ALTER COLUMN {quoted} SET DATA TYPE {ty};"),
    }
}

/// `ALTER TABLE` that gives struct columns the fields of a shape; old rows read NULL in new fields.
pub(crate) fn alter_structs(
    config: &DuckConfig,
    table: &StoredTable,
    columns: &[&str],
    shape: &Shape,
) -> String {
    let name = qualify(&config.dataset, &table.name);
    let ty = sql_type(&changelog::struct_of(shape));
    let alter =
        |column: &&str| format!("ALTER TABLE {name} ALTER COLUMN {} SET DATA TYPE {ty};", quote(column));
    columns.iter().map(alter).collect()
}

/// The name of a changelog's object column.
pub(crate) fn object_name(object: ObjectColumn) -> &'static str {
    match object {
        ObjectColumn::Source => "source",
        ObjectColumn::Transaction => "transaction",
    }
}

/// The name under which the fields of an object column are written down.
pub(crate) fn object_key(table: &str, object: ObjectColumn) -> String {
    // A table's name holds no control characters.
    format!("{table}\u{0}{}", object_name(object))
}

/// `COMMENT ON COLUMN` with the source's name of a renamed column.
pub(crate) fn comment(config: &DuckConfig, table: &StoredTable, position: usize) -> Option<String> {
    if config.layout == Layout::Changelog {
        // A struct's field can't have a comment.
        return None;
    }
    let column = &table.shape.columns[position];
    let text = literal(&format!("source column: {}", column.source.escape_debug()));
    Some(format!(
        "COMMENT ON COLUMN {}.{} IS {text};",
        qualify(&config.dataset, &table.name),
        quote(&column.name)
    ))
}

/// `CREATE OR REPLACE VIEW` for the table's view, if it has one.
pub(crate) fn view(config: &DuckConfig, table: &StoredTable) -> Option<String> {
    let view = table.view.as_ref()?;
    let raw = qualify(&config.dataset, &table.name);
    let select = match config.layout {
        Layout::Rows => plain::view(&Duck, table, &raw),
        _ => latest::latest(&Duck, &raw, table, config.history_repeats)?,
    };
    Some(format!("CREATE OR REPLACE VIEW {} AS\n{select};", qualify(&config.dataset, view)))
}

/// Whether a column holds integers that a double can't.
pub(crate) fn has_wide_ints(session: &Session, table: &StoredTable, column: &str) -> Result<bool> {
    let places = match session.config.layout {
        Layout::Changelog => vec![format!("before.{}", quote(column)), format!("after.{}", quote(column))],
        Layout::Append | Layout::Rows | Layout::Replica { .. } => vec![quote(column)],
    };
    let wide = |place: &String| format!("{place} NOT BETWEEN -9007199254740992 AND 9007199254740992");
    let wide: Vec<_> = places.iter().map(wide).collect();
    let name = qualify(&session.config.dataset, &table.name);
    let sql = format!("SELECT count(*) > 0 FROM {name} WHERE {}", wide.join(" OR "));
    session
        .connection()?
        .query_row(&sql, [], |row| row.get(0))
        .explain(|| format!("looking at column {column}"))
}
