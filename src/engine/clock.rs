//! The engine's clock: the only place that reads one for the scheduler, and the way between its time and the calendar.
//!
//! Tokio's clock, so that tests run in virtual time.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::scheduler::Time;

/// Moments since the engine was built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        // A little before now, so that moments just before the start have a place too.
        Self { origin: Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or_else(Instant::now) }
    }

    /// The moment that is time zero.
    pub(crate) fn origin(&self) -> std::time::Instant {
        self.origin.into_std()
    }

    #[inline]
    pub(crate) fn now(&self) -> Time {
        self.time(Instant::now())
    }

    pub(crate) fn time(&self, instant: Instant) -> Time {
        Time::ZERO.after(instant.saturating_duration_since(self.origin))
    }

    pub(crate) fn instant(&self, time: Time) -> Instant {
        let far = Duration::from_secs(365 * 24 * 3_600);
        let since = time.since(Time::ZERO);
        self.origin.checked_add(since).unwrap_or_else(|| Instant::now() + far)
    }

    /// The calendar time of a moment, by the calendar as it is now: after a jump of the wall clock, moments keep
    /// their distance.
    pub(crate) fn wall(&self, time: Time) -> SystemTime {
        let now = self.now();
        let wall = SystemTime::now();
        if time >= now {
            wall.checked_add(time.since(now)).unwrap_or(wall)
        } else {
            wall.checked_sub(now.since(time)).unwrap_or(SystemTime::UNIX_EPOCH)
        }
    }

    /// The moment of a calendar time, by the calendar as it is now.
    pub(crate) fn moment(&self, wall: SystemTime) -> Time {
        let now = self.now();
        match wall.duration_since(SystemTime::now()) {
            Ok(ahead) => now.after(ahead),
            Err(behind) => Time(now.0.saturating_sub(u64::try_from(behind.duration().as_nanos()).unwrap_or(u64::MAX))),
        }
    }

    /// The same for people, who need no more than milliseconds.
    pub(crate) fn timestamp(&self, time: Time) -> Timestamp {
        let exact = Timestamp::try_from(self.wall(time)).unwrap_or(Timestamp::UNIX_EPOCH);
        Timestamp::from_millisecond(exact.as_millisecond()).unwrap_or(exact)
    }
}
