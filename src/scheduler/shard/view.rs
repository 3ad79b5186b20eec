//! What people ask to see: why an id runs, waits or does not (X4), and pages of what waits (D11). Nothing is kept for
//! it.

use std::sync::Arc;

use super::{Flags, ParkReason, Shard, Slot, State};
use crate::id::Causes;
use crate::scheduler::time::Time;

/// Why an id runs, waits or does not: one variant for each state that an id can be in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Nothing asked for a run, or nothing is known of the id: nothing is owed.
    Idle,
    /// It starts as soon as the loop comes to it.
    Next,
    /// All slots of its worker are taken.
    WorkerBusy {
        /// Runs of that worker.
        running: u32,
        /// Its slots.
        slots: u32,
    },
    /// All permits of its kind are taken.
    KindBusy {
        /// Runs of the kind in this shard.
        running: u32,
    },
    /// Nothing starts any more: the process is stopping.
    Draining,
    /// It runs.
    Running {
        /// Since when.
        since: Time,
        /// An event came meanwhile: another run follows.
        again: bool,
        /// It was told to stop.
        stopping: bool,
    },
    /// It failed and is tried again.
    Retry {
        /// When.
        due: Time,
        /// Failures so far.
        failures: u32,
        /// It would have been given up, but no more ids can be parked.
        overdue: bool,
    },
    /// It asked for this time.
    Requested {
        /// When.
        due: Time,
    },
    /// It ran a moment ago; an event runs it again then (D7).
    TooSoon {
        /// When.
        due: Time,
    },
    /// It waits for somebody.
    Parked {
        /// Why.
        reason: ParkReason,
        /// Whether that is durable; until then its events are held.
        recorded: bool,
    },
}

/// One entry, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryView {
    /// Its place.
    pub slot: Slot,
    /// The id.
    pub id: Arc<str>,
    /// Its kind.
    pub kind: u16,
    /// Its worker.
    pub worker: u16,
    /// Its state.
    pub state: State,
    /// Failures since the last success.
    pub failures: u32,
    /// Pending: since when. Running: its start. Else: the start of its last run.
    pub since: Time,
    /// When it runs, if it is delayed.
    pub due: Option<Time>,
    /// Why it is parked.
    pub parked: Option<ParkReason>,
    /// Why the next run is owed; while it runs, what came since.
    pub causes: Causes,
    /// Whether an owed record of it is in the store.
    pub recorded: bool,
}

impl Shard {
    /// Why an id runs, waits or does not, computed from its state.
    #[must_use]
    pub fn why(&self, id: &str) -> Why {
        let Some(slot) = self.entry_of(id) else { return Why::Idle };
        let entry = &self.slab[slot];
        match entry.state {
            State::Free | State::Idle => Why::Idle,
            State::Pending => self.why_pending(slot),
            State::Running => Why::Running {
                since: entry.since,
                again: entry.flags.has(Flags::DIRTY),
                stopping: entry.flags.has(Flags::CANCELLING),
            },
            State::Delayed if entry.flags.has(Flags::RETRYING) => {
                let overdue = entry.flags.has(Flags::OVERDUE);
                Why::Retry { due: entry.due, failures: entry.failures, overdue }
            }
            State::Delayed if entry.flags.has(Flags::TOO_SOON) => Why::TooSoon { due: entry.due },
            State::Delayed => Why::Requested { due: entry.due },
            State::Parked => Why::Parked {
                reason: entry.parked.unwrap_or(ParkReason::GivenUp),
                recorded: entry.flags.has(Flags::RECORDED) && !entry.flags.has(Flags::WRITING),
            },
        }
    }

    fn why_pending(&self, slot: Slot) -> Why {
        let entry = &self.slab[slot];
        let lanes = &self.kinds[usize::from(entry.kind)];
        let (running, slots) = lanes.lane_load(entry.lane);
        if self.draining {
            Why::Draining
        } else if running >= slots {
            Why::WorkerBusy { running, slots }
        } else if lanes.is_starved() {
            Why::KindBusy { running: lanes.running() }
        } else {
            Why::Next
        }
    }

    /// The place of an id, if it is known.
    #[must_use]
    pub fn slot(&self, id: &str) -> Option<Slot> {
        self.entry_of(id)
    }

    /// The id at a place; none at a free one.
    #[must_use]
    pub fn id(&self, slot: Slot) -> Arc<str> {
        self.slab[slot].id.clone().unwrap_or_default()
    }

    /// The entry of an id, if anything is owed or kept.
    #[must_use]
    pub fn view(&self, id: &str) -> Option<EntryView> {
        self.entry_of(id).and_then(|slot| self.view_at(slot))
    }

    /// The entry at a place, unless the place is free or its id idle.
    #[must_use]
    pub fn view_at(&self, slot: Slot) -> Option<EntryView> {
        let entry = &self.slab[slot];
        if matches!(entry.state, State::Free | State::Idle) {
            return None;
        }
        let causes = match entry.state {
            State::Running if !entry.flags.has(Flags::DIRTY) => Causes::NONE,
            _ => self.marks.causes(entry, slot),
        };
        Some(EntryView {
            slot,
            id: entry.id.clone().unwrap_or_default(),
            kind: entry.kind,
            worker: entry.lane,
            state: entry.state,
            failures: entry.failures,
            since: entry.since,
            due: (entry.state == State::Delayed).then_some(entry.due),
            parked: entry.parked.filter(|_| entry.state == State::Parked),
            causes,
            recorded: entry.flags.has(Flags::RECORDED),
        })
    }

    /// Entries that are owed something, in no particular but a stable order: at most `take_max` of them for which
    /// `wanted` holds, looking at no more than `look_max` places from `after` on. Gives the place to go on from.
    #[must_use]
    pub fn page(
        &self,
        after: Option<Slot>,
        look_max: usize,
        take_max: usize,
        mut wanted: impl FnMut(State) -> bool,
    ) -> (Vec<EntryView>, Option<Slot>) {
        let (first, end) = self.places_from(after, look_max);
        let mut found = Vec::new();
        for slot in (first..end).map(Slot) {
            if found.len() >= take_max.max(1) {
                return (found, Some(Slot(slot.0 - 1)));
            }
            if wanted(self.slab[slot].state) {
                found.extend(self.view_at(slot));
            }
        }
        (found, (end < self.slab.places()).then(|| Slot(end - 1)))
    }

    /// The places to look at, one at least if there is one.
    pub(super) fn places_from(&self, after: Option<Slot>, look_max: usize) -> (u32, u32) {
        let first = after.map_or(0, |slot| slot.0.saturating_add(1));
        let look = u32::try_from(look_max.max(1)).unwrap_or(u32::MAX);
        (first, self.slab.places().min(first.saturating_add(look)))
    }

    /// How many ids the shard knows, idle ones included.
    #[must_use]
    pub const fn known(&self) -> u32 {
        self.slab.len()
    }
}
