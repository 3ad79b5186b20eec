//! Reaps what commands leave behind where this process inherits it: as PID 1 of a container.
//!
//! A process whose parent has ended becomes a child of PID 1. If PID 1 never waits for it, it stays a zombie and keeps
//! its number. Must never take the status of a child that is waited for here: such children are written down while no
//! pass is under way. Anywhere but as PID 1 all of this does nothing. Tested below, and in a container by `make
//! deploy-test` (B27).

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, WaitOptions, getpid, waitpid};

/// The children that somebody here waits for.
static AWAITED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Whether other processes' orphans become this process's children.
#[must_use]
pub fn inherits_orphans() -> bool {
    getpid().is_init()
}

/// Waits for every orphan that has ended. Blocks for some milliseconds; meant to be called after SIGCHLD.
pub fn reap_orphans() {
    if !inherits_orphans() {
        return;
    }
    let awaited = awaited();
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    for pid in processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let Some(process) = Pid::from_raw(pid).filter(|_| !awaited.contains(&pid)) else { continue };
        if std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_own_zombie(&stat)) {
            // It fails only where it has been waited for meanwhile.
            let _ = waitpid(Some(process), WaitOptions::NOHANG);
        }
    }
}

/// Starts a command whose end will be waited for here.
///
/// # Errors
/// It was not started.
pub(super) fn spawn(command: &mut Command) -> io::Result<Child> {
    if !inherits_orphans() {
        return command.spawn();
    }
    let mut awaited = awaited();
    let child = command.spawn()?;
    awaited.insert(Pid::from_child(&child).as_raw_nonzero().get());
    Ok(child)
}

/// This child has been waited for; its number may be another's.
pub(super) fn waited_for(child: Pid) {
    if inherits_orphans() {
        awaited().remove(&child.as_raw_nonzero().get());
    }
}

fn awaited() -> MutexGuard<'static, BTreeSet<i32>> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the state and the parent behind the name, which may hold anything.
fn is_own_zombie(stat: &str) -> bool {
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_ascii_whitespace();
    let (state, parent) = (fields.next(), fields.next());
    state == Some("Z") && parent.and_then(|pid| pid.parse().ok()) == Some(getpid().as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b27_a_zombie_is_told_by_state_and_parent_whatever_its_name_is() {
        let me = getpid().as_raw_nonzero();
        assert!(is_own_zombie(&format!("7 (sleep) Z {me} 7 7 0 -1")));
        assert!(is_own_zombie(&format!("7 (a) S 1 (b) Z {me} 7 7")));
        assert!(!is_own_zombie(&format!("7 (sleep) S {me} 7 7 0 -1")));
        assert!(!is_own_zombie(&format!("7 (a) Z {me} ) Z {}", me.get() + 1)));
        for broken in ["", "7", "7 (sleep", "7 (sleep)", "7 (sleep) Z", "7 (sleep) Z x"] {
            assert!(!is_own_zombie(broken), "{broken}");
        }
    }

    #[test]
    fn anywhere_else_nothing_is_written_down() {
        let mut child = spawn(&mut Command::new("true")).unwrap();
        assert!(!inherits_orphans() && awaited().is_empty());
        reap_orphans();
        assert!(child.wait().unwrap().success(), "reaping");
    }
}
