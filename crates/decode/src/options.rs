//! What a decoder is told: hints about tables, the connector's modes, policies for values that warehouses refuse.

use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;
use millstream_core::{Incarnation, TableName, Type};

/// Options of a decoder. One set serves all decode workers.
#[derive(Debug, Clone)]
pub struct Options {
    /// Sorts before all positions; see [`Incarnation`].
    pub incarnation: Incarnation,
    /// Hints by table, keyed `schema.table` (`db.table` where the database has no schemas).
    pub tables: HashMap<String, TableHints>,
    /// Decode only these tables (same names); all others become control items. `None`: all.
    pub include: Option<HashSet<String>>,
    /// Leave these tables out, e.g. a signal table.
    pub exclude: HashSet<String>,
    /// The table whose rows logical messages become (its `db` is the message's); `None`: they are only counted.
    pub messages: Option<TableName>,
    /// The connector's modes, for events without embedded schema.
    pub modes: Modes,
    /// The connector's `unavailable.value.placeholder`.
    pub placeholder: String,
    /// What becomes of dates, times and timestamps that warehouses cannot hold: years outside 0001–9999, ±infinity.
    pub out_of_range: RangePolicy,
    /// What becomes of NaN and ±infinity in decimals.
    pub not_finite: NotFinitePolicy,
    /// Keep before-images in [`millstream_core::Event::before`] (the changelog layout needs them).
    pub keep_before: bool,
    /// Keep the JSON text of `source` and `transaction` in the facts.
    pub keep_source: bool,
    /// Give timestamps without zone the type of instants (UTC) instead of [`Type::DateTime`].
    pub datetime_as_timestamp: bool,
    /// Larger records are refused, bytes. At most 1 GiB, whatever is set.
    pub record_bytes_max: usize,
    /// Names in flattened events.
    pub flat: FlatOptions,
    /// What plain messages are told by.
    pub json: JsonOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            incarnation: Incarnation::default(),
            tables: HashMap::new(),
            include: None,
            exclude: HashSet::new(),
            messages: None,
            modes: Modes::default(),
            placeholder: "__debezium_unavailable_value".to_owned(),
            out_of_range: RangePolicy::default(),
            not_finite: NotFinitePolicy::default(),
            keep_before: false,
            keep_source: false,
            datetime_as_timestamp: false,
            record_bytes_max: 64 << 20,
            flat: FlatOptions::default(),
            json: JsonOptions::default(),
        }
    }
}

impl Options {
    /// Whether events of this table are wanted.
    pub(crate) fn wants(&self, qualified: &str) -> bool {
        !self.exclude.contains(qualified)
            && self.include.as_ref().is_none_or(|tables| tables.contains(qualified))
    }
}

/// What the config knows about a table.
#[derive(Debug, Clone, Default)]
pub struct TableHints {
    /// The key columns; wins over the message key. Empty: the table has no key, whatever the message says.
    pub key: Option<Vec<String>>,
    /// Types of columns, from a schema file or an existing table, in their order there.
    pub columns: IndexMap<String, ColumnHint>,
    /// The table has REPLICA IDENTITY FULL: before-images are full, and every value is always present.
    pub full_identity: bool,
}

/// What is known about a column where the event's own schema does not tell.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnHint {
    /// Its type.
    pub ty: Type,
    /// The connector's semantic type, e.g. `io.debezium.time.MicroTimestamp`, where the type leaves the encoding open.
    pub semantic: Option<String>,
    /// Fractional digits of a time or timestamp (0 to 9), which decide between ms and µs in adaptive modes.
    pub fraction: Option<u8>,
    /// What a number in a time or timestamp counts; wins over `fraction` and modes.
    pub unit: Option<TimeUnit>,
    /// Length of a bit string, bits.
    pub bits: Option<u32>,
    /// Whether NULL is allowed.
    pub nullable: bool,
}

impl ColumnHint {
    /// A nullable column of this type, nothing else known.
    pub fn new(ty: Type) -> Self {
        Self { ty, semantic: None, fraction: None, unit: None, bits: None, nullable: true }
    }

    /// The same with a semantic type.
    #[must_use]
    pub fn with_semantic(mut self, semantic: &str) -> Self {
        self.semantic = Some(semantic.to_owned());
        self
    }
}

/// What a number in a column of times counts: since 1970-01-01T00:00:00Z, or since midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
}

/// The connector's modes, named like Debezium's properties; defaults are Debezium's for PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Modes {
    /// `time.precision.mode`.
    pub time: TimeMode,
    /// `decimal.handling.mode`.
    pub decimal: DecimalMode,
    /// `binary.handling.mode`.
    pub binary: BinaryMode,
    /// `interval.handling.mode`.
    pub interval: IntervalMode,
    /// `hstore.handling.mode`.
    pub hstore: HstoreMode,
}

macro_rules! mode {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            /// All values, the default first.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Debezium's name of it.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// The value of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|mode| mode.name() == name)
            }
        }
    };
}

mode! {
    /// `time.precision.mode`.
    TimeMode {
        /// Milliseconds up to three fractional digits, else microseconds.
        #[default]
        Adaptive = "adaptive",
        /// Adaptive, but every time of day in microseconds (MySQL's default).
        AdaptiveTimeMicroseconds = "adaptive_time_microseconds",
        /// Kafka Connect's own types: milliseconds.
        Connect = "connect",
        /// ISO 8601 text.
        IsoString = "isostring",
        /// Always microseconds.
        Microseconds = "microseconds",
        /// Always nanoseconds.
        Nanoseconds = "nanoseconds",
    }
}

mode! {
    /// `decimal.handling.mode`.
    DecimalMode {
        /// Base64 of the unscaled value, or a struct of scale and value.
        #[default]
        Precise = "precise",
        /// Text.
        String = "string",
        /// A double, with its loss.
        Double = "double",
    }
}

mode! {
    /// `binary.handling.mode`.
    BinaryMode {
        /// Connect bytes, which JSON shows as base64.
        #[default]
        Bytes = "bytes",
        /// Base64 text.
        Base64 = "base64",
        /// Base64 text with the URL-safe alphabet.
        Base64UrlSafe = "base64-url-safe",
        /// Hexadecimal text.
        Hex = "hex",
    }
}

mode! {
    /// `interval.handling.mode`.
    IntervalMode {
        /// Microseconds, a month being 30.4375 days.
        #[default]
        Numeric = "numeric",
        /// ISO 8601 text.
        String = "string",
    }
}

mode! {
    /// `hstore.handling.mode`.
    HstoreMode {
        /// Text of a JSON object.
        #[default]
        Json = "json",
        /// A JSON object.
        Map = "map",
    }
}

mode! {
    /// What becomes of a date, time or timestamp that warehouses cannot hold.
    RangePolicy {
        /// NULL, counted.
        #[default]
        Null = "null",
        /// The nearest value that fits, counted.
        Clamp = "clamp",
        /// The record becomes a dead letter.
        DeadLetter = "dead-letter",
    }
}

mode! {
    /// What becomes of NaN and ±infinity in a decimal.
    NotFinitePolicy {
        /// NULL, counted.
        #[default]
        Null = "null",
        /// ±infinity: the nearest value that the column's precision allows; NaN, or without a precision: NULL. Counted.
        Clamp = "clamp",
        /// The record becomes a dead letter.
        DeadLetter = "dead-letter",
        /// The column becomes text from the first such value on: `NaN`, `Infinity`, `-Infinity`.
        String = "string",
    }
}

mode! {
    /// What becomes of a member of a plain message that its table does not declare.
    UnknownFields {
        /// The message becomes a dead letter.
        #[default]
        DeadLetter = "dead-letter",
        /// It is left out, counted.
        Ignore = "ignore",
    }
}

/// Plain messages. Their tables are those of [`Options::tables`] that have columns.
#[derive(Debug, Clone, Default)]
pub struct JsonOptions {
    /// The table of messages that tell none.
    pub table: Option<String>,
    /// The member of the object that tells the table.
    pub table_field: Option<String>,
    /// The header or attribute that tells the table; looked at before the member.
    pub table_attribute: Option<String>,
    /// What becomes of members that the table does not declare, within structs too.
    pub unknown_fields: UnknownFields,
}

/// Names that ExtractNewRecordState adds, as fields or headers (`add.fields`, `add.headers`).
#[derive(Debug, Clone)]
pub struct FlatOptions {
    /// The op letter.
    pub op: String,
    /// `"true"` for deletes in the rewrite modes.
    pub deleted: String,
    /// The table.
    pub table: String,
    /// The schema.
    pub schema: String,
    /// The database.
    pub db: String,
    /// PostgreSQL's LSN.
    pub lsn: String,
    /// The source's time, ms.
    pub ts_ms: String,
    /// The source's time, µs.
    pub ts_us: String,
    /// The transaction.
    pub transaction_id: String,
    /// `source.snapshot`.
    pub snapshot: String,
    /// MySQL's binlog file.
    pub file: String,
    /// MySQL's binlog position.
    pub pos: String,
    /// MySQL's row within the binlog event.
    pub row: String,
    /// The table where neither fields nor headers nor the topic tell it.
    pub default_table: Option<TableName>,
}

impl Default for FlatOptions {
    fn default() -> Self {
        let name = str::to_owned;
        Self {
            op: name("__op"),
            deleted: name("__deleted"),
            table: name("__table"),
            schema: name("__schema"),
            db: name("__db"),
            lsn: name("__lsn"),
            ts_ms: name("__source_ts_ms"),
            ts_us: name("__source_ts_us"),
            transaction_id: name("__txId"),
            snapshot: name("__snapshot"),
            file: name("__file"),
            pos: name("__pos"),
            row: name("__row"),
            default_table: None,
        }
    }
}
