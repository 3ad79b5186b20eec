//! A kind's permits to run, shared by the shards of this process (Q7): `concurrency` is a bound of the process.
//!
//! A shard gives back what no run of it uses and takes what it can start, turn by turn. Must never wake a shard that
//! has nothing to start, or two of them would wake each other for ever; nor let a busy shard take what another has
//! waited for.

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
    /// Shards that could start more than they got, each once, in order.
    waiting: VecDeque<ShardId>,
}

/// What a shard gives back and wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    /// Permits that no run uses.
    pub(crate) idle: u32,
    /// Runs that it could start now, at most; 0 if there are none.
    pub(crate) wanted: u32,
}

impl Pool {
    pub(crate) fn new(permits: u32) -> Self {
        Self { inner: Mutex::new(Inner { free: permits, waiting: VecDeque::new() }) }
    }

    /// Gives back and takes; says how many it took, and which shard to wake, since there is something for it. A permit
    /// is left for each shard that has waited longer.
    pub(crate) fn exchange(&self, shard: ShardId, wish: Wish) -> (u32, Option<ShardId>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.free += wish.idle;
        let place = inner.waiting.iter().position(|waiting| *waiting == shard);
        let before = u32::try_from(place.unwrap_or(inner.waiting.len())).unwrap_or(u32::MAX);
        let taken = inner.free.saturating_sub(before).min(wish.wanted);
        inner.free -= taken;
        if let Some(place) = place.filter(|_| taken > 0 || wish.wanted == 0) {
            inner.waiting.remove(place);
        }
        if taken < wish.wanted && (taken > 0 || place.is_none()) {
            inner.waiting.push_back(shard);
        }
        let next = inner.waiting.front().copied().filter(|_| inner.free > 0);
        (taken, next)
    }

    /// The end of a turn: gives back what was not used. Gives the shard to wake.
    pub(crate) fn give(&self, shard: ShardId, idle: u32, wants_more: bool) -> Option<ShardId> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.free += idle;
        match inner.waiting.iter().position(|waiting| *waiting == shard) {
            Some(place) if !wants_more => _ = inner.waiting.remove(place),
            None if wants_more => inner.waiting.push_back(shard),
            _ => {}
        }
        inner.waiting.front().copied().filter(|_| inner.free > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ShardId = ShardId(0);
    const B: ShardId = ShardId(1);
    const C: ShardId = ShardId(2);

    fn wants(wanted: u32) -> Wish {
        Wish { idle: 0, wanted }
    }

    #[test]
    fn q7_a_permit_is_left_for_each_shard_that_has_waited_longer() {
        let pool = Pool::new(3);
        assert_eq!(pool.exchange(A, wants(10)), (3, None));
        assert_eq!(pool.exchange(B, wants(1)), (0, None));
        assert_eq!(pool.exchange(C, wants(1)), (0, None));
        // A's runs end, and it has more to start; A stands before B and C, since it waited first.
        assert_eq!(pool.exchange(A, Wish { idle: 3, wanted: 10 }), (3, None));
        // Now it stands behind them.
        assert_eq!(pool.exchange(A, Wish { idle: 3, wanted: 10 }), (1, Some(B)));
        assert_eq!(pool.exchange(B, wants(1)), (1, Some(C)));
        assert_eq!(pool.exchange(C, wants(1)), (1, None));
    }

    #[test]
    fn q7_nobody_is_woken_who_wants_nothing() {
        let pool = Pool::new(2);
        assert_eq!(pool.exchange(A, wants(5)), (2, None));
        assert_eq!(pool.exchange(B, wants(5)), (0, None));
        // A could use one only, and B none any more.
        assert_eq!(pool.give(A, 1, false), Some(B));
        assert_eq!(pool.exchange(B, wants(0)), (0, None));
        assert_eq!(pool.give(B, 0, false), None, "free permits and nobody to wake");
        assert_eq!(pool.give(A, 1, true), Some(A), "one that wants more gets its turn");
        assert_eq!(pool.exchange(A, wants(1)), (1, None));
    }
}
