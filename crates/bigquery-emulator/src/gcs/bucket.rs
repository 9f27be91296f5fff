//! Buckets and their objects.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::failure::{Failure, Reason};

/// An object. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(super) content_type: String,
    pub(super) generation: u64,
    created_ms: i64,
}

/// A bucket.
#[derive(Debug)]
pub(crate) struct Bucket {
    pub(super) location: String,
    created_ms: i64,
    pub(super) objects: BTreeMap<String, Object>,
}

/// An upload in parts.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) target: Target,
    pub(super) bytes: Vec<u8>,
    /// It has ended: who asks again is told so.
    pub(super) is_done: bool,
}

/// Where an upload goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(super) bucket: String,
    pub(super) name: String,
    pub(super) content_type: String,
    /// Only over this generation; 0: only where there is none.
    pub(super) if_generation: Option<u64>,
}

/// All buckets.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    state: Mutex<State>,
    /// Where they are kept, too.
    directory: Option<PathBuf>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) buckets: BTreeMap<String, Bucket>,
    pub(super) sessions: HashMap<String, Session>,
    serial: u64,
}

impl State {
    /// A number that no other call got.
    pub(super) fn serial(&mut self, clock: &Clock) -> u64 {
        self.serial = (self.serial + 1).max(clock.micros().cast_unsigned());
        self.serial
    }

    pub(crate) fn bucket(&self, name: &str) -> Result<&Bucket, Failure> {
        self.buckets.get(name).ok_or_else(|| Failure::not_found("The specified bucket does not exist."))
    }
}

impl Buckets {
    /// Those that are in a directory.
    pub(crate) fn open(directory: Option<&Path>, clock: &Clock) -> std::io::Result<Self> {
        let Some(directory) = directory else { return Ok(Self::default()) };
        let mut state = State::default();
        // It is made with the first bucket.
        let entries = if directory.exists() { Some(std::fs::read_dir(directory)?) } else { None };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            let Some(name) = unescaped(&entry.file_name().to_string_lossy()) else { continue };
            let location = std::fs::read_to_string(entry.path().join(LOCATION))?;
            let mut bucket = Bucket { location, created_ms: clock.millis(), objects: BTreeMap::new() };
            for file in std::fs::read_dir(entry.path())? {
                let file = file?;
                let Some(name) = unescaped(&file.file_name().to_string_lossy()) else { continue };
                let object = Object {
                    bytes: std::fs::read(file.path())?.into(),
                    content_type: String::from("application/octet-stream"),
                    generation: state.serial(clock),
                    created_ms: clock.millis(),
                };
                bucket.objects.insert(name, object);
            }
            state.buckets.insert(name, bucket);
        }
        Ok(Self { state: Mutex::new(state), directory: Some(directory.to_owned()) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a bucket, unless there is one of this name.
    pub(crate) fn create(&self, clock: &Clock, name: &str, location: &str) -> Result<(), Failure> {
        let mut state = self.lock();
        if state.buckets.contains_key(name) {
            let message =
                "Your previous request to create the named bucket succeeded and you already own it.";
            return Err(Failure::new(Reason::Conflict, message));
        }
        if let Some(directory) = &self.directory {
            let folder = directory.join(escaped(name));
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join(LOCATION), location)?;
        }
        let (location, created_ms) = (location.to_uppercase(), clock.millis());
        state.buckets.insert(name.to_owned(), Bucket { location, created_ms, objects: BTreeMap::new() });
        Ok(())
    }

    /// Deletes an empty bucket.
    pub(super) fn delete(&self, name: &str) -> Result<(), Failure> {
        let mut state = self.lock();
        if !state.bucket(name)?.objects.is_empty() {
            return Err(Failure::new(Reason::Conflict, "The bucket you tried to delete is not empty."));
        }
        if let Some(directory) = &self.directory {
            std::fs::remove_dir_all(directory.join(escaped(name)))?;
        }
        state.buckets.remove(name);
        Ok(())
    }

    /// Makes an object, or replaces it.
    pub(super) fn put(&self, clock: &Clock, target: &Target, bytes: Bytes) -> Result<Value, Failure> {
        let mut state = self.lock();
        let before = state.bucket(&target.bucket)?.objects.get(&target.name).map_or(0, |o| o.generation);
        check_generation(target.if_generation, before)?;
        if let Some(file) = self.file(&target.bucket, &target.name) {
            // Renamed into place: a killed process leaves a whole one, or none.
            let unfinished = file.with_extension("unfinished");
            std::fs::write(&unfinished, &bytes)?;
            std::fs::rename(&unfinished, file)?;
        }
        let generation = state.serial(clock);
        let object = Object {
            bytes,
            content_type: target.content_type.clone(),
            generation,
            created_ms: clock.millis(),
        };
        let json = object.to_json(&target.bucket, &target.name);
        if let Some(bucket) = state.buckets.get_mut(&target.bucket) {
            bucket.objects.insert(target.name.clone(), object);
        }
        Ok(json)
    }

    /// An object.
    pub(crate) fn object(&self, bucket: &str, name: &str) -> Result<Object, Failure> {
        let state = self.lock();
        let object = state.bucket(bucket)?.objects.get(name).cloned();
        object.ok_or_else(|| Failure::not_found(format!("No such object: {bucket}/{name}")))
    }

    /// Deletes an object.
    pub(super) fn delete_object(
        &self,
        bucket: &str,
        name: &str,
        generation: Option<u64>,
    ) -> Result<(), Failure> {
        let object = self.object(bucket, name)?;
        check_generation(generation, object.generation)?;
        if let Some(file) = self.file(bucket, name) {
            std::fs::remove_file(file)?;
        }
        if let Some(bucket) = self.lock().buckets.get_mut(bucket) {
            bucket.objects.remove(name);
        }
        Ok(())
    }

    /// Objects that a URI of a load names, one of whose characters may be a `*`, and where their bucket is.
    pub(crate) fn matching(&self, uri: &str) -> Result<(Vec<Object>, String), Failure> {
        let path = uri.strip_prefix("gs://").and_then(|rest| rest.split_once('/'));
        let (bucket, name) = path.ok_or_else(|| Failure::invalid(format!("Invalid source URI {uri}")))?;
        let state = self.lock();
        let bucket = state.bucket(bucket)?;
        let objects: Vec<_> = match name.split_once('*') {
            None => bucket.objects.get(name).cloned().into_iter().collect(),
            Some((begin, end)) => {
                let fits = |name: &str| name.strip_prefix(begin).is_some_and(|rest| rest.ends_with(end));
                bucket.objects.iter().filter(|(name, _)| fits(name)).map(|(_, o)| o.clone()).collect()
            }
        };
        match objects.is_empty() {
            true => Err(Failure::not_found(format!("Not found: URI {uri}"))),
            false => Ok((objects, bucket.location.clone())),
        }
    }

    /// Names of a bucket's objects.
    pub(crate) fn names(&self, bucket: &str) -> Vec<String> {
        let state = self.lock();
        state.buckets.get(bucket).into_iter().flat_map(|b| b.objects.keys().cloned()).collect()
    }

    fn file(&self, bucket: &str, name: &str) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(escaped(bucket)).join(escaped(name)))
    }
}

fn check_generation(wanted: Option<u64>, found: u64) -> Result<(), Failure> {
    match wanted {
        Some(wanted) if wanted != found => Err(Failure::new(
            Reason::PreconditionFailed,
            "At least one of the pre-conditions you specified did not hold.",
        )),
        _ => Ok(()),
    }
}

/// The file that says where a bucket is; no object's name is escaped to it.
const LOCATION: &str = "location";

/// A name as that of a file.
fn escaped(name: &str) -> String {
    name.bytes().fold("_".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn unescaped(file: &str) -> Option<String> {
    let hex = file.strip_prefix('_')?;
    let pairs =
        hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    String::from_utf8(pairs.collect::<Option<Vec<u8>>>()?).ok()
}

impl Object {
    pub(super) fn to_json(&self, bucket: &str, name: &str) -> Value {
        let time = time(self.created_ms);
        json!({
            "kind": "storage#object",
            "id": format!("{bucket}/{name}/{}", self.generation),
            "name": name,
            "bucket": bucket,
            "generation": self.generation.to_string(),
            "metageneration": "1",
            "contentType": self.content_type,
            "storageClass": "STANDARD",
            "size": self.bytes.len().to_string(),
            "crc32c": self.crc32c(),
            "etag": format!("\"{}\"", self.generation),
            "timeCreated": time,
            "updated": time,
        })
    }

    /// Its checksum, in base64.
    pub(super) fn crc32c(&self) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(crc32c(&self.bytes).to_be_bytes())
    }
}

impl Bucket {
    pub(super) fn to_json(&self, name: &str) -> Value {
        let time = time(self.created_ms);
        let kind = if self.location.contains('-') { "region" } else { "multi-region" };
        json!({
            "kind": "storage#bucket",
            "id": name,
            "name": name,
            "location": self.location,
            "locationType": kind,
            "storageClass": "STANDARD",
            "metageneration": "1",
            "timeCreated": time,
            "updated": time,
        })
    }
}

fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map(|time| time.to_string()).unwrap_or_default()
}

/// CRC-32C (Castagnoli), as Cloud Storage checks objects with it.
fn crc32c(bytes: &[u8]) -> u32 {
    static TABLE: std::sync::LazyLock<[u32; 256]> = std::sync::LazyLock::new(|| {
        std::array::from_fn(|byte| {
            (0..8).fold(byte as u32, |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
        })
    });
    !bytes.iter().fold(!0, |crc, byte| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn objects_outlive_the_process_that_kept_them() {
        let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::start());
        let target = Target {
            bucket: "b".to_owned(),
            name: "a/ü *".to_owned(),
            content_type: String::new(),
            if_generation: Some(0),
        };
        let buckets = Buckets::open(Some(folder.path()), &clock).unwrap();
        buckets.create(&clock, "b", "eu").unwrap();
        buckets.put(&clock, &target, Bytes::from_static(b"x")).unwrap();
        assert_eq!(
            buckets.put(&clock, &target, Bytes::new()).unwrap_err().reason,
            Reason::PreconditionFailed
        );
        let again = Buckets::open(Some(folder.path()), &clock).unwrap();
        assert_eq!(again.object("b", "a/ü *").unwrap().bytes, "x");
        assert_eq!(again.matching("gs://b/a/*").unwrap().0.len(), 1);
        again.delete_object("b", "a/ü *", None).unwrap();
        assert!(Buckets::open(Some(folder.path()), &clock).unwrap().names("b").is_empty());
    }
}
