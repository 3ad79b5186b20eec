//! Doubly linked lists through the entries themselves: a change of place is a few writes and never an allocation.
//!
//! A list must never be asked to remove an entry that it does not hold. Tested below; `Shard::audit` walks every list.

use super::entry::{Entry, Slab, Slot};

/// No entry.
pub(super) const NIL: u32 = u32::MAX;

/// The neighbours of an entry in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) prev: u32,
    pub(super) next: u32,
}

impl Link {
    pub(super) const NONE: Self = Self { prev: NIL, next: NIL };
}

/// Which of an entry's two links a list goes through.
pub(super) trait Through {
    fn link(entry: &mut Entry) -> &mut Link;
    fn next(entry: &Entry) -> u32;
}

/// Lanes, delay buckets and idle ones.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ByPlace;

impl Through for ByPlace {
    fn link(entry: &mut Entry) -> &mut Link {
        &mut entry.link
    }

    fn next(entry: &Entry) -> u32 {
        entry.link.next
    }
}

/// Those that hold something back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ByHold;

impl Through for ByHold {
    fn link(entry: &mut Entry) -> &mut Link {
        &mut entry.hold
    }

    fn next(entry: &Entry) -> u32 {
        entry.hold.next
    }
}

/// A list of entries, first in first out.
#[derive(Debug, Clone, Copy)]
pub(super) struct List<T = ByPlace> {
    head: u32,
    tail: u32,
    through: std::marker::PhantomData<T>,
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self { head: NIL, tail: NIL, through: std::marker::PhantomData }
    }
}

impl<T: Through> List<T> {
    pub(super) const fn is_empty(&self) -> bool {
        self.head == NIL
    }

    pub(super) const fn first(&self) -> Option<Slot> {
        if self.head == NIL { None } else { Some(Slot(self.head)) }
    }

    pub(super) fn push_back(&mut self, slab: &mut Slab, slot: Slot) {
        *T::link(&mut slab[slot]) = Link { prev: self.tail, next: NIL };
        if self.tail == NIL {
            self.head = slot.0;
        } else {
            T::link(&mut slab[Slot(self.tail)]).next = slot.0;
        }
        self.tail = slot.0;
    }

    pub(super) fn remove(&mut self, slab: &mut Slab, slot: Slot) {
        let Link { prev, next } = std::mem::replace(T::link(&mut slab[slot]), Link::NONE);
        if prev == NIL {
            debug_assert_eq!(self.head, slot.0, "removed from a list that it is not in");
            self.head = next;
        } else {
            T::link(&mut slab[Slot(prev)]).next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            T::link(&mut slab[Slot(next)]).prev = prev;
        }
    }

    pub(super) fn pop_front(&mut self, slab: &mut Slab) -> Option<Slot> {
        let slot = self.first()?;
        self.remove(slab, slot);
        Some(slot)
    }

    /// The entries from first to last.
    pub(super) fn iter<'a>(&self, slab: &'a Slab) -> impl Iterator<Item = Slot> + use<'a, T> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let slot = (at != NIL).then_some(Slot(at))?;
            at = T::next(&slab[slot]);
            Some(slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slab(count: u32) -> Slab {
        let mut slab = Slab::new();
        for i in 0..count {
            slab.insert(i.to_string().into(), 0, 0);
        }
        slab
    }

    fn content<T: Through>(list: &List<T>, slab: &Slab) -> Vec<u32> {
        list.iter(slab).map(|slot| slot.0).collect()
    }

    #[test]
    fn first_in_first_out_and_removal_from_anywhere() {
        let mut slab = slab(5);
        let mut list = List::<ByPlace>::default();
        assert_eq!((list.is_empty(), list.first(), list.pop_front(&mut slab)), (true, None, None));
        for i in 0..5 {
            list.push_back(&mut slab, Slot(i));
        }
        assert_eq!(content(&list, &slab), [0, 1, 2, 3, 4]);
        for (gone, left) in [(2, vec![0, 1, 3, 4]), (0, vec![1, 3, 4]), (4, vec![1, 3])] {
            list.remove(&mut slab, Slot(gone));
            assert_eq!(content(&list, &slab), left);
        }
        list.push_back(&mut slab, Slot(2));
        assert_eq!(list.pop_front(&mut slab), Some(Slot(1)));
        assert_eq!(content(&list, &slab), [3, 2]);
        list.remove(&mut slab, Slot(2));
        list.remove(&mut slab, Slot(3));
        assert!(list.is_empty());
        list.push_back(&mut slab, Slot(3));
        assert_eq!(content(&list, &slab), [3]);
    }

    #[test]
    fn the_two_links_of_an_entry_know_nothing_of_each_other() {
        let mut slab = slab(3);
        let (mut place, mut hold) = (List::<ByPlace>::default(), List::<ByHold>::default());
        for i in 0..3 {
            place.push_back(&mut slab, Slot(i));
            hold.push_back(&mut slab, Slot(2 - i));
        }
        place.remove(&mut slab, Slot(1));
        assert_eq!((content(&place, &slab), content(&hold, &slab)), (vec![0, 2], vec![2, 1, 0]));
    }
}
