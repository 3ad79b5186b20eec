//! Time as leadership knows it: how long after an origin that its driver chose. It never reads a clock.

use std::time::Duration;

/// A moment on a clock that never goes back and goes on while the machine sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// This moment and a duration later; saturates.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// A duration earlier; not before the origin.
    #[must_use]
    pub const fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }

    /// How long after an earlier moment this is; zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}
