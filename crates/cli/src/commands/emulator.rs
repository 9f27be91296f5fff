//! `emulator`: runs an emulator until SIGTERM or Ctrl-C.

use std::path::Path;
use std::str::FromStr;

use millstream_bigquery_emulator as bigquery;
use millstream_emulator::pubsub;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;
use crate::arguments::{BigqueryEmulator, Emulator, PubsubEmulator};
use crate::output;

/// Runs it.
pub(crate) fn command(emulator: &Emulator) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::Failed(format!("cannot start threads: {e}")))?;
    match emulator {
        Emulator::Pubsub(arguments) => runtime.block_on(serve_pubsub(pubsub_builder(arguments)?, arguments)),
        Emulator::Bigquery(arguments) => {
            runtime.block_on(serve_bigquery(bigquery_builder(arguments)?, arguments))
        }
    }
}

/// SIGTERM and Ctrl-C, taken before anybody can know that it runs.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn take() -> Result<Self, Failure> {
        let taken =
            signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
        let (terminate, interrupt) =
            taken.map_err(|e| Failure::Failed(format!("cannot listen for signals: {e}")))?;
        Ok(Self { terminate, interrupt })
    }

    async fn wait(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn serve_pubsub(server: pubsub::Builder, arguments: &PubsubEmulator) -> Result<(), Failure> {
    let signals = Signals::take()?;
    let listen = arguments.listen;
    let server = server.start().await;
    let server =
        server.map_err(|e| Failure::Failed(format!("the emulator cannot start on {listen}: {e}")))?;
    let address = server.address();
    write_ports(arguments.port_file.as_deref(), &[address.port()])?;
    output::print(&format!("Pub/Sub emulator on {address}\nPUBSUB_EMULATOR_HOST={address}\n"));
    signals.wait().await;
    server.stop().await;
    Ok(())
}

async fn serve_bigquery(server: bigquery::Builder, arguments: &BigqueryEmulator) -> Result<(), Failure> {
    let signals = Signals::take()?;
    let server = server.start().await.map_err(|e| {
        let BigqueryEmulator { rest, grpc, .. } = arguments;
        let gcs = arguments.gcs();
        Failure::Failed(format!("the emulator cannot start on {rest}, {grpc} and {gcs}: {e}"))
    })?;
    let (rest, grpc, gcs) = (server.rest(), server.grpc(), server.gcs());
    write_ports(arguments.port_file.as_deref(), &[rest.port(), grpc.port(), gcs.port()])?;
    output::print(&format!(
        "BigQuery emulator: REST on {rest}, Storage Write on {grpc}, Cloud Storage on {gcs}\n\
         BIGQUERY_EMULATOR_HOST=http://{rest}\nBIGQUERY_STORAGE_EMULATOR_HOST={grpc}\nSTORAGE_EMULATOR_HOST=http://{gcs}\n"
    ));
    signals.wait().await;
    server.stop().await;
    Ok(())
}

/// Writes ports, a line each.
fn write_ports(file: Option<&Path>, ports: &[u16]) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    let text: String = ports.iter().map(|port| format!("{port}\n")).collect();
    write_whole(file, &text).map_err(|e| Failure::Failed(format!("cannot write {}: {e}", file.display())))
}

/// Whoever waits for the file never sees half of it.
fn write_whole(file: &Path, text: &str) -> std::io::Result<()> {
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".unfinished");
    std::fs::write(&unfinished, text)?;
    std::fs::rename(&unfinished, file)
}

fn pubsub_builder(arguments: &PubsubEmulator) -> Result<pubsub::Builder, Failure> {
    let full = |name: &str, kind: &str| {
        if name.contains('/') {
            name.to_owned()
        } else {
            format!("projects/{}/{kind}/{name}", arguments.project)
        }
    };
    let mut builder = pubsub::Server::builder().listen(arguments.listen);
    if let Some(data) = &arguments.data {
        builder = builder.data(data);
    }
    if let Some(text) = &arguments.faults {
        builder = builder.faults(faults(text)?);
    }
    for topic in &arguments.topics {
        builder = builder.topic(full(topic, "topics"));
    }
    for pair in &arguments.subscriptions {
        let (subscription, topic) = pair
            .split_once(':')
            .ok_or_else(|| Failure::Usage(format!("--subscription {pair}: write SUBSCRIPTION:TOPIC")))?;
        builder = builder.subscription(full(subscription, "subscriptions"), full(topic, "topics"));
    }
    Ok(builder)
}

fn bigquery_builder(arguments: &BigqueryEmulator) -> Result<bigquery::Builder, Failure> {
    let mut builder = bigquery::Server::builder()
        .rest(arguments.rest)
        .grpc(arguments.grpc)
        .gcs(arguments.gcs())
        .request_bytes(arguments.request_bytes)
        .schema_delay(arguments.schema_delay)
        .apply_delay(arguments.apply_delay)
        .require_routing(!arguments.no_routing);
    if let Some(data) = &arguments.data {
        builder = builder.data(data);
    }
    if let Some(text) = &arguments.faults {
        builder = builder.faults(faults(text)?);
    }
    for bucket in &arguments.buckets {
        let (name, location) = bucket.split_once('@').unwrap_or((bucket, "US"));
        builder = builder.bucket(name, location);
    }
    for dataset in &arguments.datasets {
        let (name, location) = dataset.split_once('@').unwrap_or((dataset, "US"));
        let (project, name) = name.rsplit_once(':').unwrap_or((&arguments.project, name));
        builder = builder.dataset(project, name, location);
    }
    Ok(builder)
}

fn faults<F: FromStr<Err = String>>(text: &str) -> Result<F, Failure> {
    let file = Path::new(text);
    let text = if file.is_file() {
        std::fs::read_to_string(file).map_err(|e| Failure::Usage(format!("--faults {text}: {e}")))?
    } else {
        text.to_owned()
    };
    text.parse().map_err(|e| Failure::Usage(format!("--faults: {e}")))
}
