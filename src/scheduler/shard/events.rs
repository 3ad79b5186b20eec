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
        let hash = self.table.hash(event.id);
        let found = self.table.find(&self.slab, hash, event.id);
        // Capacity is looked at after dedup (Q5): an id that is owed a run already is never refused.
        let owed = found.is_some_and(|slot| !matches!(self.slab[slot].state, State::Idle | State::Parked));
        if !owed && !self.admits(event.class) {
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

    fn admits(&self, class: ArrivalClass) -> bool {
        self.has_room() && !(class == ArrivalClass::Resync && self.waiting_in(Priority::Resync) >= RESYNC_WAITING_MAX)
    }

    /// An id that was idle, parked or unknown is owed a run.
    fn admit(&mut self, now: Time, slot: Slot, class: ArrivalClass, is_new: bool) {
        if !is_new {
            self.leave(slot);
        }
        self.sit(slot, Seat::Admitted);
        let entry = &mut self.slab[slot];
        if entry.parked.is_some() {
            if class == ArrivalClass::Resync {
                entry.flags.set(Flags::PROBE);
            } else {
                self.start_anew(slot);
            }
        }
        self.enter_pending(now, slot, priority(class));
    }

    /// A new reason for a parked id: a fresh count (D3).
    pub(super) fn start_anew(&mut self, slot: Slot) {
        let entry = &mut self.slab[slot];
        entry.parked = None;
        entry.failures = 0;
        entry.flags.clear(Flags::PROBE);
        entry.flags.clear(Flags::LETTER_OWED);
    }

    /// An id that is owed a run already absorbs the event.
    fn absorb(&mut self, now: Time, slot: Slot, class: ArrivalClass, out: &mut Vec<Command>) {
        let lifted = priority(class);
        let flags = self.slab[slot].flags;
        if class != ArrivalClass::Resync && (flags.has(Flags::PROBE) || flags.has(Flags::OVERDUE)) {
            self.clear_overdue(slot);
            self.start_anew(slot);
        }
        match self.slab[slot].state {
            State::Pending => {
                if lifted < self.slab[slot].priority {
                    let since = self.slab[slot].since;
                    self.leave(slot);
                    self.enter_pending(since, slot, lifted);
                }
            }
            State::Running => {
                let entry = &mut self.slab[slot];
                if !entry.flags.has(Flags::DIRTY) || lifted < entry.priority {
                    entry.priority = lifted;
                }
                if !self.faults.ignore_dirty {
                    entry.flags.set(Flags::DIRTY);
                }
                if class == ArrivalClass::Trigger && !entry.flags.has(Flags::CANCELLING) {
                    entry.flags.set(Flags::CANCELLING);
                    let run = self.full_run(slot);
                    out.push(Command::Cancel { slot, run, reason: CancelCause::Triggered });
                }
            }
            // A resync says nothing new of an id that failed, so it does not shorten its delay.
            State::Delayed if class == ArrivalClass::Resync && self.slab[slot].flags.has(Flags::RETRYING) => {}
            State::Delayed => self.overtake(now, slot, lifted),
            State::Free | State::Idle | State::Parked => debug_assert!(false, "only ids that are owed a run absorb"),
        }
    }

    /// An event for a delayed id runs it now, but not sooner than `min_requeue` after its last start. A pending retry keeps its due
    /// time aside: a failure before that changes nothing (D7).
    pub(super) fn overtake(&mut self, now: Time, slot: Slot, priority: Priority) {
        let entry = &mut self.slab[slot];
        let earliest = entry.since.after(self.settings.min_requeue);
        let due = entry.due;
        if entry.flags.has(Flags::RETRYING) && !entry.flags.has(Flags::RETRY_KEPT) {
            entry.flags.set(Flags::RETRY_KEPT);
            self.marks.keep_retry(entry, slot, due);
        }
        entry.flags.clear(Flags::RETRYING);
        if earliest > now {
            self.slab[slot].priority = priority;
            if earliest < due {
                self.leave(slot);
                self.enter_delayed(slot, earliest);
            }
            return;
        }
        self.leave(slot);
        self.seat_for_run(slot);
        self.enter_pending(now, slot, priority);
    }

    /// A delayed id whose time has come; it is out of the delay queue already.
    fn come_due(&mut self, now: Time, slot: Slot) {
        let entry = &mut self.slab[slot];
        let overtaken = !entry.flags.take(Flags::RETRYING) && entry.latest.get().is_some_and(|r| r.source.is_event());
        let priority = if overtaken { entry.priority } else { Priority::Due };
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
            State::Pending | State::Delayed => !entry.latest.is_none(),
            State::Running => entry.flags.has(Flags::DIRTY),
            State::Free | State::Idle | State::Parked => false,
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
