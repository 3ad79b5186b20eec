//! Counts allocations and live bytes of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static COUNT: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted.
pub(crate) struct Counting;

// The library forbids unsafe code; a counting allocator cannot be had without, and only this benchmark has one.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        LIVE.fetch_add(layout.size() as u64, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Relaxed);
        LIVE.fetch_add(size as u64, Relaxed);
        LIVE.fetch_sub(layout.size() as u64, Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Allocations made so far.
pub(crate) fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// Bytes allocated and not freed.
pub(crate) fn live() -> u64 {
    LIVE.load(Relaxed)
}
