//! Tables seen so far: their hints, what was learned about their columns, the shapes of their rows.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{HashMap, HashTable};
use millstream_core::decoder::DecodeNotice;
use millstream_core::{Column, RowSchema, TableName};

use crate::codec::temporal::Temporal;
use crate::codec::{Codec, Learned};
use crate::connect_schema::{ColumnFact, Facts};
use crate::hint;
use crate::inference::{Kind, exact_integer_double};
use crate::options::{Modes, Options, TableHints, TimeMode};
use crate::placeholder::Placeholder;
use crate::plan::{COLUMNS_MAX, PlanColumn, RowField, Shape};
use crate::source_block::{Connector, Template};

/// Shapes kept per table; the least recently used goes first.
const SHAPES_MAX: usize = 32;
/// Source blocks that a table's template may fail to match before it is left as it is.
const TEMPLATE_MISSES_MAX: u32 = 64;
/// Tables kept; beyond them everything is forgotten.
const TABLES_MAX: usize = 100_000;

/// One table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) name: Arc<TableName>,
    pub(crate) qualified: String,
    /// Whether the config leaves it out.
    pub(crate) filtered: bool,
    /// Whether all images are known to be full.
    pub(crate) full_identity: bool,
    /// Key columns from the config.
    pub(crate) key: Option<Arc<[String]>>,
    /// The schema of its truncates.
    pub(crate) empty: Arc<RowSchema>,
    /// The schema of its rows, if it is the table of logical messages.
    pub(crate) message_schema: Option<Arc<RowSchema>>,
    modes: Modes,
    mysql: bool,
    learned: HashMap<Box<str>, Vec<Learned>>,
    shapes: Vec<Arc<Shape>>,
    notices: BTreeMap<(&'static str, Box<str>), u64>,
    /// How its source blocks look, and how often one looked otherwise.
    template: Option<Template>,
    misses: u32,
}

/// Why a row has no shape.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ShapeError {
    /// A column is there twice.
    Duplicate(String),
    /// A configured key column is not there.
    MissingKey(String),
    /// More than [`COLUMNS_MAX`] columns.
    TooMany,
}

impl Table {
    fn new(name: TableName, connector: Connector, options: &Options) -> Self {
        let name = Arc::new(name);
        let qualified = name.qualified();
        let hints = options.tables.get(&qualified);
        let mysql = connector == Connector::Mysql;
        let mut modes = options.modes;
        if mysql && modes.time == TimeMode::Adaptive {
            modes.time = TimeMode::AdaptiveTimeMicroseconds;
        }
        Self {
            filtered: !options.wants(&qualified),
            full_identity: mysql || hints.is_some_and(|h| h.full_identity),
            key: hints.and_then(|h| h.key.clone()).map(Into::into),
            empty: Arc::new(RowSchema { table: name.clone(), columns: Vec::new(), key: Vec::new() }),
            message_schema: None,
            name,
            qualified,
            modes,
            mysql,
            learned: HashMap::new(),
            shapes: Vec::new(),
            notices: BTreeMap::new(),
            template: None,
            misses: 0,
        }
    }

    /// The shape of rows with these columns, under these facts. `names`: the row's own columns, in order; `extra`:
    /// columns that another image or the key adds; `key`: the message key's columns, unless the config has its own.
    pub(crate) fn shape(
        &mut self,
        index: usize,
        facts: (u64, &[ColumnFact]),
        fields: &[RowField<'_>],
        extra: &[Cow<'_, str>],
        key: &[Cow<'_, str>],
        options: &Options,
    ) -> Result<Arc<Shape>, ShapeError> {
        let keyed = |schema: &RowSchema| match &self.key {
            Some(_) => true,
            None => schema.key.len() == key.len() && schema.key_names().zip(key).all(|(a, b)| a == *b),
        };
        let found = self.shapes.iter().position(|shape| {
            shape.facts == facts.0
                && shape.columns.len() == fields.len() + extra.len()
                && shape.starts_with(fields)
                && shape.columns[fields.len()..]
                    .iter()
                    .zip(extra)
                    .all(|(column, name)| *column.name == **name)
                && keyed(&shape.schema)
        });
        if let Some(at) = found {
            self.shapes[..=at].rotate_right(1);
            return Ok(self.shapes[0].clone());
        }
        let names: Vec<Cow<'_, str>> =
            fields.iter().map(|f| f.name.decode()).chain(extra.iter().cloned()).collect();
        let shape = Arc::new(self.build(index, facts, &names, extra.is_empty(), key, options)?);
        self.shapes.insert(0, shape.clone());
        self.shapes.truncate(SHAPES_MAX);
        Ok(shape)
    }

    fn build(
        &self,
        index: usize,
        facts: (u64, &[ColumnFact]),
        names: &[Cow<'_, str>],
        plain: bool,
        key: &[Cow<'_, str>],
        options: &Options,
    ) -> Result<Shape, ShapeError> {
        if names.len() > COLUMNS_MAX {
            return Err(ShapeError::TooMany);
        }
        let mut seen = HashSet::with_capacity(names.len());
        if let Some(twice) = names.iter().find(|name| !seen.insert(&***name)) {
            return Err(ShapeError::Duplicate(twice.to_string()));
        }
        let hints = options.tables.get(&self.qualified);
        let mut columns = Vec::with_capacity(names.len());
        let mut plan = Vec::with_capacity(names.len());
        for (at, name) in names.iter().enumerate() {
            let fact = Facts::of(facts.1, name);
            let codec = self.codec(name, fact, hints, options);
            columns.push(Column {
                name: (&**name).into(),
                ty: codec.ty(),
                nullable: match (fact, hints.and_then(|h| h.columns.get(&**name))) {
                    (Some(fact), _) => fact.nullable,
                    (None, Some(hint)) => hint.nullable,
                    (None, None) => true,
                },
                guessed: codec.guessed(),
            });
            plan.push(PlanColumn::new(at, name, codec));
        }
        let at = |name: &str| names.iter().position(|n| n == name);
        let key = match &self.key {
            Some(key) => key
                .iter()
                .map(|name| at(name).ok_or_else(|| ShapeError::MissingKey(name.clone())))
                .collect::<Result<_, _>>()?,
            None => key.iter().filter_map(|name| at(name)).collect(),
        };
        let schema = Arc::new(RowSchema { table: self.name.clone(), columns, key });
        Ok(Shape { table: index, facts: facts.0, columns: plan.into(), schema, plain })
    }

    fn codec(
        &self,
        name: &str,
        fact: Option<&ColumnFact>,
        hints: Option<&TableHints>,
        options: &Options,
    ) -> Codec {
        let hint = hints.and_then(|h| h.columns.get(name));
        let mut codec = match (fact, hint) {
            (Some(fact), hint) => hint::refined(fact, hint, self.modes),
            (None, Some(hint)) => hint::codec(hint, self.modes),
            (None, None) => Codec::Inferred(Kind::Null),
        };
        if let Codec::Temporal(temporal) = codec {
            let as_instant = options.datetime_as_timestamp;
            codec = Codec::Temporal(temporal.settled(as_instant, self.mysql));
        }
        for &learned in self.learned.get(name).map(Vec::as_slice).unwrap_or_default() {
            codec = codec.widened(learned);
        }
        codec
    }

    /// How its source blocks look.
    #[inline]
    pub(crate) fn template(&self) -> Option<&Template> {
        self.template.as_ref()
    }

    /// Takes in a source block that the template, if any, did not match. Blocks that keep changing are given up.
    pub(crate) fn learn_template(&mut self, text: &str, connector: Connector, index: usize) {
        if self.misses < TEMPLATE_MISSES_MAX {
            self.misses += 1;
            self.template = Template::learn(text, connector, index);
        }
    }

    /// Whether `shape` is still one of its own.
    pub(crate) fn holds(&self, shape: &Arc<Shape>) -> bool {
        self.shapes.iter().any(|s| Arc::ptr_eq(s, shape))
    }

    /// Takes in what a value taught about a column; `false` if that was known already and is of no help.
    pub(crate) fn learn(&mut self, column: &str, learned: Learned) -> bool {
        let known = self.learned.entry_ref(column).or_default();
        if known.contains(&learned) {
            return false;
        }
        if matches!(learned, Learned::Kind(_)) {
            known.retain(|l| !matches!(l, Learned::Kind(_)));
        }
        known.push(learned);
        self.shapes.clear();
        true
    }

    /// Joins the kinds of a whole row into its inferred columns, so that a new table learns all columns at once.
    pub(crate) fn learn_row(&mut self, shape: &Shape, fields: &[RowField<'_>], detect: Option<&Placeholder>) {
        let mut next = 0;
        for column in &shape.columns {
            let Codec::Inferred(kind) = column.codec else { continue };
            let Some(field) = crate::plan::find(fields, &mut next, &column.name) else { continue };
            let mut cursor = field.cursor();
            if let Ok(of) = Kind::of(&mut cursor, detect) {
                // An integer that no double holds widens a column of doubles as other exact numbers do.
                let exact = field.value.parse().ok().and_then(exact_integer_double);
                let large = kind == Kind::Float64 && of == Kind::Int64 && exact.is_none();
                let joined = kind.join(if large { Kind::Numeric } else { of });
                if joined != kind {
                    self.learn(&column.name, Learned::Kind(joined));
                }
            }
        }
    }

    /// Counts a replaced value that is in no column.
    #[cold]
    pub(crate) fn note(&mut self, code: &'static str, name: &str) {
        *self.notices.entry((code, name.into())).or_default() += 1;
    }

    /// Counts replaced values.
    pub(crate) fn count(&mut self, shape: &Shape, notes: &mut Vec<(usize, &'static str)>) {
        for (column, code) in notes.drain(..) {
            let name = shape.columns.get(column).map(|c| c.name.clone()).unwrap_or_default();
            *self.notices.entry((code, name)).or_default() += 1;
        }
    }
}

impl Temporal {
    /// With the decoder-wide wish for instants, and whether odd times may turn the column into text.
    fn settled(self, as_instant: bool, mysql: bool) -> Self {
        use crate::codec::temporal::Target;
        let target = match self.target {
            Target::DateTime if as_instant => Target::Timestamp,
            other => other,
        };
        Self { target, widens: self.widens && mysql, ..self }
    }
}

/// All tables, found by what the source calls them.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    all: Vec<Table>,
    by_name: HashTable<usize>,
    hasher: foldhash::fast::RandomState,
    last: usize,
    /// Indexes of forgotten tables are never given again.
    forgotten: usize,
    /// Notices of tables that were forgotten.
    orphaned: Vec<DecodeNotice>,
}

impl Tables {
    /// The index of a table, which is made if it is new.
    #[inline]
    pub(crate) fn index(
        &mut self,
        (db, schema, table): (&str, &str, &str),
        connector: Connector,
        options: &Options,
    ) -> usize {
        let is = |t: &Table| &*t.name.table == table && &*t.name.schema == schema && &*t.name.db == db;
        if self.all.get(self.last).is_some_and(is) {
            return self.forgotten + self.last;
        }
        let hash = self.hasher.hash_one((db, schema, table));
        if let Some(&index) = self.by_name.find(hash, |&i| is(&self.all[i])) {
            self.last = index;
            return self.forgotten + index;
        }
        if self.all.len() >= TABLES_MAX {
            self.orphaned = self.notices();
            self.forgotten += self.all.len();
            self.all.clear();
            self.by_name.clear();
        }
        self.all.push(Table::new(TableName::new(db, schema, table), connector, options));
        let index = self.all.len() - 1;
        let Self { all, by_name, hasher, .. } = self;
        by_name.insert_unique(hash, index, |&i| {
            let name = &all[i].name;
            hasher.hash_one((&*name.db, &*name.schema, &*name.table))
        });
        self.last = index;
        self.forgotten + index
    }

    /// The table asked for last.
    pub(crate) fn last(&self) -> Option<&Table> {
        self.all.get(self.last)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Table> {
        self.all.get(index.checked_sub(self.forgotten)?)
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Table> {
        self.all.get_mut(index.checked_sub(self.forgotten)?)
    }

    /// Drains the counts of replaced values.
    pub(crate) fn notices(&mut self) -> Vec<DecodeNotice> {
        let mut notices = std::mem::take(&mut self.orphaned);
        for table in &mut self.all {
            for ((code, column), count) in std::mem::take(&mut table.notices) {
                let (table, column) = (table.qualified.clone(), column.into());
                notices.push(DecodeNotice { code, table, column, count });
            }
        }
        notices.sort_by(|a, b| (a.code, &a.table, &a.column).cmp(&(b.code, &b.table, &b.column)));
        notices
    }
}
