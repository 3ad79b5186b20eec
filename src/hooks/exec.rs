//! A reconciler that is a command: started once per run, its exit status decides.
//!
//! Must never leave a process behind, wait beyond the run's time, or take a bad end for a good one. Tested with real
//! processes in `tests`; the table of exits stands in docs/reconcilers.md.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use super::HookError;
use super::command::{ExecSettings, Program};
use super::output::{Output, Stream};
use super::process::{Ended, Mark, Plan, Process, drain, feed};
use super::stop::Stop;
use super::text::{ERROR_BYTES_MAX, Secrets};
use super::wire::{Answer, Request, traceparent};
use crate::contract::{Action, Failure, Reconciler, Run};

/// Exit statuses that are for good: bad data (EX_DATAERR) and bad configuration (EX_CONFIG) of sysexits.
const FOR_GOOD: [i32; 2] = [65, 78];

/// A reconciler that runs a command.
pub struct Exec {
    program: Program,
}

impl Exec {
    /// Makes the reconciler; whether the program is there is seen at each run.
    ///
    /// # Errors
    /// A setting that cannot be used: an empty command, a name that is no variable's.
    pub fn new(settings: ExecSettings) -> Result<Self, HookError> {
        Ok(Self { program: Program::new(settings)? })
    }

    fn outcome(&self, ended: Ended<Stop>, errors: &str, secrets: &Secrets) -> Result<Action, Failure> {
        let shown = self.program.shown();
        let separator = if errors.is_empty() { "" } else { ": " };
        if let Some(stop) = ended.stopped {
            return Err(Failure::transient(format_args!("{shown}: {stop}{separator}{errors}")));
        }
        let status = match ended.finished.status {
            Ok(status) => status,
            Err(error) => return Err(Failure::transient(format_args!("{shown}: its exit status is unknown: {error}"))),
        };
        if !status.success() {
            let message = format!("{shown} {}{separator}{errors}", how_it_ended(status));
            let for_good = status.code().is_some_and(|code| FOR_GOOD.contains(&code));
            return Err(if for_good { Failure::terminal(message) } else { Failure::transient(message) });
        }
        let refused = |reason: String| {
            let reason = secrets.clean(&reason, ERROR_BYTES_MAX);
            Failure::transient(format_args!("{shown} ended well, but its answer cannot be used: {reason}"))
        };
        match ended.finished.answer.map_err(refused)? {
            None => Ok(Action::done()),
            Some(answer) => Answer::parse(&answer).map_err(|error| refused(error.to_string()))?.outcome(secrets),
        }
    }
}

impl Reconciler for Exec {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let request = Request::of(run);
        let input = request.to_json()?;
        let mut command = self.program.command();
        describe_run(&mut command, run, &request);
        let plan = Plan { command, mark: Mark::AnswerFile("EVENKEEL_ANSWER"), stdin: true };
        // A command that is starting gets its SIGTERM and its grace too; only a start that hangs is given up.
        let given_up = async {
            let stop = Stop::of(run).await;
            tokio::time::sleep(self.program.term_grace).await;
            stop
        };
        let started = tokio::select! {
            biased;
            started = Process::start(plan) => started,
            stop = given_up => return Err(Failure::transient(format_args!("{}: {stop}", self.program.shown()))),
        };
        let (process, pipes) = started.map_err(|error| Failure::transient(self.program.explain(&error)))?;
        let secrets = self.program.secrets();
        let mut out = Output::new(run.id(), Stream::Stdout, &secrets);
        let mut errors = Output::new(run.id(), Stream::Stderr, &secrets);
        let drained = async {
            tokio::join!(drain(pipes.stdout, |chunk| out.take(chunk)), drain(pipes.stderr, |chunk| errors.take(chunk)));
        };
        let fed = feed(pipes.stdin, input.as_bytes());
        let ended = process.supervise(fed, drained, Stop::of(run), self.program.term_grace).await;
        out.end();
        errors.end();
        self.outcome(ended, &errors.last_lines(), &secrets)
    }
}

/// What the command finds in its environment; every name is always set, so that `set -u` does no harm. TRACEPARENT
/// alone is absent without a trace, as its standard has it.
fn describe_run(command: &mut Command, run: &Run, request: &Request) {
    let timeout = request.timeout_seconds.map(|seconds| seconds.to_string()).unwrap_or_default();
    command
        .env("EVENKEEL_ID", &request.id)
        .env("EVENKEEL_KIND", run.kind())
        .env("EVENKEEL_NAME", &request.id)
        .env("EVENKEEL_NAMESPACE", "")
        .env("EVENKEEL_OPERATION", "reconcile")
        .env("EVENKEEL_ATTEMPT", request.attempt.to_string())
        .env("EVENKEEL_FENCING_TOKEN", &request.fencing_token)
        .env("EVENKEEL_TIMEOUT_SECONDS", timeout)
        .env("EVENKEEL_RUN", &request.run)
        .env("EVENKEEL_KEY", &request.key);
    if let Some(parent) = run.trace_context().and_then(traceparent) {
        command.env("TRACEPARENT", parent);
    }
}

/// How a command that did not end well ended.
pub(super) fn how_it_ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => format!("ended with {status}"),
    }
}
