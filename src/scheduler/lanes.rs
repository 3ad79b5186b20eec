//! Lanes: what waits for a worker, by priority, and who goes next (Q6, Q7).
//!
//! A lane is the queue of one worker for one kind. It has several slots, so that a slow id does not block the ids behind it; and of
//! every eight starts a share is kept for retries and for the resync, so that none of them starves.

use std::collections::VecDeque;

use super::entry::{Priority, Slab, Slot};
use super::list::List;
use super::settings::KindSettings;

/// Whose turn it is, eight starts in a row: five for events, two for what came due, one for the resync. Who has nothing waiting
/// gives the turn to the first that has.
const TURNS: [Priority; 8] = [
    Priority::Event,
    Priority::Due,
    Priority::Event,
    Priority::Event,
    Priority::Resync,
    Priority::Event,
    Priority::Due,
    Priority::Event,
];

#[derive(Debug, Default)]
struct Lane {
    queues: [List; 3],
    running: u32,
    turn: u8,
    /// It stands in `ready`.
    listed: bool,
}

/// The lanes of one kind, and its permits to run.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    slots: u32,
    /// Lanes that have something to start and a free slot, each once.
    ready: VecDeque<u16>,
    /// Runs that this kind may start now; the driver shares them out among the shards of its process.
    permits: u32,
    running: u32,
    waiting: [u32; 3],
    /// A planted fault: the first priority always goes first.
    pub(super) starve: bool,
}

impl Lanes {
    pub(super) fn new(settings: &KindSettings) -> Self {
        Self {
            lanes: (0..settings.workers.get()).map(|_| Lane::default()).collect(),
            slots: settings.slots.get(),
            ready: VecDeque::with_capacity(usize::from(settings.workers.get())),
            permits: 0,
            running: 0,
            waiting: [0; 3],
            starve: false,
        }
    }

    pub(super) fn push(&mut self, slab: &mut Slab, slot: Slot) {
        let (lane, priority) = (slab[slot].lane, slab[slot].priority);
        self.lanes[usize::from(lane)].queues[priority.index()].push_back(slab, slot);
        self.waiting[priority.index()] += 1;
        self.list(lane);
    }

    pub(super) fn remove(&mut self, slab: &mut Slab, slot: Slot) {
        let (lane, priority) = (slab[slot].lane, slab[slot].priority);
        self.lanes[usize::from(lane)].queues[priority.index()].remove(slab, slot);
        self.waiting[priority.index()] -= 1;
    }

    /// Takes the next id to start, with a slot of its lane and a permit of its kind.
    pub(super) fn pop(&mut self, slab: &mut Slab) -> Option<Slot> {
        if self.permits == 0 {
            return None;
        }
        while let Some(number) = self.ready.pop_front() {
            let lane = &mut self.lanes[usize::from(number)];
            lane.listed = false;
            if lane.running == self.slots {
                continue;
            }
            let Some(priority) = lane.next(self.starve) else { continue };
            let Some(slot) = lane.queues[priority.index()].pop_front(slab) else { continue };
            lane.running += 1;
            self.permits -= 1;
            self.running += 1;
            self.waiting[priority.index()] -= 1;
            self.list(number);
            return Some(slot);
        }
        None
    }

    /// A run of this lane has ended.
    pub(super) fn ended(&mut self, lane: u16) {
        self.lanes[usize::from(lane)].running -= 1;
        self.running -= 1;
        self.permits += 1;
        self.list(lane);
    }

    pub(super) const fn grant(&mut self, permits: u32) {
        self.permits += permits;
    }

    /// Gives all permits back that no run uses.
    pub(super) const fn reclaim(&mut self) -> u32 {
        std::mem::replace(&mut self.permits, 0)
    }

    /// Whether something could start if there were a permit.
    pub(super) fn is_starved(&self) -> bool {
        self.permits == 0 && !self.ready.is_empty()
    }

    pub(super) const fn running(&self) -> u32 {
        self.running
    }

    pub(super) const fn waiting(&self, priority: Priority) -> u32 {
        self.waiting[priority.index()]
    }

    /// How many runs of this lane are under way, of how many.
    pub(super) fn lane_load(&self, lane: u16) -> (u32, u32) {
        (self.lanes[usize::from(lane)].running, self.slots)
    }

    /// Puts a lane among the ready ones, if it belongs there and does not stand there yet.
    fn list(&mut self, number: u16) {
        let lane = &mut self.lanes[usize::from(number)];
        if !lane.listed && lane.running < self.slots && lane.queues.iter().any(|queue| !queue.is_empty()) {
            lane.listed = true;
            self.ready.push_back(number);
        }
    }
}

impl Lane {
    /// The queue to take from: the one whose turn it is, or the first that has something.
    fn next(&mut self, starve: bool) -> Option<Priority> {
        let waits = |priority: &Priority| !self.queues[priority.index()].is_empty();
        let turn = if starve { Priority::Event } else { TURNS[usize::from(self.turn)] };
        self.turn = (self.turn + 1) % 8;
        Some(turn).filter(waits).or_else(|| Priority::ALL.into_iter().find(waits))
    }
}
