//! What people ask for: cancel and redrive (C1, C2, X1).

use super::{Flags, ParkReason, Seat, Shard, Slot, State};
use crate::id::{Receipt, SourceId};
use crate::scheduler::command::{CancelCause, Command};
use crate::scheduler::entry::Priority;
use crate::scheduler::time::Time;

/// What a cancel did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelAnswer {
    /// Its run was told to stop; it will be parked.
    Stopping,
    /// It waited, and is parked now.
    Parked,
    /// It was parked already.
    AlreadyParked,
    /// Nothing was owed.
    Idle,
    /// No more ids can be parked.
    Full,
}

impl Shard {
    /// Ends the run of an id, or its wait, and parks it as a give-up does (C2).
    pub fn handle_cancel(&mut self, now: Time, id: &str, out: &mut Vec<Command>) -> CancelAnswer {
        let Some(slot) = self.entry_of(id) else { return CancelAnswer::Idle };
        match self.slab[slot].state {
            State::Free | State::Idle => CancelAnswer::Idle,
            State::Parked => CancelAnswer::AlreadyParked,
            State::Running if !self.may_park(slot) => CancelAnswer::Full,
            State::Running => {
                let entry = &mut self.slab[slot];
                entry.flags.set(Flags::PARK_ON_END);
                // From here on only what comes after the cancel counts.
                entry.flags.clear(Flags::AFTER_CANCEL);
                entry.priority = Priority::Resync;
                self.stop_run(slot, CancelCause::Asked, out);
                CancelAnswer::Stopping
            }
            State::Pending | State::Delayed if !self.may_park(slot) => CancelAnswer::Full,
            State::Pending | State::Delayed => {
                self.leave(slot);
                let causes = self.marks.causes(&self.slab[slot], slot);
                self.park(slot, ParkReason::Cancelled, &causes, out);
                self.hold(now, slot);
                CancelAnswer::Parked
            }
        }
    }

    /// Releases a parked id with a fresh count; `false` if it is not parked, or the shard drains: then it is parked in
    /// the next term too.
    pub fn handle_redrive(&mut self, now: Time, id: &str) -> bool {
        let Some(slot) = self.entry_of(id).filter(|slot| self.is_releasable(*slot)) else { return false };
        self.redrive(now, slot);
        true
    }

    /// Releases the parked ids for which `wanted` holds, looking at no more than `look_max` places from `after` on.
    /// Gives the place to go on from and the ids that were released.
    pub fn handle_redrive_matching(
        &mut self,
        now: Time,
        after: Option<Slot>,
        look_max: usize,
        mut wanted: impl FnMut(&str) -> bool,
    ) -> (Option<Slot>, Vec<std::sync::Arc<str>>) {
        let (first, end) = self.places_from(after, look_max);
        let mut released = Vec::new();
        for slot in (first..end).map(Slot) {
            if self.is_releasable(slot) && wanted(self.slab[slot].name()) {
                released.extend(self.slab[slot].id.clone());
                self.redrive(now, slot);
            }
        }
        ((end < self.slab.places()).then(|| Slot(end - 1)), released)
    }

    fn is_releasable(&self, slot: Slot) -> bool {
        self.slab[slot].state == State::Parked && !self.draining
    }

    fn redrive(&mut self, now: Time, slot: Slot) {
        self.leave(slot);
        self.start_anew(slot);
        // What it was owed for goes on, and with it the key of its runs.
        let redrive = Receipt::new(SourceId::REDRIVE, self.runs);
        let entry = &mut self.slab[slot];
        self.marks.add_cause(entry, slot, redrive);
        self.sit(slot, Seat::Admitted);
        self.enter_pending(now, slot, Priority::Event);
    }
}
