//! Cloud Storage by its JSON API: what a sink needs of it to hand files to load jobs.
//!
//! Every call may be repeated. An object is only made where there is none of its name (`ifGenerationMatch=0`), so that of two tries of
//! one upload, the first of which came through unheard, the second changes nothing.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use millstream_core::{Error, Result};
use reqwest::Method;
use serde_json::Value as Json;

use crate::connection::Connection;
use crate::failure::{Failure, shown};
use crate::http::{Http, lost};
use crate::rest::segment;

const SERVICE: &str = "https://storage.googleapis.com";
/// For the answer to a call, which may carry some megabytes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Parts of an upload, but for the last, are a multiple of this.
pub(super) const PART_UNIT: usize = 256 << 10;

/// A way to Cloud Storage. Cheap to clone; connects when it is first used.
#[derive(Debug, Clone)]
pub struct Gcs {
    http: Http,
}

/// A call.
struct Ask<'a> {
    method: Method,
    url: &'a str,
    query: &'a [(&'a str, String)],
    headers: HeaderMap,
    body: Bytes,
}

impl<'a> Ask<'a> {
    fn new(method: Method, url: &'a str) -> Self {
        Self { method, url, query: &[], headers: HeaderMap::new(), body: Bytes::new() }
    }
}

/// A bucket, as far as a sink cares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Where it is, e.g. `EU` or `EUROPE-WEST1`; `None` if the account may not look (`storage.buckets.get`), which no upload needs.
    pub location: Option<String>,
}

/// An answer that is no failure.
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

/// What a call was about, for its error.
#[derive(Clone, Copy)]
struct About<'a> {
    what: &'static str,
    resource: &'a str,
    permission: &'static str,
}

impl Gcs {
    /// A client for the service or for the endpoint that is given. Nothing is sent yet.
    ///
    /// # Errors
    /// If the endpoint is no URL, or no credentials can be found or read.
    pub fn new(connection: &Connection) -> Result<Self> {
        let endpoint = connection.gcs.as_deref().unwrap_or(SERVICE);
        Ok(Self { http: Http::new(connection, endpoint, ANSWER_TIMEOUT)? })
    }

    /// The same, but calls that fail for passing reasons are tried no longer than this.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { http: self.http.with_patience(patience) }
    }

    /// A bucket; `None` if there is none of this name.
    ///
    /// # Errors
    /// If it cannot be looked up.
    pub async fn bucket(&self, name: &str) -> Result<Option<Bucket>> {
        let about = About { what: "look up the bucket", resource: name, permission: "storage.buckets.get" };
        let url = format!("{}/storage/v1/b/{}", self.http.endpoint, segment(name));
        match self.ask(Ask::new(Method::GET, &url)).await {
            Ok(answer) => {
                let json = about.json(&answer)?;
                Ok(Some(Bucket { location: json["location"].as_str().map(str::to_owned) }))
            }
            Err(failure) if failure.status == 403 && !failure.is_transient() => {
                Ok(Some(Bucket { location: None }))
            }
            Err(failure) if failure.is_not_found() => Ok(None),
            Err(failure) => Err(about.error(&failure)),
        }
    }

    /// Which of these permissions on a bucket the credentials have.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn permitted(&self, bucket: &str, permissions: &[&str]) -> Result<Vec<String>> {
        let about = About {
            what: "ask for permissions on the bucket",
            resource: bucket,
            permission: "storage.buckets.get",
        };
        let url = format!("{}/storage/v1/b/{}/iam/testPermissions", self.http.endpoint, segment(bucket));
        let query: Vec<_> = permissions.iter().map(|p| ("permissions", (*p).to_owned())).collect();
        let answer = self.ask(Ask { query: &query, ..Ask::new(Method::GET, &url) }).await;
        let json = about.json(&answer.map_err(|failure| about.error(&failure))?)?;
        let held = json["permissions"].as_array().into_iter().flatten();
        Ok(held.filter_map(|p| p.as_str().map(str::to_owned)).collect())
    }

    /// Makes an object of these bytes.
    pub(super) async fn put(&self, bucket: &str, object: &str, bytes: Bytes) -> Result<()> {
        let about =
            About { what: "write the object", resource: object, permission: "storage.objects.create" };
        let url = self.upload_url(bucket);
        let len = bytes.len() as u64;
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let query = upload_query("media", object);
        let ask = Ask { query: &query, headers, body: bytes, ..Ask::new(Method::POST, &url) };
        match self.ask(ask).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_conflict() => self.is_there(bucket, object, len).await,
            Err(failure) => Err(about.error(&failure)),
        }
    }

    /// An upload in parts; the object is there when the last part is.
    pub(super) async fn begin(&self, bucket: &str, object: &str) -> Result<Upload> {
        let about = About {
            what: "begin to write the object",
            resource: object,
            permission: "storage.objects.create",
        };
        let (url, query) = (self.upload_url(bucket), upload_query("resumable", object));
        let answer = self.ask(Ask { query: &query, ..Ask::new(Method::POST, &url) }).await;
        let answer = answer.map_err(|failure| about.error(&failure))?;
        let session = answer.headers.get(header::LOCATION).and_then(|url| url.to_str().ok());
        let session = session
            .ok_or_else(|| Error::transient(format!("{}: the answer names no session", about.cannot())))?;
        Ok(Upload {
            gcs: self.clone(),
            session: session.to_owned(),
            bucket: bucket.to_owned(),
            object: object.to_owned(),
            sent: 0,
        })
    }

    /// The names of all objects that begin so.
    pub(super) async fn list(&self, bucket: &str, prefix: &str) -> Result<Vec<String>> {
        let about = About {
            what: "list the objects of the bucket",
            resource: bucket,
            permission: "storage.objects.list",
        };
        let url = format!("{}/storage/v1/b/{}/o", self.http.endpoint, segment(bucket));
        let (mut names, mut page) = (Vec::new(), None);
        loop {
            let mut query =
                vec![("prefix", prefix.to_owned()), ("fields", "nextPageToken,items(name)".to_owned())];
            query.extend(page.take().map(|token| ("pageToken", token)));
            let answer = self.ask(Ask { query: &query, ..Ask::new(Method::GET, &url) }).await;
            let json = about.json(&answer.map_err(|failure| about.error(&failure))?)?;
            let items = json["items"].as_array().into_iter().flatten();
            names.extend(items.filter_map(|item| item["name"].as_str().map(str::to_owned)));
            page = json["nextPageToken"].as_str().map(str::to_owned);
            if page.is_none() {
                return Ok(names);
            }
        }
    }

    /// Deletes an object, if it is there.
    pub(super) async fn delete(&self, bucket: &str, object: &str) -> Result<()> {
        let about =
            About { what: "delete the object", resource: object, permission: "storage.objects.delete" };
        let url = self.object_url(bucket, object);
        match self.ask(Ask::new(Method::DELETE, &url)).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is_not_found() => Ok(()),
            Err(failure) => Err(about.error(&failure)),
        }
    }

    /// An object that is there already is the one that an unheard try has made.
    async fn is_there(&self, bucket: &str, object: &str, len: u64) -> Result<()> {
        let about = About { what: "read the object", resource: object, permission: "storage.objects.get" };
        let url = self.object_url(bucket, object);
        let query = [("fields", "size".to_owned())];
        let answer = self.ask(Ask { query: &query, ..Ask::new(Method::GET, &url) }).await;
        let json = about.json(&answer.map_err(|failure| about.error(&failure))?)?;
        if json["size"].as_str().and_then(|size| size.parse().ok()) == Some(len) {
            return Ok(());
        }
        Err(Error::fatal(format!(
            "gs://{bucket}/{object} is there and has another size than what was to be written: another pipeline of this name \
             writes to the bucket; give one of them another `prefix`"
        )))
    }

    fn upload_url(&self, bucket: &str) -> String {
        format!("{}/upload/storage/v1/b/{}/o", self.http.endpoint, segment(bucket))
    }

    fn object_url(&self, bucket: &str, object: &str) -> String {
        format!("{}/storage/v1/b/{}/o/{}", self.http.endpoint, segment(bucket), segment(object))
    }

    /// Asks until there is an answer, an error that stays, or no more patience.
    async fn ask(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        let mut tries = self.http.tries("Cloud Storage");
        loop {
            match self.ask_once(&ask).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => tries.again(failure).await?,
            }
        }
    }

    async fn ask_once(&self, ask: &Ask<'_>) -> Result<Answer, Failure> {
        let request = self.http.request(ask.method.clone(), ask.url).await?.query(ask.query);
        let request = request
            .headers(ask.headers.clone())
            .header(header::CONTENT_LENGTH, ask.body.len())
            .body(ask.body.clone());
        let response = request.send().await.map_err(lost)?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.map_err(lost)?;
        // 308: a part of an upload was taken.
        if (200..300).contains(&status) || status == 308 {
            return Ok(Answer { status, headers, body });
        }
        Err(Failure::read(status, &body))
    }
}

fn upload_query(kind: &str, object: &str) -> [(&'static str, String); 3] {
    [("uploadType", kind.to_owned()), ("name", object.to_owned()), ("ifGenerationMatch", "0".to_owned())]
}

/// An object that is being written in parts.
pub(super) struct Upload {
    gcs: Gcs,
    session: String,
    bucket: String,
    object: String,
    /// Bytes that the service has.
    sent: u64,
}

impl Upload {
    /// Sends a part: a multiple of [`PART_UNIT`], or with `is_last` any number of bytes.
    pub(super) async fn send(&mut self, part: &Bytes, is_last: bool) -> Result<()> {
        let object = self.object.clone();
        let about =
            About { what: "write the object", resource: &object, permission: "storage.objects.create" };
        let (first, end) = (self.sent, self.sent + part.len() as u64);
        let total = if is_last { end.to_string() } else { "*".to_owned() };
        let mut tries = self.gcs.http.tries("Cloud Storage");
        while is_last || self.sent < end {
            let rest = part.slice((self.sent - first) as usize..);
            let range = match rest.len() {
                0 => format!("bytes */{total}"),
                _ => format!("bytes {}-{}/{total}", self.sent, end - 1),
            };
            let failure = match self.ask(&range, &rest).await {
                Ok(true) if is_last => return Ok(()),
                Ok(true) => return Err(Error::transient(format!("{}: it ended early", about.cannot()))),
                Ok(false) if self.sent >= first && self.sent <= end => continue,
                Ok(false) => {
                    return Err(Error::transient(format!("{}: parts of it are lost", about.cannot())));
                }
                Err(failure) => failure,
            };
            if failure.is_conflict() {
                return self.gcs.is_there(&self.bucket, &self.object, end).await;
            }
            tries.again(failure).await.map_err(|failure| about.error(&failure))?;
            // What it has of the part may be all, some or nothing.
            if let Ok(true) = self.ask("bytes */*", &Bytes::new()).await {
                return Ok(());
            }
        }
        Ok(())
    }

    /// One request; whether the object is whole.
    async fn ask(&mut self, range: &str, bytes: &Bytes) -> Result<bool, Failure> {
        let mut headers = HeaderMap::new();
        if let Ok(range) = HeaderValue::from_str(range) {
            headers.insert(header::CONTENT_RANGE, range);
        }
        let ask = Ask { headers, body: bytes.clone(), ..Ask::new(Method::PUT, &self.session) };
        let answer = self.gcs.ask_once(&ask).await?;
        if answer.status != 308 {
            return Ok(true);
        }
        // `bytes=0-524287`, or nothing if it has nothing.
        let range = answer.headers.get(header::RANGE).and_then(|range| range.to_str().ok());
        let last = range.and_then(|range| range.rsplit('-').next()?.parse::<u64>().ok());
        self.sent = last.map_or(0, |last| last + 1);
        Ok(false)
    }
}

impl About<'_> {
    fn cannot(&self) -> String {
        format!("cannot {} {}", self.what, self.resource)
    }

    fn json(&self, answer: &Answer) -> Result<Json> {
        serde_json::from_slice(&answer.body)
            .map_err(|_| Error::transient(format!("{}: the answer is no JSON", self.cannot())))
    }

    fn error(&self, failure: &Failure) -> Error {
        let cannot = self.cannot();
        let text = match failure.status {
            0 => format!("{cannot}: Cloud Storage gives no answer"),
            401 => format!("{cannot}: the credentials were refused or have expired; renew them"),
            403 => format!(
                "{cannot}: permission denied; grant a role with {} on the bucket to the account of the credentials",
                self.permission
            ),
            404 => format!("{cannot}: it, or the bucket, does not exist; check `load.bucket`"),
            status => format!("{cannot}: HTTP status {status} {}", failure.reason),
        };
        let text = match shown(&failure.message) {
            "" => text,
            words => format!("{text} (Cloud Storage says: {words})"),
        };
        if failure.is_transient() { Error::transient(text) } else { Error::fatal(text) }
    }
}
