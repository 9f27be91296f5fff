//! `emulator`: runs an emulator until SIGTERM or Ctrl-C.

use std::path::Path;

use millstream_emulator::pubsub::{Builder, Faults, Server};
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
use crate::arguments::{Emulator, PubsubEmulator};
use crate::output;

/// Runs it.
pub(crate) fn command(emulator: &Emulator) -> Result<(), Failure> {
    let Emulator::Pubsub(arguments) = emulator;
    let server = builder(arguments)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::Failed(format!("cannot start threads: {e}")))?;
    runtime.block_on(serve(server, arguments))
}

async fn serve(server: Builder, arguments: &PubsubEmulator) -> Result<(), Failure> {
    // Taken before anybody can know that it runs.
    let signals =
        signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
    let (mut terminate, mut interrupt) =
        signals.map_err(|e| Failure::Failed(format!("cannot listen for signals: {e}")))?;
    let listen = arguments.listen;
    let server = server.start().await;
    let server =
        server.map_err(|e| Failure::Failed(format!("the emulator cannot start on {listen}: {e}")))?;
    let address = server.address();
    if let Some(file) = &arguments.port_file {
        write_whole(file, &format!("{}\n", address.port()))
            .map_err(|e| Failure::Failed(format!("cannot write {}: {e}", file.display())))?;
    }
    output::print(&format!("Pub/Sub emulator on {address}\nPUBSUB_EMULATOR_HOST={address}\n"));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    server.stop().await;
    Ok(())
}

/// Whoever waits for the file never sees half of it.
fn write_whole(file: &Path, text: &str) -> std::io::Result<()> {
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".unfinished");
    std::fs::write(&unfinished, text)?;
    std::fs::rename(&unfinished, file)
}

fn builder(arguments: &PubsubEmulator) -> Result<Builder, Failure> {
    let full = |name: &str, kind: &str| {
        if name.contains('/') {
            name.to_owned()
        } else {
            format!("projects/{}/{kind}/{name}", arguments.project)
        }
    };
    let mut builder = Server::builder().listen(arguments.listen);
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

fn faults(text: &str) -> Result<Faults, Failure> {
    let file = Path::new(text);
    let text = if file.is_file() {
        std::fs::read_to_string(file).map_err(|e| Failure::Usage(format!("--faults {text}: {e}")))?
    } else {
        text.to_owned()
    };
    text.parse().map_err(|e| Failure::Usage(format!("--faults: {e}")))
}
