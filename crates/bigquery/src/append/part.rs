//! What is sent in one request, and the batch that it is of.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{Acked, RowError};
use crate::descriptor::Descriptor;
use crate::rows::Rows;
use crate::write_error::WriteError;

/// Rows of one batch that go in one request. They stay together, so that they are at one offset however often they are sent.
#[derive(Debug)]
pub(super) struct Part {
    /// The batch's number.
    pub(super) batch: u64,
    pub(super) stream: Arc<str>,
    pub(super) descriptor: Descriptor,
    pub(super) rows: Rows,
    /// Each row's place in the batch.
    places: Places,
    /// Sent before, and perhaps written.
    pub(super) is_again: bool,
}

#[derive(Debug)]
enum Places {
    From(usize),
    Listed(Vec<usize>),
}

impl Part {
    pub(super) fn new(
        batch: u64,
        stream: Arc<str>,
        descriptor: Descriptor,
        rows: Rows,
        first: usize,
    ) -> Self {
        Self { batch, stream, descriptor, rows, places: Places::From(first), is_again: false }
    }

    fn place(&self, index: usize) -> usize {
        match &self.places {
            Places::From(first) => first + index,
            Places::Listed(places) => places.get(index).copied().unwrap_or(usize::MAX),
        }
    }

    /// Takes bad rows out. False if none of them is in it.
    pub(super) fn drop_rows(&mut self, bad: Vec<(usize, String)>, errors: &mut Vec<RowError>) -> bool {
        let mut is_bad = vec![false; self.rows.len()];
        for (index, message) in bad {
            if let Some(flag) = is_bad.get_mut(index).filter(|flag| !**flag) {
                *flag = true;
                errors.push(RowError { batch: self.batch, index: self.place(index), message });
            }
        }
        let any = is_bad.contains(&true);
        let places = (0..self.rows.len()).filter(|&i| !is_bad[i]).map(|i| self.place(i)).collect();
        self.rows = self.rows.retain(|i| !is_bad[i]);
        self.places = Places::Listed(places);
        // It was answered: nothing of it is written.
        self.is_again = false;
        any
    }
}

/// A batch that is not answered yet.
pub(super) struct Open {
    pub(super) parts_left: usize,
    pub(super) acked: Acked,
    pub(super) answer: oneshot::Sender<Result<Acked, WriteError>>,
    /// Its room, given back when it is dropped.
    pub(super) _room: OwnedSemaphorePermit,
}
