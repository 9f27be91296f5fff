//! BigQuery's types of columns, and which of them a logical type becomes.

use millstream_core::Type;

/// Digits before the point, and after it, of a NUMERIC.
pub const NUMERIC_DIGITS: (u16, u16) = (29, 9);
/// The same of a BIGNUMERIC. It holds some numbers of 39 digits too, but not all.
pub const BIGNUMERIC_DIGITS: (u16, u16) = (38, 38);

/// The type of a column, or of the elements of a repeated one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum ColumnType {
    /// BOOL.
    Bool,
    /// INT64.
    Int64,
    /// FLOAT64.
    Float64,
    /// NUMERIC: 29 digits before the point, 9 after it.
    Numeric,
    /// BIGNUMERIC: 38 digits on either side of the point.
    BigNumeric,
    /// STRING.
    #[default]
    String,
    /// BYTES.
    Bytes,
    /// JSON.
    Json,
    /// DATE.
    Date,
    /// TIME.
    Time,
    /// DATETIME.
    DateTime,
    /// TIMESTAMP.
    Timestamp,
    /// GEOGRAPHY, in tables that others made: texts go there, as WKT or GeoJSON.
    Geography,
    /// STRUCT; its fields are the field's.
    Record,
    /// One that existing tables have and that this crate does not write (INTERVAL, RANGE, …), as the service spells it.
    Other(Box<str>),
}

/// Standard SQL's name, the REST API's, and its other one, where it has one.
const NAMES: [(ColumnType, &str, &str); 14] = [
    (ColumnType::Bool, "BOOL", "BOOLEAN"),
    (ColumnType::Int64, "INT64", "INTEGER"),
    (ColumnType::Float64, "FLOAT64", "FLOAT"),
    (ColumnType::Numeric, "NUMERIC", "NUMERIC"),
    (ColumnType::BigNumeric, "BIGNUMERIC", "BIGNUMERIC"),
    (ColumnType::String, "STRING", "STRING"),
    (ColumnType::Bytes, "BYTES", "BYTES"),
    (ColumnType::Json, "JSON", "JSON"),
    (ColumnType::Date, "DATE", "DATE"),
    (ColumnType::Time, "TIME", "TIME"),
    (ColumnType::DateTime, "DATETIME", "DATETIME"),
    (ColumnType::Timestamp, "TIMESTAMP", "TIMESTAMP"),
    (ColumnType::Geography, "GEOGRAPHY", "GEOGRAPHY"),
    (ColumnType::Record, "STRUCT", "RECORD"),
];

impl ColumnType {
    /// The type of a scalar; lists and structs without a BigQuery form are JSON.
    pub(crate) fn of_scalar(ty: &Type) -> Self {
        match ty {
            Type::Bool => Self::Bool,
            Type::Int64 => Self::Int64,
            Type::Float64 => Self::Float64,
            Type::Decimal { precision, scale } => Self::of_decimal(*precision, *scale),
            Type::Null | Type::Numeric | Type::Text => Self::String,
            Type::Bytes => Self::Bytes,
            Type::Json | Type::List(_) | Type::Struct(_) => Self::Json,
            Type::Date => Self::Date,
            Type::Time => Self::Time,
            Type::DateTime => Self::DateTime,
            Type::Timestamp => Self::Timestamp,
        }
    }

    /// The narrowest type that holds every decimal of this precision and scale; else exact text.
    pub fn of_decimal(precision: u16, scale: u16) -> Self {
        let Some(whole) = precision.checked_sub(scale) else { return Self::String };
        let fits = |(digits, fraction): (u16, u16)| whole <= digits && scale <= fraction;
        match () {
            () if fits(NUMERIC_DIGITS) => Self::Numeric,
            () if fits(BIGNUMERIC_DIGITS) => Self::BigNumeric,
            () => Self::String,
        }
    }

    /// As SQL spells it.
    pub fn sql(&self) -> &str {
        self.names().0
    }

    /// As the REST API answers it.
    pub fn rest(&self) -> &str {
        self.names().1
    }

    fn names(&self) -> (&str, &str) {
        match self {
            Self::Other(name) => (name, name),
            plain => NAMES.iter().find(|(ty, ..)| ty == plain).map_or(("", ""), |(_, sql, rest)| (sql, rest)),
        }
    }

    /// The type of either spelling.
    pub fn from_name(name: &str) -> Self {
        let upper = name.to_ascii_uppercase();
        let known = NAMES.iter().find(|(_, sql, rest)| upper == *sql || upper == *rest);
        match known {
            Some((ty, ..)) => ty.clone(),
            None if upper == "DECIMAL" => Self::Numeric,
            None if upper == "BIGDECIMAL" => Self::BigNumeric,
            None => Self::Other(upper.into()),
        }
    }

    /// Those that columns of a table of Millstream's have, but for structs.
    #[cfg(test)]
    pub(crate) fn scalars() -> impl Iterator<Item = Self> {
        let of_others = [Self::Geography, Self::Record];
        NAMES.into_iter().map(|(ty, ..)| ty).filter(move |ty| !of_others.contains(ty))
    }

    /// Whether `ALTER COLUMN … SET DATA TYPE` takes a column of this type to `to`. Everything else needs a new column.
    pub fn widens_to(&self, to: &Self) -> bool {
        matches!(
            (self, to),
            (Self::Int64, Self::Numeric | Self::BigNumeric | Self::Float64)
                | (Self::Numeric, Self::BigNumeric | Self::Float64)
                | (Self::BigNumeric, Self::Float64)
        )
    }

    /// Whether a column of this type takes the rows that are written for one of type `wanted`.
    pub(crate) fn takes(&self, wanted: &Self) -> bool {
        self == wanted || (self, wanted) == (&Self::Geography, &Self::String)
    }

    /// Whether a table may be clustered by a column of it.
    pub fn may_cluster(&self) -> bool {
        !matches!(self, Self::Float64 | Self::Bytes | Self::Json | Self::Time | Self::Record | Self::Other(_))
    }

    /// Whether a primary key may have a column of it.
    pub fn may_be_key(&self) -> bool {
        !matches!(self, Self::Float64 | Self::Json | Self::Geography | Self::Record | Self::Other(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_take_the_narrowest_type_that_holds_them() {
        let cases = [
            ((12, 2), ColumnType::Numeric),
            ((38, 9), ColumnType::Numeric),
            ((29, 0), ColumnType::Numeric),
            ((30, 0), ColumnType::BigNumeric),
            ((12, 10), ColumnType::BigNumeric),
            ((76, 38), ColumnType::BigNumeric),
            ((39, 0), ColumnType::String),
            ((39, 39), ColumnType::String),
            ((2, 3), ColumnType::String),
            ((u16::MAX, 0), ColumnType::String),
        ];
        for ((precision, scale), expected) in cases {
            assert_eq!(ColumnType::of_decimal(precision, scale), expected, "({precision},{scale})");
        }
    }

    #[test]
    fn names_come_back() {
        for (ty, sql, rest) in &NAMES {
            assert_eq!(&ColumnType::from_name(sql), ty);
            assert_eq!(&ColumnType::from_name(&rest.to_lowercase()), ty);
            assert_eq!((ty.sql(), ty.rest()), (*sql, *rest));
        }
        assert_eq!(ColumnType::from_name("geography"), ColumnType::Geography);
        assert_eq!(ColumnType::from_name("interval"), ColumnType::Other("INTERVAL".into()));
    }

    #[test]
    fn only_numbers_widen_and_never_narrow() {
        use ColumnType::{BigNumeric, Float64, Int64, Numeric, String};
        for (from, to) in [
            (Int64, Numeric),
            (Int64, BigNumeric),
            (Int64, Float64),
            (Numeric, BigNumeric),
            (Numeric, Float64),
            (BigNumeric, Float64),
        ] {
            assert!(from.widens_to(&to) && !to.widens_to(&from), "{from:?} {to:?}");
        }
        assert!(!Int64.widens_to(&String) && !Int64.widens_to(&Int64));
    }
}
