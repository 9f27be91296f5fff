//! What differs between warehouses.

use millstream_core::Type;

/// How a warehouse names and writes things, and what it lets be altered.
pub trait Dialect: Sync {
    /// How many columns of a source's values a table can have.
    fn columns_max(&self) -> usize {
        usize::MAX
    }

    /// A name as SQL has it, whatever it holds.
    fn quote(&self, name: &str) -> String;

    /// A text as SQL has it.
    fn literal(&self, text: &str) -> String;

    /// The type of columns for a storable type.
    fn sql_type(&self, ty: &Type) -> String;

    /// The name of a source's column, before collisions are looked at.
    fn column_name(&self, source: &str) -> String;

    /// Whether a column of type `from` can be altered to `to`, keeping its values.
    fn widens(&self, from: &Type, to: &Type) -> bool;

    /// Whether a list of texts has this one; both are SQL.
    fn contains(&self, list: &str, text: &str) -> String;

    /// Whether a list of texts has any; SQL.
    fn has_any(&self, list: &str) -> String;

    /// The text of an element of a JSON array, in SQL.
    fn json_element(&self, json: &str, place: usize) -> String;

    /// A value's text, in SQL; for an exact number its digits.
    fn text_of(&self, value: &str) -> String;

    /// Whether two values are equal or both NULL, in a form by which the warehouse can join.
    fn same(&self, a: &str, b: &str) -> String;
}
