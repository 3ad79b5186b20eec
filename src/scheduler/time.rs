//! Time as the scheduler knows it: nanoseconds since an origin that its driver chose. It never reads a clock.

use std::fmt;
use std::time::Duration;

/// A moment: nanoseconds since the driver's origin, on a clock that never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// Later than any other moment (584 years).
    pub const MAX: Self = Self(u64::MAX);

    /// This moment and a duration later; saturates.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The same in seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "53 bits of nanoseconds are 104 days")]
    pub const fn seconds_since(self, earlier: Self) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 * 1e-9
    }

    /// How long after an earlier moment this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration::from_nanos(self.0).fmt(f)
    }
}
