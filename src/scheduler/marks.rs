//! What each id holds back: the events that wait for a run of it, and those that its present run answers (design decision 9).
//!
//! Per source only the lowest event is kept: what comes later from the same source is held back by it anyway, so memory goes with
//! the ids that wait, not with the events that passed. While an owed record is being written, what it covers is set apart, so
//! that its answer settles that and nothing that came later (D12).
//!
//! The rules are those of a small proof: an event leaves exactly once, by `Release`, and not before a run that began after it has
//! succeeded or a record that was issued after it is durable. `tests/sim` checks them against a ledger that remembers all events.

use fnv::FnvHashMap;

use super::command::Command;
use super::entry::{Entry, Flags, Slab, Slot};
use super::time::Time;
use crate::id::{Causes, Mark, Receipt};

/// Which events a mark stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Set {
    /// No run has begun since.
    Waiting,
    /// The present run began after them.
    Running,
    /// As `Waiting`, and covered by the record that is being written.
    WaitingCovered,
    /// As `Running`, and covered by the record that is being written.
    RunningCovered,
}

/// What does not fit into an entry; few have it.
#[derive(Debug, Default)]
struct More {
    marks: Vec<(Set, Receipt)>,
    causes: Causes,
    retry_due: Option<Time>,
}

/// The side table: what few entries have.
#[derive(Debug, Default)]
pub(super) struct Marks {
    more: FnvHashMap<u32, More>,
}

impl Marks {
    /// An event came that waits for a run.
    pub(super) fn add(&mut self, slab: &mut Slab, slot: Slot, event: Receipt, out: &mut Vec<Command>) {
        self.merge(&mut slab[slot], slot, Set::Waiting, event, out);
    }

    /// A run begins: it answers everything that waits.
    pub(super) fn begin(&mut self, slab: &mut Slab, slot: Slot, out: &mut Vec<Command>) {
        let entry = &mut slab[slot];
        if !entry.flags.has(Flags::SIDE) && entry.running.is_none() {
            entry.running = std::mem::replace(&mut entry.waiting, Mark::NONE);
            return;
        }
        self.turn(entry, slot, Set::Waiting, Set::Running, out);
        self.turn(entry, slot, Set::WaitingCovered, Set::RunningCovered, out);
    }

    /// The run succeeded: what it answers is done.
    pub(super) fn settle(&mut self, slab: &mut Slab, slot: Slot, out: &mut Vec<Command>) {
        let entry = &mut slab[slot];
        out.extend(std::mem::replace(&mut entry.running, Mark::NONE).get().map(Command::Release));
        if entry.flags.has(Flags::SIDE) {
            self.release(slot, &[Set::Running, Set::RunningCovered], out);
            self.tidy(entry, slot);
        }
    }

    /// The run ended in any other way: what it was to answer waits again.
    pub(super) fn fail(&mut self, slab: &mut Slab, slot: Slot, out: &mut Vec<Command>) {
        let entry = &mut slab[slot];
        self.turn(entry, slot, Set::Running, Set::Waiting, out);
        self.turn(entry, slot, Set::RunningCovered, Set::WaitingCovered, out);
        self.tidy(entry, slot);
    }

    /// A record is issued: it covers everything that has come so far.
    pub(super) fn cover(&mut self, slab: &mut Slab, slot: Slot, out: &mut Vec<Command>) {
        let entry = &mut slab[slot];
        self.turn(entry, slot, Set::Waiting, Set::WaitingCovered, out);
        self.turn(entry, slot, Set::Running, Set::RunningCovered, out);
    }

    /// The record is durable: what it covers is done.
    pub(super) fn covered(&mut self, slab: &mut Slab, slot: Slot, out: &mut Vec<Command>) {
        let entry = &mut slab[slot];
        if entry.flags.has(Flags::SIDE) {
            self.release(slot, &[Set::WaitingCovered, Set::RunningCovered], out);
            self.tidy(entry, slot);
        }
    }

    /// Whether the entry holds any event back that no record under way covers.
    pub(super) fn holds(&self, entry: &Entry, slot: Slot) -> bool {
        !entry.waiting.is_none()
            || !entry.running.is_none()
            || entry.flags.has(Flags::SIDE)
                && self
                    .more
                    .get(&slot.0)
                    .is_some_and(|more| more.marks.iter().any(|(set, _)| matches!(set, Set::Waiting | Set::Running)))
    }

    /// Adds a cause to those of the next run; the first one stands in `entry.latest` alone.
    pub(super) fn add_cause(&mut self, entry: &mut Entry, slot: Slot, cause: Receipt) {
        let before = entry.latest.get();
        let more = self.side(entry, slot);
        if more.causes.is_empty() {
            more.causes.extend(&before.map_or(Causes::NONE, Causes::one));
        }
        more.causes.add(cause);
    }

    /// Sets the causes of the next run.
    pub(super) fn set_causes(&mut self, entry: &mut Entry, slot: Slot, causes: Causes) {
        self.side(entry, slot).causes = causes;
    }

    /// The causes of the next run.
    pub(super) fn causes(&self, entry: &Entry, slot: Slot) -> Causes {
        let more = self.more.get(&slot.0).map(|more| more.causes).filter(|causes| !causes.is_empty());
        more.unwrap_or_else(|| entry.latest.get().map_or(Causes::NONE, Causes::one))
    }

    /// Hands the causes out to the run that begins.
    pub(super) fn take_causes(&mut self, entry: &mut Entry, slot: Slot) -> Causes {
        if !entry.flags.has(Flags::SIDE) {
            return entry.latest.get().map_or(Causes::NONE, Causes::one);
        }
        let causes = self.causes(entry, slot);
        if let Some(more) = self.more.get_mut(&slot.0) {
            more.causes = Causes::NONE;
        }
        self.tidy(entry, slot);
        causes
    }

    /// Keeps the due time of a retry that an event overtook (D7).
    pub(super) fn keep_retry(&mut self, entry: &mut Entry, slot: Slot, due: Time) {
        self.side(entry, slot).retry_due = Some(due);
    }

    /// The due time that was kept, and forgets it.
    pub(super) fn take_retry(&mut self, entry: &mut Entry, slot: Slot) -> Option<Time> {
        let due = self.more.get_mut(&slot.0).and_then(|more| more.retry_due.take());
        self.tidy(entry, slot);
        due
    }

    /// Forgets causes and times of an entry that owes nothing any more. Marks it has none.
    pub(super) fn forget(&mut self, entry: &mut Entry, slot: Slot) {
        entry.latest = Mark::NONE;
        if entry.flags.take(Flags::SIDE) {
            let more = self.more.remove(&slot.0);
            debug_assert!(more.is_none_or(|more| more.marks.is_empty()), "forgot events that are held back");
        }
    }

    fn side(&mut self, entry: &mut Entry, slot: Slot) -> &mut More {
        entry.flags.set(Flags::SIDE);
        self.more.entry(slot.0).or_default()
    }

    /// Drops the side entry once it says nothing.
    fn tidy(&mut self, entry: &mut Entry, slot: Slot) {
        let empty = self
            .more
            .get(&slot.0)
            .is_none_or(|more| more.marks.is_empty() && more.causes.is_empty() && more.retry_due.is_none());
        if empty && entry.flags.take(Flags::SIDE) {
            self.more.remove(&slot.0);
        }
    }

    /// Puts an event into a set. Of two of one source the lower one stays; the other is held back by it and may go.
    fn merge(&mut self, entry: &mut Entry, slot: Slot, set: Set, event: Receipt, out: &mut Vec<Command>) {
        let inline = match set {
            Set::Waiting => Some(&mut entry.waiting),
            Set::Running => Some(&mut entry.running),
            Set::WaitingCovered | Set::RunningCovered => None,
        };
        if let Some(mark) = inline {
            match mark.get() {
                None if !entry.flags.has(Flags::SIDE) => {
                    *mark = Mark::new(event);
                    return;
                }
                Some(kept) if kept.source == event.source => {
                    *mark = Mark::new(kept.min(event));
                    out.push(Command::Release(kept.max(event)));
                    return;
                }
                _ => {}
            }
        }
        let more = self.side(entry, slot);
        match more.marks.iter_mut().find(|(at, kept)| *at == set && kept.source == event.source) {
            Some((_, kept)) => {
                out.push(Command::Release((*kept).max(event)));
                *kept = (*kept).min(event);
            }
            None => more.marks.push((set, event)),
        }
    }

    /// Moves all of one set into another.
    fn turn(&mut self, entry: &mut Entry, slot: Slot, from: Set, to: Set, out: &mut Vec<Command>) {
        let inline = match from {
            Set::Waiting => std::mem::replace(&mut entry.waiting, Mark::NONE).get(),
            Set::Running => std::mem::replace(&mut entry.running, Mark::NONE).get(),
            Set::WaitingCovered | Set::RunningCovered => None,
        };
        if let Some(event) = inline {
            self.merge(entry, slot, to, event, out);
        }
        if !entry.flags.has(Flags::SIDE) {
            return;
        }
        let Some(more) = self.more.get_mut(&slot.0) else { return };
        let moved: Vec<_> = more.marks.extract_if(.., |(set, _)| *set == from).collect();
        for (_, event) in moved {
            self.merge(entry, slot, to, event, out);
        }
    }

    fn release(&mut self, slot: Slot, sets: &[Set], out: &mut Vec<Command>) {
        let Some(more) = self.more.get_mut(&slot.0) else { return };
        out.extend(more.marks.extract_if(.., |(set, _)| sets.contains(set)).map(|(_, event)| Command::Release(event)));
    }
}
