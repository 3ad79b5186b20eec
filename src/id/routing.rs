//! Shard and worker of an id (Q2).
//!
//! shard = H(id) mod shards, worker = (FNV-1a(id) / shards) mod workers: other bits than the shard's, so that the ids
//! of one shard spread over all its workers, and one shard gives plain `hash mod workers`.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::hash::{Partitioner, fnv1a_32};

/// The most shards a cluster can have: each costs a leader key and a task, and 4,096 spread over any fleet.
pub const SHARDS_MAX: u16 = 4_096;
/// The most workers (lanes) a shard can have.
pub const WORKERS_MAX: u16 = 4_096;

/// A shard: the unit of leadership.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u16);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A worker: a lane of a shard, the unit of ordering inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub u16);

/// Where an id belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The shard that owns the id.
    pub shard: ShardId,
    /// The worker inside the shard.
    pub worker: WorkerId,
}

/// A hash of a library user's own; `None` drops the event (counted, done).
pub type HasherFn = Arc<dyn Fn(&str) -> Option<u32> + Send + Sync>;

/// A router cannot be built from such numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouterError {
    /// The shard count is out of range.
    #[error("shards must be 1 to {SHARDS_MAX}, not {0}")]
    Shards(u32),
    /// The worker count is out of range.
    #[error("workers must be 1 to {WORKERS_MAX}, not {0}")]
    Workers(u32),
    /// The partitioner only serves to recognise foreign producers.
    #[error("hash {0} cannot route events; use fnv1a, murmur2 or crc32")]
    Hash(&'static str),
}

/// Maps ids to shards and workers; one for the whole cluster (Q2).
#[derive(Clone)]
pub struct Router {
    hash: Partitioner,
    shards: NonZeroU16,
    workers: NonZeroU16,
    hasher: Option<HasherFn>,
}

impl Router {
    /// A router for this many shards of this many workers.
    ///
    /// # Errors
    /// Numbers out of range, or a hash that cannot route.
    pub fn new(hash: Partitioner, shards: u32, workers: u32) -> Result<Self, RouterError> {
        if !matches!(hash, Partitioner::Fnv1a | Partitioner::Murmur2 | Partitioner::Crc32) {
            return Err(RouterError::Hash(hash.name()));
        }
        Ok(Self {
            hash,
            shards: bounded(shards, SHARDS_MAX).ok_or(RouterError::Shards(shards))?,
            workers: bounded(workers, WORKERS_MAX).ok_or(RouterError::Workers(workers))?,
            hasher: None,
        })
    }

    /// The same router with a hash of the caller's own.
    #[must_use]
    pub fn with_hasher(mut self, hasher: HasherFn) -> Self {
        self.hasher = Some(hasher);
        self
    }

    /// Where an id belongs; `None` where the user's own hash drops it.
    #[must_use]
    #[inline]
    pub fn place(&self, id: &str) -> Option<Place> {
        let fnv = fnv1a_32(id.as_bytes());
        let hash = match &self.hasher {
            Some(hasher) => hasher(id)?,
            None if self.hash.is_fnv() => self.hash.from_fnv(fnv),
            None => self.hash.hash(id.as_bytes()),
        };
        let (shards, workers) = (u32::from(self.shards.get()), u32::from(self.workers.get()));
        // Both remainders are below a u16.
        #[expect(clippy::cast_possible_truncation, reason = "remainders of u16 divisors")]
        let place =
            Place { shard: ShardId((hash % shards) as u16), worker: WorkerId(((fnv / shards) % workers) as u16) };
        Some(place)
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.shards.get()
    }

    /// How many workers a shard has.
    #[must_use]
    pub fn workers(&self) -> u16 {
        self.workers.get()
    }

    /// The hash in use.
    #[must_use]
    pub fn partitioner(&self) -> Partitioner {
        self.hash
    }
}

fn bounded(n: u32, max: u16) -> Option<NonZeroU16> {
    u16::try_from(n).ok().filter(|n| *n <= max).and_then(NonZeroU16::new)
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("hash", &self.hash)
            .field("shards", &self.shards)
            .field("workers", &self.workers)
            .field("hasher", &self.hasher.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q2_one_shard_gives_plain_hash_mod_workers() {
        let router = Router::new(Partitioner::Fnv1a, 1, 16).unwrap();
        for i in 0..1_000 {
            let id = format!("id-{i}");
            let place = router.place(&id).unwrap();
            assert_eq!(place.shard, ShardId(0));
            assert_eq!(u32::from(place.worker.0), fnv1a_32(id.as_bytes()) % 16);
        }
    }

    #[test]
    fn q2_b31_every_worker_of_every_shard_gets_its_share() {
        for hash in [Partitioner::Fnv1a, Partitioner::Murmur2, Partitioner::Crc32] {
            let router = Router::new(hash, 12, 8).unwrap();
            let mut counts = [[0_u32; 8]; 12];
            for i in 0..96_000 {
                let place = router.place(&format!("prod/Database/{i}")).unwrap();
                counts[usize::from(place.shard.0)][usize::from(place.worker.0)] += 1;
            }
            let (low, high) = counts.iter().flatten().fold((u32::MAX, 0), |(l, h), c| (l.min(*c), h.max(*c)));
            assert!(low > 800 && high < 1_200, "{}: {low} to {high}", hash.name());
        }
    }

    #[test]
    fn q2_a_users_hash_may_drop() {
        let hasher: HasherFn = Arc::new(|id| (id != "noise").then_some(u32::MAX));
        let router = Router::new(Partitioner::Fnv1a, 4_096, 4_096).unwrap().with_hasher(hasher);
        assert_eq!(router.place("noise"), None);
        assert_eq!(router.place("x").unwrap().shard, ShardId(4_095), "the largest hash stays in range");
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for shards in [0, 4_097, u32::MAX] {
            assert_eq!(Router::new(Partitioner::Fnv1a, shards, 1).unwrap_err(), RouterError::Shards(shards));
            assert_eq!(Router::new(Partitioner::Fnv1a, 1, shards).unwrap_err(), RouterError::Workers(shards));
        }
        assert!(Router::new(Partitioner::Fnv1aRef, 1, 1).is_err());
    }
}
