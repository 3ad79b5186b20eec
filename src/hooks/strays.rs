//! Finds what a command left behind outside of its process group (`setsid`), by a mark in its environment, and kills
//! it.
//!
//! Best effort, on Linux alone: a process that wiped its environment, or that runs as another user, is not found. Must
//! never signal a process that does not carry the mark: a number that was given to another process meanwhile is
//! noticed. Tested with real processes in `tests`.

/// How often the processes are looked through at most: one that forks while it is looked for is found the next time.
#[cfg(target_os = "linux")]
const PASSES_MAX: usize = 5;

/// Kills every process that carries this entry in its environment, `NAME=value`. Blocks for some milliseconds.
#[cfg(target_os = "linux")]
pub(super) fn kill_marked(mark: &[u8]) {
    for _ in 0..PASSES_MAX {
        let Ok(processes) = std::fs::read_dir("/proc") else { return };
        let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        if pids.filter(|pid| kill_if_marked(*pid, mark)).count() == 0 {
            return;
        }
    }
}

#[cfg(target_os = "linux")]
fn kill_if_marked(pid: i32, mark: &[u8]) -> bool {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    let Some(process) = Pid::from_raw(pid).filter(|pid| *pid != rustix::process::getpid()) else { return false };
    if !is_marked(pid, mark) {
        return false;
    }
    // The handle names one process for ever: if the mark is still there after it was opened, it is the marked one's.
    let Ok(handle) = pidfd_open(process, PidfdFlags::empty()) else { return false };
    is_marked(pid, mark) && pidfd_send_signal(&handle, Signal::KILL).is_ok()
}

#[cfg(target_os = "linux")]
fn is_marked(pid: i32, mark: &[u8]) -> bool {
    // A process that has ended but was not waited for has no environment any more.
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|env| env.split(|b| *b == 0).any(|entry| entry == mark))
}

/// Elsewhere nothing is looked for: the process group is all that can be ended.
#[cfg(not(target_os = "linux"))]
pub(super) fn kill_marked(_mark: &[u8]) {}
