//! What comes in: events, and time.

use super::{Flags, Mark, Priority, Seat, Shard, Slot, State};
use crate::id::{Causes, Receipt, SourceId};
use crate::scheduler::command::{Admission, Arrival, ArrivalClass, CancelCause, Command};
use crate::scheduler::settings::RESYNC_WAITING_MAX;
use crate::scheduler::time::Time;

/// Ids that come due in one call of `handle_time`, at most, so that a herd does not stop the loop.
const DUE_MAX: usize = 512;

impl Shard {
    /// An event: look at this id again (Q4).
    pub fn handle_event(&mut self, now: Time, event: &Arrival<'_>, out: &mut Vec<Command>) -> Admission {
        if self.draining {
            // Whoever offered it still has it, and a next term will get it.
            return Admission::Refused;
        }
        let hash = self.table.hash(event.id);
        let found = self.table.find(&self.slab, hash, event.id);
        // Capacity is looked at after dedup (Q5): an id that is owed a run already takes no place.
        let owed = found.is_some_and(|slot| !matches!(self.slab[slot].state, State::Idle | State::Parked));
        if !(owed || self.has_room()) || event.class == ArrivalClass::Resync && !self.admits_resync(found) {
            self.counters.refused += 1;
            return Admission::Refused;
        }
        let slot = found.unwrap_or_else(|| {
            let slot = self.slab.insert(event.id.into(), event.kind, event.worker);
            self.table.insert(hash, slot);
            slot
        });
        let is_new = found.is_none();
        if event.receipt.source.is_tracked() {
            self.marks.add(&mut self.slab, slot, event.receipt, out);
            self.hold(now, slot);
        }
        self.note_cause(slot, event.receipt);
        if owed {
            self.counters.present += 1;
            self.absorb(now, slot, event.class, out);
            return Admission::Present;
        }
        self.counters.admitted += 1;
        self.admit(now, slot, event.class, is_new);
        Admission::Admitted
    }

    /// Brings back what is due, at most a slice; call again while [`next_time`](Self::next_time) is not later than now.
    pub fn handle_time(&mut self, now: Time, out: &mut Vec<Command>) {
        for _ in 0..DUE_MAX {
            let Some(slot) = self.delayed.pop_due(&mut self.slab, now) else { break };
            self.come_due(now, slot);
        }
        self.delayed.advance(&mut self.slab, now);
        self.record_held(now, out);
    }

    /// Whether a resync may put this id into its queue, or would not put it there (Q6).
    fn admits_resync(&self, slot: Option<Slot>) -> bool {
        let stays = slot.map(|slot| &self.slab[slot]).is_some_and(|entry| match entry.state {
            State::Pending | State::Running => true,
            State::Delayed => entry.flags.has(Flags::RETRYING),
            State::Free | State::Idle | State::Parked => false,
        });
        stays || self.waiting_in(Priority::Resync) < RESYNC_WAITING_MAX
    }

    /// An id that was idle, parked or unknown is owed a run.
    pub(super) fn admit(&mut self, now: Time, slot: Slot, class: ArrivalClass, is_new: bool) {
        if !is_new {
            self.leave(slot);
        }
        self.sit(slot, Seat::Admitted);
        if self.slab[slot].parked.is_some() {
            if class == ArrivalClass::Resync {
                self.slab[slot].flags.set(Flags::PROBE);
            } else {
                self.start_anew(slot);
            }
        }
        self.enter_pending(now, slot, priority(class));
    }

    /// A success, or a new reason for an id that was given up: a fresh count (D3, D4).
    pub(super) fn start_anew(&mut self, slot: Slot) {
        self.forget_retry(slot);
        let entry = &mut self.slab[slot];
        let was_parked = entry.parked.take().is_some();
        self.levels.parked -= u32::from(was_parked);
        if std::mem::take(&mut entry.failures) > 0 || was_parked {
            self.outdate(slot);
        }
        let flags = &mut self.slab[slot].flags;
        flags.clear(Flags::PROBE | Flags::LETTER_OWED);
        if flags.take(Flags::OVERDUE) {
            self.levels.overdue -= 1;
        }
    }

    /// No retry is pending any more.
    pub(super) fn forget_retry(&mut self, slot: Slot) {
        self.slab[slot].flags.clear(Flags::RETRYING);
        self.take_retry(slot);
    }

    /// The due time of a retry that an event overtook, if there is one; and forgets it.
    pub(super) fn take_retry(&mut self, slot: Slot) -> Option<Time> {
        let entry = &mut self.slab[slot];
        if entry.flags.take(Flags::RETRY_KEPT) { self.marks.take_retry(entry, slot) } else { None }
    }

    /// An id that is owed a run already absorbs the event.
    fn absorb(&mut self, now: Time, slot: Slot, class: ArrivalClass, out: &mut Vec<Command>) {
        let flags = self.slab[slot].flags;
        let state = self.slab[slot].state;
        // What was given up and still has an attempt to come starts anew; a running one when it ends, if it fails.
        if class != ArrivalClass::Resync && flags.has(Flags::PROBE | Flags::OVERDUE) && state != State::Running {
            self.start_anew(slot);
        }
        match state {
            State::Pending => self.lift(slot, priority(class)),
            State::Running => self.absorb_running(slot, class, out),
            // A resync says nothing new of an id that failed, so it does not shorten its delay.
            State::Delayed if class == ArrivalClass::Resync && flags.has(Flags::RETRYING) => {}
            State::Delayed => self.overtake(now, slot, priority(class)),
            State::Free | State::Idle | State::Parked => debug_assert!(false, "only ids that are owed a run absorb"),
        }
    }

    /// Moves a pending id to the higher of two priorities (Q4).
    fn lift(&mut self, slot: Slot, priority: Priority) {
        if priority < self.slab[slot].priority {
            let since = self.slab[slot].since;
            self.leave(slot);
            self.enter_pending(since, slot, priority);
        }
    }

    fn absorb_running(&mut self, slot: Slot, class: ArrivalClass, out: &mut Vec<Command>) {
        let lifted = priority(class);
        let entry = &mut self.slab[slot];
        if !entry.flags.has(Flags::DIRTY) || lifted < entry.priority {
            entry.priority = lifted;
        }
        if !self.faults.ignore_dirty {
            entry.flags.set(Flags::DIRTY);
        }
        if entry.flags.has(Flags::PARK_ON_END) {
            entry.flags.set(Flags::AFTER_CANCEL);
        }
        if class == ArrivalClass::Trigger {
            self.stop_run(slot, CancelCause::Triggered, out);
        }
    }

    /// Tells the run to stop, once.
    pub(super) fn stop_run(&mut self, slot: Slot, reason: CancelCause, out: &mut Vec<Command>) {
        let run = self.full_run(slot);
        let flags = &mut self.slab[slot].flags;
        if !flags.has(Flags::CANCELLING) {
            flags.set(Flags::CANCELLING);
            out.push(Command::Cancel { slot, run, reason });
        }
    }

    /// An event for a delayed id runs it now, but not sooner than `min_requeue` after its last start. A pending retry
    /// keeps its due time aside: a failure before that changes nothing (D7).
    pub(super) fn overtake(&mut self, now: Time, slot: Slot, priority: Priority) {
        let entry = &mut self.slab[slot];
        let earliest = entry.since.after(self.settings.min_requeue);
        let due = entry.due;
        if entry.flags.take(Flags::RETRYING) {
            entry.flags.set(Flags::RETRY_KEPT);
            self.marks.keep_retry(entry, slot, due);
        }
        self.outdate(slot);
        if earliest <= now {
            self.leave(slot);
            self.seat_for_run(slot);
            self.enter_pending(now, slot, priority);
            return;
        }
        let entry = &mut self.slab[slot];
        entry.priority = if entry.flags.has(Flags::TOO_SOON) { entry.priority.min(priority) } else { priority };
        if earliest < due {
            self.leave(slot);
            self.enter_delayed(now, slot, earliest);
        }
        self.slab[slot].flags.set(Flags::TOO_SOON);
    }

    /// A delayed id whose time has come; it is out of the delay queue already.
    fn come_due(&mut self, now: Time, slot: Slot) {
        let entry = &mut self.slab[slot];
        entry.flags.clear(Flags::RETRYING);
        let priority = if entry.flags.take(Flags::TOO_SOON) { entry.priority } else { Priority::Due };
        if entry.latest.is_none() {
            self.set_cause(slot, SourceId::REQUESTED);
        }
        self.seat_for_run(slot);
        self.enter_pending(now, slot, priority);
    }

    /// Remembers why the id is owed a run, beside what else it is owed for.
    fn note_cause(&mut self, slot: Slot, receipt: Receipt) {
        let entry = &mut self.slab[slot];
        let among_others = match entry.state {
            State::Pending | State::Delayed | State::Parked => !entry.latest.is_none(),
            State::Running => entry.flags.has(Flags::DIRTY),
            State::Free | State::Idle => false,
        };
        if among_others {
            self.marks.add_cause(entry, slot, receipt);
        } else if entry.flags.has(Flags::SIDE) {
            self.marks.set_causes(entry, slot, Causes::NONE);
        }
        entry.latest = Mark::new(receipt);
    }

    /// The full number of the present run: entries keep its low half.
    pub(super) fn full_run(&self, slot: Slot) -> u64 {
        let low = u64::from(self.slab[slot].run);
        let high = self.runs & !u64::from(u32::MAX);
        if high | low > self.runs { (high | low) - (1 << 32) } else { high | low }
    }
}

const fn priority(class: ArrivalClass) -> Priority {
    match class {
        ArrivalClass::Event | ArrivalClass::Trigger => Priority::Event,
        ArrivalClass::Resync => Priority::Resync,
    }
}
