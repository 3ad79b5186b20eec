//! Recounts a shard from scratch and compares: lists, table, seats, flags, levels. For tests; it costs as much as
//! everything known.

use super::{Flags, Seat, Shard, Slot, State};
use crate::scheduler::entry::Entry;
use crate::scheduler::settings::IDLE_KEPT_MAX;

impl Shard {
    /// Checks that every count, list and flag agrees with the entries.
    ///
    /// # Panics
    /// If anything does not agree; the message says what.
    #[doc(hidden)]
    pub fn audit(&self) {
        for slot in (0..self.slab.places()).map(Slot) {
            self.marks.audit(&self.slab[slot], slot);
            if self.slab[slot].state != State::Free {
                self.audit_entry(slot);
                audit_flags(&self.slab[slot]);
            }
        }
        self.audit_lists();
        self.audit_levels();
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        (0..self.slab.places()).map(|place| &self.slab[Slot(place)]).filter(|entry| entry.state != State::Free)
    }

    fn count(&self, wanted: impl Fn(&Entry) -> bool) -> u32 {
        self.entries().map(|entry| u32::from(wanted(entry))).sum()
    }

    fn audit_entry(&self, slot: Slot) {
        let entry = &self.slab[slot];
        let name = entry.name();
        assert_eq!(self.entry_of(name), Some(slot), "{name}: the table finds it");
        let seated = entry.seat != Seat::None;
        assert_eq!(seated, !matches!(entry.state, State::Idle | State::Parked), "{name}: its seat");
        let holds = self.marks.holds(entry, slot) || self.settings.durable && entry.flags.has(Flags::HANGING);
        assert_eq!(entry.flags.has(Flags::HOLDING), holds, "{name}: whether it holds something back");
    }

    fn audit_lists(&self) {
        let state = |state| self.count(|entry| entry.state == state);
        let mut pending = 0;
        for (kind, lanes) in (0..).zip(&self.kinds) {
            let running =
                |lane| self.count(|entry| entry.state == State::Running && (entry.kind, entry.lane) == (kind, lane));
            pending += lanes.audit(&self.slab, kind, running);
        }
        assert_eq!(pending, state(State::Pending), "every pending id stands in a lane");
        assert_eq!(self.delayed.audit(&self.slab), state(State::Delayed), "every delayed id stands in the delay queue");
        let idle = self.idle.iter(&self.slab).map(|slot| u32::from(self.slab[slot].state == State::Idle)).sum::<u32>();
        assert_eq!(idle, state(State::Idle), "every idle id stands in its list");
        assert!(idle <= IDLE_KEPT_MAX, "{idle} idle ids are kept");
        let held: Vec<_> = self.holding.iter(&self.slab).map(|slot| &self.slab[slot]).collect();
        assert!(held.iter().all(|entry| entry.flags.has(Flags::HOLDING)), "what holds back is marked so");
        assert!(held.is_sorted_by_key(|entry| entry.held_since), "who has held back for longest stands first");
        assert_eq!(
            held.len(),
            self.count(|entry| entry.flags.has(Flags::HOLDING)) as usize,
            "what holds back is listed"
        );
        assert_eq!(self.table.len(), self.slab.len() as usize, "the table knows every id");
        assert_eq!(self.slab.len(), self.count(|_| true), "ids in the slab");
        assert_eq!(self.slab.count_free(), self.slab.places() - self.slab.len(), "free places");
    }

    fn audit_levels(&self) {
        let flag = |flag| self.count(|entry| entry.flags.has(flag));
        let counted = super::Levels {
            admitted: self.count(|entry| entry.seat == Seat::Admitted),
            timers: self.count(|entry| entry.seat == Seat::Timer),
            parked: self.count(|entry| entry.parked.is_some()),
            records: flag(Flags::ANY_RECORD),
            idle: self.count(|entry| entry.state == State::Idle),
            overdue: flag(Flags::OVERDUE),
            writing: flag(Flags::WRITING),
        };
        assert_eq!(counted, self.levels);
    }
}

fn audit_flags(entry: &Entry) {
    let name = entry.name();
    let flags = entry.flags;
    let only = |flag: u32, allowed: bool, rule: &str| assert!(!flags.has(flag) || allowed, "{name}: {rule}");
    let running = entry.state == State::Running;
    let delayed = entry.state == State::Delayed;
    only(Flags::DIRTY | Flags::CANCELLING, running, "dirty or cancelling, but not running");
    only(Flags::PARK_ON_END, flags.has(Flags::CANCELLING), "to be parked, but not told to stop");
    only(Flags::AFTER_CANCEL, flags.has(Flags::PARK_ON_END) && flags.has(Flags::DIRTY), "an event after no cancel");
    only(Flags::RETRYING | Flags::TOO_SOON, delayed, "waits for a time, but is not delayed");
    only(Flags::RETRYING, !flags.has(Flags::TOO_SOON | Flags::RETRY_KEPT), "a retry that was overtaken");
    let owed = running || entry.state == State::Pending;
    only(Flags::PROBE, owed && entry.parked.is_some(), "an attempt at what was not parked");
    let given_up = entry.state == State::Parked || flags.has(Flags::PROBE);
    assert_eq!(entry.parked.is_some(), given_up, "{name}: a reason to be parked");
    only(Flags::NEWER | Flags::OUTDATED, flags.has(Flags::ANY_RECORD), "no record that could be wrong");
    only(Flags::WRITE_AGAIN, flags.has(Flags::WRITING), "a second write without a first");
    only(Flags::HANGING, !flags.has(Flags::ANY_RECORD) && entry.state != State::Parked, "hangs, and is recorded");
    only(Flags::LETTER_OWED, flags.has(Flags::WRITE_AGAIN), "a dead letter that no write will send");
    if entry.state == State::Idle {
        let kept = (flags.is_empty(), entry.failures, entry.latest.is_none());
        assert_eq!(kept, (true, 0, true), "{name}: idle, but something is left: {flags:?}");
    }
}
