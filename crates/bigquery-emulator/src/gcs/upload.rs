//! Uploads: by one request (media, multipart), or in parts (resumable).

use axum::body::Bytes;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::Call;
use super::bucket::{Session, Target};
use crate::failure::{Failure, Reason};
use crate::rest::json_response;

/// Parts, but for the last, are a multiple of this.
const UNIT: usize = 256 << 10;
const OCTETS: &str = "application/octet-stream";

/// The whole of an upload, or the beginning of one in parts.
pub(super) fn begin(call: &Call, bucket: &str) -> Result<Response, Failure> {
    match call.parameter("uploadType") {
        Some("media") => {
            let kind = call.header(header::CONTENT_TYPE).unwrap_or(OCTETS);
            whole(call, target(call, bucket, &Value::Null, kind)?, call.body.clone())
        }
        Some("multipart") => {
            let (metadata, kind, bytes) = parts(call)?;
            whole(call, target(call, bucket, &metadata, &kind)?, bytes)
        }
        Some("resumable") => {
            let kind = call.headers.get("x-upload-content-type").and_then(|kind| kind.to_str().ok());
            let target = target(call, bucket, &call.json()?, kind.unwrap_or(OCTETS))?;
            call.begin("objects.insert", bucket, Some(&target.name))?;
            let mut state = call.warehouse.buckets.lock();
            state.bucket(bucket)?;
            let id = format!("{:x}", state.serial(&call.warehouse.clock));
            let host = call.header(header::HOST).unwrap_or("localhost");
            let location =
                format!("http://{host}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={id}");
            state.sessions.insert(id.clone(), Session { target, bytes: Vec::new(), is_done: false });
            let uploader = (HeaderName::from_static("x-guploader-uploadid"), id);
            Ok(([(header::LOCATION, location), uploader], "").into_response())
        }
        other => Err(Failure::invalid(format!("Invalid uploadType {}", other.unwrap_or_default()))),
    }
}

fn target(call: &Call, bucket: &str, metadata: &Value, kind: &str) -> Result<Target, Failure> {
    let name = call.parameter("name").or_else(|| metadata["name"].as_str()).filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| Failure::new(Reason::Required, "Required parameter: name"))?;
    Ok(Target {
        bucket: bucket.to_owned(),
        name: name.to_owned(),
        content_type: metadata["contentType"].as_str().unwrap_or(kind).to_owned(),
        if_generation: call.generation()?,
    })
}

fn whole(call: &Call, target: Target, bytes: Bytes) -> Result<Response, Failure> {
    call.begin("objects.insert", &target.bucket, Some(&target.name))?;
    Ok(json_response(call.warehouse.buckets.put(&call.warehouse.clock, &target, bytes)?))
}

/// The metadata, content type and bytes of a multipart upload.
fn parts(call: &Call) -> Result<(Value, String, Bytes), Failure> {
    let wrong = || Failure::invalid("Malformed multipart body.");
    let boundary = call.header(header::CONTENT_TYPE).and_then(|kind| kind.split_once("boundary="));
    let (_, boundary) = boundary.ok_or_else(wrong)?;
    let boundary = boundary.split(';').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
    let line = format!("--{boundary}");
    let find = |from: usize, text: &[u8]| {
        call.body.get(from..)?.windows(text.len()).position(|window| window == text).map(|at| from + at)
    };
    let part = |from: usize| {
        let begin = find(from, line.as_bytes())? + line.len() + 2;
        let head = find(begin - 2, b"\r\n\r\n")?;
        let end = find(head + 4, format!("\r\n{line}").as_bytes())?;
        let headers = String::from_utf8_lossy(call.body.get(begin..head).unwrap_or_default()).into_owned();
        Some((headers, call.body.slice(head + 4..end), end + 2))
    };
    let (_, metadata, next) = part(0).ok_or_else(wrong)?;
    let (headers, bytes, _) = part(next).ok_or_else(wrong)?;
    let metadata = serde_json::from_slice(&metadata).map_err(|_| wrong())?;
    let kind = headers.lines().filter_map(|line| line.split_once(':'));
    let mut kind =
        kind.filter(|(name, _)| name.eq_ignore_ascii_case("content-type")).map(|(_, kind)| kind.trim());
    Ok((metadata, kind.next_back().unwrap_or(OCTETS).to_owned(), bytes))
}

/// A part of an upload, or a question how much there is.
pub(super) fn part(call: &Call, bucket: &str) -> Result<Response, Failure> {
    let id = call.parameter("upload_id").unwrap_or_default();
    let gone = || Failure::not_found("The upload session does not exist.");
    let name = {
        let state = call.warehouse.buckets.lock();
        state.sessions.get(id).ok_or_else(gone)?.target.name.clone()
    };
    call.begin("objects.insert", bucket, Some(&name))?;
    let mut state = call.warehouse.buckets.lock();
    let session = state.sessions.get_mut(id).ok_or_else(gone)?;
    if session.is_done {
        let target = session.target.clone();
        drop(state);
        let object = call.warehouse.buckets.object(&target.bucket, &target.name)?;
        return Ok(json_response(object.to_json(&target.bucket, &target.name)));
    }
    let given = call.header(header::CONTENT_RANGE).unwrap_or("bytes 0-/*");
    let wrong = || Failure::invalid(format!("Failed to parse Content-Range header: {given}"));
    let (range, total) =
        given.strip_prefix("bytes ").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
    // Without a header the body is the whole object.
    let total = match (total, call.header(header::CONTENT_RANGE)) {
        (_, None) => Some(call.body.len()),
        ("*", _) => None,
        (total, _) => Some(total.parse::<usize>().map_err(|_| wrong())?),
    };
    if range != "*" {
        let (first, _) = range.split_once('-').ok_or_else(wrong)?;
        let first: usize = first.parse().map_err(|_| wrong())?;
        let known = session.bytes.len();
        if first > known {
            return Err(Failure::invalid(format!("Invalid request. The next byte is {known}.")));
        }
        let fresh = call.body.get(known - first..).unwrap_or_default();
        let taken = if total.is_some() { fresh.len() } else { fresh.len() / UNIT * UNIT };
        session.bytes.extend_from_slice(&fresh[..taken]);
    }
    let known = session.bytes.len();
    if total != Some(known) {
        return Ok(match known.checked_sub(1) {
            Some(last) => {
                (StatusCode::PERMANENT_REDIRECT, [(header::RANGE, format!("bytes=0-{last}"))]).into_response()
            }
            None => StatusCode::PERMANENT_REDIRECT.into_response(),
        });
    }
    let (target, bytes) = (session.target.clone(), std::mem::take(&mut session.bytes));
    session.is_done = true;
    drop(state);
    Ok(json_response(call.warehouse.buckets.put(&call.warehouse.clock, &target, bytes.into())?))
}

/// Gives up an upload.
pub(super) fn cancel(call: &Call) -> Response {
    let id = call.parameter("upload_id").unwrap_or_default();
    call.warehouse.buckets.lock().sessions.remove(id);
    // 499, as the service answers.
    StatusCode::from_u16(499).unwrap_or(StatusCode::NO_CONTENT).into_response()
}
