//! Opening and closing files, within a bound.

use std::io;

use millstream_core::{Error, Result};

use crate::files::catalog::{FileId, Phase, open_same};
use crate::files::input::{self, Input};
use crate::files::reader::{FileSource, read_error};

/// Files that are held open, those being read included.
const OPEN_MAX: usize = 64;

impl FileSource {
    pub(super) fn close(&mut self, id: FileId) {
        self.catalog[id].close();
        self.open.retain(|&other| other != id);
    }

    /// Opens a file and finds out its format. `false`: there is nothing to read now.
    pub(super) fn open_file(&mut self, id: FileId) -> Result<bool> {
        if self.catalog[id].input.is_some() {
            return Ok(true);
        }
        let handle = match self.catalog[id].handle.take() {
            Some(handle) => Ok(Some(handle)),
            None => {
                self.make_room();
                open_same(&self.catalog[id].place.path, self.catalog[id].place.identity)
            }
        };
        self.open.retain(|&other| other != id);
        let path = self.catalog[id].place.path.clone();
        let handle = match handle {
            Ok(Some(handle)) => handle,
            Ok(None) if self.config.follow => {
                self.discovered = None;
                return Ok(false);
            }
            Ok(None) => {
                return Err(Error::fatal(format!(
                    "{} was moved, replaced or deleted before it was read; keep input files in place during a bounded \
                     run, or set follow: true",
                    path.display()
                )));
            }
            Err(e) => return self.cannot_read(id, e).map(|()| false),
        };
        let follow = self.config.follow;
        let magic = input::head(&handle, 2).map_err(|e| read_error(&path, e))?;
        // One byte may become a gzip magic; while following, no line can be complete before the second.
        if magic.is_empty() || (magic.len() < 2 && magic[0] == 0x1f && follow) {
            self.catalog[id].end_len = Some(magic.len() as u64);
            self.catalog[id].handle = Some(handle);
            self.open.push(id);
            return Ok(false);
        }
        let gzip = magic == [0x1f, 0x8b];
        if !gzip && path.extension().is_some_and(|e| e == "gz") && self.catalog[id].place.offset == 0 {
            let text =
                format!("{} is named like a gzip file but is none; it is read as it is", path.display());
            self.notice("not_gzip", text);
        }
        let file = &mut self.catalog[id];
        file.place.gzip = gzip;
        file.input = Some(if gzip {
            Input::gzip(handle, follow).map_err(|e| read_error(&path, e))?
        } else {
            Input::plain(handle)
        });
        file.reported = false;
        self.open.push(id);
        Ok(true)
    }

    /// Tells that a file cannot be opened: an error where the run would otherwise end without it.
    pub(super) fn cannot_read(&mut self, id: FileId, e: io::Error) -> Result<()> {
        let path = self.catalog[id].place.path.clone();
        let out_of_handles = matches!(e.raw_os_error(), Some(23 | 24));
        if out_of_handles {
            return Err(Error::transient(format!(
                "{} cannot be opened: too many open files; raise the limit (ulimit -n)",
                path.display()
            ))
            .with_source(e));
        }
        if !self.config.follow {
            return Err(Error::fatal(format!(
                "{} cannot be read; give this user permission to read it, or leave it out of the path",
                path.display()
            ))
            .with_source(e));
        }
        if !std::mem::replace(&mut self.catalog[id].reported, true) {
            self.notice(
                "file_unreadable",
                format!("{} cannot be read and is tried again at each discovery: {e}", path.display()),
            );
        }
        self.catalog[id].end_len = None;
        Ok(())
    }

    /// Closes the idle file that was read longest ago if as many are open as may be; those that still have a name first.
    fn make_room(&mut self) {
        if self.open.len() < OPEN_MAX {
            return;
        }
        let discoveries = self.discoveries;
        let idle = self.open.iter().copied().filter(|&id| self.catalog[id].phase != Phase::Queued);
        let oldest = idle.min_by_key(|&id| {
            let file = &self.catalog[id];
            (file.sighted < discoveries, file.last_read)
        });
        if let Some(id) = oldest {
            self.close(id);
        }
    }
}
