//! Asking a running pipeline: one JSON object a line over a Unix-domain socket in the checkpoint's folder, one answer a
//! line. Only the file's owner may connect. Whoever can read the socket may do everything, so the socket is 0600.
//!
//! Limits: requests are at most 1 MiB; one connection asks one thing at a time.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::{Error, Result};
use millstream_engine::Phase;
use millstream_server::Pipeline;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::commands::query::Form;
use crate::dead_letters::{Desk, LetterId};
use crate::explain::{Checkpointed, Explanation};
use crate::plan::Plan;
use crate::sweeps::{self, Chosen};
use crate::world::StateShelf;

pub(crate) const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Letters that one request names, so that the longest ids fit.
pub(crate) const LETTERS_PER_REQUEST: usize = 20_000;
/// Socket paths are at most 108 bytes on Linux and 104 on others.
const PATH_BYTES_MAX: usize = 100;

/// What can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Request {
    /// The pipeline's status.
    Status,
    /// Finish what is in flight and end.
    Drain,
    /// End now.
    Cancel,
    /// Stop taking records in.
    Pause,
    /// Go on.
    Resume,
    /// A named copy of the next checkpoint; answers with its path.
    Savepoint { name: String },
    /// Read-only SQL, through the process that holds the file.
    Query { sql: String, sink: Option<String>, form: Form },
    /// The SQL of the views.
    Views,
    /// Every event of a key.
    Explain { table: String, key: String },
    /// Replay dead letters, and those of the topic that were published before a time (ms); answers with how many of the
    /// folder's are now outstanding.
    Replay { letters: Vec<String>, topic_before_ms: Option<i64> },
    /// Sweep tables, all where none is named, of the rows before an incarnation; answers with their names when that is durable.
    Sweep { tables: Vec<String>, incarnation: u16 },
}

/// The socket of the pipeline with this checkpoint folder.
pub(crate) fn socket_path(directory: &Path) -> PathBuf {
    let path = directory.join("control.sock");
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return path;
    }
    // Too long for a socket: a short name for the same folder, the same for everyone who asks.
    let hash = millstream_core::PartitionId::new(&path.to_string_lossy()).stable_hash();
    std::env::temp_dir().join(format!("millstream-{hash:016x}.sock"))
}

/// Answers requests until dropped.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // A socket that stays behind is refused by connect and replaced by the next run.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What the server's answers need.
pub(crate) struct Asked {
    pub(crate) plan: Arc<Plan>,
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) desk: Arc<Desk>,
    pub(crate) shelf: Arc<StateShelf>,
}

impl Server {
    /// Listens. Must not be called while another run of the pipeline may hold the socket: the store's lock tells.
    pub(crate) fn start(asked: Asked) -> Result<Self> {
        let directory = &asked.plan.checkpoint.directory;
        let path = socket_path(directory);
        let failed =
            |e: std::io::Error| Error::fatal(format!("cannot listen on {}", path.display())).with_source(e);
        std::fs::create_dir_all(directory).map_err(failed)?;
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let asked = Arc::new(asked);
        let task = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(converse(stream, asked.clone()))),
                    Err(e) => {
                        tracing::warn!("cannot accept a control connection: {e}");
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                }
            }
        });
        Ok(Self { path, task })
    }
}

async fn converse(stream: UnixStream, asked: Arc<Asked>) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        match (&mut lines).take(REQUEST_BYTES_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let answer = match serde_json::from_slice(&line) {
            Ok(request) => answer(request, &asked).await,
            Err(e) => Err(Error::fatal(format!("not a request: {e}"))),
        };
        let answer = match answer {
            Ok(value) => json!({ "ok": value }),
            Err(e) => json!({ "error": e.to_string() }),
        };
        let mut text = answer.to_string();
        text.push('\n');
        if write.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn answer(request: Request, asked: &Arc<Asked>) -> Result<Value> {
    let handle = asked.pipeline.handle();
    match request {
        Request::Status => Ok(asked.pipeline.json()),
        Request::Drain => Ok(json!(handle.drain())),
        Request::Cancel => Ok(json!(handle.cancel())),
        Request::Pause => Ok(json!(handle.pause())),
        Request::Resume => Ok(json!(handle.resume())),
        Request::Savepoint { name } => Ok(json!({ "savepoint": handle.savepoint(&name).await? })),
        Request::Query { sql, sink, form } => {
            let plan = asked.plan.clone();
            blocking(move || Ok(json!(crate::commands::query::ask(&plan, sink.as_deref(), &sql, form)?)))
                .await
        }
        Request::Views => {
            let plan = asked.plan.clone();
            blocking(move || crate::commands::views::list(&plan)).await
        }
        Request::Explain { table, key } => {
            let plan = asked.plan.clone();
            let counters = handle.status().counters;
            let checkpoint = asked.shelf.view().map(|view| Checkpointed { view, counters });
            blocking(move || explain(&plan, &table, &key, checkpoint)).await
        }
        Request::Replay { letters, topic_before_ms } => {
            let ids: Result<Vec<LetterId>, String> = letters.iter().map(|id| id.parse()).collect();
            asked.desk.ask(ids.map_err(Error::fatal)?);
            if let Some(before_ms) = topic_before_ms {
                asked.desk.ask_topic(before_ms);
            }
            Ok(json!({ "outstanding": asked.desk.outstanding() }))
        }
        Request::Sweep { tables, incarnation } => sweep(asked, tables, incarnation).await,
    }
}

/// Sweeps, and waits for it: a sweep is forgotten with the process, so nothing less is an answer.
async fn sweep(asked: &Arc<Asked>, wanted: Vec<String>, incarnation: u16) -> Result<Value> {
    let plan = &asked.plan;
    // The config may have been changed since the run began.
    if incarnation != plan.incarnation {
        return Err(Error::fatal(format!(
            "the running pipeline has `incarnation: {}`, and the config says {incarnation}: end the run and start it again",
            plan.incarnation
        )));
    }
    sweeps::refuse_needless(plan)?;
    let handle = asked.pipeline.handle();
    if handle.status().phase == Phase::Paused {
        return Err(Error::fatal(format!(
            "{} is paused and takes nothing in: `millstream resume` it first",
            plan.pipeline
        )));
    }
    let (chooser, shelf) = (plan.clone(), asked.shelf.clone());
    let choose = move || {
        let view = shelf.view().ok_or_else(|| {
            Error::fatal("the pipeline is about to restart after a failure: ask again when it runs")
        })?;
        sweeps::choose(&chooser, &*view, &wanted)
    };
    let Chosen { tables, names } = blocking(choose).await?;
    asked.desk.sweeps.ask(&tables);
    tokio::select! {
        () = asked.desk.sweeps.done(&tables) => {}
        _ = handle.wait() => {
            if !asked.desk.sweeps.is_done(&tables) {
                return Err(Error::transient("the pipeline ended before the sweep was durable: ask again, a second sweep changes nothing"));
            }
        }
    }
    Ok(json!({ "swept": names }))
}

fn explain(plan: &Plan, table: &str, key: &str, checkpoint: Option<Checkpointed>) -> Result<Value> {
    let explanation = Explanation::of(plan, table, key, checkpoint.as_ref())?;
    serde_json::to_value(&explanation).map_err(|e| Error::fatal("the explanation is not JSON").with_source(e))
}

/// Runs work that blocks away from the pipeline's tasks.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(Error::fatal("the answer was lost: it panicked, or the pipeline is ending")),
    }
}

/// Asks the running pipeline with this checkpoint folder. `None` if none runs.
pub(crate) fn ask(directory: &Path, request: &Request) -> Result<Option<Value>> {
    use std::io::{BufRead, Write};
    let path = socket_path(directory);
    let failed = |e: std::io::Error| Error::transient("the running pipeline did not answer").with_source(e);
    let mut stream = match std::os::unix::net::UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(e)
            if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused) =>
        {
            return Ok(None);
        }
        Err(e) => {
            return Err(Error::fatal(format!("cannot ask the pipeline at {}", path.display())).with_source(e));
        }
    };
    let mut text =
        serde_json::to_string(request).map_err(|e| Error::fatal("the request is not JSON").with_source(e))?;
    text.push('\n');
    stream.write_all(text.as_bytes()).map_err(failed)?;
    let mut line = String::new();
    std::io::BufReader::new(stream).read_line(&mut line).map_err(failed)?;
    let mut answer: Value = serde_json::from_str(&line)
        .map_err(|e| Error::transient("the pipeline ended before it answered").with_source(e))?;
    match (answer.get_mut("ok").map(Value::take), answer["error"].as_str()) {
        (Some(value), _) => Ok(Some(value)),
        (None, Some(error)) => Err(Error::fatal(error)),
        (None, None) => Err(Error::fatal("the pipeline gave an answer that this version does not know")),
    }
}
