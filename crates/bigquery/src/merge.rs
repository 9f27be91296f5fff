//! A table's columns as they are, joined with what is wanted of them.

use crate::dialect::becomes;
use crate::field::{Field, Mode};
use crate::names::fold;
use crate::note;

/// All columns of a table that has those of `actual` and needs those of `wanted`: what is there stays as it is and where it is,
/// with the wanted notes and new members of its structs; what is new comes behind. A required column becomes nullable, as
/// deletes carry no more than their key.
pub(crate) fn merged(actual: &[Field], wanted: &[Field], keys: &[String]) -> Vec<Field> {
    let named = |name: &str| wanted.iter().find(|f| fold(&f.name) == fold(name));
    let kept = actual.iter().map(|field| {
        let mut field = field.clone();
        if let Some(wanted) = named(&field.name) {
            if field.mode == Mode::Required && !keys.contains(&field.name) {
                field.mode = Mode::Nullable;
            }
            field.fields = merged(&field.fields, &wanted.fields, &[]);
            field.description = note::renoted(field.description.as_deref(), wanted.description.as_deref());
        }
        field
    });
    let is_new = |field: &&Field| !actual.iter().any(|f| fold(&f.name) == fold(&field.name));
    kept.chain(wanted.iter().filter(is_new).cloned()).collect()
}

/// Columns of `wanted` that `actual` has with another type, to which it cannot be altered by adding members.
pub(crate) fn misfits<'a>(actual: &'a [Field], wanted: &'a [Field]) -> Vec<(&'a Field, &'a Field)> {
    let found = |field: &'a Field| {
        let same = actual.iter().find(|f| fold(&f.name) == fold(&field.name))?;
        let fits = same.mode == field.mode || (same.mode == Mode::Required && field.mode == Mode::Nullable);
        (!(fits && same.ty.takes(&field.ty) && becomes(same, field))).then_some((same, field))
    };
    wanted.iter().filter_map(found).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column_type::ColumnType;

    #[test]
    fn what_is_there_stays_and_what_is_new_comes_behind() {
        let actual = [
            Field::new("ID", ColumnType::Int64).with_mode(Mode::Required),
            Field::new("theirs", ColumnType::Other("INTERVAL".into())),
            Field { fields: vec![Field::new("a", ColumnType::Int64)], ..Field::new("s", ColumnType::Record) },
        ];
        let wanted = [
            Field::new("new", ColumnType::String),
            Field {
                fields: vec![Field::new("b", ColumnType::Date), Field::new("a", ColumnType::Int64)],
                ..Field::new("s", ColumnType::Record)
            },
            Field::new("id", ColumnType::Int64).with_description("millstream: {\"guessed\":true}"),
        ];
        let all = merged(&actual, &wanted, &[]);
        let shown: Vec<_> = all.iter().map(|f| (&*f.name, f.mode, f.fields.len())).collect();
        let nullable = Mode::Nullable;
        assert_eq!(
            shown,
            [("ID", nullable, 0), ("theirs", nullable, 0), ("s", nullable, 2), ("new", nullable, 0)]
        );
        assert_eq!(all[0].description.as_deref(), Some("millstream: {\"guessed\":true}"));
        assert!(misfits(&actual, &wanted).is_empty());
        assert_eq!(merged(&actual, &wanted, &["ID".to_owned()])[0].mode, Mode::Required);
    }

    #[test]
    fn other_types_are_told() {
        let actual = [Field::new("a", ColumnType::String), Field::new("b", ColumnType::Int64)];
        let wanted = [
            Field::new("a", ColumnType::Int64),
            Field::new("b", ColumnType::Int64).with_mode(Mode::Repeated),
            Field::new("c", ColumnType::Int64),
        ];
        let names: Vec<_> = misfits(&actual, &wanted).iter().map(|(f, _)| &*f.name).collect();
        assert_eq!(names, ["a", "b"]);
        let geography = [Field::new("g", ColumnType::Geography)];
        assert!(misfits(&geography, &[Field::new("g", ColumnType::String)]).is_empty(), "texts go there");
        assert_eq!(misfits(&geography, &[Field::new("g", ColumnType::Json)]).len(), 1);
    }
}
