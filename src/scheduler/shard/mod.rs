//! The shard itself: where an entry is, and every way from one place to another.
//!
//! `events` takes in, `outcome` takes back, `records` keeps what is owed, `steer` obeys people, `view` answers them,
//! `audit` recounts for tests.

mod audit;
mod events;
mod outcome;
mod records;
mod steer;
mod view;

use std::sync::Arc;

pub use records::Recovered;
pub use steer::CancelAnswer;
pub use view::{EntryView, Why};

use super::command::{Command, Start};
use super::delay::DelayQueue;
use super::entry::{Flags, ParkReason, Priority, Seat, Slab, Slot, State};
use super::lanes::Lanes;
use super::list::{ByHold, List};
use super::marks::Marks;
use super::settings::{IDLE_KEPT_MAX, KindSettings, Settings};
use super::table::Table;
use super::time::Time;
use crate::id::{Causes, Mark, Receipt, SourceId};

/// One shard of one term.
#[derive(Debug)]
pub struct Shard {
    settings: Settings,
    slab: Slab,
    table: Table,
    kinds: Vec<Lanes>,
    /// The kind that `poll_start` asks first, so that kinds take turns.
    next_kind: usize,
    delayed: DelayQueue,
    marks: Marks,
    holding: List<ByHold>,
    idle: List,
    levels: Levels,
    counters: Counters,
    /// Runs started; the number of the latest.
    runs: u64,
    /// Record writes issued; the number of the latest.
    writes: u64,
    draining: bool,
    faults: Faults,
}

/// How many entries are where; what bounds are held against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Levels {
    /// Places taken of `admitted`.
    pub admitted: u32,
    /// Places taken of `timers`.
    pub timers: u32,
    /// Parked ids, those among them that a resync gives an attempt.
    pub parked: u32,
    /// Ids with an owed record, or one that is being written.
    pub records: u32,
    /// Ids whose record is being written.
    pub writing: u32,
    /// Idle ids that are still known.
    pub idle: u32,
    /// Ids that stay in retry at the longest delay because no more can be parked (X1).
    pub overdue: u32,
}

/// What has happened since the term began. They only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events admitted.
    pub admitted: u64,
    /// Events absorbed by an id that was owed a run already.
    pub present: u64,
    /// Events refused for want of a place.
    pub refused: u64,
    /// Runs started.
    pub started: u64,
    /// Retries scheduled.
    pub retries: u64,
    /// Ids given up.
    pub given_up: u64,
    /// Times at which a record was wanted and `owed_records` was full.
    pub records_full: u64,
    /// Times at which a requested time found `timers` full and kept its place among the admitted.
    pub timers_full: u64,
}

/// Faults that tests plant to show that they would be found; see [`Shard::plant`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Faults {
    ignore_dirty: bool,
    settle_early: bool,
    forget_timer: bool,
    cover_late: bool,
    erase_newer: bool,
}

impl Shard {
    /// An empty shard, at the beginning of a term.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            slab: Slab::new(),
            table: Table::new(settings.hash_seed),
            kinds: settings.kinds.iter().map(Lanes::new).collect(),
            next_kind: 0,
            delayed: DelayQueue::new(settings.resolution),
            marks: Marks::default(),
            holding: List::default(),
            idle: List::default(),
            levels: Levels::default(),
            counters: Counters::default(),
            runs: 0,
            writes: 0,
            draining: false,
            faults: Faults::default(),
            settings,
        }
    }

    /// Lets this kind start so many more runs.
    pub fn grant(&mut self, kind: u16, permits: u32) {
        self.kinds[usize::from(kind)].grant(permits);
    }

    /// Takes back the permits of this kind that no run uses.
    pub fn reclaim(&mut self, kind: u16) -> u32 {
        self.kinds[usize::from(kind)].reclaim()
    }

    /// Whether an id of this kind could start if there were a permit.
    #[must_use]
    pub fn is_starved(&self, kind: u16) -> bool {
        !self.draining && self.kinds[usize::from(kind)].is_starved()
    }

    /// The next run to start, if a lane has a free slot and its kind a permit. The driver starts it now.
    pub fn poll_start(&mut self, now: Time, out: &mut Vec<Command>) -> Option<Start> {
        if self.draining {
            return None;
        }
        for _ in 0..self.kinds.len() {
            let kind = self.next_kind;
            self.next_kind = (kind + 1) % self.kinds.len();
            if let Some(slot) = self.kinds[kind].pop(&mut self.slab) {
                return Some(self.start(now, slot, out));
            }
        }
        None
    }

    /// When to call [`handle_time`](Self::handle_time) next, if nothing else happens before.
    #[must_use]
    pub fn next_time(&self) -> Option<Time> {
        let delayed = self.delayed.next_time().filter(|_| !self.faults.forget_timer);
        delayed.into_iter().chain(self.next_hold()).min()
    }

    /// How many entries are where.
    #[must_use]
    pub const fn levels(&self) -> Levels {
        self.levels
    }

    /// What has happened since the term began.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// How many ids wait for a worker.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        Priority::ALL.into_iter().map(|priority| self.waiting_in(priority)).sum()
    }

    /// How many ids wait in this queue of all lanes.
    #[must_use]
    pub fn waiting_in(&self, priority: Priority) -> u32 {
        self.kinds.iter().map(|kind| kind.waiting(priority)).sum()
    }

    /// How many runs are under way.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.kinds.iter().map(Lanes::running).sum()
    }

    /// How many ids wait for a time.
    #[must_use]
    pub const fn delayed(&self) -> u32 {
        self.delayed.len()
    }

    /// Plants a fault, so that a test can show that it would be found.
    #[doc(hidden)]
    pub fn plant(&mut self, fault: &str) {
        match fault {
            // An event that comes during a run asks for no further one.
            "dirty" => self.faults.ignore_dirty = true,
            // What waits for a time wakes nobody.
            "timer" => self.faults.forget_timer = true,
            // Events count as done when their run begins.
            "settle" => self.faults.settle_early = true,
            // A record settles what came before its answer, not before its issue.
            "cover" => self.faults.cover_late = true,
            // A success deletes the record although it covers newer events.
            "erase" => self.faults.erase_newer = true,
            // The first priority always goes first.
            "starve" => self.kinds.iter_mut().for_each(|kind| kind.starve = true),
            other => panic!("no fault is called {other:?}"),
        }
    }

    fn kind_settings(&self, kind: u16) -> &KindSettings {
        &self.settings.kinds[usize::from(kind)]
    }

    fn start(&mut self, now: Time, slot: Slot, out: &mut Vec<Command>) -> Start {
        self.runs += 1;
        self.counters.started += 1;
        self.marks.begin(&mut self.slab, slot, out);
        if self.faults.settle_early {
            self.marks.settle(&mut self.slab, slot, out);
        }
        let entry = &mut self.slab[slot];
        entry.state = State::Running;
        entry.run = low_half(self.runs);
        entry.flags.clear(Flags::NEWER);
        let since = std::mem::replace(&mut entry.since, now);
        let causes = self.marks.take_causes(entry, slot);
        Start {
            slot,
            run: self.runs,
            id: entry.id.clone().unwrap_or_default(),
            kind: entry.kind,
            worker: entry.lane,
            attempt: entry.failures.saturating_add(1),
            causes,
            latest: entry.latest.get(),
            since,
        }
    }

    // Ways into a state. Each expects an entry that has left its old place.

    fn enter_pending(&mut self, now: Time, slot: Slot, priority: Priority) {
        let entry = &mut self.slab[slot];
        entry.state = State::Pending;
        entry.priority = priority;
        entry.since = now;
        let kind = usize::from(entry.kind);
        self.kinds[kind].push(&mut self.slab, slot);
    }

    fn enter_delayed(&mut self, now: Time, slot: Slot, due: Time) {
        let entry = &mut self.slab[slot];
        entry.state = State::Delayed;
        entry.due = due;
        self.delayed.insert(&mut self.slab, slot, now);
    }

    fn enter_parked(&mut self, slot: Slot, reason: ParkReason) {
        let entry = &mut self.slab[slot];
        entry.state = State::Parked;
        if entry.parked.replace(reason).is_none() {
            self.levels.parked += 1;
        }
        self.sit(slot, Seat::None);
    }

    /// Nothing is owed any more. The entry stays known until its place is needed.
    fn enter_idle(&mut self, slot: Slot) {
        self.sit(slot, Seat::None);
        let entry = &mut self.slab[slot];
        entry.state = State::Idle;
        entry.failures = 0;
        self.marks.forget(entry, slot);
        self.idle.push_back(&mut self.slab, slot);
        self.levels.idle += 1;
        if self.levels.idle > IDLE_KEPT_MAX
            && let Some(oldest) = self.idle.pop_front(&mut self.slab)
        {
            self.levels.idle -= 1;
            self.table.remove(&self.slab, oldest);
            self.slab.remove(oldest);
        }
    }

    // Ways out of a state.

    fn leave(&mut self, slot: Slot) {
        let entry = &self.slab[slot];
        match entry.state {
            State::Pending => {
                let kind = usize::from(entry.kind);
                self.kinds[kind].remove(&mut self.slab, slot);
            }
            State::Delayed => {
                self.slab[slot].flags.clear(Flags::TOO_SOON);
                self.delayed.remove(&mut self.slab, slot);
            }
            // It stays counted until it starts anew: an attempt that a resync gives it does not end the parking.
            State::Parked => {}
            State::Idle => {
                self.idle.remove(&mut self.slab, slot);
                self.levels.idle -= 1;
            }
            State::Running => self.end_run(slot),
            State::Free => debug_assert!(false, "a free place has nothing to leave"),
        }
    }

    /// Gives its slot of the lane and its permit back.
    fn end_run(&mut self, slot: Slot) {
        let (kind, lane) = (usize::from(self.slab[slot].kind), self.slab[slot].lane);
        self.kinds[kind].ended(lane);
    }

    /// Gives the entry another seat. A place is never refused here: who must move, moves (D5).
    fn sit(&mut self, slot: Slot, seat: Seat) {
        let old = std::mem::replace(&mut self.slab[slot].seat, seat);
        match old {
            Seat::Admitted => self.levels.admitted -= 1,
            Seat::Timer => self.levels.timers -= 1,
            Seat::None => {}
        }
        match seat {
            Seat::Admitted => self.levels.admitted += 1,
            Seat::Timer => self.levels.timers += 1,
            Seat::None => {}
        }
    }

    /// A timer that came due is owed a run now: it moves among the admitted if there is room, and else keeps its seat.
    fn seat_for_run(&mut self, slot: Slot) {
        if self.slab[slot].seat != Seat::Admitted && self.has_room() {
            self.sit(slot, Seat::Admitted);
        }
    }

    const fn has_room(&self) -> bool {
        self.levels.admitted < self.settings.admitted_max.get()
    }

    fn set_cause(&mut self, slot: Slot, source: SourceId) {
        let receipt = Receipt::new(source, self.runs);
        let entry = &mut self.slab[slot];
        entry.latest = Mark::new(receipt);
        self.marks.set_causes(entry, slot, Causes::NONE);
    }

    fn entry_of(&self, id: &str) -> Option<Slot> {
        self.table.find(&self.slab, self.table.hash(id), id)
    }

    fn entry_or_new(&mut self, id: &Arc<str>, kind: u16, worker: u16) -> Slot {
        self.entry_of(id).unwrap_or_else(|| {
            let slot = self.slab.insert(Arc::clone(id), kind, worker);
            self.table.insert(self.table.hash(id), slot);
            self.idle.push_back(&mut self.slab, slot);
            self.levels.idle += 1;
            slot
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is enough to tell a run from the few before it")]
const fn low_half(number: u64) -> u32 {
    number as u32
}

/// Whether a number's low half is this.
const fn is_number(entry: u32, number: u64) -> bool {
    entry == low_half(number)
}
