//! When to list what, decided apart from doing it: a value that is given the time.
//!
//! Must never let a failure or a change of leadership be forgotten. Tested below, and as a stream in
//! tests/it/streams_resync.rs.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use crate::id::ShardId;

/// How long after a failure the list is made again: first; doubled each time, up to the interval.
const RETRY_FIRST: Duration = Duration::from_millis(250);

/// Which ids a pass hands over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// All.
    All,
    /// Those of shards that came to be led since the last pass began.
    Fresh(BTreeSet<ShardId>),
}

impl Scope {
    /// Whether an id of this shard is to be handed over.
    pub(super) fn holds(&self, shard: impl FnOnce() -> Option<ShardId>) -> bool {
        match self {
            Self::All => true,
            Self::Fresh(shards) => shard().is_some_and(|shard| shards.contains(&shard)),
        }
    }
}

/// What is owed a list, and since when.
pub(super) struct Plan {
    every: Duration,
    jitter_percent: u8,
    led: BTreeSet<ShardId>,
    /// Led, and not listed since.
    fresh: BTreeSet<ShardId>,
    /// Whether everything is to be listed, whatever the time.
    asked: bool,
    /// When everything is to be listed next.
    due: Instant,
    /// After a failure: when to list again, and how long that delay is.
    retry: Option<(Instant, Duration)>,
}

impl Plan {
    pub(super) fn new(every: Duration, jitter_percent: u8, now: Instant) -> Self {
        let (led, fresh) = Default::default();
        Self { every, jitter_percent, led, fresh, asked: false, due: now, retry: None }
    }

    /// Takes in which shards are led after a change. Where that are the same as before, some were lost and led again
    /// meanwhile, and nobody knows which.
    pub(super) fn observe(&mut self, led: &[ShardId]) {
        let now: BTreeSet<_> = led.iter().copied().collect();
        if now == self.led {
            self.led.clear();
        }
        self.fresh.retain(|shard| now.contains(shard));
        self.fresh.extend(now.difference(&self.led));
        self.led = now;
    }

    pub(super) fn ask(&mut self) {
        self.asked = true;
    }

    /// What to list now, if anything.
    pub(super) fn begin(&mut self, now: Instant) -> Option<Scope> {
        if self.led.is_empty() || self.retry.is_some_and(|(at, _)| now < at) {
            return None;
        }
        if self.asked || now >= self.due || (self.fresh == self.led) {
            self.fresh.clear();
            self.asked = false;
            self.due = now + jittered(self.every, self.jitter_percent, RandomState::new().hash_one(0));
            return Some(Scope::All);
        }
        (!self.fresh.is_empty()).then(|| Scope::Fresh(std::mem::take(&mut self.fresh)))
    }

    /// When to look again, if nothing else happens; `None`: only when something does.
    pub(super) fn next(&self) -> Option<Instant> {
        (!self.led.is_empty()).then(|| self.retry.map_or(self.due, |(at, _)| at))
    }

    pub(super) fn succeeded(&mut self) {
        self.retry = None;
    }

    /// Owes the same again, and says after which delay.
    pub(super) fn failed(&mut self, scope: Scope, now: Instant) -> Duration {
        match scope {
            Scope::All => self.asked = true,
            Scope::Fresh(shards) => self.fresh.extend(shards.intersection(&self.led)),
        }
        let delay = self.retry.map_or(RETRY_FIRST, |(_, before)| before * 2).min(self.every);
        self.retry = Some((now + delay, delay));
        delay
    }
}

/// The interval, longer or shorter by at most so many percent.
fn jittered(every: Duration, percent: u8, chance: u64) -> Duration {
    let spread = every / 100 * u32::from(percent);
    let part = u32::try_from(chance % 2_001).unwrap_or(0);
    every - spread + spread / 1_000 * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q9_jitter_stays_within_its_percent() {
        let hour = Duration::from_secs(3_600);
        for chance in (0..100_000).chain([u64::MAX]) {
            assert_eq!(jittered(hour, 0, chance), hour);
            let jittered = jittered(hour, 10, chance);
            assert!(jittered >= hour * 9 / 10 && jittered <= hour * 11 / 10, "{jittered:?}");
        }
        assert_eq!(jittered(hour, 10, 0), hour * 9 / 10);
        assert_eq!(jittered(hour, 10, 2_000), hour * 11 / 10);
    }
}
