//! Which tables a sweep takes, and which ones it would harm.

use std::collections::BTreeSet;

use millstream_core::dedupe::known_tables;
use millstream_core::{Error, Result, StateView, TableName};

use crate::config::{DedupeMode, nearest};
use crate::plan::Plan;

/// Refuses a sweep that no pipeline with this config can do.
pub(crate) fn refuse_needless(plan: &Plan) -> Result<()> {
    if plan.dedupe.mode == DedupeMode::Off {
        return Err(Error::fatal(
            "with `dedupe: off` no state is kept that tells old rows from new ones: there is nothing to sweep by",
        ));
    }
    if plan.incarnation == 0 {
        return Err(Error::fatal(
            "no row is older than `incarnation: 0`: raise `incarnation` before a new snapshot is read, and sweep after its end",
        ));
    }
    Ok(())
}

/// The tables that are to be swept.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) tables: Vec<TableName>,
    /// What they are called, in the same order.
    pub(crate) names: Vec<String>,
}

/// Chooses the tables of the names, or all that state knows where there is no name.
///
/// # Errors
/// When a name is unknown, means several tables, or one that the config leaves out.
pub(crate) fn choose(plan: &Plan, view: &dyn StateView, wanted: &[String]) -> Result<Chosen> {
    let known: BTreeSet<TableName> = known_tables(view)?.into_iter().map(|(name, _)| name).collect();
    if known.is_empty() {
        return Err(Error::fatal(format!("{} has seen no table yet: run it first", plan.pipeline)));
    }
    let mut chosen = BTreeSet::new();
    for name in wanted {
        let table = named(&known, name)?;
        if let Some(why) = why_not_read(plan, table) {
            return Err(Error::fatal(format!(
                "{why}: as its rows are not read again, a sweep would delete them all"
            )));
        }
        chosen.insert(table);
    }
    if wanted.is_empty() {
        chosen.extend(known.iter().filter(|table| why_not_read(plan, table).is_none()));
    }
    let names = chosen.iter().map(|table| name_among(&known, table)).collect();
    Ok(Chosen { tables: chosen.into_iter().cloned().collect(), names })
}

/// The name by which [`choose`] finds the table.
fn name_among(known: &BTreeSet<TableName>, table: &TableName) -> String {
    let qualified = table.qualified();
    let is_only = known.iter().filter(|other| other.qualified() == qualified).count() == 1;
    if is_only { qualified } else { with_db(table) }
}

/// The one table of that name.
fn named<'a>(known: &'a BTreeSet<TableName>, name: &str) -> Result<&'a TableName> {
    let of = |is: &dyn Fn(&TableName) -> bool| known.iter().filter(|table| is(table)).collect::<Vec<_>>();
    let mut found = of(&|table| table.qualified() == name);
    if found.is_empty() {
        found = of(&|table| with_db(table) == name);
    }
    match found[..] {
        [table] => Ok(table),
        [] => {
            let names: Vec<String> = known.iter().map(TableName::qualified).collect();
            let near = nearest(name, names.iter().map(String::as_str))
                .map(|near| format!("; did you mean `{near}`?"))
                .unwrap_or_default();
            Err(Error::fatal(format!("no table `{name}` was ever seen{near}")))
        }
        _ => {
            let names: Vec<String> = found.into_iter().map(|table| format!("`{}`", with_db(table))).collect();
            Err(Error::fatal(format!("`{name}` is a table of several databases: {}", names.join(", "))))
        }
    }
}

/// `db.schema.table`, which tells tables of one name apart.
fn with_db(table: &TableName) -> String {
    let qualified = table.qualified();
    if table.schema.is_empty() || table.db.is_empty() {
        qualified
    } else {
        format!("{}.{qualified}", table.db)
    }
}

/// Why no snapshot reads the table's rows again, if none does.
fn why_not_read(plan: &Plan, table: &TableName) -> Option<String> {
    let table = table.qualified();
    let is = |name: &String| *name == table;
    let decode = &plan.decode;
    let excluded =
        decode.exclude.iter().any(is) || plan.tables.get(&table).is_some_and(|table| table.exclude);
    if excluded || !decode.include.as_ref().is_none_or(|names| names.iter().any(is)) {
        return Some(format!("the config leaves {table} out"));
    }
    decode.messages.as_ref().filter(|name| is(name)).map(|_| format!("{table} holds logical messages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_table() {
        let known = BTreeSet::from([
            TableName::new("eu", "public", "orders"),
            TableName::new("us", "public", "orders"),
            TableName::new("eu", "public", "customers"),
            TableName::new("shop", "", "items"),
        ]);
        assert_eq!(&*named(&known, "public.customers").unwrap().db, "eu");
        assert_eq!(&*named(&known, "us.public.orders").unwrap().db, "us");
        assert_eq!(&*named(&known, "shop.items").unwrap().db, "shop");
        let names: Vec<String> = known.iter().map(|table| name_among(&known, table)).collect();
        assert_eq!(names, ["public.customers", "eu.public.orders", "shop.items", "us.public.orders"]);
        let says = |name| named(&known, name).unwrap_err().to_string();
        assert_eq!(
            says("public.orders"),
            "`public.orders` is a table of several databases: `eu.public.orders`, `us.public.orders`"
        );
        assert_eq!(
            says("public.customer"),
            "no table `public.customer` was ever seen; did you mean `public.customers`?"
        );
        assert_eq!(says("xyz"), "no table `xyz` was ever seen");
    }
}
