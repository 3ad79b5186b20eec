//! A command as the operator names it: an argument list (never a shell), a folder, and the few variables it may see.
//!
//! Must never pass on a variable that was not named, put anything of a run into an argument, or show an argument or a
//! variable's value in a message: both may hold secrets. Tested with real processes in `tests`.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::HookError;
use super::process::StartError;
use super::text::{ERROR_BYTES_MAX, Secrets, printable};

/// Variables that every command may see.
const ALWAYS: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];
/// What our own variables begin with.
const PREFIX: &str = "EVENKEEL_";
/// The value of a variable with one of these in its name is taken out of what the command says.
const SECRET_NAMES: [&str; 7] = ["PASS", "SECRET", "TOKEN", "KEY", "CREDENTIAL", "AUTH", "COOKIE"];
/// How long a command has between SIGTERM and SIGKILL by default: half of the default `cancel_grace`.
const TERM_GRACE_DEFAULT: Duration = Duration::from_secs(5);

/// A command and what it may see.
#[derive(Clone)]
#[non_exhaustive]
pub struct ExecSettings {
    /// The program and its arguments. A program with a `/` in it is looked for from `folder` on, else in PATH.
    pub argv: Vec<String>,
    /// The folder that it starts in.
    pub folder: PathBuf,
    /// Names of variables of this process that it may see, besides PATH, HOME, LANG and TZ.
    pub env: Vec<String>,
    /// How long it has between SIGTERM and SIGKILL when its time is over or its run is cancelled. It should be shorter
    /// than the engine's `cancel_grace`, after which it is killed anyway.
    pub term_grace: Duration,
}

impl std::fmt::Debug for ExecSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecSettings")
            .field("program", &self.argv.first())
            .field("folder", &self.folder)
            .field("env", &self.env)
            .field("term_grace", &self.term_grace)
            .finish_non_exhaustive()
    }
}

impl ExecSettings {
    /// A command that starts in this folder and sees no further variables.
    #[must_use]
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>, folder: impl Into<PathBuf>) -> Self {
        let argv = argv.into_iter().map(Into::into).collect();
        Self { argv, folder: folder.into(), env: Vec::new(), term_grace: TERM_GRACE_DEFAULT }
    }
}

/// A command that is ready to be started, any number of times.
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    env: Vec<String>,
    shown: String,
    pub(super) term_grace: Duration,
}

impl Program {
    /// Checks the settings. Whether the program is there is seen at its start: it may be deployed later.
    pub(super) fn new(settings: ExecSettings) -> Result<Self, HookError> {
        let refused = |what: &str| HookError::Command(what.to_owned());
        let Some((program, arguments)) = settings.argv.split_first().filter(|(program, _)| !program.is_empty()) else {
            return Err(refused("it is empty; name a program"));
        };
        if settings.argv.iter().any(|argument| argument.contains('\0')) {
            return Err(refused("it holds a zero byte"));
        }
        for name in &settings.env {
            check_name(name).map_err(|reason| HookError::Env(printable(name), reason))?;
        }
        let folder = std::path::absolute(&settings.folder)
            .map_err(|error| refused(&format!("its folder {}: {error}", settings.folder.display())))?;
        let path = if program.contains('/') { folder.join(program) } else { program.into() };
        Ok(Self {
            path,
            arguments: arguments.to_vec(),
            folder,
            env: settings.env,
            shown: printable(program),
            term_grace: settings.term_grace,
        })
    }

    /// The program as it may be shown: without its arguments.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// The command with nothing in its environment but what it may see.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).current_dir(&self.folder).env_clear();
        let names = ALWAYS.iter().copied().chain(self.env.iter().map(String::as_str));
        command.envs(names.filter_map(|name| Some((name, std::env::var_os(name)?))));
        command
    }

    /// What this process lets the command know that must not come back in what it says.
    pub(super) fn secrets(&self) -> Secrets {
        let mut secrets = Secrets::default();
        for name in self.env.iter().filter(|name| SECRET_NAMES.iter().any(|part| name.to_uppercase().contains(part))) {
            secrets.add(&std::env::var_os(name).unwrap_or(OsString::new()).to_string_lossy());
        }
        secrets
    }

    /// Why the command was not started, and what to do.
    pub(super) fn explain(&self, error: &StartError) -> String {
        let reason = match error {
            StartError::Folder(error) => {
                let folder = std::env::temp_dir();
                format!(
                    "no folder for its answer can be made in {}: {error}; is it full or read-only?",
                    folder.display()
                )
            }
            StartError::Resources(error) => format!("this process has no thread or pipe left for it: {error}"),
            StartError::Program(error) => self.explain_program(error),
        };
        Secrets::default().clean(&format!("cannot run {}: {reason}", self.shown), ERROR_BYTES_MAX)
    }

    fn explain_program(&self, error: &io::Error) -> String {
        let has_path = self.shown.contains('/');
        match error.kind() {
            ErrorKind::NotFound if !self.folder.is_dir() => {
                format!("its folder {} does not exist", self.folder.display())
            }
            ErrorKind::NotFound if has_path && self.path.exists() => {
                "the interpreter that its first line names does not exist; correct the line that begins with #!"
                    .to_owned()
            }
            ErrorKind::NotFound if has_path => {
                format!("{} does not exist; correct the config or put the program there", self.path.display())
            }
            ErrorKind::NotFound => "it is not in PATH; install it, or name it with its path".to_owned(),
            ErrorKind::PermissionDenied if has_path && Path::is_dir(&self.path) => "it is a folder".to_owned(),
            ErrorKind::PermissionDenied => {
                format!("it is not executable for this user; chmod +x {}", self.path.display())
            }
            ErrorKind::ExecutableFileBusy => "it is being written at this moment".to_owned(),
            _ if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
                "it is no program of this machine; a script needs a first line such as #!/bin/sh".to_owned()
            }
            _ => error.to_string(),
        }
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err("write the name of a variable alone, without = and a value");
    }
    if name.starts_with(PREFIX) {
        return Err("variables that begin with EVENKEEL_ are set for each run");
    }
    Ok(())
}
