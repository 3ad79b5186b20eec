//! Runs that must end: told to stop, cut off when they do not, reported when even that does not end them (C1, C4, D10).
//!
//! Must never make the liveness check fail before the attempt of a run that blocks its thread is recorded. Tested in
//! `tests/it/engine_results.rs` and `tests/it/engine_blocked.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ShardLoop;
use super::runs::Stuck;
use crate::contract::{CancelReason, Leadership};
use crate::engine::log;
use crate::scheduler::{CancelCause, Slot, Time};

/// Takes the entries of a queue whose time has come.
fn due(queue: &mut VecDeque<(Time, Slot, u64)>, now: Time) -> Option<(Slot, u64)> {
    let (_, slot, run) = *queue.front().filter(|(time, _, _)| *time <= now)?;
    queue.pop_front();
    Some((slot, run))
}

impl ShardLoop {
    /// The scheduler wants a run to stop.
    pub(super) fn cancel_run(&mut self, now: Time, slot: Slot, run: u64, cause: CancelCause) {
        let reason = match cause {
            CancelCause::Triggered => CancelReason::Triggered,
            CancelCause::Asked => CancelReason::Asked,
        };
        self.tell_to_stop(now, slot, run, reason);
    }

    fn tell_to_stop(&mut self, now: Time, slot: Slot, run: u64, reason: CancelReason) {
        let Some(active) = self.runs.active.get_mut(&slot.0).filter(|active| active.start.run == run) else { return };
        if active.reason.is_some() {
            return;
        }
        active.reason = Some(reason);
        let _ = active.signal.reason.set(reason);
        active.signal.token.cancel();
        let grace = self.shared.kinds[usize::from(active.start.kind)].options.cancel_grace;
        self.runs.graces.push_back((now.after(grace), slot, run));
    }

    /// Tells all runs to stop; gives the time at which they are cut off.
    pub(super) fn cancel_all(&mut self, now: Time, leadership: &Leadership) -> Time {
        let reason =
            if leadership.ending.is_cancelled() { CancelReason::LeadershipLost } else { CancelReason::Shutdown };
        let runs: Vec<(Slot, u64)> =
            self.runs.active.values().map(|active| (active.start.slot, active.start.run)).collect();
        for (slot, run) in runs {
            self.tell_to_stop(now, slot, run, reason);
        }
        now.after(self.shared.kinds.iter().map(|kind| kind.options.cancel_grace).max().unwrap_or_default())
    }

    /// Timeouts, cut-offs, and runs that nothing can stop.
    pub(super) fn check_deadlines(&mut self, now: Time) {
        for kind in 0..self.runs.deadlines.len() {
            // What has ended needs no deadline; only a long run keeps those behind it.
            while let Some((_, slot, run)) = self.runs.deadlines[kind].front().copied()
                && !self.runs.is_active(slot, run)
            {
                self.runs.deadlines[kind].pop_front();
            }
            while let Some((slot, run)) = due(&mut self.runs.deadlines[kind], now) {
                self.tell_to_stop(now, slot, run, CancelReason::Timeout);
            }
        }
        while let Some((slot, run)) = due(&mut self.runs.graces, now) {
            if let Some(active) = self.runs.active.get_mut(&slot.0).filter(|active| active.start.run == run) {
                active.cut = true;
                active.task.abort();
                self.runs.cuts.push_back((now.after(self.shared.patience.cut_off_max), slot, run));
            }
        }
        while let Some((slot, run)) = due(&mut self.runs.cuts, now) {
            match self.runs.active.get(&slot.0).filter(|active| active.start.run == run) {
                Some(active) if active.stuck.is_none() => self.run_is_stuck(now, slot),
                // Its record is not durable yet; that cannot be waited for any longer.
                Some(_) => self.say_stuck(slot),
                None => {}
            }
        }
    }

    /// The runs that a stop could not end.
    pub(super) fn record_stuck_runs(&mut self, now: Time) {
        let slots: Vec<Slot> =
            self.runs.active.values().filter(|active| active.stuck.is_none()).map(|active| active.start.slot).collect();
        for slot in slots {
            self.run_is_stuck(now, slot);
        }
    }

    /// A run blocks its thread: nobody can end it but the end of the process. Its attempt is recorded first (C4).
    fn run_is_stuck(&mut self, now: Time, slot: Slot) {
        let Some(active) = self.runs.active.get_mut(&slot.0) else { return };
        active.stuck = Some(Stuck { write: None, said: false });
        let (id, run) = (Arc::clone(&active.start.id), active.start.run);
        log::stuck(&self.shared, self.id, &id);
        let note = self.notes.entry(slot);
        note.stuck = note.stuck.saturating_add(1);
        note.error = Some(log::stuck_text(&id).into());
        let Some((_, write)) = self.core.record_now(&id, &mut self.commands) else { return self.say_stuck(slot) };
        if let Some(stuck) = self.runs.active.get_mut(&slot.0).and_then(|active| active.stuck.as_mut()) {
            stuck.write = Some(write);
        }
        self.runs.cuts.push_back((now.after(self.shared.patience.cut_off_max), slot, run));
    }

    /// Whether the run of this id blocks its thread.
    pub(super) fn is_stuck(&self, slot: Slot) -> bool {
        self.runs.active.get(&slot.0).is_some_and(|active| active.stuck.is_some())
    }

    /// A record is durable: if it is that of a run that blocks its thread, the process may be ended now.
    pub(super) fn recorded_stuck(&mut self, slot: Slot, write: u64) {
        let stuck = self.runs.active.get(&slot.0).and_then(|active| active.stuck.as_ref());
        if stuck.and_then(|stuck| stuck.write).is_some_and(|wanted| wanted <= write) {
            self.say_stuck(slot);
        }
    }

    /// Makes the liveness check fail, once.
    fn say_stuck(&mut self, slot: Slot) {
        let Some(active) = self.runs.active.get_mut(&slot.0) else { return };
        let Some(stuck) = active.stuck.as_mut().filter(|stuck| !stuck.said) else { return };
        stuck.said = true;
        let id = &active.start.id;
        self.shared.problems.set(log::stuck_key(id), log::stuck_text(id), true);
    }
}
