//! The store of owed records (D12): small durable notes that an id is owed a run.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::BoxFuture;
use super::cause::Cause;
use super::token::Term;
use crate::id::{Partitioner, ShardId};

/// The longest error text that a record keeps, in bytes: enough for a person, small enough for any store.
pub const RECORD_ERROR_BYTES_MAX: usize = 2_048;

/// The version of the JSON that [`OwedRecord::to_json`] writes. A field that an older process may ignore is added
/// without raising it; anything else raises it, and older processes refuse such a record.
pub const RECORD_FORMAT: u32 = 1;

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

    /// Applies changes in order; durable when it returns (if the store is). All or none is applied, except where a
    /// store must cut a large batch: then a part may have been when the answer is an unknown one, or that the term is
    /// over.
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

impl OwedRecord {
    /// The record as every store that survives a process keeps it: JSON with a version, its error cut to
    /// [`RECORD_ERROR_BYTES_MAX`].
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Versioned<'a> {
            v: u32,
            #[serde(flatten)]
            record: &'a OwedRecord,
        }
        let cut = self.error.as_deref().is_some_and(|e| e.len() > RECORD_ERROR_BYTES_MAX).then(|| self.clone().cut());
        let versioned = Versioned { v: RECORD_FORMAT, record: cut.as_ref().unwrap_or(self) };
        // Strings, numbers and lists of them always have a JSON form; an empty one would be refused when read.
        serde_json::to_vec(&versioned).unwrap_or_default()
    }

    /// Reads what [`to_json`](Self::to_json) wrote, by this version or an earlier one. Fields that it does not know are
    /// ignored: whatever may not be ignored comes with another version.
    ///
    /// # Errors
    /// What is wrong with it, for [`StoreError::Corrupt`].
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        match serde_json::from_slice(json) {
            Ok(Version { v: 1..=RECORD_FORMAT }) => serde_json::from_slice(json).map_err(|e| e.to_string()),
            Ok(Version { v }) => Err(format!(
                "it has format {v}, this version reads 1 to {RECORD_FORMAT}; run the version that wrote it"
            )),
            Err(e) => Err(e.to_string()),
        }
    }

    /// The record with its error cut to [`RECORD_ERROR_BYTES_MAX`], between two characters.
    #[must_use]
    pub fn cut(mut self) -> Self {
        if let Some(error) = self.error.as_mut().filter(|e| e.len() > RECORD_ERROR_BYTES_MAX) {
            let end = (0..=RECORD_ERROR_BYTES_MAX).rev().find(|at| error.is_char_boundary(*at)).unwrap_or(0);
            error.truncate(end);
        }
        self
    }
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
    /// Raised after a restore from a backup, so that fencing tokens go on growing. 0 in what a process wants: whatever
    /// stands in the store, 1 on first use.
    pub incarnation: u32,
}

impl ClusterRecord {
    /// What a store writes down on first use, where this is what the process wants.
    #[must_use]
    pub fn first(&self) -> Self {
        Self { incarnation: self.incarnation.max(1), ..self.clone() }
    }

    /// Compares what stands in a store with what a process wants (L7). Gives what must stand there from now on: the
    /// same, with the wanted format where the stored one is older, since the process is going to write that.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`] for the first fact that differs; [`StoreError::Unusable`] for a newer format.
    pub fn agree(&self, wanted: &Self) -> Result<Self, StoreError> {
        if self.format > wanted.format {
            let (newer, own) = (self.format, wanted.format);
            return Err(StoreError::Unusable(format!(
                "the store was written by a newer version of evenkeel, in format {newer}; this one knows up to {own}: \
                 run the version that wrote it"
            )));
        }
        let facts = [
            ("shards", self.shards == wanted.shards, self.shards.to_string(), wanted.shards.to_string()),
            ("hash", self.hash == wanted.hash, self.hash.name().to_owned(), wanted.hash.name().to_owned()),
            ("use", self.usage == wanted.usage, self.usage.clone(), wanted.usage.clone()),
            (
                "incarnation",
                wanted.incarnation == 0 || self.incarnation == wanted.incarnation,
                self.incarnation.to_string(),
                wanted.incarnation.to_string(),
            ),
        ];
        match facts.into_iter().find(|(_, agrees, ..)| !agrees) {
            Some((field, _, stored, wanted)) => Err(StoreError::Mismatch { field, stored, wanted }),
            None => Ok(Self { format: wanted.format, ..self.clone() }),
        }
    }
}

/// The store could not do as it was told.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process holds the store, or its folder cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The store belongs to a cluster of another shape.
    #[error(
        "the store was made with {field} {stored}, this process is configured with {field} {wanted}: configure what \
         stands there, or give this process a store of its own"
    )]
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    fn record() -> OwedRecord {
        OwedRecord {
            id: "déjà/vu".into(),
            due: SystemTime::UNIX_EPOCH + Duration::from_millis(1_500),
            attempt: 3,
            reason: OwedReason::GivenUp,
            key: u64::MAX,
            stuck: 2,
            error: Some("no route".into()),
            causes: vec![Cause::Trigger {}],
        }
    }

    #[test]
    fn d12_a_record_has_the_documented_json() {
        let json = String::from_utf8(record().to_json()).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"v":1,"id":"déjà/vu","due":1500,"attempt":3,"reason":"given_up","key":18446744073709551615,"#,
                r#""stuck":2,"error":"no route","causes":[{"trigger":{}}]}"#
            )
        );
        assert_eq!(OwedRecord::from_json(json.as_bytes()), Ok(record()));
        let later = json.replace(r#""v":1"#, r#""v":1,"colour":"blue""#);
        assert_eq!(OwedRecord::from_json(later.as_bytes()), Ok(record()), "an unknown field may be ignored");
    }

    #[test]
    fn d12_what_cannot_be_understood_is_refused() {
        let json = String::from_utf8(record().to_json()).unwrap();
        let newer = OwedRecord::from_json(json.replace(r#""v":1"#, r#""v":2"#).as_bytes()).unwrap_err();
        assert!(newer.contains("format 2") && newer.contains("run the version that wrote it"), "{newer}");
        for bad in [
            String::new(),
            "{}".into(),
            json.replace(r#""v":1"#, r#""v":0"#),
            json.replace("given_up", "levitating"),
            json.replace("1500", "18446744073709551616"),
            json[..json.len() - 2].into(),
            format!("{json}x"),
        ] {
            assert!(OwedRecord::from_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn d12_a_long_error_is_cut_between_two_characters() {
        for (error, kept) in [
            ("x".repeat(RECORD_ERROR_BYTES_MAX), RECORD_ERROR_BYTES_MAX),
            ("x".repeat(RECORD_ERROR_BYTES_MAX + 1), RECORD_ERROR_BYTES_MAX),
            ("日".repeat(700), 2_046),
            (format!("x{}", "😀".repeat(600)), 2_045),
        ] {
            let long = OwedRecord { error: Some(error.clone()), ..record() };
            let read = OwedRecord::from_json(&long.to_json()).unwrap();
            assert_eq!(read, long.cut());
            assert_eq!(read.error.as_deref(), Some(&error[..kept]));
        }
    }

    #[test]
    fn d5_a_stored_due_time_is_never_early() {
        let due = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_500_000_001);
        let read = OwedRecord::from_json(&OwedRecord { due, ..record() }.to_json()).unwrap();
        assert_eq!(read.due, SystemTime::UNIX_EPOCH + Duration::from_millis(1_501));
    }

    #[test]
    fn l7_a_cluster_of_another_shape_is_named() {
        let stored =
            ClusterRecord { shards: 12, hash: Partitioner::Murmur2, usage: "ids".into(), format: 2, incarnation: 3 };
        let wanted = |change: fn(&mut ClusterRecord)| {
            let mut wanted = stored.clone();
            change(&mut wanted);
            stored.agree(&wanted)
        };
        assert_eq!(wanted(|_| ()).unwrap(), stored);
        assert_eq!(wanted(|w| w.incarnation = 0).unwrap(), stored, "0 takes what stands there");
        assert_eq!(wanted(|w| w.format = 5).unwrap().format, 5, "an older format is raised");
        type Change = fn(&mut ClusterRecord);
        let cases: [(Change, &str); 4] = [
            (|w| w.shards = 4, "made with shards 12, this process is configured with shards 4"),
            (|w| w.hash = Partitioner::Fnv1a, "made with hash murmur2, this process is configured with hash fnv1a"),
            (|w| w.usage = "resources".into(), "made with use ids, this process is configured with use resources"),
            (|w| w.incarnation = 2, "made with incarnation 3, this process is configured with incarnation 2"),
        ];
        for (change, message) in cases {
            let error = wanted(change).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("configure what stands there"), "{error}");
        }
        let newer = wanted(|w| w.format = 1).unwrap_err().to_string();
        assert!(newer.contains("in format 2; this one knows up to 1: run the version that wrote it"), "{newer}");
    }
}
