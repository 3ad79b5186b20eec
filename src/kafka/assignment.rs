//! One assignment of one partition: its ledger, and who hears that events are done.
//!
//! Every assignment opens a source of its own, so answers that come after it ended settle nothing (B49). Shared between
//! the consumer's thread, the shards' loops and the metrics; the lock is held for a few instructions. Tested by the
//! ledger's tests and by the live tests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ledger::{Ledger, Tick};
use crate::contract::Tracker;
use crate::id::ShardId;

/// A partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) topic: Arc<str>,
    pub(super) partition: i32,
}

impl Place {
    /// The shard that reads it.
    pub(super) fn shard(&self, shards: u16) -> ShardId {
        let shard = self.partition.unsigned_abs() % u32::from(shards.max(1));
        ShardId(u16::try_from(shard).unwrap_or_default())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// Stands for "not known" in the atomics below; no offset of Kafka's is that large.
const UNKNOWN: u64 = u64::MAX;

/// One assignment.
pub(super) struct Assignment {
    pub(super) place: Place,
    pub(super) shard: ShardId,
    ledger: Mutex<Ledger>,
    /// The end of the log when it was last asked for.
    end: AtomicU64,
    /// The mark that the broker acknowledged last.
    committed: AtomicU64,
}

impl Assignment {
    pub(super) fn new(place: Place, shards: u16, start: u64, committed: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            shard: place.shard(shards),
            place,
            ledger: Mutex::new(Ledger::new(start)),
            end: AtomicU64::new(UNKNOWN),
            committed: AtomicU64::new(committed.unwrap_or(UNKNOWN)),
        })
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn deliver(&self, offset: u64, at: Tick) {
        self.ledger().deliver(offset, at);
    }

    pub(super) fn settle(&self, offset: u64) {
        self.ledger().done(offset);
    }

    pub(super) fn committed(&self) -> Option<u64> {
        Some(self.committed.load(Ordering::Relaxed)).filter(|mark| *mark != UNKNOWN)
    }

    pub(super) fn set_committed(&self, mark: u64) {
        self.committed.store(mark, Ordering::Relaxed);
    }

    pub(super) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Relaxed);
    }

    /// How many offsets lie between what is committed and the end of the log; `None` while the end is not known.
    pub(super) fn lag(&self) -> Option<u64> {
        let end = Some(self.end.load(Ordering::Relaxed)).filter(|end| *end != UNKNOWN)?;
        let mut ledger = self.ledger();
        let committed = self.committed().unwrap_or_else(|| ledger.low_water());
        Some(end.max(ledger.position()).saturating_sub(committed))
    }
}

impl Tracker for Assignment {
    fn done(&self, positions: &[u64]) {
        let mut ledger = self.ledger();
        for position in positions {
            ledger.done(*position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_the_shard_is_the_partition_modulo_shards() {
        for (partition, shards, shard) in [(0, 1, 0), (7, 12, 7), (12, 12, 0), (25, 12, 1), (i32::MAX, 4_096, 4_095)] {
            let place = Place { topic: "t".into(), partition };
            assert_eq!(place.shard(shards), ShardId(shard), "{partition} of {shards}");
        }
    }

    #[test]
    fn b49_a_late_answer_settles_only_its_own_assignment() {
        let place = Place { topic: "t".into(), partition: 0 };
        let first = Assignment::new(place.clone(), 1, 10, Some(10));
        first.deliver(10, 0);
        let second = Assignment::new(place, 1, 10, Some(10));
        second.deliver(10, 0);
        Tracker::done(&*first, &[10]);
        assert_eq!((first.ledger().low_water(), second.ledger().low_water()), (11, 10));
    }

    #[test]
    fn the_lag_reaches_from_the_commit_to_the_end() {
        let assignment = Assignment::new(Place { topic: "t".into(), partition: 0 }, 1, 5, None);
        assert_eq!(assignment.lag(), None);
        assignment.set_end(20);
        assert_eq!(assignment.lag(), Some(15));
        assignment.set_committed(20);
        assert_eq!(assignment.lag(), Some(0));
        assignment.deliver(24, 0);
        assert_eq!(assignment.lag(), Some(5), "what came since the end was asked for counts");
    }
}
