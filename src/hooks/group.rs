//! A process group that can be signalled at any time without hitting a stranger.
//!
//! The group is known by the number of its leader. As long as the leader has not been reaped, its number cannot go to
//! another process; so the group is closed before its leader is reaped, and a closed group is never signalled. Tested
//! with real processes in `tests`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// A process group from before its start to its end. Signals to it reach nobody else.
pub(super) struct Group(Mutex<State>);

#[derive(Clone, Copy)]
enum State {
    /// Not started yet.
    Starting,
    /// Not started yet, and not wanted any more.
    Abandoned,
    /// The leader has not been reaped, so its number is its own.
    Running(Pid),
    /// Killed; its number may be another's.
    Closed,
}

impl Group {
    /// A group that is about to be started.
    pub(super) const fn new() -> Self {
        Self(Mutex::new(State::Starting))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals every process of the group, if it runs.
    pub(super) fn signal(&self, signal: Signal) {
        signal_group(*self.state(), signal);
    }

    /// The leader runs; if nobody wants it any more, the group is killed.
    pub(super) fn started(&self, leader: Pid) {
        let mut state = self.state();
        let wanted = matches!(*state, State::Starting);
        *state = State::Running(leader);
        if !wanted {
            signal_group(*state, Signal::KILL);
        }
    }

    /// Nobody wants it any more: kills the group, or sees that it is killed once it has started.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        match *state {
            State::Starting => *state = State::Abandoned,
            state => signal_group(state, Signal::KILL),
        }
    }

    /// Kills what is left. From now on nothing is signalled, so that the leader can be reaped.
    pub(super) fn close(&self) {
        let mut state = self.state();
        signal_group(*state, Signal::KILL);
        *state = State::Closed;
    }
}

fn signal_group(state: State, signal: Signal) {
    if let State::Running(leader) = state {
        // It fails only where nothing is left that could be signalled.
        let _ = kill_process_group(leader, signal);
    }
}
