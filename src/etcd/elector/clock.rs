//! The clock of leadership: it goes on while the machine sleeps, and nobody can set it (L3).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::contract::Validity;
use crate::leadership::Moment;

#[cfg(target_os = "linux")]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
/// On macOS the monotonic clock counts sleep.
#[cfg(not(target_os = "linux"))]
const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

/// Now.
pub(super) fn now() -> Moment {
    let time = rustix::time::clock_gettime(CLOCK);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Moment(Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default()))
}

/// The calendar time of a moment, for people.
pub(super) fn wall(moment: Moment) -> SystemTime {
    SystemTime::now() + moment.since(now())
}

/// Until when a term holds; moved by the thread of leadership, read by the shard's loop.
#[derive(Debug, Default)]
pub(super) struct Until(AtomicU64);

impl Until {
    /// It holds until this moment; gives whether that is another one than before.
    pub(super) fn set(&self, moment: Moment) -> bool {
        let nanos = u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX);
        self.0.swap(nanos, Ordering::AcqRel) != nanos
    }

    /// It does not hold any more, whatever the clock says.
    pub(super) fn end(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Validity for Until {
    fn holds(&self) -> bool {
        now().0.as_nanos() < u128::from(self.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l3_a_term_holds_until_its_moment_and_never_again() {
        let until = Until::default();
        assert!(!until.holds());
        until.set(now().after(Duration::from_secs(60)));
        assert!(until.holds());
        until.set(now());
        assert!(!until.holds());
        until.set(now().after(Duration::from_secs(60)));
        until.end();
        assert!(!until.holds());
    }
}
