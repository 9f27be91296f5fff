//! Schema evolution policy: what a table's column is, what an event brings, and what to do about the difference.
//!
//! Facts in, decision out; a sink executes the decision. Never narrows a column, never rounds a value, and never drops
//! one silently. Where a type was only guessed from values, the guess gives way to what is known.
//!
//! Two questions are asked of a pair of types. [`holds`]: does the column take every value of the incoming type exactly
//! as it is? [`join`]: is there a wider type that takes both?

use crate::value::{Field, Type};

/// What to do with values that neither fit the column nor a wider type of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ChangePolicy {
    /// They go to a second column, named after the first and the type: `name__string`.
    #[default]
    NewColumn,
    /// Rows that carry such a value become dead letters.
    DeadLetter,
    /// The pipeline stops.
    Stop,
}

/// What a warehouse's decimals hold at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decimals {
    /// Digits in all.
    pub precision: u16,
    /// Digits before the point.
    pub whole: u16,
    /// Digits after it.
    pub fraction: u16,
}

impl Decimals {
    /// Decimals of so many digits, wherever the point is.
    pub const fn of(precision: u16) -> Self {
        Self { precision, whole: precision, fraction: precision }
    }

    fn hold(self, precision: u16, scale: u16) -> bool {
        (1..=self.precision).contains(&precision)
            && scale <= self.fraction
            && precision.checked_sub(scale).is_some_and(|whole| whole <= self.whole)
    }
}

/// What a warehouse allows, and what the config wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// For changes that are no widening.
    pub policy: ChangePolicy,
    /// What the warehouse's decimals hold; others are kept as [`Type::Numeric`].
    pub decimals: Decimals,
}

/// A column of the table as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Existing<'a> {
    /// Its type.
    pub ty: &'a Type,
    /// Whether the type was inferred from values.
    pub guessed: bool,
    /// Whether it holds integers that a double can't (beyond ±2^53). Only read where [`asks_for_wide_ints`] says so.
    pub wide_ints: bool,
}

/// A column as an event brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming<'a> {
    /// Its type.
    pub ty: &'a Type,
    /// Whether the type was inferred from values.
    pub guessed: bool,
}

/// What to do with a column of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing is known of the column yet, so it isn't created; older rows will read NULL.
    Wait,
    /// The types agree.
    Same,
    /// Values are converted to the column's type, each one exactly; one that does not convert goes by the policy.
    Cast,
    /// The table gets the column, with this type.
    AddColumn(Type),
    /// The column is altered to this type, which holds its old values exactly.
    Widen(Type),
    /// The values go to a column of this type, called `name__suffix`.
    NewColumn {
        /// What is appended to the name after two underscores.
        suffix: &'static str,
        /// The new column's type.
        ty: Type,
    },
    /// Rows with a value in this column are refused.
    DeadLetter,
    /// The pipeline stops with a message that names both types.
    Stop,
}

/// Decides about one column. `existing` is `None` if the table has no such column.
pub fn decide(existing: Option<Existing<'_>>, incoming: Incoming<'_>, rules: Rules) -> Decision {
    let wanted = storable(incoming.ty, rules.decimals);
    let Some(column) = existing else {
        return if is_unknown(&wanted) { Decision::Wait } else { Decision::AddColumn(wanted) };
    };
    if *column.ty == wanted {
        return Decision::Same;
    }
    let double_takes_int = *column.ty == Type::Float64 && wanted == Type::Int64;
    let known_beats_guess = incoming.guessed && !column.guessed;
    if holds(column.ty, &wanted) || double_takes_int || known_beats_guess {
        return Decision::Cast;
    }
    if asks_for_wide_ints(column.ty, &wanted) && !column.wide_ints {
        return Decision::Widen(Type::Float64);
    }
    if let Some(wider) = join(column.ty, &wanted, rules.decimals) {
        return Decision::Widen(wider);
    }
    if column.guessed && incoming.guessed {
        return Decision::Widen(Type::Text);
    }
    conflict(&wanted, rules.policy)
}

/// Decides about a value that [`Decision::Cast`] could not convert: `ty` is the type that the value has by itself.
pub fn misfit(ty: &Type, rules: Rules) -> Decision {
    conflict(&storable(ty, rules.decimals), rules.policy)
}

fn conflict(wanted: &Type, policy: ChangePolicy) -> Decision {
    match policy {
        ChangePolicy::NewColumn => Decision::NewColumn { suffix: suffix(wanted), ty: wanted.clone() },
        ChangePolicy::DeadLetter => Decision::DeadLetter,
        ChangePolicy::Stop => Decision::Stop,
    }
}

/// Whether [`decide`] needs to know [`Existing::wide_ints`] for this pair.
pub fn asks_for_wide_ints(column: &Type, incoming: &Type) -> bool {
    *column == Type::Int64 && *incoming == Type::Float64
}

/// The type as a warehouse with these decimals keeps it: others are exact text.
pub fn storable(ty: &Type, decimals: Decimals) -> Type {
    match ty {
        Type::Decimal { precision, scale } if !decimals.hold(*precision, *scale) => Type::Numeric,
        Type::List(element) => match storable(element, decimals) {
            // A list whose elements are unknown, lists or structs is kept as JSON.
            Type::Null | Type::List(_) | Type::Struct(_) | Type::Json => Type::Json,
            element => Type::List(Box::new(element)),
        },
        // Warehouses take members whose names differ only by case for one.
        Type::Struct(fields) if fields.is_empty() || has_twins(fields) => Type::Json,
        Type::Struct(fields) => {
            let field = |f: &Field| Field { name: f.name.clone(), ty: known(storable(&f.ty, decimals)) };
            Type::Struct(fields.iter().map(field).collect())
        }
        other => other.clone(),
    }
}

/// Whether names of fields differ only by case.
fn has_twins(fields: &[Field]) -> bool {
    let mut names: Vec<_> = fields.iter().map(|field| field.name.to_lowercase()).collect();
    names.sort_unstable();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// A struct's field must have a type from the start; JSON takes whatever comes later.
fn known(ty: Type) -> Type {
    if ty == Type::Null { Type::Json } else { ty }
}

fn is_unknown(ty: &Type) -> bool {
    *ty == Type::Null
}

/// Whether a column of type `column` takes every value of type `incoming` exactly.
pub fn holds(column: &Type, incoming: &Type) -> bool {
    use Type::{Bool, Bytes, Decimal, Float64, Int64, Json, List, Null, Numeric, Struct, Text};
    match (column, incoming) {
        (_, Null) => true,
        (a, b) if a == b => true,
        // Text has a form for everything but bytes, which are not text.
        (Text, other) => *other != Bytes,
        (Json, Bool | Int64 | Decimal { .. } | Numeric | Float64 | Text | List(_) | Struct(_)) => true,
        (Numeric, Int64 | Decimal { .. }) => true,
        (Decimal { precision, scale }, Int64) => precision - scale >= INT_DIGITS,
        (Decimal { precision, scale }, Decimal { precision: p, scale: s }) => {
            s <= scale && p.saturating_sub(*s) <= precision - scale
        }
        (List(a), List(b)) => holds(a, b),
        (Struct(a), Struct(b)) => {
            b.iter().all(|field| a.iter().any(|f| f.name == field.name && holds(&f.ty, &field.ty)))
        }
        _ => false,
    }
}

/// Digits that an i64 needs.
const INT_DIGITS: u16 = 19;

/// The narrowest type that holds all values of both exactly: integers and decimals grow to wider decimals and then to
/// unbounded ones, lists by their elements, structs by their fields. `None` if there is none but text.
pub fn join(a: &Type, b: &Type, decimals: Decimals) -> Option<Type> {
    use Type::{Decimal, Int64, List, Numeric, Struct};
    if holds(a, b) {
        return Some(a.clone());
    }
    match (a, b) {
        (Int64, Decimal { .. }) => join(&INT_AS_DECIMAL, b, decimals),
        (Decimal { .. }, Int64) => join(a, &INT_AS_DECIMAL, decimals),
        (Int64 | Decimal { .. }, Numeric) => Some(Numeric),
        (Decimal { precision: p, scale: s }, Decimal { precision: q, scale: t }) => {
            let scale = *s.max(t);
            let precision = (p - s).max(q.saturating_sub(*t)) + scale;
            Some(storable(&Decimal { precision, scale }, decimals))
        }
        (List(a), List(b)) => Some(List(Box::new(join(a, b, decimals)?))),
        (Struct(a), Struct(b)) => join_structs(a, b, decimals),
        _ => None,
    }
}

const INT_AS_DECIMAL: Type = Type::Decimal { precision: INT_DIGITS, scale: 0 };

fn join_structs(a: &[Field], b: &[Field], decimals: Decimals) -> Option<Type> {
    let mut fields = a.to_vec();
    for field in b {
        match fields.iter_mut().find(|f| f.name == field.name) {
            Some(old) => old.ty = join(&old.ty, &field.ty, decimals)?,
            None => fields.push(field.clone()),
        }
    }
    if has_twins(&fields) {
        return None;
    }
    Some(Type::Struct(fields.into()))
}

/// The word for a type in the name of a column that a type change made.
pub fn suffix(ty: &Type) -> &'static str {
    match ty {
        Type::Bool => "bool",
        Type::Int64 => "int64",
        Type::Decimal { .. } | Type::Numeric => "numeric",
        Type::Float64 => "float64",
        Type::Null | Type::Text => "string",
        Type::Bytes => "bytes",
        Type::Json => "json",
        Type::Date => "date",
        Type::Time => "time",
        Type::DateTime => "datetime",
        Type::Timestamp => "timestamp",
        Type::List(_) => "array",
        Type::Struct(_) => "struct",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules { policy: ChangePolicy::NewColumn, decimals: Decimals::of(38) };

    fn dec(precision: u16, scale: u16) -> Type {
        Type::Decimal { precision, scale }
    }

    fn list(ty: Type) -> Type {
        Type::List(Box::new(ty))
    }

    fn object(fields: &[(&str, Type)]) -> Type {
        Type::Struct(fields.iter().map(|(n, t)| Field { name: (*n).into(), ty: t.clone() }).collect())
    }

    /// Column, whether guessed; incoming, whether guessed; what is decided.
    type Case = (Type, bool, Type, bool, Decision);

    fn check(cases: Vec<Case>) {
        for (column, guessed, incoming, incoming_guessed, expected) in cases {
            let existing = Existing { ty: &column, guessed, wide_ints: false };
            let decision =
                decide(Some(existing), Incoming { ty: &incoming, guessed: incoming_guessed }, RULES);
            assert_eq!(
                decision, expected,
                "{column:?} (guessed {guessed}) <- {incoming:?} ({incoming_guessed})"
            );
        }
    }

    fn to(suffix: &'static str, ty: Type) -> Decision {
        Decision::NewColumn { suffix, ty }
    }

    #[test]
    fn a_new_column_waits_for_a_type() {
        let decide = |ty: &Type| decide(None, Incoming { ty, guessed: false }, RULES);
        assert_eq!(decide(&Type::Null), Decision::Wait);
        assert_eq!(decide(&Type::Int64), Decision::AddColumn(Type::Int64));
        assert_eq!(decide(&dec(60, 2)), Decision::AddColumn(Type::Numeric));
        assert_eq!(decide(&list(Type::Null)), Decision::AddColumn(Type::Json));
        assert_eq!(decide(&list(list(Type::Int64))), Decision::AddColumn(Type::Json));
        assert_eq!(decide(&list(Type::Int64)), Decision::AddColumn(list(Type::Int64)));
    }

    #[test]
    fn known_types_widen_only_within_their_kind() {
        use Decision::{Cast, Same, Widen};
        use Type::{Bool, Bytes, DateTime, Float64, Int64, Json, Null, Numeric, Text, Timestamp};
        check(vec![
            (Int64, false, Int64, false, Same),
            (Int64, false, Null, false, Cast),
            (Int64, false, dec(12, 2), false, Widen(dec(21, 2))),
            (Int64, false, dec(38, 30), false, Widen(Numeric)),
            (Int64, false, Numeric, false, Widen(Numeric)),
            (Int64, false, Float64, false, Widen(Float64)),
            (Int64, false, Text, false, to("string", Text)),
            (Int64, false, Timestamp, false, to("timestamp", Timestamp)),
            (dec(12, 2), false, dec(10, 2), false, Cast),
            (dec(12, 2), false, dec(14, 4), false, Widen(dec(14, 4))),
            (dec(12, 2), false, dec(14, 1), false, Widen(dec(15, 2))),
            (dec(12, 2), false, Int64, false, Widen(dec(21, 2))),
            (dec(21, 2), false, Int64, false, Cast),
            (dec(12, 2), false, Float64, false, to("float64", Float64)),
            (Numeric, false, Float64, false, to("float64", Float64)),
            (Float64, false, Int64, false, Cast),
            (Float64, false, dec(4, 1), false, to("numeric", dec(4, 1))),
            (Text, false, Int64, false, Cast),
            (Text, false, Bytes, false, to("bytes", Bytes)),
            (Json, false, Text, false, Cast),
            (Json, false, Bytes, false, to("bytes", Bytes)),
            (Bool, false, Int64, false, to("int64", Int64)),
            (DateTime, false, Timestamp, false, to("timestamp", Timestamp)),
            (list(Int64), false, list(dec(5, 1)), false, Widen(list(dec(20, 1)))),
            (list(Int64), false, list(Text), false, to("array", list(Text))),
        ]);
    }

    #[test]
    fn guesses_widen_to_text_and_give_way_to_what_is_known() {
        use Decision::{Cast, Same, Widen};
        use Type::{Bool, Bytes, Float64, Int64, Json, Text, Timestamp};
        check(vec![
            (Int64, true, Int64, true, Same),
            (Int64, true, Float64, true, Widen(Float64)),
            (Int64, true, Text, true, Widen(Text)),
            (Bool, true, Int64, true, Widen(Text)),
            (Float64, true, Text, true, Widen(Text)),
            (Text, true, Json, true, Cast),
            (Text, true, Timestamp, false, Cast),
            (Text, true, Bytes, false, to("bytes", Bytes)),
            (Int64, true, Timestamp, false, to("timestamp", Timestamp)),
            (Timestamp, false, Text, true, Cast),
            (Int64, false, Float64, true, Cast),
        ]);
    }

    #[test]
    fn structs_gain_fields() {
        let old = object(&[("a", Type::Int64)]);
        let new = object(&[("a", dec(5, 1)), ("b", Type::Text)]);
        let wider = object(&[("a", dec(20, 1)), ("b", Type::Text)]);
        let narrow = object(&[("a", Type::Int64)]);
        check(vec![
            (old.clone(), false, new.clone(), false, Decision::Widen(wider.clone())),
            (wider, false, narrow, false, Decision::Cast),
        ]);
    }

    #[test]
    fn integers_that_a_double_cannot_hold_are_not_made_doubles() {
        let existing = Existing { ty: &Type::Int64, guessed: true, wide_ints: true };
        let guessed = Incoming { ty: &Type::Float64, guessed: true };
        assert_eq!(decide(Some(existing), guessed, RULES), Decision::Widen(Type::Text));
        let known = Incoming { ty: &Type::Float64, guessed: false };
        assert_eq!(decide(Some(existing), known, RULES), to("float64", Type::Float64));
    }

    #[test]
    fn the_policy_decides_about_the_rest() {
        let existing = Some(Existing { ty: &Type::Int64, guessed: false, wide_ints: false });
        let incoming = Incoming { ty: &Type::Bytes, guessed: false };
        let with = |policy| decide(existing, incoming, Rules { policy, ..RULES });
        assert_eq!(with(ChangePolicy::DeadLetter), Decision::DeadLetter);
        assert_eq!(with(ChangePolicy::Stop), Decision::Stop);
        assert_eq!(misfit(&Type::Text, RULES), to("string", Type::Text));
    }

    fn any_type() -> impl Strategy<Value = Type> {
        let leaf = prop_oneof![
            Just(Type::Null),
            Just(Type::Bool),
            Just(Type::Int64),
            Just(Type::Numeric),
            Just(Type::Float64),
            Just(Type::Text),
            Just(Type::Bytes),
            Just(Type::Json),
            Just(Type::Date),
            Just(Type::Timestamp),
            (1u16..80)
                .prop_flat_map(|p| (Just(p), 0..=p))
                .prop_map(|(precision, scale)| dec(precision, scale)),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(list),
                prop::collection::vec(inner, 0..3).prop_map(|types| {
                    let field = |(i, ty)| Field { name: format!("f{i}").into(), ty };
                    Type::Struct(types.into_iter().enumerate().map(field).collect())
                }),
            ]
        })
    }

    proptest! {
        /// A widened column holds what it held and what came, and asking again changes nothing.
        #[test]
        fn widening_never_narrows(a in any_type(), b in any_type(), guessed in any::<bool>()) {
            let column = storable(&a, Decimals::of(38));
            prop_assume!(column != Type::Null);
            let existing = |ty| Some(Existing { ty, guessed, wide_ints: false });
            let incoming = Incoming { ty: &b, guessed };
            if let Decision::Widen(wider) = decide(existing(&column), incoming, RULES) {
                let double = wider == Type::Float64 && column == Type::Int64;
                let text_of_bytes = wider == Type::Text && guessed;
                prop_assert!(double || text_of_bytes || holds(&wider, &column));
                let again = decide(existing(&wider), incoming, RULES);
                prop_assert!(matches!(again, Decision::Same | Decision::Cast) || text_of_bytes, "{again:?}");
            }
        }
    }
}
