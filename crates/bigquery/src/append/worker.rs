//! The loop behind an [`Appender`](super::Appender): one connection, a queue of parts of which the first ones are sent.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use googleapis_tonic_google_cloud_bigquery_storage_v1::google::cloud::bigquery::storage::v1 as pb;
use http::uri::PathAndQuery;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Duration, Instant, sleep_until};
use tonic::Status;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::part::{Open, Part};
use super::request::{AppendRequest, Outcome, ProtoData, ProtoSchema};
use super::{Acked, AppendOptions, Batch, Command, RowError};
use crate::backoff::Backoff;
use crate::descriptor::Descriptor;
use crate::stream::{RESPONSE_BYTES_MAX, Storage};
use crate::write_error::{WriteError, WriteErrorKind};

/// A connection that nothing is sent on looks so often whether others wait for it to be closed.
const IDLE_TICK: Duration = Duration::from_secs(1);

const APPEND: &str = "/google.cloud.bigquery.storage.v1.BigQueryWrite/AppendRows";

/// A connection, open or on its way to be.
struct Line {
    requests: mpsc::Sender<AppendRequest>,
    answers: BoxStream<'static, Result<pb::AppendRowsResponse, Status>>,
    /// Where the last request went to, and what its rows looked like.
    last: Option<(Arc<str>, Descriptor)>,
    /// It takes no more requests; why is still to be heard.
    is_closed: bool,
}

pub(super) struct Worker {
    storage: Storage,
    /// With offsets: the stream, and the offset of the first row in the queue.
    stream: Option<(Arc<str>, i64)>,
    options: AppendOptions,
    commands: mpsc::Receiver<Command>,
    line: Option<Line>,
    queue: VecDeque<Part>,
    /// How many parts at the queue's head are sent and not answered.
    sent: usize,
    /// Answers to come that mean nothing: they are to requests that are sent again.
    stale: usize,
    /// Batches that are not answered, by number.
    open: BTreeMap<u64, Open>,
    /// The number of the next batch.
    next: u64,
    /// Who waits for all batches below a number.
    flushes: VecDeque<(u64, oneshot::Sender<Result<Acked, WriteError>>)>,
    /// What was answered since the last flush.
    summary: Result<Acked, WriteError>,
    /// Nothing is sent before.
    hold: Option<Instant>,
    backoff: Backoff,
    /// Since when nothing succeeded.
    failing_since: Option<Instant>,
    /// When something was last sent or heard.
    active_at: Instant,
    /// Since when an answer is due.
    due_since: Instant,
    /// Why an appender of a stream takes nothing more.
    ended: Option<WriteError>,
}

enum Turn {
    Command(Option<Command>),
    Room(bool),
    Answer(Option<Result<pb::AppendRowsResponse, Status>>),
    Time,
}

async fn next_answer(
    answers: Option<&mut BoxStream<'static, Result<pb::AppendRowsResponse, Status>>>,
) -> Option<Result<pb::AppendRowsResponse, Status>> {
    match answers {
        Some(answers) => answers.next().await,
        None => std::future::pending().await,
    }
}

async fn has_room(requests: Option<&mpsc::Sender<AppendRequest>>) -> bool {
    match requests {
        Some(requests) => requests.reserve().await.is_ok(),
        None => std::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl Worker {
    pub(super) fn new(
        storage: Storage,
        stream: Option<(Arc<str>, i64)>,
        options: AppendOptions,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        Self {
            storage,
            stream,
            options,
            commands,
            line: None,
            queue: VecDeque::new(),
            sent: 0,
            stale: 0,
            open: BTreeMap::new(),
            next: 0,
            flushes: VecDeque::new(),
            summary: Ok(Acked::default()),
            hold: None,
            backoff: Backoff::new(),
            failing_since: None,
            active_at: Instant::now(),
            due_since: Instant::now(),
            ended: None,
        }
    }

    /// Until the appender is dropped.
    pub(super) async fn run(mut self) {
        loop {
            self.answer_flushes();
            let wants_to_send = self.wants_to_send();
            if wants_to_send && self.line.is_none() {
                self.line = Some(self.connect());
            }
            let time = self.next_time();
            let (requests, answers) = match &mut self.line {
                Some(line) => (Some(&line.requests), Some(&mut line.answers)),
                None => (None, None),
            };
            // Answers first: an error of the connection explains why it takes no more requests.
            let turn = tokio::select! {
                biased;
                answer = next_answer(answers) => Turn::Answer(answer),
                () = until(time) => Turn::Time,
                room = has_room(requests), if wants_to_send => Turn::Room(room),
                command = self.commands.recv() => Turn::Command(command),
            };
            match turn {
                Turn::Command(Some(command)) => self.take(command),
                Turn::Command(None) => return,
                Turn::Answer(Some(Ok(answer))) => self.answered(answer),
                Turn::Answer(Some(Err(status))) => self.lost(&status),
                Turn::Answer(None) => self.lost(&Status::unavailable("the connection was closed")),
                Turn::Room(false) => self.closed(),
                Turn::Room(true) => self.send(),
                Turn::Time => self.time_passed(),
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Flush { answer } => self.flushes.push_back((self.next, answer)),
            Command::Append { number, batch, room, answer } => {
                self.next = number + 1;
                let open = Open { parts_left: 0, acked: Acked::default(), answer, _room: room };
                self.open.insert(number, open);
                let foreign = self.stream.as_ref().is_some_and(|(stream, _)| *stream != batch.stream);
                if let Some(error) = self.ended.clone() {
                    self.fail_batch(number, error);
                } else if foreign {
                    let text =
                        format!("cannot append to {}: the appender is of another stream", batch.stream);
                    self.fail_batch(number, WriteError::new(WriteErrorKind::Invalid, text));
                } else {
                    self.enqueue(number, batch);
                }
            }
        }
    }

    fn enqueue(&mut self, number: u64, batch: Batch) {
        let Batch { stream, descriptor, rows } = batch;
        let max = self.options.request_bytes_max;
        let (mut first, mut parts, mut errors) = (0, 0, Vec::new());
        for rows in rows.split(max) {
            let count = rows.len();
            if rows.byte_len() > max {
                let message = format!("the row has {} bytes; a request takes {max}", rows.framed_len(0));
                errors.push(RowError { batch: number, index: first, message });
            } else {
                let part = Part::new(number, stream.clone(), descriptor.clone(), rows, first);
                self.queue.push_back(part);
                parts += 1;
            }
            first += count;
        }
        if let Some(open) = self.open.get_mut(&number) {
            open.parts_left = parts;
            open.acked.row_errors = errors;
        }
        if parts == 0 {
            self.finish_batch(number);
        }
    }

    fn wants_to_send(&self) -> bool {
        let Some(part) = self.queue.get(self.sent) else { return false };
        let is_closed = self.line.as_ref().is_some_and(|line| line.is_closed);
        if is_closed || self.hold.is_some() || self.stale > 0 || self.sent >= self.options.requests_max {
            return false;
        }
        // A stream with offsets gets rows of another shape on another connection, as the service may ignore a later schema.
        let last = self.line.as_ref().and_then(|line| line.last.as_ref());
        let other_shape = last.is_some_and(|(_, descriptor)| *descriptor != part.descriptor);
        !(self.stream.is_some() && other_shape && self.sent > 0)
    }

    fn connect(&self) -> Line {
        // A little ahead of the connection, so that it does not wait for this task.
        let (requests, mut receiver) = mpsc::channel(2);
        let storage = self.storage.clone();
        let stream = self.queue.get(self.sent).map(|part| part.stream.clone()).unwrap_or_default();
        // Some servers answer nothing before the first request, so that it is sent while the connection is opened.
        let open = async move {
            let requests = stream::poll_fn(move |cx| receiver.poll_recv(cx));
            let line = storage.line().await?;
            let request = storage.request(requests, "write_stream", &stream).await?;
            let mut service =
                Grpc::new(storage.stream_channel()).max_decoding_message_size(RESPONSE_BYTES_MAX);
            service.ready().await.map_err(|e| Status::from_error(e.into()))?;
            let codec = ProstCodec::<AppendRequest, pb::AppendRowsResponse>::default();
            let answer = service.streaming(request, PathAndQuery::from_static(APPEND), codec).await?;
            // It counts until its answers are no longer listened to.
            Ok::<_, Status>(answer.into_inner().inspect(move |_| _ = &line))
        };
        Line { requests, answers: stream::once(open).try_flatten().boxed(), last: None, is_closed: false }
    }

    /// Sends the next part.
    fn send(&mut self) {
        let before: usize = self.queue.iter().take(self.sent).map(|part| part.rows.len()).sum();
        let offset = self.stream.as_ref().map(|(_, first)| first + before as i64);
        let (Some(part), Some(line)) = (self.queue.get_mut(self.sent), &mut self.line) else { return };
        let is_first = line.last.is_none();
        let same = line.last.as_ref().is_some_and(|(s, d)| *s == part.stream && *d == part.descriptor);
        if self.stream.is_some() && !is_first && !same {
            // Nothing is on its way: it begins on a connection of its own.
            self.line = None;
            return;
        }
        let writer_schema = (!same).then(|| ProtoSchema { descriptor: part.descriptor.bytes().clone() });
        let request = AppendRequest {
            write_stream: part.stream.to_string(),
            offset,
            data: Some(ProtoData { writer_schema, rows: part.rows.bytes().clone() }),
            trace_id: if is_first { self.options.trace_id.clone() } else { String::new() },
        };
        if line.requests.try_send(request).is_err() {
            // Only a connection that ends has no room now; its end is told by itself.
            return;
        }
        if !same {
            line.last = Some((part.stream.clone(), part.descriptor.clone()));
        }
        self.active_at = Instant::now();
        if self.sent == 0 {
            self.due_since = self.active_at;
        }
        self.sent += 1;
    }

    fn closed(&mut self) {
        self.due_since = Instant::now();
        if let Some(line) = &mut self.line {
            line.is_closed = true;
        }
    }

    /// Whether the connection owes something.
    fn is_due(&self) -> bool {
        self.sent > 0 || self.stale > 0 || self.line.as_ref().is_some_and(|line| line.is_closed)
    }

    fn answered(&mut self, answer: pb::AppendRowsResponse) {
        self.active_at = Instant::now();
        self.due_since = self.active_at;
        if self.stale > 0 {
            self.stale -= 1;
            return;
        }
        if self.sent == 0 {
            self.lost(&Status::internal("an answer came to no request"));
            return;
        }
        if let Some(part) = self.queue.pop_front() {
            self.sent -= 1;
            let outcome = Outcome::of(&part.stream, answer);
            self.settle(part, outcome);
        }
    }

    /// What was at the queue's head, and sent, has its answer.
    fn settle(&mut self, mut part: Part, outcome: Outcome) {
        match outcome {
            Outcome::Written { updated } => {
                if let (Some(fields), Some(open)) = (updated, self.open.get_mut(&part.batch)) {
                    open.acked.update(&part.stream, fields);
                }
                self.written(&part);
            }
            Outcome::BadRows(bad) => {
                self.succeeded();
                let mut errors = Vec::new();
                if !part.drop_rows(bad, &mut errors) {
                    let text = format!(
                        "cannot append to {}: the service refuses rows that it was not sent",
                        part.stream
                    );
                    self.fail(&part, WriteError::new(WriteErrorKind::Invalid, text));
                    return;
                }
                if let Some(open) = self.open.get_mut(&part.batch) {
                    open.acked.row_errors.append(&mut errors);
                }
                self.again(part);
            }
            Outcome::Failed(error) => self.failed(part, error),
        }
    }

    fn failed(&mut self, part: Part, error: WriteError) {
        let first = self.stream.as_ref().map(|(_, first)| *first);
        match (error.kind(), first) {
            (WriteErrorKind::AlreadyExists, Some(first)) => {
                let end = first + part.rows.len() as i64;
                // Where the service tells its end, this has to be behind the part.
                if part.is_again && error.expected_offset().is_none_or(|expected| expected >= end) {
                    self.written(&part);
                } else {
                    self.fail(&part, error);
                }
            }
            // Everything before it was acknowledged. A server that does not know so yet may learn it; one that is sure has lost it.
            (WriteErrorKind::OutOfRange, Some(first))
                if error.expected_offset().is_none_or(|expected| expected >= first) =>
            {
                self.retry(part, error);
            }
            (WriteErrorKind::Transient, _) => self.retry(part, error),
            _ => self.fail(&part, error),
        }
    }

    fn written(&mut self, part: &Part) {
        self.succeeded();
        let mut last_offset = None;
        if let Some((_, first)) = &mut self.stream {
            *first += part.rows.len() as i64;
            last_offset = Some(*first - 1);
        }
        let Some(open) = self.open.get_mut(&part.batch) else { return };
        open.acked.last_offset = open.acked.last_offset.max(last_offset);
        open.parts_left -= 1;
        if open.parts_left == 0 {
            self.finish_batch(part.batch);
        }
    }

    fn succeeded(&mut self) {
        self.failing_since = None;
        self.backoff.reset();
    }

    /// Sends a part again, after a while, and everything behind it: on a connection of its own, as one that refused the request with the
    /// rows' schema does not know it for those that came after.
    fn retry(&mut self, mut part: Part, error: WriteError) {
        part.is_again = true;
        self.line = None;
        self.mark_again();
        (self.sent, self.stale) = (0, 0);
        self.queue.push_front(part);
        self.wait(error);
    }

    /// Sends what is left of a part.
    fn again(&mut self, part: Part) {
        if !part.rows.is_empty() {
            self.requeue(part);
            return;
        }
        let number = part.batch;
        self.rewind();
        let Some(open) = self.open.get_mut(&number) else { return };
        open.parts_left -= 1;
        if open.parts_left == 0 {
            self.finish_batch(number);
        }
    }

    fn requeue(&mut self, part: Part) {
        self.rewind();
        let place = self.sent.min(self.queue.len());
        self.queue.insert(place, part);
    }

    /// With offsets, what was sent behind a part that was not written is not written either: it is sent again, at other offsets maybe.
    fn rewind(&mut self) {
        if self.stream.is_some() {
            self.mark_again();
            self.stale += self.sent;
            self.sent = 0;
        }
    }

    fn mark_again(&mut self) {
        self.queue.iter_mut().take(self.sent).for_each(|part| part.is_again = true);
    }

    fn wait(&mut self, error: WriteError) {
        let now = Instant::now();
        let since = *self.failing_since.get_or_insert(now);
        if now - since > self.options.patience {
            self.give_up(&error);
            return;
        }
        tracing::debug!("{error}; trying again");
        self.hold = Some(now + self.backoff.wait());
    }

    /// The connection ended; an error tells about the oldest request that it did not answer.
    fn lost(&mut self, status: &Status) {
        self.line = None;
        self.mark_again();
        let was_stale = std::mem::take(&mut self.stale) > 0;
        self.sent = 0;
        let open = &self.open;
        self.queue.retain(|part| open.contains_key(&part.batch));
        let Some(stream) = self.queue.front().map(|part| part.stream.clone()) else {
            // Nobody waits: a connection that nothing is sent on is closed by the service.
            tracing::debug!(code = ?status.code(), "a connection without requests was closed");
            return;
        };
        let error = WriteError::of_status("append to", &stream, status);
        // The end of an idle connection can have the code of rows that are there already. Only an answer that tells the stream's end
        // is taken for that; else the rows are sent again, and their own answer decides.
        let is_vague = error.kind() == WriteErrorKind::AlreadyExists && error.expected_offset().is_none();
        if error.is_transient() || was_stale || is_vague {
            self.wait(error);
            return;
        }
        // Also if it was not sent: then the connection could not be opened for it.
        if let Some(part) = self.queue.pop_front() {
            self.failed(part, error);
        }
    }

    /// A part will never be written.
    fn fail(&mut self, part: &Part, error: WriteError) {
        if self.stream.is_some() {
            self.ended = Some(error.clone());
            self.fail_batch(part.batch, error.clone());
            self.give_up(&error);
        } else {
            // Requests that were sent behind it count on a schema that it may have been the one to bring.
            self.line = None;
            self.mark_again();
            (self.sent, self.stale) = (0, 0);
            self.fail_batch(part.batch, error);
        }
    }

    /// Nothing of what is waiting will be written, as far as anybody knows.
    fn give_up(&mut self, error: &WriteError) {
        if self.stream.is_some() {
            self.ended = Some(error.clone());
        }
        self.line = None;
        self.queue.clear();
        (self.sent, self.stale) = (0, 0);
        self.failing_since = None;
        let numbers: Vec<u64> = self.open.keys().copied().collect();
        for number in numbers {
            self.fail_batch(number, error.clone());
        }
    }

    fn fail_batch(&mut self, number: u64, error: WriteError) {
        let Some(open) = self.open.remove(&number) else { return };
        let mut place = 0;
        let sent = self.sent;
        // Its parts that are sent keep their places: answers come in order.
        self.queue.retain(|part| {
            place += 1;
            place <= sent || part.batch != number
        });
        if self.summary.is_ok() {
            self.summary = Err(error.clone());
        }
        // Nobody may listen.
        let _ = open.answer.send(Err(error));
    }

    fn finish_batch(&mut self, number: u64) {
        let Some(mut open) = self.open.remove(&number) else { return };
        open.acked.row_errors.sort_by_key(|error| error.index);
        if let Ok(summary) = &mut self.summary {
            summary.merge(&open.acked);
        }
        let _ = open.answer.send(Ok(open.acked));
    }

    fn answer_flushes(&mut self) {
        let oldest = self.open.first_key_value().map_or(self.next, |(&number, _)| number);
        while let Some((below, _)) = self.flushes.front() {
            if *below > oldest {
                return;
            }
            let next = self.ended.clone().map_or(Ok(Acked::default()), Err);
            if let Some((_, answer)) = self.flushes.pop_front() {
                let _ = answer.send(std::mem::replace(&mut self.summary, next));
            }
        }
    }

    /// When time alone changes something.
    fn next_time(&self) -> Option<Instant> {
        let due = self.is_due().then(|| self.due_since + self.options.answer_timeout);
        let is_idle = self.line.is_some() && self.queue.is_empty() && !self.is_due();
        let tick = if self.storage.lines_are_wanted() { Duration::ZERO } else { IDLE_TICK };
        let idle = is_idle.then(|| (self.active_at + self.options.idle).min(Instant::now() + tick));
        [self.hold, due, idle].into_iter().flatten().min()
    }

    fn time_passed(&mut self) {
        let now = Instant::now();
        if self.hold.is_some_and(|at| at <= now) {
            self.hold = None;
        }
        if self.is_due() {
            if self.due_since + self.options.answer_timeout <= now {
                self.lost(&Status::unavailable("no answer came in time"));
            }
        } else if self.queue.is_empty()
            && (self.active_at + self.options.idle <= now || self.storage.lines_are_wanted())
        {
            self.line = None;
        }
    }
}
