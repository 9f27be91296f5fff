//! Names of Pub/Sub's resources: `projects/PROJECT/KIND/ID`.

use std::fmt;

use millstream_core::{Error, Result};

/// What every resource name has in common.
fn parse(kind: &str, text: &str, project: Option<&str>) -> Result<String> {
    let path = match text.split('/').collect::<Vec<_>>()[..] {
        ["projects", project, of, id] if of == kind => return full(kind, project, id, text),
        [id] => id,
        _ => {
            return Err(Error::fatal(format!(
                "`{text}` is no name of one of Pub/Sub's {kind}: give `projects/PROJECT/{kind}/ID`, or the ID alone and `project`"
            )));
        }
    };
    match project {
        Some(project) => full(kind, project, path, text),
        None => Err(Error::fatal(format!(
            "`{text}` names no project: give `project`, or write `projects/PROJECT/{kind}/{text}`"
        ))),
    }
}

fn full(kind: &str, project: &str, id: &str, text: &str) -> Result<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.~+%".contains(c);
    let fits = (3..=255).contains(&id.len())
        && id.starts_with(|c: char| c.is_ascii_alphabetic())
        && id.chars().all(allowed)
        && !id.starts_with("goog");
    if !fits {
        return Err(Error::fatal(format!(
            "`{text}`: an ID of Pub/Sub's {kind} has 3 to 255 letters, digits and `-_.~+%`, begins with a letter, and not with `goog`"
        )));
    }
    if project.is_empty() || !project.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c)) {
        return Err(Error::fatal(format!("`{text}`: `{project}` is no project ID")));
    }
    Ok(format!("projects/{project}/{kind}/{id}"))
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $type(String);

        impl $type {
            /// A full name, or an ID in `project`.
            ///
            /// # Errors
            /// If it is neither; the text says what a name looks like.
            pub fn parse(text: &str, project: Option<&str>) -> Result<Self> {
                parse($kind, text, project).map(Self)
            }

            /// The full name.
            pub fn path(&self) -> &str {
                &self.0
            }

            /// `projects/PROJECT`.
            pub fn project(&self) -> &str {
                let end = self.0.match_indices('/').nth(1).map_or(self.0.len(), |(at, _)| at);
                &self.0[..end]
            }

            /// What stands behind the last slash.
            pub fn id(&self) -> &str {
                self.0.rsplit('/').next().unwrap_or_default()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A subscription's name.
    SubscriptionName,
    "subscriptions"
);
name!(
    /// A topic's name.
    TopicName,
    "topics"
);
name!(
    /// A snapshot's name.
    SnapshotName,
    "snapshots"
);

impl SubscriptionName {
    /// The ID of the topic that it is commonly named after: `cdc.public.orders-sub` subscribes to `cdc.public.orders`.
    pub fn likely_topic(&self) -> &str {
        self.id().strip_suffix("-sub").unwrap_or(self.id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_full_or_complete_with_a_project() {
        let full = SubscriptionName::parse("projects/acme/subscriptions/cdc.orders-sub", None).unwrap();
        assert_eq!(full, SubscriptionName::parse("cdc.orders-sub", Some("acme")).unwrap());
        assert_eq!((full.project(), full.id()), ("projects/acme", "cdc.orders-sub"));
        for (bad, says) in [
            ("orders", "names no project"),
            ("projects/acme/topics/orders", "is no name of"),
            ("projects/acme/subscriptions/9lives", "begins with a letter"),
            ("projects/acme/subscriptions/googly", "not with `goog`"),
            ("projects//subscriptions/orders", "is no project ID"),
            ("projects/acme/subscriptions/ab", "3 to 255"),
        ] {
            let error = SubscriptionName::parse(bad, None).unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
