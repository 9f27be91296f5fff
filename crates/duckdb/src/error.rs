//! DuckDB's errors as the pipeline's: what a retry may mend, and no row values.

use millstream_core::{Error, Result};

/// Turns a DuckDB error into the pipeline's, saying what was being done.
pub(crate) trait Explain<T> {
    /// `doing` completes the sentence "DuckDB failed while …".
    fn explain(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Explain<T> for duckdb::Result<T> {
    fn explain(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| classify(&error.to_string(), &doing()))
    }
}

/// Classes of DuckDB errors whose text quotes values; only the class is kept of these.
const QUOTES_VALUES: [&str; 5] = [
    "Conversion Error",
    "Invalid Input Error",
    "Out of Range Error",
    "Constraint Error",
    "Mismatch Type Error",
];

/// Classes that a retry may mend: files, memory, and conflicts with other transactions.
const TRANSIENT: [&str; 4] =
    ["IO Error", "Out of Memory Error", "TransactionContext Error", "Transaction Error"];

fn classify(text: &str, doing: &str) -> Error {
    let message = match QUOTES_VALUES.iter().find(|class| text.contains(*class)) {
        Some(class) => {
            format!("DuckDB failed while {doing}: {class} (its text is left out, as it may hold row values)")
        }
        None => format!("DuckDB failed while {doing}: {}", text.trim()),
    };
    if text.contains("Could not set lock on file") {
        return Error::transient(format!(
            "{message}. Another process has the file open: end it, or ask a running pipeline with `millstream query`"
        ));
    }
    if TRANSIENT.iter().any(|class| text.contains(class)) {
        Error::transient(message)
    } else {
        Error::fatal(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::Kind;

    #[test]
    fn values_stay_out_of_messages() {
        let error = classify("Conversion Error: Could not convert string 'secret' to INT64", "writing t");
        assert!(!error.to_string().contains("secret"));
        assert_eq!(error.kind(), Kind::Fatal);
        assert_eq!(classify("IO Error: disk full", "writing t").kind(), Kind::Transient);
    }
}
