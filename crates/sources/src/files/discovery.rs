//! Which files a path names: one file, those in a directory, or those that match a glob.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use millstream_core::{Error, Result};

use crate::files::position::Identity;

/// `*`, `?` and `[…]` match no leading dot, so that files being written under a hidden name are left alone.
const MATCH: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// What a path of a config names.
#[derive(Debug)]
pub(crate) struct Search {
    path: PathBuf,
    /// Where a glob begins, and its further parts; `None` for a path without wildcards.
    glob: Option<(PathBuf, Vec<Part>)>,
}

#[derive(Debug)]
enum Part {
    /// `**`: any number of directories.
    AnyDepth,
    /// A name without wildcards.
    Name(String),
    /// A name with wildcards.
    Like(Pattern),
}

/// A regular file that was found.
#[derive(Debug)]
pub(crate) struct Sighting {
    pub(crate) path: PathBuf,
    pub(crate) metadata: Metadata,
}

impl Sighting {
    pub(crate) fn identity(&self) -> Identity {
        Identity::of(&self.metadata)
    }
}

/// What a search found: files by path, and what could not be looked at.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) files: BTreeMap<PathBuf, Metadata>,
    pub(crate) problems: Vec<(PathBuf, io::Error)>,
    /// Paths of the config that name no file.
    pub(crate) empty: Vec<PathBuf>,
    /// Directories on the way, against loops of links.
    visited: HashSet<(Identity, usize)>,
}

/// All paths of a source.
#[derive(Debug)]
pub(crate) struct Searches(Vec<Search>);

impl Searches {
    /// Understands every path.
    pub(crate) fn parse<'a>(paths: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        Ok(Self(paths.into_iter().map(Search::parse).collect::<Result<_>>()?))
    }

    /// Whether looking costs a few files' metadata and not a walk.
    pub(crate) fn is_cheap(&self) -> bool {
        self.0.len() <= 16 && self.0.iter().all(Search::is_cheap)
    }

    /// Looks for files; one that several paths name is found once.
    pub(crate) fn run(&self) -> Found {
        let mut all = Found::default();
        for search in &self.0 {
            let found = search.run();
            if found.files.is_empty() && found.problems.is_empty() {
                all.empty.push(search.path.clone());
            }
            all.files.extend(found.files);
            all.problems.extend(found.problems);
        }
        all
    }
}

impl Search {
    /// Understands `path`. A name that exists is taken literally even if it holds wildcard characters.
    pub(crate) fn parse(path: &str) -> Result<Self> {
        let literal = PathBuf::from(path);
        if !path.contains(['*', '?', '[']) || literal.exists() {
            return Ok(Self { path: literal, glob: None });
        }
        let mut root = PathBuf::new();
        if path.starts_with('/') {
            root.push("/");
        }
        let mut parts = Vec::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let wild = name.contains(['*', '?', '[']);
            match name {
                "**" if matches!(parts.last(), Some(Part::AnyDepth)) => {}
                "**" => parts.push(Part::AnyDepth),
                _ if wild => {
                    parts.push(Part::Like(Pattern::new(name).map_err(|e| {
                        Error::fatal(format!("{path:?} is no valid glob: {name:?}: {}", e.msg))
                    })?))
                }
                _ if parts.is_empty() => root.push(name),
                _ => parts.push(Part::Name(name.to_owned())),
            }
        }
        Ok(Self { path: literal, glob: Some((root, parts)) })
    }

    /// Whether looking costs one file's metadata and not a walk.
    fn is_cheap(&self) -> bool {
        self.glob.is_none() && !self.path.is_dir()
    }

    /// Looks for files.
    pub(crate) fn run(&self) -> Found {
        let mut found = Found::default();
        match &self.glob {
            Some((root, parts)) => {
                let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
                found.walk(root, parts, 0);
            }
            None => match fs::metadata(&self.path) {
                Ok(metadata) if metadata.is_dir() => found.walk_tree(&self.path),
                Ok(metadata) if metadata.is_file() => {
                    found.files.insert(self.path.clone(), metadata);
                }
                Ok(_) => {
                    let reason =
                        io::Error::new(io::ErrorKind::InvalidInput, "not a regular file or directory");
                    found.problems.push((self.path.clone(), reason));
                }
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => found.problems.push((self.path.clone(), e)),
            },
        }
        found
    }
}

impl Found {
    /// Follows `parts[at..]` from `directory` on.
    fn walk(&mut self, directory: &Path, parts: &[Part], at: usize) {
        let Some(part) = parts.get(at) else { return };
        let last = at + 1 == parts.len();
        match part {
            Part::Name(name) if last => self.take(join(directory, name.as_ref())),
            Part::Name(name) => self.walk(&join(directory, name.as_ref()), parts, at + 1),
            Part::Like(pattern) => {
                for (path, name, may_enter) in self.list(directory) {
                    if !pattern.matches_with(&name, MATCH) {
                        continue;
                    }
                    if last {
                        self.take(path);
                    } else if may_enter && self.enter(&path, at) {
                        self.walk(&path, parts, at + 1);
                    }
                }
            }
            Part::AnyDepth => {
                if !last {
                    self.walk(directory, parts, at + 1);
                }
                for (path, name, may_enter) in self.list(directory) {
                    if name.starts_with('.') {
                        continue;
                    }
                    if may_enter && self.enter(&path, at) {
                        self.walk(&path, parts, at);
                    } else if last {
                        self.take(path);
                    }
                }
            }
        }
    }

    /// Every file of JSON lines in `directory`, at any depth.
    fn walk_tree(&mut self, directory: &Path) {
        for (path, name, may_enter) in self.list(directory) {
            if name.starts_with('.') {
                continue;
            }
            let stem = name.strip_suffix(".gz").unwrap_or(&name);
            if may_enter && self.enter(&path, 0) {
                self.walk_tree(&path);
            } else if [".jsonl", ".ndjson", ".json"].iter().any(|ending| stem.ends_with(ending)) {
                self.take(path);
            }
        }
    }

    /// Paths, (lossy) names, and whether it may be a directory, of what is in a directory; none if it is no directory.
    fn list(&mut self, directory: &Path) -> Vec<(PathBuf, String, bool)> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(e) => {
                if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
                    self.problems.push((directory.to_owned(), e));
                }
                return Vec::new();
            }
        };
        let mut names = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) => {
                    let name = entry.file_name();
                    let may_enter = entry.file_type().is_ok_and(|t| !t.is_file());
                    names.push((join(directory, &name), name.to_string_lossy().into_owned(), may_enter));
                }
                Err(e) => self.problems.push((directory.to_owned(), e)),
            }
        }
        names
    }

    /// Whether `path` is a directory that was not yet entered for this part of the pattern.
    fn enter(&mut self, path: &Path, part: usize) -> bool {
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => self.visited.insert((Identity::of(&metadata), part)),
            _ => false,
        }
    }

    fn take(&mut self, path: PathBuf) {
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                self.files.insert(path, metadata);
            }
            // Directories may match `*`; a link to nowhere is a file that is not there.
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => self.problems.push((path, e)),
        }
    }
}

/// `directory/name`, without a `./` that the config did not write.
fn join(directory: &Path, name: &std::ffi::OsStr) -> PathBuf {
    if directory == Path::new(".") { PathBuf::from(name) } else { directory.join(name) }
}
