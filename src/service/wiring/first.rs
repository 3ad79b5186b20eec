//! As process 1, which it is in a container: starts the controller as its child, passes signals on, and reaps what
//! others leave behind (B27).
//!
//! The kernel gives process 1 no default action for a signal and every orphan for a child: commands whose children
//! outlive them would fill the table of processes with zombies. Must never do anything else, so that nothing can go
//! wrong with it. Tested in `tests/it/run_signals.rs`.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

/// What is passed on.
const PASSED_ON: [Signal; 5] = [Signal::TERM, Signal::INT, Signal::USR1, Signal::HUP, Signal::QUIT];

/// Whether this process is the first one.
#[must_use]
pub fn is_first() -> bool {
    getpid().is_init()
}

/// Runs this program again with the same arguments, as a child; gives its exit code once it has ended.
///
/// # Errors
/// It cannot be started.
///
/// # Cancel safety
/// Not meant to be dropped: the child would go on.
pub async fn run_as_child() -> anyhow::Result<ExitCode> {
    let mut ended = signal(SignalKind::child()).context("cannot listen to the end of children")?;
    let (send, mut passed) = tokio::sync::mpsc::channel(16);
    for which in PASSED_ON {
        let mut heard = signal(SignalKind::from_raw(which.as_raw())).context("cannot listen to signals")?;
        let send = send.clone();
        tokio::spawn(async move { while heard.recv().await.is_some() && send.send(which).await.is_ok() {} });
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    // In a group of its own, so that a terminal's Ctrl-C reaches it once, from here.
    let child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .process_group(0)
        .spawn()
        .context("cannot start the controller")?;
    let child = Pid::from_child(&child);
    loop {
        tokio::select! {
            _ = ended.recv() => {
                if let Some(status) = reap(child) {
                    return Ok(code(status));
                }
            }
            Some(signal) = passed.recv() => {
                // It fails only where the child has just ended; that is heard next.
                let _ = kill_process(child, signal);
            }
        }
    }
}

/// Reaps everything that has ended; gives the child's status if it is among it.
fn reap(child: Pid) -> Option<WaitStatus> {
    let mut found = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => found = Some(status),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return found,
        }
    }
}

/// The exit code as a shell gives it.
fn code(status: WaitStatus) -> ExitCode {
    let by_signal = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(by_signal).and_then(|code| u8::try_from(code).ok());
    ExitCode::from(code.unwrap_or(1))
}
