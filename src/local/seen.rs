//! The latest term that a store has seen of a shard: it fences the earlier ones and gives the next one its revision
//! (L4).
//!
//! Must never go back. Tested below, and by the stores' conformance suite.

use std::time::SystemTime;

use crate::contract::{StoreError, Term};

/// The latest term of one shard; the default is older than every term.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seen {
    pub(super) incarnation: u32,
    pub(super) revision: u64,
}

impl Seen {
    /// The latest term once a new one has begun.
    ///
    /// Its revision is the time in microseconds, or one more than the last where the clock says no later: so tokens
    /// grow from one process to the next even where what was seen is lost with it, be it a memory store or a lost disk.
    /// The incarnation is the cluster's, 1 where none was written down.
    pub(super) fn next(self, now: SystemTime, incarnation: Option<u32>) -> Result<Self, StoreError> {
        let micros = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
        let after = self.revision.checked_add(1).ok_or_else(|| StoreError::Corrupt {
            id: "the latest term".into(),
            reason: format!("revision {} has no successor", self.revision),
        })?;
        Ok(Self {
            incarnation: self.incarnation.max(incarnation.unwrap_or(1)),
            revision: u64::try_from(micros).unwrap_or(0).max(after),
        })
    }

    /// The latest term once this one has written.
    pub(super) fn admit(self, term: Term) -> Result<Self, StoreError> {
        let writes = Self { incarnation: term.incarnation, revision: term.revision };
        if writes < self { Err(StoreError::Fenced) } else { Ok(writes) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::ShardId;

    #[test]
    fn l4_revisions_grow_whatever_the_clock_says() {
        let at = |micros| SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
        let mut seen = Seen::default();
        for (now, wanted) in [(1_000, 1_000), (1_000, 1_001), (5, 1_002), (0, 1_003), (2_000, 2_000)] {
            seen = seen.next(at(now), None).unwrap();
            assert_eq!(seen.revision, wanted);
        }
        assert_eq!(seen.next(SystemTime::UNIX_EPOCH - Duration::from_secs(1), None).unwrap().revision, 2_001);
        assert!(matches!(Seen { revision: u64::MAX, ..seen }.next(at(1), None), Err(StoreError::Corrupt { .. })));
    }

    #[test]
    fn l4_a_term_that_has_begun_fences_the_ones_before() {
        let first = Seen::default().next(SystemTime::UNIX_EPOCH, Some(4)).unwrap();
        let term = Term { shard: ShardId(0), incarnation: first.incarnation, revision: first.revision };
        assert!(first.admit(term).is_ok());
        let second = first.next(SystemTime::UNIX_EPOCH, Some(4)).unwrap();
        assert!(matches!(second.admit(term), Err(StoreError::Fenced)), "before the second has written anything");
    }

    #[test]
    fn l4_an_earlier_term_is_fenced() {
        let term = |incarnation, revision| Term { shard: ShardId(0), incarnation, revision };
        let seen = Seen { incarnation: 2, revision: 7 };
        for (incarnation, revision, admitted) in
            [(2, 7, true), (2, 8, true), (3, 1, true), (2, 6, false), (1, 9, false)]
        {
            assert_eq!(seen.admit(term(incarnation, revision)).is_ok(), admitted, "{incarnation} {revision}");
        }
    }
}
