//! Lanes: what waits for a worker, by priority, and who goes next (Q6, Q7).
//!
//! A lane is the queue of one worker for one kind. It has several slots, so that a slow id does not block the ids
//! behind it; and of every eight starts a share is kept for retries and for the resync, so that none of them starves.
//!
//! A lane must never run more than its slots, nor a kind more than its permits. Tested below and by `Shard::audit`.

use std::collections::VecDeque;

use super::entry::{Priority, Slab, Slot};
use super::list::List;
use super::settings::KindSettings;

/// Whose turn it is, eight starts in a row: five for events, two for what came due, one for the resync. Who has nothing
/// waiting gives the turn to the first that has.
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
        // An id that left its lane may have been the last one there, and the lane still stand among the ready ones.
        self.permits == 0 && self.ready.iter().any(|lane| self.lanes[usize::from(*lane)].has_waiting())
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

    /// Recounts everything, for tests; `running` says how many runs a lane has. Gives how many entries it met.
    pub(super) fn audit(&self, slab: &Slab, kind: u16, running: impl Fn(u16) -> u32) -> u32 {
        let (mut met, mut runs) = ([0; 3], 0);
        for (number, lane) in (0..).zip(&self.lanes) {
            for priority in Priority::ALL {
                for slot in lane.queues[priority.index()].iter(slab) {
                    let entry = &slab[slot];
                    let place = (entry.kind, entry.lane, entry.priority);
                    assert_eq!(place, (kind, number, priority), "{}: in the wrong lane", entry.name());
                    met[priority.index()] += 1;
                }
            }
            assert_eq!(lane.running, running(number), "runs of lane {number} of kind {kind}");
            assert!(lane.running <= self.slots, "lane {number} of kind {kind} runs more than its slots");
            assert!(lane.listed || lane.running == self.slots || !lane.has_waiting(), "lane {number} is forgotten");
            let listed = self.ready.iter().filter(|ready| **ready == number).count();
            assert_eq!(listed, usize::from(lane.listed), "lane {number} stands in ready");
            runs += lane.running;
        }
        assert_eq!((met, runs), (self.waiting, self.running), "waiting and running of kind {kind}");
        met.iter().sum()
    }

    /// Puts a lane among the ready ones, if it belongs there and does not stand there yet.
    fn list(&mut self, number: u16) {
        let lane = &mut self.lanes[usize::from(number)];
        if !lane.listed && lane.running < self.slots && lane.has_waiting() {
            lane.listed = true;
            self.ready.push_back(number);
        }
    }
}

impl Lane {
    fn has_waiting(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// The queue to take from: the one whose turn it is, or the first that has something.
    fn next(&mut self, starve: bool) -> Option<Priority> {
        let waits = |priority: &Priority| !self.queues[priority.index()].is_empty();
        let turn = if starve { Priority::Event } else { TURNS[usize::from(self.turn)] };
        self.turn = (self.turn + 1) % 8;
        Some(turn).filter(waits).or_else(|| Priority::ALL.into_iter().find(waits))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::num::{NonZeroU16, NonZeroU32};

    use proptest::prelude::*;

    use super::*;
    use crate::scheduler::settings::Retry;

    fn lanes(workers: u16, slots: u32) -> Lanes {
        let workers = NonZeroU16::new(workers).expect("not zero");
        let slots = NonZeroU32::new(slots).expect("not zero");
        Lanes::new(&KindSettings { workers, slots, retry: Retry::DEFAULT })
    }

    fn push(lanes: &mut Lanes, slab: &mut Slab, lane: u16, priority: Priority) -> Slot {
        let slot = slab.insert(format!("{lane} {priority:?} {}", slab.len()).into(), 0, lane);
        slab[slot].priority = priority;
        lanes.push(slab, slot);
        slot
    }

    #[test]
    fn q7_a_slow_id_never_blocks_the_ids_behind_it_while_a_slot_is_free() {
        let (mut lanes, mut slab) = (lanes(1, 2), Slab::new());
        lanes.grant(10);
        let ids: Vec<_> = (0..3).map(|_| push(&mut lanes, &mut slab, 0, Priority::Event)).collect();
        assert_eq!(lanes.pop(&mut slab), Some(ids[0]));
        assert_eq!(lanes.pop(&mut slab), Some(ids[1]), "the first one still runs");
        assert_eq!(lanes.pop(&mut slab), None, "both slots are taken");
        assert_eq!(lanes.lane_load(0), (2, 2));
        lanes.ended(0);
        assert_eq!(lanes.pop(&mut slab), Some(ids[2]));
    }

    #[test]
    fn q7_lanes_take_turns_whatever_waits_in_them() {
        let (mut lanes, mut slab) = (lanes(3, 100), Slab::new());
        lanes.grant(100);
        for lane in [0, 0, 0, 0, 0, 0, 1, 1, 2] {
            push(&mut lanes, &mut slab, lane, Priority::Event);
        }
        let order: Vec<_> = std::iter::from_fn(|| lanes.pop(&mut slab).map(|slot| slab[slot].lane)).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn q6_each_priority_keeps_its_share_and_gives_away_what_it_does_not_use() {
        let (mut lanes, mut slab) = (lanes(1, 1_000), Slab::new());
        lanes.grant(1_000);
        for priority in Priority::ALL {
            for _ in 0..40 {
                push(&mut lanes, &mut slab, 0, priority);
            }
        }
        let mut next = || lanes.pop(&mut slab).map(|slot| slab[slot].priority);
        for _ in 0..8 {
            let turn: Vec<_> = (0..8).filter_map(|_| next()).collect();
            let shares = Priority::ALL.map(|priority| turn.iter().filter(|got| **got == priority).count());
            assert_eq!(shares, [5, 2, 1]);
        }
        // The events are gone: what is left is shared by the two that are.
        let rest: Vec<_> = std::iter::from_fn(next).collect();
        assert_eq!(rest.len(), 56);
        assert_eq!(rest[..16].iter().filter(|got| **got == Priority::Due).count(), 14, "{rest:?}");
    }

    #[test]
    fn q7_a_lane_whose_last_id_left_wants_no_permit() {
        let (mut lanes, mut slab) = (lanes(2, 1), Slab::new());
        let slot = push(&mut lanes, &mut slab, 0, Priority::Event);
        assert!(lanes.is_starved());
        lanes.remove(&mut slab, slot);
        assert!(!lanes.is_starved(), "nothing waits");
        lanes.push(&mut slab, slot);
        assert!(lanes.is_starved());
        lanes.grant(1);
        assert!(!lanes.is_starved());
        assert_eq!((lanes.pop(&mut slab), lanes.reclaim()), (Some(slot), 0));
        assert!(!lanes.is_starved(), "nothing waits");
        lanes.ended(0);
        assert_eq!(lanes.reclaim(), 1, "a run that ends gives its permit back");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        /// Against three queues a lane in a map: never above slots or permits, first come first served in each queue, a
        /// pop whenever one is possible, and nobody waits longer than eight turns for each one before it.
        #[test]
        fn q6_q7_agree_with_plain_queues(
            workers in 1..4_u16,
            slots in 1..4_u32,
            ops in prop::collection::vec((0..10_u8, 0..4_u16, 0..3_usize), 1..200),
        ) {
            let (mut lanes, mut slab) = (lanes(workers, slots), Slab::new());
            let mut queues: HashMap<(u16, Priority), Vec<(Slot, usize)>> = HashMap::new();
            let mut running: Vec<u16> = Vec::new();
            let mut starts = vec![0; usize::from(workers)];
            let mut permits = 0_u32;
            for (op, lane, priority) in ops {
                let (lane, priority) = (lane % workers, Priority::ALL[priority]);
                let queue = queues.entry((lane, priority)).or_default();
                match op {
                    0..=3 => {
                        let latest = starts[usize::from(lane)] + 8 * (queue.len() + 1);
                        queue.push((push(&mut lanes, &mut slab, lane, priority), latest));
                    }
                    4 if !queue.is_empty() => {
                        let (slot, _) = queue.remove(queue.len() / 2);
                        lanes.remove(&mut slab, slot);
                    }
                    5 if !running.is_empty() => {
                        lanes.ended(running.remove(0));
                        permits += 1;
                    }
                    6 => {
                        lanes.grant(2);
                        permits += 2;
                    }
                    7 => prop_assert_eq!(lanes.reclaim(), std::mem::take(&mut permits)),
                    _ => {
                        let free = |lane: u16| running.iter().filter(|of| **of == lane).count() < slots as usize;
                        let possible = queues.iter().any(|((lane, _), queue)| !queue.is_empty() && free(*lane));
                        prop_assert_eq!(lanes.is_starved(), permits == 0 && possible);
                        let popped = lanes.pop(&mut slab);
                        prop_assert_eq!(popped.is_some(), permits > 0 && possible);
                        let Some(slot) = popped else { continue };
                        let place = (slab[slot].lane, slab[slot].priority);
                        prop_assert!(free(place.0), "a lane beyond its slots");
                        let (first, latest) = queues.get_mut(&place).expect("it waits").remove(0);
                        prop_assert_eq!(first, slot, "first come, first served");
                        starts[usize::from(place.0)] += 1;
                        prop_assert!(starts[usize::from(place.0)] <= latest, "starved");
                        running.push(place.0);
                        permits -= 1;
                    }
                }
                lanes.audit(&slab, 0, |lane| u32::try_from(running.iter().filter(|of| **of == lane).count()).unwrap());
            }
        }
    }
}
