//! INSERT, UPDATE, DELETE, MERGE and TRUNCATE.

use sqlparser::ast::{
    Assignment, AssignmentTarget, FromTable, Ident, Merge, MergeAction, MergeClauseKind, MergeInsertKind,
    MergeUpdateKind, ObjectName, ObjectNamePart, Statement, TableFactor, TableObject,
};

use super::translate::Translator;
use super::{Affected, Outcome, Session};
use crate::failure::Failure;
use crate::table::{Kind, Shared, TableId};
use crate::upsert;

/// Runs a statement.
pub(crate) fn run(session: &Session<'_>, mut statement: Statement) -> Result<Outcome, Failure> {
    let (kind, target) = match &mut statement {
        Statement::Insert(insert) => {
            let TableObject::TableName(name) = &mut insert.table else {
                return Err(Failure::unsupported(&insert.table));
            };
            let id = session.table_id(name)?;
            let table = target(session, &id)?;
            *name = physical(&id);
            insert.into = true;
            for column in &mut insert.columns {
                quote(column);
            }
            ("INSERT", table)
        }
        Statement::Update(update) => {
            let table = target_of(session, &update.table.relation)?;
            writable(&table, "UPDATE")?;
            let shown = shown(&update.table.relation);
            update.assignments.iter_mut().try_for_each(|one| plain_target(one, &shown))?;
            ("UPDATE", table)
        }
        Statement::Delete(delete) => {
            let from = match &delete.from {
                FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from) => from.clone(),
            };
            let [one] = from.as_slice() else {
                return Err(Failure::unsupported("DELETE from several tables"));
            };
            let table = target_of(session, &one.relation)?;
            writable(&table, "DELETE")?;
            delete.from = FromTable::WithFromKeyword(from);
            ("DELETE", table)
        }
        Statement::Merge(merge) => {
            let table = target_of(session, &merge.table)?;
            writable(&table, "MERGE")?;
            merge.into = true;
            let shown = shown(&merge.table);
            for clause in &mut merge.clauses {
                match &mut clause.action {
                    MergeAction::Update(update) => {
                        if let MergeUpdateKind::Set(assignments) = &mut update.kind {
                            assignments.iter_mut().try_for_each(|one| plain_target(one, &shown))?;
                        }
                    }
                    MergeAction::Insert(insert) => {
                        insert.columns.iter_mut().for_each(quote);
                        if matches!(insert.kind, MergeInsertKind::Row) {
                            insert.kind = MergeInsertKind::Wildcard;
                        }
                    }
                    _ => {}
                }
            }
            ("MERGE", table)
        }
        Statement::Truncate(truncate) => {
            let [one] = truncate.table_names.as_slice() else { return Err(Failure::unsupported(&*truncate)) };
            let id = session.table_id(&one.name)?;
            let table = target(session, &id)?;
            session.warehouse.land(session.connection, &table)?;
            let count = session.connection.execute(&format!("DELETE FROM {}", id.quoted()), [])? as u64;
            upsert::forget(session.connection, &id)?;
            let affected = Some((count, Affected { deleted: count, ..Affected::default() }));
            return Ok(Outcome { kind: "TRUNCATE_TABLE", affected, target: Some(id), ..Outcome::default() });
        }
        other => {
            let text = other.to_string();
            let words: Vec<_> = text.split_whitespace().take(6).collect();
            return Err(Failure::unsupported(words.join(" ")));
        }
    };
    let mut translator = Translator::new(session);
    translator.rewrite(&mut statement)?;
    translator.tables.push(target.clone());
    session.land(&translator.tables)?;
    if let Statement::Merge(merge) = &statement {
        one_source_row(session, merge)?;
    }
    let count = session.connection.execute(&statement.to_string(), [])? as u64;
    let mut affected = Affected::default();
    match kind {
        "INSERT" => affected.inserted = count,
        "DELETE" => affected.deleted = count,
        // DuckDB does not say what a MERGE did to how many.
        _ => affected.updated = count,
    }
    let target = Some(target.id.clone());
    Ok(Outcome { kind, affected: Some((count, affected)), target, ..Outcome::default() })
}

/// Refuses a MERGE, rewritten already, that would update or delete a row by several rows of its source.
fn one_source_row(session: &Session<'_>, merge: &Merge) -> Result<(), Failure> {
    let matched =
        merge.clauses.iter().filter(|clause| matches!(clause.clause_kind, MergeClauseKind::Matched));
    let conditions: Vec<_> = matched
        .map(|clause| clause.predicate.as_ref().map_or("true".to_owned(), |p| format!("({p})")))
        .collect();
    let TableFactor::Table { name, alias: Some(alias), .. } = &merge.table else { return Ok(()) };
    if conditions.is_empty() {
        return Ok(());
    }
    let row = format!("{}.rowid", alias.name);
    let sql = format!(
        "SELECT 1 FROM {name} {alias} JOIN {} ON {} WHERE {} GROUP BY {row} HAVING count(*) > 1 LIMIT 1",
        merge.source,
        merge.on,
        conditions.join(" OR ")
    );
    if session.connection.prepare(&sql)?.exists([])? {
        return Err(Failure::query("UPDATE/MERGE must match at most one source row for each target row"));
    }
    Ok(())
}

/// The table that a statement changes.
fn target(session: &Session<'_>, id: &TableId) -> Result<Shared, Failure> {
    let table = session.table(id)?;
    if table.lock().kind != Kind::Table {
        return Err(Failure::query(format!("Cannot modify {id}, which is no table but a view")));
    }
    Ok(table)
}

fn target_of(session: &Session<'_>, factor: &TableFactor) -> Result<Shared, Failure> {
    match factor {
        TableFactor::Table { name, .. } => target(session, &session.table_id(name)?),
        other => Err(Failure::unsupported(other)),
    }
}

/// Refuses DML that native change data capture forbids.
fn writable(table: &Shared, kind: &str) -> Result<(), Failure> {
    if table.lock().upserted {
        return Err(Failure::query(format!(
            "{kind} statement is not supported over table {}, which has change data capture (UPSERT) rows",
            table.id
        )));
    }
    Ok(())
}

fn physical(id: &TableId) -> ObjectName {
    let part = |text: String| ObjectNamePart::Identifier(Ident::with_quote('"', text));
    ObjectName(vec![part(id.schema()), part(id.name())])
}

fn quote(name: &mut ObjectName) {
    for part in &mut name.0 {
        if let ObjectNamePart::Identifier(ident) = part {
            ident.quote_style = Some('"');
        }
    }
}

/// The name by which a statement calls the table that it changes.
fn shown(factor: &TableFactor) -> String {
    match factor {
        TableFactor::Table { alias: Some(alias), .. } => alias.name.value.clone(),
        TableFactor::Table { name, .. } => {
            let parts = super::names::parts(name).unwrap_or_default();
            parts.last().cloned().unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// `SET t.x = …` is `SET x = …`.
fn plain_target(assignment: &mut Assignment, table: &str) -> Result<(), Failure> {
    let AssignmentTarget::ColumnName(name) = &mut assignment.target else {
        return Err(Failure::unsupported(format!("SET {}", assignment.target)));
    };
    let of_table = match name.0.as_slice() {
        [_] => true,
        [ObjectNamePart::Identifier(first), _] => first.value.eq_ignore_ascii_case(table),
        _ => false,
    };
    if !of_table {
        return Err(Failure::unsupported(format!("a change of a field of a record: SET {name}")));
    }
    name.0.drain(..name.0.len() - 1);
    quote(name);
    Ok(())
}
