//! CREATE, ALTER and DROP, read word by word: what BigQuery adds to them is more than a general parser knows.

use serde_json::{Map, Value, json};
use sqlparser::parser::Parser;
use sqlparser::tokenizer::{Token, TokenWithSpan};

use super::options::{self, Given};
use super::{Outcome, Session, parser, syntax};
use crate::catalog;
use crate::evolution;
use crate::failure::{Failure, Reason};
use crate::schema::{self, Column, Mode, Type, check_name};
use crate::table::{Kind, TableId};

/// Runs a statement.
pub(crate) fn run(session: &Session<'_>, tokens: &[TokenWithSpan]) -> Result<Outcome, Failure> {
    let mut split = Vec::new();
    for token in tokens {
        // `ARRAY<STRUCT<…>>` ends in two brackets, which otherwise are an operator.
        let times = if token.token == Token::ShiftRight { 2 } else { 1 };
        let one = if times == 2 { Token::Gt } else { token.token.clone() };
        split.extend(std::iter::repeat_n(TokenWithSpan { token: one, span: token.span }, times));
    }
    let text: String = tokens.iter().map(|t| t.token.to_string()).collect();
    let mut statement = Statement { session, parser: parser(split), text };
    let outcome = statement.run()?;
    statement.end()?;
    Ok(outcome)
}

struct Statement<'a> {
    session: &'a Session<'a>,
    parser: Parser<'static>,
    text: String,
}

impl Statement<'_> {
    fn word(&mut self, word: &str) -> bool {
        let found = matches!(&self.parser.peek_token_ref().token, Token::Word(w) if w.value.eq_ignore_ascii_case(word));
        if found {
            self.parser.advance_token();
        }
        found
    }

    fn words(&mut self, words: &[&str]) -> bool {
        let at = |n: usize| match self.parser.peek_nth_token_ref(n).token {
            Token::Word(ref w) => w.value.clone(),
            _ => String::new(),
        };
        let found = words.iter().enumerate().all(|(n, word)| at(n).eq_ignore_ascii_case(word));
        if found {
            words.iter().for_each(|_| self.parser.advance_token());
        }
        found
    }

    fn sign(&mut self, token: &Token) -> bool {
        self.parser.consume_token(token)
    }

    fn expect(&mut self, token: &Token) -> Result<(), Failure> {
        self.parser.expect_token(token).map(|_| ()).map_err(syntax)
    }

    fn unexpected<T>(&self) -> Result<T, Failure> {
        let found = self.parser.peek_token_ref();
        let place = found.span.start;
        Err(Failure::query(format!(
            "Syntax error: the emulator does not understand {} at [{}:{}]",
            found.token, place.line, place.column
        )))
    }

    fn end(&self) -> Result<(), Failure> {
        if self.parser.peek_token_ref().token == Token::EOF { Ok(()) } else { self.unexpected() }
    }

    fn name(&mut self) -> Result<String, Failure> {
        Ok(self.parser.parse_identifier().map_err(syntax)?.value)
    }

    fn table_id(&mut self) -> Result<TableId, Failure> {
        let name = self.parser.parse_object_name(true).map_err(syntax)?;
        self.session.table_id(&name)
    }

    fn names(&mut self) -> Result<Vec<String>, Failure> {
        self.expect(&Token::LParen)?;
        let mut names = vec![self.name()?];
        while self.sign(&Token::Comma) {
            names.push(self.name()?);
        }
        self.expect(&Token::RParen)?;
        Ok(names)
    }

    fn if_exists(&mut self) -> bool {
        self.words(&["IF", "EXISTS"])
    }

    fn if_not_exists(&mut self) -> bool {
        self.words(&["IF", "NOT", "EXISTS"])
    }

    fn run(&mut self) -> Result<Outcome, Failure> {
        if self.word("CREATE") {
            let replace = self.words(&["OR", "REPLACE"]);
            if self.word("SCHEMA") {
                return self.create_schema();
            }
            if self.word("TABLE") {
                return self.create_table(replace);
            }
            if self.word("VIEW") {
                return self.create_view(replace, false);
            }
            if self.words(&["MATERIALIZED", "VIEW"]) {
                return self.create_view(replace, true);
            }
        } else if self.word("DROP") {
            if self.word("SCHEMA") {
                return self.drop_schema();
            }
            for (words, kind) in [
                (&["TABLE"][..], "DROP_TABLE"),
                (&["VIEW"][..], "DROP_VIEW"),
                (&["MATERIALIZED", "VIEW"][..], "DROP_MATERIALIZED_VIEW"),
            ] {
                if self.words(words) {
                    return self.drop_table(kind);
                }
            }
        } else if self.word("ALTER") {
            if self.word("SCHEMA") {
                return self.alter_schema();
            }
            for (words, kind) in [
                (&["TABLE"][..], "ALTER_TABLE"),
                (&["VIEW"][..], "ALTER_VIEW"),
                (&["MATERIALIZED", "VIEW"][..], "ALTER_MATERIALIZED_VIEW"),
            ] {
                if self.words(words) {
                    return self.alter_table(kind);
                }
            }
        }
        self.unexpected()
    }

    fn create_schema(&mut self) -> Result<Outcome, Failure> {
        let quietly = self.if_not_exists();
        let name = self.parser.parse_object_name(true).map_err(syntax)?;
        let (project, dataset) = self.session.dataset_id(&name)?;
        let mut resource = Map::new();
        options::apply(options::read(&mut self.parser)?, &mut resource)?;
        self.end()?;
        let location = match resource.remove("location") {
            Some(Value::String(location)) => Some(location),
            _ => self.session.location.clone(),
        };
        let Session { warehouse, connection, .. } = self.session;
        let made =
            catalog::create_dataset(warehouse, connection, &project, &dataset, location.as_deref(), resource);
        done("CREATE_SCHEMA", None, made, quietly, Reason::Duplicate, "CREATE")
    }

    fn drop_schema(&mut self) -> Result<Outcome, Failure> {
        let quietly = self.if_exists();
        let name = self.parser.parse_object_name(true).map_err(syntax)?;
        let (project, dataset) = self.session.dataset_id(&name)?;
        let contents = self.word("CASCADE");
        let _ = self.word("RESTRICT");
        self.end()?;
        let Session { warehouse, connection, .. } = self.session;
        let dropped = catalog::drop_dataset(warehouse, connection, &project, &dataset, contents);
        done("DROP_SCHEMA", None, dropped, quietly, Reason::NotFound, "DROP")
    }

    fn alter_schema(&mut self) -> Result<Outcome, Failure> {
        let quietly = self.if_exists();
        let name = self.parser.parse_object_name(true).map_err(syntax)?;
        let id = self.session.dataset_id(&name)?;
        if !self.word("SET") {
            return self.unexpected();
        }
        let given = options::read(&mut self.parser)?;
        self.end()?;
        let changed = {
            let mut datasets = self.session.warehouse.datasets();
            match datasets.get_mut(&id) {
                Some(dataset) => options::apply(given, &mut dataset.resource).map(|()| {
                    dataset.version += 1;
                    dataset.clone()
                }),
                None => Err(Failure::not_found(format!("Not found: Dataset {}:{}", id.0, id.1))),
            }
        };
        let Session { warehouse, connection, .. } = self.session;
        let saved = changed.and_then(|dataset| catalog::save_dataset(warehouse, connection, &id, &dataset));
        done("ALTER_SCHEMA", None, saved, quietly, Reason::NotFound, "ALTER")
    }

    fn create_table(&mut self, replace: bool) -> Result<Outcome, Failure> {
        let quietly = self.if_not_exists();
        let id = self.table_id()?;
        let mut resource = Map::new();
        let mut columns = Vec::new();
        let mut keys = None;
        if self.sign(&Token::LParen) {
            while !self.sign(&Token::RParen) {
                if self.words(&["PRIMARY", "KEY"]) {
                    keys = Some(self.names()?);
                    self.not_enforced();
                } else {
                    let column = self.column()?;
                    if self.words(&["PRIMARY", "KEY"]) {
                        keys = Some(vec![column.name.clone()]);
                        self.not_enforced();
                    }
                    columns.push(column);
                }
                if !self.sign(&Token::Comma) {
                    self.expect(&Token::RParen)?;
                    break;
                }
            }
        }
        if let Some(keys) = keys {
            resource.insert("tableConstraints".to_owned(), json!({"primaryKey": {"columns": keys}}));
        }
        self.table_clauses(&mut resource)?;
        let Session { warehouse, connection, .. } = *self.session;
        let exists = warehouse.table(&id).is_ok();
        if exists && quietly {
            return done("CREATE_TABLE", Some(id), Ok(()), false, Reason::Duplicate, "SKIP");
        }
        let rows = if self.word("AS") {
            let mut query = self.parser.parse_query().map_err(syntax)?;
            let (sql, described) = self.session.translate(&mut query)?;
            if columns.is_empty() {
                columns = described;
            }
            Some(sql)
        } else {
            None
        };
        self.end()?;
        if exists && !replace {
            return Err(Failure::duplicate(format!("Already Exists: Table {id}")));
        }
        if columns.is_empty() {
            return Err(Failure::query("CREATE TABLE needs columns or a query"));
        }
        // The query may read the table that it replaces.
        if let Some(sql) = &rows {
            connection.execute_batch(&format!("CREATE OR REPLACE TABLE __emulator.selected AS {sql}"))?;
        }
        if exists {
            catalog::drop_table(warehouse, connection, &warehouse.table(&id)?)?;
        }
        let made = catalog::create_table(warehouse, connection, &id, Kind::Table, columns, resource);
        let inserted = made.and_then(|_| match rows {
            Some(_) => Ok(connection.execute_batch(&format!(
                "INSERT INTO {} SELECT * FROM __emulator.selected; DROP TABLE __emulator.selected",
                id.quoted()
            ))?),
            None => Ok(()),
        });
        let kind =
            if self.text.to_ascii_uppercase().contains(" AS ") && exists { "REPLACE" } else { "CREATE" };
        done("CREATE_TABLE", Some(id), inserted, false, Reason::Duplicate, kind)
    }

    /// PARTITION BY, CLUSTER BY and OPTIONS, in this order.
    fn table_clauses(&mut self, resource: &mut Map<String, Value>) -> Result<(), Failure> {
        if self.words(&["PARTITION", "BY"]) {
            let expr = self.parser.parse_expr().map_err(syntax)?;
            options::partition(&expr, resource)?;
        }
        if self.words(&["CLUSTER", "BY"]) {
            let mut fields = vec![self.name()?];
            while self.sign(&Token::Comma) {
                fields.push(self.name()?);
            }
            resource.insert("clustering".to_owned(), json!({"fields": fields}));
        }
        options::apply(options::read(&mut self.parser)?, resource)
    }

    fn not_enforced(&mut self) {
        let _ = self.words(&["NOT", "ENFORCED"]);
    }

    fn create_view(&mut self, replace: bool, materialized: bool) -> Result<Outcome, Failure> {
        let quietly = self.if_not_exists();
        let id = self.table_id()?;
        let mut given = Vec::new();
        if self.sign(&Token::LParen) {
            while !self.sign(&Token::RParen) {
                let name = self.name()?;
                let options = options::read(&mut self.parser)?;
                given.push((name, options));
                if !self.sign(&Token::Comma) {
                    self.expect(&Token::RParen)?;
                    break;
                }
            }
        }
        let mut resource = Map::new();
        self.table_clauses(&mut resource)?;
        if !self.word("AS") {
            return self.unexpected();
        }
        let query = self.parser.parse_query().map_err(syntax)?.to_string();
        self.end()?;
        let mut columns = self.session.view_columns(&query)?;
        if !given.is_empty() && given.len() != columns.len() {
            return Err(Failure::query("The view's columns are not as many as those of its query"));
        }
        if given.iter().zip(&columns).any(|((name, _), column)| *name != column.name) {
            return Err(Failure::unsupported("other names for a view's columns than its query gives them"));
        }
        for ((_, options), column) in given.into_iter().zip(&mut columns) {
            column_options(options, column)?;
        }
        let kind = if materialized { Kind::MaterializedView(query) } else { Kind::View(query) };
        let name = if materialized { "CREATE_MATERIALIZED_VIEW" } else { "CREATE_VIEW" };
        let Session { warehouse, connection, .. } = *self.session;
        let mut did = "CREATE";
        if replace && let Ok(table) = warehouse.table(&id) {
            if table.lock().kind == Kind::Table {
                return Err(Failure::invalid(format!(
                    "{id} is not allowed for this operation because it is a TABLE"
                )));
            }
            catalog::drop_table(warehouse, connection, &table)?;
            did = "REPLACE";
        }
        let made = catalog::create_table(warehouse, connection, &id, kind, columns, resource);
        done(name, Some(id), made.map(|_| ()), quietly, Reason::Duplicate, did)
    }

    fn drop_table(&mut self, kind: &'static str) -> Result<Outcome, Failure> {
        let quietly = self.if_exists();
        let id = self.table_id()?;
        self.end()?;
        let Session { warehouse, connection, .. } = self.session;
        let dropped = self.session.table(&id).and_then(|table| {
            let is_table = table.lock().kind == Kind::Table;
            if is_table != (kind == "DROP_TABLE") {
                return Err(Failure::invalid(format!("{id} is not of the kind that {kind} drops")));
            }
            catalog::drop_table(warehouse, connection, &table)
        });
        done(kind, Some(id), dropped, quietly, Reason::NotFound, "DROP")
    }

    fn alter_table(&mut self, kind: &'static str) -> Result<Outcome, Failure> {
        let quietly = self.if_exists();
        let id = self.table_id()?;
        let table = match self.session.table(&id) {
            Err(failure) if quietly && failure.reason == Reason::NotFound => {
                return done(kind, Some(id), Ok(()), false, Reason::NotFound, "SKIP");
            }
            other => other?,
        };
        let (mut columns, mut resource) = {
            let state = table.lock();
            (state.schema.to_vec(), state.resource.clone())
        };
        loop {
            self.alteration(&id, &mut columns, &mut resource)?;
            if !self.sign(&Token::Comma) {
                break;
            }
        }
        self.end()?;
        let Session { warehouse, connection, .. } = self.session;
        let changed = catalog::change_table(warehouse, connection, &table, columns, resource);
        done(kind, Some(id), changed, false, Reason::NotFound, "ALTER")
    }

    fn alteration(
        &mut self,
        id: &TableId,
        columns: &mut Vec<Column>,
        resource: &mut Map<String, Value>,
    ) -> Result<(), Failure> {
        if self.words(&["ADD", "COLUMN"]) {
            let quietly = self.if_not_exists();
            let column = self.column()?;
            if schema::find(columns, &column.name).is_some() {
                let twice = Failure::query(format!("Column already exists: {}", column.name));
                return if quietly { Ok(()) } else { Err(twice) };
            }
            if column.mode == Mode::Required {
                return Err(Failure::query(format!(
                    "Cannot add required columns to an existing schema: {}",
                    column.name
                )));
            }
            columns.push(column);
            return Ok(());
        }
        if self.words(&["ADD", "PRIMARY", "KEY"]) {
            let keys = self.names()?;
            self.not_enforced();
            resource.insert("tableConstraints".to_owned(), json!({"primaryKey": {"columns": keys}}));
            return Ok(());
        }
        if self.words(&["DROP", "PRIMARY", "KEY"]) {
            resource.remove("tableConstraints");
            return Ok(());
        }
        if self.words(&["DROP", "COLUMN"]) {
            let quietly = self.if_exists();
            let name = self.name()?;
            return match schema::find(columns, &name).map(|(index, _)| index) {
                None if quietly => Ok(()),
                None => Err(Failure::query(format!("Column not found: {name}"))),
                Some(_) if is_key(resource, &name) => {
                    Err(Failure::query(format!("Column {name} of {id} is part of the primary key")))
                }
                Some(index) => {
                    columns.remove(index);
                    Ok(())
                }
            };
        }
        if self.word("SET") {
            let given = options::read(&mut self.parser)?;
            return options::apply(given, resource);
        }
        if self.words(&["ALTER", "COLUMN"]) {
            let quietly = self.if_exists();
            let name = self.name()?;
            let mut spare = Column::new("", Type::Bool, Mode::Nullable);
            let column = match schema::find(columns, &name).map(|(index, _)| index) {
                Some(index) => &mut columns[index],
                None if quietly => &mut spare,
                None => return Err(Failure::query(format!("Column not found: {name}"))),
            };
            if self.words(&["DROP", "NOT", "NULL"]) {
                if column.mode == Mode::Required {
                    column.mode = Mode::Nullable;
                }
                return Ok(());
            }
            if self.words(&["SET", "DATA", "TYPE"]) {
                let wanted = self.ty(&name)?;
                if wanted.mode == Mode::Repeated && column.mode != Mode::Repeated
                    || wanted.mode != Mode::Repeated && column.mode == Mode::Repeated
                    || !evolution::widens(&column.ty, &wanted.ty)
                {
                    return Err(Failure::query(format!(
                        "ALTER TABLE ALTER COLUMN SET DATA TYPE requires that the existing column type ({}) is assignable to \
                         the new type ({})",
                        column.sql_type(),
                        wanted.sql_type()
                    )));
                }
                column.ty = wanted.ty;
                for limit in ["maxLength", "precision", "scale"] {
                    column.rest.remove(limit);
                }
                column.rest.extend(wanted.rest);
                return Ok(());
            }
            if self.words(&["SET", "OPTIONS"]) {
                self.parser.prev_token();
                let given = options::read(&mut self.parser)?;
                return column_options(given, column);
            }
        }
        self.unexpected()
    }

    /// `name type [NOT NULL] [DEFAULT value] [OPTIONS (…)]`.
    fn column(&mut self) -> Result<Column, Failure> {
        let name = self.name()?;
        check_name(&name)?;
        let mut column = self.ty(&name)?;
        if self.word("DEFAULT") {
            let default = self.parser.parse_expr().map_err(syntax)?.to_string();
            column.rest.insert("defaultValueExpression".to_owned(), json!(default));
        }
        if self.words(&["NOT", "NULL"]) {
            if column.mode == Mode::Repeated {
                return Err(Failure::query(format!(
                    "NOT NULL cannot be specified for the array column {name}"
                )));
            }
            column.mode = Mode::Required;
        }
        column_options(options::read(&mut self.parser)?, &mut column)?;
        Ok(column)
    }

    fn ty(&mut self, name: &str) -> Result<Column, Failure> {
        let plain = |ty| Column::new(name, ty, Mode::Nullable);
        if self.word("ARRAY") {
            self.expect(&Token::Lt)?;
            let element = self.ty(name)?;
            self.expect(&Token::Gt)?;
            if element.mode == Mode::Repeated {
                return Err(Failure::query("Cannot construct array with element type ARRAY"));
            }
            return Ok(Column { mode: Mode::Repeated, ..element });
        }
        if self.word("STRUCT") {
            self.expect(&Token::Lt)?;
            let mut columns = vec![self.column()?];
            while self.sign(&Token::Comma) {
                columns.push(self.column()?);
            }
            self.expect(&Token::Gt)?;
            schema::check_unique(&columns)?;
            return Ok(plain(Type::Record(columns)));
        }
        if self.word("RANGE") {
            self.expect(&Token::Lt)?;
            let bound = self.ty(name)?.ty;
            self.expect(&Token::Gt)?;
            return match bound {
                Type::Date | Type::Datetime | Type::Timestamp => Ok(plain(Type::Range(Box::new(bound)))),
                other => Err(Failure::query(format!("Unsupported type: RANGE<{}>", other.sql_name()))),
            };
        }
        let word = self.name()?;
        let ty = Type::named(&word).ok_or_else(|| Failure::query(format!("Type not found: {word}")))?;
        let mut column = plain(ty);
        if self.sign(&Token::LParen) {
            let mut numbers = vec![self.parser.parse_literal_uint().map_err(syntax)?];
            while self.sign(&Token::Comma) {
                numbers.push(self.parser.parse_literal_uint().map_err(syntax)?);
            }
            self.expect(&Token::RParen)?;
            let names: &[&str] = match column.ty {
                Type::String | Type::Bytes => &["maxLength"],
                Type::Numeric | Type::Bignumeric => &["precision", "scale"],
                _ => return Err(Failure::query(format!("{word} does not support type parameters"))),
            };
            if numbers.len() > names.len() {
                return Err(Failure::query(format!("Too many type parameters of {word}")));
            }
            for (name, number) in names.iter().zip(numbers) {
                column.rest.insert((*name).to_owned(), json!(number.to_string()));
            }
        }
        Ok(column)
    }
}

fn is_key(resource: &Map<String, Value>, name: &str) -> bool {
    let keys = resource.get("tableConstraints").and_then(|c| c.pointer("/primaryKey/columns"));
    let keys = keys.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    keys.into_iter().any(|key| key.eq_ignore_ascii_case(name))
}

fn column_options(options: Vec<Given>, column: &mut Column) -> Result<(), Failure> {
    for (name, value) in options {
        let field = match name.as_str() {
            "description" => "description",
            "rounding_mode" => "roundingMode",
            other => return Err(Failure::query(format!("Unknown option: {other}"))),
        };
        if value.is_null() {
            column.rest.remove(field);
        } else {
            column.rest.insert(field.to_owned(), value);
        }
    }
    Ok(())
}

/// The outcome of a statement; one that failed for this reason is quietly skipped if it said so.
fn done(
    kind: &'static str,
    target: Option<TableId>,
    result: Result<(), Failure>,
    quietly: bool,
    reason: Reason,
    did: &'static str,
) -> Result<Outcome, Failure> {
    let ddl = match result {
        Ok(()) => did,
        Err(failure) if quietly && failure.reason == reason => "SKIP",
        Err(failure) => return Err(failure),
    };
    Ok(Outcome { kind, ddl: Some(ddl), target, ..Outcome::default() })
}
