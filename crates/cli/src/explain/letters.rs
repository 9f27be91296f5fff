//! Dead letters that name a key.

use millstream_core::Result;
use serde_json::{Value, json};

use super::key::plain;
use crate::dead_letters::Letter;

/// Letters of `table` (or of no known table) whose key or row holds these values. Letters that are no JSON name nothing.
pub(super) fn naming(
    letters: impl Iterator<Item = Result<Letter>>,
    table: &str,
    key: &[(String, String)],
) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for letter in letters {
        let letter = letter?;
        if letter.table.as_ref().is_none_or(|name| name == table) && names(&letter, key) {
            found.push(json!({
                "id": letter.id, "time": letter.time, "stage": letter.stage, "code": letter.code, "cause": letter.cause,
                "attempt": letter.attempt,
            }));
        }
    }
    Ok(found)
}

fn names(letter: &Letter, key: &[(String, String)]) -> bool {
    let json = |payload: &Option<crate::dead_letters::Payload>| {
        let bytes = payload.as_ref()?.bytes()?;
        serde_json::from_slice::<Value>(&bytes).ok()
    };
    let parts = [json(&letter.key), json(&letter.value)];
    parts.iter().flatten().any(|value| {
        let inner = value.get("payload").unwrap_or(value);
        [Some(inner), inner.get("after"), inner.get("before")].into_iter().flatten().any(|object| {
            key.iter().all(|(column, text)| object.get(column).and_then(plain).as_ref() == Some(text))
        })
    })
}
