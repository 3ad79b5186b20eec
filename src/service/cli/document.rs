//! What the program says about itself: config reference and example, completions, man pages.
//!
//! Must never write piece by piece, since the libraries panic where a reader has gone away. Tested in
//! `tests/it/cli.rs`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use super::tree::{Cli, ConfigVerb};
use crate::service::config;

/// Prints the reference or the example of the config.
pub(super) fn config(what: ConfigVerb) -> anyhow::Result<ExitCode> {
    match what {
        ConfigVerb::Example => print(config::example().as_bytes()),
        ConfigVerb::Reference => print(config::reference().as_bytes()),
    }
}

/// Prints the completions of a shell.
pub(super) fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "evenkeel", &mut text);
    print(&text)
}

/// Prints the man page, or writes those of all verbs into a folder.
pub(super) fn man(dir: Option<&Path>) -> anyhow::Result<ExitCode> {
    let mut command = Cli::command();
    command.build();
    match dir {
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(command).render(&mut text)?;
            print(&text)
        }
        Some(dir) => {
            write_pages(&command, dir)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn write_pages(command: &clap::Command, dir: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let file = dir.join(format!("{name}.1"));
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help") {
        write_pages(verb, dir)?;
    }
    Ok(())
}

fn print(text: &[u8]) -> anyhow::Result<ExitCode> {
    let mut out = anstream::stdout();
    out.write_all(text)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
