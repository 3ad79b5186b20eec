//! Owed records (D12): when one is written, what it covers, when it goes.

use std::sync::Arc;

use super::{Flags, Mark, Priority, Seat, Shard, Slot, State, is_number, low_half};
use crate::id::{Causes, SourceId};
use crate::scheduler::command::{Command, Record, RecordReason};
use crate::scheduler::settings::DELAY_MAX;
use crate::scheduler::time::Time;

/// Ids whose hold is looked at in one turn, at most.
const HELD_MAX: usize = 512;

/// Ticks a second in which the beginning of a hold is kept: 32 bits of them are 34 years.
const HOLD_TICKS: u64 = 4;

/// An owed record of an earlier term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The id.
    pub id: Arc<str>,
    /// Its kind.
    pub kind: u16,
    /// Its worker.
    pub worker: u16,
    /// When its next run is due.
    pub due: Time,
    /// Failures since the last success.
    pub failures: u32,
    /// Why it is owed.
    pub reason: RecordReason,
}

impl Shard {
    /// Takes over an owed record of an earlier term; before any event of this term.
    pub fn handle_recovered(&mut self, now: Time, record: &Recovered) {
        let slot = self.entry_or_new(&record.id, record.kind, record.worker);
        if self.slab[slot].state != State::Idle {
            debug_assert!(false, "a record that comes after its events");
            return;
        }
        self.leave(slot);
        self.levels.records += 1;
        self.set_cause(slot, SourceId::RECOVERED);
        let entry = &mut self.slab[slot];
        entry.failures = record.failures;
        entry.flags.set(Flags::RECORDED);
        let due = record.due.min(now.after(DELAY_MAX));
        match record.reason {
            RecordReason::Parked(reason) => self.enter_parked(slot, reason),
            RecordReason::Requested if due > now => {
                // What asked for the time is not known any more; that it was asked for says enough.
                entry.latest = Mark::NONE;
                self.sit(slot, Seat::Timer);
                self.enter_delayed(now, slot, due);
            }
            RecordReason::Held if due > now => {
                entry.priority = Priority::Due;
                entry.flags.set(if record.failures > 0 { Flags::RETRYING } else { Flags::TOO_SOON });
                self.sit(slot, Seat::Admitted);
                self.enter_delayed(now, slot, due);
            }
            RecordReason::Requested | RecordReason::Held => {
                self.sit(slot, Seat::Admitted);
                self.enter_pending(now, slot, Priority::Due);
            }
        }
    }

    /// The write with this number is durable.
    pub fn handle_recorded(&mut self, now: Time, slot: Slot, write: u64, out: &mut Vec<Command>) {
        if slot.0 >= self.slab.places() {
            return;
        }
        let entry = &mut self.slab[slot];
        // A delete may have overtaken it, and the place have got another id since.
        if !is_number(entry.write, write) || !entry.flags.take(Flags::WRITING) {
            return;
        }
        entry.flags.set(Flags::RECORDED);
        self.levels.writing -= 1;
        if self.faults.cover_late {
            self.marks.cover(&mut self.slab, slot, out);
        }
        self.marks.covered(&mut self.slab, slot, out);
        if self.slab[slot].flags.take(Flags::WRITE_AGAIN) {
            self.write(slot, out);
        }
        self.hold(now, slot);
    }

    /// Asks for a record of this id now, whatever it holds (X7). Any write of this place with the number that this
    /// gives, or a later one, covers what has come so far, as does the success of a run that begins from now on.
    /// `None`: nothing is owed, or no record can be kept.
    pub fn record_now(&mut self, id: &str, out: &mut Vec<Command>) -> Option<(Slot, u64)> {
        let slot = self.entry_of(id).filter(|slot| self.slab[*slot].state != State::Idle)?;
        let next = self.writes + 1;
        self.write(slot, out);
        self.slab[slot].flags.has(Flags::WRITING).then_some((slot, next))
    }

    /// What to write for this id now.
    #[must_use]
    pub fn record(&self, now: Time, slot: Slot) -> Option<Record> {
        let entry = &self.slab[slot];
        if matches!(entry.state, State::Free | State::Idle) {
            return None;
        }
        let (due, reason) = match (entry.state, entry.parked) {
            // An attempt that a resync gives it does not end the parking.
            (_, Some(reason)) => (now, RecordReason::Parked(reason)),
            (State::Delayed, None) if entry.flags.has(Flags::RETRYING | Flags::TOO_SOON) => {
                (entry.due, RecordReason::Held)
            }
            (State::Delayed, None) => (entry.due, RecordReason::Requested),
            _ => (now, RecordReason::Held),
        };
        let causes = match entry.state {
            State::Running if !entry.flags.has(Flags::DIRTY) => Causes::NONE,
            _ => self.marks.causes(entry, slot),
        };
        Some(Record {
            id: entry.id.clone().unwrap_or_default(),
            kind: entry.kind,
            due,
            failures: entry.failures,
            reason,
            latest: entry.latest.get(),
            causes,
        })
    }

    /// Nothing starts any more, and whatever is owed gets a record (D12): a drain. What still runs is recorded when it
    /// ends.
    pub fn handle_drain(&mut self, out: &mut Vec<Command>) {
        self.draining = true;
        for slot in (0..self.slab.places()).map(Slot) {
            if self.slab[slot].state != State::Running {
                self.record_if_owed(slot, out);
            }
        }
    }

    /// Records what a drain leaves, unless a record says so already.
    pub(super) fn record_if_owed(&mut self, slot: Slot, out: &mut Vec<Command>) {
        let entry = &self.slab[slot];
        let owed = matches!(entry.state, State::Pending | State::Delayed | State::Running);
        let newer =
            !entry.flags.has(Flags::ANY_RECORD) || entry.flags.has(Flags::OUTDATED) || self.marks.holds(entry, slot);
        if owed && newer && self.settings.durable {
            self.write(slot, out);
        }
    }

    /// Issues a write; while one is under way, the next waits for its answer. Without a durable store there is only the
    /// dead letter of a give-up to ask for.
    pub(super) fn write(&mut self, slot: Slot, out: &mut Vec<Command>) {
        let full = self.levels.records >= self.settings.owed_records_max.get();
        let entry = &mut self.slab[slot];
        if !self.settings.durable && !entry.flags.has(Flags::LETTER_OWED) {
            return;
        }
        if entry.flags.has(Flags::WRITING) {
            entry.flags.set(Flags::WRITE_AGAIN);
            return;
        }
        if !entry.flags.has(Flags::RECORDED) {
            if full {
                self.counters.records_full += 1;
                return;
            }
            self.levels.records += 1;
        }
        self.writes += 1;
        self.levels.writing += 1;
        entry.write = low_half(self.writes);
        entry.flags.set(Flags::WRITING);
        entry.flags.clear(Flags::OUTDATED | Flags::HANGING);
        if entry.state == State::Running && entry.flags.has(Flags::DIRTY) {
            entry.flags.set(Flags::NEWER);
        }
        let given_up = entry.flags.take(Flags::LETTER_OWED);
        self.marks.cover(&mut self.slab, slot, out);
        self.unhold(slot);
        out.push(Command::Write { slot, write: self.writes, given_up });
    }

    /// A run succeeded that began after all that the record covers: it goes. A write under way is overtaken by the
    /// delete.
    pub(super) fn erase(&mut self, slot: Slot, out: &mut Vec<Command>) {
        let entry = &mut self.slab[slot];
        let writing = entry.flags.take(Flags::WRITING);
        let had = entry.flags.take(Flags::RECORDED) || writing;
        entry.flags.clear(Flags::WRITE_AGAIN | Flags::NEWER | Flags::OUTDATED);
        self.levels.writing -= u32::from(writing);
        if had {
            self.levels.records -= 1;
            let id = entry.id.clone().unwrap_or_default();
            out.push(Command::Erase(id));
        }
    }

    /// The record, if there is one, says less than what is owed now.
    pub(super) fn outdate(&mut self, slot: Slot) {
        let flags = &mut self.slab[slot].flags;
        if flags.has(Flags::ANY_RECORD) {
            flags.set(Flags::OUTDATED);
        }
    }

    /// A requested time: one that is far away gets a record at once; one of many short ones when that has gone on for
    /// long, and then it is kept as it is while that goes on.
    pub(super) fn record_requested(&mut self, now: Time, slot: Slot, out: &mut Vec<Command>) {
        let entry = &self.slab[slot];
        let far = entry.due > now.after(self.settings.max_hold);
        if far || entry.flags.has(Flags::OUTDATED) {
            self.write(slot, out);
        }
        let flags = &mut self.slab[slot].flags;
        if !flags.has(Flags::ANY_RECORD) {
            flags.set(Flags::HANGING);
        }
    }

    /// Puts the entry among those that hold something back, or takes it out, as it is now.
    pub(super) fn hold(&mut self, now: Time, slot: Slot) {
        let entry = &self.slab[slot];
        let holds = self.marks.holds(entry, slot) || self.settings.durable && entry.flags.has(Flags::HANGING);
        if !holds {
            self.unhold(slot);
        } else if !entry.flags.has(Flags::HOLDING) {
            let entry = &mut self.slab[slot];
            entry.flags.set(Flags::HOLDING);
            entry.held_since = hold_ticks(now);
            self.holding.push_back(&mut self.slab, slot);
        }
    }

    pub(super) fn unhold(&mut self, slot: Slot) {
        if self.slab[slot].flags.take(Flags::HOLDING) {
            self.holding.remove(&mut self.slab, slot);
        }
    }

    /// When the id that has held something back for longest gets its record.
    pub(super) fn next_hold(&self) -> Option<Time> {
        let first = self.holding.first().filter(|_| self.settings.durable && !self.draining)?;
        Some(self.hold_end(first))
    }

    /// Since when something is held back, the longest.
    #[must_use]
    pub fn oldest_hold(&self) -> Option<Time> {
        self.holding.first().map(|slot| held_since(self.slab[slot].held_since))
    }

    /// Writes records of the ids that have held something back for too long.
    pub(super) fn record_held(&mut self, now: Time, out: &mut Vec<Command>) {
        for _ in 0..HELD_MAX {
            let Some(slot) = self.holding.first().filter(|_| self.settings.durable) else { return };
            if self.hold_end(slot) > now {
                return;
            }
            // Whether or not there is room for a record, it goes to the end of the list and is looked at again.
            self.unhold(slot);
            self.write(slot, out);
            self.hold(now, slot);
        }
    }

    fn hold_end(&self, slot: Slot) -> Time {
        held_since(self.slab[slot].held_since).after(self.settings.max_hold)
    }

    /// Whether one more id can be parked, with its record where records are kept (X1).
    pub(super) fn may_park(&self, slot: Slot) -> bool {
        let entry = &self.slab[slot];
        let max = self.settings.owed_records_max.get();
        let counted = entry.parked.is_some();
        (counted || self.levels.parked < max) && (entry.flags.has(Flags::ANY_RECORD) || self.levels.records < max)
    }
}

/// Rounded up, so that no hold is found too long too early.
fn hold_ticks(now: Time) -> u32 {
    u32::try_from(now.0.div_ceil(1_000_000_000 / HOLD_TICKS)).unwrap_or(u32::MAX)
}

const fn held_since(ticks: u32) -> Time {
    Time(ticks as u64 * (1_000_000_000 / HOLD_TICKS))
}
