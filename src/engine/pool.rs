//! A kind's permits to run, shared by the shards of this process (Q7): `concurrency` is a bound of the process.
//!
//! A shard takes permits when it has something to start and gives back what it does not use at the end of its turn.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use crate::id::ShardId;

#[derive(Debug)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    free: u32,
    /// Shards that found nothing, each once, in order.
    waiting: VecDeque<ShardId>,
}

impl Pool {
    pub(crate) fn new(permits: u32) -> Self {
        Self { inner: Mutex::new(Inner { free: permits, waiting: VecDeque::new() }) }
    }

    /// Takes up to so many permits. A shard that gets fewer than it wants is woken when there are more.
    pub(crate) fn take(&self, shard: ShardId, wanted: u32) -> u32 {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        // Who has waited longer goes first, so that a busy shard cannot starve the others.
        if inner.waiting.front().is_some_and(|first| *first != shard) && inner.free <= 1 {
            if !inner.waiting.contains(&shard) {
                inner.waiting.push_back(shard);
            }
            return 0;
        }
        let taken = inner.free.min(wanted);
        inner.free -= taken;
        inner.waiting.retain(|waiting| *waiting != shard);
        if taken < wanted {
            inner.waiting.push_back(shard);
        }
        taken
    }

    /// Gives permits back, and says which shard to wake.
    pub(crate) fn give(&self, permits: u32) -> Option<ShardId> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.free += permits;
        if inner.free > 0 { inner.waiting.front().copied() } else { None }
    }

    /// A shard that is gone waits for nothing.
    pub(crate) fn forget(&self, shard: ShardId) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).waiting.retain(|waiting| *waiting != shard);
    }
}
