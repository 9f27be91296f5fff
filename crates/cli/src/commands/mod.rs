//! The commands, and how they end.

pub(crate) mod check;
pub(crate) mod dead_letters;
pub(crate) mod demo;
pub(crate) mod emulator;
pub(crate) mod explain;
pub(crate) mod operate;
pub(crate) mod query;
pub(crate) mod run;
pub(crate) mod sweep;
pub(crate) mod views;

use std::path::Path;
use std::process::ExitCode;

use millstream_core::Error;

use crate::arguments::Command;
use crate::config::Problems;
use crate::output;
use crate::plan::Plan;

/// Why a command did not end well.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It failed: exit code 1.
    Failed(String),
    /// It cannot be done like this: exit code 2.
    Usage(String),
    /// The config makes no sense: exit code 2.
    Config(Box<Problems>),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Failed(error.to_string())
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Failure::Config(Box::new(problems))
    }
}

impl Failure {
    /// Shows it on standard error.
    pub(crate) fn show(&self) {
        match self {
            Failure::Failed(message) | Failure::Usage(message) => eprintln!("error: {message}"),
            Failure::Config(problems) => eprint!("{}", problems.render(output::color())),
        }
    }

    /// Its exit code.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Failure::Failed(_) => ExitCode::from(1),
            Failure::Usage(_) | Failure::Config(_) => ExitCode::from(2),
        }
    }
}

/// Does what the command line asks.
pub(crate) fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run(run) => run::run(&run),
        Command::Check(check) => check::check(&check),
        Command::Demo(demo) => demo::demo(&demo),
        Command::Explain(explain) => explain::command(&explain),
        Command::Query(query) => query::command(&query),
        Command::Views(views) => views::command(&views),
        Command::Schema => {
            output::print(&crate::config::json_schema_text());
            Ok(())
        }
        Command::DeadLetters(dead_letters) => dead_letters::command(&dead_letters),
        Command::Sweep(sweep) => sweep::command(&sweep),
        Command::Savepoint(savepoint) => operate::savepoint(&savepoint),
        Command::Status(on) => operate::status(&on),
        Command::Drain(on) => operate::order(&on, operate::Order::Drain),
        Command::Cancel(on) => operate::order(&on, operate::Order::Cancel),
        Command::Pause(on) => operate::order(&on, operate::Order::Pause),
        Command::Resume(on) => operate::order(&on, operate::Order::Resume),
        Command::Emulator(emulator) => emulator::command(&emulator),
    }
}

/// The plan of a config file, with the process's environment filled in.
pub(crate) fn plan(file: &Path) -> Result<Plan, Failure> {
    Ok(Plan::read(file, &|name| std::env::var(name).ok())?)
}
