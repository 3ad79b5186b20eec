//! What stands where in etcd.
//!
//! Must never make two names that could be mistaken for one another, or for a prefix of one another: each part has a
//! fixed width or ends with a separator that cannot occur in it. Tested below.

use crate::id::{self, ShardId};

/// The names of one controller's keys. Below `evenkeel/NAME/` stand
///
/// | key | holds |
/// | --- | --- |
/// | `cluster` | what all processes agree on (L7) |
/// | `lead/leader/00012` | who leads shard 12, under the lease of its process; its create revision is the term's (L4) |
/// | `lead/term/00012` | the note of its last term, which outlives the lease: whether it has stopped (L9) |
/// | `lead/beat/PROCESS` | that a process has confirmed its lease (L3) |
/// | `head/00012` | the last change of the shard's records |
/// | `owed/00012/ID` | an owed record (D12) |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// The keys of the controller with this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { prefix: format!("evenkeel/{}/", id::encode(name)) }
    }

    /// What all keys begin with: what a role in etcd must be granted, to read and to write.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The cluster record.
    #[must_use]
    pub fn cluster(&self) -> String {
        format!("{}cluster", self.prefix)
    }

    /// The leader of a shard.
    #[must_use]
    pub fn leader(&self, shard: ShardId) -> String {
        format!("{}leader/{:05}", self.leading(), shard.0)
    }

    /// The note of a shard's last term.
    #[must_use]
    pub fn term(&self, shard: ShardId) -> String {
        format!("{}term/{:05}", self.leading(), shard.0)
    }

    /// What all keys of leadership begin with: one watch sees them, in the order of their changes.
    #[must_use]
    pub fn leading(&self) -> String {
        format!("{}lead/", self.prefix)
    }

    /// The beat of a process.
    #[must_use]
    pub fn beat(&self, process: &str) -> String {
        format!("{}beat/{}", self.leading(), id::encode(process))
    }

    /// The last change of a shard's records.
    #[must_use]
    pub fn head(&self, shard: ShardId) -> String {
        format!("{}head/{:05}", self.prefix, shard.0)
    }

    /// What the records of a shard begin with.
    #[must_use]
    pub fn records(&self, shard: ShardId) -> String {
        format!("{}owed/{:05}/", self.prefix, shard.0)
    }

    /// The record of an id. The id stands at the end as it is, so that keys sort as ids do: an encoding would change
    /// the order of the pages.
    #[must_use]
    pub fn record(&self, shard: ShardId, id: &str) -> String {
        format!("{}{id}", self.records(shard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_another_or_begins_like_one() {
        let (keys, odd) = (Keys::new("dns"), Keys::new("dns/x"));
        assert_eq!(keys.leader(ShardId(12)), "evenkeel/dns/lead/leader/00012");
        assert_eq!(keys.record(ShardId(u16::MAX), "a/b"), "evenkeel/dns/owed/65535/a/b");
        assert!(!odd.prefix().starts_with(keys.prefix()), "{}", odd.prefix());
        let single = [
            keys.cluster(),
            keys.leader(ShardId(1)),
            keys.leader(ShardId(11)),
            keys.term(ShardId(1)),
            keys.beat("1"),
            keys.head(ShardId(1)),
        ];
        for (i, one) in single.iter().enumerate() {
            assert!(single.iter().skip(i + 1).all(|other| !other.starts_with(one) && !one.starts_with(other)));
            assert!(one.starts_with(keys.prefix()));
        }
        assert!(!keys.record(ShardId(11), "x").starts_with(&keys.records(ShardId(1))));
    }
}
