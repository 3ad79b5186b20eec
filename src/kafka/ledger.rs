//! Which offsets of one partition are owed, and up to where may be committed (K4).
//!
//! The rule: the committed offset is the lowest one still owed, or, where nothing is owed, the next one to be
//! delivered. Gaps (compaction, aborted transactions, control records) are normal and wait for nobody (B05): only what
//! was delivered can be owed. One ledger belongs to one assignment of a partition; a later assignment has a ledger of
//! its own, so that late answers of an earlier one settle nothing (B49).
//!
//! Pure: no clock, no async, no IO, no log, no chance; time comes in as a number. Tested below against a naive model
//! that keeps every offset, and in a small world with kills, full tables and owed records that looks for a lost event.

use std::collections::BTreeMap;

/// A point in time as the caller counts it; the ledger only hands it back.
pub type Tick = u64;

/// The offsets of one partition in one assignment.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// Delivered and not done, with the time of delivery.
    owed: BTreeMap<u64, Tick>,
    /// The offset that comes next: everything below was delivered or does not exist.
    position: u64,
    /// The highest mark that was given out.
    floor: u64,
}

impl Ledger {
    /// The ledger of an assignment that begins at this offset.
    #[must_use]
    pub const fn new(start: u64) -> Self {
        Self { owed: BTreeMap::new(), position: start, floor: start }
    }

    /// An event was delivered: it is owed from now on, whatever becomes of it. `false` where it was delivered before
    /// (its first time of delivery stands).
    pub fn deliver(&mut self, offset: u64, at: Tick) -> bool {
        let new = offset >= self.position;
        if new {
            self.position = offset.saturating_add(1);
        }
        // An offset below the position that comes again is owed again: looking once too often harms nobody.
        self.owed.entry(offset).or_insert(at);
        new
    }

    /// An event is done. Offsets that are not owed are ignored, so an answer may come twice.
    pub fn done(&mut self, offset: u64) {
        self.owed.remove(&offset);
    }

    /// Everything below this offset was delivered or does not exist. The position never goes back.
    pub fn reached(&mut self, offset: u64) {
        self.position = self.position.max(offset);
    }

    /// The next offset to commit: the lowest one owed, else the next one to be delivered. Never goes back.
    pub fn low_water(&mut self) -> u64 {
        let mark = self.owed.first_key_value().map_or(self.position, |(offset, _)| *offset);
        self.floor = self.floor.max(mark);
        self.floor
    }

    /// The offset that comes next.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The oldest event that is owed: its offset, and when it was delivered.
    #[must_use]
    pub fn oldest(&self) -> Option<(u64, Tick)> {
        self.owed.first_key_value().map(|(offset, at)| (*offset, *at))
    }

    /// How many events are owed.
    #[must_use]
    pub fn owed(&self) -> usize {
        self.owed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn k4_b04_the_lowest_event_owed_holds_the_mark() {
        let mut ledger = Ledger::new(0);
        for offset in 0..5 {
            assert!(ledger.deliver(offset, 10 + offset));
        }
        for offset in [3, 1, 4, 2] {
            ledger.done(offset);
            assert_eq!(ledger.low_water(), 0);
        }
        assert_eq!((ledger.oldest(), ledger.owed()), (Some((0, 10)), 1));
        ledger.done(0);
        assert_eq!((ledger.low_water(), ledger.oldest()), (5, None));
    }

    #[test]
    fn k4_b05_gaps_wait_for_nobody() {
        let mut ledger = Ledger::new(0);
        for offset in [0, 1, 7, 8] {
            ledger.deliver(offset, 0);
            ledger.done(offset);
        }
        assert_eq!(ledger.low_water(), 9, "2 to 6 never existed");
        ledger.reached(12);
        assert_eq!(ledger.low_water(), 12, "control records at the end of the log");
        ledger.reached(3);
        assert_eq!((ledger.position(), ledger.low_water()), (12, 12), "never back");
    }

    #[test]
    fn k4_answers_that_come_twice_or_for_nothing_are_ignored() {
        let mut ledger = Ledger::new(5);
        ledger.deliver(5, 0);
        for offset in [4, 6, 5, 5, u64::MAX] {
            ledger.done(offset);
        }
        assert_eq!(ledger.low_water(), 6);
        assert!(!ledger.deliver(5, 9), "again");
        assert_eq!((ledger.owed(), ledger.low_water()), (1, 6), "owed again, but the mark does not go back");
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Deliver,
        Gap(u64),
        Done(usize),
        Reached(u64),
        Read,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => Just(Step::Deliver),
            1 => (1_u64..5).prop_map(Step::Gap),
            4 => any::<usize>().prop_map(Step::Done),
            1 => (0_u64..3).prop_map(Step::Reached),
            2 => Just(Step::Read),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        /// The naive model keeps a state for every offset from the start on.
        #[test]
        fn k4_agrees_with_a_model_that_keeps_every_offset(start in 0_u64..1_000, steps in steps()) {
            let mut ledger = Ledger::new(start);
            let mut model: Vec<Option<bool>> = Vec::new(); // by offset: none for a gap, else whether it is done
            let mut last = start;
            for (now, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Deliver => {
                        ledger.deliver(start + model.len() as u64, now as u64);
                        model.push(Some(false));
                    }
                    Step::Gap(n) => model.extend((0..n).map(|_| None)),
                    Step::Done(at) if !model.is_empty() => {
                        let at = at % model.len();
                        ledger.done(start + at as u64);
                        model[at] = model[at].map(|_| true);
                    }
                    Step::Reached(back) => {
                        let to = (start + model.len() as u64).saturating_sub(back);
                        ledger.reached(to);
                    }
                    Step::Done(_) | Step::Read => {
                        let mark = ledger.low_water();
                        let open = model.iter().position(|state| *state == Some(false)).map(|at| start + at as u64);
                        prop_assert!(mark >= last, "the mark went back from {last} to {mark}");
                        prop_assert!(open.is_none_or(|open| mark <= open), "the mark {mark} passed {open:?}");
                        prop_assert!(open.is_none() || open == Some(mark), "the mark {mark} waits for nothing");
                        prop_assert!(mark <= start + model.len() as u64);
                        prop_assert_eq!(ledger.oldest().map(|(offset, _)| offset), open);
                        last = mark;
                    }
                }
            }
            ledger.reached(start + model.len() as u64);
            for at in 0..model.len() {
                ledger.done(start + at as u64);
            }
            prop_assert_eq!(ledger.low_water(), start + model.len() as u64);
        }
    }
}
