//! The delay queue: entries by the time at which they run, an index over the table, never a copy of an entry.
//!
//! Due times are rounded up to ticks, so what is due together lies together: one list a tick for the next few minutes,
//! found through a bitmap, and coarser lists beyond, which are poured into ticks some time before they are due. Insert,
//! cancel and expire are a few writes however many wait (D5), and pouring is cut into slices so that nothing stalls.
//!
//! It must never let an entry go early, nor look at more than it moves. Tested below against a sorted map.

use std::collections::BTreeMap;
use std::time::Duration;

use super::entry::{Flags, Slab, Slot};
use super::list::List;
use super::time::Time;

/// Ticks that have a list of their own: 164 s at the default resolution, 128 KiB once the first delay comes.
const NEAR: u64 = 1 << 14;
/// Ticks that share a list beyond that.
const COARSE: u64 = 256;
/// Entries poured in one call; there are minutes to pour the rest.
const POUR_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct DelayQueue {
    resolution: u64,
    /// The first tick that has not been expired; near ticks are `base..base + NEAR`.
    base: u64,
    near: Vec<List>,
    occupied: Bitmap,
    far: BTreeMap<u64, List>,
    len: u32,
}

impl DelayQueue {
    pub(super) fn new(resolution: Duration) -> Self {
        Self {
            resolution: u64::try_from(resolution.as_nanos()).unwrap_or(u64::MAX).max(1),
            base: 0,
            near: Vec::new(),
            occupied: Bitmap::default(),
            far: BTreeMap::new(),
            len: 0,
        }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    /// Puts an entry in; `slab[slot].due` says when.
    pub(super) fn insert(&mut self, slab: &mut Slab, slot: Slot, now: Time) {
        self.len += 1;
        let tick = self.tick(slab[slot].due);
        if !self.is_near(tick) {
            // The window stands where it was last needed, and that may be long ago.
            self.slide(now);
        }
        if self.is_near(tick) {
            slab[slot].flags.clear(Flags::FAR);
            self.push_near(slab, slot, tick);
        } else {
            slab[slot].flags.set(Flags::FAR);
            self.far.entry(tick / COARSE).or_default().push_back(slab, slot);
        }
    }

    /// Takes an entry out before its time.
    pub(super) fn remove(&mut self, slab: &mut Slab, slot: Slot) {
        self.len -= 1;
        let tick = self.tick(slab[slot].due);
        if slab[slot].flags.take(Flags::FAR) {
            let bucket = tick / COARSE;
            let Some(list) = self.far.get_mut(&bucket) else {
                debug_assert!(false, "a far entry without a bucket");
                return;
            };
            list.remove(slab, slot);
            if list.is_empty() {
                self.far.remove(&bucket);
            }
        } else {
            let index = near_index(tick.max(self.base));
            self.near[index].remove(slab, slot);
            if self.near[index].is_empty() {
                self.occupied.clear(index);
            }
        }
    }

    /// Takes out one entry that is due by now, the earliest tick first.
    pub(super) fn pop_due(&mut self, slab: &mut Slab, now: Time) -> Option<Slot> {
        let last = now.0 / self.resolution;
        let tick = loop {
            let near = self.first_near();
            // After a pause of minutes a far bucket may be due before it was poured: it goes first, however long that
            // takes.
            if self.first_far().is_none_or(|far| far > last || near.is_some_and(|near| near < far)) {
                break near?;
            }
            self.advance(slab, now);
        };
        if tick > last {
            return None;
        }
        let index = near_index(tick);
        let slot = self.near[index].pop_front(slab)?;
        if self.near[index].is_empty() {
            self.occupied.clear(index);
        }
        self.len -= 1;
        Some(slot)
    }

    /// When to look again: the earliest due time, or the time to pour.
    pub(super) fn next_time(&self) -> Option<Time> {
        let near = self.first_near();
        let far = self.far.first_key_value().map(|(bucket, _)| pour_tick(*bucket));
        let tick = near.into_iter().chain(far).min()?;
        Some(Time(tick.saturating_mul(self.resolution)))
    }

    /// Moves the window up to now, so that what is due soon gets a tick of its own. Pours at most a slice.
    pub(super) fn advance(&mut self, slab: &mut Slab, now: Time) {
        self.slide(now);
        self.pour(slab);
    }

    /// Moves the window up to now, but not past what has not been expired.
    fn slide(&mut self, now: Time) {
        let now = now.0 / self.resolution;
        let first = self.first_near().into_iter().chain(self.first_far()).min();
        self.base = self.base.max(first.map_or(now, |first| first.min(now)));
    }

    const fn tick(&self, due: Time) -> u64 {
        due.0.div_ceil(self.resolution)
    }

    const fn is_near(&self, tick: u64) -> bool {
        tick < self.base.saturating_add(NEAR)
    }

    /// The first tick of the earliest far bucket.
    fn first_far(&self) -> Option<u64> {
        self.far.first_key_value().map(|(bucket, _)| bucket * COARSE)
    }

    /// Recounts everything, for tests. Gives how many entries it met.
    pub(super) fn audit(&self, slab: &Slab) -> u32 {
        let mut met = 0;
        for index in self.occupied.iter() {
            assert!(!self.near[index].is_empty(), "an empty tick is marked as occupied");
            for slot in self.near[index].iter(slab) {
                let entry = &slab[slot];
                assert!(!entry.flags.has(Flags::FAR), "{}: near, but marked as far", entry.name());
                let tick = self.tick(entry.due).max(self.base);
                assert!(self.is_near(tick) && near_index(tick) == index, "{}: under the wrong tick", entry.name());
                met += 1;
            }
        }
        for (bucket, list) in &self.far {
            assert!(!list.is_empty() && bucket * COARSE >= self.base, "a far bucket that is empty or over");
            for slot in list.iter(slab) {
                let entry = &slab[slot];
                assert!(entry.flags.has(Flags::FAR), "{}: far, but not marked so", entry.name());
                assert_eq!(self.tick(entry.due) / COARSE, *bucket, "{}: in the wrong bucket", entry.name());
                met += 1;
            }
        }
        assert_eq!(met, self.len, "the delay queue's length");
        met
    }

    fn push_near(&mut self, slab: &mut Slab, slot: Slot, tick: u64) {
        if self.near.is_empty() {
            self.near = vec![List::default(); usize::try_from(NEAR).unwrap_or(usize::MAX)];
        }
        // What is late already is due now.
        let index = near_index(tick.max(self.base));
        if self.near[index].is_empty() {
            self.occupied.set(index);
        }
        self.near[index].push_back(slab, slot);
    }

    /// The earliest occupied tick.
    fn first_near(&self) -> Option<u64> {
        let start = near_index(self.base);
        let index = self.occupied.first_from(start)?;
        let ahead = (index + near_index(NEAR - 1) + 1 - start) & near_index(NEAR - 1);
        Some(self.base + ahead as u64)
    }

    fn pour(&mut self, slab: &mut Slab) {
        for _ in 0..POUR_MAX {
            let Some(mut first) = self.far.first_entry() else { return };
            if pour_tick(*first.key()) > self.base {
                return;
            }
            let popped = first.get_mut().pop_front(slab);
            if first.get().is_empty() {
                first.remove();
            }
            if let Some(slot) = popped {
                slab[slot].flags.clear(Flags::FAR);
                let tick = self.tick(slab[slot].due);
                self.push_near(slab, slot, tick);
            }
        }
    }
}

/// From which tick on a far bucket lies in the window as a whole.
const fn pour_tick(bucket: u64) -> u64 {
    (bucket * COARSE).saturating_add(COARSE).saturating_sub(NEAR)
}

const fn near_index(tick: u64) -> usize {
    (tick % NEAR) as usize
}

/// Which ticks have entries: one bit each, and one bit a word of those.
#[derive(Debug, Default)]
struct Bitmap {
    words: Vec<u64>,
    summary: [u64; 4],
}

impl Bitmap {
    fn set(&mut self, index: usize) {
        if self.words.is_empty() {
            self.words = vec![0; 256];
        }
        self.words[index / 64] |= 1 << (index % 64);
        self.summary[index / 4_096] |= 1 << (index / 64 % 64);
    }

    fn clear(&mut self, index: usize) {
        self.words[index / 64] &= !(1 << (index % 64));
        if self.words[index / 64] == 0 {
            self.summary[index / 4_096] &= !(1 << (index / 64 % 64));
        }
    }

    /// All set bits, for tests.
    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..self.words.len()).flat_map(|word| {
            let bits = self.words[word];
            assert_eq!(bits != 0, self.summary[word / 64] & (1 << (word % 64)) != 0, "the summary of word {word}");
            (0..if bits == 0 { 0 } else { 64 })
                .filter(move |bit| bits & (1 << bit) != 0)
                .map(move |bit| word * 64 + bit)
        })
    }

    /// The first set bit from `start` on, going round.
    fn first_from(&self, start: usize) -> Option<usize> {
        if self.words.is_empty() {
            return None;
        }
        let word = start / 64;
        let rest = self.words[word] & (u64::MAX << (start % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let word = self.next_word(word + 1, 256).or_else(|| self.next_word(0, word + 1))?;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// The first word that is not zero in `from..to`.
    fn next_word(&self, from: usize, to: usize) -> Option<usize> {
        let mut word = from;
        while word < to {
            let rest = self.summary[word / 64] & (u64::MAX << (word % 64));
            if rest != 0 {
                let found = word / 64 * 64 + rest.trailing_zeros() as usize;
                return (found < to).then_some(found);
            }
            word = (word / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const RESOLUTION: u64 = 10_000_000;
    const MS: u64 = 1_000_000;
    const IDS: u32 = 24;

    /// What a caller does; times are in nanoseconds from the present.
    #[derive(Debug, Clone)]
    enum Op {
        Insert(u32, u64),
        InsertPast(u32, u64),
        Remove(u32),
        Wait(u64),
        /// Waits until `next_time`, as a driver does.
        Next,
    }

    /// Distances at which a queue of ticks and buckets goes wrong if it does: ends of ticks, of buckets and of the
    /// window.
    fn distance() -> impl Strategy<Value = u64> {
        let tick =
            prop_oneof![0..5_u64, Just(COARSE), Just(NEAR), NEAR - 300..NEAR + 300, 0..4 * NEAR, 0..100_000_000_u64];
        (tick, prop_oneof![Just(0), Just(1), Just(RESOLUTION - 1), 0..RESOLUTION])
            .prop_map(|(tick, rest)| tick * RESOLUTION + rest)
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0..IDS, distance()).prop_map(|(id, time)| Op::Insert(id, time)),
            1 => (0..IDS, distance()).prop_map(|(id, time)| Op::InsertPast(id, time)),
            2 => (0..IDS).prop_map(Op::Remove),
            2 => distance().prop_map(Op::Wait),
            3 => Just(Op::Next),
        ]
    }

    struct World {
        queue: DelayQueue,
        slab: Slab,
        now: Time,
        /// The model: ticks and ids, sorted.
        model: BTreeSet<(u64, u32)>,
    }

    impl World {
        fn new(start: u64) -> Self {
            let mut slab = Slab::new();
            for id in 0..IDS {
                slab.insert(id.to_string().into(), 0, 0);
            }
            let queue = DelayQueue::new(Duration::from_nanos(RESOLUTION));
            Self { queue, slab, now: Time(start), model: BTreeSet::new() }
        }

        fn tick_of(&self, id: u32) -> Option<u64> {
            self.model.iter().find(|(_, other)| *other == id).map(|(tick, _)| *tick)
        }

        fn insert(&mut self, id: u32, due: u64) {
            self.remove(id);
            self.slab[Slot(id)].due = Time(due);
            self.queue.insert(&mut self.slab, Slot(id), self.now);
            self.model.insert((due.div_ceil(RESOLUTION), id));
        }

        fn remove(&mut self, id: u32) {
            if let Some(tick) = self.tick_of(id) {
                self.queue.remove(&mut self.slab, Slot(id));
                self.model.remove(&(tick, id));
            }
        }

        /// Expires as a driver does: a slice a turn, again at once while `next_time` is over.
        fn expire(&mut self) {
            let (mut turns, mut last) = (0, 0);
            while self.queue.next_time().is_some_and(|time| time <= self.now) {
                turns += 1;
                assert!(turns <= 8 + IDS, "{turns} turns for {IDS} ids: the driver spins");
                for _ in 0..3 {
                    let base = self.queue.base;
                    let Some(slot) = self.queue.pop_due(&mut self.slab, self.now) else { break };
                    assert!(self.slab[slot].due <= self.now, "expired early");
                    let tick = self.tick_of(slot.0).expect("it was in the queue");
                    self.model.remove(&(tick, slot.0));
                    // What was late when it came is due with what was due then.
                    let tick = tick.max(base);
                    assert!(tick >= last, "out of order");
                    last = tick;
                }
                self.queue.advance(&mut self.slab, self.now);
                self.queue.audit(&self.slab);
            }
        }

        fn check(&mut self) {
            self.expire();
            self.queue.audit(&self.slab);
            assert_eq!(self.queue.len() as usize, self.model.len());
            assert_eq!(self.queue.pop_due(&mut self.slab, self.now), None, "not due, or next_time was too late");
            let Some((first, _)) = self.model.first() else { return assert_eq!(self.queue.next_time(), None) };
            let next = self.queue.next_time().expect("somebody waits");
            assert!(next > self.now, "the driver spins");
            assert!(next.0 <= first * RESOLUTION, "the driver sleeps past a due entry");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn d5_b03_agrees_with_a_sorted_map(
            start in prop_oneof![Just(0), Just(RESOLUTION), distance()],
            ops in prop::collection::vec(op(), 1..60),
        ) {
            let mut world = World::new(start);
            for op in ops {
                let now = world.now.0;
                match op {
                    Op::Insert(id, time) => world.insert(id, now + time),
                    Op::InsertPast(id, time) => world.insert(id, now.saturating_sub(time)),
                    Op::Remove(id) => world.remove(id),
                    Op::Wait(time) => world.now = Time(now + time),
                    Op::Next => world.now = world.queue.next_time().unwrap_or(world.now).max(world.now),
                }
                world.check();
            }
            // Whatever was inserted is expired after a bounded number of wake-ups.
            let mut wakes = 0;
            while let Some(next) = world.queue.next_time() {
                world.now = next;
                world.check();
                wakes += 1;
                prop_assert!(wakes <= 2 * IDS, "{} wake-ups for {} ids", wakes, IDS);
            }
            prop_assert!(world.model.is_empty());
        }
    }

    #[test]
    fn d5_pouring_is_cut_into_slices() {
        let count = 2_000;
        let mut slab = Slab::new();
        let mut queue = DelayQueue::new(Duration::from_nanos(RESOLUTION));
        let far = (NEAR + COARSE / 2) * RESOLUTION;
        for id in 0..count {
            let slot = slab.insert(id.to_string().into(), 0, 0);
            slab[slot].due = Time(far);
            queue.insert(&mut slab, slot, Time::ZERO);
        }
        let pour = queue.next_time().expect("a far bucket");
        assert!(pour < Time(far), "poured before it is due");
        let mut turns = 0;
        while queue.next_time().is_some_and(|time| time <= pour) {
            let far_before = queue.far.values().map(|list| list.iter(&slab).count()).sum::<usize>();
            queue.advance(&mut slab, pour);
            let far_after = queue.far.values().map(|list| list.iter(&slab).count()).sum::<usize>();
            assert!(far_before - far_after <= POUR_MAX, "a slice at a time");
            queue.audit(&slab);
            turns += 1;
        }
        assert_eq!(turns, 2_000_usize.div_ceil(POUR_MAX));
        assert_eq!(queue.pop_due(&mut slab, Time(far - 1)), None);
        for _ in 0..count {
            assert!(queue.pop_due(&mut slab, Time(far)).is_some());
        }
        assert_eq!((queue.len(), queue.next_time()), (0, None));
    }

    #[test]
    fn b03_an_earlier_entry_moves_the_next_time_and_an_early_wake_changes_nothing() {
        let mut world = World::new(7 * MS);
        world.insert(0, 60_000 * MS);
        assert_eq!(world.queue.next_time(), Some(Time(60_000 * MS)));
        world.insert(1, 1_000 * MS);
        assert_eq!(world.queue.next_time(), Some(Time(1_000 * MS)));
        world.now = Time(1_000 * MS - 1);
        world.check();
        assert_eq!(world.queue.next_time(), Some(Time(1_000 * MS)), "still armed");
        world.now = Time(1_000 * MS);
        world.check();
        assert_eq!(world.tick_of(1), None);
        world.insert(0, 3 * MS);
        world.check();
        assert_eq!(world.tick_of(0), None, "a time that is past is due at once");
    }

    #[test]
    fn b45_the_end_of_time_does_not_overflow() {
        for resolution in [1, 3, RESOLUTION] {
            let mut slab = Slab::new();
            let mut queue = DelayQueue::new(Duration::from_nanos(resolution));
            let slot = slab.insert("a".into(), 0, 0);
            slab[slot].due = Time::MAX;
            queue.insert(&mut slab, slot, Time(5));
            assert!(queue.next_time().is_some_and(|time| time > Time(5)));
            assert_eq!(queue.pop_due(&mut slab, Time(1 << 60)), None);
            queue.audit(&slab);
            queue.remove(&mut slab, slot);
            assert_eq!(queue.next_time(), None);
        }
    }
}
