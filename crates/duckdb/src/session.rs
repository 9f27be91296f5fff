//! What a sink's tables share: its connection, its metadata and the epoch.

use std::cell::{Cell, Ref, RefCell};
use std::collections::HashSet;

use duckdb::Connection;
use millstream_core::Result;
use millstream_core::evolution::{self, ChangePolicy, Rules};
use millstream_layout::names::fold;

use crate::catalog::{Catalog, Mark};
use crate::config::{DuckConfig, Layout};
use crate::database::Database;
use crate::error::Explain;
use crate::inserter::Inserter;

pub(crate) struct Session {
    pub(crate) config: DuckConfig,
    pub(crate) database: Database,
    pub(crate) inserter: Inserter,
    pub(crate) catalog: Catalog,
    /// The epoch that is being written.
    pub(crate) mark: Mark,
    /// Case-folded names that are taken in the dataset, once they were listed.
    pub(crate) taken: RefCell<Option<HashSet<String>>>,
    /// Counts transactions; tables note in which one they were last changed.
    pub(crate) transaction: Cell<u64>,
}

impl Session {
    /// The connection, once the rows that were handed over are in their tables; the failure if they are not.
    pub(crate) fn connection(&self) -> Result<Ref<'_, Connection>> {
        self.inserter.connection()
    }

    /// The rules of schema evolution.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            policy: match self.config.layout {
                // What is declared is all that there is.
                Layout::Rows => ChangePolicy::DeadLetter,
                _ => self.config.on_type_change,
            },
            decimals: evolution::Decimals::of(self.config.decimals.precision_max()),
        }
    }

    /// Whether someone has a name in the dataset. Other sinks of this process reserve theirs; nobody else can write the file.
    pub(crate) fn is_taken(&self, name: &str) -> Result<bool> {
        let mut taken = self.taken.borrow_mut();
        let taken = match &mut *taken {
            Some(taken) => taken,
            none => none.insert(self.catalog.taken(&*self.connection()?)?),
        };
        Ok(taken.contains(&fold(name)))
    }

    /// Notes that a name is taken.
    pub(crate) fn take(&self, name: &str) {
        if let Some(taken) = &mut *self.taken.borrow_mut() {
            taken.insert(fold(name));
        }
    }

    /// Opens a transaction.
    pub(crate) fn begin(&self) -> Result<()> {
        self.transaction.set(self.transaction.get() + 1);
        self.run("BEGIN TRANSACTION", || format!("beginning epoch {}", self.mark.epoch))
    }

    /// Commits what was done so far and goes on in a new transaction. Only replicas may: what is seen of an epoch early,
    /// or stays of one after a crash, comes again and is gated by order.
    pub(crate) fn renew(&self) -> Result<()> {
        self.run("COMMIT", || format!("committing a part of epoch {}", self.mark.epoch))?;
        self.begin()
    }

    /// Runs statements, saying what they are for if they fail.
    pub(crate) fn run(&self, sql: &str, doing: impl FnOnce() -> String) -> Result<()> {
        self.connection()?.execute_batch(sql).explain(doing)
    }
}
