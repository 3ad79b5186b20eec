//! The command line: what was typed, said back in an exit code (0 fine, 1 failed, 2 wrong usage or config).
//!
//! Must never panic on a closed pipe, and never take an id for an option. docs/cli.md is its manual. Tested in
//! `tests/it/cli.rs` through the binary.

mod args;
mod check;
mod document;
mod exit;
mod ids;
mod init;
mod partitioner;
mod publish;
mod run;
mod tree;
mod version;

use std::process::ExitCode;

use clap::Parser as _;

pub use args::{Color, GlobalArgs, Output, SERVER_DEFAULT};
pub use exit::UsageError;
pub use ids::read_ids;

use tree::{CheckArgs, Cli, Verb};

/// Runs what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return exit::parsed(&answer),
    };
    cli.global.apply_color();
    exit::code(dispatch(cli))
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let global = cli.global;
    match cli.verb {
        Verb::Run(config) => run::run(&config),
        Verb::Init(args) => init::init(&args),
        Verb::Check(CheckArgs { config, partitioner: Some(topic), .. }) => {
            partitioner::partitioner(&config, &topic, &global)
        }
        Verb::Check(args) => check::check(&args, &global),
        Verb::Config { what } => document::config(what),
        Verb::Completions { shell } => document::completions(shell),
        Verb::Man { dir } => document::man(dir.as_deref()),
        Verb::Publish(args) => publish::publish(&args),
        Verb::Client(verb) => block_on(verb.run(&global)),
    }
}

/// Runs a verb that waits, on a runtime of one thread.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
