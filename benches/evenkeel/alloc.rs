//! Counts allocations and live bytes of the whole process.
//!
//! Each thread counts in a place of its own: a shared counter would cost every allocation more than the allocation, and
//! the floor more than the engine. Tested by nothing but its use: the floor allocates exactly once an item.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

/// More threads than this benchmark ever starts; those beyond share the last place.
const THREADS: usize = 1_024;

#[repr(align(64))]
struct Counts {
    allocations: AtomicI64,
    live: AtomicI64,
}

static COUNTS: [Counts; THREADS] =
    [const { Counts { allocations: AtomicI64::new(0), live: AtomicI64::new(0) } }; THREADS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn count(allocations: i64, bytes: i64) {
    let place = PLACE.try_with(|place| {
        if place.get() == usize::MAX {
            place.set(NEXT.fetch_add(1, Relaxed).min(THREADS - 1));
        }
        place.get()
    });
    let place = place.unwrap_or(THREADS - 1);
    let counts = &COUNTS[place];
    if place == THREADS - 1 {
        counts.allocations.fetch_add(allocations, Relaxed);
        counts.live.fetch_add(bytes, Relaxed);
    } else {
        // Nobody else writes here.
        counts.allocations.store(counts.allocations.load(Relaxed) + allocations, Relaxed);
        counts.live.store(counts.live.load(Relaxed) + bytes, Relaxed);
    }
}

/// The system's allocator, counted.
pub(crate) struct Counting;

// The library forbids unsafe code; a counting allocator cannot be had without, and only this benchmark has one.
#[expect(unsafe_code, reason = "a global allocator")]
#[expect(clippy::cast_possible_wrap, reason = "no block is larger than isize::MAX")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Allocations made so far.
pub(crate) fn allocations() -> i64 {
    COUNTS.iter().map(|counts| counts.allocations.load(Relaxed)).sum()
}

/// Bytes allocated and not freed.
pub(crate) fn live() -> i64 {
    COUNTS.iter().map(|counts| counts.live.load(Relaxed)).sum()
}
