//! A table's columns, and how rows of a given schema map to them.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_core::evolution::{self, Decision, Existing, Incoming, Rules};
use millstream_core::{Error, Result, RowSchema, Type};

use crate::dialect::Dialect;
use crate::names;

/// A column of a table that holds values of a source column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetColumn {
    /// The source column's name.
    pub source: Box<str>,
    /// Its name in the warehouse.
    pub name: String,
    /// Its type, storable.
    pub ty: Type,
    /// Whether the type was only inferred from values.
    pub guessed: bool,
    /// Whether an event ever came without its value, it being large and unchanged.
    pub unchanged: bool,
}

/// The columns of a table, in the order in which they were added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shape {
    /// All of them.
    pub columns: Vec<TargetColumn>,
}

/// Where a table column's values come from in rows of one schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// The source column, if rows of this schema have one for it.
    pub source: Option<usize>,
    /// The text column that takes values which do not convert.
    pub overflow: Option<usize>,
    /// Whether values that do not convert are refused without asking the policy, the types being the same.
    pub same: bool,
}

/// How rows of one schema map to a table.
#[derive(Debug, Clone)]
pub struct Binding {
    /// The rows' schema.
    pub schema: Arc<RowSchema>,
    /// One for each column of the table.
    pub cells: Vec<Bound>,
    /// Source columns of which nothing but NULL was seen.
    pub untyped: Vec<usize>,
    /// Source columns whose values are refused, by policy or because the table has no room for more columns.
    pub refused: Vec<usize>,
}

/// A change of a table's columns that a new schema asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Column `column` is new.
    Add {
        /// Which.
        column: usize,
    },
    /// Column `column` was of type `from`.
    Widen {
        /// Which.
        column: usize,
        /// What it was.
        from: Type,
    },
    /// The type of column `column` is no longer a guess.
    Known {
        /// Which.
        column: usize,
    },
}

impl Shape {
    /// The columns that hold values of `source`, the first one first.
    pub fn candidates<'a>(&'a self, source: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.columns.iter().enumerate().filter(move |(_, c)| &*c.source == source).map(|(i, _)| i)
    }

    /// Names of integer columns for which the policy wants to know whether they hold integers beyond 2^53.
    pub fn asks_for_wide_ints(&self, schema: &RowSchema) -> Vec<String> {
        let asks = |c: &&TargetColumn| {
            schema
                .column(&c.source)
                .is_some_and(|i| evolution::asks_for_wide_ints(&c.ty, &schema.columns[i].ty))
        };
        self.columns.iter().filter(asks).map(|c| c.name.clone()).collect()
    }

    /// Maps `schema` to the table, changing the columns as the rules want. `wide` holds the columns of
    /// [`Shape::asks_for_wide_ints`] for which that is so. The caller alters the table by the changes.
    pub fn bind(
        &mut self,
        schema: &Arc<RowSchema>,
        dialect: &dyn Dialect,
        rules: Rules,
        wide: &HashSet<String>,
    ) -> Result<(Binding, Vec<Change>)> {
        let mut changes = Vec::new();
        let mut targets: Vec<Option<(usize, bool)>> = Vec::new();
        let mut binding =
            Binding { schema: schema.clone(), cells: Vec::new(), untyped: Vec::new(), refused: Vec::new() };
        for (i, column) in schema.columns.iter().enumerate() {
            let incoming = Incoming { ty: &column.ty, guessed: column.guessed };
            let target = self
                .place(&column.name, incoming, dialect, rules, wide, &mut changes)
                .map_err(|error| error.at(format!("table {}, column {}", schema.table, column.name)))?;
            match target {
                Place::Column { index, same } => targets.push(Some((index, same))),
                Place::Untyped => {
                    binding.untyped.push(i);
                    targets.push(None);
                }
                Place::Refused => {
                    binding.refused.push(i);
                    targets.push(None);
                }
            }
        }
        binding.cells = vec![Bound { source: None, overflow: None, same: false }; self.columns.len()];
        for (i, target) in targets.into_iter().enumerate() {
            if let Some((index, same)) = target {
                let overflow = self.text_beside(index);
                binding.cells[index] = Bound { source: Some(i), overflow, same };
            }
        }
        Ok((binding, changes))
    }

    /// The text column that takes what column `index` cannot.
    fn text_beside(&self, index: usize) -> Option<usize> {
        self.candidates(&self.columns[index].source).find(|&i| i > index && self.columns[i].ty == Type::Text)
    }

    /// Adds the text column that takes what column `index` cannot.
    pub fn add_text_beside(&mut self, index: usize) -> Change {
        let name = format!("{}__{}", self.columns[index].name, evolution::suffix(&Type::Text));
        let source = self.columns[index].source.clone();
        self.add(&source, &name, Type::Text, false)
    }

    /// Adds a column of which the first value told the type; `None` if the table has no room for more.
    pub fn learn(&mut self, dialect: &dyn Dialect, source: &str, ty: Type) -> Option<Change> {
        self.has_room(dialect).then(|| self.add(source, &dialect.column_name(source), ty, true))
    }

    /// Whether the table can have more columns.
    pub fn has_room(&self, dialect: &dyn Dialect) -> bool {
        self.columns.len() < dialect.columns_max()
    }

    fn add(&mut self, source: &str, name: &str, ty: Type, guessed: bool) -> Change {
        let name =
            names::free_name(name, |folded| self.columns.iter().any(|c| names::fold(&c.name) == folded));
        self.columns.push(TargetColumn { source: source.into(), name, ty, guessed, unchanged: false });
        Change::Add { column: self.columns.len() - 1 }
    }

    fn place(
        &mut self,
        source: &str,
        incoming: Incoming<'_>,
        dialect: &dyn Dialect,
        rules: Rules,
        wide: &HashSet<String>,
        changes: &mut Vec<Change>,
    ) -> Result<Place> {
        let wanted = evolution::storable(incoming.ty, rules.decimals);
        // A guess does not leave the column whose type is known for one that only has the guess's type.
        let fits =
            |&i: &usize| self.columns[i].ty == wanted && (!incoming.guessed || self.columns[i].guessed);
        let exact = self.candidates(source).find(fits);
        let Some(mut index) = exact.or_else(|| self.candidates(source).next()) else {
            return Ok(match evolution::decide(None, incoming, rules) {
                Decision::AddColumn(_) if !self.has_room(dialect) => Place::Refused,
                Decision::AddColumn(ty) => {
                    changes.push(self.add(source, &dialect.column_name(source), ty, incoming.guessed));
                    Place::Column { index: self.columns.len() - 1, same: true }
                }
                _ => Place::Untyped,
            });
        };
        let first = self.candidates(source).next().unwrap_or(index);
        // Later rounds are about the columns that earlier type changes made.
        for round in 1.. {
            let column = &self.columns[index];
            let wide_ints = wide.contains(&column.name);
            let existing = Existing { ty: &column.ty, guessed: column.guessed, wide_ints };
            let decision = match evolution::decide(Some(existing), incoming, rules) {
                // What the warehouse cannot alter is a change like any other.
                Decision::Widen(ty) if !dialect.widens(&column.ty, &ty) => {
                    evolution::misfit(incoming.ty, rules)
                }
                decision => decision,
            };
            match decision {
                Decision::NewColumn { suffix, ty } => {
                    let number = if round == 1 { String::new() } else { format!("_{round}") };
                    let name = format!("{}__{suffix}{number}", self.columns[first].name);
                    let found = self.columns.iter().position(|c| c.name == name && &*c.source == source);
                    match found {
                        Some(found) => index = found,
                        None if !self.has_room(dialect) => return Ok(Place::Refused),
                        None => {
                            changes.push(self.add(source, &name, ty, incoming.guessed));
                            return Ok(Place::Column { index: self.columns.len() - 1, same: true });
                        }
                    }
                }
                decision => return self.execute(index, decision, incoming, dialect, changes),
            }
        }
        unreachable!("invariant: a table has fewer columns than there are numbers")
    }

    fn execute(
        &mut self,
        index: usize,
        decision: Decision,
        incoming: Incoming<'_>,
        dialect: &dyn Dialect,
        changes: &mut Vec<Change>,
    ) -> Result<Place> {
        let column = &mut self.columns[index];
        match decision {
            Decision::Same => {
                if column.guessed && !incoming.guessed {
                    column.guessed = false;
                    changes.push(Change::Known { column: index });
                }
                Ok(Place::Column { index, same: true })
            }
            Decision::Cast | Decision::Wait => Ok(Place::Column { index, same: false }),
            Decision::Widen(ty) => {
                let from = std::mem::replace(&mut column.ty, ty);
                column.guessed &= incoming.guessed;
                changes.push(Change::Widen { column: index, from });
                Ok(Place::Column { index, same: false })
            }
            Decision::Stop => Err(Error::fatal(format!(
                "the type changed from {} to {}, and the config says `stop`; set `on_type_change: new-column` or \
                 `dead-letter`, or mend the table",
                dialect.sql_type(&column.ty),
                dialect.sql_type(incoming.ty)
            ))),
            Decision::AddColumn(_) | Decision::NewColumn { .. } | Decision::DeadLetter => Ok(Place::Refused),
        }
    }
}

enum Place {
    Column { index: usize, same: bool },
    Untyped,
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::evolution::{ChangePolicy, Decimals};
    use millstream_core::{Column, TableName};

    /// A dialect of which only names and types are asked.
    struct Plain;

    impl Dialect for Plain {
        fn quote(&self, name: &str) -> String {
            name.to_owned()
        }
        fn literal(&self, text: &str) -> String {
            text.to_owned()
        }
        fn sql_type(&self, ty: &Type) -> String {
            format!("{ty:?}")
        }
        fn column_name(&self, source: &str) -> String {
            names::column_name(source)
        }
        fn widens(&self, _: &Type, to: &Type) -> bool {
            *to != Type::Text
        }
        fn contains(&self, list: &str, text: &str) -> String {
            format!("{list} has {text}")
        }
        fn has_any(&self, list: &str) -> String {
            list.to_owned()
        }
        fn json_element(&self, json: &str, place: usize) -> String {
            format!("{json}[{place}]")
        }
        fn text_of(&self, value: &str) -> String {
            value.to_owned()
        }
        fn same(&self, a: &str, b: &str) -> String {
            format!("{a} = {b}")
        }
    }

    /// BigQuery makes no text column of an integer one.
    #[test]
    fn what_cannot_be_altered_goes_to_a_column_of_its_own() {
        let mut shape = Shape::default();
        bind(&mut shape, &[("a", Type::Int64, true)]);
        let (binding, changes) = bind(&mut shape, &[("a", Type::Text, true)]);
        assert_eq!(changes, [Change::Add { column: 1 }]);
        assert_eq!(names(&shape), ["a", "a__string"]);
        assert_eq!((binding.cells[0].source, binding.cells[1].source), (None, Some(0)));
    }

    const RULES: Rules = Rules { policy: ChangePolicy::NewColumn, decimals: Decimals::of(38) };

    fn schema(columns: &[(&str, Type, bool)]) -> Arc<RowSchema> {
        let column = |(name, ty, guessed): &(&str, Type, bool)| Column {
            name: (*name).into(),
            ty: ty.clone(),
            nullable: true,
            guessed: *guessed,
        };
        let table = Arc::new(TableName::new("db", "public", "t"));
        Arc::new(RowSchema { table, columns: columns.iter().map(column).collect(), key: vec![0] })
    }

    fn bind(shape: &mut Shape, columns: &[(&str, Type, bool)]) -> (Binding, Vec<Change>) {
        shape.bind(&schema(columns), &Plain, RULES, &HashSet::new()).unwrap()
    }

    fn names(shape: &Shape) -> Vec<&str> {
        shape.columns.iter().map(|c| &*c.name).collect()
    }

    #[test]
    fn columns_that_differ_by_case_are_told_apart() {
        let mut shape = Shape::default();
        bind(&mut shape, &[("Id", Type::Int64, false), ("ID", Type::Text, false), ("id", Type::Bool, false)]);
        assert_eq!(names(&shape), ["Id", "ID_2", "id_3"]);
    }

    #[test]
    fn a_type_change_goes_to_a_column_of_its_own_and_finds_it_again() {
        let mut shape = Shape::default();
        bind(&mut shape, &[("a", Type::Int64, false)]);
        let (binding, changes) = bind(&mut shape, &[("a", Type::Text, false)]);
        assert_eq!(changes, [Change::Add { column: 1 }]);
        assert_eq!(names(&shape), ["a", "a__string"]);
        assert_eq!((binding.cells[0].source, binding.cells[1].source), (None, Some(0)));
        let (binding, changes) = bind(&mut shape, &[("a", Type::Int64, false)]);
        assert!(changes.is_empty());
        assert_eq!((binding.cells[0].source, binding.cells[1].source), (Some(0), None));
        assert_eq!(binding.cells[0].overflow, Some(1));
    }

    /// The second of two changes whose columns would have one name was refused, with a false reason.
    #[test]
    fn two_type_changes_with_one_suffix() {
        let mut shape = Shape::default();
        let list = |ty| Type::List(Box::new(ty));
        let types = [Type::Int64, list(Type::Date), list(Type::Timestamp), list(Type::Bytes)];
        for _ in 0..2 {
            for (i, ty) in types.iter().enumerate() {
                let (binding, _) = bind(&mut shape, &[("v", ty.clone(), false)]);
                assert_eq!(binding.cells[i].source, Some(0), "{ty:?}");
                assert!(binding.refused.is_empty());
            }
        }
        assert_eq!(names(&shape), ["v", "v__array", "v__array_2", "v__array_3"]);
    }

    #[test]
    fn a_column_without_a_type_waits() {
        let mut shape = Shape::default();
        let (binding, _) = bind(&mut shape, &[("id", Type::Int64, true), ("x", Type::Null, true)]);
        assert_eq!(binding.untyped, [1]);
        let (binding, changes) = bind(&mut shape, &[("id", Type::Int64, false), ("x", Type::Text, true)]);
        assert_eq!(changes, [Change::Known { column: 0 }, Change::Add { column: 1 }]);
        assert!(binding.untyped.is_empty());
    }

    #[test]
    fn stop_names_both_types() {
        let mut shape = Shape::default();
        bind(&mut shape, &[("a", Type::Int64, false)]);
        let rules = Rules { policy: ChangePolicy::Stop, ..RULES };
        let error =
            shape.bind(&schema(&[("a", Type::Bytes, false)]), &Plain, rules, &HashSet::new()).unwrap_err();
        assert!(error.to_string().contains("from Int64 to Bytes"), "{error}");
    }
}
