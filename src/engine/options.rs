//! What an engine is told: names, numbers and the parts it works with. Every number has a default and a reason.

use std::time::Duration;

use crate::id::Partitioner;
use crate::scheduler::Retry;

/// The bounds of one shard (D6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Ids owed a run now or after a failure. A million take about 200 MiB.
    pub admitted: u32,
    /// Ids that only hold a requested time.
    pub timers: u32,
    /// Owed records, and parked ids.
    pub owed_records: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { admitted: 1_000_000, timers: 1_000_000, owed_records: 1_000_000 }
    }
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// An id that holds an offset back for longer gets an owed record (D12).
    pub max_hold: Duration,
    /// Two runs of an id that nothing new asked for are at least so far apart (D7, D9).
    pub min_requeue: Duration,
    /// Due times are rounded up to this (D5).
    pub resolution: Duration,
    /// A graceful stop takes at most this long; runs are told to stop `cancel_grace` before its end.
    pub drain: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            max_hold: Duration::from_secs(60),
            min_requeue: Duration::from_millis(250),
            resolution: Duration::from_millis(10),
            drain: Duration::from_secs(30),
        }
    }
}

/// How the reconciler is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReconcilerOptions {
    /// Lanes of each shard (Q7).
    pub workers: u16,
    /// Runs in flight in this process.
    pub concurrency: u32,
    /// A run takes at most this long (D10); `None` for no end.
    pub timeout: Option<Duration>,
    /// A run that was told to stop and goes on for longer is cut off (C4).
    pub cancel_grace: Duration,
    /// When and how often to try again (D2, D3).
    pub retry: Retry,
}

impl Default for ReconcilerOptions {
    fn default() -> Self {
        Self {
            workers: 8,
            concurrency: 64,
            timeout: Some(Duration::from_secs(10)),
            cancel_grace: Duration::from_secs(10),
            retry: Retry::DEFAULT,
        }
    }
}

impl ReconcilerOptions {
    /// Runs of one lane at a time: together the lanes can use the whole concurrency.
    pub(crate) fn slots(&self) -> u32 {
        self.concurrency.div_ceil(u32::from(self.workers)).max(1)
    }
}

/// How ids are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// The number of shards, 1 to 4,096.
    pub shards: u32,
    /// The hash that places ids; with Kafka the producers' partitioner (K2).
    pub hash: Partitioner,
}

impl Default for Sharding {
    fn default() -> Self {
        Self { shards: 1, hash: Partitioner::Fnv1a }
    }
}
