//! Pages of lists, and masks of updates. A page's token is the name that the next page begins after.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tonic::Status;

use super::status;

const PAGE_MAX: usize = 1000;

/// A page.
#[derive(Debug)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<Arc<T>>,
    /// The next page's token; empty on the last.
    pub(crate) next: String,
}

fn size(wanted: i32) -> usize {
    usize::try_from(wanted).ok().filter(|size| *size > 0).map_or(PAGE_MAX, |size| size.min(PAGE_MAX))
}

/// A page of what a project has.
pub(crate) fn in_project<T>(
    all: &BTreeMap<String, Arc<T>>,
    project: &str,
    wanted: i32,
    token: &str,
) -> Page<T> {
    let prefix = format!("{project}/");
    let from = if token.is_empty() { Bound::Included(prefix.as_str()) } else { Bound::Excluded(token) };
    let mut items = Vec::new();
    let mut last = String::new();
    for (name, item) in all.range::<str, _>((from, Bound::Unbounded)) {
        if !name.starts_with(&prefix) {
            break;
        }
        if items.len() == size(wanted) {
            return Page { items, next: last };
        }
        items.push(item.clone());
        last.clone_from(name);
    }
    Page { items, next: String::new() }
}

/// A page of names, and the next page's token.
pub(crate) fn names(mut all: Vec<String>, wanted: i32, token: &str) -> (Vec<String>, String) {
    all.sort_unstable();
    all.retain(|name| name.as_str() > token);
    let more = all.len() > size(wanted);
    all.truncate(size(wanted));
    let next = if more { all.last().cloned().unwrap_or_default() } else { String::new() };
    (all, next)
}

/// The paths of a mask; there has to be one.
pub(crate) fn mask(mask: Option<prost_types::FieldMask>) -> Result<Vec<String>, Status> {
    let paths = mask.map(|mask| mask.paths).unwrap_or_default();
    if paths.is_empty() {
        return Err(status::invalid("The update_mask must name at least one field."));
    }
    Ok(paths)
}

/// A path that cannot be updated.
pub(crate) fn no_such_path(path: &str, of: &str) -> Status {
    status::invalid(format!(
        "Invalid update_mask provided: `{path}` is not a field of a {of} that can be changed."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other() {
        let all: BTreeMap<String, Arc<()>> =
            ["projects/a/topics/1", "projects/p/topics/1", "projects/p/topics/2", "projects/q/topics/1"]
                .into_iter()
                .map(|name| (name.to_owned(), Arc::new(())))
                .collect();
        let first = in_project(&all, "projects/p", 1, "");
        assert_eq!((first.items.len(), first.next.as_str()), (1, "projects/p/topics/1"));
        let second = in_project(&all, "projects/p", 1, &first.next);
        assert_eq!((second.items.len(), second.next.as_str()), (1, ""));
        let all = vec!["b".to_owned(), "a".to_owned(), "c".to_owned()];
        let (page, next) = names(all.clone(), 2, "");
        assert_eq!((page.len(), next.as_str()), (2, "b"));
        assert_eq!(names(all, 2, &next), (vec!["c".to_owned()], String::new()));
    }
}
