//! The store of owed records (D12): small durable notes that an id is owed a run.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::BoxFuture;
use super::cause::Cause;
use super::token::Term;
use crate::id::{Partitioner, ShardId};

/// The longest error text that a record keeps, in bytes: enough for a person, small enough for any store.
pub const RECORD_ERROR_BYTES_MAX: usize = 2_048;

/// Keeps owed records, and the few facts on which all processes must agree.
///
/// A change is made by the shard's leader alone; the term proves it. One conformance suite runs against every
/// implementation.
pub trait RecordStore: Send + Sync + 'static {
    /// Whether what was written survives the process. Where it does not, offsets are held until their runs succeed
    /// (D12).
    fn is_durable(&self) -> bool;

    /// Writes the cluster's facts down on first use, and else compares them (L7).
    ///
    /// # Errors
    /// [`StoreError::Mismatch`] names what stands there and what this process is configured for.
    fn check_cluster<'a>(&'a self, wanted: &'a ClusterRecord) -> BoxFuture<'a, Result<ClusterRecord, StoreError>>;

    /// A number for a new term of this shard, greater than every one before (L4). Only asked where no elector gives
    /// one.
    ///
    /// # Errors
    /// The store cannot be written.
    fn next_revision(&self, shard: ShardId) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// The shard's records in id order, at most `limit`, those after `after`.
    ///
    /// # Errors
    /// The store cannot be read, or holds what this version does not understand.
    fn load<'a>(
        &'a self,
        shard: ShardId,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwedRecord>, StoreError>>;

    /// Applies changes in order; durable when it returns (if the store is). All or none is applied.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if the term is over; otherwise nothing is applied, or, where [`StoreError::is_unknown`]
    /// says so, perhaps all: writing the same changes again is safe, since a change names the whole record.
    fn commit<'a>(&'a self, term: Term, changes: &'a [RecordChange]) -> BoxFuture<'a, Result<(), StoreError>>;
}

/// One change of a shard's records.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordChange {
    /// Writes or overwrites the record of an id.
    Put(OwedRecord),
    /// Deletes the record of an id, if there is one.
    Delete(String),
}

impl RecordChange {
    /// The id that it is about.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Put(record) => &record.id,
            Self::Delete(id) => id,
        }
    }
}

/// A durable note that an id is owed a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OwedRecord {
    /// The id.
    pub id: String,
    /// When its next run is due; in the past: at once. Not looked at for a parked id.
    #[serde(with = "unix_millis")]
    pub due: SystemTime,
    /// How many attempts have failed since the last success.
    pub attempt: u32,
    /// Why it is owed.
    pub reason: OwedReason,
    /// The idempotency key that its attempts share ([`Run::key`](super::Run::key)).
    pub key: u64,
    /// How often a run of it blocked a thread until the process was ended (C4).
    #[serde(default)]
    pub stuck: u8,
    /// The last error, cut to [`RECORD_ERROR_BYTES_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What the id was owed for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
}

/// Why an id is owed a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OwedReason {
    /// Its event has held back an offset for too long, or the process stopped.
    Held,
    /// A time that the reconciler asked for.
    Requested,
    /// Given up after the last attempt; parked.
    GivenUp,
    /// Its run was cancelled by somebody; parked.
    Cancelled,
    /// Its run blocked a thread for the third time; parked.
    Stuck,
}

impl OwedReason {
    /// Whether the id waits for somebody, not for a time.
    #[must_use]
    pub const fn is_parked(self) -> bool {
        matches!(self, Self::GivenUp | Self::Cancelled | Self::Stuck)
    }
}

/// What all processes of a cluster must agree on (L7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// The number of shards.
    pub shards: u16,
    /// The hash that places ids.
    pub hash: Partitioner,
    /// `ids` or `resources`.
    #[serde(rename = "use")]
    pub usage: String,
    /// The format of what is stored; a newer one is refused.
    pub format: u32,
    /// Raised after a restore from a backup, so that fencing tokens go on growing.
    pub incarnation: u32,
}

/// The store could not do as it was told.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process holds the store, or its folder cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The store belongs to a cluster of another shape.
    #[error("the store was made for {stored} {field}, this process is configured for {wanted}")]
    Mismatch {
        /// Which fact differs.
        field: &'static str,
        /// What stands in the store.
        stored: String,
        /// What this process wants.
        wanted: String,
    },
    /// The term is over: another process leads, or this one was told to stop.
    #[error("the term is over; nothing was written")]
    Fenced,
    /// What is stored cannot be read.
    #[error("cannot read what is stored for {id:?}: {reason}")]
    Corrupt {
        /// The id or key.
        id: String,
        /// Why not.
        reason: String,
    },
    /// Nothing was written: full disk, quota, refused.
    #[error("the store refused the write: {0}")]
    Refused(String),
    /// The answer did not come; the write may have happened.
    #[error("the store did not answer: {0}")]
    Unknown(String),
}

impl StoreError {
    /// Whether the write may have happened.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }
}

/// Times as milliseconds since 1970, the same in every store.
mod unix_millis {
    use std::time::{Duration, SystemTime};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Rounded up: a due time is never early (D5).
        serializer.serialize_u64(u64::try_from(since.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        let millis = u64::deserialize(deserializer)?;
        SystemTime::UNIX_EPOCH
            .checked_add(Duration::from_millis(millis))
            .ok_or_else(|| serde::de::Error::custom("a time out of range"))
    }
}
