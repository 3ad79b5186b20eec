//! What a shard is told once: its bounds, each with name, unit, default and reason, and the rules of each kind.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

/// The longest delay that anybody can ask for; longer ones are cut to it. Far beyond any sensible wait, and no sum
/// overflows.
pub const DELAY_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

/// How many ids of a resync wait in a shard at most (Q6): enough to keep the workers busy, few enough that their memory
/// and their turn in the lanes do not matter.
pub const RESYNC_WAITING_MAX: u32 = 1_000;

/// Idle ids that stay in the table, so that an id that comes often costs no insertion. About 10 MiB.
pub const IDLE_KEPT_MAX: u32 = 65_536;

/// Everything a shard is told once.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Ids owed a run now or after a failure, at most (D6).
    pub admitted_max: NonZeroU32,
    /// Ids that only hold a requested time, at most (D6).
    pub timers_max: NonZeroU32,
    /// Owed records, and parked ids, at most (X1).
    pub owed_records_max: NonZeroU32,
    /// An id that holds something back for longer gets an owed record (D12).
    pub max_hold: Duration,
    /// Two runs of an id that nothing new asked for are at least so far apart (D7, D9).
    pub min_requeue: Duration,
    /// Due times are rounded up to this (D5).
    pub resolution: Duration,
    /// Whether owed records survive the process. Without, offsets are held until their runs succeed.
    pub durable: bool,
    /// Keys the hash that finds an id, so that nobody can craft ids that make the table slow. Drawn at random by the
    /// driver.
    pub hash_seed: u64,
    /// The kinds; for opaque ids there is one.
    pub kinds: Vec<KindSettings>,
}

/// The rules of one kind.
#[derive(Debug, Clone)]
pub struct KindSettings {
    /// Lanes (Q7).
    pub workers: NonZeroU16,
    /// Runs of one lane at a time.
    pub slots: NonZeroU32,
    /// When and how often to try again.
    pub retry: Retry,
}

/// When and how often to try again (D2, D3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// The first delay.
    pub initial: Duration,
    /// Each further delay is so many times the one before; at least 1.
    pub factor: f64,
    /// No delay is longer.
    pub max_delay: Duration,
    /// Up to this share of a delay is taken off at random, 0 to 1, so that what failed together does not come back
    /// together.
    pub jitter: f64,
    /// Attempts after the first one; `None` means never give up.
    pub max_retries: Option<u32>,
}

impl Retry {
    /// The defaults for opaque ids.
    pub const DEFAULT: Self = Self {
        initial: Duration::from_millis(250),
        factor: 2.0,
        max_delay: Duration::from_secs(300),
        jitter: 0.2,
        max_retries: Some(20),
    };

    /// The delay after this many failures in a row, at least 1. `draw` is any number; equal draws give equal delays.
    ///
    /// Grows with the failures up to `max_delay`, is never zero and never longer than `max_delay` (B21).
    #[must_use]
    pub fn delay(&self, failures: u32, draw: u64) -> Duration {
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        // Infinity where it overflows, and `min` takes care of that.
        let grown = (self.initial.as_secs_f64() * self.factor.powi(exponent)).min(self.max_delay.as_secs_f64());
        #[expect(clippy::cast_precision_loss, reason = "53 bits of a random number are plenty")]
        let share = (draw >> 11) as f64 / (1_u64 << 53) as f64;
        let jittered = grown * (1.0 - self.jitter * share);
        Duration::try_from_secs_f64(jittered)
            .unwrap_or(self.max_delay)
            .clamp(Duration::from_millis(1).min(self.initial), self.max_delay)
    }

    /// Whether this many failures in a row are too many.
    #[must_use]
    pub fn is_spent(&self, failures: u32) -> bool {
        self.max_retries.is_some_and(|max| failures > max)
    }
}

impl Settings {
    /// Settings with the documented defaults, for one kind with so many workers of so many slots.
    #[must_use]
    pub fn new(workers: NonZeroU16, slots: NonZeroU32) -> Self {
        let million = NonZeroU32::MIN.saturating_add(999_999);
        Self {
            admitted_max: million,
            timers_max: million,
            owed_records_max: million,
            max_hold: Duration::from_secs(60),
            min_requeue: Duration::from_millis(250),
            resolution: Duration::from_millis(10),
            durable: true,
            hash_seed: 0,
            kinds: vec![KindSettings { workers, slots, retry: Retry::DEFAULT }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d2_b21_delays_grow_to_the_cap_and_never_overflow() {
        for initial in [Duration::from_millis(1), Duration::from_secs(1), Duration::from_secs(3_600)] {
            for factor in [1.0, 2.0, 10.0] {
                for jitter in [0.0, 0.2, 1.0] {
                    let retry =
                        Retry { initial, factor, jitter, max_delay: Duration::from_secs(7_200), max_retries: None };
                    let mut before = Duration::ZERO;
                    for failures in 0..=10_000 {
                        let longest = retry.delay(failures, 0);
                        assert!(longest >= before && longest <= retry.max_delay && !longest.is_zero());
                        for draw in [u64::MAX, u64::MAX / 2, 1 << 60] {
                            let delay = retry.delay(failures, draw);
                            assert!(delay <= longest && !delay.is_zero(), "{delay:?} of {longest:?}");
                        }
                        before = longest;
                    }
                }
            }
        }
    }

    #[test]
    fn d3_retries_are_counted_after_the_first_attempt() {
        let retry = Retry { max_retries: Some(2), ..Retry::DEFAULT };
        assert_eq!([1, 2, 3].map(|failures| retry.is_spent(failures)), [false, false, true]);
        assert!(!Retry { max_retries: None, ..retry }.is_spent(u32::MAX));
    }
}
