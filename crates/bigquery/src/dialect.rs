//! BigQuery's way to name and write things.

use millstream_core::Type;
use millstream_layout::Dialect;

use crate::column_type::ColumnType;
use crate::config::{BigqueryConfig, Delivery, Layout};
use crate::field::{Field, Mode};
use crate::names;
use crate::sql::{quote, quote_text};

/// BigQuery.
pub(crate) struct BigQuery {
    /// The types of columns cannot be altered, such as those of structs' members.
    nested: bool,
    /// Columns of the source's that a table can have beside Millstream's.
    columns_max: usize,
}

/// A table has 10,000 columns at most, members of structs among them; Millstream's are fewer than a hundred.
const TABLE_MAX: usize = 9_900;

/// Columns of a table.
pub(crate) const COLUMNS: BigQuery = BigQuery { nested: false, columns_max: TABLE_MAX };
/// Members of structs.
pub(crate) const MEMBERS: BigQuery = BigQuery { nested: true, columns_max: TABLE_MAX };
/// Members of a changelog's `before` and `after`.
const IMAGES: BigQuery = BigQuery { nested: true, columns_max: TABLE_MAX / 2 };
/// Columns of a table with native upserts, which has 2,000 at most, four of them Millstream's.
const UPSERTED: BigQuery = BigQuery { nested: false, columns_max: 1_996 };

/// The dialect for the columns that a sink has for those of the source. Files that wait for their load hold columns of the types of
/// their time, so that these stay.
pub(crate) fn of(config: &BigqueryConfig) -> &'static BigQuery {
    match (config.layout, &config.delivery) {
        (Layout::Changelog, _) => &IMAGES,
        (_, Delivery::Load(_)) => &MEMBERS,
        (Layout::Replica { .. }, _) if config.merge.is_none() => &UPSERTED,
        _ => &COLUMNS,
    }
}

/// The column for values of a storable type.
pub(crate) fn field_of(name: &str, ty: &Type) -> Field {
    Field::of(name, ty, &names::column_name)
}

impl Dialect for BigQuery {
    fn columns_max(&self) -> usize {
        self.columns_max
    }

    fn quote(&self, name: &str) -> String {
        quote(name)
    }

    fn literal(&self, text: &str) -> String {
        quote_text(text)
    }

    fn sql_type(&self, ty: &Type) -> String {
        field_of("c", ty).sql_type()
    }

    fn column_name(&self, source: &str) -> String {
        names::column_name(source)
    }

    fn widens(&self, from: &Type, to: &Type) -> bool {
        let (from, to) = (field_of("c", from), field_of("c", to));
        becomes(&from, &to) && (!self.nested || from.ty == to.ty)
    }

    fn contains(&self, list: &str, text: &str) -> String {
        format!("{text} IN UNNEST({list})")
    }

    /// An array that was written as NULL is read as an empty one.
    fn has_any(&self, list: &str) -> String {
        format!("ARRAY_LENGTH({list}) > 0")
    }

    fn json_element(&self, json: &str, place: usize) -> String {
        format!("JSON_VALUE({json}, '$[{place}]')")
    }

    fn text_of(&self, value: &str) -> String {
        format!("CAST({value} AS STRING)")
    }

    /// An equality of two expressions, as joins want it, that holds for two NULLs too.
    fn same(&self, a: &str, b: &str) -> String {
        format!("TO_JSON_STRING({a}) = TO_JSON_STRING({b})")
    }
}

/// Whether a column can be altered into another where it is: a wider number, or a struct with more fields.
pub(crate) fn becomes(from: &Field, to: &Field) -> bool {
    if from.mode == Mode::Repeated && to.mode != Mode::Repeated {
        return false;
    }
    if from.ty.takes(&to.ty) {
        let stays = |field: &Field| {
            to.fields.iter().any(|f| f.name.eq_ignore_ascii_case(&field.name) && same_or_more(field, f))
        };
        return from.fields.iter().all(stays);
    }
    // Both go as bytes: a server that does not know the change yet would read a number at another scale.
    let silent = (&from.ty, &to.ty) == (&ColumnType::Numeric, &ColumnType::BigNumeric);
    from.mode == to.mode && from.widens_to(&to.ty) && !silent
}

/// Fields of structs can be added, but not altered.
fn same_or_more(from: &Field, to: &Field) -> bool {
    from.mode == to.mode && from.ty.takes(&to.ty) && becomes(from, to)
}

/// The type of values that a column of an existing table takes; `None` if Millstream does not write it.
pub(crate) fn type_of(field: &Field) -> Option<Type> {
    let scalar = match &field.ty {
        ColumnType::Bool => Type::Bool,
        ColumnType::Int64 => Type::Int64,
        ColumnType::Float64 => Type::Float64,
        ColumnType::Numeric => Type::Decimal { precision: 38, scale: 9 },
        ColumnType::BigNumeric => Type::Decimal { precision: 76, scale: 38 },
        ColumnType::String | ColumnType::Geography => Type::Text,
        ColumnType::Bytes => Type::Bytes,
        ColumnType::Json => Type::Json,
        ColumnType::Date => Type::Date,
        ColumnType::Time => Type::Time,
        ColumnType::DateTime => Type::DateTime,
        ColumnType::Timestamp => Type::Timestamp,
        ColumnType::Record => {
            let member =
                |f: &Field| Some(millstream_core::Field { name: f.name.as_str().into(), ty: type_of(f)? });
            Type::Struct(field.fields.iter().map(member).collect::<Option<Vec<_>>>()?.into())
        }
        ColumnType::Other(_) => return None,
    };
    Some(if field.mode == Mode::Repeated { Type::List(Box::new(scalar)) } else { scalar })
}
