//! What each id holds back: the events that wait for a run of it, and those that its present run answers (design
//! decision 9).
//!
//! Per source only the lowest event is kept: what comes later from the same source is held back by it anyway, so memory
//! goes with the ids that wait, not with the events that passed. While an owed record is being written, what it covers
//! is set apart, so that its answer settles that and nothing that came later (D12).
//!
//! The rules are those of a small proof: an event leaves exactly once, by `Release`, and not before a run that began
//! after it has succeeded or a record that was issued after it is durable. `tests/sim` checks them against a ledger
//! that remembers all events.

use fnv::FnvHashMap;

use super::command::Command;
use super::entry::{Entry, Flags, Slab, Slot, State};
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

    /// Sets the causes of the next run; none leaves the one in `entry.latest`.
    pub(super) fn set_causes(&mut self, entry: &mut Entry, slot: Slot, causes: Causes) {
        if !causes.is_empty() {
            self.side(entry, slot).causes = causes;
        } else if entry.flags.has(Flags::SIDE) {
            self.side(entry, slot).causes = causes;
            self.tidy(entry, slot);
        }
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

    /// Checks what stands for one entry, for tests.
    pub(super) fn audit(&self, entry: &Entry, slot: Slot) {
        let name = entry.name();
        let side = self.more.get(&slot.0);
        assert_eq!(side.is_some(), entry.flags.has(Flags::SIDE), "{name}: side entry");
        let kept = side.is_some_and(|more| more.retry_due.is_some());
        assert_eq!(kept, entry.flags.has(Flags::RETRY_KEPT), "{name}: a retry that was kept");
        let mut marks: Vec<_> = side.map(|more| more.marks.clone()).unwrap_or_default();
        assert!(!marks.is_empty() || kept || side.is_none_or(|more| !more.causes.is_empty()), "{name}: an empty side");
        marks.extend(entry.waiting.get().map(|event| (Set::Waiting, event)));
        marks.extend(entry.running.get().map(|event| (Set::Running, event)));
        for (at, (set, event)) in marks.iter().enumerate() {
            let twice = marks[..at].iter().any(|(other, kept)| other == set && kept.source == event.source);
            assert!(!twice, "{name}: two marks of one source in {set:?}");
            let covered = matches!(set, Set::WaitingCovered | Set::RunningCovered);
            assert!(!covered || entry.flags.has(Flags::WRITING), "{name}: covered by no record that is being written");
            let running = matches!(set, Set::Running | Set::RunningCovered);
            assert!(!running || entry.state == State::Running, "{name}: answered by no run");
        }
        let owes = !matches!(entry.state, State::Free | State::Idle);
        assert!(owes || (marks.is_empty() && side.is_none()), "{name}: idle, and holds {marks:?} back");
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
        if let Some(mark) = inline(entry, set)
            && let Some(kept) = mark.get().filter(|kept| kept.source == event.source)
        {
            *mark = Mark::new(kept.min(event));
            out.push(Command::Release(kept.max(event)));
            return;
        }
        if entry.flags.has(Flags::SIDE)
            && let Some(more) = self.more.get_mut(&slot.0)
            && let Some((_, kept)) = more.marks.iter_mut().find(|(at, kept)| *at == set && kept.source == event.source)
        {
            out.push(Command::Release((*kept).max(event)));
            *kept = (*kept).min(event);
            return;
        }
        match inline(entry, set) {
            Some(mark) if mark.is_none() => *mark = Mark::new(event),
            _ => self.side(entry, slot).marks.push((set, event)),
        }
    }

    /// Moves all of one set into another.
    fn turn(&mut self, entry: &mut Entry, slot: Slot, from: Set, to: Set, out: &mut Vec<Command>) {
        if let Some(event) = inline(entry, from).and_then(|mark| std::mem::replace(mark, Mark::NONE).get()) {
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

/// The place in the entry itself, for the sets that have one.
const fn inline(entry: &mut Entry, set: Set) -> Option<&mut Mark> {
    match set {
        Set::Waiting => Some(&mut entry.waiting),
        Set::Running => Some(&mut entry.running),
        Set::WaitingCovered | Set::RunningCovered => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::id::SourceId;

    /// An event that is not done, as an observer who forgets nothing sees it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Owed {
        event: Receipt,
        running: bool,
        covered: bool,
    }

    struct World {
        marks: Marks,
        slab: Slab,
        slot: Slot,
        owed: Vec<Owed>,
        /// Not released yet.
        kept: BTreeSet<Receipt>,
        next: u64,
        running: bool,
        covering: bool,
    }

    impl World {
        fn new() -> Self {
            let mut slab = Slab::new();
            let slot = slab.insert("a".into(), 0, 0);
            slab[slot].state = State::Pending;
            let (owed, kept) = (Vec::new(), BTreeSet::new());
            Self { marks: Marks::default(), slab, slot, owed, kept, next: 0, running: false, covering: false }
        }

        /// One step; those that make no sense now do nothing.
        fn step(&mut self, op: u8, source: u32) {
            let mut out = Vec::new();
            let Self { marks, slab, slot, owed, .. } = self;
            match op {
                0..=3 => {
                    let event = Receipt::new(SourceId::numbered(source, true), self.next);
                    self.next += 1;
                    owed.push(Owed { event, running: false, covered: false });
                    self.kept.insert(event);
                    marks.add(slab, *slot, event, &mut out);
                }
                4 if !self.running => {
                    marks.begin(slab, *slot, &mut out);
                    owed.iter_mut().for_each(|owed| owed.running = true);
                    self.running = true;
                }
                5 if self.running => {
                    marks.settle(slab, *slot, &mut out);
                    owed.retain(|owed| !owed.running);
                    self.running = false;
                }
                6 if self.running => {
                    marks.fail(slab, *slot, &mut out);
                    owed.iter_mut().for_each(|owed| owed.running = false);
                    self.running = false;
                }
                7 if !self.covering => {
                    marks.cover(slab, *slot, &mut out);
                    owed.iter_mut().for_each(|owed| owed.covered = true);
                    self.covering = true;
                }
                8 if self.covering => {
                    marks.covered(slab, *slot, &mut out);
                    owed.retain(|owed| !owed.covered);
                    self.covering = false;
                }
                9 => {
                    let entry = &mut slab[*slot];
                    marks.add_cause(entry, *slot, Receipt::new(SourceId::RETRY, 1));
                }
                10 => {
                    let entry = &mut slab[*slot];
                    marks.set_causes(entry, *slot, Causes::NONE);
                }
                _ => {}
            }
            for command in out {
                let Command::Release(event) = command else { panic!("{command:?}") };
                assert!(self.kept.remove(&event), "{event} left twice");
            }
            self.check();
        }

        /// Of what shares a source and a fate the lowest is kept, and nothing else.
        fn check(&mut self) {
            let lowest = |owed: &Owed| {
                let same = |other: &&Owed| {
                    (other.event.source, other.running, other.covered)
                        == (owed.event.source, owed.running, owed.covered)
                };
                self.owed.iter().filter(same).map(|other| other.event).min()
            };
            let expected: BTreeSet<_> = self.owed.iter().filter_map(lowest).collect();
            assert_eq!(self.kept, expected, "{:?}", self.owed);
            let (slab, slot) = (&mut self.slab, self.slot);
            let holds = self.owed.iter().any(|owed| !owed.covered);
            assert_eq!(self.marks.holds(&slab[slot], slot), holds);
            slab[slot].state = if self.running { State::Running } else { State::Pending };
            slab[slot].flags.clear(Flags::WRITING);
            slab[slot].flags.set(if self.covering { Flags::WRITING } else { 0 });
            self.marks.audit(&slab[slot], slot);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn k4_d12_the_lowest_event_of_each_fate_is_kept(ops in prop::collection::vec((0..11_u8, 0..3_u32), 1..60)) {
            let mut world = World::new();
            for (op, source) in ops {
                world.step(op, source);
            }
        }
    }

    #[test]
    fn k4_an_absorbed_event_of_the_same_source_needs_no_side_table() {
        let mut world = World::new();
        for op in [0, 0, 0, 4, 0, 0, 6, 4, 5] {
            world.step(op, 0);
            assert!(world.marks.more.is_empty());
        }
    }

    #[test]
    fn t5_causes_go_with_the_run_that_answers_them() {
        let (mut marks, mut slab) = (Marks::default(), Slab::new());
        let slot = slab.insert("a".into(), 0, 0);
        let cause = |position| Receipt::new(SourceId::numbered(0, false), position);
        let entry = &mut slab[slot];
        entry.latest = Mark::new(cause(1));
        assert_eq!(marks.causes(entry, slot), Causes::one(cause(1)), "the first one costs nothing");
        for position in 2..8 {
            marks.add_cause(entry, slot, cause(position));
            entry.latest = Mark::new(cause(position));
        }
        let causes = marks.take_causes(entry, slot);
        assert_eq!(causes.iter().collect::<Vec<_>>(), [1, 2, 3, 4].map(cause));
        assert_eq!(causes.more(), 3);
        assert!(marks.more.is_empty() && !entry.flags.has(Flags::SIDE));
    }
}
