//! Terms of leadership and the fencing tokens made from them (L4).

use std::fmt;
use std::str::FromStr;

use crate::id::ShardId;

/// One leadership of one shard. For one shard `(incarnation, revision)` only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term {
    /// The shard.
    pub shard: ShardId,
    /// Raised by hand when the store was restored from a backup, since revisions go back then.
    pub incarnation: u32,
    /// The leader key's create revision in etcd; alone on a machine, a counter of the store.
    pub revision: u64,
}

impl Term {
    /// The token of a run of this term.
    #[must_use]
    pub const fn token(&self, run: u64) -> FencingToken {
        FencingToken { incarnation: self.incarnation, revision: self.revision, run }
    }
}

/// Proves to a target which run is the later one: for one id it only grows, and a target refuses a smaller one (L4).
///
/// Its text sorts bytewise like the token itself: `0001-0000000000000004711-000000000042`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    incarnation: u32,
    revision: u64,
    run: u64,
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:019}-{:012}", self.incarnation, self.revision, self.run)
    }
}

impl FromStr for FencingToken {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(3, '-');
        let mut part =
            |digits: usize| parts.next().filter(|p| p.len() == digits && p.bytes().all(|b| b.is_ascii_digit()));
        let (Some(incarnation), Some(revision), Some(run)) = (part(4), part(19), part(12)) else { return Err(()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        Ok(Self { incarnation: incarnation.parse().map_err(|_| ())?, revision: number(revision)?, run: number(run)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_tokens_sort_as_text() {
        let term = |incarnation, revision| Term { shard: ShardId(0), incarnation, revision };
        let tokens = [
            term(1, 9).token(999_999),
            term(1, 10).token(1),
            term(1, 10).token(2),
            term(1, 4_711).token(42),
            term(2, 1).token(1),
        ];
        assert_eq!(tokens[3].to_string(), "0001-0000000000000004711-000000000042");
        for pair in tokens.windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(pair[0].to_string() < pair[1].to_string());
            assert_eq!(pair[0].to_string().parse(), Ok(pair[0]));
        }
        for bad in ["", "1-2-3", "0001-0000000000000004711-00000000004x", "0001-0000000000000004711"] {
            assert_eq!(bad.parse::<FencingToken>(), Err(()), "{bad}");
        }
    }
}
