//! The `millstream` command: a config file becomes a validated plan, the plan's connectors come from the registry, and
//! the engine runs them. Everything else here asks about, explains or prepares such runs.

mod arguments;
mod check;
mod commands;
mod config;
mod control;
mod dead_letters;
mod demo;
mod discard;
mod doors;
mod explain;
mod memory;
mod output;
mod plan;
mod progress;
mod registry;
mod remote;
mod report;
mod sweeps;
mod world;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    memory::economize();
    let arguments = arguments::Arguments::parse();
    let filter =
        EnvFilter::try_from_env("MILLSTREAM_LOG").unwrap_or_else(|_| EnvFilter::new("warn,millstream=info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| progress::LogWriter)
        .with_ansi(output::color())
        .with_target(false)
        .init();
    match commands::execute(arguments.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.show();
            failure.code()
        }
    }
}
