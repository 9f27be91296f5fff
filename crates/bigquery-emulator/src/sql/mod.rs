//! GoogleSQL, as far as a tool that loads tables and its tests need it: parsed, rewritten, and run by DuckDB.

mod data_type;
mod ddl;
mod dml;
mod expressions;
mod functions;
mod information;
mod names;
mod options;
mod translate;

use std::cell::RefCell;

use duckdb::Connection;
use duckdb::arrow::array::RecordBatch;
use sqlparser::ast::{Query, Statement};
use sqlparser::dialect::BigQueryDialect;
use sqlparser::keywords::Keyword;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use translate::Translator;

use crate::engine;
use crate::failure::Failure;
use crate::schema::Column;
use crate::table::{Shared, TableId};
use crate::warehouse::{DatasetId, Warehouse};

/// How deep expressions may lie in each other.
const DEPTH_MAX: usize = 200;

/// Where SQL runs.
pub(crate) struct Session<'a> {
    pub(crate) warehouse: &'a Warehouse,
    pub(crate) connection: &'a Connection,
    pub(crate) project: String,
    /// The dataset of names without one.
    pub(crate) dataset: Option<DatasetId>,
    /// Where the job runs; datasets elsewhere do not exist there.
    pub(crate) location: Option<String>,
    /// Where the first of its tables is.
    seen: RefCell<Option<String>>,
}

/// How many rows a statement changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Affected {
    pub(crate) inserted: u64,
    pub(crate) updated: u64,
    pub(crate) deleted: u64,
}

/// What a statement did.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// `SELECT`, `CREATE_TABLE` and so on.
    pub(crate) kind: &'static str,
    pub(crate) columns: Vec<Column>,
    pub(crate) batches: Vec<RecordBatch>,
    /// How many rows a DML statement changed; None for others.
    pub(crate) affected: Option<(u64, Affected)>,
    /// What a DDL statement did, and to which table or dataset.
    pub(crate) ddl: Option<&'static str>,
    pub(crate) target: Option<TableId>,
}

impl<'a> Session<'a> {
    /// A session.
    pub(crate) fn new(
        warehouse: &'a Warehouse,
        connection: &'a Connection,
        project: &str,
        dataset: Option<DatasetId>,
        location: Option<String>,
    ) -> Self {
        let project = project.to_owned();
        Self { warehouse, connection, project, dataset, location, seen: RefCell::new(None) }
    }

    /// Where the first of the tables is that its statements name.
    pub(crate) fn seen(&self) -> Option<String> {
        self.seen.borrow().clone()
    }

    /// A table, if it is where the job runs.
    pub(crate) fn table(&self, id: &TableId) -> Result<Shared, Failure> {
        let table = self.warehouse.table(id);
        let actual = self.warehouse.location(&id.project, &id.dataset);
        if let Some(actual) = &actual {
            self.seen.borrow_mut().get_or_insert_with(|| actual.clone());
        }
        let (Some(wanted), Some(actual)) = (&self.location, actual) else { return table };
        if !wanted.eq_ignore_ascii_case(&actual) {
            return Err(Failure::not_found(format!(
                "Not found: Dataset {}:{} was not found in location {wanted}",
                id.project, id.dataset
            )));
        }
        table
    }

    /// Runs statements; answers what the last one did.
    pub(crate) fn run(&self, sql: &str) -> Result<Outcome, Failure> {
        let mut outcome = None;
        for tokens in statements(sql)? {
            outcome = Some(self.statement(&tokens)?);
        }
        outcome.ok_or_else(|| Failure::query("Syntax error: Unexpected end of statement"))
    }

    /// Looks at SQL without running it: the columns of a query, or that there are several statements.
    pub(crate) fn look(&self, sql: &str) -> Result<Outcome, Failure> {
        if statements(sql)?.len() > 1 {
            return Ok(Outcome { kind: "SCRIPT", ..Outcome::default() });
        }
        let columns = self.view_columns(sql)?;
        Ok(Outcome { kind: "SELECT", columns, ..Outcome::default() })
    }

    fn statement(&self, tokens: &[TokenWithSpan]) -> Result<Outcome, Failure> {
        let mut words = tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
        let first = match words.next().map(|t| &t.token) {
            Some(Token::Word(word)) => word.keyword,
            _ => Keyword::NoKeyword,
        };
        if matches!(first, Keyword::CREATE | Keyword::ALTER | Keyword::DROP) {
            return ddl::run(self, tokens);
        }
        let mut parser = parser(tokens.to_vec());
        let statement = parser.parse_statement().map_err(syntax)?;
        if parser.peek_token_ref().token != Token::EOF {
            let found = parser.peek_token_ref();
            let (line, column) = (found.span.start.line, found.span.start.column);
            return Err(Failure::query(format!(
                "Syntax error: Unexpected {} at [{line}:{column}]",
                found.token
            )));
        }
        match statement {
            Statement::Query(query) => self.select(*query),
            other => dml::run(self, other),
        }
    }

    /// Rewrites a query, and says what columns it has; its tables hold then what a reader may see.
    pub(crate) fn translate(&self, query: &mut Query) -> Result<(String, Vec<Column>), Failure> {
        let mut translator = Translator::new(self);
        translator.rewrite(query)?;
        self.land(&translator.tables)?;
        let sql = query.to_string();
        let columns = self.describe(&sql, &translator)?;
        Ok((sql, columns))
    }

    /// Puts into the database what a reader of these tables may see.
    fn land(&self, tables: &[Shared]) -> Result<(), Failure> {
        tables.iter().try_for_each(|table| self.warehouse.land(self.connection, table))
    }

    fn select(&self, mut query: Query) -> Result<Outcome, Failure> {
        let (sql, columns) = self.translate(&mut query)?;
        let batches = engine::query(self.connection, &sql)?;
        Ok(Outcome { kind: "SELECT", columns, batches, ..Outcome::default() })
    }

    /// The columns of a query of DuckDB's SQL. Types that DuckDB keeps as text are known by the names of the tables' columns.
    fn describe(&self, sql: &str, translator: &Translator<'_>) -> Result<Vec<Column>, Failure> {
        let mut known = translator.casts.clone();
        known.extend(translator.tables.iter().flat_map(|table| table.lock().schema.to_vec()));
        let mut statement = self.connection.prepare(&format!("DESCRIBE {sql}"))?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
        let mut columns = Vec::new();
        for row in rows {
            let (name, ty) = row?;
            // BigQuery names what has no name f0_, f1_ and so on.
            let plain = |c: char| c.is_alphanumeric() || "_ -&%=+:'<>#|".contains(c);
            let name = if name.is_empty() || !name.chars().all(plain) || name.contains('(') {
                let unnamed =
                    columns.iter().filter(|c: &&Column| c.name.starts_with('f') && c.name.ends_with('_'));
                format!("f{}_", unnamed.count())
            } else {
                name
            };
            let mut column = data_type::described(&name, &ty);
            data_type::refine(&mut column, &known);
            columns.push(column);
        }
        Ok(columns)
    }

    /// The columns of a view.
    pub(crate) fn view_columns(&self, sql: &str) -> Result<Vec<Column>, Failure> {
        let mut query = parse_query(sql)?;
        let mut translator = Translator::new(self);
        translator.rewrite(&mut *query)?;
        self.describe(&query.to_string(), &translator)
    }
}

fn parser(tokens: Vec<TokenWithSpan>) -> Parser<'static> {
    Parser::new(&BigQueryDialect).with_recursion_limit(DEPTH_MAX).with_tokens_with_locations(tokens)
}

/// A syntax error as the service words it.
fn syntax(error: ParserError) -> Failure {
    match error {
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => {
            Failure::query(format!("Syntax error: {message}"))
        }
        ParserError::RecursionLimitExceeded => Failure::query("The query is nested too deeply"),
    }
}

/// Reads a query.
pub(crate) fn parse_query(sql: &str) -> Result<Box<Query>, Failure> {
    let mut all = statements(sql)?;
    match (all.pop(), all.is_empty()) {
        (Some(tokens), true) => parser(tokens).parse_query().map_err(syntax),
        _ => Err(Failure::query("A single query is needed here")),
    }
}

/// Takes statements apart at their semicolons.
fn statements(sql: &str) -> Result<Vec<Vec<TokenWithSpan>>, Failure> {
    let tokens = Tokenizer::new(&BigQueryDialect, sql).tokenize_with_location();
    let tokens = tokens.map_err(|e| Failure::query(format!("Syntax error: {e}")))?;
    let parts = tokens.split(|token| token.token == Token::SemiColon);
    let full =
        parts.filter(|part| part.iter().any(|t| !matches!(t.token, Token::Whitespace(_) | Token::EOF)));
    Ok(full.map(without_array_types).collect())
}

/// `ARRAY<INT64>[1, 2]` without its type, which the parser does not know before brackets.
fn without_array_types(tokens: &[TokenWithSpan]) -> Vec<TokenWithSpan> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let is_array = matches!(&tokens[at].token, Token::Word(w) if w.keyword == Keyword::ARRAY);
        if is_array && tokens.get(at + 1).is_some_and(|t| t.token == Token::Lt) {
            let mut depth = 0;
            let closing = tokens[at + 1..].iter().position(|t| {
                depth += match t.token {
                    Token::Lt => 1,
                    Token::Gt => -1,
                    Token::ShiftRight => -2,
                    _ => 0,
                };
                depth <= 0
            });
            if let Some(closing) = closing
                && tokens.get(at + closing + 2).is_some_and(|t| t.token == Token::LBracket)
            {
                at += closing + 2;
                continue;
            }
        }
        kept.push(tokens[at].clone());
        at += 1;
    }
    kept
}

/// A timestamp's text in microseconds since 1970.
pub(crate) fn timestamp_micros(text: &str) -> Result<i64, Failure> {
    crate::row::timestamp(text).map_err(Failure::query)
}
