//! The delay queue: entries by the time at which they run, an index over the table, never a copy of an entry.
//!
//! Due times are rounded up to ticks, so what is due together lies together: one list a tick for the next few minutes, found
//! through a bitmap, and coarser lists beyond, which are poured into ticks some time before they are due. Insert, cancel and
//! expire are a few writes however many wait (D5), and pouring is cut into slices so that nothing stalls.

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
    pub(super) fn insert(&mut self, slab: &mut Slab, slot: Slot) {
        self.len += 1;
        let tick = self.tick(slab[slot].due);
        if tick < self.base + NEAR {
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
            self.advance(slab, now);
            let near = self.first_near();
            // After a pause of minutes a far bucket may be due before it was poured: it goes first, however long that takes.
            let far = self.far.keys().next().map(|bucket| bucket * COARSE);
            if far.is_none_or(|far| far > last || near.is_some_and(|near| near < far)) {
                break near?;
            }
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
        let far = self.far.first_key_value().map(|(bucket, _)| ((bucket + 1) * COARSE).saturating_sub(NEAR));
        let tick = match (near, far) {
            (Some(near), Some(far)) => near.min(far),
            (one, other) => one.or(other)?,
        };
        Some(Time(tick.saturating_mul(self.resolution)))
    }

    /// Moves the window up to now, so that what is due soon gets a tick of its own. Pours at most a slice.
    pub(super) fn advance(&mut self, slab: &mut Slab, now: Time) {
        let now = now.0 / self.resolution;
        let far = self.far.keys().next().map_or(u64::MAX, |bucket| bucket * COARSE);
        let limit = self.first_near().unwrap_or(u64::MAX).min(far);
        self.base = self.base.max(now.min(limit));
        self.pour(slab);
    }

    fn tick(&self, due: Time) -> u64 {
        due.0.div_ceil(self.resolution)
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
            if (first.key() + 1) * COARSE > self.base + NEAR {
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

#[expect(clippy::cast_possible_truncation, reason = "a remainder of 2^14")]
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
