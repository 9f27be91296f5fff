//! Names of resources: `projects/P/topics/T` and the like, and the service's rules for them.

use tonic::Status;

use super::status;

/// What a deleted topic is called in its subscriptions.
pub(crate) const DELETED_TOPIC: &str = "_deleted-topic_";

/// Checks a name of this kind (`topics`, `subscriptions`, `snapshots`).
pub(crate) fn check(name: &str, kind: &str) -> Result<(), Status> {
    if valid(name, kind) {
        return Ok(());
    }
    Err(status::invalid(format!(
        "Invalid [{kind}] name: (name={name}). It must be projects/PROJECT/{kind}/ID, where ID starts with a letter, \
         has 3 to 255 of A-Z a-z 0-9 - _ . ~ + %, and does not start with \"goog\"."
    )))
}

fn valid(name: &str, kind: &str) -> bool {
    let mut parts = name.split('/');
    let (Some("projects"), Some(project), Some(this), Some(id), None) =
        (parts.next(), parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    this == kind && !project.is_empty() && valid_id(id)
}

fn valid_id(id: &str) -> bool {
    (3..=255).contains(&id.len())
        && id.starts_with(|c: char| c.is_ascii_alphabetic())
        && !id.starts_with("goog")
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.~+%".contains(&b))
}

/// The project of a name.
pub(crate) fn project(name: &str) -> &str {
    name.split('/').nth(1).unwrap_or_default()
}

/// The id of a name.
pub(crate) fn id(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or_default()
}

/// Checks `projects/P`.
pub(crate) fn check_project(name: &str) -> Result<(), Status> {
    match name.strip_prefix("projects/") {
        Some(project) if !project.is_empty() && !project.contains('/') => Ok(()),
        _ => {
            Err(status::invalid(format!("Invalid project name: (name={name}). It must be projects/PROJECT.")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules() {
        for good in ["projects/p/topics/abc", "projects/p-1/topics/a.b_c~d+e%f-1"] {
            assert!(check(good, "topics").is_ok(), "{good}");
        }
        for bad in [
            "",
            "abc",
            "projects/p/topics/ab",
            "projects/p/topics/1ab",
            "projects/p/topics/google",
            "projects/p/topics/a b",
            "projects//topics/abc",
            "projects/p/subscriptions/abc",
            "projects/p/topics/abc/d",
        ] {
            assert!(check(bad, "topics").is_err(), "{bad}");
        }
        assert!(check(&format!("projects/p/topics/{}", "a".repeat(255)), "topics").is_ok());
        assert!(check(&format!("projects/p/topics/{}", "a".repeat(256)), "topics").is_err());
        assert!(check_project("projects/p").is_ok());
        assert!(check_project("p").is_err());
    }
}
