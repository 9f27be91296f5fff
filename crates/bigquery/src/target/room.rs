//! Room for a value that has no place in its table, or why there is none.

use millstream_core::evolution;
use millstream_core::{Cause, Judged, Op, Type, Value};
use millstream_layout::{Change, Trouble, convert};

use super::{Target, Way};
use crate::dialect;
use crate::session::Session;

impl Target {
    /// Whether the value that did not convert may go to a text column beside.
    pub(crate) fn may_spill(
        &self,
        session: &Session,
        binding: usize,
        column: usize,
        judged: &Judged,
    ) -> bool {
        if !self.found.stored.shape.has_room(dialect::of(&session.config)) {
            return false;
        }
        let Way { binding, .. } = &self.bindings[binding];
        let bound = binding.cells[column];
        let Some(source) = bound.source else { return false };
        let from = &binding.schema.columns[source].ty;
        // One that has such a column is refused by it.
        bound.overflow.is_none() && convert(judged.event.row.get(source), from, &Type::Text).is_ok()
    }

    /// Adds a text column beside one whose values don't all convert.
    pub(crate) fn spill(&mut self, column: usize) -> Change {
        self.found.stored.shape.add_text_beside(column)
    }

    /// Adds a column for a source column of which only NULLs were seen, by the type of its first value.
    /// `None` if the table has no room for it.
    pub(crate) fn learn(
        &mut self,
        session: &Session,
        binding: usize,
        source: usize,
        judged: &Judged,
    ) -> Option<Change> {
        let row = if judged.event.op == Op::Delete { &judged.event.row } else { judged.current_row() };
        // Values that are left out are large ones, which come as texts where nothing tells their type.
        let ty = match row.get(source) {
            Value::Unchanged => Type::Text,
            value => evolution::storable(&value.inferred_type(), session.rules().decimals),
        };
        let name = self.bindings[binding].binding.schema.columns[source].name.clone();
        self.found.stored.shape.learn(dialect::of(&session.config), &name, ty)
    }

    /// Why a row is refused.
    pub(crate) fn cause(&self, session: &Session, binding: usize, trouble: Trouble) -> Cause {
        let (shape, schema) = (&self.found.stored.shape, &self.bindings[binding].binding.schema);
        if let Trouble::Untyped { source } | Trouble::Refused { source } = trouble
            && let name = &*schema.columns[source].name
            && shape.candidates(name).next().is_none()
            && !shape.has_room(dialect::of(&session.config))
        {
            let text = format!(
                "column {name} of {} has a value and no place: {} has as many columns ({}) as BigQuery takes",
                self.source_table,
                self.id,
                self.found.actual.fields.len()
            );
            return Cause::new("too_many_columns", text);
        }
        trouble.cause(shape, schema, &self.source_table, &dialect::COLUMNS)
    }
}
