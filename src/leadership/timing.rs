//! The times that keep two leaders apart, and why they are what they are.
//!
//! They belong together: who leads stops [`MARGIN`] before its lease can run out, and who comes after a loss that was
//! not in order waits until the one before must have stopped, less [`TAKEOVER_LEAD`]. What lies between the two is the
//! time in which runs are cut off.

use std::time::Duration;

/// Leadership ends so long before the lease can run out: for cutting off what runs, and for clocks of another rate.
/// Servers were never seen to drop a lease early.
pub const MARGIN: Duration = Duration::from_millis(500);

/// A successor may start so long before a lease of the predecessor that was confirmed at its last beat would run out,
/// so that its wait is over when the lease of a killed process runs out.
pub const TAKEOVER_LEAD: Duration = Duration::from_millis(100);

/// Runs that were cut off at the deadline must have ended so long after it; else the process ends (L3). It is what
/// lies between the deadline and the earliest start of a successor.
pub const CUT_OFF: Duration = MARGIN.saturating_sub(TAKEOVER_LEAD);

/// The same where the deadline was noticed too late, since the whole process stood still.
pub const CUT_OFF_LATE: Duration = Duration::from_secs(1);

/// Starting stops, and runs are told to stop, so long before the deadline; a fifth of the time to live where that is
/// less.
pub const STOP_BEFORE: Duration = Duration::from_secs(2);

/// What failed is asked again after this long.
pub const AGAIN: Duration = Duration::from_millis(100);

/// A shard that could not be taken or given back is tried again after this long.
pub const RETRY: Duration = Duration::from_millis(250);

/// A lease that could not be had is asked for again after this long.
pub const GRANT_RETRY: Duration = Duration::from_secs(1);

/// Leader keys that are taken at a time. What proves them is as old as the request, so that none may wait in a queue.
pub const TAKES_MAX: usize = 64;

/// A lease is renewed this many times within its time to live.
pub const RENEWALS: u32 = 5;

/// How often a lease is renewed.
#[must_use]
pub fn renew_every(ttl: Duration) -> Duration {
    ttl / RENEWALS
}

/// How long before the deadline nothing starts any more.
#[must_use]
pub fn stop_before(ttl: Duration) -> Duration {
    STOP_BEFORE.min(ttl / RENEWALS)
}

/// How long after its last beat a predecessor may still act (L9).
#[must_use]
pub fn takeover_wait(ttl: Duration) -> Duration {
    ttl.saturating_sub(TAKEOVER_LEAD)
}
