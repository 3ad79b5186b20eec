//! Errors as people see them, and exit codes.
//!
//! Must never count a reader that went away (`evenkeel … | head`) as a failure. Tested in `tests/it/cli.rs`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

use crate::service::config::ConfigError;

/// Wrong usage or config.
const USAGE: u8 = 2;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();

/// The command line cannot be meant, as only its verb can see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Prints what the parser of the command line says: its help, the version, or an error.
pub(super) fn parsed(answer: &clap::Error) -> ExitCode {
    match answer.print() {
        Err(e) if !is_closed_pipe(&e) => ExitCode::FAILURE,
        _ if answer.use_stderr() => ExitCode::from(USAGE),
        _ => ExitCode::SUCCESS,
    }
}

/// Prints an error and says its code.
pub(super) fn code(result: anyhow::Result<ExitCode>) -> ExitCode {
    let error = match result {
        Ok(code) => return code,
        Err(error) => error,
    };
    if error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_closed_pipe)) {
        return ExitCode::SUCCESS;
    }
    let is_usage = error.chain().any(|cause| cause.is::<ConfigError>() || cause.is::<UsageError>());
    let text = format!("{error:#}{}", hint(&error));
    let _ = writeln!(anstream::stderr(), "{ERROR}error:{ERROR:#} {text}");
    if is_usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

/// Prints what works and should yet be known.
pub(super) fn warn(text: impl std::fmt::Display) {
    // Nobody is left to be warned if standard error is closed.
    let _ = writeln!(anstream::stderr(), "{WARNING}warning:{WARNING:#} {text}");
}

fn hint(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref::<ConfigError>() {
        Some(ConfigError::NotFound { .. }) => {
            "\n  `evenkeel init hello` makes a small project in the folder hello; \
             --config FILE or EVENKEEL_CONFIG names another config"
        }
        _ => "",
    }
}

fn is_closed_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
