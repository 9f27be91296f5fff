//! A discovery: what was found is matched with what is known.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use millstream_core::{Error, Result};

use crate::files::catalog::{FileId, Holds, Phase, open_same};
use crate::files::discovery::{Found, Sighting};
use crate::files::position::Identity;
use crate::files::reader::FileSource;

/// A file without a name is closed when it has not grown for this many discoveries.
const MISSING_MAX: u64 = 3;

impl FileSource {
    /// Looks for files, queues those that have something to read, and reports what became of the others.
    pub(super) fn discover(&mut self) -> Result<()> {
        self.discoveries += 1;
        self.discovered = Some(Instant::now());
        let Found { files, problems, empty, .. } = self.search.run();
        self.tell_problems(problems)?;
        if let Some(path) = empty.first().filter(|_| !self.config.follow) {
            return Err(Error::fatal(format!(
                "no file matches {:?}; correct the path, or set follow: true to wait for files",
                path.display().to_string()
            )));
        }
        let sightings = self
            .one_name_each(files.into_iter().map(|(path, metadata)| Sighting { path, metadata }).collect());
        let seen: HashSet<Identity> = sightings.iter().map(Sighting::identity).collect();
        for sighting in sightings {
            self.sight(sighting, &seen)?;
        }
        for id in self.catalog.ids() {
            if self.catalog[id].sighted < self.discoveries {
                self.miss(id);
            }
        }
        Ok(())
    }

    fn tell_problems(&mut self, problems: Vec<(PathBuf, io::Error)>) -> Result<()> {
        let mut still = HashSet::new();
        for (path, e) in problems {
            if !self.config.follow {
                return Err(Error::fatal(format!(
                    "{} cannot be searched for files; give this user permission, or correct the path",
                    path.display()
                ))
                .with_source(e));
            }
            if !self.unreachable.contains(&path) {
                let text = format!(
                    "{} cannot be searched and is tried again at each discovery: {e}",
                    path.display()
                );
                self.notice("path_unreadable", text);
            }
            still.insert(path);
        }
        self.unreachable = still;
        Ok(())
    }

    /// Keeps one name of a file that has several: the one that it was known by, or the first.
    fn one_name_each(&self, sightings: Vec<Sighting>) -> Vec<Sighting> {
        let mut kept: HashMap<Identity, usize> = HashMap::new();
        let mut out: Vec<Sighting> = Vec::with_capacity(sightings.len());
        for sighting in sightings {
            let identity = sighting.identity();
            let Some(&at) = kept.get(&identity) else {
                kept.insert(identity, out.len());
                out.push(sighting);
                continue;
            };
            let known = self
                .catalog
                .holder(&sighting.path)
                .is_some_and(|id| self.catalog[id].place.identity == identity);
            if known {
                out[at] = sighting;
            }
        }
        out
    }

    fn sight(&mut self, sighting: Sighting, seen: &HashSet<Identity>) -> Result<()> {
        let identity = sighting.identity();
        let mut others = Vec::new();
        let mut same = None;
        for id in self.catalog.candidates(identity, &sighting.path) {
            match self.holds(id, &sighting) {
                Ok(Holds::Yes) => {
                    same = Some(id);
                    break;
                }
                Ok(Holds::No) => others.push(id),
                Ok(Holds::Unknown) => {
                    self.catalog[id].sighted = self.discoveries;
                    self.discovered = None;
                    return Ok(());
                }
                Err(e) => {
                    self.catalog[id].sighted = self.discoveries;
                    return self.cannot_read(id, e);
                }
            }
        }
        // Several files had this inode, one after the other: what the others read says nothing of the one that is there.
        for id in others {
            let is_this_file = self.catalog[id].is_open() || self.catalog.holder(&sighting.path) == Some(id);
            if same.is_none() && is_this_file {
                // A file that is held open keeps its inode, also under another name.
                self.tell_truncated(id);
                same = Some(self.supersede(id, sighting.path.clone(), None));
            } else if !self.catalog[id].is_open()
                && matches!(self.catalog[id].phase, Phase::Queued | Phase::Idle)
            {
                // Its inode was given to another file.
                self.forget_with_notice(id);
            }
        }
        if let Some(id) = same {
            self.found_again(id, &sighting);
            return Ok(());
        }
        self.sight_new(sighting, seen)
    }

    /// Whether the file `id` is the one that was sighted, by what was read from it.
    fn holds(&mut self, id: FileId, sighting: &Sighting) -> io::Result<Holds> {
        let identity = sighting.identity();
        let open = || -> io::Result<Option<File>> { open_same(&sighting.path, identity) };
        self.catalog[id].still_holds(&sighting.metadata, open)
    }

    /// A file with an unknown identity: a copy of the one that was there, or a new one.
    fn sight_new(&mut self, sighting: Sighting, seen: &HashSet<Identity>) -> Result<()> {
        let identity = sighting.identity();
        let before = self.catalog.holder(&sighting.path).filter(|&id| self.catalog[id].phase != Phase::Gone);
        let lost = before.filter(|&id| !seen.contains(&self.catalog[id].place.identity));
        if let Some(id) = lost
            && self.catalog[id].place.offset > 0
        {
            let file = &self.catalog[id];
            let place = &file.place;
            let same = match open_same(&sighting.path, identity) {
                Ok(Some(opened)) if sighting.metadata.len() >= place.offset || place.gzip => {
                    place.fingerprint.matches(&opened, place.offset)
                }
                Ok(_) => Ok(false),
                Err(e) => Err(e),
            };
            match same {
                Ok(true) => {
                    self.close(id);
                    self.catalog.set_identity(id, identity);
                    self.catalog[id].observe(&sighting.metadata);
                    self.catalog[id].end_len = None;
                    self.found_again(id, &sighting);
                    return Ok(());
                }
                Ok(false) => {}
                Err(e) => {
                    self.catalog[id].sighted = self.discoveries;
                    return self.cannot_read(id, e);
                }
            }
        }
        if let Some(id) = lost {
            let file = &self.catalog[id];
            let rest = match (file.is_open(), file.phase) {
                (true, _) => "the old one is still open and is read to its end first".to_owned(),
                (false, Phase::Restored) => {
                    format!("{} bytes of the old one had been read", file.place.offset)
                }
                (false, _) => format!("{} bytes of the old one were not read", file.unread()),
            };
            self.notice(
                "file_replaced",
                format!("{} is another file now, read from its start; {rest}", sighting.path.display()),
            );
            if !self.catalog[id].is_open() {
                self.forget(id);
            }
        }
        let new = self.catalog.add(&sighting.path, identity);
        // What was written before the name changed hands is read first.
        self.catalog[new].after = before;
        if let Some(id) = before.filter(|&id| self.catalog[id].is_open()) {
            self.enqueue(id);
        }
        self.found_again(new, &sighting);
        Ok(())
    }

    fn found_again(&mut self, id: FileId, sighting: &Sighting) {
        self.catalog.set_path(id, &sighting.path);
        let discoveries = self.discoveries;
        let file = &mut self.catalog[id];
        file.sighted = discoveries;
        file.observe(&sighting.metadata);
        if matches!(file.phase, Phase::Restored | Phase::Gone) {
            file.phase = Phase::Idle;
            file.reported = false;
        }
        if file.may_have_more() {
            self.enqueue(id);
        }
    }

    /// A file that was not found this time.
    fn miss(&mut self, id: FileId) {
        let missing = self.discoveries - self.catalog[id].sighted;
        let file = &self.catalog[id];
        match file.phase {
            Phase::Gone => {}
            _ if file.is_open() => {
                if file.phase == Phase::Idle && missing >= MISSING_MAX {
                    self.forget_with_notice(id);
                }
            }
            // It may come back under another name, and is then known.
            Phase::Restored if !file.reported => {
                self.catalog[id].reported = true;
                self.tell_unread(id);
            }
            Phase::Restored => {}
            Phase::Queued | Phase::Idle => self.forget_with_notice(id),
        }
    }

    fn forget_with_notice(&mut self, id: FileId) {
        self.tell_unread(id);
        self.forget(id);
    }

    fn tell_unread(&mut self, id: FileId) {
        let file = &self.catalog[id];
        let unread = file.unread();
        if unread > 0 {
            let text = format!(
                "{} was renamed out of the path or deleted, and {unread} bytes of it were not read, or hold a line that \
                 never ended",
                file.place.path.display()
            );
            self.notice("file_missing", text);
        }
    }

    fn forget(&mut self, id: FileId) {
        self.close(id);
        self.dequeue(id);
        self.catalog[id].phase = Phase::Gone;
    }
}
