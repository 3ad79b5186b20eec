//! One entry per id, from its first event until it is done and forgotten, and the slab that holds them.
//!
//! Pending, running, delayed and parked are states of one entry, not copies in several queues: so moving between them
//! cannot fail, and dedup cannot miss (D5).

use std::sync::Arc;

use super::list::{Link, NIL};
use super::time::Time;
use crate::id::Mark;

/// The place of an entry in the slab. It is used again after the entry is forgotten, so whoever keeps one keeps a run
/// number or a record number beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// The state of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// No id: the place is free.
    Free,
    /// Known, and nothing is owed.
    Idle,
    /// Owed a run; in a lane.
    Pending,
    /// Running.
    Running,
    /// Waiting for a time; in the delay queue.
    Delayed,
    /// Waiting for somebody.
    Parked,
}

/// Which of a lane's queues an id waits in (Q6); the first one goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Events and triggers.
    Event,
    /// Retries and requested times that came due.
    Due,
    /// Resync.
    Resync,
}

impl Priority {
    /// All of them, the first one first.
    pub const ALL: [Self; 3] = [Self::Event, Self::Due, Self::Resync];

    /// Its place in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Why an id is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParkReason {
    /// Too many attempts, or a failure for good (D3).
    GivenUp,
    /// Somebody cancelled it (C2).
    Cancelled,
    /// Its runs blocked threads until processes were ended (C4).
    Stuck,
}

/// Which place of the bounds an entry takes (D6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Seat {
    /// None: idle or parked.
    None,
    /// One of `admitted`.
    Admitted,
    /// One of `timers`.
    Timer,
}

/// Yes-or-no facts of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flags(u32);

impl Flags {
    /// An event came while it runs: another run follows (Q4).
    pub(super) const DIRTY: u32 = 1;
    /// Its run was told to stop; whatever it answers, it covers nothing.
    pub(super) const CANCELLING: u32 = 1 << 1;
    /// Its run was cancelled by somebody: park it when it ends.
    pub(super) const PARK_ON_END: u32 = 1 << 2;
    /// An event came after that: what would be parked is owed again.
    pub(super) const AFTER_CANCEL: u32 = 1 << 3;
    /// Delayed because it failed, not because it asked.
    pub(super) const RETRYING: u32 = 1 << 4;
    /// The due time of a retry that an event overtook is kept aside (D7).
    pub(super) const RETRY_KEPT: u32 = 1 << 5;
    /// Delayed although an event asks for a run: its last start was a moment ago (D7).
    pub(super) const TOO_SOON: u32 = 1 << 6;
    /// A resync's one attempt at a parked id (D3): a failure parks it again.
    pub(super) const PROBE: u32 = 1 << 7;
    /// Kept retrying although spent, since no more ids can be parked (X1).
    pub(super) const OVERDUE: u32 = 1 << 8;
    /// In a far bucket of the delay queue.
    pub(super) const FAR: u32 = 1 << 9;
    /// In the list of those that hold something back.
    pub(super) const HOLDING: u32 = 1 << 10;
    /// Marks, causes or a retry beside what the entry has room for stand in the side table.
    pub(super) const SIDE: u32 = 1 << 11;
    /// A record of it is in the store.
    pub(super) const RECORDED: u32 = 1 << 12;
    /// A record is being written.
    pub(super) const WRITING: u32 = 1 << 13;
    /// Write again when the write under way is answered.
    pub(super) const WRITE_AGAIN: u32 = 1 << 14;
    /// The record covers events that the present run does not (D12).
    pub(super) const NEWER: u32 = 1 << 15;
    /// By its record the id would run later than it is owed a run, or not at all, or with failures that are over.
    pub(super) const OUTDATED: u32 = 1 << 16;
    /// Hangs on short requested times without a record (D12).
    pub(super) const HANGING: u32 = 1 << 17;
    /// Given up, and no dead letter was asked for yet.
    pub(super) const LETTER_OWED: u32 = 1 << 18;
    /// It has a record in the store, or will have one.
    pub(super) const ANY_RECORD: u32 = Self::RECORDED | Self::WRITING;

    /// Whether any of these is set.
    pub(super) const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    pub(super) const fn set(&mut self, flag: u32) {
        self.0 |= flag;
    }

    pub(super) const fn clear(&mut self, flag: u32) {
        self.0 &= !flag;
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether no other one than these is set.
    pub(super) const fn none_but(self, flags: u32) -> bool {
        self.0 & !flags == 0
    }

    /// Clears flags and says whether any was set.
    pub(super) const fn take(&mut self, flag: u32) -> bool {
        let had = self.has(flag);
        self.clear(flag);
        had
    }
}

/// Everything that is known of one id.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: Option<Arc<str>>,
    /// In a lane, a bucket of the delay queue, the list of idle or of free ones: one at a time.
    pub(super) link: Link,
    /// In the list of those that hold something back.
    pub(super) hold: Link,
    /// Delayed: when it runs.
    pub(super) due: Time,
    /// Pending: since when. Running: its start. Else: the start of its last run.
    pub(super) since: Time,
    /// The lowest event that waits for a run, of one source; others stand in the side table.
    pub(super) waiting: Mark,
    /// The lowest event that the present run answers.
    pub(super) running: Mark,
    /// The latest event; it names the idempotency key of the runs that answer it.
    pub(super) latest: Mark,
    /// Since when it holds something back, in quarters of a second.
    pub(super) held_since: u32,
    /// The low half of the run's number.
    pub(super) run: u32,
    /// The number of the record write that was issued last.
    pub(super) write: u32,
    /// Failures since the last success.
    pub(super) failures: u32,
    pub(super) kind: u16,
    pub(super) lane: u16,
    pub(super) flags: Flags,
    pub(super) state: State,
    pub(super) priority: Priority,
    pub(super) seat: Seat,
    pub(super) parked: Option<ParkReason>,
}

impl Entry {
    fn new(id: Arc<str>, kind: u16, lane: u16) -> Self {
        Self {
            id: Some(id),
            link: Link::NONE,
            hold: Link::NONE,
            due: Time::ZERO,
            since: Time::ZERO,
            waiting: Mark::NONE,
            running: Mark::NONE,
            latest: Mark::NONE,
            held_since: 0,
            run: 0,
            write: 0,
            failures: 0,
            kind,
            lane,
            flags: Flags::default(),
            state: State::Idle,
            priority: Priority::Event,
            seat: Seat::None,
            parked: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }
}

/// All entries of a shard by slot.
#[derive(Debug, Default)]
pub(super) struct Slab {
    entries: Vec<Entry>,
    free: u32,
    used: u32,
}

impl Slab {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), free: NIL, used: 0 }
    }

    pub(super) fn insert(&mut self, id: Arc<str>, kind: u16, lane: u16) -> Slot {
        self.used += 1;
        let entry = Entry::new(id, kind, lane);
        if self.free == NIL {
            let slot =
                Slot(u32::try_from(self.entries.len()).expect("bounded by admitted, timers, parked and idle ids"));
            self.entries.push(entry);
            return slot;
        }
        let slot = Slot(self.free);
        self.free = self[slot].link.next;
        self[slot] = entry;
        slot
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        self.used -= 1;
        let free = self.free;
        let entry = &mut self[slot];
        entry.id = None;
        entry.state = State::Free;
        entry.link = Link { prev: NIL, next: free };
        self.free = slot.0;
    }

    /// How many places there are, free ones included: slots go from 0 to this.
    pub(super) fn places(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "insert keeps it below 2^32")]
        let places = self.entries.len() as u32;
        places
    }

    /// Counts the free places by walking their list, for tests.
    pub(super) fn count_free(&self) -> u32 {
        let (mut count, mut at) = (0, self.free);
        while at != NIL {
            assert_eq!(self[Slot(at)].state, State::Free, "a place that is not free");
            count += 1;
            at = self[Slot(at)].link.next;
        }
        count
    }

    /// How many ids there are.
    pub(super) const fn len(&self) -> u32 {
        self.used
    }
}

impl std::ops::Index<Slot> for Slab {
    type Output = Entry;
    fn index(&self, slot: Slot) -> &Entry {
        &self.entries[slot.0 as usize]
    }
}

impl std::ops::IndexMut<Slot> for Slab {
    fn index_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries[slot.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_within_two_cache_lines() {
        assert!(size_of::<Entry>() <= 112, "{} bytes", size_of::<Entry>());
    }
}
