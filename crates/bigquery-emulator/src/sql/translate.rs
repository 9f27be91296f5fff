//! A query of GoogleSQL into DuckDB's SQL, by rewriting its syntax tree.

use std::collections::HashSet;
use std::ops::ControlFlow;

use sqlparser::ast::{
    AccessExpr, CastKind, ExcludeSelectItem, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
    Ident, InTarget, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, Subscript, TableAlias, TableFactor, Value, ValueTableMode,
    ValueWithSpan, VisitMut, VisitorMut, WildcardAdditionalOptions,
};
use sqlparser::dialect::DuckDbDialect;
use sqlparser::parser::Parser;

use super::expressions::{array_agg, bytes, cast, extract, span, typed_literal};
use super::functions::{self, Now, Rewrite};
use super::names::{self, Target};
use super::{Session, data_type, information};
use crate::failure::Failure;
use crate::schema::{Column, quoted};
use crate::table::{Kind, Shared};

/// How deep views may lie in views.
const VIEWS_MAX: usize = 16;

/// Rewrites one statement.
pub(crate) struct Translator<'a> {
    session: &'a Session<'a>,
    /// The names of WITH, query by query.
    scopes: Vec<HashSet<String>>,
    /// The tables that are read or written.
    pub(crate) tables: Vec<Shared>,
    /// What columns are cast to, which tells the types that DuckDB keeps as text.
    pub(crate) casts: Vec<Column>,
    depth: usize,
    unnamed: usize,
}

/// An expression that is printed as it is.
fn raw(text: impl Into<String>) -> Expr {
    Expr::Identifier(Ident {
        value: text.into(),
        quote_style: None,
        span: sqlparser::tokenizer::Span::empty(),
    })
}

/// A query of DuckDB's SQL.
fn duckdb_query(sql: &str) -> Result<Box<Query>, Failure> {
    let parser = Parser::new(&DuckDbDialect {}).try_with_sql(sql);
    parser.and_then(|mut parser| parser.parse_query()).map_err(|e| Failure::query(format!("{e}: {sql}")))
}

fn alias(name: &str) -> TableAlias {
    TableAlias { explicit: true, name: Ident::with_quote('"', name), columns: Vec::new(), at: None }
}

impl<'a> Translator<'a> {
    /// A new one.
    pub(crate) fn new(session: &'a Session<'a>) -> Self {
        Self { session, scopes: Vec::new(), tables: Vec::new(), casts: Vec::new(), depth: 0, unnamed: 0 }
    }

    /// Rewrites a syntax tree in place.
    pub(crate) fn rewrite(&mut self, tree: &mut impl VisitMut) -> Result<(), Failure> {
        match tree.visit(self) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(failure) => Err(failure),
        }
    }

    fn is_with(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.scopes.iter().any(|scope| scope.contains(&name))
    }

    /// A table, view or subquery in FROM.
    fn factor(&mut self, factor: &mut TableFactor) -> Result<(), Failure> {
        match factor {
            TableFactor::Table { name, alias: given, args, version, .. } => {
                if args.is_some() {
                    return Err(Failure::unsupported(format!("the table function {name}")));
                }
                if let Some(version) = version {
                    return Err(Failure::unsupported(version));
                }
                if let [ObjectNamePart::Identifier(ident)] = name.0.as_mut_slice()
                    && self.is_with(&ident.value)
                {
                    ident.quote_style = Some('"');
                    return Ok(());
                }
                let parts = names::parts(name)?;
                let shown = given.clone().unwrap_or_else(|| alias(parts.last().map_or("", String::as_str)));
                let (query, id) = match self.session.target(name)? {
                    Target::Information { project, dataset, view } => {
                        let sql = information::query(self.session, &project, dataset.as_deref(), &view)?;
                        (Some(duckdb_query(&sql)?), None)
                    }
                    Target::Table(id) => {
                        let table = self.session.table(&id)?;
                        let kind = table.lock().kind.clone();
                        match kind {
                            Kind::Table => {
                                self.tables.push(table);
                                (None, Some(id))
                            }
                            Kind::View(sql) | Kind::MaterializedView(sql) => (Some(self.view(&sql)?), None),
                        }
                    }
                };
                match (query, id) {
                    (Some(subquery), _) => {
                        *factor = TableFactor::Derived {
                            lateral: false,
                            subquery,
                            alias: Some(shown),
                            sample: None,
                        };
                    }
                    (None, Some(id)) => {
                        let part = |text: String| ObjectNamePart::Identifier(Ident::with_quote('"', text));
                        *name = ObjectName(vec![part(id.schema()), part(id.name())]);
                        *given = Some(shown);
                    }
                    (None, None) => {}
                }
                Ok(())
            }
            TableFactor::UNNEST { alias: given, array_exprs, with_offset, with_offset_alias, .. } => {
                let [array] = array_exprs.as_slice() else {
                    return Err(Failure::unsupported("UNNEST of several arrays"));
                };
                self.unnamed += 1;
                let mut columns = match given {
                    Some(given) => format!("unnest({array}) AS {}", quoted(&given.name.value)),
                    None => format!("unnest({array}, max_depth := 2)"),
                };
                if *with_offset {
                    let name = with_offset_alias.as_ref().map_or("offset", |ident| &ident.value);
                    columns += &format!(", generate_subscripts({array}, 1) - 1 AS {}", quoted(name));
                }
                *factor = TableFactor::Derived {
                    lateral: true,
                    subquery: duckdb_query(&format!("SELECT {columns}"))?,
                    alias: Some(alias(&format!("__unnest_{}", self.unnamed))),
                    sample: None,
                };
                Ok(())
            }
            TableFactor::Derived { .. } | TableFactor::NestedJoin { .. } => Ok(()),
            other => Err(Failure::unsupported(other)),
        }
    }

    /// A view's query, rewritten.
    fn view(&mut self, sql: &str) -> Result<Box<Query>, Failure> {
        if self.depth >= VIEWS_MAX {
            return Err(Failure::query(format!("Views are nested more than {VIEWS_MAX} levels deep")));
        }
        let mut query = super::parse_query(sql)?;
        let mut inner = Translator::new(self.session);
        inner.depth = self.depth + 1;
        inner.unnamed = self.unnamed + 1000;
        inner.rewrite(&mut query)?;
        self.tables.append(&mut inner.tables);
        self.casts.append(&mut inner.casts);
        Ok(query)
    }

    fn select(&mut self, select: &mut Select) -> Result<(), Failure> {
        implicit_unnest(select);
        join_without_condition(select);
        for item in &mut select.projection {
            match item {
                SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) => exclude(options),
                SelectItem::ExprWithAlias { expr: Expr::Cast { data_type, .. }, alias } => {
                    self.casts.push(Column { name: alias.value.clone(), ..data_type::parsed(data_type)? });
                }
                _ => {}
            }
            if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::Expr(expr), _) = item {
                return Err(Failure::unsupported(format!("{expr}.*")));
            }
        }
        match select.value_table_mode.take() {
            None | Some(ValueTableMode::AsValue) => {}
            Some(ValueTableMode::AsStruct) => {
                let mut fields = Vec::new();
                for (index, item) in std::mem::take(&mut select.projection).into_iter().enumerate() {
                    match item {
                        SelectItem::UnnamedExpr(expr) => fields.push(expr),
                        SelectItem::ExprWithAlias { expr, alias } => {
                            fields.push(Expr::Named { expr: Box::new(expr), name: alias });
                        }
                        other => {
                            return Err(Failure::unsupported(format!(
                                "SELECT AS STRUCT with column {} {other}",
                                index + 1
                            )));
                        }
                    }
                }
                let values = Expr::Struct { values: fields, fields: Vec::new() };
                select.projection =
                    vec![SelectItem::ExprWithAlias { expr: values, alias: Ident::with_quote('"', "struct") }];
            }
            Some(other) => return Err(Failure::unsupported(format!("SELECT {other}"))),
        }
        Ok(())
    }

    fn expr(&mut self, expr: &mut Expr) -> Result<(), Failure> {
        let replaced = match expr {
            Expr::Identifier(ident) => {
                name(ident)?;
                return Ok(());
            }
            Expr::CompoundIdentifier(parts) => {
                return parts.iter_mut().try_for_each(name);
            }
            Expr::Value(ValueWithSpan { value, .. }) => match bytes(value)? {
                Some(text) => raw(text),
                None => return Ok(()),
            },
            Expr::TypedString(typed) => raw(typed_literal(&typed.data_type, &typed.value)?),
            Expr::Cast { kind, expr: inner, data_type, format } => {
                if let Some(format) = format {
                    return Err(Failure::unsupported(format!("CAST with FORMAT {format:?}")));
                }
                raw(cast(kind, &inner.to_string(), data_type)?)
            }
            Expr::Function(function) => match self.function(function)? {
                Some(text) => raw(text),
                None => return Ok(()),
            },
            // DuckDB would calculate with 32 bits.
            Expr::BinaryOp { left, right, .. } if is_integer(left) && is_integer(right) => {
                **left = raw(format!("CAST({left} AS BIGINT)"));
                return Ok(());
            }
            Expr::Interval(interval) => raw(span(interval)?),
            Expr::Extract { field, expr: inner, .. } => raw(extract(&field.to_string(), &inner.to_string())?),
            // Fields without names go by their places.
            Expr::Struct { values, fields } if fields.is_empty() && values.iter().all(is_unnamed) => {
                let values: Vec<_> = values.iter().map(ToString::to_string).collect();
                raw(format!("row({})", values.join(", ")))
            }
            Expr::Struct { values, fields } => {
                let mut parts = Vec::new();
                for (index, value) in values.iter().enumerate() {
                    let field = fields.get(index);
                    let (given, text) = match value {
                        Expr::Named { expr, name } => (Some(name.value.clone()), expr.to_string()),
                        Expr::Identifier(ident) => (Some(ident.value.clone()), value.to_string()),
                        Expr::CompoundIdentifier(parts) => {
                            (parts.last().map(|p| p.value.clone()), value.to_string())
                        }
                        _ => (None, value.to_string()),
                    };
                    let text = match field {
                        Some(field) => cast(&CastKind::Cast, &text, &field.field_type)?,
                        None => text,
                    };
                    let given = field.and_then(|f| f.field_name.as_ref()).map(|n| n.value.clone()).or(given);
                    let given = given.unwrap_or_else(|| format!("_field_{}", index + 1));
                    parts.push(format!("{} := {text}", quoted(&given)));
                }
                raw(format!("struct_pack({})", parts.join(", ")))
            }
            Expr::In { expr: inner, target: InTarget::Unnest(array), negated, .. } => {
                let not = if *negated { "NOT " } else { "" };
                raw(format!("({not}list_contains({array}, {inner}))"))
            }
            Expr::CompoundFieldAccess { access_chain, .. } => {
                for access in access_chain {
                    match access {
                        AccessExpr::Subscript(Subscript::Index { index: Expr::Value(value) }) => {
                            if let Value::Number(n, _) = &value.value {
                                let offset: u64 =
                                    n.parse().map_err(|_| Failure::unsupported(format!("[{n}]")))?;
                                value.value = Value::Number((offset + 1).to_string(), false);
                            }
                        }
                        AccessExpr::Subscript(Subscript::Slice { .. }) => {
                            return Err(Failure::unsupported("slices of arrays"));
                        }
                        _ => {}
                    }
                }
                return Ok(());
            }
            _ => return Ok(()),
        };
        *expr = replaced;
        Ok(())
    }

    /// A call; text where it becomes something else.
    fn function(&mut self, function: &mut Function) -> Result<Option<String>, Failure> {
        let name = function.name.to_string().replace(['"', '`'], "");
        let (name, safe) = match name.get(..5).filter(|start| start.eq_ignore_ascii_case("SAFE.")) {
            Some(_) => (name[5..].to_owned(), true),
            None => (name, false),
        };
        let mut texts = Vec::new();
        if let FunctionArguments::List(list) = &function.args {
            for arg in &list.args {
                match arg {
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => texts.push(expr.to_string()),
                    FunctionArg::Unnamed(FunctionArgExpr::Wildcard) => texts.push("*".to_owned()),
                    other => return Err(Failure::unsupported(format!("the argument {other} of {name}"))),
                }
            }
        }
        if name.eq_ignore_ascii_case("ARRAY_AGG") {
            return array_agg(function, &texts).map(Some);
        }
        let now = Now(self.session.warehouse.clock.micros());
        match functions::rewrite(&name, &texts, now)? {
            Rewrite::Text(text) if safe => Ok(Some(format!("TRY({text})"))),
            Rewrite::Text(text) => Ok(Some(text)),
            Rewrite::Name(other) => {
                function.name = ObjectName(vec![ObjectNamePart::Identifier(Ident::new(other))]);
                if matches!(function.args, FunctionArguments::None) {
                    return Err(Failure::unsupported(format!("{name} without arguments")));
                }
                Ok(safe.then(|| format!("TRY({function})")))
            }
        }
    }
}

fn is_integer(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(ValueWithSpan { value: Value::Number(text, _), .. }) if text.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether a field of a struct has no name.
fn is_unnamed(value: &Expr) -> bool {
    !matches!(
        value,
        Expr::Named { .. }
            | Expr::Identifier(Ident { quote_style: Some(_), .. })
            | Expr::CompoundIdentifier(_)
    )
}

/// A join with an array needs no condition in BigQuery.
fn join_without_condition(select: &mut Select) {
    for join in select.from.iter_mut().flat_map(|from| &mut from.joins) {
        if !matches!(join.relation, TableFactor::UNNEST { .. }) {
            continue;
        }
        match &mut join.join_operator {
            JoinOperator::Join(constraint)
            | JoinOperator::Inner(constraint)
            | JoinOperator::Left(constraint)
            | JoinOperator::LeftOuter(constraint)
                if matches!(constraint, JoinConstraint::None) =>
            {
                *constraint = JoinConstraint::On(Expr::Value(Value::Boolean(true).into()));
            }
            _ => {}
        }
    }
}

/// `FROM t, t.items` is `FROM t, UNNEST(t.items)`.
fn implicit_unnest(select: &mut Select) {
    let mut known: Vec<String> = Vec::new();
    let mut look = |factor: &mut TableFactor| {
        let (shown, correlated) = match factor {
            TableFactor::Table { name, alias, .. } => {
                let parts: Vec<_> = name.0.iter().filter_map(|p| p.as_ident().cloned()).collect();
                let first = parts.first().map(|p| p.value.to_lowercase()).unwrap_or_default();
                let correlated = (parts.len() > 1 && known.contains(&first)).then(|| parts.clone());
                let last = parts.last().and_then(|p| p.value.rsplit('.').next().map(str::to_owned));
                (alias.as_ref().map(|a| a.name.value.clone()).or(last), correlated)
            }
            TableFactor::Derived { alias, .. } | TableFactor::UNNEST { alias, .. } => {
                (alias.as_ref().map(|a| a.name.value.clone()), None)
            }
            _ => (None, None),
        };
        if let Some(shown) = &shown {
            known.push(shown.to_lowercase());
        }
        if let (Some(parts), TableFactor::Table { alias: given, .. }) = (correlated, &mut *factor) {
            let given = given.take().or_else(|| shown.as_deref().map(alias));
            *factor = TableFactor::UNNEST {
                alias: given,
                array_exprs: vec![Expr::CompoundIdentifier(parts)],
                with_offset: false,
                with_offset_alias: None,
                with_ordinality: false,
            };
        }
    };
    for from in &mut select.from {
        look(&mut from.relation);
        for join in &mut from.joins {
            look(&mut join.relation);
        }
    }
}

/// `* EXCEPT (…)` is `* EXCLUDE (…)`.
fn exclude(options: &mut WildcardAdditionalOptions) {
    if let Some(except) = options.opt_except.take() {
        let names = std::iter::once(except.first_element).chain(except.additional_elements);
        let names = names
            .map(|ident| ObjectName(vec![ObjectNamePart::Identifier(Ident::with_quote('"', ident.value))]));
        options.opt_exclude = Some(ExcludeSelectItem::Multiple(names.collect()));
    }
}

fn name(ident: &mut Ident) -> Result<(), Failure> {
    if ident.value.starts_with('@') && ident.quote_style.is_none() {
        return Err(Failure::unsupported(format!("the parameter or variable {}", ident.value)));
    }
    ident.quote_style = Some('"');
    Ok(())
}

/// `Continue`, or `Break` with the failure.
fn flow(result: Result<(), Failure>) -> ControlFlow<Failure> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(failure) => ControlFlow::Break(failure),
    }
}

impl VisitorMut for Translator<'_> {
    type Break = Failure;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Failure> {
        if !query.pipe_operators.is_empty() {
            return ControlFlow::Break(Failure::unsupported("pipe syntax (|>)"));
        }
        let with = query.with.iter().flat_map(|with| &with.cte_tables);
        self.scopes.push(with.map(|cte| cte.alias.name.value.to_lowercase()).collect());
        if let SetExpr::Table(_) = *query.body {
            return ControlFlow::Break(Failure::unsupported("TABLE"));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<Failure> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Failure> {
        flow(self.select(select))
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Failure> {
        flow(self.factor(factor))
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Failure> {
        flow(self.expr(expr))
    }

    fn pre_visit_value(&mut self, value: &mut ValueWithSpan) -> ControlFlow<Failure> {
        match &mut value.value {
            Value::DoubleQuotedString(text)
            | Value::TripleSingleQuotedString(text)
            | Value::TripleDoubleQuotedString(text)
            | Value::SingleQuotedRawStringLiteral(text)
            | Value::DoubleQuotedRawStringLiteral(text)
            | Value::TripleSingleQuotedRawStringLiteral(text)
            | Value::TripleDoubleQuotedRawStringLiteral(text) => {
                value.value = Value::SingleQuotedString(std::mem::take(text));
            }
            // BigQuery's are FLOAT64, DuckDB's would be DECIMAL.
            Value::Number(number, _) if number.contains('.') && !number.contains(['e', 'E']) => {
                number.push_str("e0");
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_ident(&mut self, ident: &mut Ident) -> ControlFlow<Failure> {
        if ident.quote_style == Some('`') && !ident.value.contains('.') {
            ident.quote_style = Some('"');
        }
        ControlFlow::Continue(())
    }
}
