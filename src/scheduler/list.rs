//! Doubly linked lists through the entries themselves: a change of place is a few writes and never an allocation.

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
}

/// Lanes, delay buckets, idle and parked ones.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ByPlace;

impl Through for ByPlace {
    fn link(entry: &mut Entry) -> &mut Link {
        &mut entry.link
    }
}

/// Those that hold something back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ByHold;

impl Through for ByHold {
    fn link(entry: &mut Entry) -> &mut Link {
        &mut entry.hold
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
}
